# stuck_lock_test.py - locks of the kernel's that a user holds for as long as it likes, by a call on memory whose page never comes: whatever a
# daemon or a program of another user does with what that user has sent, it does not wait for them.
# SPDX-License-Identifier: Apache-2.0
#
# usage: stuck_lock_test.py BUILD_DIR [-v] [TEST...]
# Root runs it: user A has a daemon, a server and a client that are connected; user B sends. Exit 77: not root.

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest

import trespass_test
from broker_test import ALIVE, JOIN, LINK, MSG, OFFER, copied
from link_quota_test import link_group
from stuck_close_test import LIMIT_S, SilentFuse, StuckClose, line_to, send_with
from trespass_test import B, LIBC, ask, become, message

LISTENER = 17
IP_OPTIONS, PAGE = 4, 4096
READ, WRITE, SETSOCKOPT, EPOLL_WAIT = 0, 1, 54, 232  # numbers of x86-64
MANY = """
import socket, sys
port = int(sys.stdin.readline())
held = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(50)]
while True:
    for s in held: s.sendall(b"x")
    for s in held: s.recv(1)
    print("all", flush=True)
    if not sys.stdin.readline(): break
"""
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def page_that_never_comes(path):
    file = os.open(path, os.O_RDWR)
    page = LIBC.mmap(None, PAGE, 3, 2, file, 0)  # PROT_READ | PROT_WRITE, MAP_PRIVATE
    assert page not in (None, ctypes.c_void_p(-1).value), ctypes.get_errno()
    return ctypes.c_void_p(page)


def in_a_call(number, *args):
    """Another thread makes that system call, and is in it from now on."""
    tids = []

    def call():
        tids.append(threading.get_native_id())
        LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    threading.Thread(target=call, daemon=True).start()
    until = time.monotonic() + LIMIT_S
    while True:
        assert time.monotonic() < until, "the call does not sleep"
        time.sleep(0.05)
        if tids:
            with open(f"/proc/self/task/{tids[0]}/syscall", "rb") as file:
                if file.read().split()[0] == b"%d" % number:
                    return


def next_listener(line, stacks):
    """The stack of A's of which the broker tells B."""
    while True:
        said = MSG.unpack(line.recv(MSG.size))
        if said[1] == LISTENER and (said[8], said[9]) in stacks:
            return said[8], said[9]


class StuckLock(StuckClose):
    def setUp(self):
        try:
            self.fuse = SilentFuse(f"{self.top}/fuse")
        except OSError as error:
            self.skipTest(f"no FUSE: {error}")
        self.ended = False
        self.addCleanup(self.let_go)

    def let_go(self):
        if not self.ended:
            self.fuse.end()
        self.ended = True

    @contextlib.contextmanager
    def b_holds(self, act):
        """In a process of B's, which then has a lock; `act` gets a page that never comes."""
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S)
        pid = os.fork()
        if pid == 0:
            try:
                os.close(self.fuse.device)
                resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
                become(B)
                LIBC.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its own files in /proc are its own
                held = act(page_that_never_comes(f"{self.fuse.at}/f"))
                theirs.send(b"done")
                theirs.recv(1)
                del held
            except BaseException as error:  # told to the parent
                theirs.send(repr(error).encode())
            os._exit(0)
        theirs.close()
        try:
            self.assertEqual(ours.recv(1000), b"done")
            yield
        finally:
            self.let_go()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            ours.close()

    def b_sends_with(self, kind, make, **fields):
        """What `make` returns, and holds, goes to the broker; others are served meanwhile, and B's other lines, and B itself afterwards."""
        def act(page):
            line = self.joined()
            fd = make(page)
            send_with(line, message(kind, **fields), [fd])
            return line, fd
        with self.b_holds(act):
            self.everybody_is_served()
            self.assertEqual(self.as_user(B, lambda: ask(self.joined(), message(JOIN))), 106)  # EISCONN: it is heard
            self.everybody_is_served()
        until = time.monotonic() + LIMIT_S
        while self.as_user(B, self.offers) != [0, 0]:
            self.assertLess(time.monotonic(), until, "B is shut out for good")
            time.sleep(0.1)

    def offers(self):
        line = line_to(f"{self.system}/broker.sock")
        with socket.create_server(("127.0.0.1", 0)) as tcp:
            return [ask(line, message(JOIN)), ask(line, message(OFFER, uuid=(B, os.getpid())), tcp.fileno())]

    def test_a_listener(self):
        """setsockopt() holds the socket's lock, which getsockname() takes."""
        def make(page):
            tcp = socket.create_server(("127.0.0.1", 0))
            in_a_call(SETSOCKOPT, tcp.fileno(), socket.IPPROTO_IP, IP_OPTIONS, page, 4)
            return tcp.detach()
        self.b_sends_with(OFFER, make, uuid=(1, 2))

    def test_an_event_set_for_a_process(self):
        """epoll_wait() holds the set's lock, which /proc/PID/fdinfo takes."""
        def make(page):
            epoll = LIBC.epoll_create1(0)
            ready = os.eventfd(1)
            event = ctypes.create_string_buffer(12)
            event[0] = 1
            assert LIBC.epoll_ctl(epoll, 1, ready, event) == 0
            in_a_call(EPOLL_WAIT, epoll, page, 1, -1)
            return epoll
        self.b_sends_with(ALIVE, make, uuid=(1, 2), a=1)

    def test_memory_for_a_link_group(self):
        """read() holds the position's lock, which lseek() takes: the broker's, A's daemon's, and then A's server's."""
        size = os.stat(self.link_group_of(self.server.pid)).st_size
        with open(self.link_group_of(self.server.pid), "rb") as file:
            header = file.read(16)
        stacks = self.stacks

        def act(page):
            line = self.joined()
            server = next_listener(line, stacks)
            memory = link_group(header, size, (5, 5), (7, 7), server)
            again = os.open(f"/proc/self/fd/{memory}", os.O_RDWR)  # memory's own descriptor has no lock of its position
            in_a_call(READ, again, page, PAGE)
            send_with(line, message(LINK, uuid=server, peer=(7, 7), id=(5, 5)), [again])
            return line, again
        with self.b_holds(act):
            self.everybody_is_served()

    def link_group_of(self, pid):
        paths = [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
        return next(path for path in paths if "memfd:postern-lgr" in os.readlink(path))

    def test_memory_of_a_link_group(self):
        """write() holds the inode's lock, which a server takes that gives pages back."""
        peer = self.program(B, MANY, "--strict")
        self.assertEqual(self.command(peer, str(self.port)), "all")
        path = self.link_group_of(peer.pid)
        size = os.stat(path).st_size

        def act(page):
            memory = os.open(path, os.O_RDWR)
            os.lseek(memory, size - PAGE, os.SEEK_SET)
            in_a_call(WRITE, memory, page, PAGE)
            return (memory,)
        with self.b_holds(act):
            for _ in range(4):  # the server uses many rings, and has nothing to do for longer than it keeps them
                peer.stdin.write("again\n")
                peer.stdin.flush()
                time.sleep(0.2)
                self.a_is_well()
                self.assertEqual(peer.stdout.readline().strip(), "all")


def load_tests(_loader, _tests, _pattern):
    return unittest.TestSuite(StuckLock(name) for name in vars(StuckLock) if name.startswith("test_"))


if __name__ == "__main__":
    if os.getuid() != 0:
        print("skipped: it needs root, to be two other users")
        sys.exit(77)
    signal.alarm(220)
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        trespass_test.BUILD = copied(os.path.abspath(sys.argv.pop(1)), directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
