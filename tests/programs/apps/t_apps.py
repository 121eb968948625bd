# t_apps.py - runtimes with event loops and thread pools of their own: node, Java, OpenSSL's server and client.
# SPDX-License-Identifier: Apache-2.0

import hashlib
import os
import subprocess

from harness import HERE, check, need, test
from nginxkit import documents
from t_nginx import expect_clean, load_result
from workerkit import Prefork


def echo_pair(ctx, argv, watch=True):
    """The program plays server and client; the client says "ok N" when every body came back as it went."""
    port = ctx.port()
    server = ctx.start("server", [*argv, "server", port], name="server")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [*argv, "client", port], name="client")
    if watch:
        ctx.expect_path(port)
    client.wait(90)
    check(client.output().startswith("ok "), client.output()[-1500:])
    check(server.alive(), f"the server ended: {server.output()[-1500:]}")


@test(watchdog_s=120)
def node_http(ctx):
    echo_pair(ctx, [need("node"), os.path.join(HERE, "..", "apps", "http.js")])


def node_cluster(ctx, policy):
    port, docs = ctx.port(), documents(ctx)
    argv = [need("node"), os.path.join(HERE, "..", "apps", "cluster.js"), port, docs]
    return Prefork(ctx, argv, port, "cluster", {"NODE_CLUSTER_SCHED_POLICY": policy}), docs


@test()
def node_cluster_passing(ctx):
    """The primary accepts and passes each connection on to a worker. No kill: node forgets a connection on its way to a dead one."""
    server, docs = node_cluster(ctx, "rr")
    client = server.start_load(docs, f"--seconds={1.5 if ctx.fast else 20}")
    client.wait()
    expect_clean(load_result(client))


@test(watchdog_s=120)
def node_cluster_sharing(ctx):
    """The workers accept from a listener that the primary has passed to them."""
    (server, docs), kills = node_cluster(ctx, "none"), 2 if ctx.fast else 20
    client = server.start_load(docs)
    for _ in range(kills):
        server.kill_worker()
    server.expect_kills(client, kills)


@test(watchdog_s=180)
def java_http(ctx):
    """Compiled outside: what is tested are the programs."""
    subprocess.run([need("javac"), "-d", ctx.dir, os.path.join(HERE, "..", "apps", "Http.java")], check=True)
    echo_pair(ctx, [need("java"), "-cp", ctx.dir, "Http"])


@test(watchdog_s=120)
def openssl_server_and_client(ctx):
    openssl, port = need("openssl"), ctx.port()
    key, cert = ctx.path("key.pem"), ctx.path("cert.pem")
    subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "1", "-subj", "/CN=localhost"],
                   check=True, capture_output=True)
    body = os.urandom(1_000_003).hex()
    ctx.write("docs/file.txt", body)  # -WWW serves the directory in which it was started, the test's
    server = ctx.start("server", [openssl, "s_server", "-accept", f"127.0.0.1:{port}", "-key", key, "-cert", cert, "-WWW", "-quiet"], name="s_server")
    ctx.wait_listening(port, server)
    request = ctx.write("request", "GET /docs/file.txt HTTP/1.0\r\n\r\n")
    for _ in range(5):
        with open(request, "rb") as stdin:
            said = ctx.run("client", [openssl, "s_client", "-connect", f"127.0.0.1:{port}", "-quiet", "-ign_eof"], stdin=stdin)
        got = said[said.find("\r\n\r\n") + 4:] if "\r\n\r\n" in said else said.split("\n\n", 1)[-1]
        check(hashlib.sha256(got.strip().encode()).digest() == hashlib.sha256(body.encode()).digest(), f"{len(got)} bytes came, or others")
    quiet, hold = os.pipe()  # a client that says nothing, to be looked at
    held = ctx.start("client", [openssl, "s_client", "-connect", f"127.0.0.1:{port}", "-quiet"], name="held", stdin=quiet)
    ctx.expect_path(port)
    held.stop()
    os.close(hold)
    times = ctx.start("client", [openssl, "s_time", "-connect", f"127.0.0.1:{port}", "-new", "-time", "2", "-www", "/docs/file.txt"], name="s_time")
    times.wait(30)
    check("connections in" in times.output(), times.output()[-500:])
    check(server.alive(), "s_server ended")
