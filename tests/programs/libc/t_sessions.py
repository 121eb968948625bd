# t_sessions.py - what libc puts on numbers inside: daemon(), forkpty() and freopen() where a connection was.
# SPDX-License-Identifier: Apache-2.0

import os

from harness import PYTHON, check, test

HERE = os.path.dirname(os.path.abspath(__file__))

CLIENT = """
import socket, sys
for what in ("daemon", "forkpty"):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30) as conn:
        conn.sendall(what.encode())
        said = b""
        while chunk := conn.recv(100): said += chunk
        print(said.decode())
"""


@test()
def sessions(ctx):
    port = ctx.port()
    server = ctx.start("server", [PYTHON, os.path.join(HERE, "sessions.py"), port], name="sessions")
    ctx.wait_listening(port, server)
    said = ctx.run("client", [PYTHON, "-c", CLIENT, port]).splitlines()
    check(said == ["daemon: read b'', wrote 7", "forkpty: for the terminal"], lambda: f"said {said}, server: {server.output()}")
    server.wait()


@test()
def reopen(ctx):
    said = ctx.run("server", [ctx.built("reopen"), os.path.join(ctx.dir, "file")])
    check("as on Linux" in said, said)
