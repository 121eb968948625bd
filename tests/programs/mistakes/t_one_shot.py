# t_one_shot.py - servers that accept one client, write, and close the connection and the listener at once.
# SPDX-License-Identifier: Apache-2.0

import os
import time

from harness import check, test

SECONDS = 60.0


def wait_for(server, path):
    end = time.monotonic() + 20
    while "ready" not in server.output():
        check(server.alive() and time.monotonic() < end, lambda: f"the server does not listen at {path}: {server.output()}")
        time.sleep(0.01)


def meet(ctx, rounds, threads, number=0):
    path = os.path.join(ctx.dir, f"one-shot-{number}")
    server = ctx.start("server", [ctx.built("one_shot"), "serve", path, str(rounds), str(threads)])
    wait_for(server, path)
    client = ctx.start("client", [ctx.built("one_shot"), "meet", path, str(rounds), str(threads)])
    client.wait(SECONDS)
    server.wait(SECONDS)


@test(watchdog_s=150.0)
def one_shot_storm(ctx):
    """Each listener serves one client: none is refused, and each reads all that was written for it."""
    meet(ctx, 4000 if ctx.fast else 40000, 2)


@test(watchdog_s=150.0)
def one_shot_crowd(ctx):
    """The same with more threads than cores: each may lose its core between any two steps."""
    meet(ctx, 400 if ctx.fast else 4000, 16)


@test(watchdog_s=150.0)
def one_shot_ends(ctx):
    """The server's program ends with its only client's connection."""
    for number in range(30 if ctx.fast else 300):
        meet(ctx, 1, 1, number)
