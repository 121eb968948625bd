# wire_udp_test.py - UDP of unmodified programs over AF_XDP (options vi and vi.udp): what they see, beside what the kernel's see.
# SPDX-License-Identifier: Apache-2.0
#
# usage: wire_udp_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, namespaces, AF_XDP, or where posternd has no BPF.

import errno
import os
import random
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import wirekit
from netlab import V4, V6

IP_PKTINFO, IP_RECVERR, IP_RECVTTL = 8, 11, 12  # linux/in.h
FAMILIES = (socket.AF_INET, socket.AF_INET6)
ADDRESS = {socket.AF_INET: V4, socket.AF_INET6: V6}
MOST = {socket.AF_INET: 1472, socket.AF_INET6: 1452}

SERVER = """
server = socket.socket(FAMILY, socket.SOCK_DGRAM); server.bind((HOST, PORT))
def echo():
    while True:
        data, peer = server.recvfrom(65536)
        server.sendto(data, peer)
threading.Thread(target=echo, daemon=True).start()
"""


def content(size):
    return random.Random(size).randbytes(size)


class UdpTest(wirekit.WireTest):
    def setUp(self):
        super().setUp()
        self.start_daemon("b")

    def program(self, side="b", options=None):
        return super().program(side, [f"vi=v{side}", "vi.udp=on"] if options is None else options)

    def datagrams(self, side="b"):
        """What the kernel's UDP has received and sent there."""
        with self.lab.inside(side), open("/proc/thread-self/net/snmp6", encoding="ascii") as table:
            six = dict(line.split() for line in table)
        return (*self.lab.counters(side, "InDatagrams", "OutDatagrams", group="Udp:"), int(six["Udp6InDatagrams"]),
                int(six["Udp6OutDatagrams"]))

    def peer(self, family=socket.AF_INET, side="a"):
        """The kernel's socket on the other side, bound."""
        with self.lab.inside(side):
            sock = socket.socket(family, socket.SOCK_DGRAM)
        self.addCleanup(sock.close)
        sock.settimeout(wirekit.READY_SEC)
        sock.bind((ADDRESS[family][side], 0))
        return sock

    def to(self, family=socket.AF_INET, side="b"):
        return ADDRESS[family][side], self.port

    def warm(self, exchange, side="b"):
        """Until both ways are by the wire: neighbours are found by what the kernel sends first, and posternd hears of them a little
        later. What the kernel's UDP has done by then."""
        def quiet():
            before = self.datagrams(side)
            exchange()
            return self.datagrams(side) == before
        self.until(quiet, "the kernel goes on sending")
        return self.datagrams(side)

    def bound(self, program, family=socket.AF_INET, host=None, name="s"):
        host = host if host is not None else "0.0.0.0" if family == socket.AF_INET else "::"
        program.do(f"{name} = socket.socket(FAMILY, socket.SOCK_DGRAM); {name}.bind((HOST, PORT))", FAMILY=int(family), HOST=host,
                   PORT=self.port)


class ServerTest(UdpTest):
    """The server is postern's, the client the kernel's."""

    def test_echo(self):
        server = self.program()
        for family in FAMILIES:
            self.port += 1
            server.do(SERVER, FAMILY=int(family), HOST="0.0.0.0" if family == socket.AF_INET else "::", PORT=self.port)
            sock = self.peer(family)

            def ask(sock=sock, family=family):
                sock.sendto(b"first", self.to(family))
                self.assertEqual(sock.recv(100), b"first")
            before = self.warm(ask)
            for size in (0, 1, 17, 100, 1000, MOST[family] - 1, MOST[family]):
                with self.subTest(family=family, size=size):
                    sock.sendto(content(size), self.to(family))
                    data, peer = sock.recvfrom(65536)
                    self.assertEqual(data, content(size))
                    self.assertEqual(peer[:2], self.to(family))
            self.assertEqual(self.datagrams(), before, "the kernel's UDP had a part in it")
            for size in (MOST[family] + 1, 9000, 65000):  # fragments are the kernel's
                with self.subTest(family=family, size=size):
                    sock.sendto(content(size), self.to(family))
                    self.assertEqual(sock.recv(65536), content(size))
            self.assertNotEqual(self.datagrams(), before)


    def test_from_both(self):
        """What comes by the wire, from this host, and by a group: one socket gets it all, and says where it came to."""
        server = self.program()
        self.bound(server)
        server.do(f"s.setsockopt(socket.IPPROTO_IP, {IP_PKTINFO}, 1); s.setsockopt(socket.IPPROTO_IP, {IP_RECVTTL}, 1)")
        sock, local = self.peer(), self.peer(side="b")
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 33)
        for n in range(40):
            sock.sendto(b"wire%d" % n, self.to())
            local.sendto(b"host%d" % n, self.to())
        server.do("def take(d, anc, flags, peer): return d.decode(), [(l, t, c.hex()) for l, t, c in anc], flags, peer")
        got = server.get("[take(*s.recvmsg(100, 256)) for _ in range(80)]")
        self.assertEqual(sorted(entry[0] for entry in got), sorted(f"{where}{n}" for where in ("wire", "host") for n in range(40)))
        with self.lab.inside("b"):
            index = socket.if_nametoindex("vb")  # of the address; Linux says so of what is local, too
        for data, ancillary, flags, peer in got:
            side, ttl = ("a", 33) if data.startswith("wire") else ("b", 64)
            info = struct.pack("i", index) + 2 * socket.inet_aton(V4["b"])
            self.assertEqual(ancillary, [[socket.IPPROTO_IP, IP_PKTINFO, info.hex()],
                                         [socket.IPPROTO_IP, socket.IP_TTL, struct.pack("i", ttl).hex()]], data)
            self.assertEqual((flags, peer[0]), (0, V4[side]))

    def test_names_of_ipv6(self):
        """A socket for both families tells of either as the kernel does."""
        server = self.program()
        self.bound(server, socket.AF_INET6)
        for opt in ("IPV6_RECVPKTINFO", "IPV6_RECVHOPLIMIT", "IPV6_RECVTCLASS"):
            server.do(f"s.setsockopt(socket.IPPROTO_IPV6, socket.{opt}, 1)")
        for family, address in ((socket.AF_INET6, V6["a"]), (socket.AF_INET, "::ffff:" + V4["a"])):
            sock = self.peer(family)
            sock.sendto(b"x", self.to(family))
            data, ancillary, flags, peer = server.get("(lambda d, a, f, p: (d.decode(), [c[1] for c in a], f, p))(*s.recvmsg(99, 256))")
            self.assertEqual((data, flags, peer), ("x", 0, [address, sock.getsockname()[1], 0, 0]))
            more = [socket.IPV6_HOPLIMIT, socket.IPV6_TCLASS] if family == socket.AF_INET6 else []
            self.assertEqual(ancillary, [socket.IPV6_PKTINFO, *more])
            server.do("s.sendto(b'y', tuple(PEER))", PEER=peer)
            self.assertEqual(sock.recv(9), b"y")

    def test_answer_from_the_address_asked(self):
        server = self.program()
        with self.lab.inside("b"):
            self.lab.ip("addr", "add", "10.77.0.22/24", "dev", "vb")
        self.bound(server)
        sock = self.peer()
        sock.sendto(b"x", ("10.77.0.22", self.port))
        server.do("d, p = s.recvfrom(9)")

        def tell():
            server.do("s.sendto(b'x', p)")
            self.assertEqual(sock.recv(9), b"x")
        before = self.warm(tell)
        answer = "s.sendmsg([b'a', b'b'], [(socket.IPPROTO_IP, 8, bytes(4) + socket.inet_aton(FROM) + bytes(4))], 0, p)"
        server.do(answer, FROM="10.77.0.22")
        self.assertEqual(sock.recvfrom(9), (b"ab", ("10.77.0.22", self.port)))
        self.assertEqual(self.datagrams(), before)
        plain, said = self.plain("b"), []
        plain.do("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); p = tuple(PEER)", PEER=sock.getsockname())
        for program in (server, plain):  # none of ours
            with self.assertRaises(wirekit.Refused) as refused:
                program.do(answer, FROM="10.77.0.23")
            said.append(refused.exception.errno)
        self.assertEqual(said[0], said[1])

    def test_waiting(self):
        """poll, select, epoll (level, edge, one-shot), a thread that blocks, time-outs: they end when a datagram comes, not before."""
        server = self.program()
        self.bound(server)
        sock = self.peer()
        server.do("""
s.setblocking(False)
p = select.poll(); p.register(s, select.POLLIN)
sets = {}
for name, bits in ("level", 0), ("edge", select.EPOLLET), ("once", select.EPOLLONESHOT):
    sets[name] = select.epoll(); sets[name].register(s, select.EPOLLIN | bits)
def ready(ms=20000):
    return [p.poll(ms) != [], select.select([s], [], [], ms / 1000)[0] != [], *(bool(e.poll(ms / 1000)) for e in sets.values())]
""")
        for turn in range(3):
            self.assertEqual(server.get("ready(30)"), [False] * 5)
            with self.assertRaises(wirekit.Refused) as refused:
                server.do("s.recv(9)")
            self.assertEqual(refused.exception.errno, errno.EAGAIN)
            server.tell("result = ready()")
            sock.sendto(b"one", self.to())
            self.assertEqual(server.read("ready"), [True] * 5)
            # Nothing new: an edge and a one-shot event are over.
            self.assertEqual(server.get("ready(30)"), [True, True, True, False, False], turn)
            self.assertEqual(server.get("s.recv(9).decode()"), "one")
            server.do("sets['once'].modify(s, select.EPOLLIN | select.EPOLLONESHOT)")
        server.do("e = select.epoll(); e.register(s, select.EPOLLOUT)")
        self.assertEqual(server.get("[e for _, e in e.poll(1)]"), [select.EPOLLOUT])
        server.do("s.settimeout(None); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 50000))")
        with self.assertRaises(wirekit.Refused) as refused:
            server.do("s.recv(9)")
        self.assertEqual(refused.exception.errno, errno.EAGAIN)
        server.do("s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 0))")
        server.tell("result = s.recv(9).decode()")
        sock.sendto(b"late", self.to())
        self.assertEqual(server.read("recv"), "late")

    def test_buffers(self):
        server = self.program()
        self.bound(server)
        sock = self.peer()
        sock.sendto(content(1000), self.to())
        self.assertEqual(server.get("(lambda d, a, f, p: [len(d), f])(*s.recvmsg(10))"), [10, socket.MSG_TRUNC])
        sock.sendto(content(1000), self.to())
        peek = "s.recv_into(bytearray(10), 10, socket.MSG_TRUNC | socket.MSG_PEEK)"
        self.assertEqual(server.get(f"[{peek}, len(s.recv(2000))]"), [1000, 1000])
        # SO_RCVBUF bounds what waits; a datagram counts for about as much as with the kernel.
        server.do("s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8000); s.settimeout(0.3)")
        for _ in range(100):
            sock.sendto(content(100), self.to())
        taken = server.do("""
result = 0
try:
    while s.recv(200):
        result += 1
except TimeoutError:
    pass
""")
        self.assertEqual(taken, 16000 // 768)

    def test_process_death_and_restart(self):
        for _ in range(2):
            server = self.program()
            self.bound(server, host=V4["b"])
            sock = self.peer()
            sock.sendto(b"hello", self.to())
            self.assertEqual(server.get("s.recv(9).decode()"), "hello")
            server.kill()
            sock.connect(self.to())

            def refused(sock=sock):
                try:
                    sock.send(b"x")
                    sock.settimeout(0.05)
                    sock.recv(9)
                except ConnectionRefusedError:
                    return True
                except TimeoutError:
                    pass
                return False
            self.until(refused, lambda: f"the port is still taken: {self.log('b')}")
            self.until(lambda: not self.attached(), "the queues are still held")

    def test_close(self):
        """The port is free at once, and the kernel says that nobody is there."""
        server = self.program()
        self.bound(server)
        sock = self.peer()
        sock.connect(self.to())
        sock.send(b"hello")
        self.assertEqual(server.get("s.recv(9).decode()"), "hello")
        server.do("t = socket.socket(fileno=os.dup(s.fileno())); s.close()")
        sock.send(b"dup")
        self.assertEqual(server.get("t.recv(9).decode()"), "dup")
        server.do("t.close()")
        with self.assertRaises(ConnectionRefusedError):
            sock.send(b"nobody")
            sock.recv(9)
        self.bound(server)
        sock.send(b"again")
        self.assertEqual(server.get("s.recv(9).decode()"), "again")

    def test_fork_and_exec(self):
        server = self.program()
        self.bound(server)
        sock = self.peer()
        sock.connect(self.to())
        server.do("""
pid = os.fork()
if pid == 0:
    d, p = s.recvfrom(9); s.sendto(b"child " + d, p)
    code = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); d, p = s.recvfrom(9); s.sendto(b'exec ' + d, p)"
    os.set_inheritable(s.fileno(), True)
    os.execv(sys.executable, [sys.executable, "-c", code, str(s.fileno())])
""")
        sock.send(b"1")
        self.assertEqual(sock.recv(9), b"child 1")
        sock.send(b"2")
        self.assertEqual(sock.recv(9), b"exec 2")
        server.do("os.waitpid(pid, 0)")
        sock.send(b"3")
        self.assertEqual(server.get("s.recv(9).decode()"), "3")

    def test_posternd_killed(self):
        server = self.program()
        server.do(SERVER, FAMILY=int(socket.AF_INET), HOST="0.0.0.0", PORT=self.port)
        sock = self.peer()

        def ask(word):
            sock.sendto(word, self.to())
            self.assertEqual(sock.recv(100), word)
        before = self.warm(lambda: ask(b"before"))
        self.stop_daemon("b")
        ask(b"without")
        self.start_daemon("b")
        ask(b"after")
        self.assertEqual(self.datagrams(), before)

    def test_what_only_the_kernel_does(self):
        """An option that the wire does not know makes the socket the kernel's, with what waits on the wire."""
        server = self.program()
        self.bound(server)
        sock = self.peer()
        sock.sendto(b"wire", self.to())
        self.until(lambda: server.get("select.select([s], [], [], 0)[0] != []"), "nothing comes")
        before = self.datagrams()
        server.do(f"s.setsockopt(socket.IPPROTO_IP, {IP_RECVERR}, 1)")
        self.assertEqual(server.get("s.recv(9).decode()"), "wire")

        def by_kernel():
            sock.sendto(b"more", self.to())
            self.assertEqual(server.get("s.recv(9).decode()"), "more")
            return self.datagrams() != before
        self.until(by_kernel, "the kernel gets nothing")

    def test_a_look_and_what_follows(self):
        """What MSG_PEEK or FIONREAD has seen is what the next receive gets, whichever way the next datagrams come."""
        server = self.program()
        self.bound(server)
        server.do("import array, fcntl, termios")
        ways = {"wire": self.peer(), "host": self.peer(side="b")}
        for turn in range(40):
            first, second = ("wire", "host") if turn % 2 else ("host", "wire")
            size = {"wire": 10 + turn, "host": 200 + turn}
            ways[first].sendto(bytes(size[first]), self.to())
            look = "len(s.recv(999, socket.MSG_PEEK))"
            if turn % 4 > 1:
                look = "(lambda a: (select.select([s], [], []), fcntl.ioctl(s, termios.FIONREAD, a), a[0])[2])(array.array('i', [0]))"
            self.assertEqual(server.get(look), size[first], turn)
            ways[second].sendto(bytes(size[second]), self.to())
            server.do("time.sleep(0.002)")
            self.assertEqual(server.get("[len(s.recv(999)), len(s.recv(999))]"), [size[first], size[second]], turn)

    def test_many_messages_in_a_call(self):
        server = self.program()
        self.bound(server)
        server.do("""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
class msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(iovec)), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int)]
class mmsghdr(ctypes.Structure):
    _fields_ = [("hdr", msghdr), ("len", ctypes.c_uint)]
buffers, names = [ctypes.create_string_buffer(2000) for _ in range(8)], [ctypes.create_string_buffer(16) for _ in range(8)]
iovs = [iovec(ctypes.addressof(b), 2000) for b in buffers]
v = (mmsghdr * 8)()
for m, name, iov in zip(v, names, iovs):
    m.hdr = msghdr(ctypes.addressof(name), 16, ctypes.pointer(iov), 1, None, 0, 0)
""")
        sock = self.peer()
        sizes = [0, 1, 1472, 700]
        for size in sizes:
            sock.sendto(content(size), self.to())
        self.assertEqual(server.get("(s.settimeout(None), libc.recvmmsg(s.fileno(), v, 4, 0, None))[1]"), 4)
        self.assertEqual(server.get("[m.len for m in v[:4]]"), sizes)
        server.do("for m, iov in zip(v, iovs): iov.len = m.len")

        def tell():
            server.do("s.sendto(b'x', TO)", TO=sock.getsockname())
            self.assertEqual(sock.recv(9), b"x")
        before = self.warm(tell)
        self.assertEqual(server.get("libc.sendmmsg(s.fileno(), v, 4, 0)"), 4)
        for size in sizes:
            self.assertEqual(sock.recv(9999), content(size))
        self.assertEqual(self.datagrams(), before)
        server.do("for iov in iovs: iov.len = 2000")
        sock.sendto(content(100), self.to())
        sock.sendto(content(3000), self.to())  # in fragments: by the kernel
        seen = []
        while len(seen) < 2:
            seen += server.get("[[m.len, m.hdr.flags] for m in v[:libc.recvmmsg(s.fileno(), v, 8, 0x10000, None)]]")  # MSG_WAITFORONE
        self.assertEqual(sorted(seen), [[100, 0], [2000, socket.MSG_TRUNC]])

    def test_threads(self):
        """Several wait in recv(): for each datagram one gets up."""
        server = self.program()
        self.bound(server)
        server.do("""
got, lock = [], threading.Lock()
def take():
    data = s.recv(9)
    with lock:
        got.append(data.decode())
threads = [threading.Thread(target=take, daemon=True) for _ in range(4)]
for t in threads: t.start()
time.sleep(0.1)
""")
        sock = self.peer()
        for n in range(4):
            sock.sendto(b"%d" % n, self.to())
        self.until(lambda: sorted(server.get("got")) == ["0", "1", "2", "3"], lambda: f"got {server.get('got')}")

    def test_link_local(self):
        server = self.program()
        server.do(SERVER, FAMILY=int(socket.AF_INET6), HOST="::", PORT=self.port)
        self.until(lambda: self.link_local("a") and self.link_local("b"), "no link-local addresses")
        with self.lab.inside("a"):
            index = socket.if_nametoindex("va")
            sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        self.addCleanup(sock.close)
        sock.settimeout(wirekit.READY_SEC)
        to = self.link_local("b"), self.port, 0, index
        for word in (b"one", b"two"):
            sock.sendto(word, to)
            data, peer = sock.recvfrom(9)
            self.assertEqual((data, peer), (word, to))

    def link_local(self, side):
        """That of its interface; None: nobody may use it yet (DAD)."""
        with self.lab.inside(side), open("/proc/thread-self/net/if_inet6", encoding="ascii") as table:
            for raw, _, _, _, flags, name in map(str.split, table):
                if raw.startswith("fe80") and name == f"v{side}" and int(flags, 16) & 0x40 == 0:
                    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw))
        return None

    def test_shown(self):
        """posternctl ss: by which way, and why not."""
        server = self.program()
        self.bound(server)
        server.do("t = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); t.bind(('127.0.0.1', 0))")

        def shown(name):
            fd = server.get(f"{name}.fileno()")
            return next((s["path"], s["reason"]) for s in self.sockets(server)["sockets"] if s["fd"] == fd)
        self.assertEqual((shown("s"), shown("t")), (("vi", ""), ("kernel", "not-local")))
        server.do(f"s.setsockopt(socket.IPPROTO_IP, {IP_RECVERR}, 1)")
        self.assertEqual(shown("s"), ("kernel", "option"))

    def test_off(self):
        """Without the option nothing of it happens."""
        server = self.program(options=["vi=vb"])
        self.bound(server)
        self.assertFalse(self.attached())
        sock, before = self.peer(), self.datagrams()
        sock.sendto(b"x", self.to())
        self.assertEqual(server.get("s.recv(9).decode()"), "x")
        self.assertNotEqual(self.datagrams(), before)

    @unittest.skipUnless(shutil.which("sockperf", path=wirekit.PATH), "sockperf is not installed")
    def sockperf(self, *where):
        """Postern on either side: every message comes back, once and in order, and the kernel's UDP has no part in it."""
        self.start_daemon("a")
        wrapper = [f"{self.build}/postern", "-o", "vi.udp=on", "-o"]
        self.start("b", [*wrapper, "vi=vb", "sockperf", "sr", *where], stdout=subprocess.DEVNULL)
        self.until(lambda: self.attached("b") and self.receiving(), "the server is not ready")
        before = self.datagrams("b")
        said = self.run_in("a", [*wrapper, "vi=va", "sockperf", "pp", *where, "-m", "14", "-t", "1", "--data-integrity"]).decode()
        counts = re.findall(r"# (dropped|duplicated|out-of-order) messages = (\d+)", said)
        self.assertEqual([n for _, n in counts], ["0"] * 3, said)
        self.assertGreater(int(re.search(r"ReceivedMessages=(\d+)", said).group(1)), 100, said)
        self.assertLess(sum(self.datagrams("b")) - sum(before), 100, said)

    def test_sockperf(self):
        self.sockperf("-i", V4["b"], "-p", str(self.port))

    def test_sockperf_epoll(self):
        with open(f"{self.temp.name}/feed", "w", encoding="ascii") as feed:
            feed.writelines(f"U:{V4['b']}:{self.port + n}\n" for n in range(20))
        self.port += 19  # the last one that is bound
        self.sockperf("-f", feed.name, "-F", "e")

    def receiving(self):
        """Whether the kernel has a UDP socket on the port in b."""
        with self.lab.inside("b"), open("/proc/thread-self/net/udp", encoding="ascii") as file:
            return any(f":{self.port:04X} " in line for line in file)


class ClientTest(UdpTest):
    """The client is postern's, the server the kernel's."""

    def server(self, family=socket.AF_INET):
        sock = self.peer(family)
        self.assertNotEqual(sock.getsockname()[1], 0)
        return sock

    def test_connected(self):
        client = self.program()
        for family in FAMILIES:
            with self.subTest(family=family):
                server, stranger = self.server(family), self.server(family)
                client.do("s = socket.socket(FAMILY, socket.SOCK_DGRAM); s.connect(TO)", FAMILY=int(family), TO=server.getsockname()[:2])
                client.do("s.send(b'first')")
                data, peer = server.recvfrom(9)
                self.assertEqual(peer[:2], (ADDRESS[family]["b"], client.get("s.getsockname()[1]")))
                self.assertEqual(client.get("s.getpeername()[:2]"), list(server.getsockname()[:2]))

                def tell(server=server):
                    client.do("s.send(b'x')")
                    self.assertEqual(server.recv(9), b"x")
                before = self.warm(tell)
                for size in (0, 1, 1000, MOST[family]):
                    client.do("d = random.Random(N).randbytes(N); s.send(d)", N=size)
                    self.assertEqual(server.recv(65536), content(size))
                    server.sendto(content(size), peer)
                    self.assertTrue(client.get("s.recv(65536) == d"))
                client.do("os.write(s.fileno(), b'written')")
                self.assertEqual(server.recv(9), b"written")
                self.assertEqual(self.datagrams(), before)
                stranger.sendto(b"stranger", peer)
                server.sendto(b"friend", peer)
                self.assertEqual(client.get("os.read(s.fileno(), 9).decode()"), "friend")
                # Connected anew, and not any more.
                client.do("s.connect(TO); s.send(b'x')", TO=stranger.getsockname()[:2])
                self.assertEqual(stranger.recvfrom(9)[1][:2], peer[:2])
                stranger.sendto(b"new", peer)
                self.assertEqual(client.get("s.recv(9).decode()"), "new")
                client.do("s.close()")

    def test_unconnected(self):
        client = self.program()
        server = self.server()
        client.do("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)")
        client.do("s.sendto(b'first', TO)", TO=server.getsockname())
        peer = server.recvfrom(9)[1]
        server.sendto(b"answer", peer)
        self.assertEqual(client.get("(lambda d, p: [d.decode(), *p])(*s.recvfrom(9))"), ["answer", *server.getsockname()])

        def ask(n=0):
            client.do("s.sendto(b'%d', TO)" % n, TO=server.getsockname())
            data, peer = server.recvfrom(9)
            server.sendto(data + b"!", peer)
            self.assertEqual(client.get("s.recv(9).decode()"), f"{n}!")
        before = self.warm(ask)
        for n in range(100):
            ask(n)
        self.assertEqual(self.datagrams(), before)

    def test_refused(self):
        """As the kernel has it: once, at the next call, and only for a connected socket."""
        client, plain = self.program(), self.plain("b")
        gone = self.server()
        to = gone.getsockname()
        gone.close()
        said = []
        for program in (client, plain):
            program.do("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(TO); s.settimeout(0.5)", TO=to)
            answers = []
            for code in ("s.send(b'x')", "s.recv(9)", "s.recv(9)",
                         "s.send(b'x'); select.select([s], [], [], 20); result = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)",
                         "s.recv(9)",
                         "s.send(b'x'); p = select.poll(); p.register(s, select.POLLIN); result = p.poll(20000)[0][1]",
                         "s.send(b'y')", "s.sendto(b'x', ('10.77.0.255', 9))"):
                try:
                    answers.append(program.do(code))
                except wirekit.Refused as refused:
                    answers.append("timeout" if refused.timeout else errno.errorcode[refused.errno])
            said.append(answers)
        self.assertEqual(said[0], said[1])
        self.assertIn("ECONNREFUSED", said[0])

    def test_errors(self):
        """What is wrong with a call is what the kernel says."""
        client, plain = self.program(), self.plain("b")
        server = self.server()
        said = []
        for program in (client, plain):
            program.do("s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('0.0.0.0', 0)); s.setblocking(False)")
            answers = []
            for code in ("s.send(b'x')", "s.sendto(b'x', ('10.77.0.1', 0))", "s.sendto(bytes(65508), TO)", "s.recv(9)",
                         "s.sendto(b'x', ('255.255.255.255', 9))", "s.bind(('0.0.0.0', 0))", "s.listen()", "s.accept()",
                         "s.shutdown(socket.SHUT_RDWR)", "s.sendto(b'', TO)", "s.recv(9)",
                         "s.getpeername()", "result = s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)", "s.recv(9, socket.MSG_OOB)"):
                try:
                    answers.append(program.do(code, TO=server.getsockname()))
                except wirekit.Refused as refused:
                    answers.append(errno.errorcode[refused.errno])
            said.append(answers)
        self.assertEqual(said[0], said[1])

    def test_both(self):
        """Postern on either side."""
        self.start_daemon("a")
        client, server = self.program(), self.program("a")
        for family in FAMILIES:
            self.port += 1
            server.do(SERVER, FAMILY=int(family), HOST="0.0.0.0" if family == socket.AF_INET else "::", PORT=self.port)
            client.do("s = socket.socket(FAMILY, socket.SOCK_DGRAM); s.connect(TO); s.settimeout(20); s.send(b'x'); s.recv(9)",
                      FAMILY=int(family), TO=self.to(family, "a"))
            for side in "ab":
                self.warm(lambda: client.do("s.send(b'x'); s.recv(9)"), side)
            before = self.datagrams("a"), self.datagrams("b")
            client.do("""
for n in range(1000):
    d = random.Random(n).randbytes(n + 400)
    s.send(d)
    assert s.recv(9000) == d
""")
            self.assertEqual((self.datagrams("a"), self.datagrams("b")), before)


def missing(build):
    """Why the kernel or the build can't do it; None: it can."""
    UdpTest.build = build
    probe = ServerTest("test_echo")
    probe.setUp()
    try:
        probe.bound(probe.program())
        if probe.attached():
            return None
        return next((line for line in probe.log("b").splitlines() if any(part in line for part in wirekit.NOT_HERE)), None)
    finally:
        probe.tearDown()


if __name__ == "__main__":
    wirekit.main(missing)
