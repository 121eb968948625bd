# xsk_test.py - VIs over AF_XDP between two network namespaces: what is steered, what is not, and which processes may die.
# SPDX-License-Identifier: Apache-2.0
#
# usage: xsk_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, namespaces, AF_XDP, or where posternd has no BPF.
#
#     namespace a, kernel  va == ma - Wire (netlab.py) - mb == vb  namespace b: the VI's owner (xsk_peer.cc), and the kernel
#
# Frames for b are put on mb as they are; what b answers is heard there.

import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab
from netlab import MAC, V4, V6, checksum

READY_SEC = 20
EPERM, EBUSY, EINVAL, ENOENT, ENOSPC, EADDRNOTAVAIL, EADDRINUSE = 1, 16, 22, 2, 28, 99, 98
SO_RCVBUFFORCE = 33
TCP, UDP, ICMP, ICMP6 = 6, 17, 1, 58
NOBODY = 65534
QUIET_MSEC = 300  # how long nothing has to come to be sure
NOT_HERE = ("was built without", "lacks", "not permitted", "older than 6.4")


def mac(side):
    return bytes.fromhex(MAC[side].replace(":", ""))


def ether(kind, payload, vlan=None):
    tag = struct.pack("!HH", 0x8100, vlan) if vlan is not None else b""
    return mac("b") + mac("a") + tag + struct.pack("!H", kind) + payload


def tcp(sport, dport, payload=b"", flags=netlab.SYN):
    return struct.pack("!HHIIBBHHH", sport, dport, 1000, 0, 5 << 4, flags, 1000, 0, 0) + payload


def udp(sport, dport, payload=b""):
    return struct.pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload


def ipv4(protocol, payload, src=V4["a"], dst=V4["b"], fragment=0, ident=7, options=b""):
    total = 20 + len(options) + len(payload)
    head = struct.pack("!BBHHHBBH4s4s", 0x45 + len(options) // 4, 0, total, ident, fragment, 64, protocol, 0, socket.inet_aton(src),
                       socket.inet_aton(dst)) + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def ipv6(protocol, payload, src=V6["a"], dst=V6["b"]):
    return struct.pack("!IHBB16s16s", 6 << 28, len(payload), protocol, 64, socket.inet_pton(socket.AF_INET6, src),
                       socket.inet_pton(socket.AF_INET6, dst)) + payload


def frame4(segment, protocol=TCP, vlan=None, **ip):
    return ether(netlab.IPV4, ipv4(protocol, segment, **ip), vlan)


def frame6(segment, protocol=TCP, **ip):
    return ether(netlab.IPV6, ipv6(protocol, segment, **ip))


def with_checksum4(segment, src=V4["a"], dst=V4["b"]):
    """So that the kernel believes it, and answers."""
    pseudo = socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack("!HH", TCP, len(segment))
    return segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]


class Refused(Exception):
    def __init__(self, errno, command):
        super().__init__(f"{command}: {os.strerror(errno)}")
        self.errno = errno


class Peer:
    """xsk_peer in namespace b."""

    def __init__(self, test, path, side="b"):
        with test.lab.inside(side):
            self.process = subprocess.Popen([f"{test.build}/tests/unit/xsk_peer", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid
        self.read()

    def read(self, command="start"):
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self.process.stdout], [], [], READY_SEC)
            part = os.read(self.process.stdout.fileno(), 1 << 20) if readable else b""
            if not part:
                raise AssertionError(f"xsk_peer has ended, or is silent: {command}")
            line += part
        words = line.decode().split()
        if words[0] == "error":
            raise Refused(int(words[1]), command)
        return words[1:]

    def do(self, *words):
        command = " ".join(str(w) for w in words)
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        return self.read(command)

    def frames(self, count, msec=5000):
        return [bytes.fromhex(text) for text in self.do("recv", count, msec)]

    def port(self, port, address="0.0.0.0", protocol="tcp", flags=0, vlan=0):
        return int(self.do("port", protocol, address, port, flags, vlan)[0])

    def flow(self, port, peer_port, address="0.0.0.0", local=V4["b"], peer=V4["a"], protocol="tcp", flags=0, vlan=0):
        return int(self.do("flow", protocol, address, port, local, peer, peer_port, flags, vlan)[0])

    def kill(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class XskTest(unittest.TestCase):
    lab, build, why = None, None, None

    def setUp(self):
        self.temp = tempfile.TemporaryDirectory(prefix="pstn-xsk-")
        self.daemons, self.peers = [], []
        self.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        self.wire.bind(("mb", 0))
        self.path = self.start_daemon("--vi", "vb,vc")
        self.drain()

    def tearDown(self):
        for peer in self.peers:
            peer.kill()
        for daemon in self.daemons:
            self.stop_daemon(daemon)
        self.wire.close()
        self.until(lambda: not self.attached(), "the program is still on the interface")
        netlab.forget_bells(f"{self.temp.name}/broker")
        self.temp.cleanup()

    # -- what the tests stand on ---------------------------------------------------------------------------------------------
    def start_daemon(self, *args, name="run", side=None):
        log = f"{self.temp.name}/{name}.log"
        command = [f"{self.build}/posternd", "--runtime-dir", f"{self.temp.name}/{name}", "--foreground", "--idle-sec", "0", "--verbose",
                   "--broker", f"{self.temp.name}/broker/broker.sock", *args]
        with self.lab.inside(side or "lab"), open(log, "ab") as file:
            before = file.tell()
            self.daemons.append(subprocess.Popen(command, stderr=file))

        def ready():
            with open(log, "rb") as file:
                file.seek(before)
                return b"ready in" in file.read()

        self.until(ready, f"posternd is not ready: {self.log(name)}")
        return f"{self.temp.name}/{name}/posternd.sock"

    def stop_daemon(self, daemon, how=signal.SIGTERM):
        if daemon.poll() is None:
            daemon.send_signal(how)
        daemon.wait(20)

    def log(self, name="run"):
        with open(f"{self.temp.name}/{name}.log", encoding="utf-8") as file:
            return file.read()

    def until(self, condition, what, seconds=READY_SEC):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.fail(what)
            time.sleep(0.02)

    def ifindex(self, name, side="b"):
        with self.lab.inside(side):
            return socket.if_nametoindex(name)

    def attached(self, name="vb"):
        with self.lab.inside("b"):
            shown = subprocess.run(["ip", "-d", "link", "show", "dev", name], capture_output=True, text=True, check=False)
        return "xdp" in shown.stdout

    def peer(self, path=None):
        peer = Peer(self, path or self.path)
        self.peers.append(peer)
        return peer

    def opened(self, path=None):
        """A peer with a VI of vb."""
        peer = self.peer(path)
        try:
            self.grant = peer.do("open", self.ifindex("vb"))
        except Refused as refused:
            self.fail(f"{refused}: {self.log()}")
        return peer

    def put(self, *frames):
        for frame in frames:
            self.wire.send(frame)

    def drain(self):
        while select.select([self.wire], [], [], 0)[0]:
            self.wire.recv(65536)

    def heard(self, wanted, seconds=5.0):
        """The first frame from b that is wanted, or None."""
        end = time.monotonic() + seconds
        while select.select([self.wire], [], [], max(end - time.monotonic(), 0))[0]:
            frame, address = self.wire.recvfrom(65536)
            if address[2] != socket.PACKET_OUTGOING and wanted(frame):
                return frame
        return None

    def resets(self, sport, dport, seconds=5.0):
        """Whether the kernel in b answers that SYN, as it has no such port."""
        self.drain()
        self.put(frame4(with_checksum4(tcp(sport, dport))))

        def is_reset(frame):
            try:
                s = netlab.Segment(frame)
            except (ValueError, struct.error, IndexError):
                return False
            return s.flags & netlab.RST and (s.sport, s.dport) == (dport, sport)

        return self.heard(is_reset, seconds) is not None

    def kernel_answers(self, port):
        """Whether the kernel in b has that port: a listener of its own is reached from a, by way of the wire."""
        with self.lab.socket("b") as listener, self.lab.socket("a") as client:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((V4["b"], port))
            listener.listen()
            client.settimeout(10)
            client.connect((V4["b"], port))
            taken, _ = listener.accept()
            with taken:
                client.sendall(b"hello")
                return taken.recv(5) == b"hello"

    def nothing(self, peer):
        self.assertEqual(peer.frames(1, QUIET_MSEC), [])

    # -- frames --------------------------------------------------------------------------------------------------------------
    def test_frames_arrive_as_they_were_sent(self):
        peer = self.opened()
        peer.port(7000)
        sent = [frame4(tcp(4000 + i, 7000, bytes([i % 256]) * (i * 7 % 1440))) for i in range(900)]
        got = []
        for at in range(0, len(sent), 100):
            self.put(*sent[at:at + 100])
            got += peer.frames(100)
        self.assertEqual(got, sent)
        self.assertIn("dropped 0", " ".join(peer.do("stats")))

    def test_frames_leave_as_they_were_made(self):
        peer = self.opened()
        mine = frame4(tcp(7000, 4000, b"x" * 1400))
        peer.do("send", mine.hex())
        self.assertEqual(self.heard(lambda f: f == mine), mine)
        short = mac("a") + mac("b") + b"\x88\xb5" + b"short"
        peer.do("send", short.hex(), 300)  # more than the kernel sends in one call
        for _ in range(300):
            self.assertIsNotNone(self.heard(lambda f: f[:len(short)] == short))
        self.assertEqual(peer.do("recover")[0], "0")

    def test_more_than_the_rings_hold(self):
        """What does not fit is lost, and nothing else: frames and rings are whole afterwards."""
        peer = self.opened()
        peer.port(7000)
        for i in range(3000):
            self.put(frame4(tcp(4000, 7000, struct.pack("!I", i))))
        got = peer.frames(3000, 2000)
        numbers = [struct.unpack_from("!I", f, 54)[0] for f in got]
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertGreaterEqual(len(got), 256)
        self.assertEqual(peer.do("recover")[0], "0")
        self.put(frame4(tcp(4000, 7000, b"last")))
        self.assertEqual(peer.frames(1)[0][-4:], b"last")

    def test_several_queues(self):
        with self.lab.inside("b"):
            self.lab.ip("link", "add", "vc", "numrxqueues", "2", "numtxqueues", "2", "type", "veth",
                        "peer", "name", "mc", "numrxqueues", "2", "numtxqueues", "2")
            self.lab.ip("link", "set", "dev", "vc", "up")
            self.lab.ip("link", "set", "dev", "mc", "up")
            other = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            other.bind(("mc", 0))
        try:
            peer = self.peer()
            self.grant = peer.do("open", self.ifindex("vc"))
            self.assertEqual(self.grant[:2], ["queues", "2"])
            peer.port(7000)
            sent = [frame4(tcp(4000 + i, 7000)) for i in range(64)]
            for frame in sent:
                other.send(frame)
            self.assertEqual(sorted(peer.frames(64)), sorted(sent))  # each queue keeps its order, and no more
            self.assertEqual(peer.do("recover")[0], "0")
        finally:
            other.close()
            with self.lab.inside("b"):
                self.lab.ip("link", "del", "vc")

    # -- filters -------------------------------------------------------------------------------------------------------------
    def test_a_port_and_no_other(self):
        peer = self.opened()
        peer.port(7000, V4["b"])
        self.assertTrue(self.resets(4000, 7001))
        self.put(frame4(udp(4000, 7000), UDP), frame4(tcp(4000, 7001)), frame6(tcp(4000, 7000)))
        wanted = frame4(tcp(4001, 7000))
        self.put(wanted)
        self.assertEqual(peer.frames(2, QUIET_MSEC), [wanted])
        self.assertFalse(self.resets(4002, 7000, 0.3))  # the kernel has not seen it
        peer.frames(1)

    def test_a_port_on_any_address_is_one_of_this_host(self):
        peer = self.opened()
        peer.port(7000)
        self.put(frame4(tcp(4000, 7000), dst="10.77.0.99"), frame4(tcp(4000, 7000), dst="10.78.0.2"))
        wanted = frame4(tcp(4000, 7000))
        self.put(wanted)
        self.assertEqual(peer.frames(2, QUIET_MSEC), [wanted])
        with self.lab.inside("b"):
            self.lab.ip("addr", "add", "10.77.0.99/24", "dev", "vb")
        late = frame4(tcp(4000, 7000), dst="10.77.0.99")
        end = time.monotonic() + READY_SEC
        got = []
        while not got and time.monotonic() < end:  # the change has to be heard of
            self.put(late)
            got = peer.frames(1, 50)
        with self.lab.inside("b"):
            self.lab.ip("addr", "del", "10.77.0.99/24", "dev", "vb")
        self.assertEqual(got[0], late)

    def test_a_flow_and_no_other(self):
        peer = self.opened()
        number = peer.flow(7000, 4000)
        self.assertTrue(self.resets(4001, 7000))
        peer.do("again", number, V4["b"], V4["a"], 4003)
        self.put(frame4(tcp(4000, 7000), src="10.77.0.7"))
        wanted = [frame4(tcp(4000, 7000)), frame4(tcp(4003, 7000))]
        self.put(*wanted)
        self.assertEqual(peer.frames(3, QUIET_MSEC), wanted)

    def test_a_flow_left_to_the_kernel(self):
        peer = self.opened()
        peer.do("again", peer.port(7000), V4["b"], V4["a"], 4000, 1)
        wanted = frame4(tcp(4001, 7000))
        self.put(frame4(tcp(4000, 7000)), wanted)
        self.assertEqual(peer.frames(2, QUIET_MSEC), [wanted])

    def test_a_connection_that_the_kernel_has(self):
        """It was accepted before its port had a filter: not a byte of it is lost to the VI."""
        for family, address, frame in ((socket.AF_INET, V4["b"], frame4), (socket.AF_INET6, V6["b"], frame6)):
            with self.lab.socket("a", family) as client:
                with self.lab.socket("b", family) as listener:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind((address, 7000))
                    listener.listen()
                    client.connect((address, 7000))
                    taken, _ = listener.accept()
                with taken:
                    self.stays_with_the_kernel(client, taken, address, frame)

    def stays_with_the_kernel(self, client, taken, address, frame):
        peer = self.opened()
        peer.port(7000, address)
        taken.settimeout(10)
        for text in (b"hello", b"again"):
            client.sendall(text)
            self.assertEqual(taken.recv(5), text)
        wanted = frame(tcp(4001, 7000))
        self.put(wanted)
        self.assertEqual(peer.frames(2, QUIET_MSEC), [wanted])
        client.shutdown(socket.SHUT_WR)
        self.assertEqual(taken.recv(5), b"")
        peer.kill()
        self.until(lambda: not self.attached(), "the program is still on the interface")

    def test_a_filter_ends(self):
        peer = self.opened()
        first, second = peer.port(7000, V4["b"]), peer.port(7001, V4["b"])
        peer.do("unfilter", first)
        self.assertTrue(self.resets(4000, 7000))
        wanted = frame4(tcp(4000, 7001))
        self.put(wanted)
        self.assertEqual(peer.frames(2, QUIET_MSEC), [wanted])
        with self.assertRaises(Refused) as refused:
            peer.do("unfilter", first)
        self.assertEqual(refused.exception.errno, ENOENT)
        peer.do("unfilter", second)
        self.assertTrue(self.resets(4000, 7001))

    def test_ipv6(self):
        peer = self.opened()
        peer.port(7000, "::")  # of both families
        hop = bytes([TCP, 0, 1, 4, 0, 0, 0, 0])
        two = bytes([60, 0, 1, 4, 0, 0, 0, 0]) + hop
        wanted = [frame6(tcp(4000, 7000, b"plain")), frame6(hop + tcp(4000, 7000), 0), frame6(two + tcp(4000, 7000), 0),
                  frame4(tcp(4000, 7000))]
        self.put(frame6(tcp(4000, 7001)), frame6(tcp(4000, 7000), dst="fd77::99"), *wanted)
        self.assertEqual(peer.frames(5, QUIET_MSEC), wanted)
        peer.flow(7002, 4000, address=V6["b"], local=V6["b"], peer=V6["a"])
        self.put(frame6(tcp(4001, 7002)), frame6(tcp(4000, 7002)))
        self.assertEqual(peer.frames(2, QUIET_MSEC), [frame6(tcp(4000, 7002))])

    def test_udp(self):
        peer = self.opened()
        peer.port(7000, protocol="udp")
        wanted = frame4(udp(4000, 7000, b"hello"), UDP)
        self.put(frame4(tcp(4000, 7000)), wanted)
        self.assertEqual(peer.frames(2, QUIET_MSEC), [wanted])

    def test_vlan(self):
        peer = self.opened()
        peer.port(7000, vlan=5)
        peer.port(7001)
        five, none = frame4(tcp(4000, 7000), vlan=5), frame4(tcp(4000, 7001))
        self.put(frame4(tcp(4000, 7000)), frame4(tcp(4000, 7000), vlan=6), frame4(tcp(4000, 7001), vlan=5), five, none)
        self.assertEqual(peer.frames(3, QUIET_MSEC), [five, none])
        priority = frame4(tcp(4000, 7001), vlan=0)  # a priority and no VLAN
        self.put(priority)
        self.assertEqual(peer.frames(1), [priority])

    def test_ip_options(self):
        peer = self.opened()
        peer.port(7000)
        wanted = frame4(tcp(4000, 7000), options=b"\x01" * 40)
        self.put(wanted)
        self.assertEqual(peer.frames(1), [wanted])

    def test_cut_and_odd_frames_pass(self):
        """Nothing that is not whole is steered, and nothing harms."""
        peer = self.opened()
        peer.port(7000)
        whole = frame4(tcp(4000, 7000))
        self.put(*(whole[:n] for n in range(14, 14 + 20 + 4)))
        long_header = bytearray(whole)
        long_header[14] = 0x4f  # a header of 60 bytes, the ports behind the frame's end
        self.put(bytes(long_header[:14 + 44]))
        self.nothing(peer)

    def icmp_error(self, inner, kind=3, code=4, src="10.77.0.254"):
        body = struct.pack("!BBHI", kind, code, 0, 1400) + inner
        return frame4(body[:2] + struct.pack("!H", checksum(body)) + body[4:], ICMP, src=src)

    def test_icmp_errors_go_with_their_flow(self):
        peer = self.opened()
        peer.flow(7000, 4000)
        peer.port(7001)

        def about(sport, dport, src=V4["b"]):
            return ipv4(TCP, tcp(sport, dport)[:8], src=src, dst=V4["a"])

        wanted = [self.icmp_error(about(7000, 4000)), self.icmp_error(about(7001, 9)), self.icmp_error(about(7000, 4000), 11, 0)]
        self.put(self.icmp_error(about(7000, 4001)), self.icmp_error(about(7002, 4000)), self.icmp_error(about(7000, 4000), 8, 0),
                 self.icmp_error(about(7000, 4000, "10.77.0.3")), *wanted)
        self.assertEqual(peer.frames(4, QUIET_MSEC), wanted)
        peer.flow(7003, 4000, address=V6["b"], local=V6["b"], peer=V6["a"])
        inner = ipv6(TCP, tcp(7003, 4000), V6["b"], V6["a"])
        six = frame6(struct.pack("!BBHI", 2, 0, 0, 1280) + inner, ICMP6)
        self.put(six)
        self.assertEqual(peer.frames(1), [six])

    def test_kernel_keeps_the_rest(self):
        """ARP, ping and its own TCP, while the VI has the interface."""
        peer = self.opened()
        peer.port(7000)
        self.assertTrue(self.kernel_answers(7005))
        with self.lab.inside("a"):
            ping = shutil.which("ping")
            if ping:
                self.assertEqual(subprocess.run([ping, "-c1", "-W5", V4["b"]], capture_output=True, check=False).returncode, 0)
        self.nothing(peer)

    def test_fragments(self):
        peer = self.opened()
        peer.port(7000)
        peer.port(7001, flags=2)
        more = 0x2000
        self.put(frame4(tcp(4000, 7000), fragment=more, ident=1), frame4(b"x" * 16, fragment=3, ident=1))
        first, last = frame4(tcp(4000, 7001) + b"x" * 4, fragment=more, ident=2), frame4(b"x" * 16, fragment=3, ident=2)
        self.put(first, last, frame4(b"x" * 16, fragment=3, ident=3))
        self.assertEqual(peer.frames(3, QUIET_MSEC), [first, last])

    # -- which filters are allowed --------------------------------------------------------------------------------------------
    def refused(self, call, *args, **kw):
        with self.assertRaises((Refused, OSError)) as refused:
            call(*args, **kw)
        return refused.exception.errno

    def test_filters_that_nobody_has_a_right_to(self):
        peer = self.opened()
        self.assertEqual(self.refused(peer.do, "bound", "tcp", V4["b"], 7000, 0, 0), EINVAL)  # others may bind it, too
        self.assertEqual(self.refused(peer.port, 7000, flags=64), EINVAL)
        self.assertEqual(self.refused(peer.port, 7000, vlan=4095), EINVAL)
        self.assertEqual(self.refused(peer.flow, 7000, 4000, local="10.77.0.9"), EADDRNOTAVAIL)
        self.assertEqual(self.refused(peer.flow, 7000, 4000, local=V6["b"]), EINVAL)
        self.assertEqual(self.refused(peer.do, "unfilter", 99), ENOENT)
        self.nothing(peer)

    def test_another_users_flow(self):
        """A port that two users have bound: the flow belongs to the user that has the connection, or listens."""
        peer = self.opened()
        code = ("import socket, sys\n"
                "s = socket.socket()\n"
                "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
                f"s.bind(('0.0.0.0', 7100))\n"
                "print('bound', flush=True); sys.stdin.readline()\n"
                "s.listen()\n"
                "print('listens', flush=True); sys.stdin.readline()\n")
        with self.lab.inside("b"):
            other = subprocess.Popen(["/usr/bin/python3", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=NOBODY, text=True)
        try:
            self.assertEqual(other.stdout.readline(), "bound\n")
            number = peer.flow(7100, 4000)  # nobody's yet: the first to connect has it
            other.stdin.write("\n")
            other.stdin.flush()
            self.assertEqual(other.stdout.readline(), "listens\n")
            self.assertEqual(self.refused(peer.do, "again", number, V4["b"], V4["a"], 4001), EPERM)
        finally:
            other.kill()
            other.wait()
            other.stdin.close()
            other.stdout.close()

    def test_the_port_is_kept_as_long_as_its_filter(self):
        peer = self.opened()
        number = peer.port(7000)
        peer.do("leak", number)
        with self.lab.socket("b") as other:
            self.assertEqual(self.refused(other.bind, ("0.0.0.0", 7000)), EADDRINUSE)

    def test_a_port_for_connections_from_here(self):
        """It is reserved at its address, and takes what the kernel has no socket for; one that is to be it again has to be free, and ephemeral."""
        peer = self.opened()
        for family, local, address, loopback, frame in ((socket.AF_INET, V4["b"], "0.0.0.0", "127.0.0.1", frame4),
                                                        (socket.AF_INET6, V6["b"], "::", "::1", frame6)):
            number, port = (int(word) for word in peer.do("keep", local, 0))
            with self.lab.socket("b", family) as other, self.lab.socket("b", family) as elsewhere:
                elsewhere.bind((loopback, port))
                elsewhere.close()
                self.assertEqual([self.refused(other.bind, (name, port)) for name in (local, address)], [EADDRINUSE] * 2)
                wanted = [frame(tcp(4000, port)), frame(tcp(4001, port, flags=netlab.SYN | netlab.ACK))]
                self.put(*wanted)
                self.assertEqual(peer.frames(3, QUIET_MSEC), wanted)
                self.assertEqual(self.refused(peer.do, "keep", local, port), EADDRINUSE)
                peer.do("unfilter", number)
                other.bind((address, port))
            self.assertEqual(int(peer.do("keep", local, port)[1]), port)
            self.assertEqual(self.refused(peer.do, "keep", address, 0), EINVAL)
        self.assertEqual(self.refused(peer.do, "keep", V4["b"], 80), EPERM)
        self.assertEqual(self.refused(peer.do, "keep", V4["a"], 0), EADDRNOTAVAIL)

    def test_ports_for_connections_are_bounded(self):
        peer = self.opened()
        with self.assertRaises(Refused) as refused:
            for _ in range(2000):
                peer.do("keep", V4["b"], 0)
        self.assertEqual(refused.exception.errno, ENOSPC)
        self.assertTrue(self.kernel_answers(7000))

    def test_an_interface_that_is_not_named(self):
        with self.lab.inside("b"):
            self.lab.ip("link", "add", "vx", "type", "veth", "peer", "name", "mx")
        try:
            peer = self.peer()
            self.assertEqual(self.refused(peer.do, "open", self.ifindex("vx")), EPERM)
            self.assertFalse(self.attached("vx"))
        finally:
            with self.lab.inside("b"):
                self.lab.ip("link", "del", "vx")

    def test_a_second_owner_is_refused(self):
        first = self.opened()
        first.port(7000)
        second = self.peer()
        self.assertEqual(self.refused(second.do, "open", self.ifindex("vb")), EBUSY)
        wanted = frame4(tcp(4000, 7000))
        self.put(wanted)
        self.assertEqual(first.frames(1), [wanted])
        first.kill()
        self.until(lambda: not self.attached(), "the first one's program is still there")
        second.do("open", self.ifindex("vb"))

    def test_two_interfaces_of_one_area(self):
        with self.lab.inside("b"):
            self.lab.ip("link", "add", "vc", "type", "veth", "peer", "name", "mc")
            self.lab.ip("link", "set", "dev", "vc", "up")
            self.lab.ip("link", "set", "dev", "mc", "up")
        try:
            peer = self.opened()
            peer.port(7000)
            peer.do("open", self.ifindex("vc"), 1)
            self.assertTrue(self.attached("vc"))
            wanted = frame4(tcp(4000, 7000))
            self.put(wanted)
            self.assertEqual(peer.frames(1), [wanted])
            self.assertEqual(peer.do("recover")[0], "0")
        finally:
            with self.lab.inside("b"):
                self.lab.ip("link", "del", "vc")

    # -- life and death ------------------------------------------------------------------------------------------------------
    def test_owner_killed(self):
        peer = self.opened()
        peer.port(7000)
        self.put(frame4(tcp(4000, 7000)))
        self.assertEqual(len(peer.frames(1)), 1)
        peer.kill()
        self.until(lambda: not self.attached(), "the program is still there")
        self.assertTrue(self.kernel_answers(7000))

    def test_owner_killed_after_posternd(self):
        """Nobody is left to clean up: the kernel does it."""
        peer = self.opened()
        peer.port(7000)
        self.stop_daemon(self.daemons[0], signal.SIGKILL)
        peer.kill()
        self.until(lambda: not self.attached(), "the program is still there")
        self.assertTrue(self.kernel_answers(7000))

    def test_posternd_killed(self):
        peer = self.opened()
        peer.port(7000)
        self.stop_daemon(self.daemons[0], signal.SIGKILL)
        wanted = [frame4(tcp(4000 + i, 7000)) for i in range(50)]
        self.put(*wanted)
        self.assertEqual(peer.frames(50), wanted)
        mine = frame4(tcp(7000, 4000, b"still here"))
        peer.do("send", mine.hex())
        self.assertIsNotNone(self.heard(lambda f: f == mine))
        self.start_daemon("--vi", "vb")
        self.assertEqual(self.refused(self.peer().do, "open", self.ifindex("vb")), EBUSY)
        try:
            peer.do("adopt", self.ifindex("vb"))
        except Refused as refused:
            self.fail(f"{refused}: {self.log()}")
        peer.port(7001)
        self.put(frame4(tcp(4000, 7001)), frame4(tcp(4000, 7000)))
        self.assertEqual(len(peer.frames(2)), 2)
        peer.kill()
        self.until(lambda: not self.attached(), "the program is still there")
        self.assertTrue(self.kernel_answers(7001))

    def test_adopted_by_its_owner_only(self):
        peer = self.opened()
        self.assertEqual(self.refused(peer.do, "adopt", self.ifindex("vb")), 17)  # this posternd knows it
        self.put(frame4(tcp(4000, 7000)))
        self.nothing(peer)

    def test_another_process_of_the_family_goes_on(self):
        peer = self.opened()
        peer.port(7000)
        wanted = frame4(tcp(4000, 7000))
        self.put(wanted)
        peer.pid = int(peer.do("fork")[0])
        self.assertEqual(peer.frames(1), [wanted])
        for i in range(500):
            frame = frame4(tcp(4000 + i, 7000))
            self.put(frame)
            self.assertEqual(peer.frames(1), [frame])
        peer.do("send", wanted.hex(), 100)
        self.assertEqual(peer.do("recover")[0], "0")

    def test_interface_down_and_gone(self):
        with self.lab.inside("b"):
            self.lab.ip("link", "add", "vc", "type", "veth", "peer", "name", "mc")
            self.lab.ip("link", "set", "dev", "vc", "up")
            self.lab.ip("link", "set", "dev", "mc", "up")
        peer = self.peer()
        peer.do("open", self.ifindex("vc"))
        self.assertEqual(peer.do("check"), ["0"])
        with self.lab.inside("b"):
            self.lab.ip("link", "set", "dev", "vc", "down")
        self.assertEqual(peer.do("check"), ["2"])
        with self.lab.inside("b"):
            self.lab.ip("link", "set", "dev", "vc", "up")
        self.assertEqual(peer.do("check"), ["0"])
        with self.lab.inside("b"):
            self.lab.ip("link", "del", "vc")
        self.assertEqual(peer.do("check"), ["3"])

    def test_through_the_broker(self):
        """A posternd that may not ask the broker, which may: the VI works the same."""
        self.start_daemon("--system", "--vi", "vb", "--syn-option", "off", "--policy", f"{self.temp.name}/none", name="broker")
        path = self.start_daemon(name="user", side="b")
        peer = self.opened(path)
        number = peer.port(7000)
        wanted = frame4(tcp(4000, 7000))
        self.put(wanted)
        self.assertEqual(peer.frames(1), [wanted])
        peer.flow(7001, 4000)
        peer.do("unfilter", number)
        self.put(frame4(tcp(4000, 7000)), frame4(tcp(4000, 7001)))
        self.assertEqual(peer.frames(2, QUIET_MSEC), [frame4(tcp(4000, 7001))])
        peer.kill()
        self.until(lambda: not self.attached(), "the program is still there")

    def start_broker(self, policy):
        """And a user's posternd, whose path this is."""
        with open(f"{self.temp.name}/policy.json", "w", encoding="ascii") as file:
            json.dump(policy, file)
        self.start_daemon("--system", "--vi", "vb", "--syn-option", "off", "--policy", f"{self.temp.name}/policy.json", name="broker")
        return self.start_daemon(name="user", side="b")

    def test_the_brokers_policy(self):
        rule = {"interface": "vb", "user": os.geteuid()}
        path = self.start_broker({"vis": [{**rule, "verdict": "deny"}]})
        peer = self.peer(path)
        self.assertEqual(self.refused(peer.do, "open", self.ifindex("vb")), EPERM)
        self.assertFalse(self.attached())
        with open(f"{self.temp.name}/policy.json", "w", encoding="ascii") as file:
            json.dump({"vis": [{**rule, "verdict": "allow"}], "filters": 3}, file)
        self.daemons[-2].send_signal(signal.SIGHUP)
        self.until(lambda: "policy read again" in self.log("broker"), "the policy was not read again")
        peer.do("open", self.ifindex("vb"))
        numbers = [peer.port(7000), peer.port(7001), int(peer.do("keep", V4["b"], 0)[0])]
        self.assertEqual(self.refused(peer.port, 7002), ENOSPC)
        peer.do("unfilter", numbers[0])
        peer.port(7002)

    def test_asks_are_bounded(self):
        """A daemon that asks for more in a second is refused; what is there can still be given back."""
        path = self.start_broker({"vi_asks": 201})
        peer = self.peer(path)
        peer.do("open", self.ifindex("vb"))
        number = peer.port(7000)
        with self.assertRaises(Refused) as refused:
            for port in range(7001, 9000):
                peer.port(port)
        self.assertEqual(refused.exception.errno, EBUSY)
        peer.do("unfilter", number)
        self.until(lambda: self.asks_again(peer), "it may never ask again")

    @staticmethod
    def asks_again(peer):
        try:
            return peer.port(7000) > 0
        except Refused:
            return False


def missing(build):
    """Why nothing can be tested here, or None."""
    try:
        socket.socket(44, socket.SOCK_RAW).close()  # AF_XDP
    except OSError as error:
        return f"no AF_XDP: {error.strerror}"
    XskTest.build = build
    probe = XskTest("test_frames_arrive_as_they_were_sent")
    probe.setUp()
    try:
        probe.peer().do("open", probe.ifindex("vb"))
    except Refused:
        reason = next((line for line in probe.log().splitlines() if any(part in line for part in NOT_HERE)), None)
        return reason
    finally:
        probe.tearDown()
    return None


def main(tests=XskTest):
    build = sys.argv.pop(1)
    try:
        XskTest.lab = netlab.Lab()
    except netlab.Unavailable as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    try:
        why = missing(build)
        if why:
            print(f"skipped: {why}")
            sys.exit(77)
        names = [name for name in sys.argv[1:] if not name.startswith("-")] or [name for name in vars(tests) if name.startswith("test_")]
        suite = unittest.TestSuite([tests(name) for name in names])
        result = unittest.TextTestRunner(verbosity=2 if "-v" in sys.argv else 1, warnings="ignore").run(suite)
        sys.exit(0 if result.wasSuccessful() else 1)
    finally:
        XskTest.lab.close()


if __name__ == "__main__":
    main()
