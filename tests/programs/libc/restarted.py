#!/usr/bin/python3
# restarted.py - a server whose connection is its standard output, and that listens at the same port again while it is half open.
# SPDX-License-Identifier: Apache-2.0
#
#   restarted.py serve PORT ROUNDS      nuttcp -S does this
#   restarted.py connect PORT ROUNDS

import os
import signal
import socket
import sys
import time

PATIENCE_S = 30


def serve(port, rounds):
    kept = os.dup(1)
    for number in range(rounds):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(1)
            line, _ = listener.accept()
        os.dup2(line.fileno(), 1)
        os.write(1, b"round %d\n" % number)
        os.dup2(kept, 1)
        line.close()


def connect(port, rounds):
    kept, end = [], time.monotonic() + PATIENCE_S
    while len(kept) < rounds:
        try:
            line = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                sys.exit("nobody listens")
            time.sleep(0.02)
            continue
        kept.append(line)
        while data := line.recv(100):
            os.write(1, data)


if __name__ == "__main__":
    signal.alarm(2 * PATIENCE_S)
    {"serve": serve, "connect": connect}[sys.argv[1]](*map(int, sys.argv[2:]))
