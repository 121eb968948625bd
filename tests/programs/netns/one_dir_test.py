# one_dir_test.py - several network namespaces and one runtime directory: programs of each are accelerated among themselves.
# SPDX-License-Identifier: Apache-2.0
#
# usage: one_dir_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root or namespaces.

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

PORT = 7000
SERVER = """
import socket, sys
l = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
s, _ = l.accept()
while data := s.recv(100):
    s.sendall(data)
"""
CLIENT = """
import socket, sys
def segments():
    with open("/proc/self/net/snmp") as file:
        names, values = [line.split() for line in file if line.startswith("Tcp:")]
    return int(values[names.index("InSegs")])
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
before = segments()
for _ in range(500):
    c.sendall(b"x")
    c.recv(1)
print("by the kernel" if segments() - before > 400 else "through memory")
"""
# In a new network namespace, with what is put before each of the two programs: $1 words of it, which follow the two programs' texts.
BOTH = """
ip link set lo up
server=$1 client=$2 port=$3
shift 3
mkfifo ready
"$@" /usr/bin/python3 -c "$server" $port > ready &
read -r line < ready
rm ready
"$@" /usr/bin/python3 -c "$client" $port
wait
"""


class OneDirectory(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.mkdtemp(prefix="pstn-dir-")
        self.dir = os.path.join(self.temp, "runtime")
        os.mkdir(self.dir, 0o700)
        self.env = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "POSTERN_RUNTIME_DIR": self.dir, "HOME": self.temp}
        self.addCleanup(self.clean)
        self.wrapper = os.path.join(BUILD, "postern")
        done = subprocess.run([self.wrapper, "true"], env=self.env, capture_output=True, text=True, timeout=30)  # posternd of this namespace
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def clean(self):
        """Ends the daemons that have their files below the directory."""
        for place, _, files in os.walk(self.dir):
            if "posternd.pid" in files:
                with open(os.path.join(place, "posternd.pid"), encoding="ascii") as file:
                    try:
                        os.kill(int(file.read()), signal.SIGTERM)
                    except ProcessLookupError:
                        pass
        shutil.rmtree(self.temp, ignore_errors=True)

    def run_pair(self, before=(), within=()):
        argv = [*before, "unshare", "-n", "sh", "-c", BOTH, "both", SERVER, CLIENT, str(PORT), *within]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=60, cwd=self.temp)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.strip()

    def test_wrapped_within(self):
        """Each program is started by the wrapper, in a namespace that is not posternd's."""
        self.assertEqual(self.run_pair(within=[self.wrapper]), "through memory")
        self.assertEqual(self.run_pair(within=[self.wrapper]), "through memory")

    def test_wrapped_before(self):
        """The namespace is made by a program under the wrapper."""
        self.assertEqual(self.run_pair(before=[self.wrapper]), "through memory")

    def test_named(self):
        """Stacks have names of their namespace."""
        self.assertEqual(self.run_pair(within=[self.wrapper, "-o", "stack.name=one"]), "through memory")


if __name__ == "__main__":
    if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "true"], capture_output=True, timeout=10).returncode != 0:
        print("skipped: needs root and network namespaces")
        sys.exit(77)
    BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
