# roomy.py - a server with little address space: roomy.py serve PORT LEFT; its clients: roomy.py connect PORT; roomy.py finish PORT
# SPDX-License-Identifier: Apache-2.0
#
# Workers that were forked before the first client accept. With LEFT (bytes) there is one, which takes so much memory that this is left
# of its limit; at the end it takes most of that, too. Clients hold their connections until another one says "finish".

import os
import resource
import select
import socket
import sys

ROUNDS, KEPT, WORKERS = 20, 120 << 20, 3


def left():
    with open("/proc/self/statm", encoding="ascii") as file:
        return resource.getrlimit(resource.RLIMIT_AS)[0] - int(file.read().split()[0]) * resource.getpagesize()


def work(listener, least):
    """Serves until it is told to finish; what it has taken is the program's."""
    conns, taken = [], []
    while True:
        for sock in select.select([listener, *conns], [], [])[0]:
            if sock is listener:
                try:
                    conns.append(listener.accept()[0])
                except BlockingIOError:
                    continue
                if least and not taken:
                    taken.append(bytearray(left() - least))
                continue
            data = sock.recv(1 << 16)
            if data == b"finish":
                return taken
            if data:
                sock.sendall(data)
            else:
                conns.remove(sock)
                sock.close()


def serve(port, least=0):
    with socket.create_server(("127.0.0.1", port), backlog=200) as listener:
        listener.setblocking(False)
        pids = []
        while not least and len(pids) < WORKERS and 0 not in pids:
            pids.append(os.fork())
        if pids and 0 not in pids:
            for pid in pids:
                os.waitpid(pid, 0)
        else:
            taken = work(listener, least)
            if pids:
                os._exit(0)
            taken.append(bytearray(KEPT))  # MemoryError, where something else has it
    print("served")


def connect(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as conn:
        for size in [100] * ROUNDS + [300_000] * 3:  # small ones, and such that the rings grow
            text, back = os.urandom(size), b""
            conn.sendall(text)
            while len(back) < size:
                back += conn.recv(1 << 16)
            assert back == text
        print("each byte right", flush=True)
        assert conn.recv(1) == b""


def finish(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as conn:
        conn.sendall(b"finish")
        conn.recv(1)


if __name__ == "__main__":
    {"serve": serve, "connect": connect, "finish": finish}[sys.argv[1]](*map(int, sys.argv[2:]))
