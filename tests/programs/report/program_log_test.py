# program_log_test.py - log.level and log.file: what programs, the wrapper and posternd say of themselves, and where, and that they say nothing unasked.
# SPDX-License-Identifier: Apache-2.0
#
# usage: program_log_test.py BUILD_DIR [-v] [TEST...]

import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest

import refusing_posternd

BUILD = "build"
PYTHON = sys.executable

# What the programs below begin with: connections to a port where a kernel's server listens.
START = """
import ctypes, os, socket, subprocess, sys, threading
port = int(sys.argv[1])
def connect():
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port))
"""
# A filter that allows everything: libc's syscall() enters it.
SECCOMP = """
class Step(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("steps", ctypes.POINTER(Step))]
libc = ctypes.CDLL(None)
s = socket.socket()
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(317 if os.uname().machine == "x86_64" else 277, 1, 0, ctypes.byref(Program(1, (Step * 1)(Step(6, 0, 0, 0x7fff0000))))) == 0
"""
GO_C = r"""
__asm__(".pushsection .note.go.buildid, \"a\", @note\n.long 4, 4, 4\n.ascii \"Go\\0\\0abcd\"\n.popsection\n");
int main(void) { return 0; }
"""
# In a mount namespace with a /run of its own.
JOURNAL = """
import os, socket, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True, timeout=30)
os.makedirs("/run/systemd/journal")
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.bind("/run/systemd/journal/socket")
subprocess.run(sys.argv[1:], check=True, timeout=30)
journal.settimeout(10)
print(journal.recv(65536).decode(), end="")
"""


class ProgramLog(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn")
        self.addCleanup(shutil.rmtree, self.top, True)
        self.run_dir = f"{self.top}/run"
        self.log = f"{self.top}/log"
        self.addCleanup(self.stop)
        self.env = {"PATH": "/usr/bin:/bin", "POSTERN_RUNTIME_DIR": self.run_dir, **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}}
        # The kernel's server, which is not under postern.
        self.server = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.addCleanup(self.server.close)
        self.port = self.server.getsockname()[1]

    def stop(self):
        try:
            with open(f"{self.run_dir}/posternd.pid", encoding="ascii") as file:
                os.kill(int(file.read()), signal.SIGTERM)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            pass

    def wrap(self, *args, **more):
        return subprocess.run([f"{BUILD}/postern", *args], env=self.env, text=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, **more)

    def program(self, script, *options, **more):
        return self.wrap(*options, PYTHON, "-c", START + script, str(self.port), **more)

    def lines(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read().splitlines()

    def test_nothing_unless_asked_for(self):
        done = self.program("assert connect() == 0")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_first_of_a_reason_goes_to_the_file(self):
        done = self.program("assert connect() == connect() == 0; print(os.getpid())", "-o", f"log.file={self.log}")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        line, = self.lines()
        self.assertRegex(line, rf"^\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ postern: process {int(done.stdout)} leaves to the kernel descriptor \d+ "
                               rf"to 127\.0\.0\.1:{self.port}: no-listener: ")
        self.assertEqual(stat.S_IMODE(os.stat(self.log).st_mode), 0o600)

    def test_a_relative_file_is_that_of_the_wrappers_directory(self):
        self.program("os.chdir('/'); assert connect() == 0", "-o", "log.file=log", cwd=self.top)
        self.assertEqual(len(self.lines()), 1)

    def test_level(self):
        for level, count in (("none", 0), ("error", 0), ("warn", 1), ("debug", 2)):
            done = self.program("assert connect() == 0", "-o", f"log.level={level}")
            self.assertEqual(len(done.stderr.splitlines()), count, (level, done.stderr))

    def test_banner(self):
        done = self.wrap("-v", "true")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertRegex(done.stderr, f"^postern: acceleration is on: level 0.*; posternd [0-9]+ in {self.run_dir}; no broker; no VI; log at level info to stderr\n$")
        self.assertIn("acceleration is off: accel=off", self.wrap("-v", "-o", "accel=off", "true").stderr)
        self.assertEqual(self.wrap("true").stderr, "")

    def test_strict_says_why_beside_the_error(self):
        done = self.program("import errno; assert connect() == errno.ECONNREFUSED", "--strict")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"may not connect (strict) to 127.0.0.1:{self.port}: no-listener: ", done.stderr)
        self.assertEqual(self.program("connect()", "--strict", "-o", "log.level=none").stderr, "")

    def compiled(self, name, source, *options):
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not compiler:
            self.skipTest("no C compiler")
        path = f"{self.top}/{name}"
        with open(f"{path}.c", "w", encoding="ascii") as file:
            file.write(source)
        subprocess.run([compiler, *options, "-o", path, f"{path}.c"], check=True, timeout=60)
        return path

    def test_strict_and_a_program_out_of_reach(self):
        static = self.compiled("static", "int main(void) { return 0; }", "-static")
        go = self.compiled("go", GO_C)
        narrow = f"{self.top}/narrow"
        with open(narrow, "wb") as file:
            file.write(b"\x7fELF\x01\x01\x01" + bytes(100))
        os.chmod(narrow, 0o755)
        for path, why in ((static, "is statically linked"), (go, "is a Go program"), (narrow, "is not a 64-bit program")):
            self.assertEqual(self.wrap("-o", "log.level=none", path).stderr.count(why), 0)
            said = self.wrap("--strict", path).stderr.splitlines()[0]
            self.assertIn(f"{path} {why}", said)
            self.assertIn(f"{path} {why}", self.wrap("-v", path).stderr)
        if os.geteuid() == 0:
            own = shutil.copy(go, f"{self.top}/set")
            os.chown(own, 65534, 65534)
            os.chmod(own, 0o4755)
            self.assertIn("is set-user-ID", self.wrap("--strict", own).stderr)

    def test_children(self):
        """A child of fork repeats nothing, and says what is new; a program that it starts begins anew."""
        done = self.program("""
assert connect() == 0
if os.fork() == 0:
    assert connect() == 0
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, 36, 1) if os.geteuid() == 0 else s.setsockopt(socket.IPPROTO_TCP, 30, 1)
    os._exit(0)
assert os.wait()[1] == 0
subprocess.run([sys.executable, "-c", "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])))", str(port)], check=True)
""", "-o", f"log.file={self.log}")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = self.lines()
        self.assertEqual(len({line.split()[3] for line in lines}), 3, lines)  # three processes
        self.assertEqual([line.count("no-listener") for line in lines], [1, 0, 1], lines)

    def test_threads_say_it_once(self):
        done = self.program("""
gate = threading.Barrier(16)
def run():
    gate.wait()
    assert connect() == 0
threads = [threading.Thread(target=run) for _ in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
""", "-o", f"log.file={self.log}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.lines()), 1)

    def test_lines_have_a_rate(self):
        done = self.program("for _ in range(2000): connect()", "--strict", "-o", f"log.file={self.log}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(len(self.lines()), 1000)

    def test_number_two_of_another_file_is_not_written(self):
        """Nor does a log use, or keep, a low number."""
        done = self.program("""
os.close(2)
data = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT, 0o600)
assert data == 2
assert connect() == 0
spare = os.open("/dev/null", os.O_RDONLY)
assert spare == 3, spare
assert os.fstat(2).st_size == 0
""".replace("sys.argv[2]", repr(f"{self.top}/data")), "-o", "log.level=warn")
        self.assertEqual(done.returncode, 0)

    def test_an_end_of_the_reader_is_no_signal(self):
        reader, writer = os.pipe()
        os.close(reader)
        command = [f"{BUILD}/postern", "-o", "log.level=warn", PYTHON, "-c",
                   START + "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); assert connect() == 0; print('survived')", str(self.port)]
        done = subprocess.run(command, env=self.env, text=True, timeout=60, stdout=subprocess.PIPE, stderr=writer, check=False)
        os.close(writer)
        self.assertEqual((done.returncode, done.stdout), (0, "survived\n"))

    def test_journal(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        command = [f"{BUILD}/postern", "-o", "log.file=journal", PYTHON, "-c", START + "assert connect() == 0", str(self.port)]
        done = subprocess.run(["unshare", "--mount", "--propagation", "private", PYTHON, "-c", JOURNAL, *command], env={**self.env, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                              text=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        fields = dict(line.split("=", 1) for line in done.stdout.splitlines())
        self.assertEqual((fields["SYSLOG_IDENTIFIER"], fields["PRIORITY"]), ("postern", "4"))
        self.assertIn("no-listener", fields["MESSAGE"])

    def test_a_sandbox_is_the_reason(self):
        done = self.program(SECCOMP + "assert s.connect_ex(('127.0.0.1', port)) == 0", "-o", f"log.file={self.log}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sandbox: ", self.lines()[0])

    def test_a_posternd_of_another_version_is_the_reason(self):
        os.mkdir(self.run_dir, 0o700)
        listener = refusing_posternd.start(self, self.run_dir)
        done = self.program("assert connect() == 0", "-o", f"log.file={self.log}", "-o", "daemon.spawn=off")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.count(": version: ") for line in self.lines()], [1], self.lines())
        listener.shutdown(socket.SHUT_RDWR)

    def posternds_log(self):
        with open(f"{self.run_dir}/posternd.log", encoding="utf-8") as file:
            return file.read()

    def test_posternd_tells_of_members_and_link_groups(self):
        done = self.program("""
server = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    os.execv(sys.executable, [sys.executable, "-c", "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.send(b'x'); s.recv(1)",
                              str(server.getsockname()[1])])
with server.accept()[0] as s:
    assert s.recv(1) == b"x"
os.wait()
""")
        self.assertEqual(done.returncode, 0, done.stderr)
        client = subprocess.Popen([f"{BUILD}/postern", PYTHON, "-c", "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()[0].recv(1)"],
                                  env=self.env, text=True, stdout=subprocess.PIPE)
        with client:
            port = client.stdout.readline().strip()
            self.assertEqual(self.wrap(PYTHON, "-c", f"import socket; socket.create_connection(('127.0.0.1', {port})).send(b'x')").returncode, 0)
            client.wait(timeout=30)
        while not all(what in self.posternds_log() for what in ("nobody is left", "reaper has done")):
            time.sleep(0.05)  # until the alarm
        with open(f"{self.run_dir}/posternd.pid", encoding="ascii") as file:
            pid = int(file.read())
        pidfd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        self.assertTrue(select.select([pidfd], [], [], 30)[0])  # the last lines are written before its end
        os.close(pidfd)
        text = self.posternds_log()
        for what in ("ready in", "joins, slot", "link group", "ends, since its", "leaving"):
            self.assertIn(what, text)


if __name__ == "__main__":
    BUILD = os.path.abspath(sys.argv.pop(1))
    signal.alarm(200)
    unittest.main()
