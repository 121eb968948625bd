# lost_descriptor_test.py - a process that can open nothing more loses what a message brings: the message is refused, the line stays.
# SPDX-License-Identifier: Apache-2.0
#
# usage: lost_descriptor_test.py BUILD_DIR [-v] [TEST...]
# The kernel drops a descriptor for which the receiver has no number left (MSG_CTRUNC). Here each receiver in turn is one: the broker,
# a daemon, a program.

import os
import resource
import signal
import sys
import tempfile
import unittest

import broker_test
import posternview
from broker_test import CLIENT, SERVER, Broker, Program

# Its socket is there before it can open nothing more.
POOR_CLIENT = """
import resource, socket, sys
files = resource.getrlimit(resource.RLIMIT_NOFILE)
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "connect":
        s = socket.socket()
        if "poor" in rest: resource.setrlimit(resource.RLIMIT_NOFILE, (3, files[1]))
        s.connect(("127.0.0.1", int(rest.split()[0])))
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        print("ok", flush=True)
    if word == "send": s.sendall(rest.encode()); print("ok", flush=True)
    if word == "recv": print(s.recv(65536).decode() or "EOF", flush=True)
"""


class LostDescriptor(Broker):
    def poor(self, name):
        """From now on that daemon can open nothing. Returns what ends that."""
        pid = self.processes[name].pid
        files = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, files[1]))
        return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, files)

    def no_line_was_cut(self):
        for name in ("a", "b"):
            self.assertEqual(self.log(name).count("joined"), 1, self.log(name))
            self.assertNotIn("malformed", self.log(name))
        self.assertNotIn("malformed", self.log("system"))

    def is_accelerated(self, server, port):
        client = Program(self, "b", CLIENT, "--strict")
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client)

    def test_a_broker(self):
        rich = self.poor("system")
        self.server()
        self.wait_for("a", "known to this user only: Too many open files")
        self.wait_for("system", "is lost")
        rich()
        server, port = self.server()
        self.is_accelerated(server, port)
        self.no_line_was_cut()

    def test_a_daemon_of_another_user(self):
        server, port = self.server()
        rich = self.poor("a")
        client = Program(self, "b", CLIENT)
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.wait_for("a", "is lost")
        rich()
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client)
        self.is_accelerated(server, port)
        self.no_line_was_cut()

    def test_ones_own_daemon(self):
        program = Program(self, "a", SERVER)
        self.wait_for("a", f"listens on port {program.line()}")
        rich = self.poor("a")
        second = Program(self, "a", SERVER)  # its stack can't be had: it serves as the kernel has it
        port = int(second.line())
        client = Program(self, "b", CLIENT)
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.assertEqual(second.ask("accept"), "accepted")
        self.echo(second, client)
        rich()
        server, port = self.server()
        self.is_accelerated(server, port)
        self.no_line_was_cut()

    def test_a_program(self):
        server, port = self.server()
        client = Program(self, "a", POOR_CLIENT)
        env = dict(os.environ, POSTERN_RUNTIME_DIR=self.dirs["a"])

        def path():
            own = [s for s in posternview.sockets(POSTERNCTL, env=env) if s["pid"] == client.process.pid]
            return [(s["path"], s["reason"]) for s in own]

        self.assertEqual(client.ask(f"connect {port} poor"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client)
        self.assertEqual(path(), [("kernel", "no-descriptor")])
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client)
        self.assertEqual(path(), [("same-host", "")])


if __name__ == "__main__":
    signal.alarm(220)
    POSTERNCTL = os.path.abspath(f"{sys.argv[1]}/posternctl")
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        broker_test.BUILD = broker_test.copied(os.path.abspath(sys.argv.pop(1)), directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
