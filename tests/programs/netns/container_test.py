# container_test.py - containers.py itself, and Postern's programs in two containers that have nothing but an address of each other.
# SPDX-License-Identifier: Apache-2.0
#
# usage: container_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root or namespaces.

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
import synkit

BUILD = "build"
CONF = """
daemon off; master_process on; worker_processes 1; user root root;
pid {dir}/nginx.pid; error_log {dir}/error.log error;
events {{ worker_connections 1024; }}
http {{
  access_log {dir}/access.log; sendfile on; default_type text/plain;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  server {{ listen {port}; root {dir}; location = /who {{ return 200 "$remote_addr\\n"; }} }}
}}
"""
PORT = 8080


def listening(port):
    with open("/proc/net/tcp", encoding="ascii") as file:
        return any(line.split()[1].endswith(f":{port:04X}") for line in file.readlines()[1:])


class Pair(unittest.TestCase):
    nat = False

    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn-cont-")
        self.addCleanup(shutil.rmtree, self.top)
        self.broker = containers.Broker(BUILD, f"{self.top}/broker", *self.broker_options())
        self.addCleanup(self.broker.close)
        try:
            self.pair = containers.Containers(f"{self.top}/broker", [BUILD, self.top], nat=self.nat)
        except netlab.Unavailable as reason:
            self.skipTest(str(reason))
        self.addCleanup(self.pair.close)
        self.a, self.b = self.pair.a, self.pair.b

    def broker_options(self):
        return "--syn-option", "off"

    def need(self, *programs):
        for program in programs:
            if not shutil.which(program, path=containers.environment()["PATH"]):
                self.skipTest(f"{program} is not installed")

    def nginx(self, *prefix):
        self.need("nginx", "curl", "wrk")
        with open(f"{self.top}/nginx.conf", "w", encoding="ascii") as file:
            file.write(CONF.format(dir=self.top, port=PORT))
        with open(f"{self.top}/1k", "wb") as file:
            file.write(b"0123456789abcde\n" * 64)
        argv = [*prefix, "nginx", "-p", self.top, "-e", f"{self.top}/error.log", "-c", f"{self.top}/nginx.conf"]
        self.server = self.b.popen(argv)
        self.b.wait_listening(PORT, self.server)

    def load(self, *prefix):
        """curl and wrk from a to b, and what each end says of the other."""
        url = f"http://{self.pair.server}:{PORT}"
        self.assertEqual(self.a.run([*prefix, "curl", "-sS", f"{url}/1k"]), "0123456789abcde\n" * 64)
        self.assertEqual(self.a.run([*prefix, "curl", "-sS", f"{url}/who"]), self.pair.client + "\n")
        said = self.a.run([*prefix, "wrk", "-t", "1", "-c", "20", "-d", "1", f"{url}/1k"])
        self.assertNotIn("Socket errors", said)
        self.assertNotIn("Non-2xx", said)
        self.assertIn("Requests/sec", said)
        with open(f"{self.top}/error.log", encoding="utf-8") as file:
            self.assertEqual(file.read(), "")


class Kernel(Pair):
    def test_own_namespaces(self):
        self.assertEqual(self.a.run(["sh", "-c", "echo $$"]), self.b.run(["sh", "-c", "echo $$"]))
        self.assertEqual(self.a.run(["readlink", "/proc/self"]).strip(), "3")
        self.a.run(["sh", "-c", "echo x > /tmp/of-the-containers-own"])
        self.b.run(["test", "-e", "/tmp/of-the-containers-own"], expect=1)
        self.assertFalse(os.path.exists("/tmp/of-the-containers-own"))
        self.assertEqual(self.a.run(["id", "-u"], user=65534), "65534\n")
        self.assertIn("broker.sock", self.a.run(["ls", "/run/postern"]))
        names = {self.a.run(["readlink", "/proc/self/ns/net"]), self.b.run(["readlink", "/proc/self/ns/net"]), os.readlink("/proc/self/ns/net") + "\n"}
        self.assertEqual(len(names), 3)

    def test_all_of_it_ends(self):
        self.a.run(["setsid", "sh", "-c", "exec >&- 2>&-; sleep 1234 & echo $! > /tmp/pid"])
        held = self.a.popen(["sleep", "1234"])
        with open("/proc/%d/cmdline" % held.pid, encoding="ascii") as file:
            self.assertIn("sleep", file.read())
        with open(f"/proc/{self.a.init.pid}/task/{self.a.init.pid}/children", encoding="ascii") as file:
            left = [int(pid) for pid in file.read().split()]  # the one whose parent has gone
        self.assertEqual(len(left), 1)
        self.pair.close()
        self.assertEqual(held.poll(), -signal.SIGKILL)
        self.assertFalse(os.path.exists(f"/proc/{left[0]}"))

    def test_nginx(self):
        self.nginx()
        self.load()
        self.assertFalse(listening(PORT), "the host has it, too")


class Wrapped(Pair):
    def ss(self, container):
        return json.loads(container.run([f"{BUILD}/posternctl", "ss", "--json"]))["sockets"]

    def test_nginx(self):
        """Whichever way the connections go: no error, and a reason for those that are the kernel's."""
        postern = f"{BUILD}/postern"
        self.nginx(postern)
        self.load(postern)
        end = time.monotonic() + 20
        while self.broker.log().count(" joins") < 2:
            self.assertLess(time.monotonic(), end, self.broker.log())
            time.sleep(0.02)
        self.assertIn("listen", [s["path"] for s in self.ss(self.b)])
        client = self.a.popen([postern, "wrk", "-t", "1", "-c", "20", "-d", "30", f"http://{self.pair.server}:{PORT}/1k"], 
                               stdout=subprocess.DEVNULL)
        while True:
            found = [s for s in self.ss(self.a) if s["path"] != "listen"]
            if len(found) >= 20:
                break
            self.assertLess(time.monotonic(), end, found)
            time.sleep(0.02)
        client.kill()
        for s in found:
            self.assertTrue(s["path"] in ("same-host", "intra-stack") or s["reason"], s)


class Nat(Pair):
    nat = True

    def test_nginx(self):
        self.nginx()
        self.load()


class WrappedNat(Wrapped):
    nat = True


MARKED_SERVER = """
import socket, sys
s = socket.socket(); s.setsockopt(6, 0x50534d43, 1); s.bind(("0.0.0.0", 8080)); s.listen()
c, peer = s.accept(); print(c.getsockopt(6, 0x50534d43) & 1, peer[0]); c.sendall(b"plain")
"""
MARKED_CLIENT = """
import socket, sys
s = socket.socket(); s.setsockopt(6, 0x50534d43, 1); s.connect((sys.argv[1], 8080)); print(s.getsockopt(6, 0x50534d43) & 1, s.recv(100).decode())
"""


class Marked(Pair):
    """The broker of the host, and sockets in containers that mark their SYNs: what is to come rests on this."""

    def setUp(self):
        try:
            self.cgroup = synkit.Cgroup()
        except netlab.Unavailable as reason:
            self.skipTest(str(reason))
        self.addCleanup(self.cgroup.remove)
        self.cgroup.enter()
        super().setUp()

    def broker_options(self):
        return "--syn-option", self.cgroup.path

    def test_both_are_told(self):
        why = [line for line in self.broker.log().splitlines() if any(part in line for part in synkit.NOT_HERE)]
        if why:
            self.skipTest(why[0])
        server = self.b.popen(["/usr/bin/python3", "-c", MARKED_SERVER], stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.stdout.close)
        self.b.wait_listening(PORT, server)
        self.assertEqual(self.a.run(["/usr/bin/python3", "-c", MARKED_CLIENT, self.pair.server]), "1 plain\n")
        self.assertEqual(server.stdout.readline(), f"1 {self.pair.client}\n")


class MarkedNat(Marked):
    nat = True


if __name__ == "__main__":
    BUILD = os.path.abspath(sys.argv.pop(1))
    signal.alarm(220)
    try:
        containers.Containers().close()
    except netlab.Unavailable as why:
        print(f"skipped: {why}")
        sys.exit(77)
    unittest.main(warnings="ignore")
