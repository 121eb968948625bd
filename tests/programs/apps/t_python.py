# t_python.py - Python's own servers and clients: http.server, asyncio, a forking server, multiprocessing over TCP.
# SPDX-License-Identifier: Apache-2.0

import os

from harness import HERE, PYTHON, check, test
from nginxkit import documents
from workerkit import Prefork


def pair(ctx, server_args, client_args, **kw):
    port = ctx.port()
    server = ctx.script("server", "pyprog.py", server_args, str(port), name=server_args)
    ctx.wait_listening(port, server)
    client = ctx.script("client", "pyprog.py", client_args, str(port), name=client_args)
    ctx.expect_path(port)
    client.wait(**kw)
    check(client.output().startswith("ok "), client.output())
    check(server.alive(), f"{server_args} ended: {server.output()[-800:]}")


@test()
def python_http_server(ctx):
    docs, port = documents(ctx), ctx.port()
    server = ctx.start("server", [PYTHON, "-m", "http.server", "--protocol", "HTTP/1.1", "-b", "127.0.0.1", "-d", docs, str(port)], name="http.server")
    ctx.wait_listening(port, server)
    client = ctx.script("client", "http_load.py", f"--port={port}", f"--docs={docs}", "--threads=4", "--seconds=1.5", "--close=0.2")
    ctx.expect_path(port)
    client.wait()
    check('"error_' not in client.output() and '"ok"' in client.output(), client.output())


@test()
def python_asyncio(ctx):
    pair(ctx, "asyncio-server", "asyncio-client")


@test()
def python_forking_server(ctx):
    """socketserver.ForkingTCPServer: a child for each connection, the parent closes its copy."""
    pair(ctx, "forking-server", "echo-client")


@test()
def python_threading_server(ctx):
    pair(ctx, "threading-server", "echo-client")


@test()
def python_multiprocessing(ctx):
    """A BaseManager over TCP: served by threads, used by a pool of forked workers that each connect."""
    pair(ctx, "manager-server", "manager-client")


@test(watchdog_s=120)
def python_kill_worker(ctx):
    """Four processes of multiprocessing, an asyncio loop in each, one listener that they inherited."""
    port, docs, kills = ctx.port(), documents(ctx), 3 if ctx.fast else 40
    server = Prefork(ctx, [PYTHON, os.path.join(HERE, "..", "apps", "prefork.py"), port, docs], port, "prefork")
    client = server.start_load(docs)
    server.expect_accelerated()
    for _ in range(kills):
        server.kill_worker()
    server.expect_accelerated()
    server.expect_kills(client, kills)
