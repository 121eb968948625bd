# memberkit.py - very many members of a broker, played by one process: each a line of its own user's.
# SPDX-License-Identifier: Apache-2.0
#
#     crowd = Crowd(path)
#     member = crowd.member(uid)              joins; seeks=False: as one that is told of all
#     member.ask(OFFER, fd, uuid=..., a=...)  later, so many at a time as a daemon has under way; fd may be a function that makes one
#     crowd.settle()                          until all is answered
#
# A member answers each question of the broker's, and keeps what it is shown.

import collections
import os
import select
import socket
import time

from actorkit import GONE, JOIN, LISTENER, MSG
from daemon_test import HELLO, Client, Stack

QUESTIONS = 1 << 31  # the broker's numbers
UNDER_WAY = 32
PATIENCE_SEC = 60


def line_of(path, uid):
    """Connected as that user."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = os.geteuid()
    if uid != own:
        os.seteuid(uid)
    try:
        line.connect(path)
    finally:
        if uid != own:
            os.seteuid(own)
    return line


def family(test, path):
    """In a posternd: a stack of which this process is the only one, and its line."""
    stack = Stack()
    stack.slot(0, os.getpid())
    client = Client(path)
    test.addCleanup(client.sock.close)
    status, _, fd = client.ask(HELLO, a=0, uuid=stack.id, fd=stack.fd)
    test.assertEqual(status, 0)
    os.close(fd)
    return stack, client


class Member:
    def __init__(self, crowd, uid, seeks):
        self.crowd, self.uid = crowd, uid
        self.line = line_of(crowd.path, uid)
        self.waiting, self.open = collections.deque(), {}
        self.seq, self.statuses, self.took, self.told = 0, collections.Counter(), [], 0
        self.shown = {}
        self.gone = False
        self.ask(JOIN, a=1 if seeks else 0)

    def ask(self, kind, fd=None, a=0, b=0, c=0, d=0, uuid=(0, 0), addr=b"", cookie=0):
        self.crowd.open += 1
        self.waiting.append((kind, fd, (a, b, c, d, *uuid, addr, 0, 0, 0, 0, cookie, 0)))
        self.pump()

    def pump(self):
        while self.waiting and len(self.open) < UNDER_WAY:
            kind, fd, fields = self.waiting.popleft()
            self.seq += 1
            self.open[self.seq] = time.monotonic()
            data = MSG.pack(4, kind, self.seq, 0, *fields)
            if fd is None:
                self.line.send(data)
            elif callable(fd):
                made = fd()
                socket.send_fds(self.line, [data], [made])
                os.close(made)
            else:
                socket.send_fds(self.line, [data], [fd])

    def read(self):
        for _ in range(64):
            try:
                data = self.line.recv(MSG.size, socket.MSG_DONTWAIT)  # descriptors are left behind
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self.gone = True
                self.crowd.left(self)
                return
            self.take(MSG.unpack(data))

    def take(self, m):
        kind, seq = m[1], m[2]
        if seq >= QUESTIONS:
            self.told += 1
            key = (m[8], m[9], m[4])
            if kind == LISTENER:
                self.shown[key] = int.from_bytes(m[10][16:18], "little")
            elif kind == GONE:
                self.shown.pop(key, None)
            self.line.send(MSG.pack(4, kind, seq, 0, *(0,) * 4, 0, 0, b"", *(0,) * 6))
        elif seq in self.open:
            self.took.append(time.monotonic() - self.open.pop(seq))
            self.statuses[kind, m[3]] += 1
            self.crowd.open -= 1
            self.pump()


class Holder:
    """Another process, which keeps descriptors: one may have only so many."""

    def __init__(self):
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.channel.close()
                held = []
                while got := socket.recv_fds(theirs, 1, 1)[1]:
                    held += got
            finally:
                os._exit(0)
        theirs.close()

    def keep(self, fd):
        socket.send_fds(self.channel, [b"k"], [fd])

    def end(self):
        self.channel.close()
        os.waitpid(self.pid, 0)


class Crowd:
    def __init__(self, path):
        self.path, self.open, self.members, self.poll = path, 0, {}, select.epoll()

    def member(self, uid, seeks=True):
        member = Member(self, uid, seeks)
        self.members[member.line.fileno()] = member
        self.poll.register(member.line, select.EPOLLIN)
        return member

    def left(self, member):
        self.open -= len(member.open) + len(member.waiting)
        member.open.clear()
        member.waiting.clear()
        if self.members.pop(member.line.fileno(), None) is not None:
            self.poll.unregister(member.line)
            member.line.close()

    def turn(self, seconds=0.05):
        ready = self.poll.poll(seconds)
        for fd, _ in ready:
            if fd in self.members:
                self.members[fd].read()
        return bool(ready)

    def wait(self, condition):
        until = time.monotonic() + PATIENCE_SEC
        while not condition():
            if self.turn():
                until = time.monotonic() + PATIENCE_SEC
            elif time.monotonic() > until:
                return False
        return True

    def settle(self):
        assert self.wait(lambda: self.open == 0), f"{self.open} questions are not answered"

    def close(self):
        for member in list(self.members.values()):
            self.left(member)
        self.poll.close()
