# trespass_test.py - another user, who knows every name and number there is, reaches nothing of a user's Postern: not the memory, not the
# daemon, not by the broker; and what it can reach, doorbells, it can only ring in vain. (ptrace is excluded: it allows everything.)
# SPDX-License-Identifier: Apache-2.0
#
# usage: trespass_test.py BUILD_DIR [-v] [TEST...]
# Root runs it: user A has a daemon, a server and a client that are connected; user B tries. Exit 77: not root.

import array
import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from broker_test import ALIVE, HAVE_LINK, JOIN, LINK, MSG, OFFER, copied

A, B = 60001, 60002
UNOFFER, LINK_END = 16, 21
HELLO, KINDS = 1, 30
STACK_BYTES_TRIED = (4096, 1 << 20)
NUMBERS = itertools.count(1)
LIBC = ctypes.CDLL(None, use_errno=True)
SYS_PROCESS_VM_READV, SYS_PROCESS_VM_WRITEV, SYS_KCMP, SYS_PIDFD_OPEN, SYS_PIDFD_GETFD, SYS_PROCESS_MADVISE = 310, 311, 312, 434, 438, 440
F_ADD_SEALS, F_SEALS = 1033, 7  # SEAL | SHRINK | GROW

SERVER = """
import select, socket, sys
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(64)
print(l.getsockname()[1], flush=True)
ep = select.epoll(); ep.register(l, select.EPOLLIN); held = {}
while True:
    for fd, _ in ep.poll():
        if fd == l.fileno():
            s = l.accept()[0]; held[s.fileno()] = s; ep.register(s, select.EPOLLIN)
            continue
        data = held[fd].recv(65536)
        if data: held[fd].sendall(data)
        else: held.pop(fd).close()
"""
CLIENT = """
import select, socket, sys, time
held = []
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    try:
        if word == "connect": held.append(socket.create_connection(("127.0.0.1", int(rest)), 20)); print("ok", flush=True)
        if word == "rate":
            end, n = time.monotonic() + float(rest), 0
            held[-1].settimeout(20)
            while time.monotonic() < end:
                text = b"%d" % n; held[-1].sendall(text); n += 1
                if held[-1].recv(100) != text: print("wrong", flush=True); break
                time.sleep(0.0005)
            print(n, flush=True)
        if word == "epoll":
            ep = select.epoll(); ep.register(held[-1], select.EPOLLIN); held[-1].sendall(b"x"); print(len(ep.poll(10)), flush=True); held[-1].recv(10); ep.close()
    except OSError as e: print(type(e).__name__, e, flush=True)
"""


def become(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def refused(call, *args, **kw):
    """The errno with which a call fails; 0: it succeeded."""
    try:
        result = call(*args, **kw)
    except OSError as error:
        return error.errno
    if isinstance(result, int) and result < 0:
        return ctypes.get_errno()
    return 0


def syscall(number, *args):
    return LIBC.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])


def abstract_name(path):
    value = 0xcbf29ce484222325
    for byte in path.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"\0postern-ctl-{value:016x}"


def message(kind, seq=None, **fields):
    if seq is None:
        seq = next(NUMBERS)
    f = {"a": 0, "b": 0, "c": 0, "uuid": (0, 0), "peer": (0, 0), "id": (0, 0), **fields}
    return MSG.pack(4, kind, seq, 0, f["a"], f["b"], f["c"], 0, *f["uuid"], b"", *f["peer"], *f["id"], 0, 0)


def ask(line, data, fd=None):
    """Status of the answer, or "cut off", or "silent"."""
    try:
        line.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else [])
        while len(answer := line.recv(MSG.size)) == MSG.size:
            if MSG.unpack(answer)[2] == MSG.unpack(data)[2]:  # others are the broker's own news
                return MSG.unpack(answer)[3]
    except (TimeoutError, socket.timeout):
        return "silent"
    except OSError:
        pass
    return "cut off"


def forged_memfd(size):
    fd = os.memfd_create("postern-stack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, struct.pack("=IIQ", 0x6b6e7473, 5, size), 0)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEALS)
    return fd


class Trespass(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.mkdtemp(prefix="pstn-trespass-")
        os.chmod(cls.top, 0o755)
        cls.processes = []
        cls.system = f"{cls.top}/system"
        cls.dirs = {uid: f"{cls.top}/{uid}" for uid in (A, B)}
        # Not able to give out doorbells in a network namespace of their own: nobody would see their names then.
        cls.start(0, ["setpriv", "--bounding-set", "-sys_admin", f"{BUILD}/posternd", "--system", "--foreground", "--verbose", "--runtime-dir",
                      cls.system, "--syn-option", "off"], "system")
        cls.wait_for("system", "ready in")
        for uid, path in cls.dirs.items():
            os.mkdir(path, 0o700)
            os.chown(path, uid, uid)
            daemon = cls.start(uid, [f"{BUILD}/posternd", "--foreground", "--verbose", "--idle-sec", "0", "--runtime-dir", path, "--broker",
                                     f"{cls.system}/broker.sock"], str(uid))
            cls.wait_for(str(uid), "joined")
            if uid == A:
                cls.daemon = daemon
        cls.server = cls.program(A, SERVER)
        cls.port = int(cls.server.stdout.readline())
        cls.wait_for(str(A), f"listens on port {cls.port}")
        cls.client = cls.program(A, CLIENT, "--strict")
        assert cls.command(cls.client, f"connect {cls.port}") == "ok"
        assert int(cls.command(cls.client, "rate 0.3")) > 0
        cls.victims = [cls.server.pid, cls.client.pid, cls.daemon.pid]
        text = cls.log(str(A))
        cls.stacks = sorted({(int(s[:16], 16), int(s[16:], 16)) for s in re.findall(r"stack ([0-9a-f]{32})", text.replace("-", ""))})
        assert len(cls.stacks) >= 2, text

    @classmethod
    def tearDownClass(cls):
        for process in reversed(cls.processes):
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
        subprocess.run(["rm", "-rf", cls.top], check=False)

    @classmethod
    def start(cls, uid, argv, log=None, **kw):
        with open(f"{cls.top}/{log}.log", "a", encoding="utf-8") if log else open(os.devnull, "w", encoding="utf-8") as err:
            process = subprocess.Popen(argv, stderr=err, preexec_fn=lambda: become(uid) if uid else None, cwd="/", **kw)
        cls.processes.append(process)
        return process

    @classmethod
    def program(cls, uid, text, *options):
        return cls.start(uid, [f"{BUILD}/postern", *options, "/usr/bin/python3", "-c", text], "programs", text=True, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, env=dict(os.environ, POSTERN_RUNTIME_DIR=cls.dirs[uid], HOME="/"))

    @classmethod
    def log(cls, name):
        with open(f"{cls.top}/{name}.log", encoding="utf-8") as file:
            return file.read()

    @classmethod
    def wait_for(cls, name, text):
        until = time.monotonic() + 20
        while text not in cls.log(name):
            assert time.monotonic() < until, f"{name} never says {text!r}: {cls.log(name)}"
            time.sleep(0.01)

    @staticmethod
    def command(program, text):
        program.stdin.write(text + "\n")
        program.stdin.flush()
        return program.stdout.readline().strip()

    def as_b(self, function, *args):
        """What `function` returns when user B calls it, in a process that has inherited nothing."""
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            result = {"error": "it did not get that far"}
            try:
                os.dup2(write_fd, 3)
                os.closerange(4, 65536)
                become(B)
                result = {"ok": function(*args)}
            except BaseException as error:  # told to the parent
                result = {"error": repr(error)}
            os.write(3, json.dumps(result).encode())
            os._exit(0)
        os.close(write_fd)
        with os.fdopen(read_fd, "rb") as pipe:
            result = json.loads(pipe.read() or b"{}")
        os.waitpid(pid, 0)
        self.assertIn("ok", result, result)
        return result["ok"]

    @contextlib.contextmanager
    def b_holds(self, function):
        """User B keeps what `function` returns for the time of the block."""
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(write_fd, 3)
            os.closerange(4, 65536)
            resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
            become(B)
            held = function()
            os.write(3, b"%d" % len(held))
            signal.pause()
        os.close(write_fd)
        try:
            self.assertGreater(int(os.read(read_fd, 20)), 0)
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(read_fd)

    def a_is_well(self):
        """Both A's open connection and new ones."""
        rate = self.command(self.client, "rate 0.2")
        self.assertTrue(rate.isdigit() and int(rate) > 0, rate)
        self.assertEqual(self.command(self.client, f"connect {self.port}"), "ok")
        self.assertEqual(self.command(self.client, "epoll"), "1")
        for process in (self.server, self.client, self.daemon):
            self.assertIsNone(process.poll())

    # ------------------------------------------------------------------------------------------------------------
    def test_memory_by_proc(self):
        paths = []
        for pid in self.victims:
            paths += [f"/proc/{pid}/{name}" for name in ("fd", "map_files", "maps", "smaps", "mem", "environ", "pagemap", "cwd/.", "root/.")]
            paths += [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
            with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
                ranges = [line.split()[0] for line in file if "memfd:postern" in line]
            self.assertTrue(ranges, f"{pid} maps nothing of Postern: this test looks at the wrong process")
            paths += [f"/proc/{pid}/map_files/{r}" for r in ranges]

        def tries():
            worked = []
            for path in paths:
                how = os.O_RDONLY if path.rsplit("/", 1)[1] in ("maps", "smaps", "environ", "pagemap", "fd", "map_files", ".") else os.O_RDWR
                error = refused(os.open, path, how)
                if error not in (errno.EACCES, errno.EPERM):
                    worked.append((path, error))
            return worked
        self.assertEqual(self.as_b(tries), [])

    def test_memory_by_system_calls(self):
        places = {}
        for pid in self.victims:
            with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
                at = [int(line.split("-")[0], 16) for line in file if "memfd:postern" in line]
            places[pid] = (at, [int(fd) for fd in os.listdir(f"/proc/{pid}/fd")])

        def tries():
            worked = []
            own = ctypes.create_string_buffer(8)
            iov = struct.Struct("=QQ")
            for pid, (at, fds) in places.items():
                pidfd = syscall(SYS_PIDFD_OPEN, pid, 0)
                calls = {("kill", pid): (LIBC.kill, pid, signal.SIGTERM), ("kcmp", pid): (syscall, SYS_KCMP, os.getpid(), pid, 0, 0, 0)}
                for fd in fds:
                    calls[("getfd", pid, fd)] = (syscall, SYS_PIDFD_GETFD, pidfd, fd, 0)
                for place in at:
                    here = ctypes.create_string_buffer(iov.pack(ctypes.addressof(own), 8))
                    there = ctypes.create_string_buffer(iov.pack(place, 8))
                    for number in (SYS_PROCESS_VM_READV, SYS_PROCESS_VM_WRITEV):
                        calls[(number, pid, place)] = (syscall, number, pid, here, 1, there, 1, 0)
                    calls[("madvise", pid, place)] = (syscall, SYS_PROCESS_MADVISE, pidfd, there, 1, 21, 0)
                for name, call in calls.items():
                    error = refused(*call)
                    if error not in (errno.EPERM, errno.EACCES):
                        worked.append((name, error))
            return worked
        self.assertEqual(self.as_b(tries), [])

    def test_files(self):
        """Nothing of it has a name that could be opened: no file in /dev/shm, and a runtime directory that is A's alone."""
        names = [name for name in os.listdir("/dev/shm") if "postern" in name or "pstn" in name]
        self.assertEqual(names, [])
        self.assertEqual(os.stat(self.dirs[A]).st_mode & 0o777, 0o700)

        def tries():
            line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            return [refused(os.listdir, self.dirs[A]), refused(os.open, f"{self.dirs[A]}/posternd.pid", os.O_RDONLY),
                    refused(line.connect, f"{self.dirs[A]}/posternd.sock"), refused(os.rename, self.dirs[A], f"{self.top}/mine"),
                    refused(os.unlink, f"{self.dirs[A]}/posternd.sock")]
        self.assertEqual(self.as_b(tries), [errno.EACCES] * 5)

    def test_daemon_by_its_abstract_name(self):
        stacks, name, owned_by_a = self.stacks, abstract_name(f"{self.dirs[A]}/posternd.sock"), f"{self.top}/readable"
        with open(owned_by_a, "wb") as file:
            file.truncate(1 << 20)
        os.chown(owned_by_a, A, A)
        os.chmod(owned_by_a, 0o644)

        def line():
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.settimeout(10)
            s.connect(name)
            return s

        def tries():
            worked = []
            for stack in stacks:
                for kind in range(KINDS):
                    for size in STACK_BYTES_TRIED:
                        fd = forged_memfd(size)
                        answer = ask(line(), message(kind, uuid=stack, peer=stack, id=stack), fd)
                        os.close(fd)
                        if answer not in ("cut off", errno.EACCES, errno.ENOSYS):
                            worked.append((kind, answer))
                file = os.open(owned_by_a, os.O_RDONLY)  # of user A's, but no stack
                answer = ask(line(), message(HELLO, uuid=stack), file)
                if answer in (0, "silent"):
                    worked.append(("a file of A's", answer))
                if ask(line(), message(HELLO, uuid=stack)) != errno.EACCES:
                    worked.append("no memory at all")
            return worked
        self.assertEqual(self.as_b(tries), [])
        self.a_is_well()
        fresh = self.program(A, CLIENT, "--strict")  # a new program is served as before
        self.assertEqual(self.command(fresh, f"connect {self.port}"), "ok")

    def test_daemon_flooded_with_silence(self):
        """B opens lines and says nothing. A's own programs, and those of them that have changed their user, still get through."""
        name = abstract_name(f"{self.dirs[A]}/posternd.sock")

        def flood():
            held = []
            for _ in range(500):
                s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                s.settimeout(1)
                if refused(s.connect, name) == 0:
                    held.append(s)
            return held

        def says_hello():
            line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            line.connect(name)  # waits where posternd has not come to accept the flood yet
            line.settimeout(10)
            return ask(line, message(HELLO, uuid=self.stacks[0]))
        with self.b_holds(flood):
            self.assertEqual(self.as_b(says_hello), errno.EACCES)  # an answer: it was heard
            fresh = self.program(A, CLIENT, "--strict")
            self.assertEqual(self.command(fresh, f"connect {self.port}"), "ok")
            self.a_is_well()

    def test_broker_believes_no_forged_stack(self):
        stacks = self.stacks

        def tries():
            line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            line.settimeout(10)
            line.connect(f"{self.system}/broker.sock")
            worked = []
            if ask(line, message(JOIN)) != 0:
                worked.append("cannot join")
            mine, silent = (11, 12), "silent"
            with socket.socket() as tcp:
                tcp.bind(("127.0.0.1", 0))
                tcp.listen()
                if ask(line, message(OFFER, uuid=mine), tcp.fileno()) != 0:
                    worked.append("cannot offer its own")
                for stack in stacks:
                    fd = forged_memfd(4096)
                    cases = [("offer", message(OFFER, uuid=stack), tcp.fileno(), (errno.EPERM,)),
                             ("unoffer", message(UNOFFER, uuid=stack, a=0, b=1), None, (errno.ENOENT,)),
                             ("have link", message(HAVE_LINK, uuid=stack, peer=mine, id=(5, 5), a=0), fd, (errno.EPERM,)),
                             ("link as A's", message(LINK, uuid=mine, peer=stack, id=(5, 6)), fd, (errno.EPERM, errno.EINVAL)),
                             ("link to A's", message(LINK, uuid=stack, peer=mine, id=(5, 7)), fd, "not 0")]
                    for what, data, with_fd, expected in cases:
                        answer = ask(line, data, with_fd)
                        if answer == 0 or answer == silent or (expected != "not 0" and answer not in expected):
                            worked.append((what, answer))
                    pidfd = os.pidfd_open(os.getpid())
                    line.sendmsg([message(ALIVE, uuid=stack, a=os.getpid())], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd]))])
                    for side in (0, 1):
                        line.send(message(LINK_END, id=stack, a=side))
                    os.close(pidfd)
                    os.close(fd)
            return worked
        self.assertEqual(self.as_b(tries), [])
        self.a_is_well()
        other = self.program(B, CLIENT, "--strict")  # a program that keeps to the rules is introduced
        self.assertEqual(self.command(other, f"connect {self.port}"), "ok")
        self.assertGreater(int(self.command(other, "rate 0.2")), 0)

    # ------------------------------------------------------------------------------------------------------------
    def bells(self):
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            names = re.findall(r"@(postern/[0-9a-f/]+)", file.read())
        own = {f"{hi:016x}{lo:016x}" for hi, lo in self.stacks}
        return [name for name in names if name.split("/")[1] in own]

    def flood(self, names, seconds):
        def rings():
            sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            own.bind("\0pstn-own-bell")
            end, count, refusals = time.monotonic() + seconds, 0, set()
            while time.monotonic() < end:
                for name in names or ["pstn-own-bell"] * 3:
                    try:
                        sender.sendto(b"!" * (1 + count % 4000), "\0" + name)
                        count += 1
                    except OSError as error:
                        refusals.add(error.errno)
            return [count, sorted(refusals)]
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            become(B)
            os.write(write_fd, json.dumps(rings()).encode())
            os._exit(0)
        os.close(write_fd)
        return pid, read_fd

    def rate_beside(self, names):
        pid, read_fd = self.flood(names, 1.6)
        time.sleep(0.3)
        rate = self.command(self.client, "rate 1.0")
        os.waitpid(pid, 0)
        with os.fdopen(read_fd, "rb") as pipe:
            count, refusals = json.loads(pipe.read())
        self.assertTrue(rate.isdigit(), rate)
        return int(rate), count, refusals

    def test_doorbells_only_ring(self):
        names = self.bells()
        self.assertTrue(names, "nobody has a bell: this test looks at the wrong stack")
        beside = sorted(self.rate_beside([])[0] for _ in range(3))[1]  # a program that is as busy, elsewhere
        rung = [self.rate_beside(names) for _ in range(3)]
        rate = sorted(r[0] for r in rung)[1]
        print(f"\nround trips in 1 s: {beside} beside a busy process, {rate} with {sum(r[1] for r in rung) / 4.8:.0f} false rings/s on {len(names)} bells")
        self.assertGreater(rate, beside / 4)
        self.a_is_well()

    def test_names_of_doorbells_cannot_be_taken(self):
        """B binds every name that a stack of A's could use next, as far as they can be guessed."""
        def squat():
            held = []
            for hi, lo in self.stacks:
                for waiter in range(512):  # it takes them from the lowest on
                    for name in (f"postern/{hi:016x}{lo:016x}/{waiter:016x}", f"postern/{hi:016x}{lo:016x}/{waiter:016x}/{0:016x}"):
                        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                        if refused(s.bind, "\0" + name) == 0:
                            held.append(s)
            return held
        with self.b_holds(squat):
            self.a_is_well()


if __name__ == "__main__":
    if os.getuid() != 0:
        print("skipped: it needs root, to be two other users")
        sys.exit(77)
    signal.alarm(220)
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        BUILD = copied(os.path.abspath(sys.argv.pop(1)), directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
