# confined_test.py - what a daemon has given up by the time that it serves: capabilities, new privileges, and system calls, which this test
# makes in the running daemons (by ptrace) and sees refused.
# SPDX-License-Identifier: Apache-2.0
#
# usage: confined_test.py BUILD_DIR [-v] [TEST...]
# Root runs it: root's posternd, another user's, the broker. Exit 77: not root, or a machine whose registers this test does not know.

import ctypes
import errno
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from broker_test import copied
from trespass_test import A, LIBC, become

BUILD = "build"
CAPS = {"DAC_READ_SEARCH": 2, "KILL": 5, "SETGID": 6, "SETUID": 7, "NET_ADMIN": 12, "SYS_PTRACE": 19}
# x86-64
R10, RAX, RDX, RSI, RDI, ORIG_RAX, RIP = 7, 10, 12, 13, 14, 15, 16
CALLS = {"ptrace": (101, 0, 0), "process_vm_readv": (310, 1, 0), "mount": (165, 0, 0), "userfaultfd": (323, 0, 0), "io_uring_setup": (425, 1, 0),
         "init_module": (175, 0, 0), "bpf": (321, 0, 0), "unshare": (272, 0x40000000, 0), "setns": (308, 0, 0), "keyctl": (250, 0, 0),
         "socket(AF_PACKET)": (41, 17, 3), "socket(AF_ALG)": (41, 38, 5), "open_by_handle_at": (304, 0, 0), "pidfd_getfd": (438, 0, 0)}
PROGRAMS = {"execve": (59, 0, 0), "execveat": (322, 0, 0)}
GETPID = 39
PTRACE_SINGLESTEP, PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_ATTACH, PTRACE_DETACH = 9, 12, 13, 16, 17
Registers = ctypes.c_ulonglong * 27


def ptrace(request, pid, data=None):
    LIBC.ptrace.restype = ctypes.c_long
    result = LIBC.ptrace(ctypes.c_long(request), ctypes.c_long(pid), None, ctypes.byref(data) if data is not None else None)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")


def calls_in(pid, calls):
    """{name: what the call returns}, each made by the process's main thread, which sleeps in a call of its own now."""
    ptrace(PTRACE_ATTACH, pid)
    os.waitpid(pid, 0)
    saved, answers = Registers(), {}
    ptrace(PTRACE_GETREGS, pid, saved)
    for name, (number, first, second) in calls.items():
        registers = Registers(*saved)
        registers[RAX], registers[RDI], registers[RSI], registers[RDX], registers[R10] = number, first, second, 0, 0
        registers[ORIG_RAX] = 2**64 - 1  # no restart of what it slept in
        registers[RIP] = saved[RIP] - 2  # the instruction by which it went to sleep
        ptrace(PTRACE_SETREGS, pid, registers)
        ptrace(PTRACE_SINGLESTEP, pid)
        os.waitpid(pid, 0)
        ptrace(PTRACE_GETREGS, pid, registers)
        answers[name] = ctypes.c_longlong(registers[RAX]).value
    saved[RAX], saved[ORIG_RAX] = 2**64 - errno.EINTR, 2**64 - 1
    ptrace(PTRACE_SETREGS, pid, saved)
    ptrace(PTRACE_DETACH, pid)
    return answers


class Confined(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn-confined-")
        os.chmod(self.top, 0o755)
        self.addCleanup(shutil.rmtree, self.top)

    def start(self, uid, *args):
        place = f"{self.top}/run"
        os.mkdir(place, 0o700)
        os.chown(place, uid, uid)
        with open(f"{self.top}/log", "w", encoding="utf-8") as log:
            daemon = subprocess.Popen([f"{BUILD}/confined-try", "--foreground", "--verbose", "--runtime-dir", place, *args], stderr=log,
                                      preexec_fn=lambda: become(uid) if uid else None)
        self.addCleanup(daemon.wait)
        self.addCleanup(daemon.kill)
        until = time.monotonic() + 20
        while "ready in" not in self.log():
            self.assertLess(time.monotonic(), until, self.log())
            time.sleep(0.01)
        time.sleep(0.2)  # it sleeps in epoll_wait() by then; if not, getpid() fails below
        return daemon.pid

    def log(self):
        with open(f"{self.top}/log", encoding="utf-8") as file:
            return file.read()

    def threads(self, pid):
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/status", encoding="utf-8", errors="replace") as file:
                yield tid, dict(re.findall(r"^(\w+):\s*(.*)$", file.read(), re.M))

    def confined(self, pid, capabilities, calls):
        for tid, status in self.threads(pid):
            self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"), tid)
            if int(tid) == pid:
                for kind in ("CapEff", "CapPrm"):
                    self.assertEqual(int(status[kind], 16), sum(1 << CAPS[name] for name in capabilities), kind)
                self.assertEqual(int(status["CapInh"], 16) | int(status["CapAmb"], 16), 0)
        answers = calls_in(pid, {"getpid": (GETPID, 0, 0), **calls})
        self.assertEqual(answers.pop("getpid"), pid)
        self.assertEqual(answers, {name: -errno.EPERM for name in calls})
        for tid, status in self.threads(pid):
            self.assertNotIn(status["State"][0], "tT", tid)

    def test_an_ordinary_users_posternd(self):
        self.confined(self.start(A, "--idle-sec", "0", "--broker", ""), [], CALLS)

    def test_roots_posternd(self):
        pid = self.start(0, "--idle-sec", "0", "--broker", "")
        self.confined(pid, ["SYS_PTRACE", "NET_ADMIN", "SETUID", "SETGID", "KILL", "DAC_READ_SEARCH"], CALLS)

    def test_broker(self):
        pid = self.start(0, "--system", "--syn-option", "off")
        self.addCleanup(subprocess.run, ["umount", f"{self.top}/run/bells"], stderr=subprocess.DEVNULL, check=False)
        self.confined(pid, ["SYS_PTRACE", "NET_ADMIN"], {**CALLS, **PROGRAMS})
        # PROT_READ | PROT_WRITE | PROT_EXEC, where the kernel knows PR_SET_MDWE (66: PR_GET_MDWE).
        if LIBC.prctl(66, 0, 0, 0, 0) >= 0:
            self.assertEqual(calls_in(pid, {"prctl": (157, 66, 0)})["prctl"], 1)

    def unit(self, name):
        unit = f"{self.top}/postern-try.service"
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"../../../controlplane/posternd/{name}.service.in")
        with open(source, encoding="utf-8") as file, open(unit, "w", encoding="utf-8") as out:
            out.write(file.read().replace("@posternd@", "/bin/true"))
        return unit

    def test_unit_files(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        for name in ("postern", "postern-bells", "posternd"):
            with self.subTest(unit=name):
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", self.unit(name)], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, [line for line in done.stderr.splitlines() if "postern-try" in line]), (0, []))
        # Of 100, the less the better; what runs as root and sees other users' processes is never at 0.
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=42", "--no-pager", self.unit("postern")],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:])

    def test_the_doorbells_are_made_before_the_sandbox(self):
        place = f"{self.top}/run"
        made = lambda: subprocess.run([f"{BUILD}/confined-try", "--system", "--make-bells", "--runtime-dir", place], capture_output=True,
                                      text=True, timeout=60, check=False)
        self.addCleanup(subprocess.run, ["umount", f"{place}/bells"], stderr=subprocess.DEVNULL, check=False)
        for _ in range(2):  # once is enough, and another time does no harm
            done = made()
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            self.assertEqual(sum(f" {place}/bells " in line for line in file), 1)
        # In mounts of its own that do not come back, as a unit's with ProtectSystem, the broker enters what is there.
        net = os.stat(f"{place}/bells").st_ino
        self.assertNotEqual(net, os.stat("/proc/self/ns/net").st_ino)
        with open(f"{self.top}/log", "w", encoding="utf-8") as log:
            broker = subprocess.Popen(["unshare", "--mount", "--propagation", "slave", f"{BUILD}/confined-try", "--system", "--foreground", "--verbose",
                                       "--syn-option", "off", "--runtime-dir", place], stderr=log)
        self.addCleanup(broker.wait)
        self.addCleanup(broker.kill)
        until = time.monotonic() + 20
        while "ready in" not in self.log():
            self.assertLess(time.monotonic(), until, self.log())
            time.sleep(0.01)
        spaces = {os.stat(f"/proc/{broker.pid}/task/{tid}/ns/net").st_ino for tid in os.listdir(f"/proc/{broker.pid}/task")}
        self.assertIn(net, spaces)


if __name__ == "__main__":
    if os.getuid() != 0 or platform.machine() != "x86_64":
        print("skipped: it needs root and an x86-64")
        sys.exit(77)
    signal.alarm(100)
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        BUILD = copied(os.path.abspath(sys.argv.pop(1)), directory)
        os.rename(f"{BUILD}/posternd", f"{BUILD}/confined-try")  # what is refused to it is no mistake of posternd's (refused_calls.py)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
