# t_faults.py - bad memory in calls on connections is EFAULT, and every other fault is the program's, as on the kernel.
# SPDX-License-Identifier: Apache-2.0

import signal

from harness import check, test

CALLS = ["send -1 EFAULT", "large -1 EFAULT", "good 5", "recv -1 EFAULT", "again 5"]


def single(name, said, ended=0, args=None):
    """Registers a test that is one process under the wrapper."""
    def run(ctx):
        proc = ctx.start("server", [ctx.built("faults"), *(args or [name])])
        code = proc.popen.wait(50)
        lines = [line.strip() for line in proc.output().splitlines()]
        check(code == -ended and lines == said, lambda: f"ended with {code}, said {lines}")
        ctx.procs.remove(proc)  # it may have ended by a signal
    run.__name__ = f"faults_{name}"
    test(modes=("both", "kernel"))(run)


def caught(count, mask=1, stack=0):
    return f"handled {count} where it was mask {mask} stack {stack}"


single("calls", CALLS)
single("calls_handler", [*CALLS, caught(1), *CALLS])
single("before", [*CALLS, caught(1)], args=["calls", "before"])
single("caught", [caught(1), caught(2)])
single("stack", [caught(1, stack=1), "overflow handled 2 stack 1", *CALLS])
single("once", [caught(1)], signal.SIGSEGV)
single("default", [], signal.SIGSEGV)
single("overflow", [], signal.SIGSEGV)
single("sent", ["code 0", caught(2)])
single("sent_default", [], signal.SIGSEGV)
single("raised_default", [], signal.SIGBUS)
single("plain", ["plain 11"])
single("readback", ["default 1 flags 0", "own 1 flags 4c000004 mask 1", "was own 1", "was plain 1", "was ignored 1", "default 1 flags 14000000"])
single("bus", ["bus -1 EFAULT", "handled 1"])
single("vfork", ["child ended by 11", caught(1), *CALLS])
single("child", [*CALLS, "child ended by 11"])
