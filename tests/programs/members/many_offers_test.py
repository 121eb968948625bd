# many_offers_test.py - a posternd that has thousands of listeners, processes and link groups to tell the broker of.
# SPDX-License-Identifier: Apache-2.0
#
# usage: many_offers_test.py BUILD_DIR [-v] [TEST...]
# The broker is played, message by message: it sees how much is under way, and knows in the end what there is. With a real one the same
# numbers are told; root runs that, for members of several users.

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

for room in ("daemon", "kit"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", room))
import broker_test
import daemon_test
from actorkit import FILTER, GONE, HOST, JOIN, LISTENER, OFFER, PATIENCE_SEC, RELEASE, SEEK, UNOFFER, Line
from broker_test import Broker
from daemon_test import HELLO, LISTEN, UNLISTEN, Client, Stack
from memberkit import family, line_of
from readable import readable

MANY = 3000
UNDER_WAY_MOST = 64
QUESTIONS = 1 << 31  # a broker's numbers
FILTER_ADD, FILTER_REMOVE = 1, 2


def listening(test, n):
    """So many listening sockets, each at its own port."""
    sockets = []
    for _ in range(n):
        tcp = socket.socket()
        test.addCleanup(tcp.close)
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        sockets.append(tcp)
    return sockets


class PlayedBroker:
    """One end of posternd's line. It answers when it is told to."""

    def __init__(self, test, door):
        self.test, self.open, self.known, self.most = test, [], set(), 0
        self.line = Line(door.accept()[0])
        test.addCleanup(self.line.close)
        self.line.seq = QUESTIONS
        join = self.line.receive()
        test.assertEqual(join.kind, JOIN)
        self.line.send(JOIN, seq=join.seq)
        host = os.memfd_create("host")
        os.ftruncate(host, 1 << 20)
        self.line.send(HOST, fd=host)
        os.close(host)

    def hear(self):
        """All that posternd has sent by now: it answers a question of ours behind that."""
        self.line.seq += 1
        self.line.send(GONE, seq=self.line.seq, uuid=(9, 9))
        while (message := self.line.receive()).seq != self.line.seq:
            if message.fd is not None:
                os.close(message.fd)
            if message.kind in (OFFER, UNOFFER):
                self.open.append(message)
            elif message.seq:
                self.line.send(message.kind, seq=message.seq)
        self.most = max(self.most, len(self.open))
        self.test.assertLessEqual(len(self.open), UNDER_WAY_MOST)

    def answer(self, n=None):
        for message in self.open[:n]:
            key = (message.uuid_hi, message.uuid_lo, message.a)
            if message.kind == OFFER:
                self.known.add(key)
            else:
                self.known.discard(key)
            self.line.send(message.kind, seq=message.seq)
        del self.open[:n]

    def hear_until(self, keys):
        until = time.monotonic() + 3 * PATIENCE_SEC
        while self.known != keys or self.open:
            self.test.assertLess(time.monotonic(), until, f"{len(self.known)} of {len(keys)} known")
            self.hear()
            self.answer()


class ManyOffers(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.TemporaryDirectory(prefix="pstn-offers-")
        self.addCleanup(self.top.cleanup)
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(self.door.close)
        self.door.bind(f"{self.top.name}/broker.sock")
        self.door.settimeout(PATIENCE_SEC)
        self.path = f"{self.top.name}/run/posternd.sock"
        with open(f"{self.top.name}/log", "wb") as log:
            self.daemon = subprocess.Popen([f"{BUILD}/posternd", "--runtime-dir", f"{self.top.name}/run", "--foreground", "--verbose", "--idle-sec", "0", "--broker",
                                            f"{self.top.name}/broker.sock"], stderr=log)
        self.addCleanup(lambda: (self.daemon.kill(), self.daemon.wait()))
        self.assertTrue(daemon_test.until(lambda: os.path.exists(self.path)))

    def listen(self, client, sockets, first=0):
        for i, tcp in enumerate(sockets, first):
            self.assertEqual(client.ask(LISTEN, a=i, b=1, c=1, fd=tcp.fileno())[0], 0)

    def broker(self):
        self.door.listen()
        return PlayedBroker(self, self.door)

    def test_all_are_known_in_the_end(self):
        stack, client = family(self, self.path)
        self.listen(client, listening(self, MANY))
        broker = self.broker()
        broker.hear()
        self.assertGreater(len(broker.open), 0)
        broker.answer(10)
        # Those that go, and that come, while others are still to be told.
        going = 500
        for i in range(0, 2 * going, 2):
            client.send(UNLISTEN, a=i, b=1)
        self.listen_later(client, listening(self, 100), MANY)
        expected = {(*stack.id, i) for i in range(MANY + 100) if i >= 2 * going or i % 2}
        broker.hear_until(expected)
        broker.line.close()  # another broker knows nothing, and is told of all
        broker = PlayedBroker(self, self.door)
        broker.hear_until(expected)
        self.assertGreater(broker.most, 1)

    def listen_later(self, client, sockets, first):
        """Its answers are read behind those of all that it has asked before."""
        for i, tcp in enumerate(sockets, first):
            client.send(LISTEN, a=i, b=1, c=1, fd=tcp.fileno())

    def test_a_family_with_many_ends(self):
        broker = self.broker()
        stack = Stack()
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                stack.slot(0, os.getpid())
                client = Client(self.path)
                assert client.ask(HELLO, a=0, uuid=stack.id, fd=stack.fd)[0] == 0
                self.listen(client, listening(self, MANY))
                os.write(tell, b"1")
                time.sleep(100)
            finally:
                os._exit(1)
        os.close(tell)
        try:
            broker.hear_until({(*stack.id, i) for i in range(MANY)})
            self.assertEqual(os.read(ready, 1), b"1")
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(ready)
        broker.hear_until(set())

    def test_a_broker_that_is_slow(self):
        """It answers something now and then: it has others to answer, and is not given up."""
        stack, client = family(self, self.path)
        self.listen(client, listening(self, 40))
        broker = self.broker()
        for _ in range(10):
            broker.hear()
            broker.answer(1)
            time.sleep(0.5)
        broker.hear_until({(*stack.id, i) for i in range(40)})

    def test_what_has_to_arrive(self):
        """The broker takes nothing for a while: what gives back something of its arrives in the end, what can be asked again is refused."""
        _, client = family(self, self.path)
        line = Line(client.sock)
        broker = self.broker()
        broker.hear()
        tokens = list(range(1, MANY + 1))
        for token in tokens:
            line.send(RELEASE, cookie=token)
        self.assertEqual(line.status(FILTER, a=FILTER_ADD), errno.EAGAIN)
        line.send(FILTER, seq=77, a=FILTER_REMOVE, d=5)
        heard = []
        while not heard or heard[-1].kind != FILTER:
            heard.append(broker.line.receive())
        self.assertEqual([m.cookie for m in heard if m.kind == RELEASE], tokens)
        self.assertEqual((heard[-1].a, heard[-1].d), (FILTER_REMOVE, 5))
        broker.line.send(FILTER, seq=heard[-1].seq, status=errno.ENOENT)
        self.assertEqual(line.receive().status, errno.ENOENT)

    def test_a_flood_of_what_has_to_arrive(self):
        """More than that is no honest program's: the line ends, with all that the broker had for it, and posternd joins anew."""
        _, client = family(self, self.path)
        line = Line(client.sock)
        broker = self.broker()
        for token in range(1, 10 * MANY):
            line.send(RELEASE, cookie=token)
        self.assertTrue(broker.line.has_ended())
        PlayedBroker(self, self.door).hear()


class RealBroker(Broker):
    def known(self, uid, keys, ports):
        """What a member of that user's hears of them, when it asks for those ports."""
        line = Line(line_of(f"{self.system}/broker.sock", uid))
        self.addCleanup(line.close)
        self.assertEqual(line.status(JOIN, a=1), 0)
        for port in ports:
            self.assertEqual(line.status(SEEK, a=port), 0)
        return {(m.uuid_hi, m.uuid_lo, m.a) for m in line.news if m.kind == LISTENER} & keys

    @unittest.skipIf(os.geteuid() != 0, "not root")
    def test_a_broker_comes_anew(self):
        stack, client = family(self, f"{self.dirs['a']}/posternd.sock")
        sockets = listening(self, MANY)
        for i, tcp in enumerate(sockets):
            self.assertEqual(client.ask(LISTEN, a=i, b=1, c=1, fd=tcp.fileno())[0], 0)
        for comes in range(2):
            self.kill("system")
            self.start_broker()
            self.wait_for("a", "joined", comes + 2)
            # A member may ask for 1,024 ports, and one user's listeners get a third of its places: several hear of all.
            for first in range(0, MANY, 1000):
                some = range(first, first + 1000)
                keys = {(*stack.id, i) for i in some}
                ports = [sockets[i].getsockname()[1] for i in some]
                until = time.monotonic() + PATIENCE_SEC
                while (found := self.known(60020, keys, ports)) != keys:
                    self.assertLess(time.monotonic(), until, f"{len(found)} of {len(keys)}")
        self.assertNotIn("cut off", self.log("a"))
        self.assertEqual(self.log("a").count("joined"), 3)


if __name__ == "__main__":
    signal.alarm(220)
    daemon_test.load_layout()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    with readable(sys.argv.pop(1)) as BUILD:
        broker_test.BUILD = BUILD
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
