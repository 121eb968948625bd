# closed_listener_test.py - a listener that has ended without a word to posternd: its port is another server's now, and clients reach
# that one.
# SPDX-License-Identifier: Apache-2.0
#
# usage: closed_listener_test.py BUILD_DIR [-v] [TEST...]
# Each server here is Postern's and forgets to say that it closes; the one that comes after it is the kernel's alone.

import contextlib
import os
import signal
import socket
import sys
import tempfile
import unittest

import broker_test
from broker_test import CLIENT, JOIN, OFFER, Program, copied, on_free_port

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
from actorkit import LISTENER, Line
from harness import free_port

# close() and shutdown(SHUT_RD) as a program that has no libc makes them: mov eax, 3 (or 48); syscall; ret.
FORGETFUL = """
import ctypes, mmap, socket, sys
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\\xb8\\x03\\0\\0\\0\\x0f\\x05\\xc3" + b"\\xb8\\x30\\0\\0\\0\\x0f\\x05\\xc3")
at = ctypes.addressof(ctypes.c_char.from_buffer(code))
close, shutdown = (ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_int, ctypes.c_int)(at + i) for i in (0, 8))
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", 0)); s.listen(64)
print(s.getsockname()[1], flush=True)
held = []
for line in sys.stdin:
    if line == "accept\\n": held.append(s.accept()[0]); print("accepted", flush=True)
    if line == "close\\n": print(close(s.fileno(), 0), flush=True)
    if line == "shutdown\\n": print(shutdown(s.fileno(), 0), flush=True)
"""


def groups_of(pid):
    """Of that process's sockets of sock_diag(7), those that are in a group."""
    inodes = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    with open(f"/proc/{pid}/net/netlink", encoding="utf-8") as table:
        lines = [line.split() for line in table][1:]
    return [l for l in lines if l[1] == "4" and f"socket:[{l[9]}]" in inodes and int(l[3], 16) != 0]


class ClosedListener(broker_test.Broker):
    def plain_server(self, port):
        """The kernel's, on that port."""
        tcp = socket.socket()
        self.addCleanup(tcp.close)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tcp.bind(("127.0.0.1", port))
        tcp.listen()
        tcp.settimeout(20)
        return tcp

    def reaches(self, client, plain):
        self.assertEqual(client.ask(f"connect {plain.getsockname()[1]}"), "ok")
        connection = plain.accept()[0]
        connection.sendall(b"plain")
        connection.close()
        self.assertEqual(client.ask("recv"), "plain")

    def met(self, daemon, how):
        """A client of that daemon, whose server, which it has met, has ended its listener."""
        server = Program(self, "a", on_free_port(FORGETFUL))
        port = int(server.line())
        self.wait_for("a", f"listens on port {port}")
        client = Program(self, daemon, CLIENT)
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        self.assertEqual(server.ask(how), "0")
        return client, port

    def test_closed_in_the_same_users_directory(self):
        client, port = self.met("a", "close")
        self.wait_for("a", f"port {port} has ended")
        self.reaches(client, self.plain_server(port))

    def test_closed_in_another_users_directory(self):
        client, port = self.met("b", "close")
        self.wait_for("b", f"port {port} has ended")
        self.reaches(client, self.plain_server(port))

    def test_no_daemon_hears_of_all_sockets(self):
        """Each that did would make every connection of the host's slower."""
        self.met("b", "close")
        for name, process in self.processes.items():
            self.assertEqual(groups_of(process.pid), [], name)

    def test_shut_down(self):
        client, port = self.met("b", "shutdown")
        self.wait_for("b", f"port {port} has ended")
        self.reaches(client, self.plain_server(port))

    def test_first_contact(self):
        """Shut down, which the kernel tells of no process: asked when the two are introduced."""
        server = Program(self, "a", on_free_port(FORGETFUL))
        port = int(server.line())
        self.wait_for("a", f"listens on port {port}")
        clients = [Program(self, daemon, CLIENT) for daemon in "ab"]
        self.assertEqual(server.ask("shutdown"), "0")
        plain = self.plain_server(port)
        for client in clients:
            self.reaches(client, plain)

    def test_offered_by_a_member_that_has_closed_it(self):
        """To a broker that it speaks to by itself."""
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(line.close)
        line.connect(f"{self.system}/broker.sock")
        line = Line(line)
        self.assertEqual(line.status(JOIN), 0)
        with socket.socket() as tcp:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind(("127.0.0.1", free_port()))
            tcp.listen()
            port = tcp.getsockname()[1]
            self.assertEqual(line.status(OFFER, fd=tcp.fileno(), uuid=(5, 6)), 0)
        plain = self.plain_server(port)
        self.reaches(Program(self, "b", CLIENT), plain)
        # A member that comes later is not told of it.
        late = Line(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self.addCleanup(late.close)
        late.sock.connect(f"{self.system}/broker.sock")
        self.wait_for("system", f"port {port} has ended")
        self.assertEqual(late.status(JOIN), 0)
        late.barrier()
        self.assertEqual([m for m in late.news if m.kind == LISTENER and m.uuid_hi == 5], [])


if __name__ == "__main__":
    signal.alarm(220)
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        broker_test.BUILD = copied(os.path.abspath(sys.argv.pop(1)), directory)
        ended = unittest.main(exit=False, defaultTest=["ClosedListener"] if len(sys.argv) == 1 else None)
    sys.exit(not ended.result.wasSuccessful())
