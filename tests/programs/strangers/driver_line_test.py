# driver_line_test.py - another user's lines to a card's driver: what they carry can't hold up the driver, which has everybody's packets.
# SPDX-License-Identifier: Apache-2.0
#
# usage: driver_line_test.py BUILD_DIR [-v] [TEST...]; exit 77: not root, or postern-softnic was not built or finds no card.

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

for room in ("daemon", "kit"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", room))
import netlab
from stuck_close_test import Lingers, send_with

BUILD = "build"
B = 60002
NAME = b"\0postern-softnic-vb"
HELLO, VERSION, MESSAGE_BYTES = 1, 2, 96
CARD = ["--no-huge", "-m", "64", "--no-shconf", "--no-telemetry", "--no-pci", "--vdev=net_null0"]
PATIENCE_S = 20


class Driver(unittest.TestCase):
    def setUp(self):
        netlab.call("unshare", netlab.CLONE_NEWNET)
        subprocess.run(["ip", "link", "set", "dev", "lo", "up"], check=True)
        self.top = tempfile.TemporaryDirectory(prefix="pstn-driver-")
        self.addCleanup(self.top.cleanup)
        log = open(f"{self.top.name}/log", "wb")
        self.driver = subprocess.Popen([f"{BUILD}/postern-softnic", "--interface", "vb", "--netns", f"/proc/{os.getpid()}/ns/net", "--", *CARD],
                                       stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()
        self.addCleanup(self.end)
        until = time.monotonic() + PATIENCE_S
        while not self.hello():
            if self.driver.poll() is not None or time.monotonic() > until:
                with open(f"{self.top.name}/log", encoding="utf-8", errors="replace") as file:
                    self.skipTest(f"no driver: {file.read()[-300:]}")
            time.sleep(0.05)

    def end(self):
        self.driver.kill()
        self.driver.wait()

    def hello(self):
        """Whether it answers a posternd."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line, contextlib.suppress(ConnectionRefusedError):
            line.settimeout(PATIENCE_S)
            line.connect(NAME)
            line.send(struct.pack("=II", VERSION, HELLO) + bytes(MESSAGE_BYTES - 8))
            return len(line.recv(1000)) == MESSAGE_BYTES
        return False

    def test_what_takes_long_to_close(self):
        """It comes with a line that the driver does not take, in a message that it does not read."""
        lingers = Lingers()
        sockets = [lingers.make() for _ in range(4)]
        os.kill(self.driver.pid, signal.SIGSTOP)  # so that the message is there before the line is looked at
        child = os.fork()
        if child == 0:
            os.setresuid(B, B, B)
            line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            line.connect(NAME)
            send_with(line, b"x", sockets)
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        for one in sockets:
            os.close(one.detach())  # the last close is the driver's
        os.kill(self.driver.pid, signal.SIGCONT)
        self.assertTrue(self.hello(), "the driver waits for another user's socket")


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: root makes other users")
        sys.exit(77)
    signal.alarm(100)
    BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
