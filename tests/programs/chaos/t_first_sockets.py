# t_first_sockets.py - the first sockets of a program are accelerated, though its posternd is busy, or has just left.
# SPDX-License-Identifier: Apache-2.0

import glob
import os
import signal
import subprocess
import time

import posternview
from harness import PYTHON, check, is_gone, test
from kill_storm import nothing_left, own_runtime

THREADS = 4

# Answers when stdin ends.
SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    conns = [listener.accept()[0] for _ in range(int(sys.argv[2]))]
    sys.stdin.read()
    for conn in conns: conn.sendall(conn.recv(1))
"""

# One thread makes its socket, the others do so after a line of stdin.
CLIENT = """
import socket, sys, threading
def echo():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as conn:
        conn.sendall(b"x")
        print(conn.recv(1).decode() + "\\n", end="", flush=True)  # one write: print() makes another of its end
threads = [threading.Thread(target=echo) for _ in range(int(sys.argv[2]))]
threads[0].start()
sys.stdin.readline()
for thread in threads[1:]: thread.start()
for thread in threads: thread.join()
"""

# After a line of stdin its own server and client; they end when stdin does.
BOTH = """
import socket, sys
print("ready", flush=True)
sys.stdin.readline()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
conn = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
other, _ = listener.accept()
conn.sendall(b"x")
print("connected", flush=True)
sys.stdin.read()
"""


def until(what, ask):
    end = time.monotonic() + 20
    while not ask():
        check(time.monotonic() < end, what)
        time.sleep(0.005)


def read(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def threads_in(pid, call):
    return sum(read(path).startswith(f"{call} ") for path in glob.glob(f"/proc/{pid}/task/*/syscall"))


def all_sleep(pid, threads):
    """Again and again: a thread that sleeps for a moment goes on."""
    def states():
        return [read(path).rpartition(")")[2].split()[:1] for path in glob.glob(f"/proc/{pid}/task/*/stat")]
    for _ in range(10):
        if states() != [["S"]] * threads:
            return False
        time.sleep(0.005)
    return True


def go_on(proc):
    proc.popen.stdin.write(b"\n")
    proc.popen.stdin.flush()


@test(modes=("both",))
def first_sockets_of_threads(ctx):
    """A thread that comes while another one is on its way to posternd waits for what comes of that."""
    shm, runtime, port = posternview.shm_files(), own_runtime(ctx), ctx.port()
    server = ctx.start("server", [PYTHON, "-c", SERVER, port, THREADS], name="server", stdin=subprocess.PIPE)
    ctx.wait_listening(port, server)
    daemon = posternview.daemon_pid()
    os.kill(daemon, signal.SIGSTOP)
    try:
        client = ctx.start("client", [PYTHON, "-c", CLIENT, port, THREADS], name="client", stdin=subprocess.PIPE)
        until("no thread asks posternd", lambda: threads_in(client.pid, 47) == 1)  # recvmsg()
        go_on(client)
        until("the threads do not wait", lambda: all_sleep(client.pid, 1 + THREADS))
    finally:
        os.kill(daemon, signal.SIGCONT)
    ctx.expect_path(port)
    server.popen.stdin.close()
    client.wait()
    check(client.output().split() == ["x"] * THREADS, client.output())
    server.wait()
    nothing_left(ctx, runtime, shm)


@test(modes=("both",))
def first_sockets_start_posternd(ctx):
    """The posternd that the wrapper has found was about to leave."""
    shm, runtime, port = posternview.shm_files(), own_runtime(ctx), ctx.port()
    program = ctx.start("server", [PYTHON, "-c", BOTH, port], name="both", stdin=subprocess.PIPE)
    until("it does not begin", lambda: "ready" in program.output())
    daemon = posternview.daemon_pid()
    os.kill(daemon, signal.SIGTERM)
    until("posternd does not end on SIGTERM", lambda: is_gone(daemon))
    go_on(program)
    until("it does not connect", lambda: "connected" in program.output())
    ctx.expect_path(port)
    program.popen.stdin.close()
    program.wait()
    nothing_left(ctx, runtime, shm)
