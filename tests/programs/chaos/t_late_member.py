# t_late_member.py - a process of a family that has not heard of posternd's restart gets a connection which came after it. And who is
# told of a death that no posternd has seen.
# SPDX-License-Identifier: Apache-2.0
#
# The link group of that connection was made by the posternd that this process has no line to yet, or by one that is gone again.

import os
import signal
import subprocess
import threading
import time

import posternview
from harness import PYTHON, check, test
from kill_storm import nothing_left, own_runtime

TRIES = 40


def start_posternd(ctx, runtime):
    subprocess.run([os.path.join(ctx.config.build, "posternd"), "--runtime-dir", runtime], check=True)


class Members:
    """late_member.py as the server, and a client whose connection waits for accept(), by way of a link group that only `a` has."""

    def __init__(self, ctx, spawn=True):
        self.ctx, self.runtime, self.shm = ctx, own_runtime(ctx), posternview.shm_files()
        self.port, self.said = ctx.port(), 0
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "late_member.py")
        env = {} if spawn else {"POSTERN_DAEMON_SPAWN": "off"}
        if not spawn:
            self.start_posternd()
        self.server = ctx.start("server", [PYTHON, script, "serve", self.port], name="members", env=env, stdin=subprocess.PIPE)
        ctx.wait_listening(self.port, self.server)
        self.expect("b", "ready", "None")  # and has a line to posternd
        self.kill_posternd()
        if not spawn:
            self.start_posternd()
        for _ in range(TRIES):
            self.client = ctx.start("client", [PYTHON, script, "connect", self.port], name="client", env=env)
            check(self.tell("a", "poll") == "1", "no client comes")
            if self.is_ours():
                return
            self.tell("a", "accept")  # posternd is not back yet
            self.tell("a", "end")
            self.client.wait(20)
        check(False, "no connection is accelerated after posternd's restart")

    def kill_posternd(self):
        os.kill(posternview.daemon_pid(), signal.SIGKILL)

    def start_posternd(self):
        start_posternd(self.ctx, self.runtime)

    def is_ours(self):
        found = posternview.connections_of(posternview.sockets(self.ctx.config.posternctl), self.port)
        return any(one["path"] in posternview.ACCELERATED for one in found)

    def tell(self, who, what):
        """What it says of it."""
        before = self.server.output().count("\n")
        self.server.popen.stdin.write(f"{who} {what}\n".encode())
        self.server.popen.stdin.flush()
        end = time.monotonic() + 25
        while self.server.output().count("\n") == before:
            check(self.server.alive() and time.monotonic() < end, lambda: f"{who} {what}: no answer; {self.server.output()[-400:]}")
            time.sleep(0.002)
        said = self.server.output().splitlines()[-1].split(" ", 2)
        check(said[:2] == [who, what], lambda: f"{who} {what}: {said}")
        return said[2]

    def expect(self, who, what, said):
        got = self.tell(who, what)
        check(got == said, lambda: f"{who} {what}: {got}, not {said}; client: {self.client.output()}")

    def end(self):
        self.client.wait(25)
        self.server.popen.stdin.close()
        self.server.wait(20)
        nothing_left(self.ctx, self.runtime, self.shm)
        return self.client.output().splitlines()


def is_served(members, *steps):
    for who, what, said in (*steps, ("b", "echo", "hello"), ("b", "end", "None")):
        members.expect(who, what, said)
    said = members.end()
    check(said == ["connected", "got hello", "end b''"], lambda: f"the client: {said}")


@test(modes=("both",))
def late_member_accepts(ctx):
    is_served(Members(ctx), ("b", "accept", "None"))


@test(modes=("both",))
def late_member_waits(ctx):
    is_served(Members(ctx), ("b", "accept", "None"), ("b", "wait", "[1]"))


@test(modes=("both",))
def late_member_finds_no_posternd(ctx):
    """It has died once more: one of them starts the next, which `a` tells of the link group."""
    members = Members(ctx)
    members.expect("a", "watch", "None")
    members.kill_posternd()
    is_served(members, ("b", "accept", "None"))


@test(modes=("both",))
def late_member_ends(ctx):
    """Its peer is told."""
    members = Members(ctx)
    members.expect("b", "accept", "None")
    members.expect("b", "end", "None")
    said = members.end()
    check(said[0] == "connected" and said[1].startswith(("error ConnectionResetError", "got ")), lambda: f"the client: {said}")


@test(modes=("both",))
def late_member_ends_without_posternd(ctx):
    """No process can tell the client of it; the next posternd's reaper does, when the process ends."""
    members = Members(ctx, spawn=False)
    members.kill_posternd()
    members.expect("b", "accept", "None")
    said = members.tell("b", "echo")
    check("ConnectionResetError" in said, f"b echo: {said}")
    members.expect("b", "end", "None")
    members.expect("a", "watch", "None")
    members.start_posternd()
    members.expect("b", "die", "None")
    said = members.end()
    check(said == ["connected", "error ConnectionResetError(104, 'Connection reset by peer')"], lambda: f"the client: {said}")


@test(modes=("both",))
def member_dies_without_posternd(ctx):
    """The next posternd hears of its connections only when another member brings it the link group."""
    members = Members(ctx, spawn=False)
    members.expect("b", "accept", "None")
    members.expect("b", "echo", "hello")
    members.kill_posternd()
    members.expect("b", "die", "None")
    members.expect("a", "watch", "None")
    members.start_posternd()
    said = members.end()
    check(said == ["connected", "got hello", "end b''"], lambda: f"the client: {said}")


@test(modes=("both",))
def server_dies_without_posternd(ctx):
    """Its clients sleep. One of them notices after ten seconds that there is no posternd, and starts one."""
    runtime, shm = own_runtime(ctx), posternview.shm_files()
    port, script = ctx.port(), os.path.join(os.path.dirname(os.path.abspath(__file__)), "late_member.py")
    server = ctx.start("server", [PYTHON, script, "serve", port], name="members", stdin=subprocess.PIPE)
    ctx.wait_listening(port, server)
    client = ctx.start("client", [PYTHON, script, "wait", port], name="client")
    end = time.monotonic() + 20
    while client.output().count("connected") < 3:
        check(time.monotonic() < end, "no three connections")
        time.sleep(0.01)
    posternview.expect_path(ctx.config.posternctl, port, ctx.mode)
    os.kill(posternview.daemon_pid(), signal.SIGKILL)
    os.killpg(server.pid, signal.SIGKILL)
    client.wait(30)
    said = sorted(client.output().split("\n")[3:-1])
    check(said == ["by_epoll ConnectionResetError", "by_poll ConnectionResetError", "by_recv ConnectionResetError"], f"the client: {said}")
    server.wait(expect=None)
    nothing_left(ctx, runtime, shm)


@test(modes=("both",))
def posternd_is_killed_and_started(ctx):
    """Until the last of its threads has ended it has its lock, and its socket takes connections."""
    runtime, shm = own_runtime(ctx), posternview.shm_files()
    start_posternd(ctx, runtime)
    for _ in range(40):
        pid = posternview.daemon_pid()
        os.kill(pid, signal.SIGKILL)
        start_posternd(ctx, runtime)
        check(posternview.daemon_pid() != pid, "the next one has left, though nobody answers")
    nothing_left(ctx, runtime, shm)


@test(modes=("both",))
def posternd_is_killed_without_the_cpu(ctx):
    """As above, and the last one has no time to end: it stands still for a second."""
    runtime, shm = own_runtime(ctx), posternview.shm_files()
    start_posternd(ctx, runtime)
    pid = posternview.daemon_pid()
    os.kill(pid, signal.SIGSTOP)
    later = threading.Timer(1, os.kill, (pid, signal.SIGKILL))
    later.start()
    start_posternd(ctx, runtime)
    later.join()
    check(posternview.daemon_pid() != pid, "the next one has left, though nobody answers")
    nothing_left(ctx, runtime, shm)
