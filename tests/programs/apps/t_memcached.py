# t_memcached.py - memcached: accept in one thread, service in four others, clients that check what they get; its death.
# SPDX-License-Identifier: Apache-2.0

import os
import signal

from harness import check, need, test, wait_until


def memcached(ctx, port):
    user = ["-u", "root"] if os.getuid() == 0 else []
    server = ctx.start("server", [need("memcached"), *user, "-l", "127.0.0.1", "-p", port, "-U", 0, "-t", 4, "-m", 256, "-I", "8m", "-c", 500])
    ctx.wait_listening(port, server)
    return server


@test()
def memcached_threads(ctx):
    port = ctx.port()
    server = memcached(ctx, port)
    client = ctx.script("client", "pyprog.py", "memcached", str(port), "1.5" if ctx.fast else "20")
    ctx.expect_path(port)
    client.wait()
    check(client.output().startswith("ok "), client.output())
    check(server.alive(), f"memcached ended: {server.output()}")


@test(watchdog_s=120)
def memcached_kill(ctx):
    """kill -9 under load: twelve connections end, the port refuses, the next server takes it over."""
    port = ctx.port()
    for _ in range(2 if ctx.fast else 20):
        server = memcached(ctx, port)
        client = ctx.script("client", "pyprog.py", "memcached-dying", str(port))
        wait_until(lambda: "loading" in client.output(), "no load")
        ctx.expect_path(port)
        os.kill(server.pid, signal.SIGKILL)
        server.wait(expect=-signal.SIGKILL)
        client.wait(60)
        # Not before both: a dying process closes its descriptors one after the other, the listener not first.
        ctx.script("client", "pyprog.py", "refused", str(port), name="refused").wait()
        check("\nok " in client.output(), client.output())
