# lowered.py - programs that confine themselves while they run: lowered.py serve|connect PORT as|as256|landlock
# SPDX-License-Identifier: Apache-2.0
#
# `as`, `as256`: their address space, as vsftpd does in the process of a session, and dovecot before it runs one. What is left of the
# limit is the program's: it takes most of it. `landlock`: they reach no abstract names outside. Connections go on, in the process that has
# confined itself, in a child of fork, and in the image of one.

import ctypes
import os
import resource
import select
import socket
import subprocess
import sys
import time

ROUNDS = 20
LIMITS = {"as": (110 << 20, 30 << 20), "as256": (256 << 20, 120 << 20)}  # and what the program takes of it
WAYS = ("itself", "child", "image")


def echo(conn):
    while data := conn.recv(4096):
        time.sleep(0.002)  # the client sleeps, too
        conn.sendall(data)


def landlock():
    """In a domain of its own (LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET), by the numbers of each machine's system calls."""
    call, rules = ctypes.CDLL(None, use_errno=True).syscall, (ctypes.c_uint64 * 3)(0, 0, 1)
    ruleset = call(444, ctypes.byref(rules), ctypes.c_long(24), 0)
    assert ruleset >= 0 and call(157, 38, 1, 0, 0, 0) == 0 and call(446, ruleset, 0) == 0, os.strerror(ctypes.get_errno())
    os.close(ruleset)
    return True


def limit():
    if sys.argv[3] == "landlock":
        return landlock()
    most, taken = LIMITS[sys.argv[3]]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return bytearray(taken)  # MemoryError, where something else has it


def serve_one(way, conn):
    conn.sendall(conn.recv(100))  # before, too
    if way == "child":
        pid = os.fork()
        if pid == 0:
            taken = limit()
            echo(conn)
            os._exit(0 if taken else 1)
        conn.close()
        assert os.waitpid(pid, 0)[1] == 0
    elif way == "image":
        subprocess.run(["cat"], stdin=conn, stdout=conn, preexec_fn=limit, check=True)
    else:
        taken = limit()
        echo(conn)
        del taken


def serve(port):
    with socket.create_server(("127.0.0.1", port), reuse_port=False) as listener:
        for way in reversed(WAYS):  # the last one limits the server
            conn, _ = listener.accept()
            with conn:
                serve_one(way, conn)
        conn, _ = listener.accept()
        with conn:
            echo(conn)
    print("served")


def connect(port):
    for way in (*WAYS, "after"):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as conn:
            watch = select.epoll()
            watch.register(conn, select.EPOLLIN)
            for number in range(ROUNDS):
                if number % 5 == 0:
                    time.sleep(0.02)  # the server sleeps
                text = f"{way}.{number}".encode()
                conn.sendall(text)
                back = b""
                while len(back) < len(text):
                    assert watch.poll(20), "no answer"
                    back += conn.recv(100)
                assert back == text, (back, text)
            conn.shutdown(socket.SHUT_WR)
            assert conn.recv(1) == b""
    print("each byte right")


if __name__ == "__main__":
    {"serve": serve, "connect": connect}[sys.argv[1]](int(sys.argv[2]))
