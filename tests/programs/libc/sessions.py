# sessions.py - libc puts other files on 0, 1 and 2 of a process that had a connection there: sessions.py PORT
# SPDX-License-Identifier: Apache-2.0
#
# A client says which: its connection then becomes the standard files of a process that calls daemon() or forkpty(). What that
# process reads and writes there goes to /dev/null or to the terminal, and the connection ends with its last number.

import ctypes
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)


def over_standard(conn):
    for number in (0, 1, 2):
        os.dup2(conn.fileno(), number)
    conn.close()


def daemon(conn, say):
    if os.fork() == 0:
        over_standard(conn)
        if libc.daemon(1, 0) != 0:
            os._exit(1)
        os.write(say, b"read %r, wrote %d" % (os.read(0, 10), os.write(1, b"nowhere")))
        os._exit(0)
    os.wait()


def forkpty(conn, say):
    if os.fork() == 0:
        over_standard(conn)
        master = ctypes.c_int()
        if libc.forkpty(ctypes.byref(master), None, None, None) == 0:
            os.write(1, b"for the terminal")
            os._exit(0)
        os.write(say, os.read(master.value, 100))
        os._exit(0)
    os.wait()


with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    for _ in range(2):
        accepted, _ = listener.accept()
        hears, says = os.pipe()
        what = accepted.recv(100).decode()
        {"daemon": daemon, "forkpty": forkpty}[what](accepted, says)
        os.close(says)
        accepted.sendall(what.encode() + b": " + os.read(hears, 100))
        accepted.close()
        os.close(hears)
