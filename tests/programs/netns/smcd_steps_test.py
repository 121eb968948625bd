# smcd_steps_test.py - each step of a handshake, and at each of them each death: what the others have then is what TCP gives, at once.
# SPDX-License-Identifier: Apache-2.0
#
# usage: smcd_steps_test.py BUILD_DIR [-v] [TEST...]; without a name: Server and Client, with TIER=long also BothBlocking and BothEpoll; exit 77 without root, namespaces or the SYN option.
#
# Steps within a message, and between two, are those of a peer that the test plays byte by byte (clckit.py); steps of our own processes
# are those in which they wait for one that was stopped. Each combination is a test method, made from the tables below.

import os
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import clckit
import containers
import netlab
import pauses
import smcd_test
import synkit
import stepskit
from stepskit import MODES, PORTS, inside, reset

BUILD = "build"
LIMIT_SEC = 1  # on an idle machine
SILENT_SEC = 1  # smcd.msec: so long a client waits for a peer that says nothing
BEAT_SEC = 0.03  # for what was sent to be read; nobody says when it is


def ended(sock):
    """The end of the stream, or a reset."""
    try:
        data = sock.recv(100)
    except ConnectionResetError:
        return True
    assert data == b"", data
    return True


def gone(sock):
    """The same, behind whatever was sent before."""
    try:
        while sock.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


def echoes(sock):
    sock.sendall(b"by TCP")
    return sock.recv(100) == b"by TCP"


class Steps(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.lab = None

    def setUp(self):
        """A lab in which something went wrong is thrown away."""
        cls = type(self)
        pauses.begin()
        if cls.lab is None:
            cls.lab = stepskit.Lab()
            try:
                cls.lab.setUp()
            except BaseException:
                cls.lab.doCleanups()
                cls.lab = None
                raise
            cls.baseline = cls.lab.baseline()
        self.gid, self.was_settled, cls.lab.case = cls.lab.gid, False, self._testMethodName

    def tearDown(self):
        if not self.was_settled:
            self.lose()

    @classmethod
    def lose(cls):
        if cls.lab is not None:
            for what, (seconds, case) in cls.lab.worst.items():
                print(f"\n{cls.__name__}: {what} after {seconds * 1000:.0f} ms at most ({case})", end="", flush=True)
            print()
            lab, cls.lab = cls.lab, None
            lab.go_on()
            lab.doCleanups()

    @classmethod
    def tearDownClass(cls):
        cls.lose()

    def settle(self):
        self.lab.settle(self.baseline)
        self.was_settled = True

    def at_once(self, what, began, limit=LIMIT_SEC, until=None):
        took = (until or time.monotonic()) - began
        self.lab.note(what, took)
        self.assertLess(took, pauses.limit(began, limit), what)

    def heard(self, sock, kind):
        message = clckit.whole(sock)
        self.assertIsNotNone(message, "the stream ends")
        self.assertEqual(message[0], kind)
        return message[1]


class Server(Steps):
    """The peer is the client of a real server."""

    STEPS = ("connected", "half_proposal", "accept_received", "half_confirm", "nobodys_token", "held")
    DEATHS = ("peers_fin", "peers_reset", "server", "servers_posternd", "broker")

    def reach(self, step, port):
        sock = clckit.marked(inside(self.lab.a))
        self.addCleanup(sock.close)
        sock.connect((self.lab.pair.server, port))
        self.assertTrue(clckit.synkit.exchanged(sock))
        proposal, confirm = clckit.proposal(self.gid), clckit.confirm(self.gid)
        if step == "half_proposal":
            sock.sendall(proposal[:len(proposal) // 2])
        elif step != "connected":
            sock.sendall(proposal)
            self.heard(sock, clckit.ACCEPT)
        if step == "half_confirm":
            sock.sendall(confirm[:len(confirm) // 2])
        if step == "nobodys_token":
            self.fall_back(sock)
            self.assertTrue(echoes(sock))
        return sock

    def fall_back(self, sock):
        sock.sendall(clckit.confirm(self.gid))
        self.assertEqual(clckit.diagnosis_of(self.heard(sock, clckit.DECLINE)), clckit.DIAG_NO_MEMORY)

    def reach_all(self, step):
        """One at each listener."""
        peers = [self.reach(step, port) for port in PORTS.values()]
        if step == "held":
            time.sleep(BEAT_SEC)  # for accept() to return
            self.lab.stop("server")  # nobody takes from posternd what has become TCP
            for peer in peers:
                self.fall_back(peer)
        time.sleep(BEAT_SEC)
        return peers

    def finish(self, step, sock):
        """What is left of the handshake, to its Decline: the device went with the broker."""
        if step == "connected":
            sock.sendall(clckit.proposal(self.gid))
        elif step == "half_proposal":
            proposal = clckit.proposal(self.gid)
            sock.sendall(proposal[len(proposal) // 2:])
        elif step == "accept_received":
            sock.sendall(clckit.confirm(self.gid))
        elif step == "half_confirm":
            confirm = clckit.confirm(self.gid)
            sock.sendall(confirm[len(confirm) // 2:])
        self.heard(sock, clckit.DECLINE)

    def case(self, step, death):
        old = self.lab.old(PORTS["alone"])
        self.addCleanup(old.close)
        self.assertTrue(echoes(old))
        peers = self.reach_all(step)
        is_tcp = step in ("nobodys_token", "held")
        began = time.monotonic()
        if death == "peers_fin":
            for peer in peers:
                peer.close()
        elif death == "peers_reset":
            for peer in peers:
                reset(peer)
        else:
            self.lab.kill(death.replace("s_", "'s "))
        is_lost = death == "server" or (death == "servers_posternd" and step != "nobodys_token")
        if not is_lost:
            self.lab.go_on()
        for peer in peers if death in ("server", "servers_posternd", "broker") else []:
            if is_lost:
                self.assertTrue(ended(peer))
                self.at_once("the peer sees the end", began)
            else:
                if not is_tcp:
                    self.finish(step, peer)
                    self.at_once("the peer gets a Decline", began)
                self.assertTrue(echoes(peer))
                self.at_once("the peer has an answer by TCP", began)
            peer.close()
        self.lab.go_on()
        if death != "server":
            self.assertTrue(echoes(old))
            self.at_once("an old client has its answer", began)
            self.assertFalse(self.lab.spins(self.lab.server, 0.1), "woken for what is not there")
            self.lab.served(LIMIT_SEC)
        old.close()
        self.settle()


class Client(Steps):
    """The peer is the server of a real client, which connects in both ways at the same time."""

    STEPS = ("accepted", "proposal_received", "half_accept", "nobodys_token", "declined")
    DEATHS = ("peers_fin", "peers_reset", "peer", "clients_posternd", "broker", "client", "silence")
    port = 9000

    def setUp(self):
        super().setUp()
        self.listener, self.names = clckit.marked(inside(self.lab.b)), {}
        self.addCleanup(self.listener.close)
        Client.port += 1  # a client remembers addresses that cost it the whole time
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(("", Client.port))
        self.listener.listen()

    def taken(self, timeout=10):
        self.listener.settimeout(timeout)
        sock = self.listener.accept()[0]
        sock.settimeout(10)
        self.addCleanup(sock.close)
        return sock

    def reach(self, step, how):
        self.names[how] = self.lab.name()
        self.lab.client.tell("go", self.names[how], how, Client.port)
        sock = self.taken()
        self.assertTrue(clckit.synkit.exchanged(sock))
        if step != "accepted":
            self.heard(sock, clckit.PROPOSAL)
        accept = clckit.accept(self.gid)
        if step == "half_accept":
            sock.sendall(accept[:len(accept) // 2])
        if step == "nobodys_token":
            sock.sendall(accept)
            self.assertEqual(clckit.diagnosis_of(self.heard(sock, clckit.DECLINE)), clckit.DIAG_NO_MEMORY)
        if step == "declined":
            sock.sendall(clckit.decline())
        return sock

    def finish(self, step, sock):
        if step == "accepted":
            self.heard(sock, clckit.PROPOSAL)
        accept = clckit.accept(self.gid)
        if step in ("accepted", "proposal_received"):
            sock.sendall(accept)
        elif step == "half_accept":
            sock.sendall(accept[len(accept) // 2:])
        if step in ("accepted", "proposal_received", "half_accept"):
            self.heard(sock, clckit.DECLINE)

    def echo(self, sock):
        data = sock.recv(100)
        sock.sendall(data)
        return data.decode()

    def said(self, how):
        when, said = self.lab.client.outcome(self.names[how])
        self.lab.client.tell("close", self.names[how])
        return when, said["error"] or said["got"] or "end", said["did"]

    def carried(self, began, limit, *socks):
        """Each of these connections has one client's bytes, once."""
        self.assertEqual(sorted(self.echo(sock) for sock in socks), sorted(self.names.values()))
        for how, name in self.names.items():
            when, result, _ = self.said(how)
            self.assertEqual(result, name)
            self.at_once("the client has its answer" if limit == LIMIT_SEC else "the client of a silent peer has its answer", began, limit, when)

    def case(self, step, death):
        peers = [self.reach(step, how) for how in MODES]
        time.sleep(BEAT_SEC)
        is_tcp = step in ("nobodys_token", "declined")
        began = time.monotonic()
        if death == "peers_fin":
            for peer in peers:
                peer.shutdown(socket.SHUT_WR)
        elif death == "peers_reset":
            for peer in peers:
                reset(peer)
        elif death == "peer":
            self.listener.close()
            for peer in peers:
                peer.close()
        elif death != "silence":
            self.lab.kill(death.replace("s_", "'s "))
        if death == "client":
            for peer in peers:
                self.assertTrue(gone(peer))
                self.at_once("the peer sees the end", began)
        elif death in ("peers_fin", "peers_reset", "peer") and (is_tcp or death == "peer"):
            # Of a connection the end; without one, nobody listens any more.
            for how in MODES:
                when, result, did = self.said(how)
                self.assertIn((did, result), [("recv", "end"), ("recv", "ECONNRESET"), ("send", "ECONNRESET"), ("send", "EPIPE")] if is_tcp
                              else [("connect", "ECONNREFUSED")])
                self.at_once("the client sees the end", began, until=when)
        elif is_tcp or death in ("clients_posternd", "broker"):
            for peer in peers:
                self.finish(step, peer)
            self.carried(began, LIMIT_SEC, *peers)
        else:
            again = [self.taken() for _ in MODES]
            self.assertFalse(any(clckit.synkit.exchanged(sock) for sock in again))
            self.carried(began, LIMIT_SEC + (SILENT_SEC if death == "silence" else 0), *again)
            for sock in again:
                sock.close()
        for peer in peers:
            peer.close()
        self.settle()


class Both(Steps):
    """Neither is played. What a process waits for at a step is stopped before; it goes on when the other has been killed."""

    # What the client sends, and what is stopped (-) or goes on (+) before the next message on the wire.
    PROPOSAL, ACCEPT, CONFIRM = clckit.PROPOSAL, clckit.ACCEPT, clckit.CONFIRM
    A, B = "client's posternd", "server's posternd"
    STEPS = {
        "unaccepted": ("-server", PROPOSAL),
        "proposal_unread": ("-" + B, PROPOSAL),
        "server_registers": ("-broker", PROPOSAL),
        "client_asks": ("-" + A, ACCEPT),
        "client_attaches": ("-" + A, ACCEPT, "-broker", "+" + A),
        "confirm_unread": ("-" + A, ACCEPT, "-" + B, "+" + A, CONFIRM),
        "server_attaches": ("-" + A, ACCEPT, "-" + B, "+" + A, CONFIRM, "-broker", "+" + B),
    }
    DEATHS = ("client", "server", "clients_posternd", "servers_posternd", "broker", "nobody")
    # With a connection or without. A client that learns from SO_ERROR that it is connected may find it reset by then.
    SERVER_GONE = [("connect", "ECONNREFUSED"), ("recv", ""), ("recv", "ECONNRESET"), ("send", "ECONNRESET"), ("send", "EPIPE")]
    how = None

    def reach(self, step, name, how):
        ear = stepskit.Ear(self.lab.a)
        self.addCleanup(ear.close)
        todo = list(self.STEPS[step])
        self.lab.stop(todo.pop(0)[1:])
        self.lab.client.tell("go", name, how, PORTS[how])
        for what in todo:
            if isinstance(what, int):
                ear.wait(what)
            else:
                (self.lab.stop if what[0] == "-" else self.lab.go_on)(what[1:])
        time.sleep(BEAT_SEC)

    def case(self, step, death):
        name, how, started = self.lab.name(), self.how, time.monotonic()
        self.reach(step, name, how)
        limit, began = LIMIT_SEC, time.monotonic()
        if death == "nobody":  # until smcd.msec is over, whatever stands still; but data needs its server
            limit += SILENT_SEC
            if step == "unaccepted":
                time.sleep(SILENT_SEC)
                self.lab.go_on()
        else:
            self.lab.kill(death.replace("s_", "'s "))
            self.lab.go_on()
        if death != "client":
            when, said = self.lab.client.outcome(name)
            result = (said["did"], said["error"] or said["got"])
            if death == "server":
                self.assertIn(result, self.SERVER_GONE + ([("connect", "ECONNRESET")] if how == "epoll" else []))
            else:
                self.assertEqual(result, ("recv", name))
            self.at_once("the client of a silent peer has its answer" if death == "nobody" else "the client has its answer", began, limit, when)
            self.lab.client.tell("close", name)
            if when - started > SILENT_SEC * 0.9:
                self.lab.kill("client")  # it would do without handshakes for a while
        self.settle()


class BothBlocking(Both):
    how = "blocking"


class BothEpoll(Both):
    how = "epoll"


def each(case, steps, deaths):
    """A method for each combination."""
    for step in steps:
        for death in deaths:
            def method(self, step=step, death=death):
                self.case(step, death)
            setattr(case, f"test_{step}_{death}", method)


each(Server, Server.STEPS, Server.DEATHS)
each(Client, Client.STEPS, Client.DEATHS)
for one in (BothBlocking, BothEpoll):
    each(one, Both.STEPS, Both.DEATHS)

def together(cases, options):
    """Most of it is waiting: each class in a process of its own, at the same time."""
    def dies_with_us():
        netlab.libc.prctl(containers.PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    started = [subprocess.Popen([sys.executable, __file__, BUILD, *options, case.__name__], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, preexec_fn=dies_with_us) for case in cases]
    for process in started:
        print(process.communicate()[0], flush=True)
    return max(process.returncode for process in started)


if __name__ == "__main__":
    BUILD = smcd_test.BUILD = os.path.abspath(sys.argv.pop(1))
    signal.alarm(230 if os.environ.get("TIER") != "long" else 560)
    try:
        containers.Containers(nat=True).close()
    except netlab.Unavailable as why:
        print(f"skipped: {why}")
        sys.exit(77)
    if all(word.startswith("-") for word in sys.argv[1:]):
        # Two of ours take a minute and a half.
        both = (BothBlocking, BothEpoll) if os.environ.get("TIER") == "long" else ()
        sys.exit(together((Server, Client, *both), sys.argv[1:]))
    smcd_test.CGROUP = synkit.Cgroup()
    smcd_test.CGROUP.enter()
    try:
        unittest.main(warnings="ignore")
    finally:
        smcd_test.CGROUP.remove()
