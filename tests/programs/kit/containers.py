# containers.py - two containers on this host, as a runtime would make them, for tests and for the bench.
# SPDX-License-Identifier: Apache-2.0
#
#     container "a" (client)                               container "b" (server)
#     10.88.0.1  eth0 ==================================== eth0  10.88.0.2
#
#     with nat=True      namespace "gate": nftables
#     10.88.1.1  eth0 ===== 10.88.1.254   10.88.2.254 ===== eth0  10.88.2.2
#                           connect to 10.88.9.9  ->  10.88.2.2, whose client is then 10.88.2.254
#
# Each has a network, mount and pid namespace of its own, with its own /proc, /tmp, /run and /dev/shm. Of the host it sees everything
# else, the directories named in `share` (a build below /tmp), and as its /run/postern `broker_dir`: the host's broker, or a test's.
# What is started in a container is a child of this process all the same: it can be waited for, signalled, and its CPU time is
# accounted for. All of it ends with the container's first process, at the latest with this one. Addresses are of the containers alone.

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import forked
import netlab
from netlab import CLONE_NEWNET, CLONE_NEWNS, MS_REC_PRIVATE, Unavailable, call

CLONE_NEWPID, MS_BIND, PR_SET_PDEATHSIG = 0x20000000, 0x1000, 1
PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
OWN = ("/tmp", "/run", "/dev/shm")
READY_SEC = 20
VIRTUAL = "10.88.9.9"
NAT = f"""
add table ip pstn
add chain ip pstn before {{ type nat hook prerouting priority -100; }}
add chain ip pstn after {{ type nat hook postrouting priority 100; }}
add rule ip pstn before ip daddr {VIRTUAL} dnat to 10.88.2.2
add rule ip pstn after ip daddr 10.88.2.2 snat to 10.88.2.254
"""


class Container:
    """Its address, and what runs in it."""

    def __init__(self, name, broker_dir=None, share=()):
        self.name, self.address, self.fds, self.processes = name, None, {}, []
        argv = [sys.executable, os.path.abspath(__file__), broker_dir or "", *map(os.path.abspath, share)]
        with _children_in(None):
            self.init = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                         preexec_fn=_become_init)
        said = self.init.stdout.readline()
        if said != "ready\n":
            said += self.init.stdout.read()
            self.end()
            raise Unavailable(f"container {name}: {said.strip().splitlines()[-1] if said.strip() else 'ended at once'}")
        for kind in ("net", "mnt", "pid"):
            self.fds[kind] = os.open(f"/proc/{self.init.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)

    def inside(self):
        """Children that are forked in here have the container's pids; each has to call enter() first thing."""
        return _children_in(self.fds["pid"])

    def enter(self, user=None):
        """In a child (preexec_fn): the rest of its namespaces; the user's number, if it is not to be root."""
        call("setns", self.fds["net"], CLONE_NEWNET)
        call("setns", self.fds["mnt"], CLONE_NEWNS)
        os.chdir("/")
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)

    def popen(self, argv, user=None, env=None, **options):
        """As subprocess.Popen; the pid is the host's."""
        self.processes = [process for process in self.processes if process.poll() is None]
        with self.inside():
            argv = [str(word) for word in argv]
            self.processes.append(subprocess.Popen(argv, preexec_fn=lambda: self.enter(user), env=env or environment(), **options))
        return self.processes[-1]

    def run(self, argv, timeout=60, expect=0, **options):
        """Standard output of a command that ends by itself."""
        with self.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                err += f"hangs after {timeout} s"
            if process.returncode != expect:
                raise AssertionError(f"{self.name}: {argv[0]}: exit {process.returncode}, expected {expect}: {err.strip() or out.strip()}")
        return out

    @staticmethod
    def environment():
        return environment()

    def ip(self, *args):
        self._tool(["ip", *args])

    def nft(self, commands):
        self._tool(["nft", "-f", "-"], input=commands)

    def _tool(self, argv, **options):
        """A program of the host's, which sees the container's network only."""
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": PATH},
                              preexec_fn=lambda: call("setns", self.fds["net"], CLONE_NEWNET), **options)
        if done.returncode != 0:
            raise Unavailable(f"{' '.join(argv)}: {done.stderr.strip()}")

    def tcp_sockets(self, port, state="0A"):
        """How many kernel sockets have this local port and state (0A: listens, 01: is connected)."""
        count = 0
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{self.init.pid}/net/{table}", encoding="ascii") as file:
                fields = [line.split() for line in file.readlines()[1:]]
            count += sum(f[1].endswith(f":{port:04X}") and f[3] == state for f in fields)
        return count

    def wait_listening(self, port, process=None):
        """Makes no connection: a server might count it."""
        end = time.monotonic() + READY_SEC
        while not self.tcp_sockets(port):
            if time.monotonic() > end or (process and process.poll() is not None):
                raise AssertionError(f"{self.name}: nobody listens on port {port}")
            time.sleep(0.01)

    def posternd(self):
        """The host's pid of its posternd, or None. One that starts has a parent of that name, which waits until it is ready and may have
        to wait for a CPU after that."""
        found, below = None, self.init.pid
        while (below := next((pid for pid in forked.children(below) if _comm(pid) == "posternd"), None)) is not None:
            found = below
        return found

    def end(self):
        """All that runs in it, and the network with its last process. The first one's end waits for all of them to be buried, and we
        have to bury our own."""
        self.init.kill()
        for process in self.processes:
            process.wait()
        self.init.wait()
        self.init.stdout.close()
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}


class Containers:
    """The pair. `server`: where "a" reaches "b"; `client`: the client's address as "b" sees it."""

    def __init__(self, broker_dir=None, share=(), nat=False):
        if os.geteuid() != 0:
            raise Unavailable("not root")
        for tool in ("ip", "nft") if nat else ("ip",):
            if not shutil.which(tool, path=PATH):
                raise Unavailable(f"no {tool} command ({'iproute2' if tool == 'ip' else 'nftables'})")
        self.all = []
        try:
            self.a, self.b = self._make("a", broker_dir, share), self._make("b", broker_dir, share)
            if nat:
                self._join_by_gate(self._make("gate"))
                self.server, self.client = VIRTUAL, "10.88.2.254"
            else:
                _cable(self.a, "eth0", "10.88.0.1/24", self.b, "eth0", "10.88.0.2/24")
                self.server, self.client = self.b.address, self.a.address
        except BaseException:
            self.close()
            raise

    def _make(self, name, *args):
        self.all.append(Container(name, *args))
        self.all[-1].ip("link", "set", "dev", "lo", "up")
        return self.all[-1]

    def _join_by_gate(self, gate):
        for side, net in ((self.a, 1), (self.b, 2)):
            _cable(gate, f"to_{side.name}", f"10.88.{net}.254/24", side, "eth0", f"10.88.{net}.{net}/24")
            side.ip("route", "add", "default", "via", f"10.88.{net}.254")
        gate.run(["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])
        gate.nft(NAT)

    def close(self):
        for container in self.all:
            container.end()
        self.all = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Broker:
    """posternd --system in a directory of its own, which is `broker_dir` for containers. With options; its log is `directory`/log."""

    def __init__(self, build, directory, *options):
        os.makedirs(directory, exist_ok=True)
        os.chmod(directory, 0o755)
        self.directory, self.log_path = directory, os.path.join(directory, "log")
        with open(self.log_path, "ab") as log:
            before = log.tell()
            argv = [os.path.join(build, "posternd"), "--system", "--foreground", "--verbose", "--runtime-dir", directory]
            self.process = subprocess.Popen([*argv, "--policy", os.path.join(directory, "policy.json"), *options], stderr=log, env=environment(),
                                            preexec_fn=lambda: _end_with_parent(signal.SIGTERM))
        end = time.monotonic() + READY_SEC
        while "ready in" not in self.log(before):
            if self.process.poll() is not None or time.monotonic() > end:
                self.close()
                raise Unavailable(f"no broker: {self.log().strip()[-300:]}")
            time.sleep(0.01)

    def log(self, begin=0):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            file.seek(begin)
            return file.read()

    def close(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait()
        netlab.forget_bells(self.directory)


def _comm(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""  # it has ended


def environment():
    """That of this process, but for where its own posternd is; programs of sbin are found."""
    drop = ("POSTERN_RUNTIME_DIR", "XDG_RUNTIME_DIR")
    return {name: value for name, value in os.environ.items() if name not in drop} | {"PATH": f"{os.environ.get('PATH', '')}:{PATH}"}


@contextlib.contextmanager
def _children_in(pid_namespace):
    """Children of this thread begin in that pid namespace, or, with None, are the first of a new one."""
    home = os.open("/proc/thread-self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if pid_namespace is None:
            call("unshare", CLONE_NEWPID)
        else:
            call("setns", pid_namespace, CLONE_NEWPID)
        yield
    finally:
        call("setns", home, CLONE_NEWPID)
        os.close(home)


def _end_with_parent(how):
    netlab.libc.prctl(PR_SET_PDEATHSIG, how, 0, 0, 0)


def _become_init():
    call("unshare", CLONE_NEWNS | CLONE_NEWNET)
    _end_with_parent(signal.SIGKILL)


def _cable(one, one_name, one_address, two, two_name, two_address):
    one.ip("link", "add", one_name, "type", "veth", "peer", "name", two_name, "netns", str(two.init.pid))
    for container, name, address in ((one, one_name, one_address), (two, two_name, two_address)):
        container.ip("addr", "add", address, "dev", name)
        container.ip("link", "set", "dev", name, "up")
        container.address = address.split("/")[0]


def _mount(kind, place):
    call("mount", kind, place.encode(), kind, 0, None)


def _init(broker_dir, *share):
    """The first process: its mounts, then it reaps orphans."""
    call("mount", b"none", b"/", None, MS_REC_PRIVATE, None)
    shown = {place: os.open(place, os.O_PATH) for place in share}
    if broker_dir:
        shown["/run/postern"] = os.open(broker_dir, os.O_PATH)
    _mount(b"proc", "/proc")
    for place in OWN:
        _mount(b"tmpfs", place)
        os.chmod(place, 0o1777 if place != "/run" else 0o755)
    for place, fd in shown.items():
        if not os.path.exists(place):
            os.makedirs(place)
            call("mount", f"/proc/self/fd/{fd}".encode(), place.encode(), None, MS_BIND, None)
        os.close(fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    _init(*sys.argv[1:])
