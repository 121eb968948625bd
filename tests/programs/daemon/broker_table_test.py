# broker_table_test.py - walks the table of the broker's protocol (docs/threats.md): for each message, a member that lies in each field,
# beside two honest ones of other users.
# SPDX-License-Identifier: Apache-2.0
#
# usage: broker_table_test.py BUILD_DIR [-v] [TEST...]
# After each lie the honest ones are asked: they are served, know of each other what is true, and were told nothing of the liar's making.

import os
import re
import signal
import sys
import unittest

import broker_lies_test
from broker_lies_test import A, B, C, FAR, Lies

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import actorkit
from actorkit import ATTACH, GONE, HAVE_LINK, HOST, LINK, LINK_END, LISTENER, OFFER, REGISTER, CutOff, name

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
ITS_OWN = 1 << 30  # a number that is none of the line's own
NUMBERS = (0, 1, 2, 3, 31, 4096, 0x7fffffff, 0xffffffff)


def table():
    """The messages that the page has a row for."""
    with open(f"{ROOT}/docs/threats.md", encoding="utf-8") as file:
        section = re.search(r"^## The broker's protocol$(.*?)^## ", file.read(), re.M | re.S).group(1)
    return re.findall(r"^\| `k(\w+)` \|", section, re.M)


def handled():
    """Those that the broker takes."""
    with open(f"{ROOT}/controlplane/posternd/broker/broker.cc", encoding="utf-8") as file:
        return re.findall(r"case ctl::Type::k(\w+):", file.read())


def kind_of(message):
    return getattr(actorkit, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message).upper())


class Table(unittest.TestCase):
    def test_has_each_message(self):
        self.assertEqual(sorted(table()), sorted(handled()))


@unittest.skipIf(os.geteuid() != 0, "not root")
class Walk(Lies):
    def setUp(self):
        super().setUp()
        self.server, self.servers_line = self.member(A)
        self.client, self.clients_line = self.member(B)
        self.port = self.offers(self.server, self.servers_line, (0xa, 1), ep=3)
        self.clients_port = self.offers(self.client, self.clients_line, (0xb, 1))
        self.link = (0x11, 0x12)
        for line, own, peer, side in ((self.clients_line, (0xb, 1), (0xa, 1), 0), (self.servers_line, (0xa, 1), (0xb, 1), 1)):
            self.assertEqual(line.status(HAVE_LINK, uuid=own, peer=peer, id=self.link, a=side), 0)
        self.token = self.servers_line.ask(REGISTER, uuid=(0xa, 1), a=3).cookie
        self.line, self.own = None, (0xc, 0)

    def lie_as(self, **where):
        self.liar = self.actor(C, **where)
        self.tcp = self.liar.listener("0.0.0.0" if where else "127.0.0.1")
        self.addCleanup(self.tcp.close)
        if where:
            self.liar.add_address(FAR)
        memory = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        os.write(memory, name(FAR, 0))
        self.fds = {"none": None, "listener": self.tcp.fileno(), "memory": memory, "null": os.open("/dev/null", os.O_RDONLY),
                    "pidfd": os.pidfd_open(os.getpid()), "route": self.liar.route_socket(), "pipe": os.pipe()[0]}
        self.line = None

    # What the liar says of itself, which it may: its own stack, and in each field what is not its own.
    def honest_fields(self):
        return {"uuid": self.own, "peer": self.own, "id": (0xcc, 1), "addr": name("127.0.0.1", self.port), "a": 0, "b": 0, "c": 0, "d": 0, "cookie": 0}

    def lies(self):
        ids = ((0, 0), (0xa, 1), (0xb, 1), self.link, self.own, (2**64 - 1, 2**64 - 1))
        for field in ("a", "b", "c", "d"):
            yield from ({field: value} for value in NUMBERS)
        for field in ("uuid", "peer", "id"):
            yield from ({field: value} for value in ids)
        for one in ids:
            yield from ({"uuid": one, "peer": other, "id": self.link} for other in ids)
            yield {"uuid": one, "a": 3}
        yield from ({"addr": value} for value in (bytes(24), b"\xff" * 24, name(FAR, 443), name("127.0.0.1", self.clients_port)))
        yield from ({"cookie": value} for value in (1, 2**64 - 1))

    def says(self, kind, fd, fields):
        """The liar's message. A line that was cut off for it is followed by another one."""
        try:
            if self.line is None:
                self.line, self.own = self.liar.joined(self.path), (0xc, self.own[1] + 1)  # the last one may still have its stack
                self.assertEqual(self.line.status(OFFER, fd=self.tcp.fileno(), uuid=self.own), 0)
            self.line.send(kind, fd=fd, seq=ITS_OWN, **{**self.honest_fields(), **fields})
            self.line.barrier()
            return [m.status for m in self.line.news if m.seq == ITS_OWN]
        except CutOff:
            self.line = None
            return ["cut off"]
        finally:
            if self.line is not None:
                for message in self.line.news:
                    if message.fd is not None:
                        os.close(message.fd)
                self.line.news.clear()

    def is_of_the_liar(self, message):
        return (message.uuid_hi, message.uuid_lo) not in ((0xa, 1), (0xb, 1))

    def may_be_told(self, message, own):
        """Of the liar: its own listener, at the address that it has; link groups with its own stack."""
        if message.kind == HOST:
            return name(FAR, 128) not in os.pread(message.fd, 1 << 16, 0)
        if message.kind in (LISTENER, GONE):
            true_address = message.kind == GONE or message.addr == name("127.0.0.1", self.tcp.getsockname()[1])
            return not self.is_of_the_liar(message) or (true_address and message.d == 0)
        if message.kind == LINK:
            return (message.uuid_hi, message.uuid_lo) == own and (message.peer_hi, message.peer_lo) not in ((0xa, 1), (0xb, 1))
        return message.kind == LINK_END and (message.id_hi, message.id_lo) != self.link

    def others_are_well(self, what):
        for line, own in ((self.servers_line, (0xa, 1)), (self.clients_line, (0xb, 1))):
            line.barrier()
            for message in line.news:
                self.assertTrue(self.may_be_told(message, own), f"{what}: {message}")
                if message.fd is not None:
                    os.close(message.fd)
            line.news.clear()

    def test_beside_the_others(self):
        self.lie_as()
        self.walk()

    def test_in_a_network_namespace_of_its_own_making(self):
        self.lie_as(userns=True)
        self.walk()

    def walk(self):
        for message in table():
            kind = kind_of(message)
            if self.line is not None:  # what it has said before, its own offer withdrawn perhaps, is forgotten
                self.line.close()
            self.line = None
            for what, fd in self.fds.items():
                self.says(kind, fd, {})
                self.others_are_well(f"{message} with {what}")
            for fields in self.lies():
                self.says(kind, self.fds["listener" if kind == OFFER else "memory" if kind == LINK else "none"], fields)
                self.others_are_well(f"{message} with {fields}")
            self.state_is_true(message)

    def state_is_true(self, what):
        """Seen by one that comes after: both listeners are there, where they are; the token is good; the link group goes on."""
        late, line = self.member(B)
        line.barrier()
        shown = {(m.uuid_hi, m.uuid_lo, m.a): m.addr for m in line.news if m.kind == LISTENER and not self.is_of_the_liar(m)}
        self.assertEqual(shown, {(0xa, 1, 3): name("127.0.0.1", self.port), (0xb, 1, 0): name("127.0.0.1", self.clients_port)}, what)
        line.close()
        late.end()
        for side, own, peer, owner in ((0, (0xb, 1), (0xa, 1), self.clients_line), (1, (0xa, 1), (0xb, 1), self.servers_line)):
            self.assertEqual(owner.status(HAVE_LINK, uuid=own, peer=peer, id=self.link, a=side), 0, what)
        self.assertEqual(self.clients_line.status(ATTACH, cookie=self.token), 0, what)
        self.token = self.servers_line.ask(REGISTER, uuid=(0xa, 1), a=3).cookie
        self.assertNotEqual(self.token, 0)


if __name__ == "__main__":
    signal.alarm(220)
    broker_lies_test.BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
