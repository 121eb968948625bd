# t_chaos.py - streams whose ends change calls, descriptors and processes at random, under signals (chaos.cc): no byte is lost.
# SPDX-License-Identifier: Apache-2.0

from harness import check, test


def chaos(ctx, role, *args):
    return [ctx.built("chaos"), role, *args]


def expect_ok(client, seed):
    check(client.output().startswith("ok ") and "BAD" not in client.output(), f"seed {seed}: {client.output()[-2000:]}")
    check(int(client.output().split()[1]) > 10, f"hardly a connection was made: {client.output()}")


@test(watchdog_s=2400)
def chaos_two_families(ctx):
    seconds, seed, port = 5 if ctx.fast else 600, ctx.random.randrange(10**6), ctx.port()
    server = ctx.start("server", chaos(ctx, "serve", port, 6, seed), name="chaos-server")
    ctx.wait_listening(port, server)
    client = ctx.start("client", chaos(ctx, "load", port, 6, seed + 1, seconds), name="chaos-client")
    client.wait(seconds + 120)
    expect_ok(client, seed)
    check(server.alive() and "BAD" not in server.output(), f"seed {seed}: {server.output()[-2000:]}")


@test(modes=("both",), watchdog_s=2400)
def chaos_one_family(ctx):
    seconds, seed, port = 5 if ctx.fast else 600, ctx.random.randrange(10**6), ctx.port()
    both = ctx.start("server", chaos(ctx, "both", port, 5, seed, seconds), name="chaos-both")
    both.wait(seconds + 120)
    expect_ok(both, seed)
