# stuck_close_test.py - descriptors whose close() takes as long as their sender likes hold up nobody but the sender: sockets that linger, in
# every place where a daemon drops one, and files of a FUSE whose server does not answer.
# SPDX-License-Identifier: Apache-2.0
#
# usage: stuck_close_test.py BUILD_DIR [-v] [TEST...]
# Root runs it: user A has a daemon, a server and a client that are connected; user B sends. Exit 77: not root.

import array
import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
import unittest
import warnings

import trespass_test
from broker_test import JOIN, OFFER, copied
from trespass_test import A, B, HELLO, LIBC, UNOFFER, Trespass, abstract_name, ask, become, message

LIMIT_S = 20       # a daemon that is stuck would be so for an hour
LINGER_S = 3600
MANY = 60  # what a line holds that is not read
IN_ONE_MESSAGE = 120  # most that a message may carry are 253
FUSE_INIT, FUSE_LOOKUP, FUSE_GETATTR, FUSE_OPEN, FUSE_READ, FUSE_FLUSH, FUSE_RELEASE = 26, 1, 3, 14, 15, 25, 18
FUSE_BYTES = 4096


class Lingers:
    """Sockets whose last close waits for an hour, or until they are closed with a signal pending; their other ends read nothing."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(MANY)
        self.ends = []

    def make(self):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        s.connect(self.listener.getsockname())
        self.ends.append(self.listener.accept()[0])
        s.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                s.send(b"x" * 65536)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
        return s


def send_with(line, data, sockets):
    line.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s if isinstance(s, int) else s.fileno() for s in sockets]))])


def line_to(name):
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.settimeout(LIMIT_S)
    line.connect(name)
    return line


class SilentFuse:
    """A file system with one file, "f", of which neither a page nor the close ever comes. Its server is a process of its own."""

    NODE = 2

    def __init__(self, at):
        self.at = at
        os.mkdir(at, 0o755)
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.device},rootmode=40000,user_id={B},group_id={B},allow_other"
        if LIBC.mount(b"fuse", at.encode(), b"fuse", 0, options.encode()) != 0:
            raise OSError(ctypes.get_errno(), "mount")
        self.pid = os.fork()
        if self.pid == 0:
            LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: what waits for it must not wait for ever
            with contextlib.suppress(BaseException):
                self.serve()
            os._exit(0)

    @staticmethod
    def attributes(node):
        mode = 0o40755 if node == 1 else 0o100666
        return struct.pack("=QQQQQQIIIIIIIIII", node, FUSE_BYTES, 0, 0, 0, 0, 0, 0, 0, mode, 1, B, B, 0, 512, 0)

    def serve(self):
        while True:
            request = os.read(self.device, 1 << 20)
            _, opcode, unique, node = struct.unpack_from("=IIQQ", request)
            body, error = b"", 0
            if opcode == FUSE_INIT:
                body = struct.pack("=IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0)
            elif opcode == FUSE_LOOKUP:
                body = struct.pack("=QQQQII", self.NODE, 1, 60, 60, 0, 0) + self.attributes(self.NODE)
            elif opcode == FUSE_GETATTR:
                body = struct.pack("=QII", 60, 0, 0) + self.attributes(node)
            elif opcode == FUSE_OPEN:
                body = struct.pack("=QII", 1, 0, 0)
            elif opcode in (FUSE_READ, FUSE_FLUSH, FUSE_RELEASE):
                continue
            else:
                error = -errno.ENOSYS
            os.write(self.device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.device)  # what waits for an answer gets an error
        LIBC.umount2(self.at.encode(), 2)
        os.rmdir(self.at)


class StuckClose(Trespass):
    @contextlib.contextmanager
    def b_sends(self, victim, prepare, send, before_its_end=lambda: None):
        """User B does both, the second while the daemon `victim` is stopped: so what B closes is closed for the last time by the daemon."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
                become(B)
                prepared = prepare()
                theirs.send(b"prepared")
                theirs.recv(1)
                held = (prepared, send(*prepared))
                theirs.send(b"sent")
                theirs.recv(1)  # until the test kills this process
                del held
            except BaseException as error:  # told to the parent
                theirs.send(repr(error).encode())
            os._exit(0)
        theirs.close()
        try:
            self.assertEqual(ours.recv(1000), b"prepared")
            os.kill(victim.pid, signal.SIGSTOP)
            try:
                ours.send(b"!")
                self.assertEqual(ours.recv(1000), b"sent")
            finally:
                os.kill(victim.pid, signal.SIGCONT)
            yield
        finally:
            before_its_end()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ours.close()

    @property
    def broker(self):
        return self.processes[0]

    def as_user(self, uid, function):
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                become(uid)
                with warnings.catch_warnings(action="ignore"):
                    answer = function()
            except BaseException as error:  # told to the parent
                answer = repr(error)
            os.write(write_fd, json.dumps(answer).encode())
            os._exit(0)
        os.close(write_fd)
        with os.fdopen(read_fd, "rb") as pipe:
            answer = json.loads(pipe.read())
        os.waitpid(pid, 0)
        return answer

    def broker_answers(self, uid):
        def asks():
            line = line_to(f"{self.system}/broker.sock")
            with socket.socket() as tcp:
                tcp.bind(("127.0.0.1", 0))
                tcp.listen()
                return [ask(line, message(JOIN)), ask(line, message(OFFER, uuid=(uid, os.getpid())), tcp.fileno())]
        self.assertEqual(self.as_user(uid, asks), [0, 0])

    def everybody_is_served(self):
        self.broker_answers(A)
        self.a_is_well()
        fresh = self.program(A, trespass_test.CLIENT, "--strict")
        self.assertEqual(self.command(fresh, f"connect {self.port}"), "ok")

    def joined(self):
        line = line_to(f"{self.system}/broker.sock")
        assert ask(line, message(JOIN)) == 0
        return line

    def test_offers_that_linger(self):
        """A member of B's offers sockets that listen to nothing, so the broker drops them."""
        def send(lingers, line):
            for _ in range(MANY):
                with lingers.make() as s:
                    send_with(line, message(OFFER, uuid=(1, 2)), [s])
        with self.b_sends(self.broker, lambda: (Lingers(), self.joined()), send):
            self.everybody_is_served()
            self.broker_answers(B)  # nor is B itself shut out

    def test_more_in_a_message_than_it_may_carry(self):
        def send(lingers, line):
            sockets = [lingers.make() for _ in range(IN_ONE_MESSAGE)]
            send_with(line, message(OFFER, uuid=(1, 2)), sockets[:2])
            send_with(line, message(OFFER, uuid=(1, 2)), sockets[2:])
            for s in sockets:
                s.close()
        with self.b_sends(self.broker, lambda: (Lingers(), self.joined()), send):
            self.everybody_is_served()

    def test_lines_that_end_with_unread_messages(self):
        """A line that is cut off for its first message closes what is in the others; so does one that is refused at the door."""
        def send(lingers):
            for _ in range(MANY // 2):
                with line_to(f"{self.system}/broker.sock") as line:
                    line.send(b"malformed")
                    for _ in range(2):
                        with lingers.make() as s:
                            send_with(line, message(OFFER, uuid=(1, 2)), [s])
        with self.b_sends(self.broker, lambda: (Lingers(),), send):
            self.everybody_is_served()

    def test_a_stranger_at_the_daemon_of_another_user(self):
        name = abstract_name(f"{self.dirs[A]}/posternd.sock")

        def send(lingers, line):
            for _ in range(MANY):
                with lingers.make() as s:
                    send_with(line, message(HELLO, uuid=self.stacks[0]), [s])
        with self.b_sends(self.daemon, lambda: (Lingers(), line_to(name)), send):
            self.everybody_is_served()

    def test_files_of_a_silent_file_system(self):
        """The thread that closes them stays stuck: B's descriptors are refused then, and neither B's lines nor anything of A's."""
        try:
            fuse = SilentFuse(f"{self.top}/fuse")
        except OSError as error:
            self.skipTest(f"no FUSE: {error}")

        def prepare():
            os.close(fuse.device)
            return (self.joined(),)

        def send(line):
            file = os.open(f"{fuse.at}/f", os.O_RDWR)
            for _ in range(MANY):
                send_with(line, message(OFFER, uuid=(1, 2)), [file])

        def refused_and_heard():
            line = self.joined()
            memory = os.memfd_create("no-listener")
            answers = [ask(line, message(OFFER, uuid=(1, 2)), memory) for _ in range(4 * MANY)]
            os.close(memory)
            return [answers[-1], ask(line, message(UNOFFER, uuid=(7, 7)))]
        with self.b_sends(self.broker, prepare, send, before_its_end=fuse.end):  # for B's own file has to be closed, too
            self.everybody_is_served()
            self.assertEqual(self.as_user(B, refused_and_heard), [errno.EBUSY, errno.ENOENT])
            self.everybody_is_served()
        self.broker_answers(B)  # what was stuck has been closed


def load_tests(_loader, _tests, _pattern):
    return unittest.TestSuite(StuckClose(name) for name in vars(StuckClose) if name.startswith("test_"))


if __name__ == "__main__":
    if os.getuid() != 0:
        print("skipped: it needs root, to be two other users")
        sys.exit(77)
    signal.alarm(220)
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        trespass_test.BUILD = copied(os.path.abspath(sys.argv.pop(1)), directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
