# t_signals.py - handlers among socket calls: what interrupts a wait, and a storm of handlers that write.
# SPDX-License-Identifier: Apache-2.0

from harness import check, test


@test()
def signals_one_process(ctx):
    """`signals` is both ends; it compares with what the kernel does and prints what is wrong."""
    check("all as it should be" in ctx.run("server", [ctx.built("signals"), "2"]), "the program says otherwise")


@test()
def signals_while_spinning(ctx):
    program = ctx.built("signals")
    proc = ctx.start("server", [program, "1"], env={"POSTERN_SPIN_USEC": "5000"})
    proc.wait(40)
    check("all as it should be" in proc.output(), proc.output())


@test(modes=("both", "kernel"))
def signals_main_thread(ctx):
    """A process's signals are the main thread's, while others wait in poll()."""
    ctx.run("server", [ctx.built("signal_thread"), ctx.port()])
