# verbs_test.py - TCP of unmodified programs by postern-verbsnic's loop, over a card that is made up (verbs_card.cc).
# SPDX-License-Identifier: Apache-2.0
#
# usage: verbs_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, namespaces, or where postern-verbsnic was not built.
#
#     namespace a, kernel    va ====== vb    namespace n: the card's wire
#                                       |
#                                       | rules: queue pair, else
#                          namespace b: vb, the card's interface, with the addresses; posternd and the programs
#
# Of the card the filters' packets go to the queue pair, all else to the interface, as with a card that steers by rules. What is
# tried so is all but the calls of libibverbs; and what the program says where there is no such card.

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab
import soft_test
import wire_test
import wirekit
from netlab import MAC, V4, V6
from wirekit import exchange

ETHTOOL_STXCSUM = 0x17


class Wire(soft_test.Wire):
    """On a wire checksums are whole."""

    @staticmethod
    def whole_segments(name):
        soft_test.Wire.whole_segments(name)
        soft_test.ethtool_off(name, ETHTOOL_STXCSUM)


class VerbsWire(soft_test.SoftWire):
    def new_lab(self):
        return Wire(self.device)

    rules = 100000  # that the card has room for

    def command(self, interface, netns, _):
        return [f"{self.build}/tests/unit/verbs_card", "--interface", interface, "--netns", self.lab.path(netns), "--wire", "vb",
                "--rules", str(self.rules)]


class ServerTest(VerbsWire, wire_test.ServerTest):
    """All of wire_test.py's with the server over the VI, but two."""

    test_taken = None  # nobody finds it taken
    test_cookies_at_listen = None  # as with any soft VI (docs/vi.md)


class DriverTest(VerbsWire, soft_test.DriverTest):
    """Those of soft_test.py's, but those in which the driver dies: its rules die with it, and the kernel resets what it then gets."""

    capabilities = ("NET_RAW", "BPF")
    test_driver_killed = test_driver_killed_under_load = None
    test_posternd_and_driver_killed = test_driver_and_posternd_are_gone = None

    def test_another_driver(self):
        """After the death of a driver new connections are served by the next one; posternd has told it of VI and filters."""
        server = self.program()
        self.echo_server(server)
        with self.connected() as sock:
            exchange(sock, b"a" * 1000)
        self.stop_driver()
        self.start_driver()
        self.until(self.attached, "the next driver was not told of the VI")
        before = self.lab.opens("b")
        with self.connected() as sock:
            exchange(sock, wire_test.content(300000))
        self.assertEqual(self.lab.opens("b"), before, "the kernel's TCP had a part in it")

    def test_full_table(self):
        """What the card has no rule for is served by the kernel."""
        self.stop_driver(signal.SIGTERM)
        self.rules = 1
        self.start_driver()
        server = self.program()
        for new in ((0, 0), (0, 1)):  # connections of the kernel in b: made, accepted
            self.port += 1
            self.echo_server(server)
            before = self.lab.opens("b")
            with self.connected() as sock:
                exchange(sock, wire_test.content(100000))
            self.assertEqual(tuple(now - then for now, then in zip(self.lab.opens("b"), before)), new)

    def report(self):
        """What the driver counts as the kernel's, when it has ended."""
        self.stop_driver(signal.SIGTERM)
        with open(f"{self.temp.name}/vb-driver.log", encoding="utf-8") as file:
            words = re.findall(r"kernel: (\d+) in, (\d+) not taken, .* (\d+) copied", file.read())[-1]
        return dict(zip(("in", "not taken", "copied"), map(int, words)))

    def test_kernel_without_the_driver(self):
        """What no filter takes does not come by the driver; what a rule lets through that is the kernel's goes back."""
        plain = self.plain("b")
        self.echo_server(plain)
        with self.connected() as sock:
            exchange(sock, wire_test.content(1 << 20))
        self.assertEqual(self.report(), {"in": 0, "not taken": 0, "copied": 0})

    def test_icmp_errors(self):
        """Those about a program's packets are copied to it; other errors, and echoes, are not."""
        server = self.program()
        for family in wire_test.FAMILIES:
            self.echo_server(server, family=family)
            with self.connected(family=family) as sock:
                exchange(sock, b"a")
                with self.lab.socket("a", socket.AF_PACKET, socket.SOCK_RAW) as wire:
                    wire.bind(("va", 0))
                    for kind in range(256):
                        for port in (self.port, self.port + 1000):
                            wire.send(icmp(family, kind, port, sock.getsockname()[1]))
            self.port += 1
        self.until(lambda: not self.waiting("n") and not self.waiting("b") and not self.waiting("n"), "the driver does not fetch them")
        self.assertEqual(self.report()["copied"], 8)

    def waiting(self, side):
        """Bytes in the packet sockets there."""
        with self.lab.inside(side), open("/proc/thread-self/net/packet", encoding="ascii") as file:
            return sum(int(line.split()[6]) for line in file.read().splitlines()[1:])


def icmp(family, kind, from_port, to_port):
    """A frame from a to b: about a packet of b to a."""
    def head(payload, protocol, src, dst):
        if family == socket.AF_INET:
            return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + payload, 0, 0, 64, protocol, 0, src, dst)
        return struct.pack("!IHBB16s16s", 6 << 28, payload, protocol, 64, src, dst)

    v4 = family == socket.AF_INET
    a, b = (socket.inet_pton(family, (V4 if v4 else V6)[side]) for side in "ab")
    tcp = struct.pack("!HHII", from_port, to_port, 1, 2) + bytes(8)
    message = struct.pack("!BBHI", kind, 0, 0, 0) + head(len(tcp), 6, b, a) + tcp
    macs = b"".join(bytes.fromhex(MAC[side].replace(":", "")) for side in "ba")
    return macs + struct.pack("!H", 0x0800 if v4 else 0x86dd) + head(len(message), 1 if v4 else 58, a, b) + message


def said(build, *arguments):
    """What postern-verbsnic says, and its exit code."""
    done = subprocess.run([f"{build}/postern-verbsnic", *arguments], capture_output=True, timeout=30, check=False)
    return done.returncode, done.stderr.decode()


class StartTest(unittest.TestCase):
    """Where there is no RDMA device: what is missing is named, with what to do."""

    def expect(self, parts, *arguments):
        code, text = said(wirekit.WireTest.build, *arguments)
        self.assertNotEqual(code, 0)
        for part in parts:
            self.assertIn(part, text)

    def test_arguments(self):
        self.expect(["--interface is required"])
        self.expect(["1 to 15 characters"], "--interface", "x" * 16)

    def test_interface(self):
        self.expect(["pstn-none: no such interface", "ip link"], "--interface", "pstn-none")
        self.expect(["lo is not an Ethernet interface"], "--interface", "lo")

    def test_device(self):
        netlab.call("unshare", netlab.CLONE_NEWNET)
        subprocess.run(["ip", "link", "add", "pv0", "type", "veth", "peer", "name", "pv1"], check=True)
        self.expect(["pv0 has no RDMA device", "--device"], "--interface", "pv0")
        self.expect(["there is no RDMA device pstn_0"], "--interface", "pv0", "--device", "pstn_0")


def missing(build):
    return soft_test.missing(build, "tests/unit/verbs_card", DriverTest)


if __name__ == "__main__":
    wirekit.main(missing)
