#!/usr/bin/python3
# run.py - the same socket calls on the kernel and under postern: what comes of each call has to be the same.
# SPDX-License-Identifier: Apache-2.0
#
# A case (cases/**/*.case) is a script for two actors, A and B (actor/conform.cc). Layouts: `pair`, each actor a program of its own, so
# that under postern they meet over the same-host path; `local`, one program is both. Each layout runs on the kernel first,
# which is the oracle, then with both actors under postern, and for `pair` also with only one of them. `wire`, which wants root:
# the actors in two network namespaces and packets between them, for the kernel as for postern (wire.py).
#
#   run.py --build build                    everything
#   run.py --build build --self-check 5     the kernel against itself: is every case repeatable?
#   run.py --build build --only 'epoll_*' --show
# A difference that is meant is listed with its reason in deviations.txt; it is printed and counted, never hidden.

import argparse
import collections
import concurrent.futures
import contextlib
import difflib
import fnmatch
import glob
import itertools
import os
import queue
import re
import signal
import sys
import tempfile
import time

import lanes
import wire
from actors import Here, Stage, Unhurried, broken
from generate import Generator, MemoryGenerator, PortGenerator, generate, shrink
from generate_cork import CorkGenerator
from generate_rings import RingGenerator

HERE = os.path.dirname(os.path.abspath(__file__))
RUNS = (("pair", "both"), ("pair", "server"), ("pair", "client"), ("pair", "fallback"), ("local", "both"), ("wire", "both"),
        ("wire", "server"), ("wire", "client"))
HANG_S = 20.0
GENERATED_HANG_S = 5.0
SHRINK_HANG_S = 1.0
SHRINK_S = 30.0
KERNEL_TRIES = 20  # the kernel is asked so often whether it says what Postern has said
PATIENCE = 20  # times the pause after a line, over a wire; longer than acknowledgements are delayed
FORCES = re.compile(r"(buffers_fit|sndbuf_raised)\w*FORCE")
FALLBACK = ["-o", "ports.exclude=1-65535"]


def load_cases():
    """[(name, [(actor, command)])], and the names of those that say `here`: their actors have to be on one host. `case NAME k=a,b` is
    repeated with {k} replaced by each value (~ in it is a space)."""
    cases, here, current = [], set(), None
    for path in sorted(glob.glob(os.path.join(HERE, "cases", "**", "*.case"), recursive=True)):
        with open(path, encoding="ascii") as file:
            for number, line in enumerate(file, 1):
                line = line.split("#")[0].strip()
                if line.startswith("case "):
                    words = line.split()[1:]
                    if words[1:2] == ["here"]:
                        here.add(words[0])
                        del words[1]
                    axes = [[(key, value) for value in values.split(",")] for key, values in (w.split("=", 1) for w in words[1:])]
                    current = [(words[0], dict(combination), []) for combination in itertools.product(*axes)]
                    cases += current
                elif line:
                    if current is None:
                        sys.exit(f"{path}:{number}: no case yet")
                    for _, values, lines in current:
                        lines.append(expand(line, values))
    named = [(name, "_".join([name, *(v.replace("~", "_") for v in values.values())]), lines) for name, values, lines in cases]
    return [(full, lines) for _, full, lines in named], {full for name, full, _ in named if name in here}


def expand(line, values):
    for key, value in values.items():
        line = line.replace("{" + key + "}", value.replace("~", " "))
    return line


def deviations():
    """{case: reason}; each line `NAME: REASON`, or `NAME [LAYOUT]: REASON`."""
    with open(os.path.join(HERE, "deviations.txt"), encoding="ascii") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    return dict((part.strip() for part in line.split(":", 1)) for line in lines)


def wraps(mode, wrapper):
    """(what is put before A, what is put before B)"""
    if mode == "fallback":
        return ([*wrapper, *FALLBACK], [*wrapper, *FALLBACK])
    return (wrapper if mode in ("both", "client") else [], wrapper if mode in ("both", "server") else [])


def slips(transcript):
    """A kernel's that is of no use. An errno without a name (ERESTARTSYS and the like) is a slip of the kernel's own."""
    return broken(transcript) or any(line.endswith("-1 ?") for line in transcript)


class Comparison:
    def __init__(self, args, here):
        self.args, self.known, self.here = args, deviations(), here
        self.wires, self.all_wires = queue.SimpleQueue(), []  # those that nobody is at; all
        self.lanes = None  # of stages that have no wire
        self.count = {"equal": 0, "late": 0, "varies": 0, "different": 0, "deviation": 0}
        self.calls = collections.Counter()  # by (call, path)
        self.place, self.program = Here, args.program  # of actors on one host; what they are

    @contextlib.contextmanager
    def stage(self, layout, wrap=((), ()), hang_s=HANG_S, patience=1):
        """Each stage over a wire has one of its own: families see it when another one's actor dies. The others have a lane each."""
        place = self.wires.get() if layout == "wire" else self.place
        lane = self.lanes.get() if layout != "wire" else []
        wrap = [[*lane, *one] for one in wrap]
        try:
            with Stage(self.program, layout, *wrap, show=self.args.show, hang_s=hang_s, ports_last=hang_s == HANG_S,
                       place=place if patience == 1 else place.patient(patience), fresh=self.takes_time(layout) and layout != "wire") as stage:
                yield stage
        finally:
            if layout == "wire":
                self.wires.put(place)
            else:
                self.lanes.put(lane)

    def takes_time(self, layout):
        """Whether what one actor has sent is there a moment later only."""
        return layout == "wire" or self.place is not Here

    def wraps(self, layout, mode):
        """(what is put before A, what is put before B)"""
        a, b = wraps(mode, self.args.wrapper)
        return (a, b) if layout != "wire" else (a and [wire.IN_FAMILY], b and [wire.IN_FAMILY])

    def judge(self, name, layout, mode, lines, want, got):
        """Counts, and prints what is not equal. Whether it differs."""
        self.calls.update((line.split()[1], f"{layout}, {mode}") for line in want)
        if self.args.show:
            print("\n".join([f"== {name} [{layout}, {mode}]", *got]))
        if got == want:
            self.count["equal"] += 1
            return False
        if self.takes_time(layout) and not broken(want) and self.is_late(layout, mode, lines, want, got):
            self.count["late"] += 1
            print(f"late: {name} [{layout}, {mode}]: equal with pauses that are {PATIENCE} times as long", flush=True)
            return False
        reason = self.known.get(name) or self.known.get(f"{name} [{layout}]")
        if not reason and self.varies(layout, mode, lines, want, got):
            self.count["varies"] += 1
            print(f"varies: {name} [{layout}, {mode}]: the kernel's answer is not always the same", flush=True)
            return False
        kind = "deviation" if reason and not broken(want) and not broken(got) else "different"
        self.count[kind] += 1
        print(f"{kind}: {name} [{layout}, {mode}]" + (f": {reason}" if kind == "deviation" else ""))
        print("".join(f"    {line}\n" for line in difflib.unified_diff(want, got, "kernel", "postern", lineterm="", n=2)), end="", flush=True)
        return True

    def is_late(self, layout, mode, lines, want, got):
        """No call promises that a packet has arrived when the other side makes its next one, least of all on a busy machine. What a
        call does with those that have is the same with more time, which may be another answer of the kernel's than the first. A call
        that never returns is no matter of time."""
        if broken(got):
            return False
        said = self.play_fresh(layout, self.wraps(layout, mode), lines, PATIENCE)
        if said == want or (not broken(said) and said == self.play_fresh(layout, ((), ()), lines, PATIENCE)):
            return True
        parts = list(wire.apart(lines))
        said = self.play_fresh(layout, self.wraps(layout, mode), parts, PATIENCE) if layout == "wire" and parts != lines else []
        return said != [] and not broken(said) and said == self.play_fresh(layout, ((), ()), parts, PATIENCE)

    def varies(self, layout, mode, lines, want, got):
        return not broken(want) and not broken(got) and (self.kernel_says(layout, lines, got) or
                                                         self.is_by_chance(layout, mode, lines, want, got))

    def kernel_says(self, layout, lines, got):
        """Whether the kernel answers so, too, at other times: where two things happen at once, it has more than one answer."""
        return not self.takes_time(layout) and any(self.play_fresh(layout, ((), ()), lines) == got for _ in range(KERNEL_TRIES))

    def is_by_chance(self, layout, mode, lines, want, got):
        """A port that the kernel chooses may be one that was there before. Only which ports are the same may differ, and not once more."""
        any_port = [[re.sub(r":P\d+\b", ":P", line) for line in said] for said in (want, got)]
        return any_port[0] == any_port[1] and (self.play_fresh(layout, ((), ()), lines) ==
                                               self.play_fresh(layout, self.wraps(layout, mode), lines))

    def play_fresh(self, layout, wrap, lines, patience=1):
        with self.stage(layout, wrap, patience=patience) as stage:
            return stage.play(lines)

    def hand_written(self, cases, runs):
        """Fresh actors for each. Most of the time of a case is waiting, so that some are played at once."""
        everywhere, elsewhere = cases, [case for case in cases if case[0] not in self.here]
        if len(elsewhere) != len(cases) and any(layout == "wire" for layout, _ in runs):
            print(f"{len(cases) - len(elsewhere)} written cases left out [wire]: their actors have to be on one host")
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            oracle = {}
            for layout, mode in runs:
                cases = elsewhere if layout == "wire" else everywhere
                before = self.opens()
                if layout not in oracle:
                    oracle[layout] = list(pool.map(lambda case: self.play_fresh(layout, ((), ()), case[1]), cases))
                    of_oracle, before = self.opens() - before, self.opens()
                wrap = self.wraps(layout, mode)
                usable = [(case, want) for case, want in zip(cases, oracle[layout]) if not broken(want)]
                results = pool.map(lambda one: self.play_fresh(layout, wrap, one[0][1]), usable)
                for (name, lines), want in zip(cases, oracle[layout]):
                    got = ["the kernel's own transcript is no oracle", *broken(want)] if broken(want) else next(results)
                    self.judge(name, layout, mode, lines, want, got)
                if layout == "wire":
                    self.judge_opens(mode, self.opens() - before, of_oracle)

    def opens(self):
        """Connections that the kernel's TCP has made at the ends of wires, by actor."""
        return collections.Counter({who: sum(one.opens(who) for one in self.all_wires) for who in "AB"})

    def judge_opens(self, mode, made, of_oracle):
        """Equal is no news if the kernel has done it all."""
        for who in {"both": "AB", "server": "B", "client": "A"}[mode] if self.args.wrapper else "":
            wrong = self.args.only == "*" and made[who] * 4 > of_oracle[who]  # some cases are all about bridges
            self.count["different"] += wrong
            print(f"{'different: ' * wrong}the kernel has made {made[who]} of {who}'s {of_oracle[who]} connections [wire, {mode}]")

    def generated(self, cases, runs):
        """The same actors for all, so that each case meets what the one before left behind."""
        for layout in dict.fromkeys(layout for layout, _ in runs):
            said = self.play_in_turn(layout, ((), ()), [lines for _, lines in cases])
            oracle = [(name, lines, want) for (name, lines), want in zip(cases, said)]
            usable = [one for one in oracle if not slips(one[2])]
            if len(usable) != len(oracle):
                print(f"{len(oracle) - len(usable)} generated cases left out [{layout}]: the kernel hangs in them, or slips")
            for mode in [mode for of, mode in runs if of == layout]:
                results = self.play_in_turn(layout, self.wraps(layout, mode), [lines for _, lines, _ in usable])
                for (name, lines, want), got in zip(usable, results):
                    if self.judge(name, layout, mode, lines, want, got):
                        self.explain(name, layout, mode, lines)

    def by_rings(self, cases, runs):
        """Fresh actors for each: one that has stepped aside stays there. They have their pauses, so that some are played at once."""
        self.place = Unhurried(self.args.settle_ms / 1000)
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            for layout in dict.fromkeys(layout for layout, _ in runs if layout != "wire"):
                said = pool.map(lambda case, layout=layout: self.play_fresh(layout, ((), ()), case[1]), cases)
                usable = [(name, lines, want) for (name, lines), want in zip(cases, said) if not slips(want)]
                if len(usable) != len(cases):
                    print(f"{len(cases) - len(usable)} ring cases left out [{layout}]: the kernel hangs in them, or slips")
                for mode in [mode for of, mode in runs if of == layout]:
                    wrap = self.wraps(layout, mode)
                    results = pool.map(lambda one, layout=layout, wrap=wrap: self.play_fresh(layout, wrap, one[1]), usable)
                    for (name, lines, want), got in zip(usable, results):
                        if self.judge(name, layout, mode, lines, want, got):
                            self.explain(name, layout, mode, lines)
        self.place = Here

    def play_in_turn(self, layout, wrap, cases):
        """Yields what came of each. Over the wire, where a case is mostly pauses, some have their turn at once."""
        def turn(some):
            with self.stage(layout, wrap, hang_s=GENERATED_HANG_S) as stage:
                for lines in some:
                    yield stage.play(lines)

        if layout != "wire":
            yield from turn(cases)
            return
        jobs = self.args.jobs
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            parts = list(pool.map(lambda first: list(turn(cases[first::jobs])), range(jobs)))
        yield from (parts[at % jobs][at // jobs] for at in range(len(cases)))

    @staticmethod
    def differs(kernel, stage, lines):
        """What both say, if it differs and the kernel says it twice."""
        want, again = kernel.play(lines), kernel.play(lines)
        if want != again or broken(want):
            return None
        got = stage.play(lines)
        return (want, got) if got != want else None

    def explain(self, name, layout, mode, lines):
        with self.stage(layout, hang_s=SHRINK_HANG_S) as kernel, self.stage(layout, self.wraps(layout, mode), hang_s=SHRINK_HANG_S) as stage:
            if not self.differs(kernel, stage, lines):
                print(f"    {name}: not with fresh actors, or not each time: what was before it matters, or the time")
                return
            end = time.monotonic() + SHRINK_S
            fewest = shrink(lines, lambda some: time.monotonic() < end and self.differs(kernel, stage, some) is not None)
            want, got = self.differs(kernel, stage, fewest) or ([], [])
        print(f"    the fewest lines of {name} that differ:")
        print("".join(f"      {line}\n" for line in difflib.ndiff(want, got) if line[0] != "?"), end="", flush=True)

    def print_calls(self):
        paths = sorted({path for _, path in self.calls})
        print(f"{'call':12}" + "".join(f"{path:>18}" for path in paths))
        for call in sorted({call for call, _ in self.calls}):
            print(f"{call:12}" + "".join(f"{self.calls[call, path]:18}" for path in paths))


@contextlib.contextmanager
def own_runtime():
    """A posternd of its own, if none is named: one of another version would leave all to the kernel, which is equal to itself."""
    if os.environ.get("POSTERN_RUNTIME_DIR"):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="pstn-conform-") as runtime:
        os.environ["POSTERN_RUNTIME_DIR"] = runtime
        yield
        with contextlib.suppress(OSError, ValueError), open(os.path.join(runtime, "posternd.pid"), encoding="ascii") as file:
            os.kill(int(file.read()), signal.SIGTERM)


def main():
    parser = argparse.ArgumentParser(description="Socket calls on the kernel and under postern, compared.")
    parser.add_argument("--build", default="build")
    parser.add_argument("--only", default="*", help="case names: shell patterns, comma separated")
    parser.add_argument("--layout", default="pair,local,wire", help="where the actors are")
    parser.add_argument("--mode", default="both,server,client,fallback", help="who runs under postern")
    parser.add_argument("--settle-ms", type=float, default=4, metavar="N", help="over the wire: the pause after a line that sends packets")
    parser.add_argument("--generate", type=int, default=0, metavar="N", help="and N cases made at random")
    parser.add_argument("--generate-ports", type=int, default=0, metavar="N", help="and N with ports that are free again; wants --jobs 1")
    parser.add_argument("--generate-cork", type=int, default=0, metavar="N", help="and N that hold bytes back")
    parser.add_argument("--generate-memory", type=int, default=0, metavar="N", help="and N with bad memory, odd sizes, other descriptors")
    parser.add_argument("--generate-rings", type=int, default=0, metavar="N", help="and N whose actors use an io_uring")
    parser.add_argument("--ring-actors", default="conform,conform_liburing,conform_inline",
                        help="who plays those, by turns: these make their rings by syscall(), a shared liburing, system calls of their own")
    parser.add_argument("--seed", default="1", help="for --generate: the same seed, the same cases")
    parser.add_argument("--calls", action="store_true", help="count the calls by path")
    parser.add_argument("--wrapper", help="instead of BUILD/postern")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="written cases that are played at once")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--show", action="store_true", help="print the transcripts")
    parser.add_argument("--self-check", type=int, default=0, metavar="N", help="compare the kernel with itself N times")
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    args.program = os.path.join(build, "tests", "conformance", "conform")
    args.wrapper = args.wrapper.split() if args.wrapper else [os.path.join(build, "postern")]
    cases, here = load_cases()
    if os.geteuid() != 0:
        allowed = [case for case in cases if not FORCES.match(case[0])]
        print(f"{len(cases) - len(allowed)} written cases left out: they force sizes of buffers, which is root's")
        cases = allowed
    cases = [c for c in cases if any(fnmatch.fnmatchcase(c[0], p) for p in args.only.split(","))]
    names = [name for name, _ in cases]
    if len(set(names)) != len(names):
        sys.exit(f"two cases have one name: {sorted({n for n in names if names.count(n) > 1})}")
    if args.list:
        print("\n".join(names))
        return 0
    if args.self_check:
        args.wrapper, runs = [], [(layout, "both") for layout in dict.fromkeys(layout for layout, _ in RUNS)] * args.self_check
    else:
        if not (os.path.isfile(args.wrapper[0]) or args.wrapper[0] == "env"):
            sys.exit(f"run.py: no wrapper {args.wrapper[0]}; --self-check N needs none")
        runs = [(layout, mode) for layout, mode in RUNS if mode in args.mode.split(",")]
    runs = [(layout, mode) for layout, mode in runs if layout in args.layout.split(",")]
    random_cases = [*generate(args.seed, args.generate, Generator), *generate(args.seed, args.generate_memory, MemoryGenerator, "m"),
                    *generate(args.seed, args.generate_ports, PortGenerator, "p"), *generate(args.seed, args.generate_cork, CorkGenerator, "c")]
    ring_cases = generate(args.seed, args.generate_rings, RingGenerator, "r")
    if not (cases or random_cases or ring_cases) or not runs:
        sys.exit("run.py: nothing to run")
    started = time.monotonic()
    comparison = Comparison(args, here)
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_runtime())
        comparison.lanes = stack.enter_context(lanes.opened(args.jobs + 2))  # two more for what is played once more, and reduced
        if any(layout == "wire" for layout, _ in runs):
            try:
                for _ in range(args.jobs + 2):  # two more for what is played once more, and reduced
                    comparison.all_wires.append(stack.enter_context(wire.opened(build, args.wrapper, args.settle_ms / 1000)))
                    comparison.wires.put(comparison.all_wires[-1])
            except wire.Unavailable as why:
                print(f"skipped: the wire: {why}")
                runs = [(layout, mode) for layout, mode in runs if layout != "wire"]
        comparison.hand_written(cases, runs)
        comparison.generated(random_cases, runs)
        with_rings = [os.path.join(os.path.dirname(args.program), name) for name in args.ring_actors.split(",")]
        with_rings = [path for path in with_rings if os.path.exists(path)]  # liburing may have been missing
        for at, comparison.program in enumerate(with_rings):
            comparison.by_rings(ring_cases[at::len(with_rings)], runs)
    if args.calls:
        comparison.print_calls()
    count = comparison.count
    print(f"{len(cases) + len(random_cases) + len(ring_cases)} cases, {sum(count.values())} comparisons in {time.monotonic() - started:.0f} s: "
          f"{count['equal']} equal, " + (f"{count['late']} late, " if comparison.all_wires or ring_cases else "") + f"{count['varies']} vary, "
          f"{count['deviation']} listed deviations, {count['different']} different")
    return 1 if count["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
