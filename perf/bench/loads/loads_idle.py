# loads_idle.py - what connections cost that nobody uses: memory and CPU.
# SPDX-License-Identifier: Apache-2.0
"""Memory per idle connection with our own program, and CPU time of nginx and redis that hold idle connections."""

import subprocess
import time

from .. import process
from .loads_http import nginx, nginx_errors
from .loads_rate import address
from .loads_redis import redis_server
from ..session import Sample
from ..workload import Metric, Workload

IDLE_CONNECTIONS = 100
READY_SECONDS_MAX = 60


def go_on(client):
    client.popen.stdin.write(b"\n")
    client.popen.stdin.flush()


class IdleMemory(Workload):
    """Between the first connection and the last, so that what exists once per process or pair of processes isn't counted.

    "own" is the memory of both processes and of posternd, shared pages by proportional set size: in the Postern column, less
    that of the kernel column, it is Postern's own. "slab" and "available" are the whole machine's, and noisy. "shmem" is all
    shared memory of the machine, and shows pages that nobody has mapped.
    """

    name = "idle-memory"
    title = "memory of an idle connection, both sides together, one 100 B message each way"
    metrics = (Metric("own", "B", False), Metric("slab", "B", False), Metric("shmem", "B", False),
               Metric("available", "B", False))
    no_unix = None
    compared = False

    def _measure(self, server, client, column):
        pids = process.tree(server.pid) + process.tree(client.pid)
        pids += process.helper_daemons() if column.is_postern else []
        slab, shmem, available = process.meminfo_kib("Slab", "Shmem", "MemAvailable")
        return {"own": process.pss_kib(pids), "slab": slab, "shmem": shmem, "available": -available}

    def run(self, session, column):
        count = 2000
        where, port, path = address(session, column)
        program = session.program("idleconn")
        sample = Sample()
        with session.start_server(column, [program, "server"] + where) as server:
            server.wait_listening(port, path)
            client_argv = [program, "client", "-n", str(count)] + where
            with session.start_client(column, client_argv, stdin=subprocess.PIPE) as client:
                client.wait_line("ready 1", READY_SECONDS_MAX)
                time.sleep(0.2)
                before = self._measure(server, client, column)
                go_on(client)
                client.wait_line(f"ready {count}", READY_SECONDS_MAX)
                time.sleep(1 if session.quick else 2)
                after = self._measure(server, client, column)
                if port:
                    sample.kernel_connections = process.count_tcp(port, process.TCP_ESTABLISHED)
        sample.values = {name: (after[name] - before[name]) * 1024 / (count - 1) for name in after}
        return sample


class IdleCpu(Workload):
    """CPU time while nothing happens. Milliseconds are the scheduler's own, to the nanosecond; ticks are what top shows."""

    metrics = (Metric("all", "ms", False), Metric("server ticks", "ticks", False), Metric("server", "ms", False),
               Metric("client", "ms", False), Metric("posternd", "ms", False))
    no_unix = "not asked for"
    compared = False

    def __init__(self, program):
        self.name = f"idle-cpu-{program}"
        self.title = f"CPU time over {self.seconds_full} s idle, {program} with {IDLE_CONNECTIONS} connections"
        self.program = program

    seconds_full = 5

    def columns(self, columns):
        return [column for column in columns if column.name in ("kernel", "postern")]

    def run(self, session, column):
        port = session.port()
        directory = None
        if self.program == "nginx":
            argv, directory = nginx(session, port)
            talk = "http"
        else:
            argv, talk = redis_server(port, None, session.work_dir), "redis"
        client_argv = [session.program("idleconn"), "client", "-n", str(IDLE_CONNECTIONS), "-p", str(port), "-m", talk]
        sample = Sample()
        with session.start_server(column, argv) as server:
            server.wait_listening(port)
            with session.start_client(column, client_argv, stdin=subprocess.PIPE) as client:
                client.wait_line("ready 1", READY_SECONDS_MAX)
                go_on(client)
                client.wait_line(f"ready {IDLE_CONNECTIONS}", READY_SECONDS_MAX)
                time.sleep(0.5 if session.quick else 1)
                sample.kernel_connections = process.count_tcp(port, process.TCP_ESTABLISHED)
                sample.values = self._watch(session, server, client, column)
        if directory:
            sample.errors += nginx_errors(directory)
        return sample

    def _watch(self, session, server, client, column):
        servers, clients = process.tree(server.pid), process.tree(client.pid)
        helpers = process.helper_daemons() if column.is_postern else []
        groups = {"server": servers, "client": clients, "posternd": helpers}
        ticks = process.cpu_of(servers).total
        before = {name: process.run_times_ns(pids) for name, pids in groups.items()}
        time.sleep(1.5 if session.quick else self.seconds_full)
        values = {name: process.run_time_between_ns(before[name], process.run_times_ns(pids)) / 1e6
                  for name, pids in groups.items()}
        values["server ticks"] = round((process.cpu_of(servers).total - ticks) * process.TICKS_PER_SECOND)
        values["all"] = values["server"] + values["client"] + values["posternd"]
        return values


WORKLOADS = [IdleMemory(), IdleCpu("nginx"), IdleCpu("redis")]
