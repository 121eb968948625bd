# wirekit.py - two network namespaces with a veth pair between them, a posternd in either, and Python programs that do what they are told.
# SPDX-License-Identifier: Apache-2.0
#
#     namespace a   10.77.0.1, fd77::1   va ============ vb   10.77.0.2, fd77::2   namespace b

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import netlab
from netlab import MAC, V4, V6

READY_SEC = 20
NOT_HERE = ("was built without", "lacks", "not permitted", "older than 6.4", "older than 6.6", "/dev/net/tun")
PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
OTHER = {"a": "b", "b": "a"}

# What a program of a test is: each line of its input is Python, as a JSON string; what that leaves in `result` is the answer.
PROGRAM = """
import errno, hashlib, json, os, random, select, signal, socket, struct, sys, threading, time, traceback
world = dict(globals())
print(json.dumps({"result": os.getpid()}), flush=True)
for line in sys.stdin:
    world["result"] = None
    try:
        exec(json.loads(line), world)
        said = {"result": world["result"]}
    except OSError as error:
        said = {"errno": error.errno, "timeout": isinstance(error, TimeoutError), "text": repr(error)}
    except Exception:
        said = {"errno": None, "text": traceback.format_exc()}
    print(json.dumps(said), flush=True)
"""

# A server that sends back what comes, with a thread for each connection; half closed as it was.
ECHO = """
listener = socket.create_server((HOST, PORT), family=FAMILY, backlog=256)
def echo(sock):
    with sock:
        try:
            while data := sock.recv(262144):
                sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
def accept():
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=echo, args=(sock,), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
"""

# A client: all goes out from one thread while it comes back to another; then EOF.
EXCHANGE = """
def exchange(sock, data, end=True):
    got, sha = 0, hashlib.sha256()
    def write():
        sock.sendall(data)
        if end:
            sock.shutdown(socket.SHUT_WR)
    writer = threading.Thread(target=write)
    writer.start()
    while got < len(data):
        part = sock.recv(262144)
        if not part:
            break
        got += len(part)
        sha.update(part)
    writer.join()
    assert got == len(data), (got, len(data))
    assert sha.digest() == hashlib.sha256(data).digest(), "other bytes came back"
    if end:
        assert sock.recv(1) == b"", "bytes after the end"
"""


class Refused(Exception):
    def __init__(self, said, code):
        super().__init__(f"{said['text']} in: {code.strip()[:300]}")
        self.errno, self.timeout = said["errno"], said.get("timeout", False)


class Pair(netlab.Lab):
    """Its two namespaces a and b; nothing of it is left when the process ends."""

    def __init__(self):  # pylint: disable=super-init-not-called
        self.fds = {"lab": os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)}
        for name in "ab":
            netlab.call("unshare", netlab.CLONE_NEWNET)
            self.fds[name] = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            self.ip("link", "set", "dev", "lo", "up")
        self.ip("link", "add", "vb", "address", MAC["b"], "type", "veth", "peer", "name", "va", "address", MAC["a"], "netns",
                f"/proc/{os.getpid()}/fd/{self.fds['a']}")
        netlab.call("setns", self.fds["lab"], netlab.CLONE_NEWNET)
        for side in "ab":
            with self.inside(side):
                self.ip("addr", "add", f"{V4[side]}/24", "dev", f"v{side}")
                self.ip("addr", "add", f"{V6[side]}/64", "dev", f"v{side}", "nodad")
                self.ip("link", "set", "dev", f"v{side}", "up")

    def segments(self, side):
        """InSegs and OutSegs of the kernel's TCP there."""
        return self.counters(side, "InSegs", "OutSegs")

    def opens(self, side):
        """How many connections the kernel's TCP has made there. Segments say less: what comes late for a connection that was made by
        postern, and is in TIME_WAIT, is the kernel's (docs/vi.md)."""
        return self.counters(side, "ActiveOpens", "PassiveOpens")

    def tcp_ext(self, side, name):
        return self.counters(side, name, file="netstat", group="TcpExt:")[0]

    def counters(self, side, *wanted, file="snmp", group="Tcp:"):
        with self.inside(side), open(f"/proc/thread-self/net/{file}", encoding="ascii") as table:
            names, values = [line.split() for line in table if line.startswith(group)]
        counters = dict(zip(names, values))
        return tuple(int(counters[name]) for name in wanted)

    def keepers(self, side):
        """Pids of the keepers in that namespace."""
        netns = os.fstat(self.fds[side]).st_ino
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    if file.read().startswith("postern-keeper") and os.stat(f"/proc/{pid}/ns/net").st_ino == netns:
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def new_silent(self):
        """An address of b's link whose owner takes packets and answers none of them."""
        address = "10.77.0.50"
        with self.inside("a"):
            self.ip("neigh", "add", address, "lladdr", MAC["b"], "dev", "va")
        return address

    def close(self):
        for fd in self.fds.values():
            os.close(fd)


class Program:
    """PROGRAM, in a namespace; under postern with these options unless they are None."""

    def __init__(self, test, side, options):
        self.name = f"program {len(test.programs)} in {side}"
        wrapper = [] if options is None else [f"{test.build}/postern", *(word for o in options for word in ("-o", o))]
        with test.lab.inside(side):
            self.process = subprocess.Popen([*wrapper, sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=test.stderr, env=test.environment(side))
        test.programs.append(self)
        self.pid = self.read("start")

    def read(self, code):
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self.process.stdout], [], [], READY_SEC)
            part = os.read(self.process.stdout.fileno(), 1 << 20) if readable else b""
            if not part:
                raise AssertionError(f"{self.name} has ended, or is silent: {code.strip()[-300:]}")
            line += part
        said = json.loads(line)
        if "text" in said:
            raise Refused(said, code)
        return said["result"]

    def tell(self, code):
        """Does it, and answers when read() asks."""
        self.process.stdin.write(json.dumps(code).encode() + b"\n")
        self.process.stdin.flush()

    def do(self, code, **names):
        code = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + code
        self.tell(code)
        return self.read(code)

    def get(self, expression, **names):
        return self.do(f"result = {expression}", **names)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


class WireTest(unittest.TestCase):
    build = None
    kind = "xsk"  # of the VIs: or "tap" (main())

    def new_lab(self):
        return Pair()

    def setUp(self):
        self.temp = tempfile.TemporaryDirectory(prefix="pstn-wire-")
        self.lab, self.daemons, self.programs = self.new_lab(), {}, []
        self.stderr = open(f"{self.temp.name}/stderr", "ab")  # pylint: disable=consider-using-with
        self.port = 7000

    def tearDown(self):
        for program in reversed(self.programs):
            program.close()
        for side in list(self.daemons):
            self.stop_daemon(side, signal.SIGTERM)
        for pid in (*self.keepers("a"), *self.keepers("b")):  # else they wait for peers that are gone, as a kernel does
            os.kill(pid, signal.SIGKILL)
        self.stderr.close()
        netlab.forget_bells(f"{self.temp.name}/broker")
        self.lab.close()
        self.temp.cleanup()

    # -- posternd ------------------------------------------------------------------------------------------------------------
    def runtime_dir(self, side):
        return f"{self.temp.name}/{side}"

    def environment(self, side):
        # The kernel's connections are counted, and first contact is one (over the loopback, by programs that talk to their children).
        return {"PATH": PATH, "POSTERN_FIREWALL": "ignore", "POSTERN_RUNTIME_DIR": self.runtime_dir(side), "HOME": self.temp.name, "POSTERN_DAEMON_SPAWN": "off"}

    def log(self, side):
        with open(f"{self.temp.name}/{side}.log", encoding="utf-8") as file:
            return file.read()

    def vi_words(self, vi):
        """For --vi: interfaces of the kind that is tested."""
        if self.kind == "xsk" or vi == "off":
            return vi
        return ",".join(f"tap:{name}" for name in (["va", "vb"] if vi == "any" else vi.split(",")))

    def start_daemon(self, side, vi="any"):
        self.start_posternd(side, side, ["--runtime-dir", self.runtime_dir(side), "--idle-sec", "0", "--vi", self.vi_words(vi),
                                         "--broker", f"{self.temp.name}/broker/broker.sock"])

    def start_broker(self, side, vi="any"):
        """The host's, in that namespace; it makes VIs for posternds that may not."""
        self.start_posternd("broker", side, ["--system", "--runtime-dir", f"{self.temp.name}/broker", "--vi", self.vi_words(vi), "--syn-option", "off",
                                             "--policy", f"{self.temp.name}/none"])

    def start_posternd(self, name, side, arguments):
        log = f"{self.temp.name}/{name}.log"
        command = [f"{self.build}/posternd", "--foreground", "--verbose", *arguments]
        with self.lab.inside(side), open(log, "ab") as file:
            before = file.tell()
            self.daemons[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, env={"PATH": PATH})

        def ready():
            with open(log, "rb") as file:
                file.seek(before)
                return b"ready in" in file.read()

        self.until(ready, lambda: f"posternd is not ready: {self.log(name)}")

    def stop_daemon(self, side, how=signal.SIGKILL):
        daemon = self.daemons.pop(side)
        daemon.send_signal(how)
        daemon.wait(20)

    def keepers(self, side="b"):
        return self.lab.keepers(side)

    def attached(self, side="b"):
        """Whether somebody has a VI of the interface."""
        if self.kind == "tap":
            return bool(self.taps(side))
        with self.lab.inside(side):
            shown = subprocess.run(["ip", "-d", "link", "show", "dev", f"v{side}"], capture_output=True, text=True, check=False)
        return "xdp" in shown.stdout

    def taps(self, side="b"):
        """The TAPs there."""
        with self.lab.inside(side):
            shown = subprocess.run(["ip", "-json", "link", "show"], capture_output=True, text=True, check=True)
        return [link["ifname"] for link in json.loads(shown.stdout) if link["ifname"].startswith("pstn-tap")]

    def sockets(self, program, side="b"):
        shown = subprocess.run([f"{self.build}/posternctl", "ss", "--json", "--pid", str(program.pid)], capture_output=True, text=True,
                               check=True, env=self.environment(side))
        return json.loads(shown.stdout)

    def steered(self, program, side="b"):
        """Whether it listens on the port, and what comes there by the VI is its own."""
        return any(s.get("steered") for s in self.sockets(program, side)["sockets"] if s["local"].endswith(f":{self.port}"))

    # -- programs ------------------------------------------------------------------------------------------------------------
    def start(self, side, argv, **options):
        with self.lab.inside(side):
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=self.stderr, env=self.environment(side),
                                       start_new_session=True, **options)
        self.addCleanup(self.end_session, process)
        return process

    @staticmethod
    def end_session(process):
        """It, and the workers that it has."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def run_in(self, side, argv, seconds=60):
        """What it says; it has to succeed."""
        process = self.start(side, argv, stdout=subprocess.PIPE)
        with process.stdout:
            out, _ = process.communicate(timeout=seconds)
        self.assertEqual(process.returncode, 0, argv)
        return out

    def program(self, side="b", options=None):
        """Under postern, on the interface of its namespace."""
        return Program(self, side, [f"vi=v{side}"] if options is None else options)

    def plain(self, side="a"):
        return Program(self, side, None)

    def echo_server(self, program, side="b", family=socket.AF_INET):
        program.do(ECHO, HOST="0.0.0.0" if family == socket.AF_INET else "::", PORT=self.port, FAMILY=int(family))

    def new_socket(self, side="a", family=socket.AF_INET):
        return self.lab.socket(side, family)

    def connected(self, side="a", family=socket.AF_INET):
        """The kernel's connection to what listens on the other side."""
        sock = self.new_socket(side, family)
        self.addCleanup(sock.close)
        sock.connect(((V4 if family == socket.AF_INET else V6)[OTHER[side]], self.port))
        return sock

    def listening(self, side="b"):
        """Whether the kernel has a listener on the port; nobody connects for it."""
        with self.lab.inside(side), open("/proc/thread-self/net/tcp", encoding="ascii") as file:
            return any(f":{self.port:04X} " in line and line.split()[3] == "0A" for line in file)

    def until(self, condition, what, seconds=READY_SEC):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.fail(what() if callable(what) else what)
            time.sleep(0.02)


def exchange(sock, data, end=True):
    """As EXCHANGE, in this process."""
    world = {"hashlib": hashlib, "threading": threading, "socket": socket}
    exec(EXCHANGE, world)  # pylint: disable=exec-used
    world["exchange"](sock, data, end)


def main(find_missing):
    """The program's own mount and network namespace, and all of its tests. Exit 77: why nothing can be tested here is printed (find_missing(build))."""
    build = sys.argv.pop(1)
    if "--tap" in sys.argv:
        sys.argv.remove("--tap")
        WireTest.kind = "tap"
    try:
        if os.geteuid() != 0:
            raise netlab.Unavailable("not root")
        netlab.call("unshare", netlab.CLONE_NEWNS)
        netlab.call("mount", b"none", b"/", None, netlab.MS_REC_PRIVATE, None)
        netlab.call("unshare", netlab.CLONE_NEWNET)
        why = find_missing(build)
    except netlab.Unavailable as reason:
        why = reason
    if why:
        print(f"skipped: {why}")
        sys.exit(77)
    unittest.main(argv=sys.argv, verbosity=2 if "-v" in sys.argv else 1)
