# t_families.py - one process that is of two families, and the library's code below its facade with either.
# SPDX-License-Identifier: Apache-2.0

from harness import check, test


@test(modes=("both",))
def two_families(ctx):
    # The wrapper says where posternd is; the program has the library in itself.
    proc = ctx.start("server", ["env", "-u", "LD_PRELOAD", ctx.built("two_families")], name="two_families")
    proc.wait(50)
    for step in ("crosswise: 2 connections", "apart", "polled", "forked", "closed"):
        check(step in proc.output(), proc.output())
