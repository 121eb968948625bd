#!/usr/bin/python3
# bench.py - all benchmarks of Postern in one command, next to kernel TCP, Unix sockets and BPF sockmap.
# SPDX-License-Identifier: Apache-2.0
"""Measures Postern against kernel TCP, Unix sockets and BPF sockmap, in the same run.

Server on one core, client on the other, medians of at least three runs, columns interleaved. Writes JSON, Markdown and SVG, and
ends with the ratios that are required. Exit status: 0 all reached, 1 something missed or failed, 2 wrong usage.
See docs/benchmarks.md.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time

from bench import checks, columns, machine, process, report, runner, svg
from bench.loads import load_all
from bench.session import Session

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short runs, all workloads in under three minutes")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each workload and column (default 3)")
    parser.add_argument("--only", metavar="NAME,...", help="these workloads; a name that ends in * stands for all that begin so")
    parser.add_argument("--columns", default=",".join(columns.NAMES), metavar="NAME,...",
                        help=f"these columns (default {','.join(columns.NAMES)})")
    parser.add_argument("--postern", default=os.path.join(ROOT, "build", "postern"), metavar="COMMAND",
                        help="the wrapper, with options if wanted (default build/postern)")
    parser.add_argument("--programs", default=os.path.join(ROOT, "build", "perf"), metavar="DIR",
                        help="where msgrate and the others are built (default build/perf; compiled at once if not there)")
    parser.add_argument("--cpus", metavar="SERVER,CLIENT", help="the two cores (default: the first and the last allowed)")
    parser.add_argument("--json", metavar="FILE", help="where to write; Markdown and SVG go beside it (default perf/out/...)")
    parser.add_argument("--list", action="store_true", help="name the workloads, and end")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    return parser, arguments


def choose_workloads(parser, only):
    available = load_all()
    if not only:
        return available
    chosen = []
    for name in only.split(","):
        found = [w for w in available if w.name == name or (name.endswith("*") and w.name.startswith(name[:-1]))]
        if not found:
            parser.error(f"no workload {name}; --list names them")
        chosen += [w for w in found if w not in chosen]
    return chosen


def choose_columns(parser, text):
    names = text.split(",")
    for name in names:
        if name not in columns.NAMES:
            parser.error(f"no column {name}; there are {', '.join(columns.NAMES)}")
    return names


def choose_cpus(parser, text):
    if not text:
        return None
    try:
        server, client = (int(word) for word in text.split(","))
    except ValueError:
        parser.error("--cpus wants two numbers")
    if not {server, client} <= os.sched_getaffinity(0):
        parser.error(f"--cpus: allowed are {sorted(os.sched_getaffinity(0))}")
    return server, client


def measure(arguments, workloads, names, cpus, work_dir):
    """Runs everything. Returns the document that becomes the JSON file."""
    all_columns = columns.make(names, arguments.postern, work_dir)
    prefix = next((c.server_prefix for c in all_columns if c.is_postern and not c.unavailable), [])
    session = Session(work_dir, arguments.programs, arguments.quick, cpus, prefix[0] if prefix else None)
    try:
        document = {"machine": machine.describe(ROOT, prefix), "results": []}
        start, ticks = time.monotonic(), machine.cpu_ticks()
        for load in workloads:
            result = runner.run_workload(load, session, all_columns, arguments.runs)
            document["results"].append(result)
            print(report.terminal_line(result), flush=True)
        passed, _, stolen = (after - before for after, before in zip(machine.cpu_ticks(), ticks))
        document["settings"] = {"quick": arguments.quick, "runs": arguments.runs, "server_cpu": session.server_cpu,
                                "client_cpu": session.client_cpu, "took_s": round(time.monotonic() - start, 1),
                                "stolen_percent": 100 * stolen / max(passed, 1)}
    finally:
        session.close()
        columns.close(all_columns)
    document["checks"] = checks.check_all(document["results"]) if "postern" in names and "kernel" in names else []
    return document


def write(document, json_path):
    """JSON, Markdown and plots, with one stem."""
    os.makedirs(os.path.dirname(os.path.abspath(json_path)), exist_ok=True)
    stem = json_path.removesuffix(".json")
    with open(json_path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    figures = [stem + suffix for suffix, plot in (("-ratios.svg", svg.plot_ratios), ("-values.svg", svg.plot_values))
               if plot(document["results"], stem + suffix)]
    with open(stem + ".md", "w", encoding="utf-8") as file:
        file.write(report.markdown(document, [os.path.basename(path) for path in figures]))
    return [json_path, stem + ".md"] + figures


def conclude(document):
    """Prints failures and required ratios. Returns the exit status."""
    failed = [f"{result['name']}, {record['label']}: {error}" for result in document["results"]
              for record in result["columns"].values() for error in record["errors"]]
    for text in failed:
        print(f"FAILED {text}")
    for check in document["checks"]:
        print(f"{check['verdict']} {check['text']}: {check['figures']}")
    missed = sum(check["verdict"] == "MISS" for check in document["checks"])
    print(f"{len(document['checks']) - missed} passed, {missed} missed, {len(failed)} failed, "
          f"{document['settings']['took_s']:.0f} s")
    return 1 if missed or failed else 0


def main():
    parser, arguments = parse_arguments()
    workloads = choose_workloads(parser, arguments.only)
    names = choose_columns(parser, arguments.columns)
    cpus = choose_cpus(parser, arguments.cpus)
    if arguments.list:
        for load in workloads:
            print(f"{load.name:<20} {load.title}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that everything is cleaned up
    work_dir = tempfile.mkdtemp(prefix="postern-bench-")
    try:
        document = measure(arguments, workloads, names, cpus, work_dir)
    except process.BenchError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench.py: interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    stem = "quick" if arguments.quick else "bench"
    default_path = os.path.join(ROOT, "perf", "out", time.strftime(f"{stem}-%Y%m%d-%H%M%S.json"))
    paths = write(document, arguments.json or default_path)
    status = conclude(document)
    print("written: " + ", ".join(os.path.relpath(path) for path in paths))
    return status


if __name__ == "__main__":
    sys.exit(main())
