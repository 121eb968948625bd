# t_uwsgi.py - nginx before uwsgi over TCP: a connection for each request, four workers that share the listener.
# SPDX-License-Identifier: Apache-2.0
#
# uwsgi is the server of these tests; nginx, which connects to it, and the load before nginx are the client.

import contextlib
import os
import signal
import socket

from harness import HERE, check, need, test, wait_until
from nginxkit import Nginx, documents
from t_nginx import expect_clean, expect_healthy, load, load_result

WORKERS = 4
WAITS = {"232", "281", "441"}  # epoll_wait, epoll_pwait, epoll_pwait2: the kernel's and Postern's ways to wait for a request


class Uwsgi:
    def __init__(self, ctx):
        self.ctx, self.port = ctx, ctx.port()
        app = os.path.join(HERE, "..", "apps", "app.py")
        argv = [need("uwsgi"), "--plugin", "python3", "--socket", f"127.0.0.1:{self.port}", "--master", "--processes", WORKERS, "--wsgi-file", app,
                "--die-on-term", "--disable-logging", "--listen", 100, "--chdir", ctx.dir]
        self.proc = ctx.start("server", argv, name="uwsgi", env={"PYTHONDONTWRITEBYTECODE": "1"})
        ctx.wait_listening(self.port, self.proc)
        wait_until(self.waiting, "uwsgi has no workers")
        self.docs = documents(ctx)
        location = f"location / {{ include /etc/nginx/uwsgi_params; uwsgi_pass 127.0.0.1:{self.port}; uwsgi_request_buffering off; }}"
        self.front = Nginx(ctx, side="client", docs=self.docs, server=location)

    def workers(self):
        with open(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]

    def expect_path(self):
        """A request whose second half is held back keeps a connection open to be looked at."""
        with socket.create_connection(("127.0.0.1", self.front.port), timeout=20) as sock:
            sock.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhello")
            self.ctx.expect_path(self.port)
            sock.sendall(b"world")
            said = b"".join(iter(lambda: sock.recv(4096), b""))
            check(said.startswith(b"HTTP/1.1 200") and said.endswith(b"\r\n\r\nhelloworld"), said)

    def waiting(self):
        """Whether all workers wait for a request. One that still starts misses a signal, over the kernel too."""
        calls = []
        for pid in self.workers():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/syscall", encoding="ascii") as file:
                calls.append(file.read().split()[0])
        return len(calls) == WORKERS and set(calls) <= WAITS

    def expect_healthy(self):
        """The end of each test. A worker that is told to end while it is on its way to wait may miss that and stay, over the kernel too."""
        wait_until(self.waiting, "workers are busy although the load has ended")
        check(self.proc.alive(), lambda: f"uwsgi ended: {self.proc.output()[-800:]}")
        check("Segmentation" not in self.proc.output() and "signal 11" not in self.proc.output(), lambda: self.proc.output()[-1500:])
        expect_healthy(self.front)


@test()
def uwsgi_behind_nginx(ctx):
    """Files are made by the application and compared by the load; bodies of all sizes go to it and come back."""
    server = Uwsgi(ctx)
    client = load(ctx, server.front, 1.5 if ctx.fast else 20, threads=8, close=0.3)
    server.expect_path()
    client.wait()
    expect_clean(load_result(client))
    for size in (1, 4096, 100_001, 5 << 20):
        body = ctx.write("body", os.urandom(size))
        ctx.run("client", [need("curl"), "-sS", "-f", "--data-binary", f"@{body}", "-H", "Expect:", "-o", ctx.path("back"),
                           f"http://127.0.0.1:{server.front.port}/echo"])
        with open(body, "rb") as sent, open(ctx.path("back"), "rb") as back:
            check(sent.read() == back.read(), f"a body of {size} bytes came back with other bytes")
    server.expect_healthy()


@test(watchdog_s=120)
def uwsgi_kill_worker(ctx):
    """A worker serves one request at a time: each kill may cost one, which nginx answers with 502 or cuts short, and no more."""
    server, kills = Uwsgi(ctx), 2 if ctx.fast else 40
    client = load(ctx, server.front, 3600, threads=8)
    server.expect_path()
    for _ in range(kills):
        victim = ctx.random.choice(server.workers())
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in server.workers() and len(server.workers()) == WORKERS, "the worker is not replaced")
        server.expect_path()
    client.stop(expect=0)
    result = load_result(client)
    expect_clean(result, allowed=("status", "eof"))
    check(result["counts"].get("error_status", 0) + result["counts"].get("error_eof", 0) <= kills, f"{kills} kills, {result['counts']}")
    check(server.proc.output().count("killed by signal 9") == kills, server.proc.output()[-1500:])
    server.expect_healthy()


@test(watchdog_s=120)
def uwsgi_reload_under_load(ctx):
    """SIGHUP: workers finish their request, the master executes itself anew with the listener it has. Nobody loses anything."""
    server = Uwsgi(ctx)
    client = load(ctx, server.front, 3600, threads=8)
    before = set(server.workers())
    os.kill(server.proc.pid, signal.SIGHUP)  # once: a second one while it starts ends it, on the kernel too
    wait_until(lambda: server.proc.output().count("spawned uWSGI worker ") == 2 * WORKERS, "the workers are not replaced")
    check(not before & set(server.workers()), "an old worker lives")
    server.expect_path()
    client.stop(expect=0)
    expect_clean(load_result(client))
    server.expect_healthy()
