#!/usr/bin/python3
# placement.py - round trips by where two programs run, how they wait, and how busy they are: kernel TCP and Postern in turns.
# SPDX-License-Identifier: Apache-2.0
#
#   placement.py [--quick] [--build build] [--only pairs=1,place=same,way=poll,rate=10000] [--columns kernel,postern]
#                [--seconds 1] [--runs 3] [--out build/perf/placement]
#
# perf/programs/pairs at both ends. Places: `same` core; `apart`, a core each; `shared`, both on two cores; `quota`, the same, and
# both together have half of one CPU's time (cgroup). A cell fails if Postern's p50, p99 or CPU time for a round trip is above the
# kernel's in each of its runs, and the median by more than a tenth. p99.9 is printed. Exit status: 0 none failed, 1 some did.

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
from bench import machine  # noqa: E402
from bench.process import BenchError  # noqa: E402

AXES = {"pairs": (1, 2, 8, 32), "place": ("same", "apart", "shared", "quota"),
        "way": ("blocking", "poll", "epoll", "threads"), "rate": (0, 1000, 10_000, 100_000)}
JUDGED = {"p50": "p50_us", "p99": "p99_us", "CPU": "cpu_us"}
TOLERANCE = 1.1
QUOTA_DIRS = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup")


class Quota:
    """A cgroup, of either version, with half a CPU; `prefix` starts a program in it."""

    def __init__(self):
        self.path = None
        for base in QUOTA_DIRS:
            if os.path.exists(f"{base}/cgroup.procs") and (base.endswith("/cpu") or os.path.exists(f"{base}/cgroup.controllers")):
                self.path = tempfile.mkdtemp(prefix="postern-placement-", dir=base)
                break
        if self.path is None:
            raise BenchError("no cgroup with a CPU controller")
        if os.path.exists(f"{self.path}/cpu.max"):
            self._write("cpu.max", "50000 100000")
        else:
            self._write("cpu.cfs_period_us", "100000")
            self._write("cpu.cfs_quota_us", "50000")

    def _write(self, name, text):
        with open(f"{self.path}/{name}", "w", encoding="ascii") as file:
            file.write(text)

    def prefix(self):
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def close(self):
        os.rmdir(self.path)


def cores(place, cpus):
    first, last = str(cpus[0]), str(cpus[-1])
    both = f"{first},{last}"
    return {"same": (first, first), "apart": (first, last)}.get(place, (both, both))


def run_once(arguments, cell, column, quota):
    """p50, p99, p99.9 and the CPU time of both ends for each round trip, in us."""
    wrapper = [os.path.join(arguments.build, "postern")] if column == "postern" else []
    inside = quota.prefix() if cell["place"] == "quota" else []
    program = os.path.join(arguments.build, "perf", "pairs")
    server_cpus, client_cpus = cores(cell["place"], arguments.cpus)
    way = ["--way", cell["way"]]
    with subprocess.Popen([*inside, "taskset", "-c", server_cpus, *wrapper, program, "server", *way], stdout=subprocess.PIPE, text=True) as server:
        try:
            ready = server.stdout.readline().split()
            if ready[:1] != ["ready"]:
                raise BenchError("the server does not get ready")
            client = subprocess.run([*inside, "taskset", "-c", client_cpus, *wrapper, program, "client", *way, "--port", ready[1],
                                     "--pairs", str(cell["pairs"]), "--rate", str(cell["rate"]), "--seconds", str(arguments.seconds)],
                                    stdout=subprocess.PIPE, text=True, check=True, timeout=arguments.seconds * 20 + 60)
        finally:
            server.send_signal(signal.SIGTERM)
        told = server.stdout.read().split()
    result = json.loads(client.stdout)
    trips = result["round_trips"]
    if trips == 0 or told[:1] != ["cpu"]:
        raise BenchError(f"no figures: {result} {told}")
    return {"trips": trips, "p50_us": result["p50_ns"] / 1e3, "p99_us": result["p99_ns"] / 1e3, "p999_us": result["p999_ns"] / 1e3,
            "cpu_us": (result["cpu_s"] + float(told[1])) * 1e6 / trips}


def measure(arguments, cell, quota):
    runs = {column: [] for column in arguments.columns}
    for number in range(arguments.runs):
        for column in arguments.columns if number % 2 == 0 else reversed(arguments.columns):
            runs[column].append(run_once(arguments, cell, column, quota))
    return runs


def worse(runs):
    """What is judged and above the kernel's."""
    found = []
    for name, key in JUDGED.items():
        kernel, ours = ([run[key] for run in runs[column]] for column in ("kernel", "postern"))
        if min(ours) > max(kernel) and statistics.median(ours) > TOLERANCE * statistics.median(kernel):
            found.append(name)
    return found


def row(cell, runs, bad):
    text = f"{cell['pairs']:5} {cell['place']:7} {cell['way']:9} {cell['rate'] or 'flat out':>8}"
    for key in ("p50_us", "p99_us", "p999_us", "cpu_us"):
        text += "   " + " ".join(f"{statistics.median(run[key] for run in column):9.1f}" for column in runs.values())
    return text + ("   worse: " + ", ".join(bad) if bad else "")


def parse():
    parser = argparse.ArgumentParser(description="Round trips by place, way of waiting and load, kernel TCP and Postern in turns.")
    parser.add_argument("--quick", action="store_true", help="1 and 32 pairs, as fast as they can and 10,000 a second")
    parser.add_argument("--build", default="build")
    parser.add_argument("--only", default="", help="AXIS=VALUE,...: cells that have these; a value of several by +")
    parser.add_argument("--columns", default="kernel,postern")
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    arguments.columns = arguments.columns.split(",")
    arguments.cpus = sorted(os.sched_getaffinity(0))
    arguments.build = os.path.abspath(arguments.build)
    wanted = {"pairs": (1, 32), "rate": (0, 10_000)} if arguments.quick else {}
    for part in filter(None, arguments.only.split(",")):
        axis, _, values = part.partition("=")
        if axis not in AXES:
            parser.error(f"no axis {axis!r}: {', '.join(AXES)}")
        wanted[axis] = tuple(type(AXES[axis][0])(value) for value in values.split("+"))
    arguments.axes = {axis: wanted.get(axis, values) for axis, values in AXES.items()}
    return arguments


def main():
    arguments = parse()
    quota = Quota() if "quota" in arguments.axes["place"] else None
    print(f"pairs place   way           rate   p50, p99, p99.9 and CPU time in us, each: {', '.join(arguments.columns)}")
    cells, failed = [], 0
    try:
        for values in itertools.product(*arguments.axes.values()):
            cell = dict(zip(arguments.axes, values))
            runs = measure(arguments, cell, quota)
            bad = worse(runs) if {"kernel", "postern"} <= set(arguments.columns) else []
            failed += bool(bad)
            cells.append({**cell, "runs": runs, "worse": bad})
            print(row(cell, runs, bad), flush=True)
    finally:
        if quota:
            quota.close()
    if arguments.out:
        with open(f"{arguments.out}.json", "w", encoding="utf-8") as file:
            json.dump({"machine": machine.describe(os.path.join(HERE, '..'), [os.path.join(arguments.build, 'postern')]), "cells": cells}, file, indent=1)
    print(f"{len(cells) - failed} cells no worse than the kernel, {failed} worse")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
