# broker_test.py - posternd --system: two users' posternds, their programs, and every way in which one of the four ends.
# SPDX-License-Identifier: Apache-2.0
#
# usage: broker_test.py BUILD_DIR [-v] [TEST...]
# Each test has a broker of its own and two daemons, "a" for servers and "b" for clients. As root the two are different users.

import array
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab
import posternview
from harness import free_port
from readable import copied

BUILD = "build"
SERVER = """
import socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", 0)); s.listen(64)
print(s.getsockname()[1], flush=True)
held = []
for line in sys.stdin:
    if line == "accept\\n": held.append(s.accept()[0]); print("accepted", flush=True)
    if line == "echo\\n": held[-1].sendall(held[-1].recv(65536)); print("echoed", flush=True)
    if line == "unlisten\\n": s.close(); print("closed", flush=True)
    if line == "daemon\\n": socket.socket().connect_ex(("127.0.0.1", 1)); print("asked", flush=True)
"""
CLIENT = """
import socket, sys, time
held = []
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    try:
        if word == "connect": held.append(socket.create_connection(("127.0.0.1", int(rest)), 20)); print("ok", flush=True)
        if word == "send": held[-1].sendall(rest.encode()); print("ok", flush=True)
        if word == "recv": held[-1].settimeout(20); print(held[-1].recv(65536).decode() or "EOF", flush=True)
    except OSError as e:
        print(type(e).__name__, flush=True)
"""
# As many as more than one link group holds, and each is asked once more whenever that is wanted.
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)"
SERVER_MANY = LIMIT + """
import selectors, socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(64)
print(s.getsockname()[1], flush=True)
watch = selectors.DefaultSelector(); watch.register(s, selectors.EVENT_READ)
while True:
    for key, _ in watch.select():
        if key.fileobj is s:
            watch.register(s.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(100):
            key.fileobj.sendall(data[::-1])
        else:
            watch.unregister(key.fileobj); key.fileobj.close()
"""
CLIENT_MANY = LIMIT + """
import socket, sys
held = []
def ask(c, text):
    c.sendall(text); c.settimeout(20)
    return c.recv(100) == text[::-1]
for line in sys.stdin:
    word, port, n = line.split()
    try:
        if word == "open":
            for i in range(int(n)):
                held.append(socket.create_connection(("127.0.0.1", int(port)), 20)); assert ask(held[-1], b"new %d" % i)
        if word == "use": assert all(ask(c, b"again %d" % i) for i, c in enumerate(held))
        if word == "close":
            for c in held[:int(n)]: c.close()
            del held[:int(n)]
        print(f"{word} {len(held)}", flush=True)
    except (OSError, AssertionError) as e:
        print(f"{type(e).__name__} after {len(held)}", flush=True)
"""
MSG = struct.Struct("=IIIiIIIIQQ24sQQQQQQ")
JOIN, OFFER, LINK, HAVE_LINK, ALIVE, BELL, REGISTER, ATTACH = 14, 15, 19, 20, 22, 28, 29, 30
EPERM, ENOENT, EINVAL, ENOSYS, ENOTSUP, ENOTCONN = 1, 2, 22, 38, 95, 107


def another_user():
    return 65534 if os.geteuid() == 0 else os.geteuid()


def on_free_port(text):
    """For a server that gives its port up, to be bound again: other tests, with thousands of listeners, may have the same network."""
    return text.replace('("127.0.0.1", 0)', f'("127.0.0.1", {free_port()})')


class Program:
    """A program whose commands are lines on its standard input."""

    def __init__(self, test, daemon, text, *options):
        env = dict(os.environ, POSTERN_RUNTIME_DIR=test.dirs[daemon])
        user = {"a": os.geteuid(), "b": another_user()}[daemon]
        self.process = subprocess.Popen([f"{BUILD}/postern", *options, "/usr/bin/python3", "-c", text], env=env, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, preexec_fn=lambda: user == os.geteuid() or os.setresuid(user, user, user))
        test.addCleanup(self.end)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def line(self):
        return self.process.stdout.readline().strip()

    def ask(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.line()


class Broker(unittest.TestCase):
    policy = None

    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn-broker-")
        os.chmod(self.top, 0o755)
        self.addCleanup(shutil.rmtree, self.top)
        self.system = f"{self.top}/system"
        self.addCleanup(netlab.forget_bells, self.system)
        self.dirs = {}
        self.processes = {}
        self.start_broker()
        for name, user in (("a", os.geteuid()), ("b", another_user())):
            self.dirs[name] = f"{self.top}/{name}"
            os.mkdir(self.dirs[name], 0o700)
            if user != os.geteuid():
                os.chown(self.dirs[name], user, user)
            self.start_daemon(name)
        self.addCleanup(self.end_all)

    def start(self, name, *args, user=None):
        log = open(f"{self.top}/{name}.log", "a", encoding="utf-8")
        drop = (lambda: os.setresuid(user, user, user)) if user is not None and user != os.geteuid() else None
        self.processes[name] = subprocess.Popen([f"{BUILD}/posternd", "--foreground", "--verbose", *args], stderr=log, preexec_fn=drop)
        log.close()

    def log(self, name):
        with open(f"{self.top}/{name}.log", encoding="utf-8") as file:
            return file.read()

    def wait_for(self, name, text, times=1):
        until = time.monotonic() + 20
        while self.log(name).count(text) < times:
            self.assertLess(time.monotonic(), until, f"{name} never says {text!r}: {self.log(name)}")
            time.sleep(0.01)

    def start_broker(self):
        args = ["--policy", f"{self.top}/policy.json"]
        if self.policy is not None:
            with open(f"{self.top}/policy.json", "w", encoding="utf-8") as file:
                json.dump(self.policy, file)
        before = self.log("system").count("ready in") if os.path.exists(f"{self.top}/system.log") else 0
        self.start("system", "--system", "--runtime-dir", self.system, "--syn-option", "off", *args)
        self.wait_for("system", "ready in", before + 1)

    def start_daemon(self, name):
        joined = self.log(name).count("joined") if os.path.exists(f"{self.top}/{name}.log") else 0
        user = another_user() if name == "b" else None
        self.start(name, "--runtime-dir", self.dirs[name], "--idle-sec", "0", "--broker", f"{self.system}/broker.sock", user=user)
        self.wait_for(name, "joined", joined + 1)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def end_all(self):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def server(self):
        program = Program(self, "a", on_free_port(SERVER))
        port = int(program.line())
        self.wait_for("a", f"listens on port {port}")
        return program, port

    def connected(self, *options):
        server, port = self.server()
        client = Program(self, "b", CLIENT, "--strict", *options)
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        return server, port, client

    def echo(self, server, client, text="hello"):
        self.assertEqual(client.ask(f"send {text}"), "ok")
        self.assertEqual(server.ask("echo"), "echoed")
        self.assertEqual(client.ask("recv"), text)


class Introduces(Broker):
    def test_two_users_are_accelerated(self):
        server, port, client = self.connected()
        self.echo(server, client)
        for _ in range(20):  # no further introduction
            self.assertEqual(client.ask(f"connect {port}"), "ok")
            self.assertEqual(server.ask("accept"), "accepted")
            self.echo(server, client, "again")
        self.assertEqual(self.log("a").count("of another daemon"), 1)

    def test_no_listener_is_refused(self):
        server, port, client = self.connected()
        self.assertEqual(server.ask("unlisten"), "closed")
        self.assertEqual(client.ask(f"connect {port}"), "ConnectionRefusedError")

    def test_server_dies(self):
        server, port, client = self.connected()
        server.process.kill()
        self.assertIn(client.ask("recv"), ("EOF", "ConnectionResetError"))
        self.assertEqual(client.ask(f"connect {port}"), "ConnectionRefusedError")

    def test_client_dies(self):
        server, _, client = self.connected()
        client.process.kill()
        self.wait_for("a", "")
        self.assertEqual(server.ask("echo"), "echoed")  # an EOF, echoed as nothing


class SomebodyIsKilled(Broker):
    def test_broker_restarts(self):
        server, port, client = self.connected()
        self.kill("system")
        self.echo(server, client, "without a broker")
        self.start_broker()
        for name in ("a", "b"):
            self.wait_for(name, "joined", 2)
        self.echo(server, client, "with the next one")
        time.sleep(4)  # the grace for a daemon that does not come back
        self.echo(server, client, "still")
        client.ask(f"connect {port}")
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client, "anew")
        self.assertEqual(self.log("a").count("of another daemon"), 1, "the link group was not kept")

    def test_servers_daemon_and_then_the_server(self):
        server, _, client = self.connected()
        self.kill("a")
        self.echo(server, client, "on its own")
        server.process.kill()
        self.assertIn(client.ask("recv"), ("EOF", "ConnectionResetError"))

    def test_servers_daemon_restarts(self):
        server, port, client = self.connected()
        self.kill("a")
        self.start_daemon("a")
        server.ask("daemon")  # a connect of any kind finds the new one
        self.wait_for("a", f"listens on port {port}", 2)
        self.echo(server, client)
        time.sleep(4)
        self.echo(server, client, "after the grace")
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client, "anew")


class MoreThanOneLinkGroup(Broker):
    """5,000 connections of one pair: a link group holds 4,096."""

    def many(self, *options):
        server = Program(self, "a", SERVER_MANY)
        port = int(server.line())
        self.wait_for("a", f"listens on port {port}")
        client = Program(self, "b", CLIENT_MANY, *options)
        return server, client, port

    def test_between_two_users(self):
        server, client, port = self.many("--strict")
        self.assertEqual(client.ask(f"open {port} 5000"), "open 5000")
        self.assertEqual(client.ask(f"use {port} 0"), "use 5000")
        self.assertEqual(self.log("a").count("of another daemon"), 2)
        # Slots that were closed serve again, in either.
        self.assertEqual(client.ask(f"close {port} 4500"), "close 500")
        self.assertEqual(client.ask(f"open {port} 4500"), "open 5000")
        self.assertEqual(self.log("a").count("of another daemon"), 2)
        server.process.kill()
        self.assertRegex(client.ask(f"use {port} 0"), "Error after 5000")
        self.assertEqual(client.ask(f"close {port} 5000"), "close 0")

    def test_everybody_restarts(self):
        _, client, port = self.many("--strict")
        self.assertEqual(client.ask(f"open {port} 4200"), "open 4200")
        for name in ("system", "a", "b"):
            self.kill(name)
            if name == "system":
                self.start_broker()
                for daemon in ("a", "b"):
                    self.wait_for(daemon, "joined", 2)
            else:
                self.start_daemon(name)
            self.assertEqual(client.ask(f"use {port} 0"), "use 4200")
        time.sleep(7)  # the grace for a daemon that does not come back
        self.assertEqual(client.ask(f"use {port} 0"), "use 4200")


class OneLinkGroupForEach(MoreThanOneLinkGroup):
    policy = {"links": 1}
    test_between_two_users = test_everybody_restarts = None

    def test_no_more_than_the_quota(self):
        _, client, port = self.many()
        self.assertEqual(client.ask(f"open {port} 4200"), "open 4200")  # the rest goes the kernel's way
        self.assertEqual(client.ask(f"use {port} 0"), "use 4200")
        self.assertEqual(self.log("a").count("of another daemon"), 1)
        self.assertIn("as many as the policy allows", self.log("system"))


class Denied(Broker):
    policy = {"rules": [{"to": {"user": os.geteuid()}, "verdict": "deny"}]}

    def test_the_kernels_way(self):
        server, port = self.server()
        client = Program(self, "b", CLIENT)
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client)
        self.assertEqual(self.log("a").count("of another daemon"), 0)


class Mistakes(Broker):
    def test_a_policy_that_means_nothing(self):
        cases = {'{"rules": [{"verdict": "maybe"}]}': "neither", '{"rulez": []}': "rulez", "{": "parse error", '{"rules": [{"ports": "x", "verdict": "allow"}]}': "no ports",
                 '{"rules": [{"from": {"user": "no-such-user-here"}, "verdict": "deny"}]}': "no user"}
        for text, expected in cases.items():
            with open(f"{self.top}/bad.json", "w", encoding="utf-8") as file:
                file.write(text)
            done = subprocess.run([f"{BUILD}/posternd", "--system", "--foreground", "--runtime-dir", f"{self.top}/other", "--policy", f"{self.top}/bad.json"],
                                  capture_output=True, text=True, timeout=20, check=False)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn(expected, done.stderr)
            self.assertIn("bad.json", done.stderr)

    def ask(self, line, kind, fd=None, seq=1, **fields):
        f = {"a": 0, "b": 0, "c": 0, "uuid": (0, 0), "peer": (0, 0), "id": (0, 0), "cookie": 0, **fields}
        data = MSG.pack(4, kind, seq, 0, f["a"], f["b"], f["c"], 0, *f["uuid"], b"", *f["peer"], *f["id"], f["cookie"], 0)
        with_fd = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        line.sendmsg([data], with_fd)
        while True:
            answer = MSG.unpack(line.recv(MSG.size))
            if answer[2] == seq:
                self.answer = answer
                return answer[3]

    def test_a_member_that_lies(self):
        server, _, client = self.connected()
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(line.close)
        line.settimeout(10)
        line.connect(f"{self.system}/broker.sock")
        self.assertEqual(self.ask(line, OFFER), ENOTCONN)  # before it has joined
        self.assertEqual(self.ask(line, JOIN), 0)
        self.assertEqual(self.ask(line, 99), ENOSYS)
        with socket.socket() as tcp, open("/dev/null", encoding="ascii") as null:
            self.assertEqual(self.ask(line, OFFER, fd=tcp.fileno()), EINVAL)  # it does not listen
            self.assertNotEqual(self.ask(line, OFFER, fd=null.fileno()), 0)
            tcp.bind(("127.0.0.1", 0))
            tcp.listen()
            mine = (1, 2)
            self.assertEqual(self.ask(line, OFFER, fd=tcp.fileno(), uuid=mine), 0)
            # Somebody else's stack, as a client and as a server.
            text = self.log("a").split("listens on")[0].rsplit("stack ", 1)[1][:32]
            theirs = (int(text[:16], 16), int(text[16:], 16))
            self.assertEqual(self.ask(line, OFFER, fd=tcp.fileno(), uuid=theirs), EPERM)
            self.assertEqual(self.ask(line, LINK, fd=null.fileno(), uuid=theirs, peer=theirs), EINVAL)
            self.assertNotEqual(self.ask(line, LINK, fd=null.fileno(), uuid=theirs, peer=mine, id=(3, 4)), 0)  # no link group
            self.assertEqual(self.ask(line, LINK, fd=null.fileno(), uuid=(7, 7), peer=mine, id=(3, 5)), ENOENT)
            self.assertEqual(self.ask(line, HAVE_LINK, uuid=theirs, a=1), EPERM)
            self.assertEqual(self.ask(line, HAVE_LINK, uuid=mine, a=2), EPERM)
            # Tokens and doorbells.
            self.assertEqual(self.ask(line, REGISTER, uuid=mine, a=5), ENOENT)     # no such listener
            self.assertEqual(self.ask(line, REGISTER, uuid=theirs), ENOENT)
            self.assertEqual(self.ask(line, REGISTER, uuid=theirs, id=(3, 6)), EPERM)
            self.assertEqual(self.ask(line, ATTACH, cookie=12345), ENOENT)
            self.assertEqual(self.ask(line, REGISTER, uuid=mine), 0)
            token = self.answer[-2]
            self.assertEqual(self.ask(line, ATTACH, cookie=token, uuid=mine), EINVAL)  # a listener is no connection
            self.assertEqual(self.ask(line, ATTACH, cookie=token), 0)
            self.assertEqual(self.ask(line, ATTACH, cookie=token), ENOENT)         # it is good for one
            self.assertIn(self.ask(line, BELL, uuid=theirs, a=1), (EPERM, ENOTSUP))
            self.assertNotEqual(self.ask(line, BELL, uuid=mine, a=posternview.abi_limit("PSTN_WAITERS")), 0)
        line.send(b"short")
        self.assertEqual(line.recv(10), b"")  # cut off
        self.echo(server, client)


if __name__ == "__main__":
    signal.alarm(220)
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        BUILD = copied(os.path.abspath(sys.argv.pop(1)), directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
