# link_quota_test.py - one user can't have a stack's table of link groups for itself: who makes as many as it can leaves room for others.
# SPDX-License-Identifier: Apache-2.0
#
# usage: link_quota_test.py BUILD_DIR [-v] [TEST...]
# Root runs it: the server's user is root, the client's another one, and the one that wants all a third. Exit 77: not root.

import array
import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import resource
import signal
import socket
import sys
import tempfile
import unittest

import broker_test
from broker_test import CLIENT, JOIN, LINK, MSG, OFFER, Broker, Program

GREEDY = 60003
TRIED = 300  # more than a table has
F_ADD_SEALS, F_SEALS = 1033, 7  # SEAL | SHRINK | GROW
F_SEAL_WRITE, F_SEAL_FUTURE_WRITE = 8, 16
TABLES_MOST, USED_MOST = 5 << 20, 16 << 20  # of a link group: what is mapped before a connection, and with one
NUMBERS = itertools.count(1)


def ask(line, kind, fd, **fields):
    """The status of the answer; what is pushed meanwhile is left aside."""
    f = {"a": 0, "b": 0, "c": 0, "uuid": (0, 0), "peer": (0, 0), "id": (0, 0), **fields}
    seq = next(NUMBERS)
    data = MSG.pack(4, kind, seq, 0, f["a"], f["b"], f["c"], 0, *f["uuid"], b"", *f["peer"], *f["id"], 0, 0)
    line.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else [])
    while True:
        answer = MSG.unpack(line.recv(MSG.size))
        if answer[2] == seq:
            return answer[3]


def link_group(header, size, number, client, server, seals=F_SEALS):
    """Memory as posternd makes it: its own number, and whose it is."""
    fd = os.memfd_create("postern-lgr", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, header[:16] + b"".join(word.to_bytes(8, "little") for word in (*number, *client, *server)), 0)
    fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def to_read(fd):
    """The same memory."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    finally:
        os.close(fd)


def joins(line):
    """The statuses of what it takes to be a member that may be linked."""
    statuses = [ask(line, JOIN, None)]
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        statuses.append(ask(line, OFFER, tcp.fileno(), uuid=(9, 1)))
    return statuses


def offer_no_writers(line, server, header, size):
    """What the server's daemon says to memory that its programs could not map, or not for long: to be read, and with other seals."""
    said = {"joins": joins(line)}
    for i, (what, seals, change) in enumerate((("to read", F_SEALS, to_read), ("no writes", F_SEALS | F_SEAL_WRITE, int),
                                               ("no more writes", F_SEALS | F_SEAL_FUTURE_WRITE, int), ("open to seals", F_SEALS & ~1, int))):
        client, number = (2000 + i, 9), (2000 + i, 10)
        fd = change(link_group(header, size, number, client, server, seals))
        said[what] = ask(line, LINK, fd, uuid=server, peer=client, id=number)
        os.close(fd)
    return said


def take_all(line, server, header, size):
    """How often the server's daemon has agreed, and what it says at last."""
    if any(statuses := joins(line)):
        return {"not admitted": statuses}
    agreed, last = 0, 0
    for i in range(TRIED):
        client, number = (1000 + i, 9), (1000 + i, 10)
        fd = link_group(header, size, number, client, server)
        last = ask(line, LINK, fd, uuid=server, peer=client, id=number)
        os.close(fd)
        agreed += last == 0
    return {"agreed": agreed, "last": last}


class LinkQuota(Broker):
    def header_of_a_link(self):
        """Of the link group that two honest programs have, and its size."""
        pid = self.processes["a"].pid
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if "memfd:postern-lgr" in os.readlink(path):
                    with open(path, "rb") as file:
                        return file.read(16), os.stat(path).st_size
        raise AssertionError("no link group")

    def mapped(self, program):
        """Address space of each link group in the program, by its memory's number."""
        segments = {}
        with open(f"/proc/{program.process.pid}/maps") as file:
            for line in file:
                if "memfd:postern-lgr" not in line:
                    continue
                fields = line.split()
                begin, end = (int(part, 16) for part in fields[0].split("-"))
                segments[fields[4]] = segments.get(fields[4], 0) + end - begin
        return segments

    def by_another_user(self, what, server):
        """In a process of a third user, which lives on."""
        header, size = self.header_of_a_link()
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            result = {}
            try:
                os.setgroups([])
                os.setresgid(GREEDY, GREEDY, GREEDY)
                os.setresuid(GREEDY, GREEDY, GREEDY)
                resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
                line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # as long as this process lives
                line.settimeout(20)
                line.connect(f"{self.system}/broker.sock")
                result = what(line, server, header, size)
            except BaseException as error:  # told to the parent
                result = {"error": repr(error)}
            os.write(write_fd, json.dumps(result).encode())
            signal.pause()
        os.close(write_fd)
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        with os.fdopen(read_fd, "rb", buffering=0) as pipe:
            return json.loads(pipe.read(1000))

    def stack(self):
        """The server's."""
        words = re.findall(r"stack ([0-9a-f-]{32,36})", self.log("a").split("listens on")[0])[-1].replace("-", "")
        return int(words[:16], 16), int(words[16:], 16)

    def test_memory_that_can_not_be_written(self):
        """Each look of the server's for clients would have it ask for that link group once more."""
        server, _, first = self.connected()
        said = self.by_another_user(offer_no_writers, self.stack())
        self.assertEqual(said.pop("joins", said), [0, 0])
        self.assertEqual(set(said.values()), {errno.EINVAL}, said)
        self.echo(server, first)

    def test_one_user_leaves_room(self):
        server, port, first = self.connected()
        got = self.by_another_user(take_all, self.stack())
        self.assertEqual(got.get("last"), errno.ENOSPC, got)
        self.assertGreater(got["agreed"], 0)
        self.assertLess(got["agreed"], TRIED // 2)
        self.echo(server, first)
        second = Program(self, "b", CLIENT, "--strict")
        self.assertEqual(second.ask(f"connect {port}"), "ok")
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, second, "there is room")
        # What has no connection has no rings here: two link groups have some, and of the others are the tables alone.
        segments = self.mapped(server)
        self.assertGreaterEqual(len(segments), got["agreed"] + 2, "the server does not know of them yet")
        self.assertEqual(len([bytes_ for bytes_ in segments.values() if bytes_ > TABLES_MOST]), 2, segments)
        self.assertLessEqual(max(segments.values()), USED_MOST)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: three users are needed, so root")
        sys.exit(77)
    signal.alarm(220)
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        broker_test.BUILD = broker_test.copied(os.path.abspath(sys.argv.pop(1)), directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
