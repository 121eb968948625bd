# wire_waits_test.py - a thread waits for posternd, or for a peer behind a VI: children of fork and other connections don't wait with it.
# SPDX-License-Identifier: Apache-2.0
#
# usage: wire_waits_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, namespaces, AF_XDP, or where posternd has no BPF.

import contextlib
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import forked
import pauses
import wire_test
import wirekit
from netlab import V4
from wirekit import EXCHANGE, exchange

CONNECT = """
import threading
def go(name):
    s = socket.socket()
    held[name] = s
    s.connect((HOST, PORT))
    connected.set()
    over.wait()  # a lock whose owner has ended would be free
held, connected, over = {}, threading.Event(), threading.Event()
thread = threading.Thread(target=go, args=("s",), daemon=True)
thread.start()
"""


class WaitsTest(wirekit.WireTest):
    @contextlib.contextmanager
    def stopped(self, side):
        """posternd reads no request."""
        daemon = self.daemons[side]
        daemon.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, daemon.pid, os.WSTOPPED)
        try:
            yield
        finally:
            daemon.send_signal(signal.SIGCONT)

    def requests_left(self, side):
        with self.lab.inside(side):
            return forked.requests_left(subprocess.run(["ss", "-xaH"], capture_output=True, text=True, check=True).stdout)


class ForkTest(WaitsTest):
    """The client is postern's, the server the kernel's. The child connects over its own loopback and over the VI."""

    def setUp(self):
        super().setUp()
        self.start_daemon("a")
        server = self.plain("b")
        self.echo_server(server)
        self.client = self.program("a")
        self.client.do(EXCHANGE + forked.FORKED, HOST=V4["b"], PORT=self.port)
        self.client.do("""
def pull():
    with socket.create_connection((HOST, PORT), timeout=20) as sock:
        exchange(sock, bytes(1000))
""")
        self.kernels = self.lab.opens("a")


    def test_while_the_wire_is_made(self):
        """The other thread waits for posternd's answer, with the locks of the wire and of the line."""
        self.client.do("first = socket.socket()")  # it has a stack, and posternd knows it
        with self.stopped("a"):
            self.assertEqual(self.requests_left("a"), 0)
            self.client.do(CONNECT)
            self.until(lambda: self.requests_left("a") > 0, "connect() does not ask posternd")
            self.client.tell("forked(pull)")
            self.until(lambda: forked.children(self.client.pid), "fork() does not return")
        self.client.read("forked")
        self.client.do("connected.wait(); exchange(held['s'], bytes(100000)); over.set(); thread.join()")
        # One of the two had the interface first, and the other may have taken the kernel's way to b; but not that over the loopback.
        self.assertEqual(self.lab.opens("a")[1], self.kernels[1], "the kernel's TCP had a part in it")

    def test_in_the_handshake(self):
        """The other thread waits for a peer that is silent."""
        silent = self.lab.new_silent()
        self.client.do("pull()")
        self.client.do(CONNECT.replace("HOST", repr(silent)))
        self.client.do("""
while "s" not in held:
    pass
p = select.poll()
p.register(held["s"], select.POLLOUT)
while p.poll(0):  # not writable any more: it is in connect()
    pass
for _ in range(10):
    forked(pull)
assert not connected.is_set()
""")
        self.assertEqual(self.lab.opens("a"), self.kernels, "the kernel's TCP had a part in it")

    def test_in_the_middle_of_many(self):
        """Other threads connect, exchange and close all the time."""
        self.client.do("""
over, rounds = threading.Event(), [0] * 3
def keep(n):
    while not over.is_set():
        pull()
        rounds[n] += 1
threads = [threading.Thread(target=keep, args=(n,), daemon=True) for n in range(3)]
for thread in threads:
    thread.start()
while min(rounds) == 0:
    time.sleep(0.001)
for _ in range(30):
    forked(pull)
over.set()
for thread in threads:
    thread.join()
""")
        self.assertEqual(self.lab.opens("a"), self.kernels, "the kernel's TCP had a part in it")


class ServerTest(WaitsTest):
    SLOTS = 4096  # connections of a link group (PSTN_CONNS)

    def test_no_slot_is_left(self):
        """The listener's client needs a link group that a posternd which is stopped does not make: it waits, and no other does."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (4 * self.SLOTS, max(4 * self.SLOTS, before[1])))
        self.start_daemon("b")
        server = self.program()
        self.echo_server(server)
        old = self.connected()
        old.settimeout(20)
        exchange(old, b"first", end=False)
        server.do("""
second, taken = socket.create_server((HOST, PORT), backlog=4096), []
def take():
    while True:
        sock = second.accept()[0]
        taken.append(sock)
        sock.sendall(b"taken")
threading.Thread(target=take, daemon=True).start()
""", HOST="0.0.0.0", PORT=self.port + 1)
        lines = self.lines(server)
        self.port += 1
        with self.stopped("b"):
            socks = []
            while not self.waits(socks):
                self.assertLess(len(socks), 2 * self.SLOTS, "there are slots without end")
            self.assertGreater(len(socks), self.SLOTS - 512)
            for _ in range(100):
                exchange(old, b"still there", end=False)
            self.assertEqual(self.lines(server), lines, "a thread has waited for posternd until it gave it up")
        waiting = socks[-1]
        waiting.settimeout(20)
        self.assertEqual(waiting.recv(9), b"taken")
        exchange(old, b"last")
        for sock in socks:
            sock.close()

    def test_nobody_comes_back(self):
        """A program with two events writes, and asks for no more: the keeper puts it on the wire, and not when it would have looked anyway."""
        self.start_daemon("b")
        server = self.program()
        server.do("listener = socket.create_server((HOST, PORT))", HOST="0.0.0.0", PORT=self.port)
        client, _ = self.connected(), self.connected()
        client.settimeout(20)
        server.do("""
socks = [listener.accept()[0] for _ in range(2)]
p = select.poll()
for sock in socks:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    p.register(sock, select.POLLOUT)
one = next(sock for sock in socks if sock.getpeername()[1] == PORT)
""", PORT=client.getsockname()[1])
        waits = pauses.Pauses()
        self.addCleanup(waits.end)
        began, took = time.monotonic(), []
        for _ in range(50):
            begin = time.monotonic()
            server.do("assert len(p.poll(0)) == 2; one.send(b'x')")
            self.assertEqual(client.recv(1), b"x")
            took.append(time.monotonic() - begin)
        self.assertLess(statistics.median(took), 0.05 + waits.longest(began), "most are as late as the keeper's next look")

    def waits(self, socks):
        """One more client; whether it is not served."""
        sock = self.new_socket()
        socks.append(sock)
        self.addCleanup(sock.close)
        sock.settimeout(5)
        try:
            sock.connect((V4["b"], self.port))
            return sock.recv(9) != b"taken"
        except (TimeoutError, ConnectionResetError):
            return True

    def lines(self, program):
        """Its own and its keeper's sockets that lead to posternd, by inode: a line that was given up is another one."""
        held = set()
        for pid in (program.pid, *self.keepers("b")):
            with contextlib.suppress(FileNotFoundError):  # a keeper that has ended
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        held.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        with self.lab.inside("b"), open("/proc/thread-self/net/unix", encoding="ascii", errors="replace") as file:
            rows = [row.split() for row in file.readlines()[1:]]
        return {row[6] for row in rows if row[4] == "0005" and f"socket:[{row[6]}]" in held}


if __name__ == "__main__":
    wirekit.main(wire_test.missing)
