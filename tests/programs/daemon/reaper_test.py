# reaper_test.py - a family's memory and its reaper: neither hurts another family, nor posternd.
# SPDX-License-Identifier: Apache-2.0
#
# usage: reaper_test.py BUILD_DIR [-v] [TEST...]; exit 77 when there is no C compiler for the layout, or this is no x86-64.
# Families made here (daemon_test.py) die while their reaper is killed or stopped after so many instructions (ptrace), or leave
# garbage; programs under postern beside them go on exchanging bytes.

import contextlib
import ctypes
import os
import platform
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import daemon_test
import pauses
from daemon_test import HELLO, L, LIVE, Client, DaemonTest, Stack, start_time, until

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_CONT, PTRACE_STEP, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 7, 9, 17, 0x4206, 0x4207, 0x40000000
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
JOB_LIMIT_S = 10
PORT = 5000
LONG = os.environ.get("TIER") == "long"
STEPS_MAX = 2_000_000

# Echoes, and says by which process.
SERVER = """
import os, select, socket, sys
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", 0)); l.listen(64)
print(l.getsockname()[1], flush=True)
ep = select.epoll(); ep.register(l, select.EPOLLIN); held = {}
while True:
    for fd, _ in ep.poll():
        if fd == l.fileno():
            s = l.accept()[0]; held[s.fileno()] = s; ep.register(s, select.EPOLLIN)
            continue
        try: data = held[fd].recv(65536)
        except OSError as e: print("reset", flush=True); held.pop(fd).close(); continue
        if data: held[fd].sendall(data)
        else: print("end", flush=True); held.pop(fd).close()
"""
CLIENT = """
import socket, sys, time
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20); n = 0
s.settimeout(30)
while True:
    text = b"%d" % n * 50; s.sendall(text); got = b""
    while len(got) < len(text): got += s.recv(len(text) - len(got))
    assert got == text
    n += 1
    if n % 50 == 0: print(n, flush=True)
    time.sleep(0.0005)
"""
# Connects to port argv[1] and to itself, registers with epoll, has a child; then fills its own stack with garbage, seed argv[2], and dies.
SPOILER = """
import ctypes, os, random, select, signal, socket, sys, time
rnd = random.Random(int(sys.argv[2])); page = 4096
held = []
for i in range(8):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20); s.sendall(b"x" * 3000); s.recv(100); held.append(s)
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(8); held.append(l)
ep = select.epoll()
for s in held: ep.register(s, select.EPOLLIN)
for i in range(3):
    a = socket.create_connection(l.getsockname(), 20); held += [a, l.accept()[0]]
child = os.fork() if rnd.random() < 0.5 else 1
if child == 0: time.sleep(0.3); os._exit(0)
area = [(int(f[0].split("-")[0], 16), int(f[0].split("-")[1], 16)) for f in (x.split() for x in open("/proc/self/maps")) if len(f) > 5 and f[5].startswith("/memfd:postern-stack")]
print("connected", len(area), flush=True)
lo, hi = area[0]
used = [o for o in range(0, hi - lo, page) if any(ctypes.string_at(lo + o, page))]
kind = rnd.randrange(4)
for o in used:
    if kind == 0: words = range(0, page, 4)
    elif kind == 1: words = rnd.sample(range(0, page, 4), 20)
    elif kind == 2: words = rnd.sample(range(0, page, 4), 3)
    else: words = rnd.sample(range(0, page, 4), 300)
    for w in words:
        if o == 0 and w < 32: continue
        v = rnd.choice([rnd.getrandbits(32), rnd.randrange(300), 0xffffffff, 0x10000000 | rnd.randrange(40), os.getppid(), 0])
        ctypes.c_uint32.from_address(lo + o + w).value = v
print("spoilt", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
# Four connections to port argv[1] that it shares with two children; one that dies has its reaper come, the next one is what it works on.
VICTIM = """
import os, select, socket, sys, time
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) for _ in range(4)]
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(8)
ep = select.epoll()
for s in held + [l]: ep.register(s, select.EPOLLIN)
for s in held: s.sendall(b"x" * 3000)
for s in held:
    got = 0
    while got < 3000: got += len(s.recv(3000))
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        held[0].sendall(b"y"); held[0].recv(1)  # it has come, and said hello
        os.write(1, b"there %d\\n" % os.getpid())
        while True: time.sleep(60)
    children.append(pid)
os.write(1, b"children %d %d\\n" % tuple(children))
while True: time.sleep(60)
"""
# The child lives in a PID namespace of its own, and goes on with the parent's connection.
NAMESPACE = """
import ctypes, os, socket, sys, time
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20)
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000000) != 0: print("no", ctypes.get_errno(), flush=True); sys.exit(1)
pid = os.fork()
if pid == 0:
    os.write(1, b"there %d\\n" % os.getpid())
    own = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20)
    n = 0
    while True:
        for c in (s, own):
            text = b"%d" % n; c.sendall(text); got = c.recv(100)
            if got != text: print("wrong", got, text, flush=True); os._exit(1)
        n += 1
        if n % 20 == 0: print("alive", n, flush=True)
        time.sleep(0.01)
os.write(1, b"child %d\\n" % pid)
s.close()
if len(sys.argv) > 2: os._exit(0)
os.waitpid(pid, 0); print("waited", flush=True)
time.sleep(60)
"""


def children_of(pid, name):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            for child in file.read().split():
                with contextlib.suppress(OSError):
                    with open(f"/proc/{child}/comm", encoding="utf-8", errors="replace") as comm:
                        if comm.read().strip() == name[:15]:
                            yield int(child)


def ptrace(request, pid):
    if LIBC.ptrace(request, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


@contextlib.contextmanager
def ahead_of_others(pid):
    """A reaper has its time by the clock, and two switches for each step leave none of it on a busy machine. Root's may go first."""
    try:
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def step(pid):
    ptrace(PTRACE_STEP, pid)
    _, status = os.waitpid(pid, WALL)
    return os.WIFSTOPPED(status)


class Program:
    """A program under postern whose lines are read as they come."""

    def __init__(self, test, text, *args):
        env = {**os.environ, "POSTERN_RUNTIME_DIR": test.dir}
        self.out = open(f"{test.temp.name}/out-{random.getrandbits(32)}", "w+b")
        self.proc = subprocess.Popen([f"{daemon_test.BUILD}/postern", sys.executable, "-c", text, *map(str, args)], env=env,
                                     stdout=self.out, stderr=open(f"{test.temp.name}/log", "ab"))
        test.programs.append(self)

    def lines(self):
        with open(self.out.name, encoding="ascii") as file:
            return file.read().split("\n")[:-1]

    def end(self):
        self.proc.kill()
        self.proc.wait()
        self.out.close()


class ReaperTest(DaemonTest):
    def setUp(self):
        self.programs = []
        self.traced = set()
        super().setUp()

    def tearDown(self):
        for pid in list(self.traced):
            self.kill_traced(pid)
        for program in self.programs:
            program.end()
        super().tearDown()

    def failed(self):
        return self.status()["reapers_failed"]

    def reapers(self):
        return list(children_of(self.daemon.pid, "postern-reaper"))

    def caught(self, stack, victim):
        """The reaper of `stack`, which waits for a job: traced and stopped."""
        victim.kill()
        self.assertTrue(until(lambda: stack.slot_state(1) == 0), self.log())
        pid = self.reapers()[0]
        self.trace(pid)
        return pid

    def trace(self, pid):
        one = {min(os.sched_getaffinity(0))}  # a switch for each instruction: between two CPUs it takes three times as long
        os.sched_setaffinity(pid, one)
        os.sched_setaffinity(0, one)
        ptrace(PTRACE_SEIZE, pid)
        self.traced.add(pid)
        ptrace(PTRACE_INTERRUPT, pid)
        os.waitpid(pid, WALL)

    def kill_traced(self, pid):
        self.traced.discard(pid)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, WALL)

    def stop_traced(self, pid):
        self.traced.discard(pid)
        os.kill(pid, signal.SIGSTOP)
        ptrace(PTRACE_DETACH, pid)

    @staticmethod
    def steps(pid, count):
        """False: it has come to wait for the next job, or ended."""
        with ahead_of_others(0), ahead_of_others(pid):
            return all(step(pid) for _ in range(count))

    def family(self):
        """A family of three processes: the second one's death calls the reaper, the first one's is the job to be disturbed."""
        stack = Stack()
        for fd in range(12):
            stack.endpoint(fd, 2 if fd % 4 == 0 else 4)
        peers = [self.peer(stack, slot) for slot in range(3)]
        for fd in range(12):
            stack.set_fd(0, fd, fd)
        return stack, peers

    def answers_at_once(self):
        pauses.begin()
        begin = time.monotonic()
        self.status()
        self.assertLess(time.monotonic() - begin, pauses.limit(begin, 3))

    def honest(self):
        server = Program(self, SERVER)
        self.assertTrue(until(lambda: len(server.lines()) > 0, 20), self.log())
        port = int(server.lines()[0])
        client = Program(self, CLIENT, port)
        self.assertTrue(until(lambda: len(client.lines()) > 0, 20), self.log())
        return server, client, port

    def goes_on(self, client):
        before = len(client.lines())
        self.assertTrue(until(lambda: len(client.lines()) > before + 1, 20), self.log())
        self.assertIsNone(client.proc.poll())

    # -- the reaper ------------------------------------------------------------------------------------------------
    def test_a_death_is_reaped_by_a_process_that_leaves_again(self):
        stack, peers = self.family()
        peers[0].kill()
        self.assertTrue(until(lambda: stack.slot_state(0) == 0), self.log())
        self.assertEqual(len(self.reapers()), 1)
        self.assertTrue(until(lambda: not self.reapers(), 10), self.log())
        self.assertEqual(self.failed(), 0)

    def test_posternd_maps_no_stack_writable(self):
        self.honest()
        with open(f"/proc/{self.daemon.pid}/maps", encoding="ascii") as file:
            segments = [line.split() for line in file if "memfd:postern-stack" in line or "memfd:postern-lgr" in line]
        self.assertTrue(segments)
        self.assertEqual({s[1] for s in segments}, {"r--s"})

    def test_a_reaper_has_no_rights(self):
        stack, peers = self.family()
        peers[1].kill()
        self.assertTrue(until(lambda: stack.slot_state(1) == 0), self.log())
        pid = self.reapers()[0]
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            status = dict(line.split(":", 1) for line in file)
        self.assertEqual(int(status["CapEff"], 16), 0)
        self.assertEqual(int(status["CapPrm"], 16), 0)
        self.assertEqual(int(status["NoNewPrivs"]), 1)
        self.assertEqual(int(status["Seccomp"]), 2)
        self.assertLess(len(os.listdir(f"/proc/{pid}/fd")), 7)

    def test_killed_after_so_many_instructions(self):
        rnd = random.Random(1)
        _, client, _ = self.honest()
        killed = 0
        for count in [1, 30, 300, 1000, 3000] + [rnd.randrange(20000) for _ in range(6)]:
            stack, peers = self.family()
            pid = self.caught(stack, peers[1])
            before = self.failed()
            peers[0].kill()
            self.assertTrue(until(lambda: "has died" in self.log()))
            time.sleep(0.05)  # the job is in the line; if it is not, the kill is of an idle one
            if not self.steps(pid, count):
                continue
            self.kill_traced(pid)
            # Either it was done, or the family is cut off.
            self.assertTrue(until(lambda: self.failed() > before or stack.slot_state(0) == 0), self.log())
            killed += self.failed() - before
            self.answers_at_once()
            for peer in peers:
                peer.kill()
        self.assertGreater(killed, 3, self.log())
        self.goes_on(client)
        self.assertTrue(until(lambda: self.stacks() == 2), self.log())
        self.assertIn("its reaper has failed (killed by SIGKILL", self.log())

    # -- a job, from its first instruction to its last -----------------------------------------------------------------
    @staticmethod
    def stack_inode(pid):
        with open(f"/proc/{pid}/maps", encoding="ascii") as file:
            return {line.split()[4] for line in file if "memfd:postern-stack" in line}

    def victim(self, port):
        """A program with connections to an honest one, and its two children."""
        victim = Program(self, VICTIM, port)
        there = lambda: sum(line.startswith("there") for line in victim.lines())
        self.assertTrue(until(lambda: there() == 2 and any(line.startswith("children") for line in victim.lines()), 20),
                        (victim.lines(), self.log()))
        return victim, [int(pid) for line in victim.lines() if line.startswith("children") for pid in line.split()[1:]]

    def caught_at_work(self, port):
        """Victim, its reaper, traced at the start of a job, and whether the job is done."""
        victim, children = self.victim(port)
        memory, slots = self.memory_of(victim.proc.pid)
        slot = {there: i for i, (state, there) in enumerate(slots) if state == LIVE}
        is_done = lambda child: struct.unpack_from("=I", memory, L["slots"] + slot[child] * L["slot_size"])[0] == 0
        inode = self.stack_inode(victim.proc.pid)
        os.kill(children[0], signal.SIGKILL)
        self.assertTrue(until(lambda: is_done(children[0])), self.log())
        # It stays for a second.
        pid = next(pid for pid in self.reapers() if self.stack_inode(pid) == inode)
        self.trace(pid)
        os.kill(children[1], signal.SIGKILL)
        self.assertTrue(until(lambda: f"pid {children[1]}, slot" in self.log()), self.log())
        return victim, pid, lambda: is_done(children[1])

    def job_steps(self, pid, is_done):
        count = 0
        with ahead_of_others(0), ahead_of_others(pid):
            while not is_done():
                self.assertLess(count, STEPS_MAX, "a job without an end")
                self.assertTrue(step(pid), self.log())
                count += 1
        return count

    def ended(self, server):
        return sum(line in ("end", "reset") for line in server.lines())

    def test_killed_and_stopped_all_along_a_job(self):
        """Whatever its reaper has got to, the family alone loses by it: its connections end, those of the others go on."""
        rnd = random.Random(int(os.environ.get("SEED", "1")))
        server, client, port = self.honest()
        victim, pid, is_done = self.caught_at_work(port)
        steps = self.job_steps(pid, is_done)
        self.kill_traced(pid)
        victims, kills, stops = [victim], 400 if LONG else 6, 16 if LONG else 2
        print(f"\n{steps} instructions", file=sys.stderr)
        stopped_from, stopped = self.failed(), 0
        for i in range(stops):
            victim, pid, is_done = self.caught_at_work(port)
            victims.append(victim)
            self.assertTrue(self.steps(pid, (2 * i + 1) * steps // (2 * stops) - rnd.randrange(steps // (4 * stops) + 1)), self.log())
            stopped += not is_done()
            self.stop_traced(pid)
            self.answers_at_once()
        for i in range(kills):
            victim, pid, is_done = self.caught_at_work(port)
            victims.append(victim)
            before = self.ended(server)
            self.assertTrue(self.steps(pid, 1 + (i * steps + rnd.randrange(steps)) // kills), self.log())
            was_done = is_done()
            self.kill_traced(pid)
            self.answers_at_once()
            victim.proc.kill()
            # Cut off, or reaped by the next one.
            self.assertTrue(until(lambda: self.ended(server) >= before + 4, 20), (i, was_done, server.lines()[-8:], self.log()))
            self.goes_on(client)
        self.assertTrue(until(lambda: self.failed() >= stopped_from + stopped, JOB_LIMIT_S + 10), self.log())
        self.assertGreater(self.failed(), stopped_from + stopped + kills // 2, "hardly any was at work")
        for victim in victims:
            victim.proc.kill()
        self.assertTrue(until(lambda: self.ended(server) == 4 * len(victims), 2 * JOB_LIMIT_S), (server.lines()[-8:], self.log()))
        self.goes_on(client)
        self.assertIsNone(server.proc.poll())
        self.assertTrue(until(lambda: self.stacks() == 2, 2 * JOB_LIMIT_S), self.log())

    def test_stopped_for_ever(self):
        server, client, port = self.honest()
        stack, peers = self.family()
        pid = self.caught(stack, peers[1])
        peers[0].kill()
        self.assertTrue(self.steps(pid, 500))
        self.stop_traced(pid)
        begin = time.monotonic()
        self.answers_at_once()
        self.goes_on(client)
        other, others = self.family()
        others[1].kill()  # another family is served meanwhile
        self.assertTrue(until(lambda: other.slot_state(1) == 0, JOB_LIMIT_S / 2), self.log())
        self.assertTrue(until(lambda: self.failed() == 1, JOB_LIMIT_S + 5), self.log())
        self.assertGreater(time.monotonic() - begin, JOB_LIMIT_S / 2)
        self.assertIn("no end after", self.log())
        self.goes_on(client)
        new = Program(self, CLIENT, port)
        self.assertTrue(until(lambda: len(new.lines()) > 0, 20), self.log())
        self.assertIsNone(server.proc.poll())

    def test_posternd_ends_at_once_while_a_reaper_hangs(self):
        stack, peers = self.family()
        pid = self.caught(stack, peers[1])
        peers[0].kill()
        self.assertTrue(self.steps(pid, 200))
        self.stop_traced(pid)
        pauses.begin()
        begin = time.monotonic()
        self.assertEqual(self.stop(), 0)
        self.assertLess(time.monotonic() - begin, pauses.limit(begin, 2))
        self.assertTrue(until(lambda: not os.path.exists(f"/proc/{pid}")), "the reaper outlives posternd")

    def test_a_reaper_ends_with_a_posternd_that_is_killed(self):
        stack, peers = self.family()
        peers[1].kill()
        self.assertTrue(until(lambda: stack.slot_state(1) == 0), self.log())
        pid = self.reapers()[0]
        self.stop(signal.SIGKILL)
        self.assertTrue(until(lambda: not os.path.exists(f"/proc/{pid}")))

    # -- hostile memory --------------------------------------------------------------------------------------------
    def test_a_lock_of_a_living_stranger(self):
        stack, peers = self.family()
        # tx.lock of an endpoint that the dead one holds: a thread that lives for ever has it, says the word.
        struct.pack_into("=I", stack.map, L["eps"] + 1 * L["ep_size"] + 64, self.daemon.pid)
        peers[0].kill()
        self.assertTrue(until(lambda: stack.slot_state(0) == 0), self.log())
        for peer in peers:
            peer.kill()
        self.assertTrue(until(lambda: self.stacks() == 0), self.log())
        self.assertEqual(self.failed(), 0)

    def test_a_lock_of_a_stopped_member(self):
        stack, peers = self.family()
        lock = L["eps"] + 1 * L["ep_size"] + 64
        struct.pack_into("=I", stack.map, lock, 3 << 22 | peers[2].pid)
        os.kill(peers[2].pid, signal.SIGSTOP)
        peers[0].kill()
        time.sleep(1.5)  # it is tried again and again
        self.assertNotIn(stack.slot_state(0), (0, LIVE))
        self.answers_at_once()
        self.assertEqual(struct.unpack_from("=I", stack.map, lock)[0] & 0x7fffffff, 3 << 22 | peers[2].pid)
        self.assertEqual(self.failed(), 0)
        struct.pack_into("=I", stack.map, lock, 0)
        self.assertTrue(until(lambda: stack.slot_state(0) == 0), self.log())

    def test_garbage(self):
        server, client, port = self.honest()
        for seed in range(8):
            ended = sum(line in ("end", "reset") for line in server.lines())
            spoiler = Program(self, SPOILER, port, seed)
            self.assertTrue(until(lambda: "spoilt" in spoiler.lines() or spoiler.proc.poll() is not None, 30), self.log())
            for which in range(3):  # what there is to be seen of it
                Client(self.path).report(which, spoiler.proc.pid)
            spoiler.proc.wait()
            self.answers_at_once()
            # Its connections end for the server: by its own reaper, or because that has failed.
            self.assertTrue(until(lambda: sum(line in ("end", "reset") for line in server.lines()) >= ended + 8, 2 * JOB_LIMIT_S + 5),
                            f"seed {seed}: {server.lines()[-8:]}\n{self.log()}")
            self.goes_on(client)
        self.assertIsNone(self.daemon.poll())
        self.assertTrue(until(lambda: self.stacks() == 2, 2 * JOB_LIMIT_S), self.log())

    # -- PID namespaces --------------------------------------------------------------------------------------------
    def in_namespace(self, *args):
        if os.geteuid() != 0:
            self.skipTest("needs root: unshare(CLONE_NEWPID)")
        server, client, port = self.honest()
        program = Program(self, NAMESPACE, port, *args)
        until(lambda: len(program.lines()) > 1, 20)
        if any(line.startswith("no") for line in program.lines()):
            self.skipTest("unshare(CLONE_NEWPID) is not permitted here")
        pid = int(next(line for line in program.lines() if line.startswith("child")).split()[1])
        self.assertTrue(any(line == "there 1" for line in program.lines()))
        alive = lambda: sum(line.startswith("alive") for line in program.lines())
        before = alive()
        time.sleep(3)  # a slot that posternd took for a dead one's would be gone by now
        self.assertTrue(until(lambda: alive() > before + 2, 20), (program.lines()[-3:], self.log()))
        self.assertNotIn("wrong", " ".join(program.lines()))
        # The orphan's parent is: posternd may see that in the orphan's hello, before it learns of the death.
        parent = f"belonged to pid {program.proc.pid}, which is gone" if "orphan" in args else None
        self.assertEqual([line for line in self.log().splitlines() if "which is gone" in line and not (parent and line.endswith(parent))], [])
        self.assertIn(pid, {p["pid"] for s in self.status()["stacks"] for p in s["processes"]})
        ended = sum(line in ("end", "reset") for line in server.lines())
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(until(lambda: sum(line in ("end", "reset") for line in server.lines()) >= ended + 2), self.log())
        self.goes_on(client)
        return program

    def test_a_child_in_a_pid_namespace(self):
        program = self.in_namespace()
        self.assertTrue(until(lambda: "waited" in program.lines()))

    def test_an_orphan_in_a_pid_namespace(self):
        self.in_namespace("orphan")
        self.assertTrue(until(lambda: self.stacks() == 2), self.log())

    def test_a_lock_of_another_pid_namespace(self):
        """Its holder's thread id means nothing here: it is neither taken from the living nor kept by the dead."""
        if os.geteuid() != 0:
            self.skipTest("needs root: unshare(CLONE_NEWPID)")
        server, client, port = self.honest()
        program = Program(self, NAMESPACE, port)
        self.assertTrue(until(lambda: any(line.startswith("alive") for line in program.lines()), 20), self.log())
        pid = int(next(line for line in program.lines() if line.startswith("child")).split()[1])
        stack, slots = self.memory_of(pid)
        slot = next(i for i, (state, there) in enumerate(slots) if state == LIVE and there == 1)
        os.kill(pid, signal.SIGSTOP)
        at = L["eps"] + 100 * L["ep_size"] + 64  # an endpoint that nobody uses
        struct.pack_into("=I", stack, at, (slot + 1) << 22 | 1)
        struct.pack_into("=I", stack, L["pools"] + 8, 101)  # eps.hw
        time.sleep(1)
        word = lambda: struct.unpack_from("=I", stack, at)[0] & 0x7fffffff
        self.assertEqual(word(), (slot + 1) << 22 | 1)
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(until(lambda: word() == 0), self.log())
        self.assertEqual(self.failed(), 0)
        self.goes_on(client)

    def memory_of(self, pid):
        import mmap
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if "memfd:postern-stack" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                    file = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
                    memory = mmap.mmap(file, L["stack_size"])
                    os.close(file)
                    slots = [struct.unpack_from("=II", memory, L["slots"] + i * L["slot_size"]) for i in range(8)]
                    return memory, slots
        raise AssertionError("no stack")


def load_tests(loader, _tests, _pattern):
    suite = unittest.TestSuite()  # not those of DaemonTest once more
    for name in loader.getTestCaseNames(ReaperTest):
        if name not in dir(DaemonTest):
            suite.addTest(ReaperTest(name))
    return suite


if __name__ == "__main__":
    if platform.machine() != "x86_64":
        print("skipped: steps a process of x86-64")
        sys.exit(77)
    daemon_test.BUILD = os.path.abspath(sys.argv[1])
    daemon_test.load_layout()
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:])
