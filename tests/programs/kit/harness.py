# harness.py - a test: registered by name, run in each mode in a process of its own, with a watchdog and no strays.
# SPDX-License-Identifier: Apache-2.0
#
# A pair test starts its programs with ctx.start("server", ...) and ctx.run("client", ...). The mode decides which of
# the sides run under the wrapper: both, server, client, or kernel (neither: the oracle, in which every test has to pass).
# Each program is started in its own session; what is left in those sessions when the test returns is a stray
# process, which fails the test and is killed by pid.

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

import posternview

MODES = ("both", "server", "client", "kernel")
PYTHON = "/usr/bin/python3"
HERE = os.path.dirname(os.path.abspath(__file__))
SAID = "said"  # in a test's directory: what it has printed itself
TESTS = []


class Fail(Exception):
    """The program under test did something that its user would complain about."""


class Skip(Exception):
    """The test can't be run here; the message says why."""


@dataclass
class Test:
    name: str
    run: object
    modes: tuple
    tier: str
    watchdog_s: float
    alone: str  # why no other test may run beside it; empty: one may


@dataclass
class Config:
    build: str
    wrapper: list = field(default_factory=list)
    posternctl: str = ""  # empty: an overridden wrapper without posternctl, paths are not checked
    tier: str = "fast"
    seed: int = 1
    cache_dir: str = ""
    keep: str = ""
    seconds: int = 0  # of a chaos test; 0: what the tier says
    sanitizer: str = ""  # asan or tsan: what the build is watched by (sanitizer.py)
    reports: str = ""  # where its reports go


def test(modes=MODES, tier="fast", watchdog_s=60.0, alone=""):
    def register(function):
        TESTS.append(Test(function.__name__, function, tuple(modes), tier, watchdog_s, alone))
        return function
    return register


def need(program):
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not path:
        raise Skip(f"{program} is not installed")
    return path


def check(condition, message):
    if not condition:
        raise Fail(message() if callable(message) else message)


def wait_until(condition, complaint, timeout=20.0):
    end = time.monotonic() + timeout
    while not condition():
        check(time.monotonic() < end, complaint)
        time.sleep(0.03)


def session_members(sids):
    """{pid: comm} of living processes in the sessions; zombies have nothing left to do and are not strays."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                head, rest = file.read().rsplit(")", 1)
            fields = rest.split()
            comm = head.split("(", 1)[1]
            if int(fields[3]) in sids and fields[0] not in "ZX" and not comm.startswith("posternd"):
                found[int(entry)] = comm
        except (OSError, IndexError, ValueError):
            continue
    return found


def is_gone(pid):
    """It has ended. So has a zombie: the first process of a container may be one that never waits for those it inherits."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill_pids(pids, sig=signal.SIGKILL):
    for pid in pids:
        try:
            os.kill(pid, sig)
        except ProcessLookupError:
            pass


def free_port(taken=()):
    """Below the ephemeral range, so that no outgoing connection takes it meanwhile, nor a server that asks for any."""
    for _ in range(200):
        port = random.SystemRandom().randrange(20000, 32000)
        if port in taken:
            continue
        try:
            for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
                with socket.socket(family) as probe:
                    if family == socket.AF_INET6:
                        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    probe.bind((host, port))
            return port
        except OSError:
            continue
    raise Fail("no free port")


def listens(port):
    """Whether somebody does, on whatever address of IPv4 or IPv6. Asks sock_diag(7) for listeners: /proc/net/tcp has also the thousands
    of TIME_WAIT that a load leaves."""
    return any(_listeners(family, port) for family in (socket.AF_INET, socket.AF_INET6))


def _listeners(family, port):
    netlink_sock_diag, sock_diag_by_family, done, request_dump, listen = 4, 20, 3, 0x301, 1 << 10
    # struct inet_diag_req_v2: family, protocol, what else to tell, padding, states, and the names that are asked for.
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, listen) + struct.pack("!H", port) + bytes(46)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink_sock_diag) as line:
        line.send(struct.pack("=IHHII", 16 + len(request), sock_diag_by_family, request_dump, 1, 0) + request)
        (kind,) = struct.unpack_from("=H", line.recv(65536), 4)  # of the first message: a socket, or the end
    check(kind in (sock_diag_by_family, done), lambda: f"sock_diag answers with a message of kind {kind}")
    return kind == sock_diag_by_family


class Proc:
    """A started program: own session, output in a file."""

    def __init__(self, ctx, argv, name, env, stdin):
        self.ctx, self.name, self.held = ctx, name, 0
        self.log = os.path.join(ctx.dir, f"{len(ctx.procs):02d}-{name}.log")
        with open(self.log, "wb") as out:
            self.popen = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=stdin or subprocess.DEVNULL,
                                          env=env, start_new_session=True, cwd=ctx.dir)
        ctx.adopt_session(self.popen.pid)

    @property
    def pid(self):
        return self.popen.pid

    def output(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait(self, timeout=60.0, expect=0):
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Fail(f"{self.name} hangs after {timeout:g} s: {self.output()[-600:]}") from None
        if expect is not None:
            check(code == expect, lambda: f"{self.name}: exit {code}, expected {expect}: {self.output()[-1500:]}")
        return code

    def wait_holding(self):
        """Until one of its processes has said that it holds its connection open to be looked at."""
        end = time.monotonic() + 60
        while self.held == self.output().count("holding\n"):
            check(self.alive() and time.monotonic() < end, lambda: f"{self.name} does not get to hold its connection: {self.output()[-800:]}")
            time.sleep(0.01)

    def go_on(self):
        """SIGUSR1 to all its processes, which the one that holds its connection waits for."""
        self.wait_holding()
        self.held += 1
        os.killpg(self.pid, signal.SIGUSR1)

    def alive(self):
        return self.popen.poll() is None

    def stop(self, sig=signal.SIGTERM, expect=None, timeout=20.0):
        """Ask it to end. A program that was asked politely and doesn't end hangs: that is a failure."""
        if self.alive():
            self.popen.send_signal(sig)
        return self.wait(timeout, expect)


class Context:
    def __init__(self, config, mode, directory):
        self.config, self.mode, self.dir = config, mode, directory
        self.procs, self.sessions, self.as_user, self.ports = [], set(), [], set()
        self.random = random.Random(config.seed)
        self.fast = config.tier == "fast"

    # -- programs ------------------------------------------------------------------------------------------------
    def wrapped(self, side):
        return self.mode == "both" or self.mode == side

    def argv(self, side, argv):
        return [*self.as_user, *(self.config.wrapper if self.wrapped(side) else []), *argv]

    def start(self, side, argv, name=None, env=None, stdin=None):
        argv = [str(a) for a in argv]
        proc = Proc(self, self.argv(side, argv), name or os.path.basename(argv[0]), {**os.environ, **(env or {})}, stdin)
        self.procs.append(proc)
        return proc

    def adopt_session(self, sid):
        """Processes that are left in this session are ours: called for each program started and for daemons they become."""
        self.sessions.add(sid)
        with open(os.path.join(self.dir, "sessions"), "a", encoding="ascii") as file:
            file.write(f"{sid}\n")

    def run(self, side, argv, timeout=60.0, expect=0, **kw):
        proc = self.start(side, argv, **kw)
        proc.wait(timeout, expect)
        return proc.output()

    def script(self, side, script, *args, **kw):
        return self.start(side, [PYTHON, os.path.join(HERE, script), *args], name=kw.pop("name", script), **kw)

    def built(self, name):
        for place in ("tests/programs", "tests/conformance", ""):
            path = os.path.join(self.config.build, place, name)
            if os.access(path, os.X_OK) and os.path.isfile(path):
                return path
        raise Fail(f"{name} is not built below {self.config.build}")

    # -- places --------------------------------------------------------------------------------------------------
    def path(self, *parts):
        path = os.path.join(self.dir, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def write(self, name, data):
        path = self.path(name)
        with open(path, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        return path

    @contextlib.contextmanager
    def making(self, name):
        """The path of `name` in what the tests of a run share. A test that finds nothing there makes it; the others wait for that."""
        path = os.path.join(self.config.cache_dir, name)
        with open(f"{path}.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path

    def port(self):
        """A free port. A test gets each once: one that it has may still have to be bound."""
        port = free_port(self.ports)
        self.ports.add(port)
        return port

    def wait_listening(self, port, proc=None, timeout=20.0):
        """A probing connect would be a client that the server under test didn't expect."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if listens(port):
                return
            if proc and not proc.alive():
                raise Fail(f"{proc.name} ended before it listened: {proc.output()[-1500:]}")
            time.sleep(0.02)
        raise Fail(f"nobody listens on {port} after {timeout:g} s")

    # -- postern's own view --------------------------------------------------------------------------------------
    def expect_path(self, port):
        """Call while connections to `port` are open: they have to take the path that the mode demands."""
        if self.mode != "kernel" and self.config.posternctl:
            try:
                posternview.expect_path(self.config.posternctl, port, self.mode)
            except posternview.ViewError as error:
                raise Fail(str(error)) from None

    # -- the end -------------------------------------------------------------------------------------------------
    def finish(self):
        """Stop what the test left running (newest first). Returns complaints."""
        complaints = []
        for proc in reversed(self.procs):
            try:
                code = proc.stop()
                if code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE):
                    complaints.append(f"{proc.name} crashed with signal {-code}")
            except Fail as error:
                complaints.append(str(error))
                proc.popen.kill()
                proc.popen.wait()
        end = time.monotonic() + 5
        while (left := session_members(self.sessions)) and time.monotonic() < end:
            time.sleep(0.05)
        if left:
            complaints.append(f"stray processes: {left}")
            kill_pids(left)
        return complaints


def _child(test_case, config, mode, directory, report_fd):
    """Runs in the test's own process; one line of outcome goes to the pipe. What the test prints is kept, to be shown with its outcome."""
    with open(os.path.join(directory, SAID), "wb") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    ctx, outcome, text = Context(config, mode, directory), "pass", ""
    try:
        text = test_case.run(ctx) or ""  # what a reader wants to know of a test that has passed
    except Skip as reason:
        outcome, text = "skip", str(reason)
    except Fail as error:
        outcome, text = "fail", str(error)
    except Exception as error:  # a bug in the test is a failed test too
        import traceback
        outcome, text = "fail", f"{error!r}\n{traceback.format_exc()}"
    complaints = ctx.finish()
    if complaints:
        outcome, text = "fail", "; ".join([text, *complaints]).strip("; ")
    sys.stdout.flush()
    os.write(report_fd, f"{outcome} {text}".encode()[:60000])
    os._exit(0)


def _said(directory):
    try:
        with open(os.path.join(directory, SAID), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def run_one(test_case, mode, config):
    """(outcome, text, seconds, what it printed): runs the test in a child and ends it when the watchdog strikes."""
    directory = tempfile.mkdtemp(prefix=f"pstn-{test_case.name[:30]}-{mode}-")
    started = time.monotonic()
    read_fd, write_fd = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        _child(test_case, config, mode, directory, write_fd)
    os.close(write_fd)
    import select
    ready, _, _ = select.select([read_fd], [], [], test_case.watchdog_s)
    if ready:
        report = b""
        while chunk := os.read(read_fd, 65536):
            report += chunk
        outcome, _, text = report.decode(errors="replace").partition(" ")
        outcome = outcome or "fail"
    else:
        outcome, text = "fail", f"watchdog: not done after {test_case.watchdog_s:g} s"
        os.kill(pid, signal.SIGKILL)
        try:
            with open(os.path.join(directory, "sessions"), encoding="ascii") as file:
                members = session_members({int(line) for line in file})
        except OSError:
            members = {}
        text += f"; was running: {members}"
        kill_pids(members)
    os.waitpid(pid, 0)
    os.close(read_fd)
    said = _said(directory)
    if outcome == "fail":
        text += f"\n      logs: {directory}"
    elif config.keep != "all":
        shutil.rmtree(directory, ignore_errors=True)
    return outcome, text, time.monotonic() - started, said
