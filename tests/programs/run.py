#!/usr/bin/python3
# run.py - runs the program tests: real programs on both sides, in each mode, and says how many passed.
# SPDX-License-Identifier: Apache-2.0
#
#   run.py --build build                      the fast tier with both sides under postern, the server, the client
#   run.py --build build --mode kernel        on plain kernel sockets (needs no postern)
#   run.py --build build --only 'nginx_*' --mode both,client
#   run.py --build build --jobs 2             two tests at a time (kit/shards.py)
# Exit code: 0 all passed, 1 something failed, 2 usage.

import argparse
import fnmatch
import importlib
import itertools
import os
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOMS = ("kit", "apps", "calls", "mistakes", "chaos", "descriptors", "hostile", "rings", "sandbox", "environments", "libc", "servers", "splices")
sys.path[:0] = [os.path.join(HERE, room) for room in ROOMS]
import harness
import posternview
import sanitizer
import shards

MODULES = ("t_storm", "t_nginx", "t_apache", "t_curl", "t_redis", "t_rediscluster", "t_memcached", "t_iperf3", "t_sockperf", "t_python", "t_haproxy",
           "t_apps", "t_xfer", "t_mistakes", "t_postgres", "t_uwsgi", "t_ssh", "t_export", "t_signals", "t_faults", "t_stdio", "t_sessions", "t_waits", "t_backlog", "t_syscalls", "t_uring", "t_confines", "t_families", "t_sizes", "t_splices", "t_hostile", "t_chaos", "t_descriptors", "t_late_member", "t_first_sockets", "t_environments", "t_many")


def arguments():
    parser = argparse.ArgumentParser(description="Real programs under postern, on both sides, one side and none.")
    parser.add_argument("--build", default="build", help="meson build directory (default: build)")
    parser.add_argument("--only", default="*", help="names to run: shell patterns, comma separated")
    parser.add_argument("--servers", action="store_true", help="the tier of the distribution's servers (servers/t_servers.py) in place of the others")
    parser.add_argument("--rates", action="store_true", help="what programs do in a second, beside the kernel (servers/t_rates.py), in place of the others")
    parser.add_argument("--list", action="store_true", help="print the names and their modes, run nothing")
    parser.add_argument("--mode", default="both,server,client", help="all, or any of " + ",".join(harness.MODES) + " (default: all but kernel); turns: both, and of server and client one for each test")
    parser.add_argument("--tier", default="fast", choices=("fast", "long"), help="long includes the fast tests")
    parser.add_argument("--wrapper", help="command put before a program instead of BUILD/postern; paths are then not checked")
    parser.add_argument("--seed", type=int, default=1, help="for everything that is sampled")
    parser.add_argument("--seconds", type=int, default=0, help="how long each stress test runs (default: what the tier says)")
    parser.add_argument("--jobs", type=int, default=1, help="how many tests run at a time (default: 1; more needs root)")
    parser.add_argument("--keep", action="store_true", help="keep the logs of passed tests too")
    return parser.parse_args()


def configure(args, modes):
    build = os.path.abspath(args.build)
    config = harness.Config(build=build, tier=args.tier, seed=args.seed, keep="all" if args.keep else "", seconds=args.seconds)
    if args.wrapper:
        config.wrapper = args.wrapper.split()
        print(f"note: wrapper is '{args.wrapper}': that connections are accelerated is not checked")
    else:
        config.wrapper, config.posternctl = [os.path.join(build, "postern")], os.path.join(build, "posternctl")
        missing = [p for p in (config.wrapper[0], config.posternctl) if not os.access(p, os.X_OK)]
        if missing and modes != ["kernel"]:
            sys.exit(f"run.py: not built: {', '.join(missing)} (--mode kernel needs none of them)")
    return config


def selected(args, modes):
    patterns, turn = args.only.split(","), 0
    for test in harness.TESTS:
        if not any(fnmatch.fnmatchcase(test.name, p) for p in patterns):
            continue
        if test.tier == "long" and args.tier == "fast":
            continue
        left_out = None
        if args.mode == "turns" and {"server", "client"} <= set(test.modes):
            left_out = ("server", "client")[turn % 2]
            turn += 1
        for mode in test.modes:
            if mode in modes and mode != left_out:
                yield test, mode


class Verdicts:
    """Prints and counts what has come of each test."""

    def __init__(self):
        self.count, self.failed = {"pass": 0, "fail": 0, "skip": 0}, []

    def add(self, outcome, name, text="", said=""):
        self.count[outcome] += 1
        print(f"{said}{outcome:4}  {name}" + (f"  {text}" if text else ""), flush=True)
        if outcome == "fail":
            self.failed.append(name.partition("  ")[0])


def run_group(group, config):
    """Of each test and mode: arguments of Verdicts.add."""
    for test, mode in group:
        outcome, text, seconds, said = harness.run_one(test, mode, config)
        yield outcome, f"{test.name} [{mode}]  {seconds:.1f} s", text, said


def at_end(config, modes):
    """After all tests posternd may hold nothing. Yields what it holds, if it does. What a watched one has printed is kept for no_reports."""
    if config.sanitizer and os.path.exists(sanitizer.daemon_log()):
        shutil.copy(sanitizer.daemon_log(), f"{config.reports}/report.posternd-{os.getpid()}")
    if modes == ["kernel"] or not config.posternctl:
        return
    try:
        posternview.expect_nothing_left(config.posternctl)
    except posternview.ViewError as error:
        yield "left", str(error)


def groups_of(chosen):
    """All modes of a test are one: those that others may run beside, and those that want to be alone."""
    groups = [list(group) for _, group in itertools.groupby(chosen, key=lambda pair: pair[0].name)]
    return [group for group in groups if not group[0][0].alone], [group for group in groups if group[0][0].alone]


def run_all(chosen, config, modes, jobs):
    verdicts, left = Verdicts(), []
    together, alone = groups_of(chosen)
    numbered = {index: group for index, group in enumerate(together + alone)}  # a test is a function, which no pipe takes
    jobs = max(1, min(jobs, len(together)))
    if jobs > 1 and (why := shards.why_not()):
        print(f"note: one test at a time: {why}")
        jobs = 1
    if jobs == 1:
        results = itertools.chain(*(run_group(group, config) for group in numbered.values()), at_end(config, modes))
    else:
        results = shards.run(jobs, list(range(len(together))), list(range(len(together), len(numbered))),
                             lambda index: run_group(numbered[index], config), lambda: at_end(config, modes))
    for result in results:
        if result[0] == "left":
            left.append(result[1])
        else:
            verdicts.add(*result)
    # One more test, for which every program above is the workload.
    if modes != ["kernel"] and config.posternctl:
        verdicts.add("fail" if left else "pass", "nothing_left_in_posternd", "; ".join(left))
    return verdicts


def use_sanitizer(config):
    """A build that is watched: its processes report to files, all in one directory."""
    config.sanitizer = sanitizer.kind_of(os.path.join(config.build, "libpostern.so"))
    if not config.sanitizer:
        return
    config.reports = tempfile.mkdtemp(prefix="pstn-reports-")
    os.environ.update(sanitizer.options(config.reports))
    print(f"note: built with {config.sanitizer}; reports go to {config.reports}")


def no_reports(config, verdicts):
    """One more test of a watched build: no process, posternd and its keepers included, was reported."""
    if not config.sanitizer:
        return
    found = sanitizer.reports(config.reports)
    if found:
        verdicts.add("fail", "no_reports", f"{len(found)} processes, the first: {found[0][0]}\n{found[0][1][:6000]}")
    else:
        verdicts.add("pass", "no_reports")
        shutil.rmtree(config.reports, ignore_errors=True)


def main():
    args = arguments()
    modes = list(harness.MODES) if args.mode == "all" else args.mode.replace("turns", "both,server,client").split(",")
    if not set(modes) <= set(harness.MODES):
        sys.exit(f"run.py: --mode knows all, {', '.join(harness.MODES)}")
    for module in ("t_servers",) if args.servers else ("t_rates",) if args.rates else MODULES:
        importlib.import_module(module)
    chosen = list(selected(args, modes))
    if args.list:
        for test in {t.name: t for t, _ in chosen}.values():
            print(f"{test.name:44} {test.tier:5} {','.join(m for m in test.modes if m in modes)}")
        return 0
    if not chosen:
        sys.exit(f"run.py: no test is called '{args.only}'")
    config = configure(args, modes)
    use_sanitizer(config)
    config.cache_dir = tempfile.mkdtemp(prefix="pstn-cache-")
    print(f"seed {config.seed}, tier {config.tier}, modes {','.join(modes)}, {len(chosen)} tests", flush=True)
    started = time.monotonic()
    try:
        verdicts = run_all(chosen, config, modes, args.jobs)
    finally:
        shutil.rmtree(config.cache_dir, ignore_errors=True)
    no_reports(config, verdicts)
    count = verdicts.count
    if verdicts.failed:
        print("failed: " + ", ".join(verdicts.failed))
    print(f"{time.monotonic() - started:.0f} s")
    print(f"{count['pass']} passed, {count['fail']} failed" + (f", {count['skip']} skipped" if count["skip"] else ""))
    return 1 if count["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
