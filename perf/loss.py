#!/usr/bin/python3
# loss.py - goodput by loss: the kernel's own TCP, and Postern's, over a link of ours that loses, delays and reorders.
# SPDX-License-Identifier: Apache-2.0
#
#   loss.py [--quick] [--build build] [--columns kernel,postern,both,sim,receiver] [--seconds 8] [--runs 5] [--rtt 20,40,100]
#           [--loss 0,0.001,0.01,0.05,0.1] [--late 0,0.1] [--congestion cubic] [--out build/perf/loss]
#
# One bulk transfer between two network namespaces for each run (bench/lossy.py); what its receiver has taken in --seconds counts.
# Columns: `kernel`; of the same programs under the wrapper, on AF_XDP queues, `postern` the sender (congestion control is its), `receiver`
# the other one, `both`; `sim`, the simulator's table for comparison. Columns take turns within a point, with the same seeds.
#
# Root. Writes OUT.json and OUT.svg, prints a table, and for each column what is required: no less than the kernel. Exit status: 0 all
# reached, 1 something missed, 77 there is no wire here. --quick: seven minutes instead of half an hour.

import argparse
import json
import math
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "tests", "programs", "kit")]
import netlab  # noqa: E402
from bench import loss_report, lossy, machine  # noqa: E402
from bench.process import BenchError  # noqa: E402

SEED_FIRST = 1000
SKIP = 77
# Where there is no AF_XDP, posternd says one of these.
NOT_HERE = ("was built without", "lacks", "not permitted", "older than 6.4")
FULL = {"columns": "kernel,postern,both,sim", "seconds": 8.0, "runs": 5}
QUICK = {"columns": "kernel,postern,both", "seconds": 3.0, "runs": 3}


def same(point, other):
    return all(math.isclose(point[name], other[name]) if name != "congestion" else point[name] == other[name]
               for name in ("congestion", "rtt_ms", "loss", "late"))


def simulate(build, points):
    """The simulator's figures for these points; where it has none, none."""
    known = json.loads(subprocess.run([f"{build}/tests/sim/netsim", "--json"], check=True, capture_output=True, text=True).stdout)
    for point in points:
        found = [entry for entry in known if same(point, entry)]
        if found:
            point["columns"]["sim"] = {"mbit_s": found[0]["mbit_s"], "runs": [found[0]["mbit_s"]]}
            point["formula_mbit_s"] = found[0]["formula_mbit_s"]


def measure_point(link, point, columns, seconds, runs):
    """The columns in turns, from the other end in each second round: a machine that slows down slows down all of them."""
    done = {name: [] for name in columns}
    for number in range(runs):
        for name in columns if number % 2 == 0 else reversed(columns):
            done[name].append(link.run(point, name, seconds, SEED_FIRST + number))
    for name, results in done.items():
        rates = [result.pop("mbit_s") for result in results]
        point["columns"][name] = {"mbit_s": statistics.median(rates), "runs": rates, "notes": results}


def measure(args, points, columns):
    link = lossy.Link(args.build, columns)
    try:
        for point in points:
            measure_point(link, point, columns, args.seconds, args.runs)
            print(".", end="", file=sys.stderr, flush=True)
    finally:
        link.close()
        print(file=sys.stderr)


def numbers(text, number):
    return [number(part) for part in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--build", default="build", type=os.path.abspath)
    parser.add_argument("--columns")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--rtt", default="20")
    parser.add_argument("--loss", default="0,0.001,0.01,0.05,0.1")
    parser.add_argument("--late", default="0,0.1")
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--out")
    args = parser.parse_args()
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def main():
    args = parse_arguments()
    columns = args.columns.split(",")
    points = [{"congestion": congestion, "rtt_ms": rtt_ms, "late": late, "loss": loss, "columns": {}}
              for congestion in args.congestion.split(",") for rtt_ms in numbers(args.rtt, int)
              for late in numbers(args.late, float) for loss in numbers(args.loss, float)]
    document = {"machine": machine.describe(os.path.join(HERE, ".."), [f"{args.build}/postern"]), "rate_bps": lossy.RATE_BPS,
                "seconds": args.seconds, "points": points}
    measured = [name for name in columns if name in lossy.SIDES]
    if measured:
        try:
            measure(args, points, measured)
        except (netlab.Unavailable, BenchError) as error:
            skip = isinstance(error, netlab.Unavailable) or any(why in str(error) for why in NOT_HERE)
            print(f"{'skipped' if skip else 'failed'}: goodput by loss: {error}")
            return SKIP if skip else 1
    if "sim" in columns:
        simulate(args.build, points)
    loss_report.show(points, columns)
    document["checks"] = loss_report.check(points, columns)
    for line in document["checks"]:
        print(f"{line['verdict']} {line['text']}: {line['figures']}")
    out = args.out or f"{args.build}/perf/loss"
    with open(f"{out}.json", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    loss_report.plot(points, columns, f"{out}.svg")
    missed = sum(line["verdict"] == "MISS" for line in document["checks"])
    passed = sum(line["verdict"] == "PASS" for line in document["checks"])
    print(f"{passed} passed, {missed} failed")
    print(f"written: {out}.json {out}.svg", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
