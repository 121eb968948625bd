# loads_rate.py - small messages and connections: ipc-bench's manner, sockperf ping-pong, connect/accept/close.
# SPDX-License-Identifier: Apache-2.0
"""Workloads whose cost is in the calls and the wake-ups, not in the bytes."""

import os
import re

from ..process import BenchError
from ..session import run_pair
from ..workload import Metric, Workload


def need(pattern, text, what):
    """The first group of pattern as a number; without it the run is of no use."""
    found = re.search(pattern, text)
    if not found:
        raise BenchError(f"no {what} in the output: {' '.join(text.split())[-200:]}")
    return float(found.group(1))


def address(session, column):
    """Options for our own programs, and the port or the path behind them."""
    if column.is_unix:
        path = session.path("s")
        return ["-u", path], None, path
    port = session.port()
    return ["-p", str(port)], port, None


class MessageRate(Workload):
    no_unix = None
    key = True
    metrics = (Metric("rate", "msg/s"),)

    def __init__(self, name, title, count, count_quick, extra):
        self.name, self.title = name, title
        self.count, self.count_quick, self.extra = count, count_quick, extra

    def run(self, session, column):
        where, port, path = address(session, column)
        count = self.count_quick if session.quick else self.count
        plan = ["-c", str(count), "-s", "100"] + self.extra
        program = session.program("msgrate")
        sample, output = run_pair(session, column, [program, "server"] + where + plan, [program, "client"] + where + plan,
                                  port, path, seconds_max=300, server_ends=True)
        sample.values["rate"] = need(r"msgs_per_sec ([\d.]+)", output, "message rate")
        return sample


def sockperf_errors(output):
    """What sockperf counts as lost, doubled or out of order."""
    found = re.search(r"dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)", output)
    if found and any(int(n) for n in found.groups()):
        return [f"sockperf: dropped, duplicated, out of order: {found.groups()}"]
    return ["sockperf: " + line.strip() for line in output.splitlines() if "ERROR" in line]


def sockperf_pair(session, column, mode, size, seconds):
    port = session.port()
    server, client = (["--tcp", "-i", host, "-p", str(port)] for host in (column.listens_on, column.host))
    # Its ping-pong takes room for 600,000 messages a second and gives up beyond; Postern is beyond.
    rate = ["--mps=4000000"] if mode == "pp" else []
    return run_pair(session, column, ["sockperf", "sr"] + server,
                    ["sockperf", mode, "-m", str(size), "-t", str(seconds)] + rate + client, port, seconds_max=seconds + 30)


class SockperfLatency(Workload):
    name = "sockperf-pp-14"
    title = "sockperf pp --tcp -m 14: half a round trip"
    metrics = (Metric("p50", "us", False), Metric("p99", "us", False), Metric("p99.9", "us", False))
    key = True
    no_unix = "this sockperf has no Unix sockets"
    quick_columns = ("kernel", "postern")  # it sleeps for 2 s before each run

    def run(self, session, column):
        sample, output = sockperf_pair(session, column, "pp", 14, 1 if session.quick else 5)
        sample.values["p50"] = need(r"percentile 50\.000 = +([\d.]+)", output, "p50")
        sample.values["p99"] = need(r"percentile 99\.000 = +([\d.]+)", output, "p99")
        sample.values["p99.9"] = need(r"percentile 99\.900 = +([\d.]+)", output, "p99.9")
        sample.errors += sockperf_errors(output)
        return sample


class ConnectionRate(Workload):
    name = "connrate"
    title = "connect, accept, close: one at a time"
    metrics = (Metric("rate", "conn/s"),)
    no_unix = None

    def run(self, session, column):
        where, port, path = address(session, column)
        program = session.program("connrate")
        seconds = 1 if session.quick else 5
        sample, output = run_pair(session, column, [program, "server"] + where,
                                  [program, "client"] + where + ["-t", str(seconds)], port, path,
                                  seconds_max=seconds + 30, short_lived=True)
        if path and os.path.exists(path):
            os.unlink(path)
        sample.values["rate"] = need(r"conns_per_sec ([\d.]+)", output, "connection rate")
        return sample


WORKLOADS = [
    MessageRate("msgrate", "ipc-bench's manner, -c 1000000 -s 100: round trips", 1000000, 20000, []),
    MessageRate("msgrate-oneway", "one way, -c 1000000 -s 100: one side sends, the other reads", 1000000, 300000, ["-o"]),
    SockperfLatency(),
    ConnectionRate(),
]
