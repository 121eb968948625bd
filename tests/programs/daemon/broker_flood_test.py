# broker_flood_test.py - members of the broker that want too much of it, or take nothing of what they are told: the message is refused, the
# line stays, and other users' members are served as ever.
# SPDX-License-Identifier: Apache-2.0
#
# usage: broker_flood_test.py BUILD_DIR [-v] [TEST...]
# Root runs it, for actors of several users. Exit 77: not root.

import errno
import os
import resource
import signal
import socket
import struct
import sys
import time
import unittest

import broker_lies_test
from broker_lies_test import A, B, C, Lies

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import sanitizer
from actorkit import ALIVE, BELL, HAVE_LINK, HOST, JOIN, LINK_END, LISTENER, OFFER, REGISTER, SEEK, UNOFFER, CutOff, name

MANY, OFTEN, SO_COOKIE = 1500, 12000, 57
KEPT_BUSY_SEC, CLOSES_SEC = 2, 8


def has_ended_already(line):
    """Whether what is there to be read of it has an end."""
    try:
        while True:
            line.receive(wait=False)
    except CutOff:
        return True
    except BlockingIOError:
        return False


def what_is_there(line):
    """To be read of it."""
    while True:
        try:
            yield line.receive(wait=False)
        except BlockingIOError:
            return


class Quotas(Lies):
    policy = '{"listeners": 3, "processes": 2, "stacks": 4, "links": 2, "buffers": 2, "daemons": 3}'

    def setUp(self):
        super().setUp()
        self.actor_a, self.line = self.member(A)
        _, self.second = self.member(A)
        self.other_actor, self.other = self.member(B)

    def is_refused(self, status, most, ask):
        """`ask(line, i)`: so many are taken, then refused on every line of that user, and none is cut off; another user has as many."""
        self.assertEqual([ask(self.line, i) for i in range(most)], [0] * most)
        self.assertEqual(ask(self.line, most), status)
        self.assertEqual(ask(self.second, most + 1), status)
        self.assertEqual(ask(self.other, most + 2), 0)
        for line in (self.line, self.second, self.other):
            line.barrier()

    def test_listeners(self):
        with self.actor_a.listener() as tcp:
            ask = lambda line, i: line.status(OFFER, fd=tcp.fileno(), uuid=(id(line), 1), a=i)
            self.is_refused(errno.ENOSPC, 3, ask)
            self.assertEqual(ask(self.line, 0), 0, "one that it has is no new one")
            self.assertEqual(self.line.status(UNOFFER, uuid=(id(self.line), 1), a=0), 0)
            self.assertEqual(ask(self.second, 9), 0)

    def test_processes(self):
        pidfd = os.pidfd_open(os.getpid())
        self.is_refused(errno.EDQUOT, 2, lambda line, i: self.alive(line, pidfd, i))
        os.close(pidfd)

    def alive(self, line, pidfd, i):
        """Its daemons expect no answer; one that gives a number gets it, if it is refused."""
        line.send(ALIVE, fd=pidfd, seq=1 << 30, uuid=(id(line), 1), a=i)
        line.barrier()
        refused = [m.status for m in line.news if m.kind == ALIVE]
        line.news.clear()
        return refused[0] if refused else 0

    def test_stacks(self):
        self.is_refused(errno.EPERM, 4, lambda line, i: line.status(REGISTER, uuid=(id(line), i), id=(1, 1)) % errno.ENOSPC)

    def test_links(self):
        self.is_refused(errno.ENOSPC, 2, lambda line, i: line.status(HAVE_LINK, uuid=(id(line), 1), peer=(7, 7), id=(id(line), i)))

    def test_tokens(self):
        self.is_refused(errno.ENOSPC, 2, lambda line, i: line.status(REGISTER, uuid=(id(line), 1), id=(1, 1)))

    def test_lines(self):
        third, other = self.actor(A), self.actor(B)
        held = [third.joined(self.path), other.joined(self.path)]
        with self.assertRaises((CutOff, ConnectionError)):
            held.append(third.joined(self.path))
        for line in (self.line, self.second, self.other, *held):
            line.barrier()
            line.close()


class Told(Lies):
    def setUp(self):
        super().setUp()
        self.ports = []

    def offer_many(self, actor, line, n):
        """All by one socket, which is several endpoints'."""
        tcp = actor.listener()
        self.addCleanup(tcp.close)
        self.ports.append(tcp.getsockname()[1])
        for i in range(n):
            line.send(OFFER, fd=tcp.fileno(), seq=i + 1, uuid=(id(line), 1), a=i)
            if i % 100 == 99:
                self.answers(line, 100)
        self.answers(line, n % 100)

    def answers(self, line, n):
        while n:
            message = line.receive()
            if message.kind == OFFER:
                self.assertEqual(message.status, 0)
                n -= 1
            else:
                line.take(message)

    def test_who_joins_hears_of_all(self):
        """More than a line may have waiting."""
        for user in (A, B):
            self.offer_many(*self.member(user), MANY // 2)
        _, late = self.member(C)
        heard = set()
        while len(heard) < MANY:
            message = late.receive()
            late.take(message)
            if message.kind == LISTENER:
                heard.add((message.uuid_hi, message.uuid_lo, message.a))

    def test_what_changes_often_is_told_once(self):
        """A member that takes nothing for a while hears how it is in the end, and is not cut off for what another one does."""
        actor, line = self.member(A)
        _, watcher = self.member(B)
        with actor.listener() as tcp:
            for i in range(MANY):
                self.assertEqual(line.status(OFFER, fd=tcp.fileno(), uuid=(1, 1), a=i % 40, b=i), 0)
                line.send(UNOFFER, uuid=(1, 1), a=i % 40, b=i)
            self.assertEqual(line.status(OFFER, fd=tcp.fileno(), uuid=(1, 1), a=50), 0)
            while not any(m.kind == LISTENER and m.a == 50 for m in watcher.news):
                watcher.take(watcher.receive())

    def test_offers_of_what_is_not_there(self):
        """Each would have the list of all listeners read: a user's are few, and what needs no list is taken all the same."""
        actor, line = self.member(A)
        nowhere = {"uuid": (1, 1), "addr": name("127.0.0.1", 9)}
        said = [line.status(OFFER, a=i, cookie=1000 + i, **nowhere) for i in range(MANY)]
        self.assertEqual(said[0], errno.ENOENT)
        self.assertEqual(set(said), {errno.ENOENT, errno.EXDEV})
        self.assertLess(said.count(errno.ENOENT), MANY // 2)
        with actor.listener() as tcp:
            here = {"uuid": (1, 1), "a": MANY, "addr": name(*tcp.getsockname())}
            cookie = struct.unpack("=Q", tcp.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
            self.assertEqual(line.status(OFFER, cookie=cookie, **here), 0)
            self.assertEqual(line.status(OFFER, fd=tcp.fileno(), **here), 0)

    def memory_kb(self):
        with open(f"/proc/{self.broker.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))

    def test_one_socket_for_ever_new_stacks(self):
        """It is offered for one after the other, and withdrawn each time: nothing is left of them, though the socket goes on listening."""
        actor, line = self.member(A)
        with actor.listener() as tcp:
            for i in range(OFTEN):
                if i == OFTEN // 4:
                    before = self.memory_kb()
                self.assertEqual(line.status(OFFER, fd=tcp.fileno(), uuid=(1, 1 + i)), 0)
                self.assertEqual(line.status(UNOFFER, uuid=(1, 1 + i)), 0)
            if sanitizer.kind_of(f"{broker_lies_test.BUILD}/posternd") is None:
                self.assertLess(self.memory_kb() - before, OFTEN // 4 * 3 * 150 // 1024 // 2)

    def test_seeking_one_port_again_and_again(self):
        """What it is told is not answered, so there is much that an answer would have to wait for."""
        self.offer_many(*self.member(A), MANY)
        actor, line = self.member(B)
        seeker = actor.line(self.path)
        self.addCleanup(seeker.close)
        self.assertEqual(seeker.status(JOIN, a=1), 0)
        port = self.ports[-1]
        before = self.memory_kb()
        for i in range(MANY):
            seeker.send(SEEK, seq=1 + i, a=port)
            if i % 50 == 0:
                said = [m.status for m in what_is_there(seeker) if m.kind == SEEK]
                self.assertEqual(set(said) - {errno.EALREADY}, set())
        line.barrier()
        self.assertEqual(line.status(SEEK, a=port), 0, "one that is told of all")
        if sanitizer.kind_of(f"{broker_lies_test.BUILD}/posternd") is None:
            self.assertLess(self.memory_kb() - before, 4096)

    def test_close_does_not_wait_for_who_reads_nothing(self):
        actor, line = self.member(A)
        _, silent = self.member(B)
        with actor.listener() as tcp:
            self.assertEqual(line.status(OFFER, fd=tcp.fileno(), uuid=(1, 1)), 0)
            self.assertEqual(line.status(UNOFFER, uuid=(1, 1)), 0)
        line.barrier()
        self.assertFalse(has_ended_already(silent), "it was waited for until it was cut off")

    def test_close_does_not_wait_for_who_is_always_told_of_something_else(self):
        """It answers, now and then; and another member of its user sees to it that there is always something that it is to hear first."""
        victims, victim = self.member(A)
        self.offers(victims, victim, (0xa, 1))
        accomplices, accomplice = self.member(C)
        _, slow = self.member(C)
        slow.barrier()
        tcp = accomplices.listener()
        self.addCleanup(tcp.close)
        offer = lambda i: self.assertEqual(accomplice.status(OFFER, fd=tcp.fileno(), uuid=(0, 1), a=i), 0)
        for i in range(40):
            offer(i)
        asked, said, answered = [], 0, False
        begin = answers_at = time.monotonic()
        while not answered and time.monotonic() < begin + KEPT_BUSY_SEC + CLOSES_SEC:
            asked += [m for m in what_is_there(slow) if m.seq >> 31]
            if asked and time.monotonic() >= answers_at:
                if asked[0].kind == LISTENER and asked[0].uuid_hi == 0:
                    offer(asked[0].a)
                slow.send(asked[0].kind, seq=asked.pop(0).seq)
                answers_at = time.monotonic() + 0.04
            if not said and time.monotonic() >= begin + KEPT_BUSY_SEC:
                said = victim.seq = 1 << 20
                victim.send(UNOFFER, seq=said, uuid=(0xa, 1))
            for message in what_is_there(victim):
                victim.take(message)
                answered = answered or message.seq == 1 << 20
            list(map(accomplice.take, what_is_there(accomplice)))
            time.sleep(0.005)
        self.assertTrue(answered, "it waits for as long as others like")

    def test_news_of_link_groups_that_it_does_not_have(self):
        victim_actor, victim = self.member(A)
        self.offers(victim_actor, victim, (1, 1))
        _, line = self.member(B)
        for i in range(20):
            self.assertEqual(line.status(HAVE_LINK, uuid=(2, 1), peer=(1, 1), id=(3, i)), 0)
            line.send(LINK_END, id=(3, i), a=0)
        line.barrier()
        self.assertEqual(self.told(victim, LINK_END), [])


class FewDescriptors(Lies):
    """The kernel counts all descriptors that the broker has under way against one limit."""
    policy = '{"descriptors": 40}'

    def setUp(self):
        super().setUp()
        resource.prlimit(self.broker.process.pid, resource.RLIMIT_NOFILE, (300, 300))

    def test_who_reads_nothing_takes_none_from_others(self):
        held = []
        for _ in range(10):
            _, line = self.member(B)
            held.append(line)
            line.sock.setblocking(False)
            try:
                for _ in range(400):
                    line.send(BELL, a=0xffffffff, seq=9)
            except (BlockingIOError, CutOff):
                pass
        _, honest = self.member(A)
        while not any(m.kind == HOST and m.fd is not None for m in honest.news):
            honest.take(honest.receive())
        self.assertEqual(honest.status(99), errno.ENOSYS)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: not root")
        sys.exit(77)
    signal.alarm(220)
    broker_lies_test.BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
