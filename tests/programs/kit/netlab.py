# netlab.py - two network namespaces joined by a wire that a test can watch, cut and rewrite.
# SPDX-License-Identifier: Apache-2.0
#
#     namespace a          namespace of the lab           namespace b
#     10.77.0.1  va ====== ma --- thread of Wire --- mb ====== vb  10.77.0.2
#     fd77::1                                                      fd77::2
#
# Addresses are in a and b alone; the lab's own namespace has two interfaces without any. Every frame goes through this process,
# whole and with its checksums filled in (the ends do no offloading). Nothing is left when the process ends.

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import socket
import struct
import subprocess
import threading

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_REC_PRIVATE, MNT_DETACH = 0x4000 | 0x40000, 2
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
FIN, SYN, RST, ACK = 1, 2, 4, 16
IPV4, IPV6 = 0x0800, 0x86dd
V4 = {"a": "10.77.0.1", "b": "10.77.0.2"}
V6 = {"a": "fd77::1", "b": "fd77::2"}
MAC = {"a": "02:77:00:00:00:01", "b": "02:77:00:00:00:02"}

libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """What the lab needs is not there: a reason to skip."""


def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        error = ctypes.get_errno()
        raise Unavailable(f"{name}: {os.strerror(error)}")


def forget_bells(runtime_dir):
    """What keeps the doorbells' namespace for the next broker (bells.h): there will be none."""
    libc.umount2(os.path.join(runtime_dir, "bells").encode(), MNT_DETACH)


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


class Segment:
    """A TCP segment in its frame. Change options, src, dst, ...; bytes() has new lengths and checksums."""

    def __init__(self, frame):
        self.ether = frame[:12]
        self.kind = struct.unpack_from("!H", frame, 12)[0]
        ip = frame[14:]
        if self.kind == IPV4:
            header = 4 * (ip[0] & 15)
            self.protocol, total = ip[9], struct.unpack_from("!H", ip, 2)[0]
            self.src, self.dst = ip[12:16], ip[16:20]
        elif self.kind == IPV6:
            header = 40
            self.protocol, total = ip[6], 40 + struct.unpack_from("!H", ip, 4)[0]
            self.src, self.dst = ip[8:24], ip[24:40]
        else:
            raise ValueError
        if self.protocol != socket.IPPROTO_TCP:
            raise ValueError
        self.ip, tcp = ip[:header], ip[header:total]
        self.sport, self.dport, self.seq, self.ack = struct.unpack_from("!HHII", tcp)
        self.flags, self.rest = tcp[13], tcp[14:20]
        offset = 4 * (tcp[12] >> 4)
        self.options, self.payload = tcp[20:offset], tcp[offset:]

    def is_syn(self):
        return self.flags & (SYN | ACK) == SYN

    def is_synack(self):
        return self.flags & (SYN | ACK) == SYN | ACK

    def option_list(self):
        """[(kind, body)] without NOPs."""
        found, at = [], 0
        while at < len(self.options):
            kind = self.options[at]
            if kind == 0:
                break
            if kind == 1:
                at += 1
                continue
            length = self.options[at + 1]
            assert length >= 2 and at + length <= len(self.options), f"broken options: {self.options.hex()}"
            found.append((kind, self.options[at + 2:at + length]))
            at += length
        return found

    def bytes(self):
        self.options += b"\x01" * (-len(self.options) % 4)
        assert len(self.options) <= 40
        head = struct.pack("!HHIIBB", self.sport, self.dport, self.seq, self.ack, (20 + len(self.options)) << 2, self.flags)
        tcp = head + self.rest[:2] + b"\0\0" + self.rest[4:6] + self.options + self.payload
        ip = bytearray(self.ip)
        if self.kind == IPV4:
            struct.pack_into("!H", ip, 2, len(ip) + len(tcp))
            ip[10:12], ip[12:16], ip[16:20] = b"\0\0", self.src, self.dst
            ip[10:12] = struct.pack("!H", checksum(bytes(ip)))
        else:
            struct.pack_into("!H", ip, 4, len(tcp))
            ip[8:24], ip[24:40] = self.src, self.dst
        pseudo = self.src + self.dst + struct.pack("!II", len(tcp), socket.IPPROTO_TCP)
        filled = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
        return self.ether + struct.pack("!H", self.kind) + bytes(ip) + filled


class Wire(threading.Thread):
    """Carries frames between two packet sockets. `rule` gets each TCP segment and where it comes from ("a" or "b"), and returns the
    segments that go on; what it returns None for is lost."""

    def __init__(self, ends):
        super().__init__(daemon=True)
        self.ends = ends
        self.rule = None
        self.seen = []  # (side, segment) as it came from the sender
        self.errors = []  # of the rule
        self.stopped = False

    def run(self):
        other = {"a": "b", "b": "a"}
        poll = select.poll()
        sides = {}
        for side, end in self.ends.items():
            poll.register(end, select.POLLIN)
            sides[end.fileno()] = side
        while not self.stopped:
            for fd, _ in poll.poll(100):
                side = sides[fd]
                frame, address = self.ends[side].recvfrom(65536)
                if address[2] != socket.PACKET_OUTGOING:
                    self.carry(side, other[side], frame)

    def carry(self, side, to, frame):
        try:
            segment = Segment(frame)
        except (ValueError, IndexError, struct.error):
            self.ends[to].send(frame)
            return
        self.seen.append((side, Segment(frame)))
        rule = self.rule
        try:
            for out in [segment] if rule is None else rule(side, segment) or []:
                self.ends[to].send(out.bytes())
        except (AssertionError, OSError) as error:  # the wire outlives it, the test does not
            self.errors.append(error)

    def put(self, to, segment):
        self.ends[to].send(segment.bytes())


class Lab:
    def __init__(self):
        if os.geteuid() != 0:
            raise Unavailable("not root")
        if not shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin"):
            raise Unavailable("no ip command (iproute2)")
        call("unshare", CLONE_NEWNS)
        call("mount", b"none", b"/", None, MS_REC_PRIVATE, None)
        self.fds = {}
        for name in ("a", "b", "lab"):
            call("unshare", CLONE_NEWNET)
            self.fds[name] = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            self.ip("link", "set", "dev", "lo", "up")
        ends = {side: self.join(side) for side in "ab"}
        self.wire = Wire(ends)
        self.wire.start()

    @staticmethod
    def ip(*args):
        done = subprocess.run(["ip", *args], capture_output=True, text=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
        if done.returncode != 0:
            raise Unavailable(f"ip {' '.join(args)}: {done.stderr.strip()}")

    @contextlib.contextmanager
    def inside(self, name):
        """Sockets made here, and programs started here, are in that namespace."""
        call("setns", self.fds[name], CLONE_NEWNET)
        try:
            yield
        finally:
            call("setns", self.fds["lab"], CLONE_NEWNET)

    def join(self, side):
        """A pair of interfaces; the packet socket of ours on the lab's end."""
        with self.inside(side):
            self.ip("link", "add", f"v{side}", "address", MAC[side], "type", "veth", "peer", "name", f"m{side}",
                    "netns", f"/proc/{os.getpid()}/fd/{self.fds['lab']}")
            self.no_offload(f"v{side}")
            self.ip("link", "set", "dev", f"v{side}", "up")
            self.ip("addr", "add", f"{V4[side]}/24", "dev", f"v{side}")
            self.ip("addr", "add", f"{V6[side]}/64", "dev", f"v{side}", "nodad")
        self.write("net/ipv6/conf/all/disable_ipv6", 1)
        self.no_offload(f"m{side}")
        self.ip("link", "set", "dev", f"m{side}", "up")
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        end.bind((f"m{side}", 0))
        return end

    @staticmethod
    def no_offload(name):
        value = bytearray(struct.pack("II", ETHTOOL_STXCSUM, 0))
        request = bytearray(40)
        address = (ctypes.c_char * len(value)).from_buffer(value)
        struct.pack_into("16sP", request, 0, name.encode(), ctypes.addressof(address))
        with socket.socket() as sock:
            fcntl.ioctl(sock, SIOCETHTOOL, request)

    @staticmethod
    def write(name, value):
        """A sysctl of the namespace we are in."""
        try:
            with open(f"/proc/sys/{name}", "w", encoding="ascii") as file:
                file.write(str(value))
        except OSError as error:
            raise Unavailable(f"/proc/sys/{name}: {error.strerror}") from error

    def sysctl(self, side, name, value):
        with self.inside(side):
            self.write(name, value)

    def socket(self, side, family=socket.AF_INET, kind=socket.SOCK_STREAM):
        with self.inside(side):
            sock = socket.socket(family, kind)
        sock.settimeout(20)
        return sock

    def close(self):
        self.wire.stopped = True
        self.wire.join()
