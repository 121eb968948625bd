# t_haproxy.py - haproxy between curl and nginx: accept and connect in one process, splice, keep-alive on both sides.
# SPDX-License-Identifier: Apache-2.0

import hashlib
import os
import signal

from harness import check, need, test, wait_until
from nginxkit import Nginx, documents, expect_going
from t_nginx import expect_clean, load_result

CONF = """
global
  nbthread 2
  maxconn 2000
defaults
  mode {mode}
  timeout connect 20s
  timeout client 60s
  timeout server 60s
  {options}
frontend front
  bind 127.0.0.1:{port}
  default_backend back
backend back
  server one 127.0.0.1:{back}
"""


def through(ctx, mode, options):
    nginx = Nginx(ctx, docs=documents(ctx, sizes=(0, 100, 4095, 65536, 30 << 20)))
    port = ctx.port()
    conf = ctx.write("haproxy.cfg", CONF.format(mode=mode, options=options, port=port, back=nginx.port))
    proxy = ctx.start("server", [need("haproxy"), "-db", "-f", conf])
    ctx.wait_listening(port, proxy)
    client = ctx.script("client", "http_load.py", f"--port={port}", f"--docs={nginx.docs}", "--threads=6", "--seconds=1.5", "--close=0.1")
    ctx.expect_path(port)
    client.wait()
    check('"error_' not in client.output() and '"ok"' in client.output(), client.output())
    curl = need("curl")
    body = ctx.write("body", os.urandom(5 << 20))
    ctx.run("client", [curl, "-sS", "-f", "-T", body, f"http://127.0.0.1:{port}/put/x"])
    with open(body, "rb") as sent, open(os.path.join(nginx.dir, "put", "x"), "rb") as stored:
        check(hashlib.sha256(sent.read()).digest() == hashlib.sha256(stored.read()).digest(), "a PUT was stored with other bytes")
    check(proxy.alive(), f"haproxy ended: {proxy.output()}")


@test()
def haproxy_http(ctx):
    through(ctx, "http", "option http-keep-alive\n  http-reuse always")


@test()
def haproxy_tcp_splice(ctx):
    through(ctx, "tcp", "option splice-auto\n  option splice-request\n  option splice-response")


@test(watchdog_s=120)
def haproxy_reload_under_load(ctx):
    """USR2: the master executes itself anew, its new worker gets the listener from the old one over a Unix socket. Nobody loses anything."""
    nginx = Nginx(ctx, docs=documents(ctx))
    port = ctx.port()
    conf = ctx.write("haproxy.cfg", CONF.format(mode="http", options="option http-keep-alive", port=port, back=nginx.port))
    proxy = ctx.start("server", [need("haproxy"), "-W", "-f", conf])
    ctx.wait_listening(port, proxy)

    def workers():
        with open(f"/proc/{proxy.pid}/task/{proxy.pid}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}
    client = ctx.script("client", "http_load.py", f"--port={port}", f"--docs={nginx.docs}", "--threads=6", "--close=0.3")
    expect_going(client)
    if ctx.mode == "both":  # as in nginx_binary_upgrade
        ctx.expect_path(port)
    for number in range(2 if ctx.fast else 20):
        before = workers()
        os.kill(proxy.pid, signal.SIGUSR2)
        wait_until(lambda: workers() and not before & workers(), f"reload {number}: the old worker stays: {proxy.output()[-800:]}")
    client.stop(expect=0)
    expect_clean(load_result(client))
    check(proxy.alive(), lambda: f"haproxy ended: {proxy.output()}")
