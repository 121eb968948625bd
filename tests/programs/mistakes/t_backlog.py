# t_backlog.py - how many clients wait to be accepted, of whatever programs, and after deaths of each of them.
# SPDX-License-Identifier: Apache-2.0

import os
import random
import select
import signal
import socket
import sys
import time

import posternview
from harness import check, test
from kill_storm import own_runtime

CONNECT = """
import select, signal, socket, sys, time
PORT, COUNT = int(sys.argv[1]), int(sys.argv[2])
poll, socks = select.poll(), [socket.socket() for _ in range(COUNT)]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
for sock in socks:
    sock.setblocking(False)
    sock.connect_ex(("127.0.0.1", PORT))
    poll.register(sock, select.POLLOUT)
"""
# Says how many of its connections are there, and goes on when it is told to.
CLIENT = CONNECT + """
print(len(poll.poll(300)), "there\\nholding", flush=True)
signal.sigwait({signal.SIGUSR1})
end = time.monotonic() + 40
while len(poll.poll(1000)) < COUNT and time.monotonic() < end:
    time.sleep(0.01)
print(len(poll.poll(0)), "in the end", sum(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for sock in socks), flush=True)
"""
SERVER = """
import signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
listener = socket.socket()
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(8)
print("holding", flush=True)
signal.sigwait({signal.SIGUSR1})
kept = [listener.accept() for _ in range(int(sys.argv[2]))]
print("accepted", len(kept), "\\nholding", flush=True)
signal.sigwait({signal.SIGUSR1})
"""
PROGRAMS, EACH, BACKLOG = 4, 12, 8


@test(modes=("both",))
def backlog_of_programs(ctx):
    """A listener that does not accept lets as many clients in as its backlog says, of whatever programs; the others when it accepts."""
    port = ctx.port()
    server = ctx.start("server", [sys.executable, "-c", SERVER, port, PROGRAMS * EACH], name="server")
    ctx.wait_listening(port, server)
    clients = [ctx.start("client", [sys.executable, "-c", CLIENT, port, EACH], name=f"client{i}") for i in range(PROGRAMS)]
    for client in clients:
        client.wait_holding()
    there = [int(client.output().split()[0]) for client in clients]
    check(sum(there) == BACKLOG + 1, f"{there} clients were let in")
    for proc in [server, *clients]:
        proc.go_on()
    for client in clients:
        client.wait(50)
        check(f"{EACH} in the end 0" in client.output(), client.output())
    server.go_on()
    check(f"accepted {PROGRAMS * EACH} " in server.output(), server.output())
    server.wait(20)


# Children that connect, and are killed while they do.
KILLED_CLIENT = """
import os, random, select, signal, socket, sys, time
def connect():
    while True:
        poll, socks = select.poll(), [socket.socket() for _ in range(random.randrange(1, 13))]
        for sock in socks:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", int(sys.argv[1])))
            poll.register(sock, select.POLLOUT)
        poll.poll(random.randrange(20))
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    children = []
    for _ in range(3):
        children.append(os.fork())
        if children[-1] == 0:
            connect()
    time.sleep(random.uniform(0, 0.04))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
"""
# The same of children that accept. Then it takes all that wait; and then it looks who is there, and takes none.
KILLED_SERVER = """
import os, random, select, signal, socket, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
listener = socket.socket()
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(8)
print("listens", flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    child = os.fork()
    while child == 0:
        listener.accept()[0].close()
        time.sleep(random.uniform(0, 0.002))
    time.sleep(random.uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print("holding", flush=True)
signal.sigwait({signal.SIGUSR1})
listener.setblocking(False)
quiet = time.monotonic() + 1.5
while time.monotonic() < quiet:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        time.sleep(0.02)
print("holding", flush=True)
while signal.sigtimedwait({signal.SIGUSR1}, 0.05) is None:
    select.select([listener], [], [], 0)
"""
# Says how many of its connections are there once those are `least`, and a second and a half later.
PATIENT = CONNECT + """
end, now = time.monotonic() + 20, 0
while now < int(sys.argv[3]) and time.monotonic() < end:
    now = len(poll.poll(100))
    time.sleep(0.02)
time.sleep(1.5)
print("there", now, len(poll.poll(0)), flush=True)
"""


@test(modes=("both", "kernel"), watchdog_s=120)
def backlog_after_deaths(ctx):
    """Clients and servers are killed while they connect and accept: no place in the queue is lost, and none is won."""
    seconds, port = 8 if ctx.fast else 60, ctx.port()
    rand = random.Random(ctx.config.seed)
    server = ctx.start("server", [sys.executable, "-c", KILLED_SERVER, port, seconds], name="server")
    ctx.wait_listening(port, server)
    end = time.monotonic() + seconds
    steady = ctx.start("client", [sys.executable, "-c", KILLED_CLIENT, port, seconds], name="steady")
    while time.monotonic() < end:
        client = ctx.start("client", [sys.executable, "-c", KILLED_CLIENT, port, 60], name="killed")
        time.sleep(rand.uniform(0.2, 0.5))
        os.killpg(client.pid, signal.SIGKILL)
        client.wait(20, expect=None)
    steady.wait(30)
    for _ in range(2):
        server.go_on() if server.held == 0 else server.wait_holding()
    patient = ctx.start("client", [sys.executable, "-c", PATIENT, port, EACH, BACKLOG + 1], name="patient")
    patient.wait(40)
    check(f"there {BACKLOG + 1} {BACKLOG + 1}" in patient.output(), patient.output())
    server.go_on()
    server.wait(20)


# Goes by for as long as it is not told, as a server that has something else to do than to accept.
BUSY_SERVER = """
import select, signal, socket, sys
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
listener, epoll = socket.socket(), select.epoll()
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(8)
epoll.register(listener, select.EPOLLIN | select.EPOLLET)
print("holding", flush=True)
while not told:
    epoll.poll(0.05)
kept = [listener.accept() for _ in range(int(sys.argv[2]))]
print("accepted", len(kept), "\\nholding", flush=True)
while len(told) < 2:
    epoll.poll(0.05)
"""


@test(modes=("both",))
def backlog_after_restart(ctx):
    """posternd is killed while clients wait for accept(): those of the next one count with them."""
    own_runtime(ctx)
    port, first, late = ctx.port(), 5, 12
    server = ctx.start("server", [sys.executable, "-c", BUSY_SERVER, port, first + late], name="server")
    ctx.wait_listening(port, server)
    before = ctx.start("client", [sys.executable, "-c", CLIENT, port, first], name="before")
    before.wait_holding()
    check(before.output().startswith(f"{first} there"), before.output())
    old = posternview.daemon_pid()
    os.kill(old, signal.SIGKILL)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pid = posternview.daemon_pid()
        if pid not in (None, old) and posternview.status(ctx.config.posternctl)["listeners"]:
            break
        time.sleep(0.05)
    after = ctx.start("client", [sys.executable, "-c", CLIENT, port, late], name="after")
    after.wait_holding()
    check(after.output().startswith(f"{BACKLOG + 1 - first} there"), after.output())
    ways = [sock["path"] for sock in posternview.connections_of(posternview.sockets(ctx.config.posternctl), port)]
    check(ways and set(ways) <= set(posternview.ACCELERATED), f"not all connections are accelerated: {ways}")
    for proc in (server, before, after):
        proc.go_on()
    for client, count in ((before, first), (after, late)):
        client.wait(50)
        check(f"{count} in the end 0" in client.output(), client.output())
    server.go_on()
    check(f"accepted {first + late} " in server.output(), server.output())
    server.wait(20)
    os.kill(posternview.daemon_pid(), signal.SIGTERM)


# Waits for a place, and gives the descriptor away meanwhile: on its standard input by a Unix socket.
GIVER = """
import signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
sock, way = socket.socket(), socket.socket(socket.AF_UNIX)
way.connect(sys.argv[2])
sock.setblocking(False)
sock.connect_ex(("127.0.0.1", int(sys.argv[1])))
socket.send_fds(way, [b"x"], [sock.fileno()])
print("holding", flush=True)
signal.sigwait({signal.SIGUSR1})
"""


@test(modes=("both", "client"))
def backlog_waiter_leaves(ctx):
    """A socket that waits for a place goes to a program without Postern: it is connected when there is one."""
    port, path = ctx.port(), os.path.join(ctx.dir, "way")
    server = ctx.start("server", [sys.executable, "-c", SERVER, port, BACKLOG + 2], name="server")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [sys.executable, "-c", CLIENT, port, BACKLOG + 1], name="client")
    client.wait_holding()
    with socket.socket(socket.AF_UNIX) as way:
        way.bind(path)
        way.listen()
        giver = ctx.start("client", [sys.executable, "-c", GIVER, port, path], name="giver")
        with way.accept()[0] as line:
            given = socket.socket(fileno=socket.recv_fds(line, 1, 1)[1][0])
    with given:
        giver.wait_holding()
        server.go_on()
        poll = select.poll()
        poll.register(given, select.POLLOUT)
        events = poll.poll(20000)
        check(events == [(given.fileno(), select.POLLOUT)], f"it is not connected: {events}")
        check(given.getpeername()[1] == port, given.getpeername())
        server.wait_holding()
        check(f"accepted {BACKLOG + 2} " in server.output(), server.output())
    for proc in (server, client, giver):
        proc.go_on()
        proc.wait(50)
