# t_hostile.py - a peer that writes into the shared memory whatever it likes, beside a third party that transfers checked data.
# SPDX-License-Identifier: Apache-2.0
#
# The victim is an ordinary epoll server, the third party an ordinary client, the hostile peer another client whose second thread
# does what a strategy says (hostile.cc). Each strategy is a test: the victim lives, the third party's bytes are right, the hostile peer's
# own library survives, and nothing is left. How much it slows the third party is measured in the long tier, hostile_slowdown.

import json
import os
import re
import signal
import statistics
import subprocess
import time

import posternview
from harness import Skip, check, need, test
from kill_storm import nothing_left, own_runtime

STRATEGIES = ("none", "cursor-back", "cursor-forward", "wrap-jump", "length-too-large", "length-zero", "length-off", "flags", "victims-flags",
              "control-lines", "urgent", "syn-bits", "syns-nowhere", "syns-forged", "waits-forged", "places", "event-bits", "all-asleep", "victims-sleep", "rings",
              "addresses", "states", "futexes", "doorbells", "memory", "head", "anything")
CAUGHT = ("wrap-jump", "length-too-large", "length-off", "rings")  # connections end for a reason that is counted: peer_violations
SLOWER_AT_MOST = 2.0


class Place:
    """A victim with a posternd of its own."""

    def __init__(self, ctx, pin=False):
        self.ctx, self.runtime, self.shm = ctx, own_runtime(ctx), posternview.shm_files()
        self.program, self.port = ctx.built("hostile"), ctx.port()
        self.here = [need("taskset"), "-c", "0"] if pin else []
        self.there = [need("taskset"), "-c", "1"] if pin else []
        self.victim = ctx.start("server", [*self.here, self.program, "victim", self.port], name="victim")
        ctx.wait_listening(self.port, self.victim)

    def peer(self, strategy, seconds):
        peer = self.ctx.start("client", [*self.there, self.program, "peer", self.port, strategy, seconds, self.ctx.random.randrange(1 << 30)],
                              name=strategy, env={"POSTERN_STRICT": "on"})
        end = time.monotonic() + 20
        while "link groups" not in peer.output():
            check(peer.alive() and time.monotonic() < end, lambda: f"{strategy} does not begin: {peer.output()}")
            time.sleep(0.01)
        return peer

    def honest(self, seconds):
        """Its rounds a second."""
        out = self.ctx.run("client", [*self.here, self.program, "honest", self.port, seconds, self.ctx.random.randrange(1 << 30)], name="honest",
                           timeout=seconds + 40, env={"POSTERN_STRICT": "on"})
        check("same" in out, out)
        rate = float(re.search(r"([\d.]+) rounds/s", out).group(1))
        check(rate > 0, out)
        return rate

    def violations(self):
        return sum(stack.get("peer_violations", 0) for stack in posternview.counters(self.ctx.config.posternctl).values())

    def only_the_listener(self):
        end = time.monotonic() + 15
        while left := [s for s in posternview.sockets(self.ctx.config.posternctl) if s["path"] != "listen"]:
            check(time.monotonic() < end, lambda: f"{len(left)} endpoints are left, e.g. {left[0]}")
            time.sleep(0.05)

    def end(self):
        check(self.victim.alive(), lambda: f"the victim has ended: {self.victim.output()[-800:]}")
        self.only_the_listener()
        self.honest(0.2)
        self.victim.stop(signal.SIGTERM, expect=0)
        check("ended" in self.victim.output(), self.victim.output())
        nothing_left(self.ctx, self.runtime, self.shm)


def single(strategy):
    def run(ctx):
        place = Place(ctx)
        peer = place.peer(strategy, 1.2)
        place.honest(0.8)
        peer.wait(30, expect=0)
        if strategy in CAUGHT:
            check(place.violations() > 0, "nobody counted a violation")
        place.end()
    run.__name__ = "hostile_" + strategy.replace("-", "_")
    test(modes=("both",), watchdog_s=120)(run)


for name in STRATEGIES:
    single(name)


@test(modes=("both",))
def hostile_list(ctx):
    """No strategy is forgotten here."""
    check(tuple(subprocess.run([ctx.built("hostile"), "list"], capture_output=True, text=True, check=True).stdout.split()) == STRATEGIES, "another list")


@test(modes=("both",), watchdog_s=60)
def hostile_promise(ctx):
    """A peer that takes back the byte, or the end, of which poll() has told: recv() does not wait for what will not come."""
    def await_line(process, line):
        end = time.monotonic() + 20
        while line not in process.output():
            check(process.alive() and time.monotonic() < end, lambda: f"no {line!r}: {process.output()}")
            time.sleep(0.01)

    for what in ("data", "end"):
        port = ctx.port()
        program = ctx.built("hostile")
        victim = ctx.start("server", [program, "believer", port], name="believer")
        ctx.wait_listening(port, victim)
        peer = ctx.start("client", [program, "promiser", port, what], name="promiser", env={"POSTERN_STRICT": "on"})
        await_line(victim, "told")
        await_line(peer, "promised")
        os.kill(peer.pid, signal.SIGUSR1)
        await_line(peer, "taken back 1")
        os.kill(victim.pid, signal.SIGUSR1)
        await_line(victim, "ECONNRESET")
        victim.wait(20, expect=0)
        os.kill(peer.pid, signal.SIGUSR1)
        peer.wait(20, expect=0)


@test(modes=("both",), watchdog_s=120)
def hostile_killed(ctx):
    """It dies in the middle, whatever it has left behind."""
    place = Place(ctx)
    for strategy in ("head", "anything", "victims-sleep", "states"):
        peer = place.peer(strategy, 20)
        place.honest(0.3)
        peer.stop(signal.SIGKILL)
    place.end()


@test(modes=("both",), watchdog_s=120)
def hostile_connections(ctx):
    """Thousands of connections that are never used."""
    place = Place(ctx)
    floods = [ctx.start("client", [place.program, "flood", place.port, 1500, 20], name="flood") for _ in range(2)]
    place.honest(1.5)
    for flood in floods:
        flood.stop(signal.SIGKILL)
    place.end()


@test(modes=("both",), watchdog_s=180)
def hostile_stacks(ctx):
    """Many stacks that live for a moment: a link group each."""
    place = Place(ctx)
    for _ in range(4):
        some = [ctx.start("client", [place.program, "peer", place.port, "anything", 0.2, i], name="short") for i in range(8)]
        place.honest(0.3)
        for number, peer in enumerate(some):
            if number % 2 != 0:
                peer.stop(signal.SIGKILL)
            else:
                peer.wait(30, expect=None)
    check(place.victim.alive(), "the victim has ended")
    place.end()


@test(modes=("both",), tier="long", watchdog_s=900, alone="compares rates, and has a CPU for either side")
def hostile_slowdown(ctx):
    """The third party beside each strategy, and beside a peer that is as busy and well-behaved. The hostile peer has a CPU of its own, so
    that what is measured is not its use of ours."""
    if (os.cpu_count() or 1) < 2:
        raise Skip("needs two CPUs")
    place = Place(ctx, pin=True)

    def beside(strategy):
        rates = []
        for _ in range(3):
            peer = place.peer(strategy, 1.6)
            rates.append(place.honest(1.0))
            peer.wait(30, expect=0)
        return statistics.median(rates)
    factors = {}
    for strategy in STRATEGIES[1:]:
        well, ill = beside("none"), beside(strategy)
        factors[strategy] = round(well / ill, 2)
    print(json.dumps(factors), flush=True)
    slow = {strategy: factor for strategy, factor in factors.items() if factor > SLOWER_AT_MOST}
    check(not slow, f"slowed down by more than {SLOWER_AT_MOST}: {slow}")
    place.end()
