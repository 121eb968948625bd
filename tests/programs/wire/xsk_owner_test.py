# xsk_owner_test.py - a VI over AF_XDP gets nothing that the kernel has for another user, whatever its owner once had there.
# SPDX-License-Identifier: Apache-2.0
#
# usage: xsk_owner_test.py BUILD_DIR [-v] [TEST...]; exit 77 as xsk_test.py, whose namespaces, owner and wire these are.

import os
import select
import signal
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab
from netlab import V4
from xsk_test import NOBODY, QUIET_MSEC, READY_SEC, UDP, Refused, XskTest, frame4, main, tcp, udp

STRANGER = """
import socket, sys
kind, port = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.settimeout(20)
s.bind(("0.0.0.0", port))
if kind == "listen":
    s.listen()
print("ready", flush=True)
if kind == "connect":
    sys.stdin.readline()
    s.connect((sys.argv[3], int(sys.argv[4])))
    print(s.recv(9).decode(), flush=True)
if kind == "udp":
    print(s.recv(9).decode(), flush=True)
while kind == "listen":
    taken, _ = s.accept()
    taken.sendall(b"stranger")
    taken.close()
"""


class Stranger:
    """A program of another user in namespace b, which is the kernel's in all that it does, and may share its port."""

    def __init__(self, test, *args, user=NOBODY):
        with test.lab.inside("b"):
            self.process = subprocess.Popen(["/usr/bin/python3", "-c", STRANGER, *(str(a) for a in args)], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, user=user, text=True)
        test.addCleanup(self.end)
        test.assertEqual(self.line(), "ready")

    def line(self):
        readable, _, _ = select.select([self.process.stdout], [], [], READY_SEC)
        return self.process.stdout.readline().strip() if readable else "silent"

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class OwnerTest(XskTest):
    def answer_of(self, port, sport=0):
        """What a client in a hears from whatever has that port in b."""
        with self.lab.socket("a") as client:
            client.settimeout(5)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("0.0.0.0", sport))
            try:
                client.connect((V4["b"], port))
                return client.recv(9).decode()
            except OSError as error:
                return str(error)

    def test_a_port_that_was_given_up(self):
        """A listener leaves its state, by no word of its owner's; the port is another user's now, and so are its clients."""
        for port, how, user in (7000, "shut", NOBODY), (7001, "undo", NOBODY), (7002, "shut", os.geteuid()):
            with self.subTest(how=how, user=user):
                peer = self.peer()
                peer.do("open", self.ifindex("vb"))
                number = peer.port(port)
                peer.do(how, number)
                Stranger(self, "listen", port, user=user)
                self.assertEqual(self.answer_of(port), "stranger")  # a SYN may come before posternd has heard, and is sent again
                peer.frames(1, QUIET_MSEC)
                self.assertEqual(self.answer_of(port), "stranger")
                self.nothing(peer)
                old = frame4(tcp(4000, port, b"of a connection from before", flags=netlab.ACK))
                self.put(old)
                self.assertEqual(peer.frames(1), [old])
                with self.assertRaises(Refused):
                    peer.do("listen", number)
                peer.kill()
                self.until(lambda: not self.attached(), "the program is still on the interface")

    def test_a_port_that_was_given_up_without_posternd(self):
        peer = self.opened()
        number = peer.port(7000)
        self.stop_daemon(self.daemons[0], signal.SIGKILL)
        peer.do("shut", number)
        Stranger(self, "listen", 7000)
        self.assertEqual(self.answer_of(7000), "stranger")
        self.nothing(peer)

    def test_a_listener_that_listens_again(self):
        """It has its port all the time, or else as one that has ended: never another user's packets."""
        peer = self.opened()
        number = peer.port(7000)
        peer.do("shut", number)
        peer.do("listen", number)
        wanted = frame4(tcp(4000, 7000, flags=netlab.ACK))
        self.put(wanted)
        self.assertEqual(peer.frames(1), [wanted])

    def test_a_flow_of_a_port_that_another_user_has(self):
        """Who binds a port that may be shared gets nothing that the kernel has for another user there: neither its clients nor its own
        connections; but its own."""
        peer = self.opened()
        peer.flow(7100, 4000)
        peer.flow(7101, 4000)
        wanted = frame4(tcp(4000, 7100, flags=netlab.ACK))
        self.put(wanted)
        self.assertEqual(peer.frames(1), [wanted])
        Stranger(self, "listen", 7100)
        self.assertEqual(self.answer_of(7100, 4000), "stranger")
        with self.lab.socket("a") as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((V4["a"], 4000))
            listener.listen()
            listener.settimeout(5)
            stranger = Stranger(self, "connect", 7101, V4["a"], 4000)
            stranger.go()
            taken, _ = listener.accept()
            with taken:
                taken.sendall(b"yours")
                self.assertEqual(stranger.line(), "yours")
        self.nothing(peer)

    def test_datagrams_of_a_port_that_another_user_has(self):
        """Of two that share a port of UDP the kernel's choice gets what comes."""
        peer = self.opened()
        peer.port(7200, protocol="udp")
        wanted = frame4(udp(4000, 7200, b"mine"), UDP)
        self.put(wanted)
        self.assertEqual(peer.frames(1), [wanted])
        stranger = Stranger(self, "udp", 7200)
        with self.lab.socket("a", socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"yours", (V4["b"], 7200))
        self.assertEqual(stranger.line(), "yours")
        self.nothing(peer)


if __name__ == "__main__":
    main(OwnerTest)
