# wire_test.py - TCP of unmodified programs over AF_XDP (option vi, posternd --vi): what they see, and which processes may die.
# SPDX-License-Identifier: Apache-2.0
#
# usage: wire_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, namespaces, AF_XDP, or where posternd has no BPF.

import errno
import hashlib
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import pauses
import wirekit
from netlab import MAC, V4, V6
from wirekit import EXCHANGE, exchange

FAMILIES = (socket.AF_INET, socket.AF_INET6)
NGINX = """
worker_processes 2; daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log warn;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 1000000; sendfile on;
  server {{ listen 0.0.0.0:{port}; root {dir}/docs; }} }}
"""
SIZES = (1, 100, 1448, 1449, 65536, 8 << 20)


def content(size):
    return random.Random(size).randbytes(size)


class ServerTest(wirekit.WireTest):
    """The server is postern's, the client the kernel's."""

    def setUp(self):
        super().setUp()
        self.start_daemon("b")

    def test_echo(self):
        server = self.program()
        for family in FAMILIES:
            with self.subTest(family=family):
                self.port += 1
                self.echo_server(server, family=family)
                before = self.lab.segments("b")
                for size in SIZES:
                    with self.connected(family=family) as sock:
                        exchange(sock, content(size))
                self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")
        server.close()
        self.until(lambda: not self.attached(), lambda: f"the queues are still held: {self.log('b')}")

    def test_many_at_once(self):
        server = self.program()
        self.echo_server(server)
        socks = [self.connected() for _ in range(100)]
        for n, sock in enumerate(socks):
            sock.sendall(content(1000 + n))
        for n, sock in enumerate(socks):
            sock.shutdown(socket.SHUT_WR)
            got = b""
            while part := sock.recv(65536):
                got += part
            self.assertEqual(got, content(1000 + n))
            sock.close()

    def test_half_close(self):
        """What the client's end of writing does not end: a megabyte the other way; and the same the other way round."""
        server = self.program()
        server.do("listener = socket.create_server((HOST, PORT))", HOST="0.0.0.0", PORT=self.port)
        server.tell("s, _ = listener.accept(); n = len(s.recv(9)); e = s.recv(9); s.sendall(bytes(1 << 20)); s.close(); result = [n, len(e)]")
        with self.connected() as sock:
            sock.sendall(b"hello")
            sock.shutdown(socket.SHUT_WR)
            got = 0
            while part := sock.recv(65536):
                got += len(part)
        self.assertEqual(got, 1 << 20)
        self.assertEqual(server.read("accept"), [5, 0])
        server.tell("s, _ = listener.accept(); s.shutdown(socket.SHUT_WR); n = 0\nwhile p := s.recv(65536): n += len(p)\nresult = n")
        with self.connected() as sock:
            self.assertEqual(sock.recv(1), b"")
            sock.sendall(bytes(1 << 20))
        self.assertEqual(server.read("accept"), 1 << 20)

    def test_reset(self):
        linger = "s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()"
        server = self.program()
        server.do("listener = socket.create_server((HOST, PORT))", HOST="0.0.0.0", PORT=self.port)
        with self.connected() as sock:
            server.do("s, _ = listener.accept(); " + linger)
            with self.assertRaises(ConnectionResetError):
                sock.recv(1)
        sock = self.connected()
        server.do("s, _ = listener.accept()")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        with self.assertRaises(wirekit.Refused) as refused:
            server.do("s.recv(1)")
        self.assertEqual(refused.exception.errno, errno.ECONNRESET)

    def test_server_killed(self):
        """What it had written before arrives, then the end."""
        server = self.program()
        server.do("listener = socket.create_server((HOST, PORT))", HOST="0.0.0.0", PORT=self.port)
        with self.connected() as sock, self.connected() as busy:
            server.do("s, _ = listener.accept(); t, _ = listener.accept(); s.sendall(bytes(600000))")
            server.tell("while True: t.sendall(bytes(100000))")
            while len(busy.recv(1 << 20)) == 0:
                pass
            server.kill()
            got = 0
            while part := sock.recv(65536):
                got += len(part)
            self.assertEqual(got, 600000)
            try:
                while busy.recv(65536):
                    pass
            except ConnectionResetError:
                pass
        with self.assertRaises(ConnectionRefusedError):
            self.connected()

    def test_listener_closed(self):
        """Its connections go on."""
        server = self.program()
        server.do("listener = socket.create_server((HOST, PORT))", HOST="0.0.0.0", PORT=self.port)
        with self.connected() as sock:
            server.do("s, _ = listener.accept(); listener.close()")
            sock.sendall(b"hello")
            self.assertEqual(server.get("s.recv(9).decode()"), "hello")
            server.do("s.sendall(b'there')")
            self.assertEqual(sock.recv(9), b"there")
        with self.assertRaises(ConnectionRefusedError):
            self.connected()
        # The port is free again.
        server.do("listener = socket.create_server((HOST, PORT))", HOST="0.0.0.0", PORT=self.port)
        with self.connected() as sock:
            server.do("s, _ = listener.accept(); s.sendall(b'again')")
            self.assertEqual(sock.recv(9), b"again")

    def test_fork_and_exec(self):
        server = self.program()
        server.do("listener = socket.create_server((HOST, PORT))", HOST="0.0.0.0", PORT=self.port)
        with self.connected() as sock:
            server.do("s, _ = listener.accept()")
            server.do("""
if os.fork() == 0:
    s.sendall(b"child")
    code = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(b'exec'); l = socket.socket(fileno=int(sys.argv[2])); t, _ = l.accept(); t.sendall(b'new')"
    for fd in s.fileno(), listener.fileno():
        os.set_inheritable(fd, True)
    os.execv(sys.executable, [sys.executable, "-c", code, str(s.fileno()), str(listener.fileno())])
s.close(); listener.close()
""")
            self.assertEqual(sock.recv(5, socket.MSG_WAITALL), b"child")
            self.assertEqual(sock.recv(4, socket.MSG_WAITALL), b"exec")
            with self.connected() as other:
                self.assertEqual(other.recv(9), b"new")
            self.assertEqual(sock.recv(9), b"")

    def test_posternd_killed(self):
        server = self.program()
        self.echo_server(server)
        with self.connected() as sock:
            sock.sendall(b"a")
            self.assertEqual(sock.recv(9), b"a")
            self.stop_daemon("b")
            sock.sendall(b"b")
            self.assertEqual(sock.recv(9), b"b")
            with self.connected() as new:
                exchange(new, content(100000))
            self.start_daemon("b")
            with self.connected() as new:
                exchange(new, content(100000))
            sock.sendall(b"c")
            self.assertEqual(sock.recv(9), b"c")

    def test_posternd_stopped(self):
        """While another thread waits for its answer, which holds the line: connections go on, new ones are made, neighbours and filters
        that posternd is to know of do not hold up anybody."""
        stopped_sec, longest_sec = 2.8, 0.5  # no longer than the line is kept
        pauses.begin()
        server = self.program()
        self.echo_server(server)
        old = [self.connected(), self.connected()]
        for sock in old:
            sock.settimeout(20)
            exchange(sock, b"first", end=False)
        server.do("""
def ask():
    while asks:
        with socket.socket() as sock:
            sock.bind(("0.0.0.0", 0))
            sock.listen()
asks = True
asker = threading.Thread(target=ask, daemon=True)
""")
        with self.lab.inside("b"):  # a neighbour that is to be asked for, with each new connection
            subprocess.run(["ip", "neigh", "replace", V4["a"], "lladdr", MAC["a"], "dev", "vb", "nud", "stale"], check=True)
        time.sleep(0.2)
        longest, made, daemon = 0, 0, self.daemons["b"]
        daemon.send_signal(signal.SIGSTOP)
        try:
            server.do("asker.start()")
            began = last = time.monotonic()
            while last - began < stopped_sec:
                with self.connected() as new:
                    new.settimeout(20)
                    exchange(new, b"new" * 1000)
                made += 1
                for sock in old:
                    exchange(sock, b"still there", end=False)
                now = time.monotonic()
                longest, last = max(longest, now - last), now
                time.sleep(0.02)
        finally:
            daemon.send_signal(signal.SIGCONT)
        self.assertLess(longest, pauses.limit(began, longest_sec), f"of {made} rounds")
        server.do("asks = False; asker.join()")
        for sock in old:
            exchange(sock, b"last")
        self.port += 1
        self.echo_server(server)
        # On a machine that kept posternd from answering in time, too, a silent one is asked again after 20 s (lib/control/control.cc).
        self.until(lambda: self.steered(server), "a new listener is not steered", 60)
        with self.connected() as new:
            exchange(new, content(100000))

    def test_both_killed(self):
        """Server and posternd: nothing holds the queues, and the client sees the end."""
        server = self.program()
        self.echo_server(server)
        with self.connected() as sock:
            sock.sendall(b"a")
            self.assertEqual(sock.recv(9), b"a")
            self.stop_daemon("b")
            server.kill()
            self.assertEqual(sock.recv(9), b"")
        self.until(lambda: not self.attached(), "the queues are still held")
        self.start_daemon("b")
        server = self.program()
        self.echo_server(server)
        with self.connected() as sock:
            exchange(sock, content(100000))

    def test_keeper_killed(self):
        server = self.program()
        self.echo_server(server)
        with self.connected() as sock:
            sock.sendall(b"a")
            self.assertEqual(sock.recv(9), b"a")
            self.until(lambda: len(self.keepers()) == 1, "no keeper")
            os.kill(self.keepers()[0], signal.SIGKILL)
            for letter in (b"b", b"c"):
                sock.sendall(letter)
                self.assertEqual(sock.recv(9), letter)
            with self.connected() as new:
                exchange(new, content(100000))

    def test_nginx(self):
        nginx, curl, wrk = (shutil.which(name, path=wirekit.PATH + ":/usr/local/bin") for name in ("nginx", "curl", "wrk"))
        if not nginx or not curl or not wrk:
            self.skipTest("no nginx, curl or wrk")
        os.chmod(self.temp.name, 0o755)
        os.mkdir(f"{self.temp.name}/docs")
        big = random.Random(5).randbytes(64 << 20)
        with open(f"{self.temp.name}/docs/big", "wb") as file:
            file.write(big)
        with open(f"{self.temp.name}/docs/small", "wb") as file:
            file.write(bytes(100))
        with open(f"{self.temp.name}/nginx.conf", "w", encoding="ascii") as file:
            file.write(NGINX.format(dir=self.temp.name, port=self.port))
        master = self.start("b", [f"{self.build}/postern", "-o", "vi=vb", nginx, "-c", f"{self.temp.name}/nginx.conf"])
        self.until(lambda: self.steered(master), lambda: f"nginx does not listen, or not to the wire: {self.log('b')}")
        before = self.lab.segments("b")
        url = f"http://{V4['b']}:{self.port}"
        got = self.run_in("a", [curl, "-sS", f"{url}/big"])
        self.assertEqual(hashlib.sha256(got).digest(), hashlib.sha256(big).digest())
        said = self.run_in("a", [wrk, "-t", "1", "-c", "50", "-d", "3", f"{url}/small"]).decode()
        self.assertNotIn("Socket errors", said)
        self.assertNotIn("Non-2xx", said)
        self.assertGreater(int(re.search(r"(\d+) requests in", said)[1]), 50)
        self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")

    def paths(self, program, side="b"):
        """(state, path, reason) of its sockets, as posternctl ss shows them."""
        return sorted((s["state"], s["path"], s["reason"]) for s in self.sockets(program, side)["sockets"])

    def test_shown(self):
        server = self.program()
        self.echo_server(server)
        with self.connected() as sock:
            sock.sendall(b"a")
            self.assertEqual(sock.recv(9), b"a")
            self.assertEqual(self.paths(server), [("ESTAB", "vi", ""), ("LISTEN", "listen", "")])

    def kernel_serves(self, server):
        self.echo_server(server)
        before = self.lab.segments("b")
        with self.connected() as sock:
            sock.sendall(b"a")
            self.assertEqual(sock.recv(9), b"a")
            self.assertEqual(self.paths(server), [("ESTAB", "kernel", "no-vi"), ("LISTEN", "listen", "no-vi")])
            exchange(sock, content(100000))
        self.assertNotEqual(self.lab.segments("b"), before)
        self.assertFalse(self.attached())

    def test_clients_at_listen(self):
        """A client that comes in the moment in which a server begins to listen is served: no reset, and no lost SYN."""
        server = self.program()
        self.echo_server(server)  # to put a program on a veth costs what is just under way
        resent = self.lab.tcp_ext("a", "TCPSynRetrans")
        kernels = 0
        for _ in range(30):
            self.port += 1
            ended, served, failed = threading.Event(), [], []

            def come(port=self.port, ended=ended, served=served, failed=failed):
                while not ended.is_set() or not served:
                    with self.new_socket() as sock:
                        sock.settimeout(20)
                        try:
                            sock.connect((V4["b"], port))
                            sock.sendall(b"hello")
                            served.append(sock.recv(5) == b"hello")
                        except ConnectionRefusedError:
                            continue  # nobody listens yet
                        except OSError as error:
                            failed.append(error)
                            return

            clients = [threading.Thread(target=come) for _ in range(3)]
            for client in clients:
                client.start()
            before = self.lab.opens("b")
            self.echo_server(server)
            ended.set()
            for client in clients:
                client.join()
            self.assertEqual(failed, [])
            self.assertEqual(set(served), {True})
            kernels += self.lab.opens("b")[1] - before[1]
        self.assertEqual(self.lab.tcp_ext("a", "TCPSynRetrans"), resent, "a client has waited")
        self.assertGreater(kernels, 0, "nobody came in between: nothing was tested")

    def test_cookies_at_listen(self):
        """The same where the kernel keeps nothing of a handshake."""
        with self.lab.inside("b"), open("/proc/sys/net/ipv4/tcp_syncookies", "w", encoding="ascii") as file:
            file.write("2")
        self.test_clients_at_listen()

    def test_not_allowed(self):
        """The kernel serves it, and posternctl says why; it is asked for again when there may be something new."""
        self.stop_daemon("b")
        self.start_daemon("b", vi="off")
        server = self.program()
        self.kernel_serves(server)
        self.stop_daemon("b")
        self.start_daemon("b")

        def served():
            self.port += 1
            self.echo_server(server)
            return self.attached()

        self.until(served, "it is never asked for again")
        with self.connected() as sock:
            exchange(sock, content(100000))

    def test_taken(self):
        """A listener that finds the interface taken by a draining stack gets it afterwards, without another listen()."""
        if self.kind == "tap":
            self.skipTest("each stack has a TAP of its own")
        first, second, third = self.program(), self.program(), self.program()
        first.do("listener = socket.create_server((HOST, PORT))", HOST="0.0.0.0", PORT=self.port)
        with self.connected() as old:
            first.do("s, _ = listener.accept(); listener.close()")
            self.echo_server(second)
            with self.connected() as kernels:
                kernels.sendall(b"a")
                self.assertEqual(kernels.recv(9), b"a")
                self.assertEqual(self.paths(second), [("ESTAB", "kernel", "no-vi"), ("LISTEN", "listen", "no-vi")])
                old.sendall(b"a")
                self.assertEqual(first.get("s.recv(9).decode()"), "a")
                old.close()
                first.do("s.close()")
                first.kill()
                self.until(lambda: self.steered(second), lambda: f"it is never looked after: {self.log('b')}")
                before = self.lab.segments("b")
                with self.connected() as new:
                    new.sendall(b"a")
                    self.assertEqual(new.recv(9), b"a")
                    self.assertIn(("ESTAB", "vi", ""), self.paths(second))
                    exchange(new, content(100000))
                self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")
                exchange(kernels, content(100000))
        # The same for one that sleeps in poll().
        self.port += 1
        third.do("l = socket.create_server((HOST, PORT)); p = select.poll(); p.register(l, select.POLLIN)", HOST="0.0.0.0", PORT=self.port)
        third.tell("p.poll(30000); s, _ = l.accept(); s.sendall(b'hello'); s.recv(9)")
        second.kill()
        self.until(lambda: self.steered(third), lambda: f"it is never looked after: {self.log('b')}")
        with self.connected() as new:
            self.assertEqual(new.recv(9), b"hello")

    def test_asked_for_as_it_ends(self):
        """posternd learns in one look that a stack has ended, by which the interface is free, and that the next one wants it."""
        first, second = self.program(), self.program()
        self.echo_server(first)
        daemon, keepers, known = self.daemons["b"], self.keepers(), self.log("b").count("hello")
        self.port += 1
        second.tell(f"HOST, PORT, FAMILY = '0.0.0.0', {self.port}, {int(socket.AF_INET)}\n{wirekit.ECHO}")
        self.until(lambda: self.log("b").count("hello") > known, lambda: f"it does not come: {self.log('b')}")
        time.sleep(0.1)  # it asks every 20 ms, for a second
        os.kill(second.pid, signal.SIGSTOP)
        time.sleep(0.05)
        daemon.send_signal(signal.SIGSTOP)
        first.kill()
        for pid in keepers:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        os.kill(second.pid, signal.SIGCONT)
        time.sleep(0.1)
        daemon.send_signal(signal.SIGCONT)
        second.read("the listener")
        self.until(lambda: self.steered(second), lambda: f"it has none: {self.log('b')}")
        before = self.lab.segments("b")
        with self.connected() as sock:
            exchange(sock, content(100000))
        self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")

    def test_no_such_interface(self):
        self.kernel_serves(self.program(options=["vi=nowhere"]))
        with open(f"{self.temp.name}/stderr", encoding="utf-8") as file:
            self.assertIn("nowhere", file.read())


PULL = """
seen = set()
def pull(n=1):
    for _ in range(n):
        with socket.create_connection((HOST, PORT), timeout=20) as s:
            name = s.getsockname()[1]
            seen.add(name)
            if s.recv(100) != str(name).encode() or s.recv(1) != b"":
                raise AssertionError("another name, or no end")
    return name
"""


def names(test, server):
    """The server tells each client its port, and closes; the client that comes back has pull() to ask it."""
    server.do("""
listener = socket.create_server((HOST, PORT), backlog=256)
def accept():
    while True:
        sock, (_, port) = listener.accept()
        sock.sendall(str(port).encode())
        sock.close()
threading.Thread(target=accept, daemon=True).start()
""", HOST="0.0.0.0", PORT=test.port)
    client = test.program("a")
    client.do(PULL, HOST=V4["b"], PORT=test.port)
    return client


class ClientTest(wirekit.WireTest):
    """The client is postern's, the server the kernel's."""

    def setUp(self):
        super().setUp()
        self.start_daemon("a")

    def kernel_echo(self, family=socket.AF_INET):
        server = self.plain("b")
        self.echo_server(server, family=family)
        return server

    def test_echo(self):
        client = self.program("a")
        client.do(EXCHANGE)
        for family in FAMILIES:
            with self.subTest(family=family):
                self.port += 1
                self.kernel_echo(family)
                before = self.lab.opens("a")
                for size in SIZES:
                    client.do("""
with socket.create_connection((HOST, PORT), timeout=20) as sock:
    exchange(sock, random.Random(SIZE).randbytes(SIZE))
""", HOST=(V4 if family == socket.AF_INET else V6)["b"], PORT=self.port, SIZE=size)
                self.assertEqual(self.lab.opens("a"), before, "the kernel's TCP had a part in it")

    def test_many_at_once(self):
        self.kernel_echo()
        client = self.program("a")
        client.do(EXCHANGE)
        client.do("""
socks = [socket.create_connection((HOST, PORT), timeout=20) for _ in range(100)]
for n, sock in enumerate(socks):
    exchange(sock, bytes([n]) * (1000 + n))
    sock.close()
""", HOST=V4["b"], PORT=self.port)

    def test_non_blocking(self):
        self.kernel_echo()
        client = self.program("a")
        said = client.do("""
s = socket.socket()
s.setblocking(False)
first = s.connect_ex((HOST, PORT))
poll = select.poll()
poll.register(s, select.POLLOUT)
events = poll.poll(10000)
error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
again = s.connect_ex((HOST, PORT))
last = s.connect_ex((HOST, PORT))
s.send(b"hello")
poll.modify(s, select.POLLIN)
poll.poll(10000)
result = [first, [e for _, e in events], error, again, last, s.recv(9).decode(), list(s.getpeername())]
""", HOST=V4["b"], PORT=self.port)
        self.assertEqual(said, [errno.EINPROGRESS, [4], 0, 0, errno.EISCONN, "hello", [V4["b"], self.port]])

    def test_refused(self):
        client = self.program("a")
        connect = f"s = socket.socket(); s.settimeout(10); s.connect(({V4['b']!r}, {self.port}))"
        for _ in range(2):
            with self.assertRaises(wirekit.Refused) as refused:
                client.do(connect)
            self.assertEqual(refused.exception.errno, errno.ECONNREFUSED)
        said = client.do("""
s = socket.socket()
s.setblocking(False)
first = s.connect_ex((HOST, PORT))
poll = select.poll()
poll.register(s, select.POLLOUT)
events = poll.poll(10000)
result = [first, [e for _, e in events], s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]
""", HOST=V4["b"], PORT=self.port)
        self.assertEqual(said, [errno.EINPROGRESS, [select.POLLOUT | select.POLLERR | select.POLLHUP], errno.ECONNREFUSED, 0])
        said = client.do("s = socket.socket(); result = [s.connect_ex((HOST, PORT)), s.connect_ex((HOST, PORT))]", HOST=V4["b"],
                         PORT=self.port)
        self.assertEqual(said, [errno.ECONNREFUSED] * 2)

    def test_no_such_neighbour(self):
        """As the kernel says it: EHOSTUNREACH, when its questions for the neighbour have had no answer."""
        code = "s = socket.socket(); result = s.connect_ex(('10.77.0.99', 7000))"
        self.assertEqual(self.plain("a").do(code), errno.EHOSTUNREACH)
        self.assertEqual(self.program("a").do(code), errno.EHOSTUNREACH)

    def test_timeout(self):
        """A server that does not answer: SO_SNDTIMEO ends the call, not the attempt."""
        silent = self.lab.new_silent()
        client = self.program("a")
        said = client.do("""
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300000))
first = s.connect_ex((HOST, PORT))
again = s.connect_ex((HOST, PORT))
s.close()
result = [first, again]
""", HOST=silent, PORT=self.port)
        self.assertEqual(said, [errno.EINPROGRESS, errno.EALREADY])

    def test_waits_in_connect(self):
        """What ends a connect() that blocks, and what other threads may do with its socket: as with the kernel's."""
        silent = self.lab.new_silent()
        program = [f"{self.build}/tests/programs/connect_waits", silent, str(self.port)]
        kernel = self.run_in("a", program)
        self.assertIn(b"alarm: errno 4, handler at once, return at once", kernel)
        before = self.lab.opens("a")
        ours = self.run_in("a", [f"{self.build}/postern", "-o", "vi=va", *program])
        self.assertEqual(self.lab.opens("a"), before, "the kernel's TCP had a part in it")
        self.maxDiff = None
        self.assertEqual(ours.decode(), kernel.decode())

    def test_closed_in_the_handshake(self):
        silent = self.lab.new_silent()
        client = self.program("a")
        client.do("""
socks = []
for n in range(50):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex((HOST, PORT))
    socks.append(s)
for s in socks:
    s.close()
""", HOST=silent, PORT=self.port)
        self.kernel_echo()
        client.do(EXCHANGE)
        client.do("exchange(socket.create_connection((HOST, PORT), timeout=20), bytes(100000))", HOST=V4["b"], PORT=self.port)

    def test_killed(self):
        """The server sees all that was written, then the end."""
        server = self.plain("b")
        server.do("listener = socket.create_server((HOST, PORT))", HOST=V4["b"], PORT=self.port)
        client = self.program("a")
        client.do("s = socket.create_connection((HOST, PORT), timeout=20)", HOST=V4["b"], PORT=self.port)
        server.do("s, _ = listener.accept(); s.settimeout(20)")
        client.do("s.sendall(bytes(600000))")
        client.kill()
        self.assertEqual(server.do("n = 0\nwhile p := s.recv(65536): n += len(p)\nresult = n"), 600000)

    def may_bind(self, port, side="a"):
        with self.new_socket(side) as sock:
            try:
                sock.bind(("0.0.0.0", port))
            except OSError as error:
                self.assertEqual(error.errno, errno.EADDRINUSE)
                return False
        return True

    def test_ports_are_kept(self):
        """The second connection asks nobody: posternd may be stopped. The port is nobody else's until the program ends."""
        client = names(self, self.plain("b"))
        before, resets = self.lab.opens("a"), self.lab.counters("a", "OutRsts")
        port = client.get("pull(20)")
        self.daemons["a"].send_signal(signal.SIGSTOP)
        try:
            client.do("pull(50)")
        finally:
            self.daemons["a"].send_signal(signal.SIGCONT)
        self.assertEqual(self.lab.opens("a"), before, "the kernel's TCP had a part in it")
        self.assertEqual(self.lab.counters("a", "OutRsts"), resets)
        self.assertFalse(self.may_bind(port))
        client.kill()
        self.until(lambda: self.may_bind(port), "the port is still held")

    def test_ports_of_many(self):
        """Connections to one server have names of their own; another server sees the same ports."""
        client = names(self, self.plain("b"))
        client.do("""
socks = [socket.create_connection((HOST, PORT), timeout=20) for _ in range(50)]
names = {s.getsockname()[1] for s in socks}
assert len(names) == 50, names
assert {int(s.recv(9)) for s in socks} == names
""")

    def test_port_is_bound_by_name(self):
        """bind() gets a port that the stack has kept, when no connection has it; connections from there have that name."""
        client = names(self, self.plain("b"))
        self.assertEqual(client.do("""
port = pull()
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
end = time.monotonic() + 20
while True:
    try:
        s.bind(("0.0.0.0", port))
        break
    except OSError as error:  # our FIN is not acknowledged yet
        assert error.errno == errno.EADDRINUSE and time.monotonic() < end, error
s.listen()
t = socket.socket()
t.bind(("0.0.0.0", 0))
t.connect((HOST, PORT))
result = [s.getsockname()[1] == port, t.getsockname()[1] == int(t.recv(9)), pull() != port]
"""), [True] * 3)

    def test_ports_after_a_new_posternd(self):
        client = names(self, self.plain("b"))
        port = client.get("pull()")
        self.stop_daemon("a")
        self.start_daemon("a")
        self.until(lambda: not self.may_bind(port), "the port was not reserved again")
        before = self.lab.opens("a")
        client.do("pull(20)")
        self.assertEqual(self.lab.opens("a"), before, "the kernel's TCP had a part in it")

    def test_refused_and_then_connected(self):
        """The socket whose connect() failed connects elsewhere: under a name of that connection's."""
        client = names(self, self.plain("b"))
        self.assertEqual(client.do("""
s = socket.socket()
first = s.connect_ex((HOST, PORT + 1))
unnamed = s.getsockname()[1]
s.connect((HOST, PORT))
result = [first, unnamed, s.getsockname()[1] == int(s.recv(9))]
"""), [errno.ECONNREFUSED, 0, True])

    def test_curl(self):
        curl = shutil.which("curl", path=wirekit.PATH)
        if not curl:
            self.skipTest("no curl")
        os.mkdir(f"{self.temp.name}/docs")
        big = random.Random(5).randbytes(16 << 20)
        with open(f"{self.temp.name}/docs/big", "wb") as file:
            file.write(big)
        self.start("b", [sys.executable, "-m", "http.server", "--bind", V4["b"], "-d", f"{self.temp.name}/docs", str(self.port)],
                            stdout=subprocess.DEVNULL)
        self.until(self.listening, "no server")
        got = self.run_in("a", [f"{self.build}/postern", "-o", "vi=va", curl, "-sS", f"http://{V4['b']}:{self.port}/big"])
        self.assertEqual(hashlib.sha256(got).digest(), hashlib.sha256(big).digest())


class BothTest(wirekit.WireTest):
    """Both are postern's, each with a stack of its own."""

    def test_echo(self):
        for side in "ab":
            self.start_daemon(side)
        client = self.program("a")
        client.do(EXCHANGE)
        server = self.program("b")
        for family in FAMILIES:
            with self.subTest(family=family):
                self.port += 1
                self.echo_server(server, family=family)
                before = self.lab.opens("a"), self.lab.segments("b")
                for size in SIZES:
                    client.do("""
with socket.create_connection((HOST, PORT), timeout=20) as sock:
    exchange(sock, random.Random(SIZE).randbytes(SIZE))
""", HOST=(V4 if family == socket.AF_INET else V6)["b"], PORT=self.port, SIZE=size)
                self.assertEqual((self.lab.opens("a"), self.lab.segments("b")), before, "the kernel's TCP had a part in it")

    def test_one_after_the_other(self):
        """Ports come again while the server's last connection from there is in TIME_WAIT (RFC 6191)."""
        for side in "ab":
            self.start_daemon(side)
        client = names(self, self.program("b"))
        client.do("pull()")
        before = self.lab.opens("a"), self.lab.segments("b")
        client.do("pull(300)")
        self.assertLess(client.get("len(seen)"), 100, "a port for each connection")
        self.assertEqual((self.lab.opens("a"), self.lab.segments("b")), before, "the kernel's TCP had a part in it")


class BrokerTest(wirekit.WireTest):
    """posternd has the VIs from the broker."""

    def setUp(self):
        super().setUp()
        self.start_broker("b")
        self.start_daemon("b", vi="off")

    def test_server(self):
        """And hears from it that an interface is free."""
        first, second = self.program(), self.program()
        self.echo_server(first)
        self.assertTrue(self.steered(first))
        self.port += 1
        self.echo_server(second)
        self.assertEqual(self.steered(second), self.kind == "tap")  # then the interface has room for both
        first.kill()
        self.until(lambda: self.steered(second), lambda: f"it is never looked after: {self.log('b')} {self.log('broker')}")
        before = self.lab.segments("b")
        with self.connected() as sock:
            exchange(sock, content(100000))
        self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")

    def test_client(self):
        listener = self.plain("a")
        listener.do("listener = socket.create_server((HOST, PORT))", HOST=V4["a"], PORT=self.port)
        client = self.program()
        before = self.lab.opens("b")
        for _ in range(3):
            client.do("s = socket.create_connection((HOST, PORT), timeout=20)", HOST=V4["a"], PORT=self.port)
            listener.do("t, name = listener.accept(); t.sendall(b'%d' % name[1]); t.close()")
            self.assertTrue(client.get("s.getsockname()[1] == int(s.recv(9))"))
        self.assertEqual(self.lab.opens("b"), before, "the kernel's TCP had a part in it")


def missing(build):
    """Why nothing can be tested here, or None."""
    wirekit.WireTest.build = build
    try:
        socket.socket(44, socket.SOCK_RAW).close()  # AF_XDP
    except OSError as error:
        return f"no AF_XDP: {error.strerror}"
    probe = ServerTest("test_echo")
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
