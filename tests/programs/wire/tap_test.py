# tap_test.py - VIs over TAPs: what a stack may receive and send by its own, and what is left when programs and posternd die.
# SPDX-License-Identifier: Apache-2.0
#
# usage: tap_test.py BUILD_DIR --tap [-v] [TEST...]; exit 77 without root, namespaces, /dev/net/tun, tcx (Linux 6.6), or where posternd
# has no BPF. What unmodified programs see over such a VI is the business of wire_test.py and the others, which take --tap as well.

import contextlib
import fcntl
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time

KIT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kit")
sys.path.insert(0, KIT)

import netlab  # noqa: E402
import wirekit  # noqa: E402
from netlab import MAC, V4  # noqa: E402

ETH_ALL = 3
QUIET_SEC = 0.3

TUNSETPERSIST = 0x400454cb
SYS_PIDFD_GETFD = 438


def descriptors(pid, what):
    """Copies of a process's descriptors of that kind. (Its own calls do not reach those that are the library's.)"""
    pidfd = os.pidfd_open(pid)
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{name}") == what:
                found.append(netlab.libc.syscall(SYS_PIDFD_GETFD, pidfd, int(name), 0))
    os.close(pidfd)
    return found


def udp_frame(source, sport, dest, dport, mac=MAC["b"], payload=b"from a TAP"):
    udp = struct.pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload
    ip = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0, socket.inet_aton(source),
                               socket.inet_aton(dest)))
    ip[10:12] = struct.pack("!H", netlab.checksum(bytes(ip)))
    ether = bytes.fromhex(MAC["a"].replace(":", "")) + bytes.fromhex(mac.replace(":", ""))
    return ether + struct.pack("!H", netlab.IPV4) + bytes(ip) + udp


def tcp_frame(source, sport, dest, dport, flags=netlab.SYN):
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, 0, 0, 64, socket.IPPROTO_TCP, 0, socket.inet_aton(source), socket.inet_aton(dest))
    tcp = struct.pack("!HHIIBBHHH", sport, dport, 1000, 0, 5 << 4, flags, 1000, 0, 0)
    ether = bytes.fromhex(MAC["a"].replace(":", "")) + bytes.fromhex(MAC["b"].replace(":", ""))
    return netlab.Segment(ether + struct.pack("!H", netlab.IPV4) + ip + tcp).bytes()


class TapTest(wirekit.WireTest):
    def setUp(self):
        super().setUp()
        self.start_daemon("b")

    def owner(self):
        """A program that listens on the port, by a VI."""
        program = self.program()
        self.echo_server(program)
        self.assertTrue(self.steered(program))
        return program

    def tap_of(self, program):
        """Its TAP, as the program could use it by calls of its own."""
        (tap,) = descriptors(program.pid, "/dev/net/tun")
        self.addCleanup(os.close, tap)
        return tap

    @contextlib.contextmanager
    def sniffer(self):
        """What arrives at va: frames with these bytes in them."""
        with self.lab.inside("a"):
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_ALL))
            sock.bind(("va", 0))
        sock.settimeout(QUIET_SEC)

        def saw(mark):
            try:
                while True:
                    if mark in sock.recv(65536):
                        return True
            except TimeoutError:
                return False
        with sock:
            yield saw

    @staticmethod
    def send(tap, frame):
        os.write(tap, bytes(10) + frame)

    def test_sends_only_as_itself(self):
        tap = self.tap_of(self.owner())
        mark = struct.pack("!HH", self.port, 4321)
        with self.sniffer() as saw:
            self.send(tap, tcp_frame(V4["b"], self.port, V4["a"], 4321))
            self.assertTrue(saw(mark), "what is its own does not leave")
        foreign = {
            "another port": tcp_frame(V4["b"], self.port + 1, V4["a"], 4321),
            "another protocol's port": udp_frame(V4["b"], self.port, V4["a"], 4321),
            "another address": tcp_frame("10.77.0.99", self.port, V4["a"], 4321),
            "the peer's address": tcp_frame(V4["a"], self.port, V4["a"], 4321),
            "neither TCP nor UDP": tcp_frame(V4["b"], self.port, V4["a"], 4321)[:23] + b"\x2f" + tcp_frame(V4["b"], self.port, V4["a"], 4321)[24:],
            "a fragment": tcp_frame(V4["b"], self.port, V4["a"], 4321)[:20] + b"\x20\x00" + tcp_frame(V4["b"], self.port, V4["a"], 4321)[22:],
            "ARP": b"\xff" * 6 + bytes.fromhex(MAC["b"].replace(":", "")) + b"\x08\x06" + bytes(28) + b"\x10\xe1",
            "noise": os.urandom(100) + b"\x10\xe1",
        }
        for what, frame in foreign.items():
            with self.subTest(what), self.sniffer() as saw:
                self.send(tap, frame)
                self.assertFalse(saw(struct.pack("!H", 4321)), "it left")

    def test_nothing_reaches_the_kernel(self):
        """What is written to a TAP is not received by the kernel beside it, whoever it says it is from, and to whom."""
        tap = self.tap_of(self.owner())
        with self.lab.inside("b"):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind(("0.0.0.0", 5555))
        sock.settimeout(QUIET_SEC)
        with sock:
            for source, sport in ((V4["a"], 4321), (V4["b"], self.port), ("127.0.0.1", 9)):
                self.send(tap, udp_frame(source, sport, V4["b"], 5555))
                with self.assertRaises(TimeoutError):
                    sock.recv(100)
        # Nor once the program of the TAP could be thought to be gone: posternd has died.
        self.stop_daemon("b")
        with self.lab.inside("b"):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind(("0.0.0.0", 5555))
        sock.settimeout(QUIET_SEC)
        with sock, self.assertRaises(TimeoutError):
            self.send(tap, udp_frame(V4["a"], 4321, V4["b"], 5555))
            sock.recv(100)

    def test_receives_only_its_own(self):
        """What is for another port, or for another stack's, does not come by the TAP. Two stacks, on one interface."""
        first = self.owner()
        self.port += 1
        second = self.owner()
        self.assertEqual(len(self.taps()), 2)
        stopped = [first.pid, second.pid, *self.keepers()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        ports = (self.port - 1, self.port)
        with contextlib.ExitStack() as stack:
            for port in (*ports, self.port + 1):
                sock = stack.enter_context(self.new_socket("a"))
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sock.connect((V4["b"], port))
            time.sleep(0.1)
            for program, port in zip((first, second), ports):
                tap = self.tap_of(program)
                packet = netlab.Segment(os.read(tap, 65536)[10:])
                self.assertEqual(packet.dport, port)
                with self.assertRaises(BlockingIOError):
                    os.read(tap, 65536)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        for port in (self.port - 1, self.port):
            self.port = port
            with self.connected() as sock:
                wirekit.exchange(sock, bytes(100_000))

    def test_bell_is_read_only(self):
        maps = descriptors(self.owner().pid, "anon_inode:bpf-map")
        self.assertEqual(len(maps), 1)
        mmap.mmap(maps[0], 4096, mmap.MAP_SHARED, mmap.PROT_READ).close()
        with self.assertRaises(PermissionError):
            mmap.mmap(maps[0], 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        os.close(maps[0])

    def test_owner_killed(self):
        owner = self.owner()
        self.assertEqual(len(self.taps()), 1)
        owner.kill()
        self.until(lambda: not self.taps(), "its TAP is left")
        self.until(lambda: "the last one is gone" in self.log("b"), "the program is left")

    def test_persistent(self):
        """A stack that makes its TAP stay leaves nothing behind all the same."""
        owner = self.owner()
        (tap,) = descriptors(owner.pid, "/dev/net/tun")
        fcntl.ioctl(tap, TUNSETPERSIST, 1)
        os.close(tap)
        owner.kill()
        self.until(lambda: not self.taps(), "its TAP is left")

    def test_posternd_killed(self):
        """Connections go on; the next posternd has the VI again; with all of them, nothing is left."""
        owner = self.owner()
        with self.connected() as sock:
            wirekit.exchange(sock, bytes(100_000), end=False)
            self.stop_daemon("b")
            before = self.lab.segments("b")
            wirekit.exchange(sock, bytes(100_000), end=False)
            self.start_daemon("b")
            self.until(lambda: "was attached" in self.log("b"), lambda: f"it is not taken over: {self.log('b')}")
            self.until(lambda: self.steered(owner), "its filters are not there again")
            wirekit.exchange(sock, bytes(100_000), end=False)
            with self.connected() as other:
                wirekit.exchange(other, bytes(100_000))
            self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")
        self.assertEqual(len(self.taps()), 1)
        owner.kill()
        self.until(lambda: not self.taps(), "its TAP is left")

    def test_all_killed(self):
        owner = self.owner()
        self.stop_daemon("b")
        owner.kill()
        for pid in self.keepers():
            os.kill(pid, signal.SIGKILL)
        self.until(lambda: not self.taps(), "its TAP is left")
        # And the port is the kernel's: nothing steers to what is gone.
        with self.lab.inside("b"):
            server = socket.create_server(("0.0.0.0", self.port))
        server.settimeout(5)
        with server, self.connected() as sock:
            server.accept()[0].close()
            self.assertEqual(sock.recv(1), b"")

    def test_large_packets(self):
        """Bulk comes by as many packets as the kernel would have of it."""
        owner = self.owner()
        with self.connected() as sock:
            wirekit.exchange(sock, os.urandom(1 << 23))
        (tap,) = self.taps()
        with self.lab.inside("b"):
            shown = subprocess.run(["ip", "-json", "-s", "link", "show", tap], capture_output=True, text=True, check=True).stdout
        stats = json.loads(shown)[0]["stats64"]
        self.assertGreater(stats["tx"]["bytes"] / stats["tx"]["packets"], 3000)
        self.assertGreater(stats["rx"]["bytes"], 1 << 23)
        self.assertTrue(owner.get("True"))


def missing(build):
    """Why nothing can be tested here, or None."""
    wirekit.WireTest.build = build
    wirekit.WireTest.kind = "tap"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    probe = TapTest("test_owner_killed")
    probe.setUp()
    try:
        probe.echo_server(probe.program())
        if probe.attached():
            return None
        return next((line for line in probe.log("b").splitlines() if any(part in line for part in wirekit.NOT_HERE)), None)
    finally:
        probe.tearDown()


if __name__ == "__main__":
    wirekit.main(missing)
