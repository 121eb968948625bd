# t_chaos.py - streams whose ends change calls, descriptors and processes at random, under signals (chaos.cc): no byte is lost.
# SPDX-License-Identifier: Apache-2.0

import os
import tempfile
import time

import posternview
import sanitizer
from harness import Skip, check, test

PATIENCE_S = 180  # for what is under way at the end: a stream that makes no progress says so itself after 120 s


def chaos(ctx, role, *args):
    return [ctx.built("chaos"), role, *args]


def seconds_of(ctx):
    return ctx.config.seconds or (5 if ctx.fast else 600)


class Traffic:
    """The highest counts seen of each stack, its last moments excepted. To be made before the programs: stacks of a test before this one
    may still be there, posternd being about to take them apart."""

    def __init__(self, ctx):
        self.ctx, self.seen = ctx, {}
        self.old = set(self.counters())

    def counters(self):
        watches = self.ctx.mode == "both" and self.ctx.config.posternctl
        return posternview.counters(self.ctx.config.posternctl) if watches and posternview.daemon_pid() else {}

    def wait(self, proc, seconds):
        end = time.monotonic() + seconds + PATIENCE_S
        while proc.alive() and time.monotonic() < end:
            self.seen.update({stack: counts for stack, counts in self.counters().items() if stack not in self.old})
            time.sleep(0.5)
        proc.wait(1)

    def check(self, connections):
        """Most of it has to have gone through shared memory: what leaves for the kernel is handed over on purpose."""
        if not self.seen:
            return
        total = {name: sum(c.get(name, 0) for c in self.seen.values()) for name in ("connects", "kernel_connects", "bytes_sent")}
        check(total["connects"] > 0.5 * connections, f"accelerated: {total}, of {connections} connections")
        check(total["kernel_connects"] < 0.1 * total["connects"], f"made by the kernel: {total}")


def expect_ok(client, seed):
    check(client.output().startswith("ok ") and "BAD" not in client.output(), f"seed {seed}: {client.output()[-2000:]}")
    connections, transferred = (int(word) for word in client.output().split()[1:3])
    check(connections > 10, f"hardly a connection was made: {client.output()}")
    print(f"      seed {seed}: {connections} connections, {transferred} bytes", flush=True)
    return connections


def expect_no_report(ctx):
    found = sanitizer.reports("/nonexistent", [proc.log for proc in ctx.procs])  # UBSan writes there
    check(not found, lambda: f"{found[0][1][:3000]}")


@test(watchdog_s=7200)
def chaos_two_families(ctx):
    seconds, seed, port = seconds_of(ctx), ctx.random.randrange(10**6), ctx.port()
    traffic = Traffic(ctx)
    server = ctx.start("server", chaos(ctx, "serve", port, 6, seed), name="chaos-server")
    ctx.wait_listening(port, server)
    client = ctx.start("client", chaos(ctx, "load", port, 6, seed + 1, seconds), name="chaos-client")
    traffic.wait(client, seconds)
    traffic.check(expect_ok(client, seed))
    check(server.alive() and "BAD" not in server.output(), f"seed {seed}: {server.output()[-2000:]}")
    expect_no_report(ctx)


@test(modes=("both",), watchdog_s=7200)
def chaos_one_family(ctx):
    seconds, seed, port = seconds_of(ctx), ctx.random.randrange(10**6), ctx.port()
    traffic = Traffic(ctx)
    both = ctx.start("server", chaos(ctx, "both", port, 5, seed, seconds), name="chaos-both")
    traffic.wait(both, seconds)
    traffic.check(expect_ok(both, seed))
    expect_no_report(ctx)


@test(modes=("both",))
def chaos_sanitizer_sees(ctx):
    """An error inside the library is reported, and as the library's: silence means something."""
    kind = ctx.config.sanitizer
    if not kind:
        raise Skip("built without a sanitizer")
    directory = tempfile.mkdtemp(dir=ctx.dir)
    wrong = ctx.start("server", chaos(ctx, "wrong", {"asan": "overrun", "tsan": "race"}[kind]), env=sanitizer.options(directory))
    check(wrong.wait(60, expect=None) != 0, "it went unnoticed")
    found = sanitizer.reports(directory)
    check(found and "postern::" in found[0][1], lambda: f"not reported: {os.listdir(directory)}, {wrong.output()[-500:]}")
