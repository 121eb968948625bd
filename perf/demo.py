#!/usr/bin/python3
# demo.py - nginx and wrk over kernel TCP and through Postern, in turn, and what came of it.
# SPDX-License-Identifier: Apache-2.0
"""Starts nginx and wrk, first as they are, then with "postern" before each; twice, in turn. Shows how the connections went."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from statistics import median

from bench import columns
from bench.loads.loads_http import nginx, nginx_errors, parse_wrk
from bench.process import BenchError
from bench.session import Session, run_pair

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGES = {"nginx": "nginx-light", "wrk": "wrk"}
EXCERPT_LINES_MAX = 8


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--postern", default=os.path.join(ROOT, "build", "postern"), metavar="COMMAND",
                        help="the wrapper, with options if wanted (default build/postern)")
    parser.add_argument("--seconds", type=int, default=5, help="of each run (default 5)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind (default 2)")
    parser.add_argument("--connections", type=int, default=50, help="of wrk (default 50)")
    return parser.parse_args()


def what_is_missing(command):
    """Sentences that say what has to be done first."""
    missing = [f"{name} isn't installed. On Debian: apt-get install {package}"
               for name, package in PACKAGES.items() if not shutil.which(name)]
    try:
        columns.wrapper_prefix(command)
    except BenchError:
        missing.append(f"the wrapper {os.path.relpath(command.split()[0])} isn't built. Run ./run build first, or name it with --postern")
    return missing


def ask_posternctl(prefix):
    """The beginning of what "posternctl ss" says, or why it says nothing."""
    path = os.path.join(os.path.dirname(prefix[0]), "posternctl")
    if not os.access(path, os.X_OK):
        path = shutil.which("posternctl")
    if not path:
        return ["(no posternctl beside the wrapper)"]
    try:
        done = subprocess.run([path, "ss"], capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"(posternctl ss: {error})"]
    lines = (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip().splitlines()
    if len(lines) > EXCERPT_LINES_MAX:
        lines = lines[:EXCERPT_LINES_MAX] + [f"... and {len(lines) - EXCERPT_LINES_MAX} more lines"]
    return lines or ["(posternctl ss shows no sockets)"]


def run_once(session, column, arguments, excerpt):
    """One run of nginx and wrk. Returns (values, kernel connections); fills excerpt if the column is Postern's."""
    port = session.port()
    server, directory = nginx(session, port)
    client = ["wrk", "-t", "1", "-c", str(arguments.connections), "-d", str(arguments.seconds), "--latency",
              f"http://127.0.0.1:{port}/1k"]

    def look():
        if column.is_postern and not excerpt:
            excerpt.extend(ask_posternctl(column.server_prefix))

    sample, output = run_pair(session, column, server, client, port, seconds_max=arguments.seconds + 30, while_running=look)
    values, errors = parse_wrk(output)
    errors += sample.errors + nginx_errors(directory)
    if errors:
        raise BenchError("; ".join(errors))
    return values, sample.kernel_connections


def compare(arguments, work_dir):
    session = Session(work_dir, "", False)
    pair = [columns.Column("kernel", "kernel TCP"), columns.make_postern(arguments.postern)]
    shown = os.path.basename(arguments.postern.split()[0])
    print(f"nginx (one worker, 1 KiB file) on core {session.server_cpu}, wrk -t 1 -c {arguments.connections} on core "
          f"{session.client_cpu}; {arguments.rounds} rounds of {arguments.seconds} s each.\n")
    results = {column.name: [] for column in pair}
    seen, excerpt = 0, []
    for number in range(arguments.rounds):
        for column in pair:
            values, kernel_connections = run_once(session, column, arguments, excerpt)
            results[column.name].append(values)
            if column.is_postern:
                seen = max(seen, kernel_connections or 0)
            before = f"{shown} " if column.is_postern else ""
            print(f"  round {number + 1}  {before + 'nginx + ' + before + 'wrk':<32} {values['rate']:>10,.0f} req/s   "
                  f"p50 {values['p50']:.3f} ms   p99 {values['p99']:.3f} ms", flush=True)
    print_comparison(results)
    print("\nWhat posternctl ss said meanwhile:")
    for line in excerpt:
        print("  " + line)
    if seen:
        print(f"\nBut {seen} connections went through kernel TCP, not through Postern: posternctl explain PID says why.")
        return 1
    return 0


def print_comparison(results):
    kernel, postern = ({name: median(values[name] for values in runs) for name in ("rate", "p50", "p99")}
                       for runs in (results["kernel"], results["postern"]))
    print(f"\n  {'':<22}{'kernel TCP':>12}{'Postern':>12}")
    for name, label, ratio in (("rate", "requests per second", postern["rate"] / kernel["rate"]),
                               ("p50", "latency p50, ms", kernel["p50"] / max(postern["p50"], 1e-6)),
                               ("p99", "latency p99, ms", kernel["p99"] / max(postern["p99"], 1e-6))):
        form = "{:>12,.0f}" if name == "rate" else "{:>12.3f}"
        verdict = "better" if ratio > 1.05 else "worse" if ratio < 0.95 else "(the same)"
        print(f"  {label:<22}{form.format(kernel[name])}{form.format(postern[name])}    {ratio:.2f}x {verdict}")


def main():
    arguments = parse_arguments()
    missing = what_is_missing(arguments.postern)
    for text in missing:
        print(f"demo: {text}", file=sys.stderr)
    if missing:
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nginx and wrk are ended too
    work_dir = tempfile.mkdtemp(prefix="postern-demo-")
    try:
        return compare(arguments, work_dir)
    except BenchError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
