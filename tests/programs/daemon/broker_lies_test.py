# broker_lies_test.py - members of the broker that claim what is not theirs: addresses, listeners, link groups, another's identity.
# SPDX-License-Identifier: Apache-2.0
#
# usage: broker_lies_test.py BUILD_DIR [-v] [TEST...]
# Root runs it, for actors of several users and network namespaces. Exit 77: not root.

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import containers
from actorkit import ADDRESSES, ATTACH, HOST, JOIN, LEARN, LEARNT, LINK, LISTENER, OFFER, PATIENCE_SEC, REGISTER, Actor, CutOff, Line, name

BUILD = "build"
A, B, C = 60001, 60002, 60003
FAR = "192.0.2.1"  # of no interface here


class Lies(unittest.TestCase):
    policy = None

    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn-lies-")
        self.addCleanup(shutil.rmtree, self.top)
        os.chmod(self.top, 0o755)
        if self.policy:
            os.mkdir(f"{self.top}/system")
            with open(f"{self.top}/system/policy.json", "w", encoding="utf-8") as file:
                file.write(self.policy)
        self.broker = containers.Broker(BUILD, f"{self.top}/system", "--syn-option", "off")
        self.addCleanup(self.broker.close)
        self.path = f"{self.top}/system/broker.sock"

    def actor(self, *args, **kw):
        actor = Actor(*args, **kw)
        self.addCleanup(actor.end)
        return actor

    def member(self, *args, **kw):
        """Its process and its line, joined."""
        actor = self.actor(*args, **kw)
        line = actor.joined(self.path)
        self.addCleanup(line.close)
        return actor, line

    def offers(self, actor, line, stack, ep=0, ip="127.0.0.1"):
        """The port of a listener that it has, and has offered; it goes on listening."""
        tcp = actor.listener(ip)
        self.addCleanup(tcp.close)
        self.assertEqual(line.status(OFFER, fd=tcp.fileno(), uuid=stack, a=ep), 0)
        return tcp.getsockname()[1]

    def told(self, line, kind):
        line.barrier()
        return [m for m in line.news if m.kind == kind]


class Learnt(Lies):
    """The victim's next connect() to an address that its daemon has learnt goes to the one that has told of it."""

    def setUp(self):
        super().setUp()
        self.victim, self.victims_line = self.member(A)
        self.offers(self.victim, self.victims_line, (0xa, 1))  # so the broker knows whose stack that is
        self.server, self.servers_line = self.member(B, netns=True)
        self.offers(self.server, self.servers_line, (0xb, 1))

    def learns(self, **fields):
        """What the victim is told when the server says this."""
        self.victims_line.news.clear()
        self.servers_line.send(LEARN, **{"uuid": (0xb, 1), "peer": (0xa, 1), "addr": name(FAR, 443), **fields})
        self.servers_line.barrier()
        return [m for m in self.told(self.victims_line, LISTENER) if m.d & LEARNT]

    def reach(self, where):
        token = self.servers_line.ask(REGISTER, uuid=(0xb, 1)).cookie
        self.assertEqual(self.victims_line.status(ATTACH, cookie=token, addr=where), 0)

    def test_an_address_that_was_not_reached(self):
        self.assertEqual(self.learns(), [])
        self.assertEqual(self.learns(addr=bytes(24)), [])

    def test_another_address_than_the_one_that_was_reached(self):
        self.reach(name("192.0.2.7", 443))
        self.assertEqual(self.learns(), [])
        self.assertEqual(self.learns(addr=name("192.0.2.7", 80)), [])
        self.assertEqual(self.learns(addr=name("192.0.2.7", 443), a=1), [])

    def test_the_address_that_was_reached(self):
        self.reach(name(FAR, 443))
        self.assertEqual([m.addr for m in self.learns()], [name(FAR, 443)])
        self.assertEqual(self.learns(), [], "one connection proves it more than once")

    def test_a_daemon_is_told_of_one_by_its_broker(self):
        """A user's own daemon has not asked for a token of that listener: it enters nothing."""
        path = f"{self.top}/played.sock"
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(door.close)
        door.bind(path)
        door.listen()
        door.settimeout(PATIENCE_SEC)
        os.mkdir(f"{self.top}/daemon", 0o700)
        daemon = subprocess.Popen([f"{BUILD}/posternd", "--foreground", "--runtime-dir", f"{self.top}/daemon", "--idle-sec", "0", "--broker", path],
                                  stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (daemon.kill(), daemon.wait()))
        line = Line(door.accept()[0])
        self.addCleanup(line.close)
        line.take(line.receive())  # its kJoin
        self.assertEqual(line.news[0].kind, JOIN)
        line.seq = 1 << 31  # a broker's numbers
        self.assertEqual(line.status(LISTENER, uuid=(0xb, 1), d=LEARNT, addr=name("127.0.0.7", 443)), errno.EPERM)
        self.assertEqual(line.status(LISTENER, uuid=(0xb, 1), d=LEARNT, addr=bytes(24)), errno.EPERM)


class Addresses(Lies):
    """What is said to be of this host gets SYNs with an option that others have no use for."""

    def setUp(self):
        super().setUp()
        self.watcher, self.watchers_line = self.member(A)

    def host(self, line):
        """The addresses of the host as it is told, once more after this."""
        fresh = [m for m in self.told(line, HOST) if m.fd is not None]
        return os.pread(fresh[-1].fd, 1 << 16, 0)

    def says(self, actor, line, fd, said):
        """Whether A is told of `said`, of which `line` has said that its network namespace has it: by then it knows of `proof`, too."""
        proof = self.actor(netns=True)
        proof.add_address("198.51.100.9")
        line.send(ADDRESSES, fd, a=1)
        line.barrier()
        members = proof.joined(self.path)
        self.addCleanup(members.close)
        members.send(ADDRESSES, route := proof.route_socket())
        os.close(route)
        for _ in range(1000):
            host = self.host(self.watchers_line)
            if name("198.51.100.9", 128) in host:
                return name(said, 128) in host
        self.fail("an honest member's address is not believed")

    def test_in_its_own_words(self):
        actor, line = self.member(B, netns=True)
        fd = os.memfd_create("addresses", os.MFD_ALLOW_SEALING)
        os.write(fd, name("198.51.100.1", 0))
        self.assertFalse(self.says(actor, line, fd, "198.51.100.1"))
        os.close(fd)

    def test_of_another_network_namespace(self):
        other = self.actor(netns=True)
        other.add_address("198.51.100.2")
        actor, line = self.member(B, netns=True)
        fd = other.route_socket()
        self.assertFalse(self.says(actor, line, fd, "198.51.100.2"))
        os.close(fd)

    def test_of_a_namespace_that_it_has_made(self):
        actor, line = self.member(B, userns=True)
        actor.add_address("198.51.100.3")
        _, owns_line = self.member(B)
        fd = actor.route_socket()
        self.assertFalse(self.says(actor, line, fd, "198.51.100.3"))
        os.close(fd)
        self.assertIn(name("198.51.100.3", 128), self.host(owns_line), "its own user may go there")


class Identity(Lies):
    def test_a_pid_that_is_another_ones_now(self):
        """It connects, leaves the line to a relative, and dies; a process of another container gets its pid."""
        thief = Actor(B)
        line = thief.line(self.path)
        self.addCleanup(line.close)
        thief_pid = thief.pid
        thief.end()
        try:
            victim = self.actor(A, netns=True, pid=thief_pid)
        except OSError as error:
            self.skipTest(f"a pid can't be chosen: {error}")
        if victim.pid != thief_pid:
            self.skipTest("the pid was taken meanwhile")
        try:
            self.assertEqual(line.status(JOIN), errno.EPERM)
        except CutOff:
            pass

    def test_a_line_ends_with_the_process_that_made_it(self):
        actor = Actor(B)
        line = actor.joined(self.path)
        self.addCleanup(line.close)
        actor.end()
        self.assertTrue(line.has_ended())

    def test_it_joins_once(self):
        _, line = self.member(B)
        self.assertEqual(line.status(JOIN), errno.EISCONN)


class OneOfTwoPorts(Lies):
    policy = '{"rules": [{"from": {"user": %d}, "ports": "1-9999", "verdict": "deny"}]}' % B

    def test_a_link_group_is_with_the_stack_that_may_be_reached(self):
        server, servers_line = self.member(A)
        with_low = server.listener("127.0.0.1", 9998)
        self.addCleanup(with_low.close)
        self.assertEqual(servers_line.status(OFFER, fd=with_low.fileno(), uuid=(0xa, 2)), 0)
        self.offers(server, servers_line, (0xa, 1))
        _, line = self.member(B)
        self.assertEqual([m.uuid_lo for m in self.told(line, LISTENER)], [1])
        memfd = os.memfd_create("link")
        self.assertNotEqual(line.status(LINK, fd=memfd, uuid=(0xa, 2), peer=(0xb, 1), id=(1, 1)), 0)
        servers_line.barrier()
        self.assertEqual([m for m in servers_line.news if m.kind == LINK], [])
        os.close(memfd)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: not root")
        sys.exit(77)
    signal.alarm(220)
    BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
