# top_test.py - `posternctl top`: what it counts is what programs have done, and its screen does as its keys say.
# SPDX-License-Identifier: Apache-2.0
#
# usage: top_test.py BUILD_DIR [-v] [TEST...]

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

BUILD = "build"
PYTHON = "/usr/bin/python3"
CONNECTIONS, EACH = 150, 20_000
PATIENCE_S = 60

# A server that reads all there is, and a client that makes connections once it is told to, by a line.
SERVER = """
import socket, sys
s = socket.create_server(("127.0.0.1", 0), backlog=128)
print(s.getsockname()[1], flush=True)
while True:
    with s.accept()[0] as c:
        while c.recv(65536):
            pass
"""
CLIENT = f"""
import socket, sys, time
sys.stdin.readline()
for _ in range({CONNECTIONS}):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
        s.sendall(bytes({EACH}))
        s.shutdown(socket.SHUT_WR)
        s.recv(1)
    time.sleep(0.01)
print("done", flush=True)
sys.stdin.read()
"""


class Top(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn")
        self.addCleanup(shutil.rmtree, self.top, True)
        self.run_dir = f"{self.top}/run"
        self.env = {"PATH": "/usr/bin:/bin", "POSTERN_RUNTIME_DIR": self.run_dir, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        self.addCleanup(self.end_posternd)

    def end_posternd(self):
        try:
            with open(f"{self.run_dir}/posternd.pid", encoding="ascii") as file:
                os.kill(int(file.read()), signal.SIGTERM)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            pass

    def start(self, *argv):
        process = subprocess.Popen(argv, env=self.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def end():
            process.kill()
            process.communicate()

        self.addCleanup(end)
        return process

    def pair(self):
        server = self.start(f"{BUILD}/postern", PYTHON, "-c", SERVER)
        port = server.stdout.readline().strip()
        return server, self.start(f"{BUILD}/postern", PYTHON, "-c", CLIENT, port)

    def test_counts_what_programs_have_done(self):
        _, client = self.pair()
        top = self.start(f"{BUILD}/posternctl", "top", "--json", "-d", "1")
        looks = [json.loads(top.stdout.readline())]  # the client has done nothing yet
        client.stdin.write("go\n")
        client.stdin.flush()
        self.assertEqual(client.stdout.readline(), "done\n")
        for _ in range(2):  # the second began after the end
            looks.append(json.loads(top.stdout.readline()))

        def total(key):
            return sum(stack[key] * look["seconds"] for look in looks for stack in look["stacks"])

        # The first may be the kernel's, until the two programs have met: each of the others counts at both ends.
        connections = total("connections_per_sec") / 2
        self.assertGreater(connections, 0.8 * CONNECTIONS)
        self.assertLess(connections, CONNECTIONS + 0.5)
        payload = connections * EACH
        self.assertAlmostEqual(total("sent_bytes_per_sec") / payload, 1, delta=0.01)
        self.assertAlmostEqual(total("received_bytes_per_sec") / payload, 1, delta=0.01)
        self.assertEqual({stack["comm"] for stack in looks[-1]["stacks"]}, {"python3"})

    def test_text(self):
        self.pair()
        done = subprocess.run([f"{BUILD}/posternctl", "top", "-d", "1", "-n", "2"], env=self.env, check=True, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        self.assertEqual(len(re.findall(r"^Stack +User +Program ", done.stdout, re.MULTILINE)), 2, done.stdout)
        self.assertRegex(done.stdout, r"(?m)^[0-9a-f]{8}  \w+ +python3 ")

    def test_no_posternd(self):
        done = subprocess.run([f"{BUILD}/posternctl", "top", "-n", "1"], env=self.env, check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 3)
        self.assertIn("posternd is not running", done.stdout)

    def test_a_terminal_that_is_not_known(self):
        self.pair()
        status, said = self.on_terminal({**self.env, "TERM": "no-such-terminal"}, [])
        self.assertEqual(status, 1)
        self.assertIn("--batch", said)

    def test_screen(self):
        self.pair()
        status, said = self.on_terminal(self.env, [("q quit", b"c"), ("CPU", b"o"), ("open", b"q")])
        self.assertEqual(status, 0, said)

    def on_terminal(self, env, steps):
        """Runs it on one of 24 lines: each step waits for a text, then presses a key. (exit status, all that was written) Of a line that
        changes, only the part that is new is written."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(f"{BUILD}/posternctl", ["posternctl", "top", "-d", "1"], env)
        self.addCleanup(os.close, terminal)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
        said, end = "", time.monotonic() + PATIENCE_S
        fresh = ""  # since the last key
        try:
            while time.monotonic() < end:
                if not select.select([terminal], [], [], 0.1)[0]:
                    continue
                text = os.read(terminal, 65536).decode(errors="replace")
                said, fresh = said + text, fresh + text
                if steps and steps[0][0] in fresh:
                    os.write(terminal, steps.pop(0)[1])
                    fresh = ""
        except OSError:
            pass  # it has ended
        else:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.assertEqual(steps, [], said)
        return status, said


if __name__ == "__main__":
    BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
