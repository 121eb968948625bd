# trace_test.py - the trace points of libpostern.so (docs/tracing.md): the kernel's uprobes find them, and what they say is what was done.
# SPDX-License-Identifier: Apache-2.0
#
# usage: trace_test.py BUILD_DIR [-v] [TEST...]
# Exit status 77: this library has no trace points.

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

BUILD = "build"
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PYTHON = "/usr/bin/python3"
FILES = ("postern", "posternd", "libpostern.so", "postern-keeper", "postern-reaper")
MESSAGES, BYTES = 7, 1234

SERVER = """
import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
c = s.accept()[0]
while c.recv(65536):
    c.sendall(b"+")
"""
CLIENT = f"""
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range({MESSAGES}):
    c.sendall(bytes({BYTES}))
    c.recv(1)
"""


def points(library):
    """{name: [(offset in the file, arguments as the note has them)]}"""
    said = subprocess.run(["readelf", "-nlW", library], check=True, capture_output=True, text=True).stdout
    loads = [tuple(int(word, 16) for word in found) for found in re.findall(r"^  LOAD +(0x\w+) (0x\w+) 0x\w+ 0x\w+ (0x\w+)", said, re.MULTILINE)]
    found = {}
    for name, place, arguments in re.findall(r"Provider: postern\n +Name: (\w+)\n +Location: (0x\w+),.*\n +Arguments: (.*)", said):
        at = int(place, 16)
        offset = next(off + at - start for off, start, size in loads if start <= at < start + size)
        found.setdefault(name, []).append((offset, arguments.split()))
    return found


def fetch(argument):
    """The same in the language of uprobe_events, which knows registers by their names without size."""
    size, _, what = argument.partition("@")
    kind = f":{'s' if size.startswith('-') else 'u'}{abs(int(size)) * 8}"
    if what.startswith("$"):
        return f"\\{what[1:]}{kind}"
    inside = re.fullmatch(r"(-?\d*)\((%\w+)\)", what)
    register = re.sub(r"^([re])?([abcd]x|[sd]i|bp|sp)$", r"\2", (inside[2] if inside else what)[1:])
    register = re.sub(r"^(r\d+)[dwb]$", r"\1", register)
    return f"+{int(inside[1] or 0)}(%{register}){kind}".replace("+-", "-") if inside else f"%{register}{kind}"


class Trace(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn")
        self.addCleanup(shutil.rmtree, self.top, True)
        for name in FILES:  # whoever else uses the build's library is not traced
            shutil.copy(f"{BUILD}/{name}", self.top)
        self.env = {"PATH": "/usr/bin:/bin", "POSTERN_RUNTIME_DIR": f"{self.top}/run"}
        self.addCleanup(self.end_posternd)

    def end_posternd(self):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            with open(f"{self.top}/run/posternd.pid", encoding="ascii") as file:
                os.kill(int(file.read()), signal.SIGTERM)

    def start(self, code, *argv):
        process = subprocess.Popen([f"{self.top}/postern", PYTHON, "-c", code, *argv], env=self.env, text=True, stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_the_page_has_each(self):
        with open(f"{TOP}/docs/tracing.md", encoding="utf-8") as file:
            told = re.findall(r"^\| `(\w+)` \|", file.read(), re.MULTILINE)
        self.assertEqual(sorted(told), sorted(points(f"{BUILD}/libpostern.so")))

    @unittest.skipUnless(os.geteuid() == 0, "uprobes are root's")
    def test_says_what_was_done(self):
        tracing = f"{self.top}/tracing"
        os.mkdir(tracing)
        if subprocess.run(["mount", "-t", "tracefs", "tracefs", tracing], check=False, capture_output=True).returncode != 0:
            self.skipTest("no tracefs here")
        self.addCleanup(subprocess.run, ["umount", tracing], check=True)
        if not os.path.exists(f"{tracing}/uprobe_events"):
            self.skipTest("this kernel has no uprobes")
        instance, group = f"{tracing}/instances/pstn{os.getpid()}", f"pstn{os.getpid()}"
        os.mkdir(instance)
        self.addCleanup(os.rmdir, instance)
        made = []

        def order(line):
            fd = os.open(f"{tracing}/uprobe_events", os.O_WRONLY | os.O_APPEND)  # which can't seek, as Python's "a" does
            try:
                os.write(fd, f"{line}\n".encode())
            finally:
                os.close(fd)

        def end():
            for name in made:
                with open(f"{instance}/events/{group}/{name}/enable", "w", encoding="ascii") as file:
                    file.write("0")
                order(f"-:{group}/{name}")

        self.addCleanup(end)
        for point in ("connected", "accepted", "sent", "received", "closed"):
            for i, (offset, arguments) in enumerate(points(f"{self.top}/libpostern.so")[point]):
                name = f"{point}_{i}"
                order(f"p:{group}/{name} {self.top}/libpostern.so:{offset:#x} " + " ".join(f"a{n}={fetch(a)}" for n, a in enumerate(arguments)))
                made.append(name)
                with open(f"{instance}/events/{group}/{name}/enable", "w", encoding="ascii") as file:
                    file.write("1")
        server = self.start(SERVER)
        client = self.start(CLIENT, server.stdout.readline().strip())
        self.assertEqual((client.wait(60), server.wait(60)), (0, 0))
        with open(f"{instance}/trace", encoding="ascii", errors="replace") as file:
            text = file.read()
        seen = {}  # {(pid, point): [second argument]}
        for pid, name, second in re.findall(r"-(\d+) +\[.*: (\w+)_\d+: \(.*\) a0=\S+ a1=(\d+)", text):
            seen.setdefault((int(pid), name), []).append(int(second))
        # The kernel writes the host's numbers of processes, which have others in a container.
        one, other = ([pid for pid, name in seen if name == which] for which in ("connected", "accepted"))
        self.assertEqual((len(one), len(other)), (1, 1), text)
        self.assertNotEqual(one, other)
        from_client, from_server = ({name: said for (pid, name), said in seen.items() if [pid] == end} for end in (one, other))
        self.assertEqual((len(from_client["connected"]), len(from_server["accepted"])), (1, 1), text)
        self.assertEqual(sum(from_client["sent"]), MESSAGES * BYTES)
        self.assertEqual(sum(from_server["received"]), MESSAGES * BYTES)
        self.assertEqual(sum(from_client["received"]), MESSAGES)
        self.assertIn("closed", from_client)


if __name__ == "__main__":
    BUILD = os.path.abspath(sys.argv.pop(1))
    if not points(f"{BUILD}/libpostern.so"):
        print("this library has no trace points: <sys/sdt.h> (systemtap-sdt-dev) was missing when it was built")
        sys.exit(77)
    unittest.main()
