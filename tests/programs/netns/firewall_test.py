# firewall_test.py - the kernel decides whether two programs of one host may talk: nft, cgroup programs and Landlock are obeyed.
# SPDX-License-Identifier: Apache-2.0
#
# usage: firewall_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root or namespaces.
#
# Each rule is met by a client and a server over the kernel alone, and then by the same under postern: what the client hears has to
# be the same. That an allowed connection is accelerated is seen by POSTERN_STRICT, under which none goes through the kernel.

import ctypes
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
BPF_PROG_LOAD, BPF_PROG_ATTACH, BPF_PROG_DETACH, SOCK_ADDR = 5, 8, 9, 18
CONNECT = {"127.0.0.1": 10, "::1": 11}  # BPF_CGROUP_INET4_CONNECT, BPF_CGROUP_INET6_CONNECT
PORT, OTHER = 7001, 7002
LOOPBACKS = ("127.0.0.1", "::1")
LIBC = ctypes.CDLL(None, use_errno=True)

# Says its port to each client, and at its end how many it had.
SERVER = """
import select, signal, socket, sys
listeners = []
for host in ("127.0.0.1", "::1"):
    for port in map(int, sys.argv[1:]):
        l = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        l.bind((host, port)); l.listen(16); l.setblocking(False); listeners.append(l)
over, count = [], 0
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
print("ready", flush=True)
while not over:
    for l in select.select(listeners, [], [], 0.1)[0]:
        try:
            c, _ = l.accept()
        except BlockingIOError:
            continue
        count += 1
        c.sendall(str(l.getsockname()[1]).encode()); c.close()
print("had", count, flush=True)
"""

# What a connection comes to: "ok PORT", the error's name, or "waits".
CLIENT = """
import ctypes, errno, os, select, socket, struct, sys, threading, time
def connect(host, port, patience=0.7):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    s.setblocking(False)
    with s:
        error = s.connect_ex((host, port))
        if error == errno.EINPROGRESS:
            if not select.select([], [s], [], patience)[1]:
                return "waits"
            error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            return errno.errorcode[error]
        s.settimeout(20)
        return "ok " + s.recv(100).decode()
def landlock():
    libc = ctypes.CDLL(None, use_errno=True)
    attr = struct.pack("=QQ", 0, 2)  # LANDLOCK_ACCESS_NET_CONNECT_TCP
    fd = libc.syscall(444, ctypes.c_char_p(attr), ctypes.c_size_t(len(attr)), 0)
    if fd < 0:
        return False
    libc.prctl(38, 1, 0, 0, 0)
    return libc.syscall(446, fd, 0) == 0
host, port, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if what == "once":
    print(connect(host, port))
elif what == "until":  # it says so, after it was otherwise
    print(connect(host, port), flush=True)
    end = time.monotonic() + 20
    while (said := connect(host, port)) != sys.argv[4] and time.monotonic() < end:
        time.sleep(0.02)
    print(said)
elif what == "landlock":  # one thread loses the right, and another keeps it
    print(connect(host, port))
    said = []
    def confined():
        said.append(str(landlock()))
        said.append(connect(host, port))
    t = threading.Thread(target=confined); t.start(); t.join()
    print(*said, connect(host, port), sep="\\n")
"""

# A connection within one process: says "1" at the control connection when it is there, and later what came through it.
OLD_CONNECTION = """
import socket, sys
control = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
with socket.create_server(("127.0.0.1", 0)) as l:
    a = socket.create_connection(l.getsockname())
    b = l.accept()[0]
control.sendall(b"1")
a.sendall(control.recv(1))
control.sendall(b.recv(1))
"""


def bpf(command, attr):
    buffer = ctypes.create_string_buffer(attr.ljust(128, b"\0"), 128)
    result = LIBC.syscall(321, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command})")
    return result


def network_order(port):
    return socket.htons(port)


def rule(host, to=None):
    """A cgroup program for connect(): PORT is refused, or becomes `to`."""
    def insn(code, dst=0, src=0, off=0, imm=0):
        return struct.pack("=BBhi", code, src << 4 | dst, off, imm)

    load, allow, leave = insn(0x61, 2, 1, 24), insn(0xb7, 0, imm=1), insn(0x95)  # user_port
    if to is None:
        code = load + allow + insn(0x55, 2, off=1, imm=network_order(PORT)) + insn(0xb7, 0, imm=0) + leave
    else:
        code = load + allow + insn(0x55, 2, off=2, imm=network_order(PORT)) + insn(0xb7, 3, imm=network_order(to)) + insn(0x63, 1, 3, 24) + leave
    text, license_text = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"Apache-2.0")
    return bpf(BPF_PROG_LOAD, struct.pack("=IIQQIIQII16sII", SOCK_ADDR, len(code) // 8, ctypes.addressof(text), ctypes.addressof(license_text),
                                          0, 0, 0, 0, 0, b"", 0, CONNECT[host]))


class Lab(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.runtime = tempfile.mkdtemp(prefix="pstn-firewall-")
        self.children = []
        self.addCleanup(self.clean)

    def clean(self):
        self.nft("flush ruleset")
        for child in self.children:
            child.kill()
            child.wait(20)
        subprocess.run([os.path.join(BUILD, "posternctl"), "stop"], env=self.env(), capture_output=True, timeout=20, check=False)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def env(self, strict=False):
        return {**os.environ, "POSTERN_RUNTIME_DIR": self.runtime, "POSTERN_STRICT": "on" if strict else "off"}

    def nft(self, text):
        subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, timeout=20)

    def start(self, script, *args, over, strict=False, before=()):
        child = subprocess.Popen([*before, *([os.path.join(BUILD, "postern")] if over == "postern" else []), "/usr/bin/python3", "-c", script,
                                  *map(str, args)], env=self.env(strict), stdout=subprocess.PIPE, text=True)
        self.children.append(child)
        return child

    def server(self, over, *ports):
        child = self.start(SERVER, *ports, over=over)
        self.assertEqual(child.stdout.readline(), "ready\n")
        return child

    def end_server(self, child):
        """How many clients it had."""
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=20)
        return int(out.split()[1])

    def client(self, over, host, *what, port=PORT, strict=False, before=()):
        out, _ = self.start(CLIENT, host, port, *what, over=over, strict=strict, before=before).communicate(timeout=60)
        return out.split("\n")[:-1]

    def compare(self, want, *what, rules="", before=()):
        """Over the kernel and under postern, over IPv4 and IPv6."""
        self.nft(rules or "flush ruleset")
        for host in LOOPBACKS:
            for over in ("kernel", "postern"):
                with self.subTest(host=host, over=over):
                    server = self.server(over, PORT, OTHER)
                    said = self.client(over, host, *(what or ("once",)), before=before)
                    self.assertEqual(said, want)
                    self.assertEqual(self.end_server(server), sum(line.startswith("ok") for line in said))

    def chain(self, rules, kind="filter", hook="output"):
        return f"flush ruleset\ntable inet t {{\n chain c {{\n type {kind} hook {hook} priority 0;\n {rules}\n }}\n}}\n"


class Firewall(Lab):
    def test_allowed_is_accelerated(self):
        server = self.server("postern", PORT)
        for host in LOOPBACKS:
            self.assertEqual(self.client("postern", host, "once", strict=True), [f"ok {PORT}"])
        self.assertEqual(self.end_server(server), 2)

    def test_rejected(self):
        self.compare(["ECONNREFUSED"], rules=self.chain(f"tcp dport {PORT} reject with tcp reset"))

    def test_rejected_at_the_server(self):
        self.compare(["ECONNREFUSED"], rules=self.chain(f"tcp dport {PORT} reject with tcp reset", hook="input"))

    def test_dropped(self):
        self.compare(["waits"], rules=self.chain(f"tcp dport {PORT} drop"))

    def test_answers_dropped(self):
        self.compare(["waits"], rules=self.chain(f"tcp sport {PORT} drop"))

    def test_only_some_users(self):
        """A rule on the client's user."""
        self.compare(["ECONNREFUSED"], rules=self.chain(f"meta skuid {os.getuid()} tcp dport {PORT} reject with tcp reset"))

    def test_redirected(self):
        self.compare([f"ok {OTHER}"], rules=self.chain(f"tcp dport {PORT} redirect to :{OTHER}", "nat"))

    def test_redirected_to_where_none_listens(self):
        self.compare(["ECONNREFUSED"], rules=self.chain(f"tcp dport {PORT} redirect to :{OTHER + 1}", "nat"))

    def test_rule_that_comes_later(self):
        """Of a process that has connected already."""
        for host in LOOPBACKS:
            with self.subTest(host=host):
                self.nft("flush ruleset")
                server = self.server("postern", PORT)
                child = self.start(CLIENT, host, PORT, "until", "ECONNREFUSED", over="postern")
                self.assertEqual(child.stdout.readline(), f"ok {PORT}\n")
                self.nft(self.chain(f"tcp dport {PORT} reject with tcp reset"))
                self.assertEqual(child.communicate(timeout=60)[0], "ECONNREFUSED\n")
                self.end_server(server)

    def test_rule_that_goes(self):
        for host in LOOPBACKS:
            with self.subTest(host=host):
                self.nft(self.chain(f"tcp dport {PORT} reject with tcp reset"))
                server = self.server("postern", PORT)
                child = self.start(CLIENT, host, PORT, "until", f"ok {PORT}", over="postern", strict=True)
                self.assertEqual(child.stdout.readline(), "ECONNREFUSED\n")
                self.nft("flush ruleset")
                self.assertEqual(child.communicate(timeout=60)[0], f"ok {PORT}\n")
                self.end_server(server)

    def test_landlock(self):
        if LIBC.syscall(444, None, 0, 1) < 4:
            self.skipTest("this kernel's Landlock knows no network")
        self.compare([f"ok {PORT}", "True", "EACCES", f"ok {PORT}"], "landlock")

    def cgroup(self, host, to):
        """A cgroup whose programs refuse PORT, or rewrite it; how a client gets into it."""
        with open("/proc/self/mounts", encoding="ascii") as mounts:
            mount = next((line.split()[1] for line in mounts if line.split()[2] == "cgroup2"), None)
        if mount is None:
            self.skipTest("no cgroup2 is mounted")
        path = tempfile.mkdtemp(prefix="pstn-firewall-", dir=mount)
        self.addCleanup(os.rmdir, path)
        group = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        program = rule(host, to)
        bpf(BPF_PROG_ATTACH, struct.pack("=IIII", group, program, CONNECT[host], 0))
        os.close(program)
        os.close(group)
        return ["/bin/sh", "-c", f'echo $$ > {path}/cgroup.procs; exec "$@"', "sh"]

    def with_cgroup(self, want, to=None):
        for host in LOOPBACKS:
            before = self.cgroup(host, to)
            for over in ("kernel", "postern"):
                with self.subTest(host=host, over=over):
                    server = self.server(over, PORT, OTHER)
                    self.assertEqual(self.client(over, host, "once", before=before), want)
                    self.assertEqual(self.client(over, host, "once", port=OTHER, strict=over == "postern", before=before), [f"ok {OTHER}"])
                    self.end_server(server)

    def test_cgroup_refuses(self):
        self.with_cgroup(["EPERM"])

    def test_cgroup_rewrites(self):
        self.with_cgroup([f"ok {OTHER}"], to=OTHER)


class Switch(Lab):
    """The administrator's: same_host of the host's policy (controlplane/posternd/server/same_host.h)."""

    def setUp(self):
        super().setUp()
        self.policy, self.log = f"{self.runtime}/policy.json", f"{self.runtime}/log"

    def posternd(self, policy):
        self.write(policy)
        with open(self.log, "wb") as log:
            self.children.append(subprocess.Popen([os.path.join(BUILD, "posternd"), "--foreground", "--verbose", "--runtime-dir", self.runtime,
                                                   "--policy", self.policy], stderr=log, env=self.env()))
        self.until(lambda: "ready in" in self.said(), "posternd is not ready")

    def write(self, policy):
        """As a whole: posternd may look at any time."""
        with open(f"{self.policy}.new", "w", encoding="utf-8") as file:
            file.write(policy)
        os.rename(f"{self.policy}.new", self.policy)

    def said(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read()

    def until(self, condition, what):
        end = time.monotonic() + 30
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)

    def is_by_memory(self, host="127.0.0.1"):
        said = self.client("postern", host, "once", strict=True)
        self.assertIn(said, ([f"ok {PORT}"], ["ECONNREFUSED"]))
        return said == [f"ok {PORT}"]

    def by_the_kernel(self):
        """For both kinds of address, with the reason, and each client is served."""
        for host in LOOPBACKS:
            self.assertFalse(self.is_by_memory(host))
            self.assertEqual(self.client("postern", host, "once"), [f"ok {PORT}"])

    def test_off_and_on(self):
        self.posternd('{ "same_host": "off" }')
        self.server("postern", PORT)
        self.by_the_kernel()
        self.assertIn("no longer given", self.said())
        self.write('{ "same_host": "on" }')
        self.until(self.is_by_memory, "not on again")
        with socket.create_server(("127.0.0.1", 0)) as control:
            child = self.start(OLD_CONNECTION, control.getsockname()[1], over="postern")
            old = control.accept()[0]
            old.settimeout(20)
        with old:
            self.assertEqual(old.recv(1), b"1")
            os.unlink(self.policy)
            self.write('{ "same_host": "off" }')
            self.until(lambda: not self.is_by_memory(), "not off")
            old.sendall(b"2")
            self.assertEqual(old.recv(1), b"2", "a connection that was there ends")
        child.wait(20)
        os.unlink(self.policy)
        self.until(self.is_by_memory, "without a policy, not on")

    def test_reason(self):
        self.posternd('{ "same_host": "off" }')
        self.server("postern", PORT)
        child = self.start(f"""
import os, socket, time
s = socket.create_connection(('127.0.0.1', {PORT}))
print(os.getpid(), flush=True)
time.sleep(60)
""", over="postern")
        pid = child.stdout.readline().strip()
        shown = subprocess.run([os.path.join(BUILD, "posternctl"), "ss", "--json", "--pid", pid], env=self.env(), text=True, capture_output=True,
                               timeout=20, check=True).stdout
        self.assertEqual([(s["path"], s["reason"]) for s in json.loads(shown)["sockets"]], [("kernel", "policy")])

    def test_unfiltered(self):
        self.posternd('{ "same_host": "unfiltered" }')
        self.server("postern", PORT)
        self.until(self.is_by_memory, "not where nothing filters")
        for rule in f"tcp dport {OTHER} drop", "log prefix \"x\"", "meta mark set 7":
            with self.subTest(rule):
                self.nft(self.chain(rule))
                self.until(lambda: not self.is_by_memory(), "not noticed")
                self.by_the_kernel()
                self.nft("flush ruleset")
                self.until(self.is_by_memory, "its end is not noticed")

    def test_policy_without_a_meaning(self):
        without_meaning = {'{ "same_host": "maybe" }': "same_host is not", '{ "same_host": ': "parse error", '{ "same-host": "on" }': "same-host"}
        for text, error in without_meaning.items():
            with self.subTest(text):
                self.posternd(text)
                self.server("postern", PORT)
                self.by_the_kernel()
                self.assertIn(self.policy, self.said())
                self.assertIn(error, self.said())
                self.clean()
                os.mkdir(self.runtime, 0o700)


def main():
    global BUILD
    BUILD = os.path.abspath(sys.argv.pop(1))
    if os.geteuid() != 0 or shutil.which("nft") is None or LIBC.unshare(CLONE_NEWNET) != 0:
        print("skipped: root, nft and network namespaces are needed")
        return 77
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)
    began = time.monotonic()
    result = unittest.main(exit=False, verbosity=2 if "-v" in sys.argv else 1).result
    print(json.dumps({"seconds": round(time.monotonic() - began)}))
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
