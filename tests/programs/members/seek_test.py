# seek_test.py - programs of one user that look for listeners of another's: their daemon asks the broker for a port, once, and hears of it.
# SPDX-License-Identifier: Apache-2.0
#
# usage: seek_test.py BUILD_DIR [-v] [TEST...]

import os
import signal
import socket
import sys
import unittest

for room in ("daemon", "kit"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", room))
import broker_test
import daemon_test
from broker_test import CLIENT, SERVER, Broker, Program
from daemon_test import Client
from memberkit import family
from readable import readable


class Seeks(Broker):
    def is_listed(self, daemon, port):
        client = Client(f"{self.dirs[daemon]}/posternd.sock")
        try:
            return any(str(listener["local"]).endswith(f":{port}") for listener in client.report()["listeners"])
        finally:
            client.sock.close()

    def until_listed(self, daemon, port):
        self.assertTrue(daemon_test.until(lambda: self.is_listed(daemon, port), 20), f"{daemon} does not know of port {port}")

    def test_what_comes_later(self):
        """At a port that was sought in vain, a server comes: the daemon is told, and its programs find it."""
        server, port = self.server()
        self.assertEqual(server.ask("unlisten"), "closed")
        client = Program(self, "b", CLIENT, "--strict")
        self.assertEqual(client.ask(f"connect {port}"), "ConnectionRefusedError")
        self.assertFalse(self.is_listed("b", port))
        server = Program(self, "a", SERVER.replace('("127.0.0.1", 0)', f'("127.0.0.1", {port})'))
        self.assertEqual(server.line(), str(port))
        self.until_listed("b", port)
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client)
        self.assertEqual(server.ask("unlisten"), "closed")  # which has waited until b has heard of it
        self.assertFalse(self.is_listed("b", port))

    def test_nothing_is_told_unasked(self):
        _, port = self.server()
        client = Program(self, "b", CLIENT, "--strict")
        _, other = self.server()
        self.assertEqual(client.ask(f"connect {other}"), "ok")
        self.assertFalse(self.is_listed("b", port))
        self.assertTrue(self.is_listed("b", other))

    @unittest.skipIf(os.geteuid() != 0, "a's user may not look into b's directory")
    def test_a_library_that_does_not_ask(self):
        """As programs have it that were started before posternd was upgraded: their daemon hears of all."""
        server = Program(self, "b", SERVER)
        port = int(server.line())
        self.wait_for("b", f"listens on port {port}")
        self.assertFalse(self.is_listed("a", port))
        family(self, f"{self.dirs['a']}/posternd.sock")
        self.until_listed("a", port)
        # Of a broker that comes anew, too.
        self.kill("system")
        self.start_broker()
        self.wait_for("a", "joined", 2)
        self.until_listed("a", port)

    def test_a_broker_that_is_stopped(self):
        """What is not known of it is the kernel's; own servers are as they were."""
        own = Program(self, "b", SERVER)
        port = int(own.line())
        self.wait_for("b", f"listens on port {port}")
        client = Program(self, "b", CLIENT)
        with socket.create_server(("127.0.0.1", 0)) as kernels:
            os.kill(self.processes["system"].pid, signal.SIGSTOP)
            self.assertEqual(client.ask(f"connect {port}"), "ok")
            self.assertEqual(own.ask("accept"), "accepted")
            self.echo(own, client)
            self.assertEqual(client.ask(f"connect {kernels.getsockname()[1]}"), "ok")
            kernels.accept()[0].close()


if __name__ == "__main__":
    signal.alarm(220)
    daemon_test.load_layout()
    with readable(sys.argv.pop(1)) as broker_test.BUILD:
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
