# t_syscalls.py - libc's syscall(), and programs that ask it for an io_uring.
# SPDX-License-Identifier: Apache-2.0

import time

import posternview
from harness import Skip, check, test

ALLOW, DENY = {"POSTERN_IO_URING": "allow"}, {"POSTERN_IO_URING": "deny"}


def single(ctx, what, env=None):
    proc = ctx.start("server", [ctx.built("syscalls"), what], env=env or {})
    proc.wait(50)
    check("as it should be" in proc.output(), proc.output())
    return proc.output()


@test()
def syscalls_plain(ctx):
    """Results, errno and six arguments of calls that are not the library's business."""
    single(ctx, "plain")


def refused(ctx, when):
    """io_uring=deny: EPERM, which is counted once: the program is refused twice, then held, then refused twice more, and held."""
    proc = ctx.start("server", [ctx.built("syscalls"), f"refused_{when}"], env=DENY)
    for stop in (1, 2):
        end = time.monotonic() + 60
        while proc.output().count("holding\n") < stop:
            check(proc.alive() and time.monotonic() < end, lambda: f"does not get to stop {stop}: {proc.output()[-800:]}")
            time.sleep(0.02)
        left = {f["reason"]: f for f in posternview.explain(ctx.config.posternctl, proc.pid)["fallbacks"]}
        check("io-uring" in left, f"explain does not tell of io_uring at stop {stop}: {left}")
        check(left["io-uring"]["count"] == 1 and "EPERM" in left["io-uring"]["text"], left)
        proc.go_on()
    proc.wait(50)
    check("as it should be" in proc.output(), proc.output())


@test(modes=("both",))
def io_uring_refused_before_sockets(ctx):
    """When there is no stack yet that could count it, as with most event loops."""
    refused(ctx, "early")


@test(modes=("both",))
def io_uring_refused_beside_sockets(ctx):
    refused(ctx, "late")


def given(ctx, env):
    if "no ring here" in single(ctx, "kernels", env):
        raise Skip("this kernel has no io_uring for this user, and syscall() says so")


@test(modes=("both",))
def io_uring_allowed(ctx):
    """io_uring=allow: a ring, if the kernel has one."""
    given(ctx, ALLOW)


@test(modes=("both",))
def io_uring_followed(ctx):
    """What is the rule: a ring, if the kernel has one."""
    given(ctx, {})


@test(modes=("both",))
def io_uring_accel_off(ctx):
    """A library that leaves all sockets to the kernel leaves it the rings as well."""
    given(ctx, {"POSTERN_ACCEL": "off"})


@test()
def io_uring_epoll(ctx):
    """libuv's way: descriptors are added to the event set through a ring, with the kernel's results, and stay accelerated."""
    program, port = ctx.built("syscalls"), ctx.port()
    server = ctx.start("server", [program, "serve", port], name="serve")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [program, "connect", port], name="connect")
    ctx.expect_path(port)
    client.go_on()
    client.wait(40)
    server.wait(20)
