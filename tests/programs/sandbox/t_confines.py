# t_confines.py - a process that forbids itself most system calls while a connection is open.
# SPDX-License-Identifier: Apache-2.0

import os
import signal
import subprocess
import time

import posternview
from harness import PYTHON, Skip, check, test
from otheruser import OtherUser

STOPPED_S = 5  # longer than a reply of posternd's is waited for in any other place


def echo(ctx, how, meanwhile=None, ends=True):
    program, port = ctx.built("confines"), ctx.port()
    server = ctx.start("server", [program, "serve", port, how], name="serve")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [program, "connect", port, how], name="connect")
    while "holding\n" not in server.output():
        check(server.alive() and client.alive(), server.output() + client.output())
        time.sleep(0.01)
    ctx.expect_path(port)
    if meanwhile:
        meanwhile(server, client)
    else:
        server.go_on()
    client.wait(40)
    if not ends:
        server.stop(signal.SIGKILL)
    server.wait(20, expect=0 if ends else -signal.SIGKILL)
    check("each byte right" in client.output(), client.output())


@test()
def confines_by_filter(ctx):
    """The filter ends the process for a call that Postern would make in its place."""
    echo(ctx, "filter")


@test()
def confines_strictly(ctx):
    echo(ctx, "strict")


@test(modes=("both",))
def confines_while_posternd_is_stopped(ctx):
    """What posternd does not take at once, on a busy machine, is not left to a process that must not serve it."""
    if not ctx.config.posternctl:
        raise Skip("the wrapper was overridden, so there is no posternd to stop")
    runtime = ctx.path("runtime", "x")[:-2]
    os.chmod(runtime, 0o700)
    os.environ["POSTERN_RUNTIME_DIR"] = runtime  # a daemon of our own: others' programs must not stand still for us

    def stop_posternd(server, _client):
        daemon = posternview.daemon_pid()
        os.kill(daemon, signal.SIGSTOP)
        try:
            server.go_on()
            time.sleep(STOPPED_S)
        finally:
            os.kill(daemon, signal.SIGCONT)
    echo(ctx, "filter", stop_posternd)
    os.kill(posternview.daemon_pid(), signal.SIGTERM)


# Three descriptors that nobody takes for a while.
UNDER_WAY = """
import socket, time
one, other = socket.socketpair()
socket.send_fds(one, [b"!"], [0, 0, 0])
print("sent", flush=True)
time.sleep(1)
"""


@test(modes=("both",))
def confines_beside_descriptors_under_way(ctx):
    """The kernel counts those of a user, and refuses a process one more that may itself have none."""
    user = OtherUser(ctx, ("nobody",))

    def send_some(server, _client):
        with subprocess.Popen([*user.prefix, PYTHON, "-c", UNDER_WAY], stdout=subprocess.PIPE, text=True) as sender:
            check(sender.stdout.readline() == "sent\n", "no descriptors under way")
            server.go_on()
    echo(ctx, "filter", send_some)
    user.leave()


@test(modes=("both",))
def confines_without_posternd(ctx):
    """Nobody takes its connection, so it goes on with it; and while it sleeps it does not look for a posternd, which its filter forbids."""
    runtime = ctx.path("runtime", "x")[:-2]
    os.chmod(runtime, 0o700)
    os.environ.update(POSTERN_RUNTIME_DIR=runtime, POSTERN_DAEMON_SPAWN="off")
    subprocess.run([os.path.join(ctx.config.build, "posternd"), "--runtime-dir", runtime], check=True)

    def kill_posternd(server, client):
        client.popen.send_signal(signal.SIGSTOP)
        os.kill(posternview.daemon_pid(), signal.SIGKILL)
        server.go_on()
        time.sleep(4)  # two until it gives its export up, and then it sleeps
        client.popen.send_signal(signal.SIGCONT)
    echo(ctx, "filter", kill_posternd, ends=False)  # there is nobody to tell it of the client's end
