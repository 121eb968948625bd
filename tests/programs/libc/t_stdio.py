# t_stdio.py - connections as standard input, output and error: C's and C++'s own reads and writes, and bash's /dev/tcp.
# SPDX-License-Identifier: Apache-2.0

import os

from harness import PYTHON, check, need, test

HERE = os.path.dirname(os.path.abspath(__file__))
SAID = ["EARLY PRINTF 1", "PUTS", "FPUTS", "C", "PERROR: NO SUCH FILE OR DIRECTORY", "PSIGNAL: TERMINATED", "FPRINTF", "DPRINTF", "WRITE"]
STREAMS = ["COUT 7", "CERR"]

BASH = r"""
exec 3<>/dev/tcp/127.0.0.1/$1
echo hello >&3
printf '%s-%s\n' a b >&3
read -r x <&3
read -r y <&3
echo "$x $y"
( echo sub; printf 'shell\n' ) >&3
read -r x <&3; read -r y <&3
echo "$x $y"
echo outside >&3 | cat
head -n 1 <&3
for i in 1 2 3; do echo "loop $i" >&3; read -r x <&3; echo "$x"; done
exec 4>&1 >&3
echo straight; type nosuchcommand 2>&3
exec >&4
read -r x <&3; read -r y <&3
echo "$x"; echo "${y##*: }"
echo last >&3
exec 5<&3
read -r x <&5
echo "$x"
"""
BASH_SAID = ["HELLO A-B", "SUB SHELL", "OUTSIDE", "LOOP 1", "LOOP 2", "LOOP 3", "STRAIGHT", "NOT FOUND", "LAST"]


def server(ctx):
    port = ctx.port()
    proc = ctx.start("server", [PYTHON, os.path.join(HERE, "capitals.py"), port], name="capitals")
    ctx.wait_listening(port, proc)
    return port


def standard(program, where, lines, after):
    def run(ctx):
        said = ctx.run("client", [ctx.built(program), server(ctx), where]).splitlines()
        check(said == [*lines, "end", *after], lambda: f"said {said}")
    run.__name__ = f"{program}_{where}"
    test()(run)


for name, extra in (("stdio", []), ("stdio_streams", STREAMS)):
    standard(name, "here", SAID + extra, ["back", "kept"])
    standard(name, "child", SAID + extra, ["back", "kept", "child 0"])
    standard(name, "exec", SAID + extra, [])


@test()
def stdio_bash(ctx):
    need("bash")
    said = ctx.run("client", ["bash", "-c", BASH, "bash", server(ctx)]).splitlines()
    check(said == BASH_SAID, lambda: f"said {said}")


@test()
def stdio_restarted(ctx):
    """A connection that was somebody's standard output, and is half open, does not keep a server from its port (SO_REUSEADDR)."""
    script, port = os.path.join(HERE, "restarted.py"), ctx.port()
    proc = ctx.start("server", [PYTHON, script, "serve", port, 3], name="serve")
    ctx.wait_listening(port, proc)
    said = ctx.run("client", [PYTHON, script, "connect", port, 3])
    proc.wait(20)
    check(said == "round 0\nround 1\nround 2\n", lambda: f"said {said} {proc.output()}")
