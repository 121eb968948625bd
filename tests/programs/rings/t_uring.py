# t_uring.py - sockets of libc's, which an io_uring reads and writes: right, whoever made the ring.
# SPDX-License-Identifier: Apache-2.0

import os

from harness import Skip, check, test

SEEN = ("uring", "uring_shared")  # whose sockets are accelerated until a ring gets hold of them


def echo(ctx, how, program="uring"):
    """The client checks each byte. With `late` first, the first rounds are by libc and take the path that the mode demands."""
    if "no ring here" in ctx.run("none", [ctx.built("syscalls"), "kernels"]):
        raise Skip("this kernel has no io_uring for this user")
    if program.startswith("uring_s") and not os.path.exists(os.path.join(ctx.config.build, "tests/programs", program)):
        raise Skip("built without liburing (Debian: liburing-dev)")
    binary, port = ctx.built(program), ctx.port()
    server = ctx.start("server", [binary, "serve", port, how], name="serve")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [binary, "connect", port, how], name="connect")
    if how.startswith("late") and program in SEEN:
        ctx.expect_path(port)
    client.go_on()
    client.wait(60)
    server.wait(60)
    check("each byte right" in client.output(), client.output())


@test()
def uring_all(ctx):
    """Accept, connect, receive, send and close by the ring, which libc's syscall() has made."""
    echo(ctx, "-")


@test()
def uring_late(ctx):
    """The connection is accelerated when a ring gets hold of it."""
    echo(ctx, "late")


@test()
def uring_late_poll(ctx):
    echo(ctx, "late,poll")


@test()
def uring_late_epoll(ctx):
    """It is in an event set, too, which goes on telling of it."""
    echo(ctx, "late,epoll")


@test()
def uring_late_fixed(ctx):
    """It becomes a registered file of the ring's."""
    echo(ctx, "late,fixed")


@test()
def uring_sqpoll(ctx):
    """A thread of the kernel's takes the entries as they come, unseen."""
    echo(ctx, "sqpoll,late")


@test()
def uring_inline(ctx):
    """Rings by the program's own system call instructions."""
    echo(ctx, "-", "uring_inline")


@test()
def uring_inline_late(ctx):
    echo(ctx, "late,poll", "uring_inline")


@test()
def uring_liburing(ctx):
    """The system's liburing, whose functions Postern stands in for."""
    echo(ctx, "-", "uring_shared")


@test()
def uring_liburing_late(ctx):
    echo(ctx, "late,poll", "uring_shared")


@test()
def uring_liburing_late_fixed(ctx):
    echo(ctx, "late,fixed", "uring_shared")


@test()
def uring_liburing_sqpoll(ctx):
    """Seen all the same, when it is submitted."""
    echo(ctx, "late,sqpoll", "uring_shared")


@test()
def uring_liburing_static(ctx):
    echo(ctx, "-", "uring_static")


@test()
def uring_liburing_static_late(ctx):
    echo(ctx, "late,epoll", "uring_static")
