#!/usr/bin/python3
# run.py - the same socket calls on the kernel and under postern: what comes of each call has to be the same.
# SPDX-License-Identifier: Apache-2.0
#
# A case (cases/*.case) is a script for two actors, A and B (conform.cc). Layouts: `pair`, each actor a program of its own, so
# that under postern they meet over the same-host path; `local`, one program is both. Each layout runs on the kernel first,
# which is the oracle, then with both actors under postern, and for `pair` also with only one of them.
#
#   run.py --build build                    everything
#   run.py --build build --self-check 5     the kernel against itself: is every case repeatable?
#   run.py --build build --only 'epoll_*' --show
# A difference that is meant is listed with its reason in deviations.txt; it is printed and counted, never hidden.

import argparse
import difflib
import fnmatch
import glob
import itertools
import os
import re
import select
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ADDRESS = re.compile(r"(\d+\.\d+\.\d+\.\d+|\[[0-9a-f:.]+\]):(\d+)")
HANG_S = 20.0
RUNS = (("pair", "both"), ("pair", "server"), ("pair", "client"), ("local", "both"))


class Actor:
    def __init__(self, argv, errors):
        self.popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        self.rest = b""

    def call(self, line):
        try:
            self.popen.stdin.write((line + "\n").encode())
            self.popen.stdin.flush()
        except OSError:
            return f"ACTOR GONE {self.popen.wait()}"
        end = time.monotonic() + HANG_S
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.popen.stdout], [], [], max(0, end - time.monotonic()))
            if not ready:
                return "HANG"
            data = os.read(self.popen.stdout.fileno(), 65536)
            if not data:
                return f"ACTOR GONE {self.popen.wait()}"
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode(errors="replace")

    def end(self):
        self.popen.kill()
        self.popen.wait()
        self.popen.stdin.close()
        self.popen.stdout.close()


def load_cases():
    """[(name, [(actor, command)])]. `case NAME k=a,b` is repeated with {k} replaced by each value (~ in it is a space)."""
    cases, current = [], None
    for path in sorted(glob.glob(os.path.join(HERE, "cases", "*.case"))):
        with open(path, encoding="ascii") as file:
            for number, line in enumerate(file, 1):
                line = line.split("#")[0].strip()
                if line.startswith("case "):
                    words = line.split()[1:]
                    axes = [[(key, value) for value in values.split(",")] for key, values in (w.split("=", 1) for w in words[1:])]
                    current = [(words[0], dict(combination), []) for combination in itertools.product(*axes)]
                    cases += current
                elif line:
                    if current is None:
                        sys.exit(f"{path}:{number}: no case yet")
                    for _, values, lines in current:
                        lines.append(expand(line, values))
    return [("_".join([name, *(v.replace("~", "_") for v in values.values())]), lines) for name, values, lines in cases]


def expand(line, values):
    for key, value in values.items():
        line = line.replace("{" + key + "}", value.replace("~", " "))
    return line


def macro(line):
    """`pair` and `pair6`: a listener l, a client c and the accepted s."""
    if line not in ("pair", "pair6"):
        return [line]
    family, host = ("inet6", "::1") if line == "pair6" else ("inet", "127.0.0.1")
    return [f"B socket l {family} stream", f"B bind l {host} 0", "B listen l 5", "B name l => p", f"A socket c {family} stream",
            f"A connect c {host} $p", "B accept l s"]


class Names:
    """Ports by order of appearance: the numbers differ from run to run, which ones are equal does not."""

    def __init__(self):
        self.ports = {"0": "0"}

    def normal(self, text):
        return ADDRESS.sub(lambda m: f"{m.group(1)}:{self.ports.setdefault(m.group(2), f'P{len(self.ports)}')}", text)


def transcript(lines, layout, wrap_a, wrap_b, args):
    program, errors = args.program, None if args.show else subprocess.DEVNULL
    actor_a = Actor([*wrap_a, program], errors)
    actors = {"A": actor_a, "B": actor_a if layout == "local" else Actor([*wrap_b, program], errors)}
    names, values, out = Names(), {}, []
    try:
        for line in itertools.chain.from_iterable(macro(one) for one in lines):
            who, command = line.split(None, 1)
            command, _, keep = command.partition(" => ")
            result = actors[who].call(expand_ports(command, values))
            if keep:
                values[keep] = ADDRESS.search(result).group(2) if ADDRESS.search(result) else "1"
            out.append(f"{line}  ->  {names.normal(result)}")
            if result == "HANG" or result.startswith("ACTOR GONE"):
                break
    finally:
        for actor in set(actors.values()):
            actor.end()
    return out


def expand_ports(command, values):
    for key, value in values.items():
        command = command.replace("$" + key, value)
    return command


def deviations():
    """{case name: reason}; each line `NAME: REASON`."""
    with open(os.path.join(HERE, "deviations.txt"), encoding="ascii") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    return dict((part.strip() for part in line.split(":", 1)) for line in lines)


def wraps(mode, wrapper):
    """(what is put before A, what is put before B)"""
    return (wrapper if mode in ("both", "client") else [], wrapper if mode in ("both", "server") else [])


def compare_all(cases, runs, args):
    count = {"equal": 0, "different": 0, "deviation": 0}
    known, oracle = deviations(), {}
    for layout, mode in runs:
        for name, lines in cases:
            if (layout, name) not in oracle:
                oracle[layout, name] = transcript(lines, layout, [], [], args)
            want = oracle[layout, name]
            broken = [line for line in want if "SCRIPT ERROR" in line or "HANG" in line or "ACTOR GONE" in line]
            got = broken and ["the kernel's own transcript is no oracle", *broken] or transcript(lines, layout, *wraps(mode, args.wrapper), args)
            if args.show:
                print("\n".join([f"== {name} [{layout}, {mode}]", *got]))
            if got == want:
                count["equal"] += 1
                continue
            kind = "deviation" if name in known and not broken else "different"
            count[kind] += 1
            print(f"{kind}: {name} [{layout}, {mode}]" + (f": {known[name]}" if kind == "deviation" else ""))
            print("".join(f"    {line}\n" for line in difflib.unified_diff(want, got, "kernel", "postern", lineterm="", n=2)), end="", flush=True)
    return count


def main():
    parser = argparse.ArgumentParser(description="Socket calls on the kernel and under postern, compared.")
    parser.add_argument("--build", default="build")
    parser.add_argument("--only", default="*", help="case names: shell patterns, comma separated")
    parser.add_argument("--mode", default="both,server,client", help="who runs under postern")
    parser.add_argument("--wrapper", help="instead of BUILD/postern")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--show", action="store_true", help="print the transcripts")
    parser.add_argument("--self-check", type=int, default=0, metavar="N", help="compare the kernel with itself N times")
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    args.program = os.path.join(build, "tests", "conformance", "conform")
    args.wrapper = args.wrapper.split() if args.wrapper else [os.path.join(build, "postern")]
    cases = [c for c in load_cases() if any(fnmatch.fnmatchcase(c[0], p) for p in args.only.split(","))]
    names = [name for name, _ in cases]
    if len(set(names)) != len(names):
        sys.exit(f"two cases have one name: {sorted({n for n in names if names.count(n) > 1})}")
    if args.list:
        print("\n".join(names))
        return 0
    if args.self_check:
        args.wrapper, runs = [], (("pair", "both"), ("local", "both")) * args.self_check
    else:
        if not (os.path.isfile(args.wrapper[0]) or args.wrapper[0] == "env"):
            sys.exit(f"run.py: no wrapper {args.wrapper[0]}; --self-check N needs none")
        runs = [(layout, mode) for layout, mode in RUNS if mode in args.mode.split(",")]
    if not cases or not runs:
        sys.exit("run.py: nothing to run")
    started = time.monotonic()
    count = compare_all(cases, runs, args)
    print(f"{len(cases)} cases, {sum(count.values())} comparisons in {time.monotonic() - started:.0f} s: "
          f"{count['equal']} equal, {count['deviation']} listed deviations, {count['different']} different")
    return 1 if count["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
