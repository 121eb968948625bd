#!/usr/bin/python3
# late_member.py - late_member.py serve PORT: two processes that share a listener, and each does what a line of stdin tells it.
# SPDX-License-Identifier: Apache-2.0
#
# late_member.py connect PORT: says what it got for what it sent.
# late_member.py wait PORT: three threads that each wait for an answer in a way of their own, and say how that has ended.

import os
import select
import signal
import socket
import sys
import threading

HOST = "127.0.0.1"


class Member:
    """One of the two, `a` or `b`."""

    def __init__(self, name, listener):
        self.name, self.listener, self.conn, self.kept = name, listener, None, []

    def ready(self):
        pass

    def poll(self):
        poller = select.poll()
        poller.register(self.listener, select.POLLIN)
        return len(poller.poll(5000))

    def watch(self):
        """A thread waits for clients that don't come, as that of a server which has nothing to do."""
        other = socket.create_server((HOST, 0))
        threading.Thread(target=other.accept, daemon=True).start()

    def accept(self):
        self.kept.append(self.conn)
        self.conn, _ = self.listener.accept()

    def echo(self):
        data = self.conn.recv(100)
        self.conn.sendall(data)
        return data.decode()

    def wait(self):
        """Asks an event set first."""
        with select.epoll() as events:
            events.register(self.conn, select.EPOLLIN)
            return [event & select.EPOLLIN for _, event in events.poll(20)]

    def end(self):
        self.conn.close()
        self.conn = None

    def act(self, what):
        try:
            said = getattr(self, what)()
        except OSError as error:
            said = repr(error)
        print(self.name, what, said, flush=True)

    def die(self):
        print(self.name, "die None", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def serve(port):
    listener = socket.create_server((HOST, port), reuse_port=False)
    orders, to_b = os.pipe()
    if os.fork() == 0:
        os.close(to_b)
        b = Member("b", listener)
        for line in os.fdopen(orders):
            b.act(line.strip())
        os._exit(0)
    a = Member("a", listener)
    for line in sys.stdin:  # in which no thread waits at a socket
        who, what = line.split()
        if who == "a":
            a.act(what)
        else:
            os.write(to_b, f"{what}\n".encode())


def connect(port):
    with socket.create_connection((HOST, port), timeout=20) as conn:
        print("connected", flush=True)
        try:
            conn.sendall(b"hello")
            print("got", conn.recv(100).decode(), flush=True)
            print("end", conn.recv(100), flush=True)
        except OSError as error:
            print("error", repr(error), flush=True)


def by_recv(_conn):
    pass


def by_poll(conn):
    never = socket.socketpair()
    poller = select.poll()
    for sock in (conn, never[0]):
        poller.register(sock, select.POLLIN)
    poller.poll()


def by_epoll(conn):
    with select.epoll() as events:
        events.register(conn, select.EPOLLIN)
        events.poll()


def say(line):
    os.write(1, f"{line}\n".encode())  # at once, whatever other threads say


def wait(port):
    def one(way):
        with socket.create_connection((HOST, port)) as conn:
            conn.sendall(b"hello")
            say("connected")
            way(conn)
            try:
                say(f"{way.__name__} {conn.recv(100)}")
            except OSError as error:
                say(f"{way.__name__} {type(error).__name__}")
    for way in (by_recv, by_poll, by_epoll):
        threading.Thread(target=one, args=(way,)).start()


if __name__ == "__main__":
    {"serve": serve, "connect": connect, "wait": wait}[sys.argv[1]](int(sys.argv[2]))
