# broker_scale_test.py - a thousand users with a hundred listeners each on one host, at one broker.
# SPDX-License-Identifier: Apache-2.0
#
# usage: broker_scale_test.py BUILD_DIR [-v] [TEST...]
# The members are played by this process (memberkit.py), the broker is a real one. With TIER=long the numbers are those of the title; else
# a smaller crowd. What is asserted is who is told what, and what is refused; what it takes is printed. Root runs it. Exit 77: not root.

import errno
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
import unittest

for room in ("daemon", "kit"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", room))
import broker_lies_test
import containers
import netlab
from actorkit import OFFER, SEEK, UNOFFER, name
from broker_lies_test import Lies
from memberkit import Crowd, Holder
from netlab import CLONE_NEWNET

LONG = os.environ.get("TIER") == "long"
USERS, EACH = (1000, 100) if LONG else (100, 20)
FIRST_UID, SHARED_PORT, FIRST_PORT, PORTS = 70000, 9999, 10000, 50000
PLACES = 6144  # of others' listeners, in one member's directory
HELD_MOST = 15000  # descriptors of one process
SO_COOKIE = 57
TICKS = os.sysconf("SC_CLK_TCK")


class Used:
    """What the broker takes between two looks."""

    def __init__(self, pid):
        self.pid = pid
        self.look()

    def look(self):
        with open(f"/proc/{self.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        with open(f"/proc/{self.pid}/status", encoding="utf-8") as file:
            self.rss_mib = next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024
        self.cpu, self.at = (int(fields[11]) + int(fields[12])) / TICKS, time.monotonic()

    def say(self, what, n):
        cpu, at = self.cpu, self.at
        self.look()
        print(f"  {what}: {self.at - at:.2f} s, broker {self.cpu - cpu:.2f} s CPU ({(self.cpu - cpu) / max(n, 1) * 1e6:.0f} us each of {n}), "
              f"{self.rss_mib:.0f} MiB", flush=True)


class Scale(Lies):
    policy = '{"listeners": %d}' % EACH

    def setUp(self):
        super().setUp()
        self.crowd = Crowd(self.path)
        self.addCleanup(lambda: self.crowd.close())
        self.used = Used(self.broker.process.pid)
        self.holders = []
        for _ in range((USERS * EACH + HELD_MOST - 1) // HELD_MOST):
            self.holders.append(Holder())
            self.addCleanup(self.holders[-1].end)
        self.where = [self.place(user, i) for user in range(USERS) for i in range(EACH)]
        self.cookies = {}

    def place(self, user, i):
        """Of each user: one listener on the port that all have, others at ports of their own."""
        return f"127.{1 + user // 250}.{user % 250}.1", SHARED_PORT if i == 0 else FIRST_PORT + (user * EACH + i) % PORTS

    def listener(self, at):
        """A descriptor of it. It listens for as long as the test takes."""
        os.seteuid(FIRST_UID + at // EACH)  # of a socket that is not shown the kernel has to say whose it is
        try:
            tcp = socket.socket()
        finally:
            os.seteuid(0)
        tcp.bind(self.where[at])
        tcp.listen(1)
        self.cookies[at] = int.from_bytes(tcp.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), sys.byteorder)
        self.holders[at // HELD_MOST].keep(tcp.fileno())
        return tcp.detach()

    def join_all(self):
        self.members = [self.crowd.member(FIRST_UID + user) for user in range(USERS)]
        self.crowd.settle()
        self.used.say(f"{USERS} join", USERS)

    def offer_all(self, what, with_sockets=True):
        quarter = USERS // 4
        for part in range(4):
            for user in range(part * quarter, (part + 1) * quarter):
                for i in range(EACH):
                    at = user * EACH + i
                    if with_sockets:
                        self.members[user].ask(OFFER, lambda at=at: self.listener(at), a=i, b=1, c=8, uuid=(FIRST_UID + user, 1))
                    else:
                        self.members[user].ask(OFFER, a=i, b=1, c=8, uuid=(FIRST_UID + user, 1), addr=name(*self.where[at]), cookie=self.cookies[at])
            self.crowd.settle()
            self.used.say(f"{what}, quarter {part + 1}", quarter * EACH)
        for member in self.members:
            self.assertEqual(member.statuses[OFFER, 0], EACH)

    def others_at(self, user, port):
        return {(FIRST_UID + at // EACH, 1, at % EACH) for at, (_, its) in enumerate(self.where) if its == port and at // EACH != user}

    def test_all_have_their_listeners(self):
        print(flush=True)
        self.join_all()
        self.offer_all("offers")
        self.assertEqual([m.told for m in self.members if m.told], [], "nobody has asked for anything")
        elder = self.crowd.member(FIRST_UID - 1, seeks=False)  # of a version that does not ask
        self.assertTrue(self.crowd.wait(lambda: len(elder.shown) >= min(PLACES * 3 // 4, USERS * EACH)), len(elder.shown))
        self.assertLessEqual(len(elder.shown), PLACES)
        self.used.say("one that is told of all", elder.told)

        # One beyond the quota is refused by itself, and others are as before.
        member = self.members[0]
        with socket.create_server(("127.0.0.1", 0)) as tcp:
            member.ask(OFFER, tcp.fileno(), a=EACH, b=1, c=8, uuid=(FIRST_UID, 1))
        self.crowd.settle()
        self.assertEqual(member.statuses[OFFER, errno.ENOSPC], 1)
        self.assertIn(f"may not offer a listener: {os.strerror(errno.ENOSPC)}", self.broker.log())

        # Each looks for one of its neighbour's, when the others do not.
        took = []
        for user, member in enumerate(self.members):
            port = self.where[(user + 1) % USERS * EACH + 1][1]
            member.took.clear()
            member.ask(SEEK, a=port)
            self.crowd.settle()
            took.append(member.took[-1])
            self.assertEqual(set(member.shown), self.others_at(user, port))
        self.used.say(f"look-ups one by one: median {statistics.median(took) * 1e6:.0f} us, longest {max(took) * 1e3:.1f} ms", USERS)

        # Some look for the port where all listen: they are told of all those, and nothing else.
        some = 10
        for member in self.members[:some]:
            member.shown.clear()
            member.ask(SEEK, a=SHARED_PORT)
        self.crowd.settle()
        for user, member in enumerate(self.members[:some]):
            self.assertEqual(set(member.shown), self.others_at(user, SHARED_PORT))
        self.used.say(f"{some} look for a port with {USERS} listeners", some * USERS)

        # What ends is told to those that have asked, before the one that ends it is answered.
        last = self.members[-1]
        told = sum(m.told for m in self.members)
        last.ask(UNOFFER, a=0, b=1, uuid=(FIRST_UID + USERS - 1, 1))
        self.crowd.settle()
        self.assertEqual(sum(m.told for m in self.members) - told, some)
        self.assertTrue(all((FIRST_UID + USERS - 1, 1, 0) not in m.shown for m in self.members))

        self.assertFalse(any(m.gone for m in (elder, *self.members)))
        self.assertNotIn("cut off", self.broker.log())

    def test_a_broker_comes_anew(self):
        print(flush=True)
        self.join_all()
        self.offer_all("offers")
        self.broker.close(signal.SIGKILL)
        self.assertTrue(self.crowd.wait(lambda: not self.crowd.members))
        self.broker = containers.Broker(broker_lies_test.BUILD, f"{self.top}/system", "--syn-option", "off")
        self.addCleanup(self.broker.close)
        self.used = Used(self.broker.process.pid)
        # All at once, each as soon as it can.
        self.members = [self.crowd.member(FIRST_UID + user) for user in range(USERS)]
        self.offer_all("offers without their sockets", with_sockets=False)
        member = self.members[0]
        member.ask(SEEK, a=SHARED_PORT)
        self.crowd.settle()
        self.assertEqual(set(member.shown), self.others_at(0, SHARED_PORT))
        self.assertFalse(any(m.gone for m in self.members))
        self.crowd.close()
        self.used.say("lines closed", USERS)
        self.crowd = Crowd(self.path)
        self.crowd.member(FIRST_UID)
        self.crowd.settle()
        self.used.say("all gone", USERS * EACH)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: several users are needed, so root")
        sys.exit(77)
    signal.alarm(1200 if LONG else 220)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    netlab.call("unshare", CLONE_NEWNET)  # whose ports are all free
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    broker_lies_test.BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
