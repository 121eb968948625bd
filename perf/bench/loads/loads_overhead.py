# loads_overhead.py - what Postern costs a program that it can do nothing for.
# SPDX-License-Identifier: Apache-2.0
"""Programs whose peers aren't accelerated, or that have no peers, with the wrapper and without.

A difference of 2 % is to be seen on machines whose runs differ by more than that. So a round has fresh processes of both kinds side
by side, and gives them the same work in short slices in turn, A B B A: what slows the machine down slows both slices of a
pair. Rounds are repeated because the layout of a process's memory alone is worth a per cent. checks.py takes the median of
all pairs of all rounds, and says how certain it is.
"""

import os
from statistics import median

from ..columns import Column
from .loads_rate import need
from .loads_redis import parse_csv, redis_client, redis_server
from ..process import BenchError, wait_client
from ..session import Sample
from ..workload import Metric, Workload


class Overhead(Workload):
    baseline = "plain"
    runs_min = 5
    runs_full = 9
    no_unix = None
    metrics = (Metric("rate", "req/s"),)

    def columns(self, columns):
        result = [Column("plain", "without Postern")]
        for column in columns:
            if column.is_postern:
                result.append(column)
        return result

    def run_round(self, session, columns):
        """A sample for each column: the median of its slices, with the slices in the notes."""
        pair_count = 3 if session.quick else 10
        slices = {column.name: [] for column in columns}
        with_servers = self.start(session, columns)
        try:
            for number in range(pair_count):
                for column in columns if number % 2 == 0 else reversed(columns):
                    slices[column.name].append(self.slice(session, column, with_servers))
        finally:
            for server, _ in with_servers.values():
                server.stop()
        return {name: Sample(values={"rate": median(rates)}, notes={"slices": rates}) for name, rates in slices.items()}

    def start(self, session, columns):
        """The servers that are needed: {column: (program, port)}."""
        return {}

    def slice(self, session, column, servers):
        """A fraction of a second of work. Returns its rate."""
        raise NotImplementedError


class RedisOverhead(Overhead):
    def __init__(self, side):
        self.name = f"overhead-{side}"
        self.title = f"redis GET, c=50, only the {side} under Postern"
        self.side = side

    def _only(self, column, side):
        """The column with the wrapper on one side, or on none."""
        prefix = column.server_prefix if self.side == side else []
        return Column(column.name, column.label, server_prefix=prefix, client_prefix=prefix)

    def start(self, session, columns):
        servers = {}
        try:
            for column in columns:
                port = session.port()
                server = session.start_server(self._only(column, "server"), redis_server(port, None, session.work_dir))
                servers[column.name] = (server, port)
                server.wait_listening(port)
        except BaseException:
            for server, _ in servers.values():
                server.stop()
            raise
        return servers

    def slice(self, session, column, servers):
        server, port = servers[column.name]
        count = 12000 if session.quick else 25000
        argv = redis_client(port, None, "-t", "get", "-n", str(count), "-c", "50", "-d", "64")
        with session.start_client(self._only(column, "client"), argv) as client:
            wait_client(client, 30)
            rows = parse_csv(client.out())
        if "GET" not in rows or not server.alive():
            raise BenchError(f"no figure for GET: {client.said()} | {server.said()}")
        return rows["GET"]["rps"]


class PlainIo(Overhead):
    name = "overhead-files"
    title = "4 KiB reads and writes of files and pipes"
    metrics = (Metric("rate", "calls/s"),)

    def slice(self, session, column, servers):
        argv = [session.program("plainio"), "-f", session.data_file(), "-t", "100" if session.quick else "200"]
        with session.start_client(column, argv) as program:
            wait_client(program, 30)
            return need(r"calls_per_sec ([\d.]+)", program.out(), "rate")


WORKLOADS = [RedisOverhead("server"), RedisOverhead("client"), PlainIo()]
