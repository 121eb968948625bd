# t_nginx.py - nginx as a server, as a proxy, and while it is reloaded under load.
# SPDX-License-Identifier: Apache-2.0

import hashlib
import json
import os
import re
import signal
import time

from harness import check, is_gone, need, test, wait_until
from nginxkit import Nginx, documents, expect_going


def load_result(proc):
    return json.loads(proc.output().strip().splitlines()[-1])


def expect_clean(result, allowed=()):
    errors = {k: v for k, v in result["counts"].items() if k.startswith("error_") and k[6:] not in allowed}
    check(not errors, f"failed requests {errors}, first of each: {result['first']}; counts {result['counts']}")
    check(result["counts"].get("ok", 0) > 0, f"no request succeeded: {result}")


def expect_healthy(nginx):
    check(nginx.proc.alive(), "nginx ended")
    check(not nginx.errors(), lambda: f"nginx complains: {nginx.errors()[:3]}")


def load(ctx, nginx, seconds, **options):
    args = [f"--{k}={v}" for k, v in options.items()]
    client = ctx.script("client", "http_load.py", f"--port={nginx.port}", f"--docs={nginx.docs}", f"--seconds={seconds}",
                        f"--seed={ctx.config.seed}", *args)
    expect_going(client)
    return client


@test()
def nginx_keep_alive(ctx):
    nginx = Nginx(ctx, docs=documents(ctx))
    client = load(ctx, nginx, 1.5, threads=8)
    ctx.expect_path(nginx.port)
    client.wait()
    result = load_result(client)
    expect_clean(result)
    check(result["counts"]["connections"] == 8, f"keep-alive was not kept: {result['counts']}")
    expect_healthy(nginx)


@test()
def nginx_connection_close(ctx):
    """Each request on its own connection; the server closes first, so TIME_WAIT and EOF are the server's."""
    nginx = Nginx(ctx, docs=documents(ctx))
    client = load(ctx, nginx, 1.5, threads=4, close=1.0)
    client.wait()
    expect_clean(load_result(client))
    expect_healthy(nginx)


@test()
def nginx_sendfile_large(ctx):
    """200 MiB by sendfile to four curls at once, each checked; one is slow enough to fill every buffer."""
    docs = documents(ctx, sizes=(200 << 20,))
    name = f"f{200 << 20}"
    with open(os.path.join(docs, name), "rb") as file:
        want = hashlib.file_digest(file, "sha256").hexdigest()
    nginx = Nginx(ctx, docs=docs)
    url = f"http://127.0.0.1:{nginx.port}/{name}"
    curls = [ctx.start("client", [need("curl"), "-sS", "-f", "-o", ctx.path(f"out{n}"), *extra, url])
             for n, extra in enumerate(([], [], [], ["--limit-rate", "120M"]))]
    ctx.expect_path(nginx.port)
    for n, curl in enumerate(curls):
        curl.wait()
        with open(ctx.path(f"out{n}"), "rb") as file:
            check(hashlib.file_digest(file, "sha256").hexdigest() == want, f"download {n} differs from the file")
    expect_healthy(nginx)


@test()
def nginx_proxy_post(ctx):
    """Bodies through a proxying nginx into another one, buffered and streamed, and back."""
    back = Nginx(ctx, "back", docs=documents(ctx))
    proxy = f"""proxy_http_version 1.1; proxy_set_header Connection "";
      location / {{ proxy_pass http://up; }}
      location /stream/ {{ proxy_request_buffering off; proxy_buffering off; proxy_pass http://up/; }}"""
    front = Nginx(ctx, "front", http=f"upstream up {{ server 127.0.0.1:{back.port}; keepalive 8; }}",
                  server=proxy.replace("location / {", "location /plain/ {").replace("http://up;", "http://up/;"))
    curl = need("curl")
    for how in ("plain", "stream"):
        base = f"http://127.0.0.1:{front.port}/{how}"
        for size in (1, 100, 16384, 1 << 20, 40 << 20):
            body = ctx.write("body", os.urandom(size))
            said = ctx.run("client", [curl, "-sS", "-f", "--data-binary", f"@{body}", f"{base}/post"])
            check(said == f"got {size}\n", f"POST of {size} bytes ({how}): {said!r}")
            ctx.run("client", [curl, "-sS", "-f", "-T", body, f"{base}/put/{how}{size}"])
            with open(body, "rb") as sent, open(os.path.join(back.dir, "put", f"{how}{size}"), "rb") as stored:
                check(sent.read() == stored.read(), f"PUT of {size} bytes ({how}) was stored with other bytes")
            ctx.run("client", [curl, "-sS", "-f", "-o", ctx.path("got"), f"{base}/f300001"])
            with open(ctx.path("got"), "rb") as got, open(os.path.join(back.docs, "f300001"), "rb") as want:
                check(got.read() == want.read(), f"GET through the proxy ({how}) differs")
    expect_healthy(front)
    expect_healthy(back)


def reload_under(ctx, seconds, **nginx_options):
    nginx = Nginx(ctx, docs=documents(ctx), **nginx_options)
    clients = [load(ctx, nginx, 3600, threads=8, close=0.1), load(ctx, nginx, 3600, threads=4, pause=0.3)]
    ctx.expect_path(nginx.port)
    first = set(nginx.workers())
    for _ in range(seconds):
        time.sleep(1)
        nginx.signal("reload")
    time.sleep(0.7)
    check(not first & set(nginx.workers()), "the first workers did not go away although their connections were closed")
    for client in clients:
        client.stop(expect=0)
        expect_clean(load_result(client))
    expect_healthy(nginx)


@test(watchdog_s=120)
def nginx_reload_under_load(ctx):
    reload_under(ctx, 4 if ctx.fast else 30)


@test(watchdog_s=120)
def nginx_reload_reuseport(ctx):
    """With reuseport each worker has a listening socket of its own; the count stays, so reload closes none of them."""
    reload_under(ctx, 2 if ctx.fast else 10, reuseport=True)


@test(watchdog_s=120)
def nginx_kill_worker(ctx):
    """kill -9 of a worker: its connections end as TCP ends them, the other worker's go on, nobody is refused. See also kill_storm."""
    nginx, kills, threads = Nginx(ctx, docs=documents(ctx)), 3 if ctx.fast else 40, 8
    client = load(ctx, nginx, 3600, threads=threads, close=0.1)
    for _ in range(kills):
        if ctx.mode == "both":  # as below
            ctx.expect_path(nginx.port)
        victim = ctx.random.choice(nginx.workers())
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in nginx.workers() and len(nginx.workers()) == 2, "the worker is not replaced")
    client.stop(expect=0)
    result = load_result(client)
    expect_clean(result, allowed=("reset", "eof"))
    check(sum(result["counts"].get(f"error_{kind}", 0) for kind in ("reset", "eof")) <= kills * threads, f"{kills} kills, {result['counts']}")
    strange = [line for line in nginx.errors() if "exited on signal 9" not in line]
    check(nginx.proc.alive() and not strange, lambda: f"nginx complains: {strange[:3]}")


@test(watchdog_s=60)
def nginx_binary_upgrade(ctx):
    """USR2 starts a new master that inherits the listening sockets by exec; the old one is then told to quit."""
    nginx = Nginx(ctx, docs=documents(ctx), daemon=True)
    client = load(ctx, nginx, 3600, threads=8, close=0.1)
    # The path of mixed modes is nginx_keep_alive's business: here connections come and go, and a kernel
    # connection is named by a look at /proc/net/tcp, which is slow after tests that leave many in TIME_WAIT.
    if ctx.mode == "both":
        ctx.expect_path(nginx.port)
    # A signal that comes between the pid file and the workers' start is noted, and acted upon at the next one.
    wait_until(lambda: len(nginx.workers()) == 2, "the workers are not there")
    os.kill(nginx.master, signal.SIGUSR2)
    wait_until(lambda: nginx.written_pid() not in (None, nginx.master), "no new master")
    new_master = nginx.written_pid()
    wait_until(lambda: len(nginx.workers(new_master)) == 2, "the new workers are not there")
    time.sleep(0.5)
    os.kill(nginx.master, signal.SIGQUIT)
    wait_until(lambda: is_gone(nginx.master), "the old master does not quit")
    time.sleep(0.5)
    client.stop(expect=0)
    expect_clean(load_result(client))
    check(not nginx.errors(), lambda: f"nginx complains: {nginx.errors()[:3]}")
    os.kill(new_master, signal.SIGQUIT)


@test(watchdog_s=90)
def nginx_wrk_200(ctx):
    """wrk reports connect, read, write and timeout errors and answers other than 2xx; there may be none."""
    nginx = Nginx(ctx, docs=documents(ctx, sizes=(1024,)))
    seconds = 5 if ctx.fast else 30
    wrk = ctx.start("client", [need("wrk"), "-t", 2, "-c", 200, "-d", f"{seconds}s", f"http://127.0.0.1:{nginx.port}/f1024"])
    ctx.expect_path(nginx.port)
    wrk.wait(seconds + 30)
    said = wrk.output()
    check("Socket errors" not in said and "Non-2xx" not in said, said)
    done = re.search(r"(\d+) requests in", said)
    check(done and int(done.group(1)) > 1000, said)
    expect_healthy(nginx)
    check(len(nginx.workers()) == 2, "a worker is gone")
