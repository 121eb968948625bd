# wire.py - actors with a wire between them: each in a network namespace of its own, the two joined by a veth pair.
# SPDX-License-Identifier: Apache-2.0
#
# A case says 127.0.0.1, and means "where the other one can reach it": for an actor's own socket that becomes the address of its
# namespace, for a connect() that of the namespace whose actor has named the port. What a case connects to without a name ("port 1,
# where nobody listens") is the other namespace's. The kernel, which is the oracle, is asked over the same wire.
#
# An interface is one stack's, and to make a stack and to end it takes a second. So either side's programs are one family, whose
# first member (family.py) is there for the whole run and begins the actors.
#
# A packet takes its time, and what a call returns may depend on whether it is there. So after each line that sends some there is a
# pause, in which nobody of ours is awake but the keepers.

import contextlib
import copy
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from actors import popen

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "programs", "kit"))
import netlab  # pylint: disable=wrong-import-position
import wirekit  # pylint: disable=wrong-import-position
from netlab import Unavailable  # pylint: disable=wrong-import-position

SIDE = {"A": "a", "B": "b"}
IN_FAMILY = "in the family"  # put before a command that a side's family runs
FAMILY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "family.py")
READY_SEC = 20
# The addresses of the loopback that cases use, and the last byte of what they become in a; in b it is one more.
LOOPBACK = {"127.0.0.1": 1, "127.0.0.2": 12, "127.0.0.5": 14, "127.0.0.6": 16, "127.0.0.7": 18, "127.0.0.9": 20, "127.5.6.7": 22,
            "127.8.8.8": 24, "127.9.9.9": 26, "127.255.255.254": 28}
ANY = ("0.0.0.0", "::", "::ffff:0.0.0.0")
HOST = re.compile(r"(?<=\s)(?:(?:::ffff:)?\d+\.\d+\.\d+\.\d+|::1|::)(?=\s|$)")
PORT = re.compile(r"\$([A-Za-z]\w*)")
APART_MS = 80
SENDTO = re.compile(r"\bsendto \S+ \S+ ")  # what follows is a port
TO_THE_OTHER = {"connect", "socketconnect", "sendto"}
# Lines that put no packet on the wire.
SILENT = ("accept", "acceptbad", "acceptnull", "acceptshort", "bind", "copyfilerange", "dup", "dup2", "dup2to", "dup3", "dupfd", "dupfdplain", "epadd",
          "epcreate", "epdel", "epmod", "epwait", "epwait2", "epwaitm", "file", "fstat", "getfl", "getopt", "ioctl", "listen", "lseek", "name",
          "peer", "peek", "pipe", "poll", "ppoll", "ppollm", "pselect", "read", "readv", "recv", "recvfrom", "recvmmsg", "recvmmsgt", "recvmsg",
          "recvmsgc", "preadv2", "select", "setfd", "setfl", "sigmask", "signals", "sigpipes", "sleep", "socket", "socketpair", "state",
          "tcpinfo", "tcpstate", "ticking", "badaddress", "badbuffer", "getown", "setown", "optnull", "setoptlen", "sigaction")


def address(side, host):
    """What an address of the loopback is on that side."""
    if host.startswith("::ffff:"):
        return "::ffff:" + address(side, host[7:])
    if host == "::1":
        return netlab.V6[side]
    return f"10.77.0.{LOOPBACK[host] + (side == 'b')}" if host in LOOPBACK else host


def apart(lines):
    """The same, with a pause wherever one line sends twice. Over a veth pair the kernel's answer to the first is there before the second,
    as over no other wire: a RST, say, which the second would meet."""
    for line in lines:
        actor, *words = line.split()
        if words[:1] == ["sendmmsg"]:
            yield from (f"{actor} sendmmsg {words[1]} {message}" for message in words[2:])
        else:
            yield line.replace(" ; ", f" ; sleep {APART_MS} ; ")


class Launched:
    """As far as an actor needs it, what subprocess.Popen is."""

    def __init__(self, pid, stdin, stdout):
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.pidfd = os.pidfd_open(pid)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait(self):
        """Its parent knows how it ended."""
        if self.pidfd >= 0:
            select.select([self.pidfd], [], [])
            os.close(self.pidfd)
        self.pidfd = -1
        return "by itself"


class Family:
    """The first of a side's programs under postern, and its line (family.py)."""

    def __init__(self, process, line):
        self.process, self.line, self.lock = process, line, threading.Lock()

    def begin(self, argv, lines, errors):
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        stderr = os.dup(2) if errors is None else os.open(os.devnull, os.O_WRONLY)
        with self.lock:
            socket.send_fds(self.line, [json.dumps([argv, list(lines)]).encode()], [stdin, stdout, stderr, *(end.fileno() for end in lines.values())])
            pid = int(self.line.recv(100))
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        return Launched(pid, open(to_stdin, "wb"), open(from_stdout, "rb", buffering=0))  # pylint: disable=consider-using-with

    def close(self):
        self.line.close()
        self.process.wait()


@contextlib.contextmanager
def opened(build, wrapper, settle_s):
    """A wire, with Postern at its ends unless there is no wrapper. Unavailable: there can be none here."""
    wire = Wire(build, wrapper, settle_s)
    try:
        if wrapper:
            wire.begin()
        yield wire
    finally:
        wire.close()


class Wire:
    """From __init__ to close()."""

    def __init__(self, build, wrapper, settle_s):
        self.build, self.wrapper, self.settle_s = build, wrapper, settle_s
        self.temp = tempfile.TemporaryDirectory(prefix="pstn-conform-")  # pylint: disable=consider-using-with
        self.daemons, self.families, self.lab = {}, {}, None
        if os.geteuid() != 0:
            raise Unavailable("not root")
        self.lab = wirekit.Pair()
        for side in "ab":
            with self.lab.inside(side):
                self.lab.write("net/ipv4/tcp_congestion_control", "reno")  # the wire has not what the host may have
                for last in LOOPBACK.values():
                    if last != 1:
                        self.lab.ip("addr", "add", f"10.77.0.{last + (side == 'b')}/32", "dev", f"v{side}")

    def begin(self):
        """Daemons, and the families that the wrapped actors are of."""
        for side in "ab":
            self.start_daemon(side)
            self.begin_family(side)

    def log_path(self, side):
        return f"{self.temp.name}/{side}.log"

    def log(self, side):
        with open(self.log_path(side), encoding="utf-8") as file:
            return file.read()

    def start_daemon(self, side):
        command = [f"{self.build}/posternd", "--runtime-dir", f"{self.temp.name}/{side}", "--foreground", "--idle-sec", "0", "--verbose",
                   "--broker", f"{self.temp.name}/none.sock", "--vi", "any"]
        with self.lab.inside(side), open(self.log_path(side), "ab") as log:
            self.daemons[side] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env={"PATH": wirekit.PATH})
        end = time.monotonic() + READY_SEC
        while "ready in" not in self.log(side):
            if self.daemons[side].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no posternd in {side}: {self.log(side)}")
            time.sleep(0.02)

    def begin_family(self, side):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [*self.wrapper, "-o", f"vi=v{side}", sys.executable, FAMILY, str(theirs.fileno()), netlab.V4[side]]
        with theirs, self.lab.inside(side):
            process = subprocess.Popen(command, env=self.environment(side), pass_fds=[theirs.fileno()])
        self.families[side] = Family(process, ours)
        if ours.recv(100) != b"ready":
            raise RuntimeError(f"no program under postern in {side}")
        with self.lab.inside(side):
            shown = subprocess.run(["ip", "-d", "link", "show", "dev", f"v{side}"], capture_output=True, text=True, check=False)
        if "xdp" not in shown.stdout:
            why = next((line for line in self.log(side).splitlines() if any(part in line for part in wirekit.NOT_HERE)), None)
            if why:
                raise Unavailable(why)
            raise RuntimeError(f"no VI in {side}: {self.log(side)}")

    def opens(self, who):
        """Connections that the kernel's TCP has made on that side."""
        return sum(self.lab.opens(SIDE[who]))

    def close(self):
        for family in self.families.values():
            family.close()
        for daemon in self.daemons.values():
            daemon.terminate()
            daemon.wait()
        if self.lab is not None:
            for pid in (*self.lab.keepers("a"), *self.lab.keepers("b")):  # else they wait for peers that are gone, as a kernel does
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.lab.close()
        self.temp.cleanup()

    # ---- a stage's place (actors.py)

    def environment(self, side):
        return {**os.environ, "POSTERN_RUNTIME_DIR": f"{self.temp.name}/{side}", "POSTERN_DAEMON_SPAWN": "off"}

    def start(self, who, argv, lines, errors):
        side = SIDE[who]
        if argv[0] == IN_FAMILY:
            return self.families[side].begin(argv[1:], lines, errors)
        with self.lab.inside(side):
            return popen(argv, lines, errors, env=self.environment(side))

    def line(self, who, line, owners):
        """The line with the addresses that it means here; owners: {variable: the actor that has named the port}."""
        return " ; ".join(self.command(who, command, owners) for command in line.split(" ; "))

    @staticmethod
    def command(who, command, owners):
        words = command.split()
        port = PORT.search(command)
        at = who
        if not TO_THE_OTHER.isdisjoint(words):
            at = owners.get(port.group(1), who) if port else ("B" if who == "A" else "A")
        side = SIDE[at]

        def here(found):
            host = found.group()
            if host in ANY:
                return host if at == who or "bind" in words else address(side, "::1" if host == "::" else host.replace("0.0.0.0", "127.0.0.1"))
            return address(side, host)

        command = HOST.sub(here, command)
        return SENDTO.sub(rf"\g<0>{address(side, '127.0.0.1')}/", command)

    def patient(self, times):
        """The same wire, where each pause is so many times as long."""
        other = copy.copy(self)
        other.settle_s *= times
        return other

    @staticmethod
    def owner(who, result):
        """A socket that was passed on stays in the namespace that it is from, and its name says so."""
        of = {netlab.V4["a"]: "A", netlab.V6["a"]: "A", netlab.V4["b"]: "B", netlab.V6["b"]: "B"}
        return of.get(result.rsplit(":", 1)[0].strip("[]").removeprefix("::ffff:"), who)

    def settle(self, command):
        name = command.split(None, 1)[0]
        if name not in SILENT and (name != "setopt" or "CORK" in command):
            time.sleep(self.settle_s)
