#!/usr/bin/python3
# memory.py - what programs cost that hold connections, kernel TCP and Postern in one run.
# SPDX-License-Identifier: Apache-2.0
#
#   memory.py [--build build] [--only one,family,stacks] [--stacks 1000] [--columns kernel,postern] [--json FILE]
#
# Cases: `one`, a server and a client with one connection; `family`, a server of 64 forked workers with a connection each, and the client
# that has the other ends; `stacks`, 1,000 programs, half of them servers with one client each. The programs are perf/programs/idleconn;
# each connection has carried 100 bytes each way and is silent. Figures are for each program, but for the daemons (posternd and what it
# has started), the machine's shared memory and the kernel's own (SUnreclaim), which are totals; those of the machine are differences,
# noisy if others work.

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
from bench import machine, process  # noqa: E402
from bench.process import BenchError, Program  # noqa: E402

WORKERS, PORT_FIRST, REST_S, READY_S_MAX = 64, 12000, 3, 60
FIGURES = (("pss", "PSS KiB"), ("address", "address MiB"), ("fds", "descriptors"), ("tables", "page tables KiB"), ("maps", "mappings"),
           ("daemons", "daemons PSS KiB"), ("shmem", "shmem KiB"), ("slab", "kernel KiB"))


def status_kib(pid, name):
    for line in process.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def daemons_of(runtime):
    pid = process.read_text(os.path.join(runtime, "posternd.pid")).split()
    return process.tree(int(pid[0])) if pid else []


class Case:
    """Programs that hold connections, of one column; each server's port is its own."""

    def __init__(self, arguments, column, work_dir, ends):
        self.arguments, self.column, self.work_dir, self.ends = arguments, column, work_dir, ends
        self.program = os.path.join(arguments.build, "perf", "idleconn")
        self.wrapper = [os.path.join(arguments.build, "postern")] if column == "postern" else []
        self.ports = iter(range(PORT_FIRST, 32000))

    def start(self, *argv, **options):
        stem = os.path.join(self.work_dir, f"{next(self.numbers)}")
        program = self.ends.enter_context(Program([*self.wrapper, self.program, *map(str, argv)], log_stem=stem, **options))
        self.ends.callback(os.killpg, program.pid, signal.SIGTERM)  # its workers, too
        return program

    def run(self, pairs, workers, connections):
        """Processes, of which each is a program's."""
        self.numbers = iter(range(10 ** 6))
        roots = []
        for _ in range(pairs):
            port = next(port for port in self.ports if process.count_tcp(port, process.TCP_LISTEN) == 0)
            server = self.start("server", "-p", port, *(["-w", workers] if workers else []))
            server.wait_listening(port)
            client = self.start("client", "-p", port, "-n", connections, stdin=subprocess.PIPE)
            client.wait_line("ready 1", READY_S_MAX)
            client.popen.stdin.write(b"\n")
            client.popen.stdin.flush()
            client.wait_line(f"ready {connections}", READY_S_MAX)
            seen = process.count_tcp(port, process.TCP_ESTABLISHED)
            if seen != (connections if self.column == "kernel" else 0):
                raise BenchError(f"{seen} connections are the kernel's, of {connections}, {self.column}")
            roots += [server.pid, client.pid]
        by_parent = {}
        for pid, parent in process.parents().items():
            by_parent.setdefault(parent, []).append(pid)
        return roots + [child for root in roots for child in by_parent.get(root, [])]


def figures(pids, runtime, before):
    shmem, slab = process.meminfo_kib("Shmem", "SUnreclaim")
    count = len(pids)
    return {"programs": count, "pss": process.pss_kib(pids) / count,
            "address": sum(status_kib(pid, "VmSize") for pid in pids) / count / 1024,
            "fds": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids) / count,
            "tables": sum(status_kib(pid, "VmPTE") for pid in pids) / count,
            "maps": sum(process.read_text(f"/proc/{pid}/maps").count("\n") for pid in pids) / count,
            "daemons": process.pss_kib(daemons_of(runtime)), "shmem": shmem - before[0], "slab": slab - before[1]}


def measure(arguments, column, shape):
    work_dir = tempfile.mkdtemp(prefix="postern-memory-")
    runtime = os.path.join(work_dir, "run")
    os.mkdir(runtime, 0o700)
    os.environ["POSTERN_RUNTIME_DIR"] = runtime
    try:
        before = process.meminfo_kib("Shmem", "SUnreclaim")
        with contextlib.ExitStack() as ends:
            pids = Case(arguments, column, work_dir, ends).run(*shape)
            time.sleep(REST_S)
            return figures(pids, runtime, before)
    finally:
        end = time.monotonic() + 30
        while daemons_of(runtime) and time.monotonic() < end:  # it leaves when nothing needs it
            time.sleep(0.2)
        shutil.rmtree(work_dir, ignore_errors=True)


def parse():
    parser = argparse.ArgumentParser(description="What programs cost that hold connections, kernel TCP and Postern in one run.")
    parser.add_argument("--build", default="build")
    parser.add_argument("--only", default="one,family,stacks")
    parser.add_argument("--stacks", type=int, default=1000)
    parser.add_argument("--columns", default="kernel,postern")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)
    return arguments


def main():
    arguments = parse()
    # Pairs of programs, the server's workers, connections of each pair.
    shapes = {"one": (1, 0, 1), "family": (1, WORKERS, WORKERS), "stacks": (arguments.stacks // 2, 0, 1)}
    columns, cells = arguments.columns.split(","), []
    print(f"{'case':8} {'programs':>8} {'column':8}" + "".join(f" {title:>16}" for _, title in FIGURES))
    for name in arguments.only.split(","):
        for column in columns:
            seen = measure(arguments, column, shapes[name])
            cells.append({"case": name, "column": column, **seen})
            print(f"{name:8} {seen['programs']:8} {column:8}" + "".join(f" {seen[key]:16,.1f}" for key, _ in FIGURES), flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            about = machine.describe(os.path.join(HERE, ".."), [os.path.join(arguments.build, "postern")])
            json.dump({"machine": about, "cells": cells}, file, indent=1)


if __name__ == "__main__":
    main()
