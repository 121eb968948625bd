# syn_option_test.py - SMC's option in SYN and SYN-ACK between two network namespaces, looked at on the wire and by the sockets.
# SPDX-License-Identifier: Apache-2.0
#
# usage: syn_option_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, cgroup2, namespaces, or where the broker has no SYN option.

import errno
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab
from synkit import EXCHANGED, EXID, MARKED, OPTION, SynTest, bits, exchanged, main, mark, options_254

MSG_FASTOPEN, TCP_FASTOPEN = 0x20000000, 23
NOPS = b"\x01" * len(OPTION)
TFO_EXPERIMENTAL = b"\xfe\x04\xf9\x89"


def kinds(segment):
    return [(kind, len(body)) for kind, body in segment.option_list()]


class Exchange(SynTest):
    """Which ends mark, and what is seen then."""

    def check(self, client_marks, server_marks, address):
        listener = self.listener(server_marks, address)
        client, taken = self.connect(listener, client_marks)
        self.carries(client, taken)
        both = client_marks and server_marks
        self.assertEqual((exchanged(client), exchanged(taken)), (both, both))
        self.assertEqual([options_254(s) for s in self.syns()], [[EXID] * client_marks])
        self.assertEqual([options_254(s) for s in self.synacks()], [[EXID] * both])
        for _, segment in self.lab.wire.seen:
            if not segment.flags & netlab.SYN:
                self.assertEqual(options_254(segment), [])

    def test_who_marks(self):
        for address in (netlab.V4["b"], netlab.V6["b"]):
            for client_marks in (0, 1):
                for server_marks in (0, 1):
                    with self.subTest(address=address, client=client_marks, server=server_marks):
                        self.port += 1
                        self.check(client_marks, server_marks, address)

    def test_bits(self):
        listener = self.listener()
        client = self.client()
        self.assertEqual((bits(listener), bits(client), bits(self.client(0))), (MARKED, MARKED, 0))
        client, taken = self.connect(listener, client=client)
        self.assertEqual((bits(client), bits(taken)), (MARKED | EXCHANGED, EXCHANGED))

    def test_unmarked_is_as_before(self):
        """Byte for byte as long, option for option the same, as without the program."""
        seen = []
        for attached in (True, False):
            if not attached:
                self.broker.stop()
            listener = self.listener(0)
            self.carries(*self.connect(listener, 0))
            seen.append([(s.flags, kinds(s), s.payload) for _, s in self.lab.wire.seen if s.payload or s.flags & netlab.SYN])
            self.lab.wire.seen.clear()
            listener.close()
        self.assertEqual(*seen)
        self.assertEqual(len(seen[0]), 4)

    def test_costs_eight_bytes(self):
        listener = self.listener()
        self.connect(listener, 0)
        self.connect(listener, 1)
        bare, marked = self.syns()
        self.assertEqual(len(marked.options), len(bare.options) + 8)
        self.assertIn(OPTION + b"\x01\x01", marked.options)

    def test_nonblocking_connect(self):
        listener = self.listener()
        client = self.client()
        client.setblocking(False)
        self.assertEqual(client.connect_ex(listener.getsockname()), errno.EINPROGRESS)
        taken = self.accept(listener)
        client.settimeout(20)
        self.carries(client, taken)
        self.assertEqual((client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), exchanged(client), exchanged(taken)), (0, 1, 1))

    def test_accept_queue(self):
        listener = self.listener()
        clients = [self.client(i % 2) for i in range(8)]
        for client in clients:
            client.connect(listener.getsockname())
        ports = {client.getsockname()[1]: exchanged(client) for client in clients}
        self.assertEqual(sorted(ports.values()), [0] * 4 + [1] * 4)
        for _ in clients:
            taken = self.accept(listener)
            self.assertEqual(exchanged(taken), ports[taken.getpeername()[1]])

    def test_wildcard_and_mapped_addresses(self):
        listener = self.listener(1, "::")
        client = self.client()
        client.connect((netlab.V4["b"], self.port))
        self.assertEqual((exchanged(client), exchanged(self.accept(listener))), (1, 1))

    def test_same_socket_connects_again(self):
        """The answer belongs to the connection, the mark to the socket."""
        client, _ = self.connect(self.listener())
        self.assertEqual(bits(client), MARKED | EXCHANGED)
        netlab.call("connect", client.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16)  # Python has no word for it
        self.port += 1
        self.connect(self.listener(0), client=client)
        self.assertEqual(bits(client), MARKED)

    def test_reuseport_group(self):
        """The kernel chooses one of the group; each answers for itself."""
        group = []
        for marks in (0, 1):
            sock = self.lab.socket("b")
            self.addCleanup(sock.close)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((netlab.V4["b"], self.port))
            if marks:
                mark(sock)
            sock.listen()
            sock.setblocking(False)
            group.append(sock)
        met = [0, 0]
        for _ in range(24):
            client = self.client()
            client.connect((netlab.V4["b"], self.port))
            which = next(i for i in (0, 1, 0, 1, 0, 1) if self.try_accept(group[i]))
            met[which] += 1
            self.assertEqual((exchanged(client), exchanged(self.taken)), (which, which))
        self.assertTrue(all(met), met)

    def try_accept(self, listener):
        try:
            self.taken = listener.accept()[0]
        except BlockingIOError:
            time.sleep(0.2)
            return False
        self.addCleanup(self.taken.close)
        return True

    def test_listens_twice(self):
        """shutdown() ends listening, listen() begins anew."""
        listener = self.listener()
        listener.shutdown(socket.SHUT_RDWR)
        listener.listen()
        client, taken = self.connect(listener)
        self.assertEqual((exchanged(client), exchanged(taken)), (1, 1))

    def test_own_port(self):
        """A socket that connects to itself is a simultaneous open: plain TCP."""
        sock = self.client()
        with self.lab.inside("a"):
            sock.bind((netlab.V4["a"], self.port))
            sock.connect((netlab.V4["a"], self.port))
        sock.sendall(b"x")
        self.assertEqual((sock.recv(1), exchanged(sock)), (b"x", 0))


class Wires(SynTest):
    """What happens to segments on their way."""

    def test_first_syn_is_lost(self):
        lost = []

        def rule(_, segment):
            if segment.is_syn() and not lost:
                lost.append(segment)
                return None
            return [segment]

        self.lab.wire.rule = rule
        client, taken = self.connect(self.listener())
        self.assertEqual([options_254(s) for s in self.syns(again=True)][:2], [[EXID]] * 2)
        self.assertEqual((exchanged(client), exchanged(taken)), (1, 1))

    def test_first_synack_is_lost(self):
        lost = []

        def rule(_, segment):
            if segment.is_synack() and not lost:
                lost.append(segment)
                return None
            return [segment]

        self.lab.wire.rule = rule
        client, taken = self.connect(self.listener())
        self.assertGreaterEqual(len(self.synacks(again=True)), 2)
        self.assertTrue(all(options_254(s) == [EXID] for s in self.synacks(again=True)))
        self.assertEqual((exchanged(client), exchanged(taken)), (1, 1))

    def test_syns_with_the_option_are_dropped(self):
        """Three are tried, then the connection comes about without."""
        self.lab.wire.rule = lambda _, segment: None if options_254(segment) else [segment]
        client, taken = self.connect(self.listener())
        self.carries(client, taken)
        self.assertEqual([options_254(s) for s in self.syns(again=True)][:4], [[EXID]] * 3 + [[]])
        self.assertEqual((exchanged(client), exchanged(taken)), (0, 0))

    def rewrite(self, chosen, change):
        def rule(_, segment):
            if chosen(segment):
                segment.options = change(segment.options)
            return [segment]

        self.lab.wire.rule = rule

    def through(self, change):
        """(client says, server says) where the SYN's options are changed on the way."""
        self.rewrite(netlab.Segment.is_syn, change)
        self.port += 1
        client, taken = self.connect(self.listener())
        self.carries(client, taken)
        return exchanged(client), exchanged(taken)

    def test_option_is_taken_out_of_the_syn(self):
        self.assertEqual(self.through(lambda options: options.replace(OPTION, NOPS)), (0, 0))
        self.assertEqual([options_254(s) for s in self.synacks()], [[]])

    def test_option_is_taken_out_of_the_synack(self):
        """The one case in which the two differ: a server can't know (docs/protocols/syn-option.md)."""
        self.rewrite(netlab.Segment.is_synack, lambda options: options.replace(OPTION, NOPS))
        client, taken = self.connect(self.listener())
        self.carries(client, taken)
        self.assertEqual((exchanged(client), exchanged(taken)), (0, 1))

    def test_other_options_of_the_kind(self):
        """Kind 254 is shared: experimental TFO and strangers."""
        def becomes(other):
            return lambda options: options.replace(OPTION + b"\x01\x01", other)

        for other, answer in ((TFO_EXPERIMENTAL + b"\x01" * 4, 0),
                              (b"\xfe\x06\xf9\x89\xc3\xd9\x01\x01", 0),
                              (b"\xfe\x06\xe2\xd4\xc3\xc4\x01\x01", 0),
                              (b"\xfe\x08" + EXID + b"\0\0", 1),
                              (b"\xfe\x07" + EXID + b"\0\x01", 0),
                              (b"\xfd\x06" + EXID + b"\x01\x01", 0),
                              (b"\x01\x01" + OPTION, 1),
                              (b"\xfe\x04\xab\xcd" + OPTION + b"\x01\x01", 1),
                              (OPTION + b"\x01\x01\xfe\x04\xab\xcd", 1),
                              (TFO_EXPERIMENTAL + OPTION + b"\x01\x01", 0),
                              (OPTION + b"\x01\x01" + TFO_EXPERIMENTAL, 0),
                              (OPTION + b"\x22\x02", 0)):
            with self.subTest(option=other.hex()):
                self.assertEqual(self.through(becomes(other)), (answer, answer))

    def test_cookies(self):
        self.lab.sysctl("b", "net/ipv4/tcp_syncookies", 2)
        try:
            for address in (netlab.V4["b"], netlab.V6["b"]):
                self.port += 1
                client, taken = self.connect(self.listener(1, address))
                self.carries(client, taken)
                self.assertEqual([options_254(s) for s in self.syns()], [[EXID]])
                self.assertEqual([options_254(s) for s in self.synacks()], [[]])
                self.assertEqual((exchanged(client), exchanged(taken)), (0, 0))
        finally:
            self.lab.sysctl("b", "net/ipv4/tcp_syncookies", 1)

    def test_fast_open(self):
        """Data in the SYN is the program's: never together with the option."""
        for side in "ab":
            self.lab.sysctl(side, "net/ipv4/tcp_fastopen", 3)
        listener = self.listener()
        listener.setsockopt(socket.SOL_TCP, TCP_FASTOPEN, 8)
        for _ in range(2):  # the first gets the cookie, the second uses it
            client = self.client()
            client.setblocking(True)  # Python's timeout would make it non-blocking
            client.sendto(b"early", MSG_FASTOPEN, listener.getsockname())
            taken = self.accept(listener)
            self.assertEqual(taken.recv(5), b"early")
            self.assertEqual((exchanged(client), exchanged(taken)), (0, 0))
        self.assertEqual([s.payload for s in self.syns()], [b"", b"early"])
        self.assertEqual([options_254(s) for s in self.syns() + self.synacks()], [[]] * 4)

    def simultaneous(self, marks, lose=None):
        """Both connect; each SYN is held until the other is out, or that of one side is lost."""
        held, both = {}, threading.Event()

        def rule(side, segment):
            if not segment.is_syn() or both.is_set():
                return [segment]
            held[side] = segment
            if len(held) == 2:
                both.set()
                for one, other in (("a", "b"), ("b", "a")):
                    if one != lose:
                        self.lab.wire.put(other, held[one])
            return None

        self.lab.wire.rule = rule
        socks = {side: self.client(marks, side=side) for side in "ab"}
        for side, sock in socks.items():
            sock.bind((netlab.V4[side], self.port))
            sock.setblocking(False)
        socks["a"].connect_ex((netlab.V4["b"], self.port))
        socks["b"].connect_ex((netlab.V4["a"], self.port))
        self.assertTrue(both.wait(10))
        for sock in socks.values():
            sock.settimeout(20)
            wait_connected(sock)
        self.carries(socks["a"], socks["b"])
        return socks["a"], socks["b"]

    def test_simultaneous_open(self):
        for lose in (None, "a"):
            self.port += 1
            self.assertEqual([exchanged(sock) for sock in self.simultaneous(1, lose)], [0, 0])

    def test_address_translation(self):
        """As a NAT would do it: a client that sees another address than the server's, and the other way round."""
        inside, outside = socket.inet_aton(netlab.V4["b"]), socket.inet_aton("10.77.0.99")

        def rule(side, segment):
            if side == "a" and segment.dst == outside:
                segment.dst, segment.dport, segment.src = inside, self.port, socket.inet_aton("10.77.0.98")
            elif side == "b":
                segment.src, segment.sport, segment.dst = outside, 80, socket.inet_aton(netlab.V4["a"])
            return [segment]

        self.lab.wire.rule = rule
        for side, address in (("a", "10.77.0.99"), ("b", "10.77.0.98")):
            with self.lab.inside(side):
                other = netlab.MAC["b" if side == "a" else "a"]
                self.lab.ip("neigh", "replace", address, "lladdr", other, "dev", f"v{side}", "nud", "permanent")
        listener, client = self.listener(), self.client()
        client.connect(("10.77.0.99", 80))
        taken = self.accept(listener)
        self.carries(client, taken)
        self.assertEqual((exchanged(client), exchanged(taken), taken.getpeername()[0]), (1, 1, "10.77.0.98"))

    def test_netfilter_translates(self):
        """The kernel's own NAT on both sides: the destination of what leaves a, the source of what comes to b."""
        rules = {"a": ("output priority -100", f"ip daddr 10.77.0.99 tcp dport 80 dnat to {netlab.V4['b']}:{self.port}"),
                 "b": ("input priority 100", "ip saddr 10.77.0.1 snat to 10.77.0.98")}
        nft = shutil.which("nft", path="/usr/sbin:/sbin")
        if not nft:
            self.skipTest("no nft command (nftables)")
        try:
            for side, (hook, rule) in rules.items():
                commands = f"add table ip n\nadd chain ip n c {{ type nat hook {hook}; }}\nadd rule ip n c {rule}\n"
                with self.lab.inside(side):
                    subprocess.run([nft, "-f", "-"], input=commands, text=True, check=True)
            listener, client = self.listener(), self.client()
            client.connect(("10.77.0.99", 80))
            taken = self.accept(listener)
            self.carries(client, taken)
            self.assertEqual((exchanged(client), exchanged(taken), taken.getpeername()[0]), (1, 1, "10.77.0.98"))
        finally:
            for side in rules:
                with self.lab.inside(side):
                    subprocess.run([nft, "delete", "table", "ip", "n"], check=False)


def wait_connected(sock):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            sock.getpeername()
            sock.settimeout(20)
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("not connected")


if __name__ == "__main__":
    main(Exchange, Wires)
