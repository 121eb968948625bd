# many_listeners_test.py - more listeners than there are places: each that is too many is refused by itself, and nobody has all places.
# SPDX-License-Identifier: Apache-2.0
#
# usage: many_listeners_test.py BUILD_DIR [-v] [TEST...]
# A directory has PSTN_DIR_LISTENERS places, of which others' listeners get three quarters, and one user a third of those. Root runs
# it: the listeners are several users'. Exit 77: not root.

import contextlib
import itertools
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import unittest

import broker_test
import daemon_test
import posternview
from broker_test import CLIENT, JOIN, MSG, OFFER, SERVER, Broker, Program
from daemon_test import HELLO, LISTEN, UNLISTEN, ENOSPC, Client, Stack

PLACES = posternview.abi_limit("PSTN_DIR_LISTENERS")
FOREIGN = PLACES * 3 // 4
KLISTENER = 17
NUMBERS = itertools.count(1)


class Member:
    """A daemon of that user, which answers each question of the broker's and keeps what it is shown."""

    def __init__(self, test, uid):
        self.uid, self.shown, self.answers = uid, {}, {}
        self.news = threading.Condition()
        os.seteuid(uid)
        try:
            self.line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.line.connect(f"{test.system}/broker.sock")
        finally:
            os.seteuid(0)
        test.addCleanup(self.end)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        test.assertEqual(self.ask(JOIN), 0)

    def end(self):
        self.line.shutdown(socket.SHUT_RDWR)
        self.reader.join()
        self.line.close()

    def read(self):
        while data := self.line.recv(MSG.size):
            m = MSG.unpack(data)
            if m[2] < 0x80000000:
                with self.news:
                    self.answers[m[2]] = m[3]
                    self.news.notify_all()
                continue
            with self.news:
                if m[1] == KLISTENER:
                    self.shown[m[8], m[4]] = True
                else:
                    self.shown.pop((m[8], m[4]), None)
                self.news.notify_all()
            with contextlib.suppress(BrokenPipeError):  # the test has ended
                self.line.send(MSG.pack(4, m[1], m[2], 0, *(0,) * 4, 0, 0, b"", *(0,) * 6))

    def ask(self, kind, fd=None, a=0, uuid=(0, 0)):
        seq = next(NUMBERS)
        data = MSG.pack(4, kind, seq, 0, a, 1, 64, 0, *uuid, b"", *(0,) * 6)
        socket.send_fds(self.line, [data], [fd] if fd is not None else [])
        with self.news:
            self.news.wait_for(lambda: seq in self.answers, 20)
            return self.answers.pop(seq)

    def offer(self, tcp, first, count):
        """So many listeners of a stack of its own, which are one socket. How many were taken."""
        return sum(self.ask(OFFER, tcp.fileno(), a=i, uuid=(self.uid, 1)) == 0 for i in range(first, first + count))

    def of(self, uid):
        return sum(key[0] == uid for key in self.shown)

    def wait(self, condition):
        with self.news:
            return self.news.wait_for(condition, 20)


class ManyListeners(Broker):
    policy = {"listeners": 2500}

    def listener(self):
        tcp = socket.socket()
        self.addCleanup(tcp.close)
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        return tcp

    def test_nobody_has_all_places_of_others(self):
        reader = Member(self, 60010)
        greedy = Member(self, 60011)
        self.assertEqual(greedy.offer(self.listener(), 0, 2510), 2500)  # the broker's quota, one by one
        share = FOREIGN // 3
        self.assertTrue(reader.wait(lambda: reader.of(60011) >= share), len(reader.shown))
        modest = [Member(self, 60012 + i) for i in range(8)]
        for member in modest:
            self.assertEqual(member.offer(self.listener(), 0, 20), 20)
        self.assertTrue(reader.wait(lambda: all(reader.of(member.uid) == 20 for member in modest)))
        self.assertEqual(reader.of(60011), share)

    def test_a_full_directory(self):
        stack = Stack()
        stack.slot(0, os.getpid())
        filler = Client(f"{self.dirs['a']}/posternd.sock")
        status, _, fd = filler.ask(HELLO, a=0, uuid=stack.id, fd=stack.fd)
        self.assertEqual(status, 0)
        os.close(fd)
        tcp = self.listener()
        for i in range(PLACES):
            self.assertEqual(filler.ask(LISTEN, a=i, b=1, c=1, fd=tcp.fileno())[0], 0, i)
        self.assertEqual(filler.ask(LISTEN, a=PLACES, b=1, c=1, fd=tcp.fileno())[0], ENOSPC)
        # A program's listener that has no place is the kernel's, and says so.
        server = Program(self, "a", SERVER)
        port = int(server.line())
        env = dict(os.environ, POSTERN_RUNTIME_DIR=self.dirs["a"])
        own = [s for s in posternview.sockets(POSTERNCTL, env=env) if s["pid"] == server.process.pid]
        self.assertEqual([s["reason"] for s in own], ["directory-full"])
        client = Program(self, "a", CLIENT)
        self.assertEqual(client.ask(f"connect {port}"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client)
        # A place that is given back is the next one's.
        self.assertEqual(filler.ask(UNLISTEN, a=0, b=1)[0], 0)
        self.assertEqual(filler.ask(LISTEN, a=PLACES, b=1, c=1, fd=tcp.fileno())[0], 0)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: several users are needed, so root")
        sys.exit(77)
    signal.alarm(220)
    daemon_test.load_layout()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    POSTERNCTL = os.path.abspath(f"{sys.argv[1]}/posternctl")
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        broker_test.BUILD = broker_test.copied(os.path.abspath(sys.argv.pop(1)), directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
