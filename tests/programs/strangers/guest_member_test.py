# guest_member_test.py - guests of root's posternd, which is a member of the broker: they are told, counted and refused as the users that they
# are, speak to the broker in no name but their own, and take neither root's line to it nor other users' listeners.
# SPDX-License-Identifier: Apache-2.0
#
# usage: guest_member_test.py BUILD_DIR [-v] [TEST...]; exit 77: not root.
# Each test has a broker, root's daemon with a guest, and a member of another user, on whose line the test speaks.

import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

for room in ("daemon", "kit"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", room))
import actorkit
import containers
import guest_test
from actorkit import BELL, LINK, LISTENER, NEGOTIATE, OFFER, RELEASE, SEEK
from broker_test import copied
from daemon_test import L, load_layout
from guest_test import GUEST, HELLO, NOBODY, Actor, Trespass

B, OTHER = 60002, 60004
INTRODUCE = 4
ITS_STACK = (0xb, 1)
LISTENERS = 30  # of one user, says the policy
BROKERS = 1 << 31  # in a number: it is one of the broker's questions


# Its library comes anew with a line of its own now and then, and posternd has one of a process: then this does so, too.
WORDS = """
l = line()
def again(act):
    global l
    while True:
        try:
            said = act()
            if said != "cut off": return said
        except ConnectionError:
            pass
        l = line()
        hello(l)
def ask(kind, fd=None, **fields):
    return again(lambda: say(l, kind, fd=fd, **fields))
def tell(kind, fd=None, seq=1, status=0, **f):
    message = MSG.pack(4, kind, seq, status, f.get("a", 0), f.get("b", 0), 0, 0, 0, 0, bytes(24), bytes(32) + struct.pack("=QQ", f.get("cookie", 0), 0))
    again(lambda: l.sendmsg([message], [(1, 1, array.array("i", [fd]))] if fd is not None else []))
def flood(kind, count, **fields):  # as much of it as is taken without an answer
    l.setblocking(False)
    for n in range(count):
        try:
            tell(kind, cookie=n, **fields)
        except BlockingIOError:
            if not select.select([], [l], [], 0.3)[1]: break
    l.settimeout(20)
LIBC = ctypes.CDLL(None)
many = []
def kernels(port=0, share=0):
    u = socket.socket(fileno=LIBC.syscall(41, 2, 1, 0)); u.setsockopt(1, 15, share); u.bind(("127.0.0.1", port)); LIBC.syscall(50, u.fileno(), 64)
    many.append(u)
    return u
def tells(u, ep):
    return ask(2, fd=u.fileno(), a=ep, b=1)
"""


class Member(Trespass):
    policy = descriptors = None

    def start_daemon(self):
        if not hasattr(self, "broker"):
            self.start_broker()
        with open(f"{self.top}/daemon.log", "ab") as log:
            self.daemon = subprocess.Popen([f"{guest_test.BUILD}/posternd", "--foreground", "--verbose", "--idle-sec", "0", "--runtime-dir",
                                            self.runtime, "--broker", self.path], stderr=log, preexec_fn=self.limit)
        self.until(lambda: self.answers() and "joined the broker" in self.log(), "posternd does not join")

    def limit(self):
        if self.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.descriptors, self.descriptors))

    def start_broker(self):
        os.mkdir(f"{self.top}/system")
        if self.policy is not None:
            with open(f"{self.top}/system/policy.json", "w", encoding="utf-8") as file:
                json.dump(self.policy, file)
        self.broker = containers.Broker(guest_test.BUILD, f"{self.top}/system", "--syn-option", "off")
        self.addCleanup(self.broker.close)
        self.path = f"{self.top}/system/broker.sock"
        self.b = actorkit.Actor(B)
        self.addCleanup(self.b.end)
        self.line = self.b.joined(self.path)
        self.addCleanup(self.line.close)

    def told(self, kind):
        self.line.barrier()
        return [m for m in self.line.news if m.kind == kind]

    def told_of(self, port):
        """The member of B's, of a listener there; its stack."""
        return next(((m.uuid_hi, m.uuid_lo) for m in self.told(LISTENER) if port_of(m) == port), None)

    def knows(self, port):
        self.until(lambda: self.told_of(port), f"B is not told of port {port}")
        return self.told_of(port)

    def offers(self):
        """A listener of B's, which root's daemon is told of when it seeks the port."""
        tcp = self.b.listener()
        self.addCleanup(tcp.close)
        self.assertEqual(self.line.status(OFFER, fd=tcp.fileno(), uuid=ITS_STACK, a=0), 0)
        return tcp.getsockname()[1]

    def root_has_descriptors(self, server):
        """A program of root's that comes now is accelerated."""
        server.do("fork('r')", "r: k = listener()")
        port = server.number("r: k.getsockname()[1]")
        self.assertTrue(self.is_listed(port), "posternd has no descriptors left for root's program")

    def is_listed(self, port):
        return any(str(port) in str(listener) for listener in self.status()["listeners"])

    def speaks(self, server):
        """The guest has a line of its own, by which it is known."""
        self.own_slot(server)
        server.do(f"a: def hello(to): return say(to, {HELLO}, fd=m, a=SLOT, uuid=me, cookie=word(m, {L['ticket']}))")
        script = f"{self.top}/words.py"
        with open(script, "w", encoding="ascii") as file:
            file.write(WORDS)
        server.do(f"a: exec(open({script!r}).read(), globals())")
        self.assertEqual(server.ask("a: hello(l)"), "0")


def port_of(message):
    return int.from_bytes(message.addr[16:18], "little")


class Words(Member):
    def test_an_answer_to_the_brokers_question(self):
        """It lets posternd pass on a message that has the number of one, which the broker asks root's posternd for B's sake."""
        server = self.guest()
        self.speaks(server)
        server.do("k = listener()")
        stack = self.knows(server.number("k.getsockname()[1]"))
        memory = os.memfd_create("lgr", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, memory)
        os.ftruncate(memory, L["lgr_bytes"])
        fcntl.fcntl(memory, 1033, 6)
        broker = self.broker.process.pid
        os.kill(broker, signal.SIGSTOP)
        try:
            server.do(f"a: [tell({RELEASE}, seq={BROKERS} | n, status=110) for n in range(1, 60)] and None")
            server.ask("a: ask(99)")  # all were taken
            self.line.send(LINK, memory, seq=77, uuid=stack, peer=ITS_STACK, id=(7, 7))
        finally:
            os.kill(broker, signal.SIGCONT)
        while (answer := self.line.receive()).seq != 77:
            self.line.take(answer)
        self.assertEqual(answer.status, 22, "B got the guest's answer instead of posternd's (EINVAL)")

    def test_questions_without_end(self):
        """Each goes to the broker, on the line that is all of root's, and the broker is busy for a moment."""
        server = self.guest()
        self.speaks(server)
        os.kill(self.broker.process.pid, signal.SIGSTOP)
        try:
            server.do(f"a: flood({RELEASE}, 3000)", f"a: flood({BELL}, 3000, a=1)")
        finally:
            os.kill(self.broker.process.pid, signal.SIGCONT)
        server.do("k = listener()")
        self.knows(server.number("k.getsockname()[1]"))
        self.assertNotIn("the broker is gone", self.log())


    def test_a_negative_status(self):
        """A member answers so; a program that is told of it would take it for a result."""
        server = self.guest()
        self.speaks(server)
        self.offers()
        server.do("k = listener()")
        self.knows(server.number("k.getsockname()[1]"))
        server.tell(f"a: ask({INTRODUCE}, uuid={ITS_STACK})")
        while (question := self.line.receive()).kind != LINK:
            self.line.take(question)
        self.line.send(LINK, seq=question.seq, status=-5)
        self.assertGreater(int(server.hear()), 0)

    def test_each_line_of_the_log_is_posternds(self):
        self.guest()
        for line in self.log().splitlines():
            self.assertRegex(line, r"^[0-9-]+T[0-9:.]+Z posternd: |^\([0-9]+ more like the next", "a name has a line of its own")


class Names(Member):
    def test_a_stack_with_the_name_of_anothers(self):
        """Clients of B's listener know it by that name. (Whoever has a stack in root's daemon and one more user id can do so.)"""
        server = self.guest()
        self.speaks(server)
        port = self.offers()
        server.ask(f"a: ask({SEEK}, a={port})")
        self.assertTrue(self.is_listed(port), "root's daemon is not told of B's listener")
        root = self.root(server)
        self.one_more(server, root)
        server.do(f"b: os.pwrite(n, struct.pack('=QQ', *{ITS_STACK}), {L['hdr_id']}) and None")
        server.do(f"b: r = ticket({root})")
        if server.ask("b: r[0]") == "0":
            server.do(f"b: me = {ITS_STACK}",
                      f"b: os.pwrite(n, struct.pack('=IIQ', 2, os.getpid(), int(open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19])), {L['slots']}) and None",
                      f"b: os.pwrite(n, struct.pack('=I', 1), {L['slots_hw']}) and None", "b: l2 = line()")
            self.assertNotEqual(server.ask(f"b: say(l2, {HELLO}, fd=n, a=0, uuid=me, cookie=r[1])"), "0", "its stack has the name of B's")
        self.assertTrue(self.is_listed(port))
        client = Actor(self)
        client.tell(f"socket.create_connection(('127.0.0.1', {port}), 20) and None")
        self.until(lambda: self.told(LINK), "B is not asked whether it takes root's link group")
        client.hear()

    def root(self, server):
        master = server.number("os.getpid()")
        root = next(stack["id"] for stack in self.stacks(0) if master in [process["pid"] for process in stack["processes"]])
        return int(root[:16], 16), int(root[16:], 16)

    def one_more(self, server, root):
        """A process of root's family that is another user by its own doing, which it can name as one of a guest's; and memory for a stack."""
        server.do("fork('b')", "b: q = socket.socket()", "b: stack = own_stack()",
                  "b: import mmap; code = mmap.mmap(-1, 4096, prot=7); code.write(b'\\xb8\\x77\\0\\0\\0\\x0f\\x05\\xc3\\xb8\\x75\\0\\0\\0\\x0f\\x05\\xc3')",
                  "b: at = ctypes.addressof(ctypes.c_char.from_buffer(code)); call = ctypes.CFUNCTYPE(*[ctypes.c_long] * 4)",
                  f"b: [call(at + off)(*[{OTHER}] * 3) for off in (0, 8)] and None",
                  "b: n = os.memfd_create('x', 3); os.ftruncate(n, os.fstat(stack).st_size); os.pwrite(n, os.pread(stack, 1 << 16, 0), 0) and None",
                  "b: import fcntl; fcntl.fcntl(n, 1033, 6)", "b: l = line()",
                  f"b: def ticket(root): l.sendmsg([MSG.pack(4, {GUEST}, 2, 0, 0, 0, 0, 0, *root, bytes(24), bytes(48))], [(1, 1, array.array('i', [n]))]); "
                  "answer = l.recv(200); return MSG.unpack(answer)[3], struct.unpack('=Q', answer[104:112])[0]")


class Quotas(Member):
    policy = {"listeners": LISTENERS}
    descriptors = 1024

    def test_connections_that_wait_for_a_handshake(self):
        """posternd keeps what accept() gives it: of one connection, as many times as it is told."""
        server = self.guest()
        self.speaks(server)
        server.do("a: import resource; resource.setrlimit(7, (8192, 8192)) and None")
        server.do("a: u = kernels()", "a: c = socket.socket(fileno=LIBC.syscall(41, 2, 1, 0))", "a: c.connect(u.getsockname())", "a: c.sendall(b'no handshake')")
        self.assertEqual(server.ask("a: tells(u, 500)"), "0")
        server.do(f"a: flood({NEGOTIATE}, 2000, fd=c.fileno(), seq=0, a=500, b=1)")
        self.root_has_descriptors(server)

    def test_places_of_all_guests(self):
        """One takes as many listeners as it can; another one's is listed all the same."""
        server = self.guest()
        self.speaks(server)
        server.do("a: import resource; resource.setrlimit(7, (8192, 8192)) and None")
        said = server.ask("a: [tells(kernels(), 100 + n) for n in range(1030)]")
        self.assertIn("28", said)  # ENOSPC
        server.do("fork('c')", f"c: become({OTHER})", "c: k = listener()", "c: k.settimeout(0.1)")
        server.ask("c: k.accept()")
        port = server.number("c: k.getsockname()[1]")
        self.until(lambda: self.is_listed(port), "another guest's listener has no place")

    def test_introductions_to_one_with_many_listeners(self):
        """Which share one port: posternd looks which of them still listen. Beside that it is quick to answer root."""
        server = self.guest()
        self.speaks(server)
        server.do("a: import resource; resource.setrlimit(7, (8192, 8192)) and None", "a: first = kernels(0, 1)")
        server.ask("a: [tells(kernels(first.getsockname()[1], 1), 100 + n) for n in range(900)]")
        guest = max(self.stacks(NOBODY), key=lambda stack: stack["link_groups"])["id"]
        guest = int(guest[:16], 16), int(guest[16:], 16)
        before = self.cpu()  # not by the clock: the machine may be busy
        for _ in range(20):
            self.assertEqual(server.ask(f"a: ask({INTRODUCE}, uuid={guest})"), "0")
        self.assertLess(self.cpu() - before, 0.5, "20 of them cost posternd half a second")

    def cpu(self):
        with open(f"/proc/{self.daemon.pid}/stat", encoding="ascii") as file:
            return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def test_places_that_the_broker_has_for_root(self):
        """They are counted as the guest's own."""
        server = self.guest()
        self.speaks(server)
        server.ask(f"a: [tells(kernels(), 100 + n) for n in range({LISTENERS} + 2)]")
        self.until(lambda: "may not offer a listener" in self.broker.log(), "the guest has as many as it likes")
        server.do("k = listener()")
        self.knows(server.number("k.getsockname()[1]"))


class FewDescriptors(Member):
    descriptors = 300

    def test_a_line_for_each_slot(self):
        """One process says that it is that of each."""
        server = self.guest()
        self.speaks(server)
        server.do(f"a: mine = os.pread(m, 64, {L['slots']} + SLOT * {L['slot_size']}); n = 250; keep = []",
                  f"a: [os.pwrite(m, mine, {L['slots']} + i * {L['slot_size']}) for i in range(60, n)] and None",
                  f"a: os.pwrite(m, struct.pack('=I', n), {L['slots_hw']}) and None")
        server.ask(f"a: {{(keep.append(line()), say(keep[-1], {HELLO}, fd=m, a=i, uuid=me, cookie=word(m, {L['ticket']})))[1] for i in range(60, n)}}")
        self.root_has_descriptors(server)


class AsItself(Member):
    """What the broker's policy says of the guest's user, not of root, decides."""

    def reaches(self):
        """Whether B is asked to take a link group with the guest's stack."""
        server = self.guest()
        self.speaks(server)
        port = self.offers()
        server.do("k = listener()")
        self.knows(server.number("k.getsockname()[1]"))  # what root's daemon is told, it has been told by now
        server.tell(f"a: ask({INTRODUCE}, uuid={ITS_STACK})")
        while not select.select([server.process.stdout], [], [], 0.02)[0]:
            self.line.barrier()  # B answers what it is asked
        server.hear()
        return bool(self.told(LINK))

    def is_reached(self):
        server = self.guest()
        self.speaks(server)
        server.do("a: u = kernels()")
        self.assertEqual(server.ask("a: tells(u, 100)"), "0")
        port = server.number("a: u.getsockname()[1]")
        server.do("k = listener()")
        self.knows(server.number("k.getsockname()[1]"))
        return self.told_of(port) is not None


def rules(*each):
    return {"rules": [{"from": {"user": f}, "to": {"user": t}, "verdict": v} for f, t, v in each]}


class Refused(AsItself):
    policy = rules((NOBODY, B, "deny"), (B, NOBODY, "deny"))

    def test_may_not_reach(self):
        self.assertFalse(self.reaches(), "it is let through as root")

    def test_may_not_be_reached(self):
        self.assertFalse(self.is_reached(), "it is shown as root's")


class Allowed(AsItself):
    policy = {**rules((NOBODY, B, "allow"), (B, NOBODY, "allow"), (B, 0, "allow")), "default": "deny"}

    def test_may_reach(self):
        self.assertTrue(self.reaches(), "it is refused as root")

    def test_may_be_reached(self):
        self.assertTrue(self.is_reached(), "it is hidden as root's")


def load_tests(_loader, _tests, _pattern):
    return unittest.TestSuite(kind(name) for kind in (Words, Names, Quotas, FewDescriptors, Refused, Allowed) for name in vars(kind) if name.startswith("test_"))


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: root makes other users")
        sys.exit(77)
    signal.alarm(250)
    load_layout()
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        guest_test.TOOLS = os.path.abspath(sys.argv.pop(1))
        guest_test.BUILD = copied(guest_test.TOOLS, directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
