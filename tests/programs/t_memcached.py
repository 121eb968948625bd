# t_memcached.py - memcached: accept in one thread, service in four others, clients that check what they get.
# SPDX-License-Identifier: Apache-2.0

import os

from harness import check, need, test


@test()
def memcached_threads(ctx):
    port = ctx.port()
    user = ["-u", "root"] if os.getuid() == 0 else []
    server = ctx.start("server", [need("memcached"), *user, "-l", "127.0.0.1", "-p", port, "-U", 0, "-t", 4, "-m", 256, "-I", "8m", "-c", 500])
    ctx.wait_listening(port, server)
    client = ctx.script("client", "pyprog.py", "memcached", str(port), "1.5" if ctx.fast else "20")
    ctx.expect_path(port)
    client.wait()
    check(client.output().startswith("ok "), client.output())
    check(server.alive(), f"memcached ended: {server.output()}")
