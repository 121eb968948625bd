# family.py - a program under postern that begins others: they are of its family, so that one stack, which has the VI, is all theirs.
# SPDX-License-Identifier: Apache-2.0
#
# usage: family.py FD HOST; it holds a listener on HOST, without which the stack would have no wire. Over FD, a Unix socket, come
# messages: a JSON list of words to run, with descriptors: 0, 1, 2, and one for each of the names after them, of which the program
# is told as `fd:NAME=NUMBER` (conform.cc). The answer is the pid.

import json
import os
import select
import signal
import socket
import sys

FDS_MAX = 8
REAP_SEC = 0.2


def begin(argv, names, fds):
    """The child's pid. Not by fork(): to copy a Python, and what it has mapped, takes more than all that an actor does."""
    words = [*argv, *(f"fd:{name}={fd}" for name, fd in zip(names, fds[3:]))]
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds[:3])]
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in fds[:3]]
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds[3:]]  # stays open: no close-on-exec
    return os.posix_spawn(argv[0], words, os.environ, file_actions=actions, setsid=True, setsigdef=[signal.SIGPIPE])  # Python ignores it


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def main():
    line = socket.socket(fileno=int(sys.argv[1]))
    listener = socket.socket()
    listener.bind((sys.argv[2], 0))
    listener.listen(1)
    line.send(b"ready")
    while True:
        if select.select([line], [], [], REAP_SEC)[0]:
            message, fds, _, _ = socket.recv_fds(line, 65536, FDS_MAX)
            if not message:
                return
            argv, names = json.loads(message)
            pid = begin(argv, names, fds)
            for fd in fds:
                os.close(fd)
            line.send(str(pid).encode())
        reap()


if __name__ == "__main__":
    main()
