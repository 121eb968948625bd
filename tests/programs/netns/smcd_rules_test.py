# smcd_rules_test.py - firewall rules between two containers are obeyed, as over the kernel: refused, rewritten and allowed connections.
# SPDX-License-Identifier: Apache-2.0
#
# usage: smcd_rules_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, namespaces or the SYN option.

import os
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import firewall_test
import smcd_test

PORT, OTHER = 8080, 8081
HOSTS = {"10.88.0.2": "10.88.0.1", "fd88::2": "fd88::1"}  # of the server; of the client
# Says its port to each client.
SERVER = """
import select, socket, sys
listeners = []
for port in map(int, sys.argv[1:]):
    l = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
    l.setblocking(False)
    listeners.append(l)
print("ready", flush=True)
while True:
    for l in select.select(listeners, [], [])[0]:
        try:
            c, _ = l.accept()
        except BlockingIOError:
            continue
        c.setblocking(True)
        c.sendall(str(l.getsockname()[1]).encode())
        c.close()
"""
MANY = """
import socket, sys
for _ in range(int(sys.argv[3])):
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as c:
        assert c.recv(100) == sys.argv[2].encode()
print("done")
"""


class Rules(smcd_test.Pair):
    def setUp(self):
        super().setUp()
        for host, peer in HOSTS.items():
            if ":" in host:
                self.b.ip("addr", "add", f"{host}/64", "dev", "eth0", "nodad")
                self.a.ip("addr", "add", f"{peer}/64", "dev", "eth0", "nodad")

    def serve_ports(self, over):
        run = self.under if over == "postern" else self.plainly
        server = run(self.b, ["/usr/bin/python3", "-c", SERVER, str(PORT), str(OTHER)], stdout=subprocess.PIPE, text=True)
        self.assertEqual(server.stdout.readline(), "ready\n")
        return server

    @staticmethod
    def plainly(container, argv, **options):
        return container.popen(argv, **options)

    def start(self, over, text, *args):
        run = self.under if over == "postern" else self.plainly
        return run(self.a, ["/usr/bin/python3", "-c", text, *map(str, args)], stdout=subprocess.PIPE, text=True)

    def client(self, over, host, *what):
        out = self.start(over, firewall_test.CLIENT, host, PORT, *(what or ("once",))).communicate(timeout=60)[0]
        return out.split("\n")[:-1]

    def by_memory(self, host):
        """Connections that are refused none: the kernel has seen few of them."""
        before = self.passive_opens()
        done = self.start("postern", MANY, host, PORT, 200)
        self.assertEqual(done.communicate(timeout=60)[0], "done\n")
        self.assertLess(self.passive_opens() - before, 100, "by the kernel's TCP")

    def compare(self, want, container, rules):
        """The same over the kernel and under postern; without the rules, connections are accelerated before and after."""
        for over in ("kernel", "postern"):
            server = self.serve_ports(over)
            for host in HOSTS:
                with self.subTest(host=host, over=over):
                    container.nft("flush ruleset")
                    if over == "postern":
                        self.wait_joined(self.b)
                        self.by_memory(host)
                    container.nft(rules)
                    time.sleep(1.1)  # so long a first contact counts
                    self.assertEqual(self.client(over, host), want)
                    container.nft("flush ruleset")
                    self.assertEqual(self.client(over, host), [f"ok {PORT}"])
            server.kill()
            server.wait()

    @staticmethod
    def chain(rule, hook, kind="filter"):
        return f"table inet t {{\n chain c {{\n type {kind} hook {hook} priority 0;\n {rule}\n }}\n}}\n"

    def test_refused_by_the_server(self):
        self.compare(["ECONNREFUSED"], self.b, self.chain(f"tcp dport {PORT} reject with tcp reset", "input"))

    def test_refused_at_the_client(self):
        self.compare(["ECONNREFUSED"], self.a, self.chain(f"tcp dport {PORT} reject with tcp reset", "output"))

    def test_dropped(self):
        self.compare(["waits"], self.b, self.chain(f"tcp dport {PORT} drop", "input"))

    def test_rewritten(self):
        self.compare([f"ok {OTHER}"], self.b, self.chain(f"tcp dport {PORT} redirect to :{OTHER}", "prerouting", "nat"))

    def test_a_rule_that_comes_later(self):
        """Of a process that has connected already: it takes effect after a second at most, and connections are made at each look."""
        self.serve_ports("postern")
        self.wait_joined(self.b)
        for host in HOSTS:
            with self.subTest(host=host):
                child = self.start("postern", firewall_test.CLIENT, host, PORT, "until", "ECONNREFUSED")
                self.assertEqual(child.stdout.readline(), f"ok {PORT}\n")
                self.b.nft(self.chain(f"tcp dport {PORT} reject with tcp reset", "input"))
                self.assertEqual(child.communicate(timeout=60)[0], "ECONNREFUSED\n")
                self.b.nft("flush ruleset")


if __name__ == "__main__":
    smcd_test.main(230)
