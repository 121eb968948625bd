# named_stack_test.py - programs without a common parent that share a stack by its name (option stack.name), and an interface with it.
# SPDX-License-Identifier: Apache-2.0
#
# usage: named_stack_test.py BUILD_DIR [-v] [TEST...]; exit 77 as wire_test.py.

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import wire_test
import wirekit
from netlab import V4
from wire_test import content
from wirekit import exchange

NAMED = ["vi=vb", "stack.name=web"]


class NamedStackTest(wirekit.WireTest):
    def setUp(self):
        super().setUp()
        self.start_daemon("b")

    def server(self):
        """One more program of the name, on a port of its own, which the interface brings it."""
        program = self.program(options=NAMED)
        self.port += 1
        self.echo_server(program)
        self.exchange_at(self.port)
        return program

    def exchange_at(self, port):
        """Without the kernel's part."""
        before = self.lab.segments("b")
        with self.new_socket("a") as sock:
            sock.connect((V4["b"], port))
            exchange(sock, content(100000))
        self.assertEqual(self.lab.segments("b"), before, f"the kernel's TCP had a part in port {port}")

    def stacks(self):
        shown = subprocess.run([f"{self.build}/posternctl", "status", "--json"], capture_output=True, text=True, check=True,
                               env=self.environment("b"))
        return json.loads(shown.stdout)["stacks"]

    def stack_of(self, program):
        """None: posternd knows of none."""
        return next((s["id"] for s in self.stacks() if any(p["pid"] == program.pid for p in s["processes"])), None)

    def test_shared(self):
        """The program that is left keeps the interface, and the next one of the name has it, too."""
        first, second = self.server(), self.server()
        self.exchange_at(self.port - 1)
        self.assertIsNotNone(self.stack_of(first))
        self.assertEqual(self.stack_of(first), self.stack_of(second))
        with self.connected() as kept:
            first.kill()
            exchange(kept, content(100000))
        self.exchange_at(self.port)
        third = self.server()
        self.assertEqual(self.stack_of(third), self.stack_of(second))
        # They reach each other without a packet.
        third.do("c = socket.create_connection((HOST, PORT)); c.sendall(b'hello')", HOST=V4["b"], PORT=self.port - 1)
        self.assertEqual(third.get("c.recv(5, socket.MSG_WAITALL).decode()"), "hello")
        self.assertIn(("ESTAB", "intra-stack"), [(s["state"], s["path"]) for s in self.sockets(third)["sockets"]])

    def test_all_killed(self):
        """The name is free for a new stack when all programs that had it have gone."""
        first = self.server()
        was = self.stack_of(first)
        first.kill()
        second = self.server()  # as long as a keeper has to do with the old one, it is that
        self.assertIsNotNone(self.stack_of(second))
        second.kill()
        self.until(lambda: self.stacks() == [], lambda: f"there still is one: {self.stacks()}")
        third = self.server()
        self.assertNotEqual(self.stack_of(third), was)

    def test_other_names(self):
        first = self.server()
        for options in (["stack.name=other"], ["vi=vb"]):
            other = self.program(options=options)
            other.do("s = socket.socket()")
            self.assertIsNotNone(self.stack_of(other))
            self.assertNotEqual(self.stack_of(other), self.stack_of(first))

    def test_other_namespace(self):
        """A port means another one there: that name is for that namespace's posternd to give, of which none is started here."""
        first = self.server()
        with self.lab.inside("a"):
            other = subprocess.run([f"{self.build}/postern", "-o", "stack.name=web", "/usr/bin/python3", "-c", "import socket; socket.socket()"],
                                   check=False, env=self.environment("b"), capture_output=True)
        self.assertEqual(other.returncode, 0, other.stderr)
        self.assertEqual(self.log("b").count("makes stack 'web'"), 1)
        self.assertEqual([s["id"] for s in self.stacks()], [self.stack_of(first)])
        self.exchange_at(self.port)
        self.assertIsNotNone(self.stack_of(first))

    def test_posternd_killed(self):
        """The next posternd learns the name from the program that has it."""
        first = self.server()
        self.stop_daemon("b")
        self.start_daemon("b")
        self.until(lambda: self.stack_of(first), lambda: f"it has not come back: {self.log('b')}")
        second = self.server()
        self.assertEqual(self.stack_of(first), self.stack_of(second))

    def test_without_posternd(self):
        """No process can say which stack has the name: each program is on its own, and served."""
        self.stop_daemon("b")
        program = self.program(options=NAMED)
        self.echo_server(program)
        with self.connected() as sock:
            exchange(sock, content(1000))


if __name__ == "__main__":
    wirekit.main(wire_test.missing)
