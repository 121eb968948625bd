# smcd_fork_test.py - fork() in one thread while another is in the handshake with another network namespace: the child works by itself.
# SPDX-License-Identifier: Apache-2.0
#
# usage: smcd_fork_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, namespaces or the SYN option.
#
# The peer is a server that the test plays byte by byte (clckit.py), so the handshake stands where it is wanted.

import os
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import clckit
import forked
import smcd_test
import synkit
from stepskit import inside

PORT = 9000
MSEC = 5000  # smcd.msec: the client's patience
CLIENT = forked.FORKED + """
import sys, threading
def go():
    c.connect((sys.argv[1], int(sys.argv[2])))
    c.sendall(b"through")
    over.wait()  # a lock whose owner has ended would be free
c, over = socket.socket(), threading.Event()
thread = threading.Thread(target=go, daemon=True)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Fork(smcd_test.Pair):
    nat = True  # a client never learns of a listener so well that it does without the handshake

    def setUp(self):
        super().setUp()
        self.gid = clckit.device(f"{self.top}/broker")
        self.under(self.b, ["sleep", "100"])  # else its network namespace is unknown
        self.wait_joined(self.b)
        self.listener = clckit.marked(inside(self.b))
        self.addCleanup(self.listener.close)
        self.listener.bind(("", PORT))
        self.listener.listen()
        self.client = self.under(self.a, ["-o", f"smcd.msec={MSEC}", "/usr/bin/python3", "-c", CLIENT, self.pair.server, str(PORT)],
                                 stdin=subprocess.PIPE)
        self.addCleanup(self.client.stdin.close)
        self.addCleanup(self.client.stdout.close)
        self.assertEqual(self.client.stdout.readline(), "ready\n")
        self.wait_joined(self.a)

    def tell(self, line):
        self.client.stdin.write(line + "\n")
        self.client.stdin.flush()

    def done(self):
        self.assertEqual(self.client.stdout.readline(), "done\n")

    def until(self, condition, what):
        end = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)

    def proposed(self):
        """A thread of the client is in the handshake, and waits for the peer's answer."""
        self.tell("thread.start()")
        self.done()
        sock = self.listener.accept()[0]
        self.addCleanup(sock.close)
        sock.settimeout(20)
        self.assertTrue(synkit.exchanged(sock))
        self.assertEqual(clckit.whole(sock)[0], clckit.PROPOSAL)
        return sock

    def requests_left(self):
        return forked.requests_left(self.a.run(["ss", "-xaH"]))

    def passive_opens(self):
        """Of the client's own network namespace: its child's connections over the loopback are none of the kernel's."""
        with open(f"/proc/{self.a.init.pid}/net/snmp", encoding="ascii") as file:
            names, values = [line.split() for line in file if line.startswith("Tcp:")]
        return int(values[names.index("PassiveOpens")])

    def test_waits_for_the_peer(self):
        before = self.passive_opens()
        sock = self.proposed()
        for _ in range(10):
            self.tell("forked()")
            self.done()
        sock.sendall(clckit.decline())
        self.assertEqual(sock.recv(7, socket.MSG_WAITALL), b"through")
        self.assertEqual(self.passive_opens(), before, "the kernel's TCP had a part in it")

    def test_waits_for_posternd(self):
        """With the lock of the line, of which the child has one of its own."""
        before, daemon = self.passive_opens(), self.a.posternd()
        sock = self.proposed()
        os.kill(daemon, signal.SIGSTOP)
        try:
            self.until(lambda: state(daemon) == "T", "it is not stopped")
            self.assertEqual(self.requests_left(), 0)
            sock.sendall(clckit.accept(self.gid))
            self.until(lambda: self.requests_left() > 0, "posternd is not asked for the peer's token")
            self.tell("forked()")
            self.until(lambda: forked.children(self.client.pid), "fork() does not return")
        finally:
            os.kill(daemon, signal.SIGCONT)
        self.done()
        self.assertEqual(clckit.whole(sock)[0], clckit.DECLINE)  # nobody's token
        self.assertEqual(sock.recv(7, socket.MSG_WAITALL), b"through")
        self.assertEqual(self.passive_opens(), before, "the kernel's TCP had a part in it")


def state(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    smcd_test.main(170)
