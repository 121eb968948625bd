# stepskit.py - two containers with a server and a client that can be killed, stopped and looked at, for smcd_steps_test.py.
# SPDX-License-Identifier: Apache-2.0
#
# The lab is made once for many cases: each of them ends with settle(), which starts again what was killed, and returns only when
# connections are SMC-D again and nothing of the case is left.

import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import threading
import time

import clckit
import netlab
import pauses
import smcd_test

MODES = ("blocking", "epoll")  # of a client
# Its listeners are waited for in three ways. Connections are echoed by threads of their own; those of the third by the one that also
# accepts, from a listener that blocks: an accept() that waits is felt by all of them.
UNBURIED = 6
PORTS = {"blocking": 8080, "epoll": 8081, "alone": 8082}
SERVER = """
import select, socket, threading
def echo(c):
    try:
        while data := c.recv(65536):
            c.sendall(data)
    except OSError:
        pass
    c.close()
def take(s):
    try:
        c = s.accept()[0]
    except BlockingIOError:
        return 0
    except OSError as error:
        print("accept:", error, flush=True)
        return 0
    threading.Thread(target=echo, args=(c,), daemon=True).start()
    return 1
def events(s):
    s.setblocking(False)
    ep = select.epoll()
    ep.register(s, select.EPOLLIN)
    while True:
        ep.poll()
        take(s)
def alone(s):
    p, clients = select.poll(), {s.fileno(): s}
    p.register(s, select.POLLIN)
    while True:
        for fd, _ in p.poll():
            try:
                if fd == s.fileno():
                    c = s.accept()[0]
                    clients[c.fileno()] = c
                    p.register(c, select.POLLIN)
                elif data := clients[fd].recv(65536):
                    clients[fd].sendall(data)
                else:
                    raise ConnectionResetError
            except ConnectionAbortedError:
                pass  # before it was accepted
            except OSError:
                p.unregister(fd)
                clients.pop(fd).close()
one, two, three = (socket.create_server(("", port), backlog=64) for port in (8080, 8081, 8082))
print("ready", flush=True)
threading.Thread(target=alone, args=(three,), daemon=True).start()
threading.Thread(target=events, args=(two,), daemon=True).start()
while True:
    take(one)
"""
# Says what each of its connections came to.
CLIENT = """
import errno, json, os, select, socket, sys, threading
held = {}
def connect(c, how, to, said):
    if how == "blocking":
        return c.connect(to)
    c.setblocking(False)
    error = c.connect_ex(to)
    if error == errno.EINPROGRESS:
        with select.epoll() as ep:
            ep.register(c, select.EPOLLOUT)
            error = c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ep.poll(8) else errno.ETIMEDOUT
    if error:
        raise OSError(error, "connect")
    c.setblocking(True)
def go(name, how, port):
    said = {"name": name, "did": "connect", "error": "", "got": ""}
    held[name] = c = socket.socket()
    try:
        connect(c, how, (sys.argv[1], int(port)), said)
        said["did"] = "send"
        c.sendall(name.encode())
        said["did"] = "recv"
        said["got"] = c.recv(100).decode()
    except OSError as error:
        said["error"] = errno.errorcode[error.errno]
    os.write(1, (json.dumps(said) + "\\n").encode())
print("ready", flush=True)
for line in sys.stdin:
    word, *args = line.split()
    if word == "go":
        threading.Thread(target=go, args=args, daemon=True).start()
    else:
        held.pop(args[0]).close()
"""


class Program:
    """A Python program under the wrapper; its lines come with the time at which they came."""

    def __init__(self, lab, container, text, *args):
        self.process = lab.python(container, text, *args, stdin=subprocess.PIPE)
        self.lines, self.late = queue.Queue(), {}
        threading.Thread(target=self._read, daemon=True).start()
        assert self.line()[1] == "ready\n"

    def _read(self):
        for line in self.process.stdout:
            self.lines.put((time.monotonic(), line))
        self.lines.put((time.monotonic(), "(ended)\n"))

    def line(self, timeout=20):
        return self.lines.get(timeout=timeout)

    def tell(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def outcome(self, name, timeout=12):
        """(when, {...}) of the connection of that name."""
        end = time.monotonic() + timeout
        while name not in self.late:
            when, line = self.line(max(end - time.monotonic(), 0.001))
            said = json.loads(line)
            self.late[said["name"]] = (when, said)
        return self.late.pop(name)

    def cpu_sec(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def inside(container):
    """Sockets made here are in the container's network, and are no program's of Postern."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    netlab.call("setns", container.fds["net"], netlab.CLONE_NEWNET)
    try:
        yield
    finally:
        netlab.call("setns", home, netlab.CLONE_NEWNET)
        os.close(home)


class Ear:
    """Hears which CLC messages come to, or leave from, a container."""

    def __init__(self, container):
        with inside(container):
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        self.sock.bind(("eth0", 3))

    def forget(self):
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.sock.recv(65536)

    def wait(self, kind, timeout=10):
        mark = clckit.SMCD if kind in (clckit.ACCEPT, clckit.CONFIRM) else clckit.SMCR
        self.sock.settimeout(timeout)
        while True:
            packet = self.sock.recv(65536)
            tcp = packet[4 * (packet[0] & 15):]
            if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP and tcp[4 * (tcp[12] >> 4):].startswith(mark + bytes([kind])):
                return

    def close(self):
        self.sock.close()


class Lab(smcd_test.Pair):
    """nat: a client never learns of a listener so well that it does without the handshake."""
    nat = True

    def runTest(self):
        pass

    def setUp(self):
        super().setUp()
        self.gid = clckit.device(f"{self.top}/broker")
        self.server = self.client = None
        self.stopped, self.count, self.worst, self.case = set(), 0, {}, ""
        self.settle()

    # ---- the processes there are

    def pid(self, who):
        if who == "broker":
            return self.broker.process.pid
        if who in ("client", "server"):
            return getattr(self, who).process.pid
        return {"client's posternd": self.a, "server's posternd": self.b}[who].posternd()

    def kill(self, who):
        pid = self.pid(who)
        self.stopped.discard(pid)
        os.kill(pid, signal.SIGKILL)
        if who == "broker":
            self.broker.process.wait()
        elif who in ("client", "server"):
            getattr(self, who).process.wait()
        return time.monotonic()

    def stop(self, who):
        pid = self.pid(who)
        os.kill(pid, signal.SIGSTOP)
        self.stopped.add(pid)
        while True:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                if file.read().rpartition(")")[2].split()[0] == "T":
                    return

    def go_on(self, who=None):
        for pid in [self.pid(who)] if who else list(self.stopped):
            self.stopped.discard(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # ---- what they do

    def name(self):
        self.count += 1
        return f"c{self.count}"

    def note(self, what, seconds):
        self.worst[what] = max(self.worst.get(what, (0, "")), (seconds, self.case))

    def old(self, port):
        """A connection that nothing of Postern's is in, on the client's side."""
        with inside(self.a):
            sock = socket.socket()
        sock.settimeout(10)
        sock.connect((self.pair.server, port))
        return sock

    def plain(self, port):
        began = time.monotonic()
        with self.old(port) as sock:
            sock.sendall(b"plain")
            self.assertEqual(sock.recv(100), b"plain")
        return time.monotonic() - began

    def served(self, limit):
        """New clients of both kinds are served by both listeners, on an idle machine within that time."""
        for how, port in PORTS.items():
            names, began = [self.name() for _ in MODES], time.monotonic()
            for name, kind in zip(names, MODES):
                self.client.tell("go", name, kind, port)
            for name in names:
                when, said = self.client.outcome(name)
                self.assertEqual((said["got"], said["error"]), (name, ""), f"{how}: {said}")
                self.note("a new client has its answer", when - began)
                self.assertLess(when - began, pauses.limit(began, limit))
                self.client.tell("close", name)
            began = time.monotonic()
            took = self.plain(port)
            self.note("a plain client has its answer", took)
            self.assertLess(took, pauses.limit(began, limit))

    # ---- and what is left of it

    def left(self):
        """What there is beside a server and a client that are idle and have a link group."""
        said = {}
        for name, container in (("a", self.a), ("b", self.b)):
            try:
                status = json.loads(container.run([f"{smcd_test.BUILD}/posternctl", "status", "--json"]))
            except AssertionError as error:  # the one that was killed has not gone yet
                return {name: str(error)}
            if not status["running"]:
                return {name: "no posternd"}
            pid = container.posternd()
            said[name] = (len(status["stacks"]), sum(stack["endpoints"] for stack in status["stacks"]), len(status["listeners"]),
                          len(status["link_groups"]), sum(link["connections"] for link in status["link_groups"]),
                          len(os.listdir(f"/proc/{pid}/fd")) if pid else 0)
        said["broker"] = len(os.listdir(f"/proc/{self.broker.process.pid}/fd"))
        return said

    def settle(self, baseline=None):
        self.go_on()
        if self.broker.process.poll() is not None:
            self.start_broker()
        if self.server is None or not self.server.alive():
            self.server = Program(self, self.b, SERVER)
        if self.client is None or not self.client.alive():
            self.client = Program(self, self.a, CLIENT, self.pair.server)
        # A client that waited in vain for a peer does without the handshake for 10 s, and may wait in vain again on a busy machine; a
        # posternd that was silent is asked again after up to 20 s.
        end = time.monotonic() + 60
        while (found := self.paths_of_new()) != {("smc-d", "")}:
            self.assertLess(time.monotonic(), end, f"not SMC-D again: {found}")
            time.sleep(0.05)
        while self.exceeds(left := self.left(), baseline):
            self.assertLess(time.monotonic(), end, f"left: {left}, before: {baseline}")
            time.sleep(0.02)
        for program in (self.server, self.client):
            self.assertFalse(self.spins(program, 0.02) and self.spins(program, 0.3), "an idle program spins")
        self.assertTrue(self.server.lines.empty(), list(self.server.lines.queue))

    def baseline(self):
        """Once nothing changes any more."""
        before = None
        while (left := self.left()) != before:
            before = left
            time.sleep(0.2)
        return left

    @staticmethod
    def exceeds(left, baseline):
        """More, or less, than there was. Of connections the last ones may still be unburied: the next ones do that."""
        if baseline is None:
            return False
        if left.keys() != baseline.keys() or left["broker"] > baseline["broker"]:
            return True
        for side in "ab":
            *things, connections, fds = left[side]
            *things_before, connections_before, fds_before = baseline[side]
            if things != things_before or connections > connections_before + UNBURIED or fds > fds_before:
                return True
        return False

    @staticmethod
    def spins(program, seconds):
        """Whether it does not come to rest. What there is to do when a posternd is back may take it a part of the first look."""
        for _ in range(20):
            before = program.cpu_sec()
            time.sleep(seconds)
            if program.cpu_sec() - before <= seconds / 5:
                return False
        return True

    def paths_of_new(self):
        names = {self.name(): port for port in PORTS.values()}
        for name, port in names.items():
            self.client.tell("go", name, "blocking", port)
        for name in names:
            self.client.outcome(name)
        found = {(s["path"], s["reason"]) for s in self.ss(self.a)}
        for name in names:
            self.client.tell("close", name)
        return found


def reset(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
