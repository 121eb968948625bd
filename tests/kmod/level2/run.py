#!/usr/bin/python3
# run.py - level 2 with programs: each end of a connection is a program with the library, or a stranger that got its descriptor.
# SPDX-License-Identifier: Apache-2.0
#
#   run.py --build DIR [--only GLOB] [--level 0|2]
#
# At level 2 (postern.ko is loaded) an accelerated connection has to stay in shared memory, whoever has its descriptor. The same cases
# run at level 0, where it is bridged. Every byte is checked by the programs themselves (mover.h).

import argparse
import fnmatch
import itertools
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STRANGERS = ("exec", "replace", "pass", "share")
LISTS = ("stacks", "endpoints", "holders")
CASE_SECONDS = 240


def lines_of(name):
    try:
        with open("/proc/postern/" + name, encoding="ascii") as f:
            return f.read().splitlines()[1:]
    except OSError:
        return []


class World:
    def __init__(self, build, level):
        self.build, self.level = os.path.abspath(build), level
        self.runtime = tempfile.mkdtemp(prefix="pstn-level2-")
        self.environment = {**os.environ, "POSTERN_RUNTIME_DIR": self.runtime, "POSTERN_MODULE": "auto" if level == 2 else "off",
                            "POSTERN_FIREWALL": "ignore"}  # an emulated machine may take longer than the library waits
        self.program = os.path.join(self.build, "tests/kmod/level2_program")
        self.stranger = os.path.join(self.build, "tests/kmod/level2_stranger")
        self.port = 20000

    def start(self, plain, role, way, out, into, amount, how):
        command = [] if plain else [os.path.join(self.build, "postern"), "--"]
        command += [self.stranger if plain else self.program, role, str(self.port), way, self.stranger, "0", str(out), str(into),
                    str(amount), how]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def play(self, server, client, amount):
        """Both ends; what went wrong, and what strangers said of who serves their descriptors."""
        self.port += 1
        ends = []
        for i, (role, (way, how)) in enumerate((("listen", server), ("connect", client))):
            ends.append(self.start(way == "plain", role, "self" if way == "plain" else way, 1 + i, 2 - i, amount, how))
            if role == "listen":
                ends[0].stdout.readline()  # from now on a client finds it
        until = time.monotonic() + CASE_SECONDS
        while time.monotonic() < until and any(end.poll() is None for end in ends) and not any(end.poll() for end in ends):
            time.sleep(0.02)
        wrong, served = [], []
        for name, end in zip(("server", "client"), ends):
            if end.poll() is None:
                wrong.append(f"the {name} does not end")
                end.kill()
            said = end.communicate()[0]
            served += [line for line in said.splitlines() if line.startswith("by the ")]
            if end.returncode != 0:
                wrong.append(f"{name}: status {end.returncode} {said.strip()}")
        return wrong, served

    def status(self):
        return subprocess.run([os.path.join(self.build, "posternctl"), "status"], env=self.environment, text=True, stdout=subprocess.PIPE,
                              check=False).stdout


def cases():
    """name, server, client (way, how), bytes or rounds."""
    bulk, rounds = 3 << 20, 300
    for way in ("self", *STRANGERS):
        yield f"ping_{way}_self", (way, "pong"), ("self", "ping"), rounds
        if way != "self":
            yield f"ping_self_{way}", ("self", "pong"), (way, "ping"), rounds
            yield f"ping_{way}_{way}", (way, "pong"), (way, "ping"), rounds
    yield "ping_busy_busy", ("busy", "pong"), ("busy", "ping"), 2 * rounds
    for how, other in itertools.product(("block", "poll", "epoll", "direct", "uring"), ("block", "poll", "epoll")):
        yield f"bulk_exec_{how}_self_{other}", ("exec", how), ("self", other), bulk
    for how, other in itertools.product(("block", "poll", "epoll"), ("direct", "uring", "epoll")):
        yield f"bulk_self_{how}_pass_{other}", ("self", how), ("pass", other), bulk
    yield "bulk_thread_exec", ("thread", "block"), ("exec", "uring"), bulk
    yield "bulk_share_share", ("share", "epoll"), ("share", "poll"), bulk
    yield "bulk_self_self", ("self", "block"), ("self", "epoll"), bulk
    yield "bulk_plain_exec", ("plain", "block"), ("exec", "block"), bulk
    yield "bulk_exec_plain", ("exec", "block"), ("plain", "block"), bulk


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only", default="*")
    parser.add_argument("--level", type=int, choices=(0, 2), default=2)
    options = parser.parse_args()
    world = World(options.build, options.level)
    passed = failed = 0

    def result(name, wrong):
        nonlocal passed, failed
        passed, failed = (passed, failed + 1) if wrong else (passed + 1, failed)
        print(f"{'FAILED' if wrong else 'ok'} level2/{name}" + "".join("\n  " + w for w in wrong), flush=True)

    for name, server, client, amount in cases():
        if not fnmatch.fnmatch(name, options.only):
            continue
        wrong, served = world.play(server, client, amount)
        strangers = sum(way in (*STRANGERS, "busy") for way, _ in (server, client))
        by = "by the kernel" if options.level == 0 or "plain" in (server[0], client[0]) else "by the module"
        if not wrong and served != [by] * strangers:
            wrong.append(f"strangers were served {served}, not {strangers} {by}")
        result(name, wrong)
    if fnmatch.fnmatch("status", options.only):
        server = world.start(False, "listen", "self", 1, 2, 1, "pong")
        wants, said, until = f"\n  level {options.level}\n", "", time.monotonic() + CASE_SECONDS
        while wants not in said and time.monotonic() < until:
            time.sleep(0.1)
            said = world.status()
        server.kill()
        server.wait()
        result("status", [] if wants in said else [f"posternctl status does not say {wants.strip()}: {said}"])
    # All has gone with the programs, but for what posternd keeps; a keeper leaves three seconds after its last endpoint.
    left = {}
    for _ in range(200):
        left = {name: lines_of(name) for name in LISTS}
        if not any(left.values()):
            break
        time.sleep(0.1)
    result("nothing_is_left", [f"{name}: {lines}" for name, lines in left.items() if lines])
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
