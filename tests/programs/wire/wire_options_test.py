# wire_options_test.py - what a program is told of its connections over AF_XDP, and what its options do there.
# SPDX-License-Identifier: Apache-2.0
#
# usage: wire_options_test.py BUILD_DIR [-v] [TEST...]; exit 77 as wire_test.py.

import errno
import os
import select
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab
import pauses
import wire_test
import wirekit
from netlab import V4

INFO = """
def info(sock):
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    names = "rto ato snd_mss rcv_mss unacked sacked lost retrans fackets sent ack_sent recv ack_recv pmtu rcv_ssthresh rtt rttvar ssthresh cwnd".split()
    return dict(zip(names, struct.unpack_from("19I", raw, 8)), state=raw[0], options=raw[5], bytes_acked=struct.unpack_from("Q", raw, 120)[0])
"""
TIMESTAMPS, ECN = 1, 8
DATA_SEGS_IN, SND_WND = 152, 228  # in struct tcp_info
SYN_DATA = 32


class OptionsTest(wirekit.WireTest):
    """The server is postern's, the client the kernel's."""

    def setUp(self):
        super().setUp()
        self.start_daemon("b")
        self.server = self.program()
        self.server.do(INFO)
        self.server.do("l = socket.create_server((HOST, PORT), backlog=16)", HOST=V4["b"], PORT=self.port)

    def accepted(self, family=socket.AF_INET):
        """The kernel's end of a connection; the other one is `s` in the server."""
        sock = self.connected(family=family)
        self.addCleanup(sock.close)
        self.server.do("s = l.accept()[0]")
        return sock

    def transfer(self, sock, size):
        self.server.tell("s.sendall(bytes(SIZE))".replace("SIZE", str(size)))
        got = 0
        while got < size:
            got += len(sock.recv(1 << 20))
        self.server.read("sendall")

    def test_info(self):
        sock = self.accepted()
        self.transfer(sock, 200000)
        self.until(lambda: self.server.get("info(s)['unacked']") == 0, "never acknowledged")
        said = self.server.get("info(s)")
        self.assertEqual([said[k] for k in ("state", "options", "snd_mss", "pmtu")], [1, 7, 1448, 1500])
        self.assertEqual(said["bytes_acked"], 200000)
        self.assertGreaterEqual(said["cwnd"], 10)
        self.assertGreaterEqual(said["rto"], 200000)
        self.assertGreater(said["rtt"], 0)
        self.assertEqual(self.server.get("s.getsockopt(6, socket.TCP_MAXSEG)"), 1448)
        self.assertEqual(self.server.get("s.getsockopt(0, 14)"), 1500)  # IP_MTU
        sock.shutdown(socket.SHUT_WR)
        self.until(lambda: self.server.get("info(s)['state']") == 8, "not CLOSE_WAIT")

    def test_congestion(self):
        name = "s.getsockopt(6, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode()"
        sock = self.accepted()
        self.assertEqual(self.server.get(name), "cubic")
        self.server.do("s.setsockopt(6, socket.TCP_CONGESTION, b'reno')")
        self.assertEqual(self.server.get(name), "reno")
        with self.assertRaises(wirekit.Refused) as refused:
            self.server.do("s.setsockopt(6, socket.TCP_CONGESTION, b'nosuch')")
        self.assertEqual(refused.exception.errno, errno.ENOENT)
        self.transfer(sock, 1000000)

    def vanish(self):
        """a drops what it gets, and says nothing."""
        with self.lab.inside("a"):
            self.lab.ip("addr", "del", f"{V4['a']}/24", "dev", "va")
        with self.lab.inside("b"):
            self.lab.ip("neigh", "replace", V4["a"], "lladdr", netlab.MAC["a"], "dev", "vb")

    def time_out(self, code):
        with self.assertRaises(wirekit.Refused) as refused:
            self.server.do(code)
        self.assertEqual(refused.exception.errno, errno.ETIMEDOUT)

    def test_keepalive_of_an_idle_connection(self):
        self.accepted()
        self.server.do("for o, v in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 2)):\n"
                       "    s.setsockopt(6, o, v)\ns.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)")
        self.vanish()
        self.time_out("s.recv(1)")

    def test_user_timeout(self):
        self.accepted()
        self.server.do("s.setsockopt(6, 18, 1500)")
        self.vanish()
        self.time_out("s.send(b'x')\ns.recv(1)")

    def test_linger_of_nothing_resets(self):
        sock = self.accepted()
        self.server.do("s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\ns.close()")
        sock.settimeout(10)
        with self.assertRaises(ConnectionResetError):
            sock.recv(1)

    def ports(self):
        """postern's server, and the kernel's, which says what is right: (program, port, name)."""
        kernel = self.plain("b")
        kernel.do(INFO)
        yield kernel, self.port + 1, "kernel"
        yield self.server, self.port, "postern"

    def connected_to(self, port):
        sock = self.new_socket()
        self.addCleanup(sock.close)
        sock.connect((V4["b"], port))
        return sock

    def listen(self, server, port, option, value):
        server.do("globals().get('l') and l.close()")
        server.do("l = socket.create_server((HOST, PORT), backlog=16)\nl.setsockopt(6, OPTION, VALUE)", HOST=V4["b"], PORT=port, OPTION=option,
                  VALUE=value)

    def test_deferred(self):
        """A client that has only connected is accepted once the time is over, and not before; one that writes, at once."""
        for server, port, name in self.ports():
            with self.subTest(name):
                self.listen(server, port, socket.TCP_DEFER_ACCEPT, 1)
                before = server.get("time.monotonic()")
                self.connected_to(port)
                server.do("s = l.accept()[0]")
                self.assertGreater(server.get("time.monotonic()") - before, 0.9)
                server.do("l.setsockopt(6, socket.TCP_DEFER_ACCEPT, 3600)")
                pauses.begin()
                began = time.monotonic()
                silent, sock = self.connected_to(port), self.connected_to(port)
                sock.sendall(b"hello")
                server.do("s, peer = l.accept()")
                self.assertEqual(tuple(server.get("peer")), sock.getsockname())
                self.assertEqual(server.get("s.recv(100).decode()"), "hello")
                self.assertLess(server.get("info(s)['rtt']") / 1e6, pauses.limit(began, 0.5))
                self.assertEqual(server.get("select.select([l], [], [], 0.2)[0]"), [])
                silent.shutdown(socket.SHUT_WR)
                server.do("s, peer = l.accept()")
                self.assertEqual(tuple(server.get("peer")), silent.getsockname())

    def test_nobody_waits_for_a_fin(self):
        """TCP_LINGER2 below 0: what comes after close() is nobody's; else the peer's FIN is waited for."""
        for server, port, name in self.ports():
            # A reset that comes before the client's FIN has gone out meets it in CLOSE_WAIT, where it is EPIPE.
            for value, errors in ((-1, (errno.ECONNRESET, errno.EPIPE)), (0, (0,)), (5, (0,))):
                for by_listener in (False, True):
                    with self.subTest(name, value=value, by_listener=by_listener):
                        self.listen(server, port, socket.TCP_LINGER2, value if by_listener else 0)
                        sock = self.connected_to(port)
                        server.do("s = l.accept()[0]")
                        if not by_listener:
                            server.do("s.setsockopt(6, socket.TCP_LINGER2, VALUE)", VALUE=value)
                        self.assertEqual(server.get("s.getsockopt(6, socket.TCP_LINGER2)"), value or 60)
                        server.do("s.close()")
                        self.assertEqual(sock.recv(1), b"")
                        try:
                            sock.shutdown(socket.SHUT_WR)
                        except OSError as failure:  # the server's RST may be here before it
                            self.assertEqual((failure.errno, value), (errno.ENOTCONN, -1))
                        self.until(lambda sock=sock: sock.getsockopt(6, socket.TCP_INFO, 1)[0] == 7, "not CLOSE")
                        self.assertIn(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), errors)

    def test_largest_segment_of_the_listener(self):
        """TCP_MAXSEG after listen(): the SYN-ACK says it."""
        for server, port, name in self.ports():
            with self.subTest(name):
                self.listen(server, port, socket.TCP_MAXSEG, 1000)
                with self.connected_to(port) as sock:
                    self.assertEqual(sock.getsockopt(6, socket.TCP_MAXSEG), 988)
                    server.do("s = l.accept()[0]")
                    self.assertEqual(server.get("s.getsockopt(6, socket.TCP_MAXSEG)"), 988)

    def test_corks(self):
        """MSG_MORE waits for the next write; TCP_NODELAY sends what a cork holds, and what comes after it is held again."""
        for server, port, name in self.ports():
            for code, size, most, least in (
                ("for _ in range(9):\n    s.send(bytes(100), socket.MSG_MORE)\ns.send(bytes(100))", 1000, 3, 1),
                ("s.setsockopt(6, socket.TCP_CORK, 1)\ns.send(bytes(100))\ns.setsockopt(6, socket.TCP_NODELAY, 1)\ns.send(bytes(100))", 200, 2, 2),
            ):
                with self.subTest(name, code=code):
                    self.listen(server, port, socket.TCP_NODELAY, 1)
                    sock = self.connected_to(port)
                    server.do("s = l.accept()[0]")
                    server.do(code)
                    got = 0
                    while got < size:
                        got += len(sock.recv(size))
                    segments = struct.unpack_from("I", sock.getsockopt(6, socket.TCP_INFO, 256), DATA_SEGS_IN)[0]
                    self.assertLessEqual(segments, most)
                    self.assertGreaterEqual(segments, least)
                    sock.close()

    def test_sysctls_are_followed(self):
        """What the host says now counts for the next connections of a server that runs; open ones stay as they are."""
        self.accepted()
        agreed = "info(s)['options']"
        self.assertEqual(self.server.get(agreed) & TIMESTAMPS, TIMESTAMPS)
        with self.lab.inside("b"), open("/proc/sys/net/ipv4/tcp_timestamps", "w", encoding="ascii") as file:
            file.write("0")

        def without():
            with self.connected():
                self.server.do("t = l.accept()[0]")
                return self.server.get("info(t)['options']") & TIMESTAMPS == 0

        self.until(without, "timestamps are agreed on")
        self.assertEqual(self.server.get(agreed) & TIMESTAMPS, TIMESTAMPS)

    def write_sysctl(self, side, name, value):
        with self.lab.inside(side), open(f"/proc/sys/net/ipv4/{name}", "w", encoding="ascii") as file:
            file.write(value)

    def test_receive_buffers_are_followed(self):
        """tcp_rmem's default says what window a client is offered first."""
        said = {}
        for server, port, name in self.ports():

            def first_window(port=port, server=server):
                self.listen(server, port, socket.TCP_NODELAY, 1)  # with Linux, what counts is when its socket was made
                with self.connected_to(port) as sock:
                    server.do("s = l.accept()[0]")
                    return struct.unpack_from("I", sock.getsockopt(6, socket.TCP_INFO, 256), SND_WND)[0]

            self.write_sysctl("b", "tcp_rmem", "4096 131072 6291456")
            self.until(lambda first_window=first_window: first_window() > 60000, "the window stays small")
            self.write_sysctl("b", "tcp_rmem", "4096 20000 6291456")
            self.until(lambda first_window=first_window: first_window() < 60000, "the window stays large")
            said[name] = first_window()
        self.assertEqual(said["postern"], said["kernel"])

    def test_records(self):
        """MSG_EOR: no segment goes on beyond it, where the engine has come by (docs/deviations.md)."""
        for server, port, name in self.ports():
            with self.subTest(name):
                self.listen(server, port, socket.TCP_NODELAY, 0)
                sock = self.connected_to(port)
                server.do("s = l.accept()[0]")
                server.do("s.setsockopt(6, socket.TCP_CORK, 1)\nfor _ in range(5):\n    s.send(bytes(100), socket.MSG_EOR)\n    time.sleep(0.02)\ns.close()")
                got = 0
                while data := sock.recv(1000):
                    got += len(data)
                self.assertEqual(got, 500)
                self.assertEqual(struct.unpack_from("I", sock.getsockopt(6, socket.TCP_INFO, 256), DATA_SEGS_IN)[0], 5)
                sock.close()

    def test_fast_open(self):
        """TCP_FASTOPEN, set before listen() or after it, is what Linux gives where the host lets servers have it."""
        for side in "ab":
            self.write_sysctl(side, "tcp_fastopen", "3")
        for server, port, name in self.ports():
            for late in (False, True):
                with self.subTest(name, late=late):
                    server.do("globals().get('l') and l.close()")
                    server.do("l = socket.socket()\nl.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\nl.bind((HOST, PORT))\n"
                              "LATE or l.setsockopt(6, socket.TCP_FASTOPEN, 5)\nl.listen(16)\nLATE and l.setsockopt(6, socket.TCP_FASTOPEN, 5)",
                              HOST=V4["b"], PORT=port, LATE=late)
                    self.assertEqual(server.get("l.getsockopt(6, socket.TCP_FASTOPEN)"), 5)

                    def opened(port=port, server=server):
                        """Whether the SYN's data were taken."""
                        with self.new_socket() as sock:
                            sock.setblocking(True)
                            sock.sendto(b"hello", socket.MSG_FASTOPEN, (V4["b"], port))
                            server.do("s = l.accept()[0]")
                            self.assertEqual(server.get("s.recv(100).decode()"), "hello")
                            server.do("s.close()")
                            sock.recv(1)
                            return sock.getsockopt(6, socket.TCP_INFO, 256)[5] & SYN_DATA != 0

                    opened()  # the first one gets the cookie
                    self.until(opened, "the SYN's data were not taken")

    def test_congestion_of_the_listener(self):
        for server, port, name in self.ports():
            with self.subTest(name):
                self.listen(server, port, socket.TCP_CONGESTION, b"reno")
                sock = self.connected_to(port)
                server.do("s = l.accept()[0]")
                self.assertEqual(server.get("s.getsockopt(6, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode()"), "reno")
                sock.close()

    def test_window_clamp(self):
        """The window begins with it, and stays below it; what comes is taken all the same. (The kernel's grows with its receive buffer.)"""
        with self.lab.inside("a"):
            listener = socket.create_server((V4["a"], self.port))
        self.addCleanup(listener.close)
        most, snd_wnd_off = 8192, 228  # of tcp_info
        for client, _, name in self.ports():
            with self.subTest(name):
                client.do("c = socket.socket()\nc.setsockopt(6, socket.TCP_WINDOW_CLAMP, MOST)\nc.connect((HOST, PORT))", MOST=most,
                          HOST=V4["a"], PORT=self.port)
                sock = listener.accept()[0]
                self.addCleanup(sock.close)

                def window(sock=sock):
                    return struct.unpack_from("I", sock.getsockopt(6, socket.TCP_INFO, 256), snd_wnd_off)[0]

                windows = [window()]
                self.assertLessEqual(windows[0], most)
                client.tell("result = sum(len(c.recv(65536, socket.MSG_WAITALL)) for _ in range(16))")
                for _ in range(16):
                    sock.sendall(bytes(65536))
                    windows.append(window())
                self.assertEqual(client.read("recv"), 16 * 65536)
                if name == "postern":
                    self.assertLessEqual(max(windows), most)

    def test_the_same_names_again(self):
        """The server closes first, and the client comes again from the same port: TIME_WAIT gives way to its SYN (RFC 6191)."""
        for server, port, name in self.ports():
            with self.subTest(name):
                self.listen(server, port, socket.TCP_NODELAY, 1)
                for _ in range(10):
                    sock = self.new_socket()
                    self.addCleanup(sock.close)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind((V4["a"], port + 1000))
                    # Until the last FIN is acknowledged the kernel itself has the name.
                    self.until(lambda sock=sock, port=port: sock.connect_ex((V4["b"], port)) == 0, "the name is never free")
                    server.tell("s = l.accept()[0]\ns.sendall(bytes(1000000))\ns.close()")
                    got = 0
                    while data := sock.recv(1 << 20):
                        got += len(data)
                    server.read("sendall")
                    self.assertEqual(got, 1000000)
                    sock.close()

    def test_flood(self):
        """More clients than the backlog at once, none of which is lost."""
        self.server.do("""
l.close()
l = socket.create_server((HOST, PORT), backlog=4)
def answer(c):
    c.sendall(c.recv(100))
    c.close()
def accept():
    while True:
        threading.Thread(target=answer, args=(l.accept()[0],), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
""", HOST=V4["b"], PORT=self.port)
        socks = [self.new_socket() for _ in range(64)]
        for sock in socks:
            sock.setblocking(False)
            sock.connect_ex((V4["b"], self.port))
        for sock in socks:
            with sock:
                sock.settimeout(20)
                self.until(lambda sock=sock: select.select([], [sock], [], 0)[1], "not connected")
                sock.sendall(b"hello")
                self.assertEqual(sock.recv(100), b"hello")


class EcnTest(wirekit.WireTest):
    """The server is postern's, the client the kernel's, which asks for ECN."""

    def test_agreed(self):
        self.start_daemon("b")
        with self.lab.inside("a"), open("/proc/sys/net/ipv4/tcp_ecn", "w", encoding="ascii") as file:
            file.write("1")
        server = self.program()
        self.echo_server(server)
        with self.connected() as sock:
            wirekit.exchange(sock, os.urandom(300000))
        with self.connected() as sock:
            sock.sendall(b"x")
            sock.recv(1)
            raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            self.assertEqual(raw[5] & ECN, ECN)
            self.assertEqual(struct.unpack_from("I", raw, 16)[0], 1448)


if __name__ == "__main__":
    wirekit.main(wire_test.missing)
