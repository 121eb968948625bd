# log_test.py - the log of a posternd in the background: what others cause to be written there has a bound.
# SPDX-License-Identifier: Apache-2.0
#
# usage: log_test.py BUILD_DIR [-v] [TEST...]

import os
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

BUILD = "build"
LIMIT = 1 << 20
ROUNDS, LINES = 60, 500  # more than two files of lines


class Log(unittest.TestCase):
    def start(self, *options):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        place = f"{temp.name}/run"
        subprocess.run([f"{BUILD}/posternd", "--runtime-dir", place, "--idle-sec", "0", "--broker", "", *options], check=True, timeout=30)
        with open(f"{place}/posternd.pid", encoding="ascii") as file:
            self.addCleanup(os.kill, int(file.read()), signal.SIGKILL)
        return place

    @staticmethod
    def mistakes(place, count):
        """Each is told of in a line."""
        lines = []
        for _ in range(count):
            lines.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            lines[-1].connect(f"{place}/posternd.sock")
            lines[-1].send(b"malformed")
        for line in lines:
            line.settimeout(20)
            assert line.recv(1) == b""
            line.close()

    def test_a_file_and_the_one_before_it(self):
        place = self.start("--verbose")
        for _ in range(ROUNDS):
            self.mistakes(place, LINES)
        sizes = {name: os.stat(f"{place}/{name}").st_size for name in os.listdir(place) if "log" in name}
        self.assertEqual(set(sizes), {"posternd.log", "posternd.log.old"}, sizes)
        self.assertTrue(all(size <= LIMIT + 4096 for size in sizes.values()), sizes)

    def test_no_kind_of_line_hides_another(self):
        place = self.start()
        self.mistakes(place, LINES)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(f"{place}/posternd.sock")
            line.send(bytes([99, 0, 0, 0]) + bytes(116))  # a version that there is not
            line.settimeout(20)
            while line.recv(1000):
                pass
        with open(f"{place}/posternd.log", encoding="utf-8") as file:
            text = file.read()
        self.assertIn("protocol version 99", text)
        self.assertLess(text.count("malformed"), LINES // 2)


if __name__ == "__main__":
    BUILD = os.path.abspath(sys.argv.pop(1))
    signal.alarm(100)
    unittest.main()
