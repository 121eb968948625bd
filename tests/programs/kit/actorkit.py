# actorkit.py - processes that connect to a broker, and the test that speaks on their lines.
# SPDX-License-Identifier: Apache-2.0
#
#     test -- tells --> actor (a process: user, network namespace) -- connects --> broker
#       ^------ its line, its sockets ------'
#
# The kernel says of a line which process has connected it: that is the actor, for as long as it lives. What is said is the test's.

import array
import collections
import fcntl
import os
import signal
import socket
import struct
import time

from netlab import CLONE_NEWNET, Unavailable, call

MSG = struct.Struct("=IIIiIIIIQQ24sQQQQQQ")
FIELDS = ("version", "kind", "seq", "status", "a", "b", "c", "d", "uuid_hi", "uuid_lo", "addr", "peer_hi", "peer_lo", "id_hi", "id_lo", "cookie", "zero")
Msg = collections.namedtuple("Msg", FIELDS + ("fd",), defaults=(None,))
(JOIN, OFFER, UNOFFER, LISTENER, GONE, LINK, HAVE_LINK, LINK_END, ALIVE, NEGOTIATE, HELD, TAKE_HELD, ADDRESSES, HOST, BELL, REGISTER, ATTACH, RELEASE,
 LEARN, VI, FILTER) = range(14, 35)
ROUTES, RESOLVE, SEEK = 36, 37, 40
LEARNT = 8  # of a listener's d
CLONE_NEWUSER = 0x10000000
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, IFF_UP = 0x8913, 0x8914, 0x8916, 1
PATIENCE_SEC = 20


def name(ip, port):
    """A pstn_addr."""
    return bytes(10) + b"\xff\xff" + socket.inet_aton(ip) + struct.pack("=HHI", port, 0, 0)


class CutOff(Exception):
    """The line has ended."""


class Line:
    """One end of a line to a broker or a daemon. News that come while an answer is awaited are kept."""

    def __init__(self, sock):
        self.sock, self.seq, self.news = sock, 0, []
        sock.settimeout(PATIENCE_SEC)

    def send(self, kind, fd=None, seq=0, status=0, **fields):
        f = {"a": 0, "b": 0, "c": 0, "d": 0, "uuid": (0, 0), "addr": b"", "peer": (0, 0), "id": (0, 0), "cookie": 0, **fields}
        data = MSG.pack(4, kind, seq, status, f["a"], f["b"], f["c"], f["d"], *f["uuid"], f["addr"], *f["peer"], *f["id"], f["cookie"], 0)
        with_fd = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        try:
            self.sock.sendmsg([data], with_fd)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise CutOff from error

    def receive(self, wait=True):
        self.sock.settimeout(PATIENCE_SEC if wait else 0)
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, MSG.size, 1)
        except ConnectionResetError as error:
            raise CutOff from error
        finally:
            self.sock.settimeout(PATIENCE_SEC)
        if len(data) != MSG.size:
            raise CutOff
        return Msg(*MSG.unpack(data), fds[0] if fds else None)

    def ask(self, kind, fd=None, **fields):
        """The answer. What the other side asks meanwhile is answered with 0."""
        self.seq += 1
        seq = self.seq
        self.send(kind, fd, seq, **fields)
        while (message := self.receive()).seq != seq:
            self.take(message)
        return message

    def take(self, message):
        self.news.append(message)
        if message.seq and (message.seq ^ self.seq) >> 31:  # a question, in the other side's numbers
            self.send(message.kind, seq=message.seq)

    def status(self, kind, fd=None, **fields):
        return self.ask(kind, fd, **fields).status

    def barrier(self):
        """What was sent to us before the broker took this question is in `news`."""
        self.status(99)

    def has_ended(self):
        """Within some time, whatever comes before."""
        until = time.monotonic() + PATIENCE_SEC
        try:
            while time.monotonic() < until:
                self.receive()
        except CutOff:
            return True
        except TimeoutError:
            pass
        return False

    def close(self):
        for message in self.news:
            if message.fd is not None:
                os.close(message.fd)
        self.news.clear()
        self.sock.close()


class Actor:
    """A process of `user`; in a network namespace of its own, the host's root has made it (`netns`), or it has itself, together with a
    user namespace (`userns`). `pid`: which one it is to have. Its answers are descriptors."""

    def __init__(self, user=0, netns=False, userns=False, pid=None):
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if pid is not None:
            with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
                file.write(str(pid - 1))
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.channel.close()
                os.setpgid(0, 0)
                _act(theirs, user, netns, userns)
            finally:
                os._exit(1)
        theirs.close()
        self.channel.settimeout(PATIENCE_SEC)
        said = self.channel.recv(200)
        if said != b"ready":
            self.end()
            raise Unavailable(f"actor: {said.decode()}")

    def _ask(self, *words):
        self.channel.send(" ".join(map(str, words)).encode())
        said, fds, _, _ = socket.recv_fds(self.channel, 200, 1)
        if said != b"ok":
            raise AssertionError(f"actor: {words}: {said.decode()}")
        return fds[0] if fds else None

    def line(self, path):
        """A Line that it has connected."""
        return Line(socket.socket(fileno=self._ask("line", path)))

    def joined(self, path):
        line = self.line(path)
        assert line.status(JOIN) == 0
        return line

    def listener(self, ip="127.0.0.1", port=0):
        """A listening TCP socket, which is the caller's alone."""
        return socket.socket(fileno=self._ask("listen", ip, port))

    def route_socket(self):
        return self._ask("route")

    def add_address(self, ip):
        """To its loopback interface."""
        self._ask("address", ip)

    def end(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None
        self.channel.close()


def _act(channel, user, netns, userns):
    try:
        if netns:
            call("unshare", CLONE_NEWNET)
        if user:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        if userns:
            call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
    except (OSError, Unavailable) as error:
        channel.send(str(error).encode())
        return
    channel.send(b"ready")
    while words := channel.recv(200).decode().split():
        try:
            fd = _DO[words[0]](*words[1:])
        except OSError as error:
            channel.send(str(error).encode())
            continue
        socket.send_fds(channel, [b"ok"], [fd] if fd is not None else [])
        if fd is not None:
            os.close(fd)


def _line(path):
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(path)
    return line.detach()


def _listen(ip, port):
    tcp = socket.socket()
    tcp.bind((ip, int(port)))
    tcp.listen(64)
    return tcp.detach()


def _route():
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE).detach()


def _address(ip):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        place = struct.pack("16sHH4s8s", b"lo:1", socket.AF_INET, 0, socket.inet_aton(ip), bytes(8))
        fcntl.ioctl(s, SIOCSIFADDR, place)
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14s", b"lo", IFF_UP, bytes(14)))


_DO = {"line": _line, "listen": _listen, "route": _route, "address": _address}
