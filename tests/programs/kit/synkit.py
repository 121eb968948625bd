# synkit.py - a cgroup, a broker that attaches the SYN option to it, and a lab of two namespaces: what the tests of the SYN option share.
# SPDX-License-Identifier: Apache-2.0

import ctypes
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import netlab

TCP_SMC, EXCHANGED, MARKED = 0x50534d43, 1, 2  # lib/abi/syn_option.h
OPTION = b"\xfe\x06\xe2\xd4\xc3\xd9"
KIND, EXID = 254, OPTION[2:]
TCP_SAVE_SYN, TCP_SAVED_SYN = 27, 28
PR_CAPBSET_DROP = 24
CAP_NET_ADMIN, CAP_SYS_RESOURCE, CAP_PERFMON, CAP_BPF = 12, 24, 38, 39
ALL_CAPS = range(41)
READY_SEC = 20
NOT_HERE = ("was built without", "posternd lacks", "kernel is older", "kernel has no BTF")  # anything else is a failure
KERNEL = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def since(*version):
    """A test of what that version of Linux was the first to be able to do."""
    return unittest.skipUnless(KERNEL >= version, f"Linux {version[0]}.{version[1]} or later")


def mark(sock, value=1):
    sock.setsockopt(socket.SOL_TCP, TCP_SMC, value)


def bits(sock):
    return sock.getsockopt(socket.SOL_TCP, TCP_SMC)


def exchanged(sock):
    return bits(sock) & EXCHANGED


def options_254(segment):
    return [body for kind, body in segment.option_list() if kind == KIND]


def cgroup2_mount():
    with open("/proc/self/mounts", encoding="utf-8") as file:
        for line in file:
            _, place, kind = line.split()[:3]
            if kind == "cgroup2":
                return place
    raise netlab.Unavailable("no cgroup2 mount")


class Cgroup:
    """A cgroup of ours below the mount; with enter(), this process is in it, and all that it starts."""

    def __init__(self, parent=None):
        self.path = f"{parent.path if parent else cgroup2_mount()}/pstn-test-{os.getpid()}"
        self.home = None
        try:
            os.mkdir(self.path)
        except OSError as error:
            raise netlab.Unavailable(f"{self.path}: {error.strerror}") from error

    @staticmethod
    def move(path):
        with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")

    def enter(self):
        if self.home is None:
            with open("/proc/self/cgroup", encoding="utf-8") as file:
                name = next(line[3:].strip() for line in file if line.startswith("0::"))
            self.home = cgroup2_mount() + name
        self.move(self.path)

    def leave(self):
        self.move(self.home)

    def remove(self):
        if self.home:
            self.leave()
        for _ in range(100):  # a process that has just ended is still in it for a moment
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)
        return None


class Broker:
    def __init__(self, build, cgroup, *args, without_caps=(), home=None):
        """Serves, with the programs if self.attached; what it said is in self.text. If it does not serve, self.status is set."""
        self.temp = tempfile.TemporaryDirectory(prefix="pstn-syn-")
        command = [f"{build}/posternd", "--system", "--runtime-dir", f"{self.temp.name}/run", "--policy", f"{self.temp.name}/none",
                   "--foreground", "--verbose", "--syn-option", cgroup, *args]
        libc = ctypes.CDLL(None)

        def before():
            if home:
                Cgroup.move(home)
            for cap in without_caps:
                libc.prctl(PR_CAPBSET_DROP, cap, 0, 0, 0)

        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=before)
        self.text, self.status = "", None
        self.wait()
        self.attached = "SYN option: attached" in self.text or "SYN option: was attached" in self.text

    def wait(self):
        end = time.monotonic() + READY_SEC
        while "ready in" not in self.text:
            readable, _, _ = select.select([self.process.stderr], [], [], max(end - time.monotonic(), 0))
            data = os.read(self.process.stderr.fileno(), 65536) if readable else b""
            if not data:
                self.process.kill()
                self.status = self.process.wait()
                return
            self.text += data.decode(errors="replace")

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                seen = what_it_does(self.process.pid)
                self.process.kill()
                raise AssertionError(f"posternd does not end: {seen}; it said {self.text[-2000:]}") from None
        self.process.stderr.close()
        netlab.forget_bells(f"{self.temp.name}/run")
        self.temp.cleanup()


def what_it_does(pid):
    """Of each thread: its state, its masks of signals, the system call that it is in, and where in the kernel."""
    seen = []
    for task in sorted(os.listdir(f"/proc/{pid}/task")):
        for name in ("status", "syscall", "stack"):
            try:
                with open(f"/proc/{pid}/task/{task}/{name}", encoding="utf-8", errors="replace") as file:
                    lines = [line.strip() for line in file if name != "status" or line.startswith(("State", "Sig", "Shd"))]
            except OSError as error:
                lines = [str(error)]
            seen.append(f"{task} {name}: {' | '.join(lines)}")
    return "; ".join(seen)


class SynTest(unittest.TestCase):
    """Each test finds a broker that has attached it (setUp), an empty wire, and free ports."""

    build, lab, cgroup = "build", None, None
    port = 7000

    def setUp(self):
        self.broker = Broker(self.build, self.cgroup.path, home=self.cgroup.home)
        self.addCleanup(self.broker.stop)
        self.assertTrue(self.broker.attached, self.broker.text)
        self.lab.wire.rule = None
        self.lab.wire.seen.clear()
        self.lab.wire.errors.clear()
        SynTest.port += 40
        self.port = SynTest.port

    def tearDown(self):
        self.lab.wire.rule = None
        self.assertEqual(self.lab.wire.errors, [])

    @staticmethod
    def family(address):
        return socket.AF_INET6 if ":" in address else socket.AF_INET

    def listener(self, marked=1, address=None, side="b"):
        address = address or netlab.V4[side]
        sock = self.lab.socket(side, self.family(address))
        self.addCleanup(sock.close)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, self.port))
        if marked:
            mark(sock)
        sock.listen()
        return sock

    def client(self, marked=1, address=None, side="a"):
        sock = self.lab.socket(side, self.family(address or netlab.V4["b"]))
        self.addCleanup(sock.close)
        if marked:
            mark(sock)
        return sock

    def connect(self, listener, marked=1, client=None):
        """(client, accepted)"""
        address = listener.getsockname()[:2]
        sock = client or self.client(marked, address[0])
        sock.connect(address)
        return sock, self.accept(listener)

    def accept(self, listener):
        taken = listener.accept()[0]
        taken.settimeout(20)
        self.addCleanup(taken.close)
        return taken

    def carries(self, one, two):
        """Plain bytes both ways, and not one more."""
        for source, sink in ((one, two), (two, one)):
            source.sendall(b"twelve bytes")
            self.assertEqual(sink.recv(100), b"twelve bytes")

    def syns(self, again=False):
        """Those of the test's port; `again`: with those that were sent again, as any may be on a slow machine."""
        return self.once([s for _, s in self.lab.wire.seen if s.is_syn() and s.dport == self.port], again)

    def synacks(self, again=False):
        return self.once([s for _, s in self.lab.wire.seen if s.is_synack() and s.sport == self.port], again)

    @staticmethod
    def once(segments, again):
        first = {}
        for s in segments:
            first.setdefault((s.src, s.sport, s.dport, s.seq), s)
        return segments if again else list(first.values())


def main(*cases):
    """Runs the cases; exit 77 with a reason where nothing of the kind can be run."""
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        SynTest.build = sys.argv.pop(1)
    try:
        SynTest.lab = netlab.Lab()
        SynTest.cgroup = Cgroup()
    except netlab.Unavailable as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    status = 1
    try:
        SynTest.cgroup.enter()
        probe = Broker(SynTest.build, SynTest.cgroup.path, home=SynTest.cgroup.home)
        probe.stop()
        why = next((line for line in probe.text.splitlines() if any(part in line for part in NOT_HERE)), None)
        if not probe.attached and why:
            print(f"skipped: {why.split('posternd: ')[-1]}")
            status = 77
        else:
            suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
            names = [name for name in sys.argv[1:] if not name.startswith("-")]
            if names:
                suite = unittest.TestSuite(case(name) for name in names for case in cases if hasattr(case, name))
            result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1, warnings="ignore").run(suite)
            status = 0 if result.wasSuccessful() else 1
    finally:
        SynTest.lab.close()
        SynTest.cgroup.remove()
    sys.exit(status)
