# t_sizes.py - a stack whose sizes were chosen (-o stack.sockets=64 and its like): it works, and is full where it was told to be.
# SPDX-License-Identifier: Apache-2.0
#
# A limit of ours is never an error of the program's: what does not fit is the kernel's, and works.

import os
import subprocess
import time

import posternview
from harness import PYTHON, check, test

SOCKETS = 64
CONNECTIONS = 100

SERVER = """
import selectors, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=200)
looked = selectors.DefaultSelector()
looked.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in looked.select():
        if key.fileobj is listener:
            looked.register(listener.accept()[0], selectors.EVENT_READ)
            continue
        data = key.fileobj.recv(4096)
        if data:
            key.fileobj.sendall(data)
        else:
            looked.unregister(key.fileobj)
            key.fileobj.close()
"""

# Three times: all connections are open at once, in event sets of which the stack has too few; then a part of them; then all again.
CLIENT = """
import select, signal, socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

def connect():
    s = socket.create_connection(("127.0.0.1", port))
    s.settimeout(30)
    return s

def echo(sockets):
    sets = [select.epoll() for _ in range(20)]
    for i, s in enumerate(sockets):
        sets[0].register(s.fileno(), select.EPOLLIN)
        if i % len(sets) != 0:
            sets[i % len(sets)].register(s.fileno(), select.EPOLLIN)
    for i, s in enumerate(sockets):
        s.sendall(b"connection %d" % i)
    told = set()
    while len(told) < len(sockets):
        events = sets[0].poll(30)
        assert events, "no event of %d sockets" % (len(sockets) - len(told))
        told.update(fd for fd, _ in events)
    for i, s in enumerate(sockets):
        assert sets[i % len(sets)].poll(30), i
        want = b"connection %d" % i
        got = b""
        while len(got) < len(want):
            got += s.recv(len(want) - len(got))
        assert got == want, (got, want)
    for one in sets:
        one.close()

def hold():
    print("holding", flush=True)
    signal.sigwait({signal.SIGUSR1})

sockets = [connect() for _ in range(count)]
echo(sockets)
hold()
for s in sockets[:count // 2]:
    s.close()
sockets = sockets[count // 2:]
echo(sockets)
sockets += [connect() for _ in range(count // 2)]
echo(sockets)
hold()
print("done", flush=True)
"""


def small(ctx, what):
    """The stack of that program, as posternctl shows it."""
    stacks = posternview.status(ctx.config.posternctl)["stacks"]
    return next((s for s in stacks if any(p["pid"] == what.pid for p in s["processes"])), None)


def wait_holding(proc, times):
    end = time.monotonic() + 60
    while proc.output().count("holding\n") < times:
        check(proc.alive() and time.monotonic() < end, lambda: f"does not get to its stop {times}: {proc.output()[-800:]}")
        time.sleep(0.02)


def echoes(ctx, look, **sizes):
    """The client holds its connections twice; `look` then gets its stack."""
    port = ctx.port()
    server = ctx.start("server", [PYTHON, "-c", SERVER, port], name="serve")
    ctx.wait_listening(port, server)
    env = {f"POSTERN_STACK_{name.upper()}": str(n) for name, n in sizes.items()}
    client = ctx.start("client", [PYTHON, "-c", CLIENT, port, CONNECTIONS], name="client", env=env)
    for turn in (1, 2):
        wait_holding(client, turn)
        if ctx.mode == "both":
            stack = small(ctx, client)
            check(stack is not None, "posternctl does not show the client's stack")
            look(stack, turn)
            check(posternview.sockets(ctx.config.posternctl), "no sockets are listed")
        client.go_on()
    client.wait(30)
    check("done" in client.output(), client.output())
    server.stop()


@test()
def stack_of_64_sockets(ctx):
    def look(stack, turn):
        # The second time half of the first ones have been closed, and new ones got their places.
        check(stack["endpoints"] == SOCKETS, f"{stack['endpoints']} endpoints of {SOCKETS}, at stop {turn}")
        full = stack["fallbacks"].get("stack-full", 0)
        check(turn == 2 or full == CONNECTIONS - SOCKETS, f"{full} of {CONNECTIONS} sockets found a stack of {SOCKETS} full")

    echoes(ctx, look, sockets=SOCKETS)


@test()
def stack_of_few_of_all(ctx):
    def look(stack, turn):
        check("stack-full" not in stack["fallbacks"], f"at stop {turn}: {stack['fallbacks']}")

    # A connection that leaves the stack needs a second endpoint while it does.
    echoes(ctx, look, sockets=4 * CONNECTIONS, sets=8, registrations=16, groups=4, processes=8)


@test(modes=("both",))
def sizes_out_of_range(ctx):
    wrapper = os.path.join(ctx.config.build, "postern")
    for option, says in (("stack.sockets=15", "16..1048576 sockets"), ("stack.sockets=1048577", "16..1048576 sockets"),
                         ("stack.processes=511", "8..510 processes"), ("stack.groups=3", "4..1024 link groups"),
                         ("stack.sets=2049", "8..2048 sets"), ("stack.registrations=0", "16..4194304 registrations"),
                         ("stack.sockets=many", "16..1048576 sockets")):
        done = subprocess.run([wrapper, "-o", option, "true"], capture_output=True, text=True, timeout=30)
        check(done.returncode != 0, f"{option} is taken")
        check(says in done.stderr and option.split("=")[0] in done.stderr, f"{option}: {done.stderr!r}")
