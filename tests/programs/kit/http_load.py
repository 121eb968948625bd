#!/usr/bin/python3
# http_load.py - HTTP load that checks every byte and knows what a keep-alive client has to put up with.
# SPDX-License-Identifier: Apache-2.0
#
# A server may close an idle keep-alive connection at any time, so a request on a *reused* connection that ends before
# the first byte of an answer is repeated on a new one (RFC 9112, 9.3.1) and counted as "idle_close". Everything else
# that goes wrong is counted by kind: reset, eof (mid-answer, or on a fresh connection), refused, timeout, status,
# corrupt, other. Bodies are compared with the files of --docs. Ends after --seconds, or on SIGTERM; the last line printed is JSON.

import argparse
import collections
import errno
import json
import os
import random
import signal
import socket
import sys
import threading
import time

KINDS = {errno.ECONNRESET: "reset", errno.EPIPE: "reset", errno.ECONNREFUSED: "refused"}


class Idle(Exception):
    """A reused connection ended before the first byte of the answer."""


class Bad(Exception):
    """A request failed; the argument is the kind."""


class Client:
    """One thread with at most one connection."""

    def __init__(self, args, bodies, number):
        self.args, self.bodies = args, bodies
        self.random = random.Random(args.seed * 1000 + number)
        self.counts = collections.Counter()
        self.first = {}
        self.sock, self.used, self.head = None, 0, b""

    def connect(self):
        family = socket.AF_INET6 if ":" in self.args.addr else socket.AF_INET
        self.sock, self.used = socket.socket(family, socket.SOCK_STREAM), 0
        self.sock.settimeout(self.args.timeout)
        self.sock.connect((self.args.addr, self.args.port))
        self.counts["connections"] += 1

    def drop(self):
        if self.sock:
            self.sock.close()
        self.sock = None

    def answer(self):
        """(status, headers, body). Bytes after the body would be somebody else's: corrupt."""
        data = self.head = b""
        while b"\r\n\r\n" not in data:
            chunk = self.sock.recv(65536)
            if not chunk:
                raise Bad("eof") if data or not self.used else Idle()
            data = self.head = data + chunk
        head, body = data.split(b"\r\n\r\n", 1)
        lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
        want = int(headers["content-length"])
        parts, have = [body], len(body)
        while have < want:
            chunk = self.sock.recv(min(262144, want - have))
            if not chunk:
                raise Bad("eof")
            parts.append(chunk)
            have += len(chunk)
        if have > want:
            raise Bad("corrupt")
        return int(lines[0].split()[1]), headers, b"".join(parts)

    def request(self, name):
        close = self.random.random() < self.args.close
        if self.sock is None:
            self.connect()
        text = f"GET /{name} HTTP/1.1\r\nHost: load\r\n" + ("Connection: close\r\n" if close else "") + "\r\n"
        self.head = b""
        try:
            self.sock.sendall(text.encode())
            status, headers, body = self.answer()
        except (ConnectionResetError, BrokenPipeError):
            if self.used and not self.head:
                raise Idle() from None
            raise
        if status != 200:
            raise Bad("status")
        if body != self.bodies[name]:
            raise Bad("corrupt")
        self.used += 1
        if close or headers.get("connection", "").lower() == "close":
            if self.sock.recv(1) != b"":
                raise Bad("corrupt")
            self.drop()

    def one(self):
        name = self.random.choice(list(self.bodies))
        for _ in range(20):
            try:
                self.request(name)
                self.counts["ok"] += 1
                return
            except Idle:
                self.counts["idle_close"] += 1
                self.drop()
            except (Bad, OSError, ValueError, KeyError) as error:
                self.drop()
                self.count_error(error)
                return
        self.count_error(Bad("idle_close_20_times"))

    def count_error(self, error):
        if isinstance(error, Bad):
            kind = error.args[0]
        elif isinstance(error, TimeoutError):
            kind = "timeout"
        else:
            kind = KINDS.get(getattr(error, "errno", None), "other")
        self.counts["error_" + kind] += 1
        self.first.setdefault(kind, repr(error))

    def loop(self, stop):
        while not stop.is_set():
            self.one()
            if self.args.pause:
                time.sleep(self.random.random() * self.args.pause)
        self.drop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--addr", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--docs", required=True, help="directory of the files that the server serves at /")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--close", type=float, default=0.0, help="share of requests with Connection: close")
    parser.add_argument("--pause", type=float, default=0.0, help="longest pause between requests, so that connections get idle")
    parser.add_argument("--timeout", type=float, default=20.0, help="a call that takes this long hangs")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    bodies = {}
    for name in sorted(os.listdir(args.docs)):
        with open(os.path.join(args.docs, name), "rb") as file:
            bodies[name] = file.read()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    clients = [Client(args, bodies, n) for n in range(args.threads)]
    threads = [threading.Thread(target=c.loop, args=(stop,)) for c in clients]
    for thread in threads:
        thread.start()
    end = time.monotonic() + args.seconds
    while time.monotonic() < end and not all(c.counts["ok"] for c in clients) and not stop.wait(0.02):
        pass
    print("going", flush=True)  # every thread has been served: for a test that waits for it
    stop.wait(end - time.monotonic())
    stop.set()
    for thread in threads:
        thread.join()
    total, first = collections.Counter(), {}
    for client in clients:
        total.update(client.counts)
        first.update(client.first)
    print(json.dumps({"counts": total, "first": first}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
