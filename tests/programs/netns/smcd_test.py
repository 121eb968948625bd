# smcd_test.py - programs in two containers, through shared memory: seen to be so on both sides, and what they get if it can't be.
# SPDX-License-Identifier: Apache-2.0
#
# usage: smcd_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, namespaces or the SYN option.

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import containers
import netlab
import pauses
import synkit

BUILD, CGROUP = "build", None  # processes here, and no others, have the SYN option
PORT = 8080
NGINX = """
daemon off; master_process on; worker_processes 2; user root root;
pid {dir}/nginx.pid; error_log {dir}/error.log error;
events {{ worker_connections 1024; }}
http {{
  access_log off; default_type text/plain; keepalive_requests 1000000;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  server {{ listen {port}; root {dir}; location = /who {{ return 200 "$remote_addr\\n"; }} }}
}}
"""
# Echoes, one client after another or (with "epoll") all at once. Says the name of each, and the sum of what it got at the end.
SERVER = """
import hashlib, select, socket, sys
s = socket.create_server(("", 8080), backlog=64)
print("ready", flush=True)
if sys.argv[1] == "one":
    while True:
        c, name = s.accept()
        got = hashlib.sha256()
        while data := c.recv(65536):
            got.update(data)
            c.sendall(data)
        c.close()
        print(name[0], got.hexdigest(), flush=True)
s.setblocking(False)
ep = select.epoll()
ep.register(s, select.EPOLLIN)
clients = {}
while True:
    for fd, event in ep.poll():
        if fd == s.fileno():
            try:
                c, name = s.accept()
            except BlockingIOError:
                continue
            c.setblocking(False)
            clients[c.fileno()] = c
            ep.register(c, select.EPOLLIN)
        elif data := clients[fd].recv(65536):
            clients[fd].sendall(data)
        else:
            ep.unregister(fd)
            clients.pop(fd).close()
"""
TRANSFER = """
import hashlib, socket, sys, threading
c = socket.create_connection((sys.argv[1], 8080))
total, sent, got = int(sys.argv[2]), hashlib.sha256(), hashlib.sha256()
def read():
    left = total
    while left:
        data = c.recv(65536)
        assert data, "ended early"
        got.update(data)
        left -= len(data)
reader = threading.Thread(target=read)
reader.start()
block = bytes(range(256)) * 400
for i in range(0, total, len(block)):
    part = block[i % 251:][:min(len(block), total - i)]
    part += block[:min(len(block), total - i) - len(part)]
    sent.update(part)
    c.sendall(part)
reader.join()
assert sent.digest() == got.digest()
print(sent.hexdigest())
"""
# Both ends sleep before each message.
SLOW = """
import select, socket, sys, time
c = socket.socket()
c.setblocking(False)
assert c.connect_ex((sys.argv[1], 8080)) == 115
ep = select.epoll()
ep.register(c, select.EPOLLOUT)
assert ep.poll(5) == [(c.fileno(), select.EPOLLOUT)]
assert c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
ep.modify(c, select.EPOLLIN)
worst = 0
for i in range(20):
    time.sleep(0.02)
    began = time.monotonic()
    c.send(b"%d" % i)
    assert ep.poll(20), "nobody woke us"
    assert c.recv(100) == b"%d" % i
    worst = max(worst, time.monotonic() - began)
print("%.6f" % worst)
"""
SHORT = """
import socket, sys
for i in range(int(sys.argv[2])):
    with socket.create_connection((sys.argv[1], 8080)) as c:
        c.sendall(b"x%d" % i)
        assert c.recv(100) == b"x%d" % i
print("done")
"""
HOLD = """
import socket, sys
held = [socket.create_connection((sys.argv[1], 8080)) for i in range(int(sys.argv[2]))]
print("held", flush=True)
for line in sys.stdin:
    for i, c in enumerate(held):
        c.sendall(b"%d" % i)
        assert c.recv(100) == b"%d" % i
    print("again", flush=True)
"""


class Pair(unittest.TestCase):
    nat, policy = False, {"addresses": [containers.VIRTUAL]}

    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn-smcd-")
        os.chmod(self.top, 0o755)
        self.addCleanup(shutil.rmtree, self.top)
        os.mkdir(f"{self.top}/broker")
        with open(f"{self.top}/broker/policy.json", "w", encoding="ascii") as file:
            json.dump(self.policy, file)
        self.start_broker()
        self.addCleanup(lambda: self.broker.close())
        self.pair = containers.Containers(f"{self.top}/broker", [BUILD, self.top], nat=self.nat)
        self.addCleanup(self.pair.close)
        self.a, self.b = self.pair.a, self.pair.b

    def start_broker(self):
        self.broker = containers.Broker(BUILD, f"{self.top}/broker", "--syn-option", CGROUP.path)
        if "SYN option: attached" not in self.broker.log() and "SYN option: was attached" not in self.broker.log():
            self.broker.close()
            raise unittest.SkipTest("the SYN option can't be had: " + self.broker.log().strip()[-200:])

    def under(self, container, argv, **options):
        options = {"stdout": subprocess.PIPE, "text": True} | options
        return container.popen([f"{BUILD}/postern", *argv], **options)

    def python(self, container, text, *args, **options):
        return self.under(container, ["/usr/bin/python3", "-c", text, *map(str, args)], **options)

    def serve(self, how):
        self.server = self.python(self.b, SERVER, how)
        self.assertEqual(self.server.stdout.readline(), "ready\n")
        self.wait_joined(self.b)

    def client(self, text, *args):
        """What it prints."""
        client = self.python(self.a, text, self.pair.server, *args)
        out = client.communicate(timeout=60)[0]
        self.assertEqual(client.returncode, 0, out)
        return out.strip()

    def wait_joined(self, container):
        """posternd is started by the wrapper, and joins the broker before any program goes on."""
        self.assertIn("posternd", container.run([f"{BUILD}/posternctl", "status"]))

    def ss(self, container):
        return [s for s in json.loads(container.run([f"{BUILD}/posternctl", "ss", "--json"]))["sockets"] if s["path"] not in ("listen", "new")]

    def paths(self, container, at_least=1):
        """The ways of its connections; waits until there are as many."""
        end = time.monotonic() + 20
        while len(found := self.ss(container)) < at_least:
            self.assertLess(time.monotonic(), end, found)
            time.sleep(0.02)
        return {(s["path"], s["reason"]) for s in found}

    def fallbacks(self, container):
        stacks = json.loads(container.run([f"{BUILD}/posternctl", "status", "--json"]))["stacks"]
        return [stack["fallbacks"] for stack in stacks]

    def passive_opens(self):
        with open(f"/proc/{self.b.init.pid}/net/snmp", encoding="ascii") as file:
            names, values = [line.split() for line in file if line.startswith("Tcp:")]
        return int(values[names.index("PassiveOpens")])


class Accelerated(Pair):
    def nginx(self):
        with open(f"{self.top}/nginx.conf", "w", encoding="ascii") as file:
            file.write(NGINX.format(dir=self.top, port=PORT))
        with open(f"{self.top}/1k", "wb") as file:
            file.write(b"0123456789abcde\n" * 64)
        self.server = self.under(self.b, ["nginx", "-p", self.top, "-e", f"{self.top}/error.log", "-c", f"{self.top}/nginx.conf"])
        self.b.wait_listening(PORT, self.server)

    def test_nginx(self):
        self.nginx()
        url = f"http://{self.pair.server}:{PORT}"
        self.assertEqual(self.a.run([f"{BUILD}/postern", "curl", "-sS", f"{url}/1k"]), "0123456789abcde\n" * 64)
        self.assertEqual(self.a.run([f"{BUILD}/postern", "curl", "-sS", f"{url}/who"]), self.pair.client + "\n")
        load = self.under(self.a, ["wrk", "-t", "2", "-c", "100", "-d", "3", f"{url}/1k"])
        self.assertEqual(self.paths(self.a, 100), {("smc-d", "")})
        self.assertEqual(self.paths(self.b, 100), {("smc-d", "")})
        said = load.communicate(timeout=30)[0]
        self.assertNotIn("Socket errors", said)
        self.assertNotIn("Non-2xx", said)
        with open(f"{self.top}/error.log", encoding="utf-8") as file:
            self.assertEqual(file.read(), "")

    def test_redis(self):
        argv = ["redis-server", "--port", str(PORT), "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0", "--dir", "/tmp"]
        self.server = self.under(self.b, argv, stdout=subprocess.DEVNULL)
        self.b.wait_listening(PORT, self.server)
        bench = self.under(self.a, ["redis-benchmark", "-h", self.pair.server, "-p", str(PORT), "-c", "50", "-n", "100000", "-t", "set,get", "-q"])
        self.assertEqual(self.paths(self.a, 50), {("smc-d", "")})
        said = bench.communicate(timeout=60)[0]
        self.assertEqual(bench.returncode, 0, said)
        self.assertEqual(said.count("requests per second"), 2, said)

    def test_bytes_and_names(self):
        self.serve("one")
        said = self.client(TRANSFER, 64 << 20)
        self.assertEqual(self.server.stdout.readline().split(), [self.pair.client, said])

    def test_sleepers_are_woken(self):
        self.serve("epoll")
        pauses.begin()
        began = time.monotonic()
        worst = float(self.client(SLOW))
        self.assertLess(worst, pauses.limit(began, 2))  # a lost wake-up never comes

    def test_what_dies_is_seen(self):
        self.serve("one")
        client = self.python(self.a, "import socket, sys\nc = socket.create_connection((sys.argv[1], 8080))\nc.sendall(b'x')\n"
                                     "print(c.recv(9), flush=True)\nprint(c.recv(9), flush=True)", self.pair.server)
        self.assertEqual(client.stdout.readline(), "b'x'\n")
        self.server.kill()
        self.server.wait()
        pauses.begin()
        began = time.monotonic()
        self.assertEqual(client.stdout.readline(), "b''\n")
        self.assertLess(time.monotonic() - began, pauses.limit(began, 5))


class AcceleratedThroughNat(Accelerated):
    nat = True


class Short(Pair):
    def test_the_handshake_is_paid_for_once(self):
        self.serve("one")
        before = self.passive_opens()
        self.assertEqual(self.client(SHORT, 200), "done")
        self.assertLessEqual(self.passive_opens() - before, 3)  # one in five seconds

    def test_a_new_listener_is_found(self):
        self.serve("one")
        self.client(SHORT, 2)
        self.server.kill()
        self.server.wait()
        self.serve("one")
        self.assertEqual(self.client(SHORT, 20), "done")
        self.assertEqual([f for f in self.fallbacks(self.b) if f], [])


class NobodyIsLost(Pair):
    """Held connections go on, whatever else is killed; new ones are made."""

    def setUp(self):
        super().setUp()
        self.serve("epoll")
        self.held = self.python(self.a, HOLD, self.pair.server, 20, stdin=subprocess.PIPE)
        self.assertEqual(self.held.stdout.readline(), "held\n")
        self.assertEqual(self.paths(self.a, 20), {("smc-d", "")})

    def again(self):
        self.held.stdin.write("\n")
        self.held.stdin.flush()
        self.assertEqual(self.held.stdout.readline(), "again\n")

    def daemon(self, container):
        return json.loads(container.run([f"{BUILD}/posternctl", "status", "--json"]))["pid"]

    def kill_daemon(self, container):
        container.run(["kill", "-9", str(self.daemon(container))])

    def test_broker(self):
        self.again()
        self.broker.process.kill()
        self.broker.process.wait()
        self.again()
        self.assertEqual(self.client(SHORT, 5), "done")
        self.start_broker()
        end = time.monotonic() + 20
        while self.broker.log().count(" joins") < 4:
            self.assertLess(time.monotonic(), end, self.broker.log())
            time.sleep(0.02)
        self.again()
        hold = self.python(self.a, HOLD, self.pair.server, 5, stdin=subprocess.PIPE)
        self.assertEqual(hold.stdout.readline(), "held\n")
        found = {(s["path"], s["reason"]) for s in self.ss(self.a) if s["comm"] == "python3"}
        self.assertEqual(found, {("smc-d", "")}, self.broker.log()[-1500:])

    def test_clients_daemon(self):
        self.kill_daemon(self.a)
        self.again()
        self.assertEqual(self.client(SHORT, 5), "done")
        self.again()

    def test_servers_daemon(self):
        self.kill_daemon(self.b)
        self.again()
        self.assertEqual(self.client(SHORT, 5), "done")
        self.again()


class Denied(Pair):
    policy = {"default": "deny"}

    def test_it_is_tcp(self):
        self.serve("epoll")
        held = self.python(self.a, HOLD, self.pair.server, 3, stdin=subprocess.PIPE)
        self.assertEqual(held.stdout.readline(), "held\n")
        self.assertEqual(self.paths(self.a, 3), {("kernel", "declined")})
        self.assertEqual(self.paths(self.b, 3), {("kernel", "declined")})
        held.stdin.write("\n")
        held.stdin.flush()
        self.assertEqual(held.stdout.readline(), "again\n")
        self.assertEqual(self.client(SHORT, 20), "done")
        self.serve_one_more()

    def serve_one_more(self):
        self.server.kill()
        self.server.wait()
        self.serve("one")
        said = self.client(TRANSFER, 8 << 20)
        self.assertEqual(self.server.stdout.readline().split()[1], said)


class Stripped(Pair):
    """A box on the way takes the option out: of the SYN, or of the SYN-ACK only (then the server alone believes in it)."""
    nat = True

    def strip(self, where):
        gate = self.pair.all[-1]
        gate.nft(f"add table ip strip\nadd chain ip strip forward {{ type filter hook forward priority 0; }}\n"
                 f"add rule ip strip forward tcp {where} {PORT} reset tcp option 254\n")

    def plain(self, reason_b):
        self.serve("epoll")
        before = self.passive_opens()
        held = self.python(self.a, HOLD, self.pair.server, 3, stdin=subprocess.PIPE)
        self.assertEqual(held.stdout.readline(), "held\n")
        self.assertEqual(self.paths(self.a, 3), {("kernel", "peer-plain")})
        held.stdin.write("\n")
        held.stdin.flush()
        self.assertEqual(held.stdout.readline(), "again\n")
        self.assertEqual(self.paths(self.b, 3), {("kernel", reason_b)})
        self.assertEqual(self.passive_opens() - before, 3)
        self.assertEqual(self.client(SHORT, 20), "done")

    def test_syn(self):
        self.strip("dport")
        self.plain("kernel-client")

    def test_synack(self):
        self.strip("sport")
        self.plain("declined")


class Silent(Pair):
    """The way to the server is cut: its SYNs are answered by nobody, while the client waits for the mark (negotiate.cc) and then in the kernel."""
    nat = True
    CASES = ("alarm", "restart", "timed", "handler", "jump", "close", "cancel", "cancel_async", "killed")

    def test_waits_in_connect(self):
        self.under(self.b, ["sleep", "100"])  # else its network namespace is unknown
        self.pair.all[-1].nft(f"add table ip cut\nadd chain ip cut forward {{ type filter hook forward priority 0; }}\n"
                              f"add rule ip cut forward tcp dport {PORT} drop\n")
        for case in self.CASES:  # a process for each: the second connect() of one knows that nobody answers
            with self.subTest(case=case):
                program = [f"{BUILD}/tests/programs/connect_waits", self.pair.server, str(PORT), case]
                kernel = self.a.popen(program, stdout=subprocess.PIPE, text=True).communicate(timeout=30)[0]
                ours = self.under(self.a, ["-o", "smcd.msec=5000", *program]).communicate(timeout=60)[0]
                self.assertEqual(ours, kernel)
                self.assertIn("at once", kernel)


class Unwilling(Pair):
    def test_a_server_that_is_not_ours(self):
        self.under(self.b, ["sleep", "100"])  # else its network namespace is unknown
        server = self.b.popen(["/usr/bin/python3", "-c", SERVER, "epoll"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(server.stdout.readline(), "ready\n")
        held = self.python(self.a, HOLD, self.pair.server, 2, stdin=subprocess.PIPE)
        self.assertEqual(held.stdout.readline(), "held\n")
        self.assertEqual(self.paths(self.a, 2), {("kernel", "peer-plain")})

    def test_a_client_that_is_not_ours(self):
        self.serve("one")
        client = self.a.popen(["/usr/bin/python3", "-c", TRANSFER, self.pair.server, str(1 << 20)], stdout=subprocess.PIPE, text=True)
        said = client.communicate(timeout=30)[0].strip()
        self.assertEqual(client.returncode, 0)
        self.assertEqual(self.server.stdout.readline().split(), [self.pair.client, said])

    def test_nobody_listens(self):
        text = "import errno, socket, sys\nc = socket.socket()\nprint(c.connect_ex((sys.argv[1], 8081)) == errno.ECONNREFUSED)"
        self.assertEqual(self.client(text), "True")

    def test_switched_off(self):
        self.serve("epoll")
        held = self.under(self.a, ["-o", "smcd=off", "/usr/bin/python3", "-c", HOLD, self.pair.server, "2"], stdin=subprocess.PIPE)
        self.assertEqual(held.stdout.readline(), "held\n")
        self.assertEqual(self.paths(self.a, 2), {("kernel", "not-local")})


def main(seconds):
    """Of a program with such tests."""
    global BUILD, CGROUP
    BUILD = os.path.abspath(sys.argv.pop(1))
    signal.alarm(seconds)
    try:
        containers.Containers(nat=True).close()
        CGROUP = synkit.Cgroup()
    except netlab.Unavailable as why:
        print(f"skipped: {why}")
        sys.exit(77)
    CGROUP.enter()
    try:
        unittest.main(warnings="ignore")
    finally:
        CGROUP.remove()


if __name__ == "__main__":
    main(290)
