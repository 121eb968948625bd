# t_splices.py - several threads that splice() on one connection, or on one pipe, at once: each byte goes once.
# SPDX-License-Identifier: Apache-2.0

from harness import Fail, check, test

HOWS = ((), ("nonblock",), ("nonblock", "small"), ("signals",), ("fifo", "small"))


def spliced(ctx, *whats):
    for what in whats:
        for how in HOWS:
            proc = ctx.start("server", [ctx.built("splices"), what, *how], name=f"splices-{what}")
            try:
                proc.wait(60)
            except Fail as error:
                raise Fail(f"splices {what} {' '.join(how)}: {error}\n{proc.output()}") from None
            check("each once" in proc.output() or "0 and 0 in the wrong place" in proc.output(), proc.output())


@test(modes=("kernel", "both"), watchdog_s=120)
def splice_out_of_one_connection(ctx):
    spliced(ctx, "out", "one", "mixed")


@test(modes=("kernel", "both"), watchdog_s=120)
def splice_into_one_connection(ctx):
    spliced(ctx, "in", "fan")


@test(modes=("kernel", "both"))
def splice_into_one_that_becomes_full(ctx):
    proc = ctx.start("server", [ctx.built("splices"), "full"], name="splices-full")
    proc.wait(30)
    check("each once" in proc.output(), proc.output())
