# t_export.py - descriptors that get to programs without the library: nothing is lost, and each side sees what TCP shows.
# SPDX-License-Identifier: Apache-2.0

import glob
import os
import signal
import time

from harness import check, test
from t_mistakes import simple

for case in ("static_child", "static_spawned", "passed_bulk", "client_leaves", "shared_with_stranger", "waiters", "blocked_writer",
             "stranger_resets", "listener_leaves", "listener_leaves_under_load", "static_child_holds_nothing"):
    simple(f"export_{case}", case)


def keepers_of(runtime_dir):
    """Keepers that the posternd of that directory has started, by what they were told of it."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        pid = int(path.split("/")[2])
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                comm = file.read().strip()
            with open(path, "rb") as file:
                ours = f"POSTERN_RUNTIME_DIR={runtime_dir}".encode() in file.read().split(b"\0")
        except OSError:
            continue
        if comm == "postern-keeper" and ours:
            found.append(pid)
    return found


@test(modes=("both",))
def export_keeper_killed(ctx):
    """kill -9 of the keeper ends the connections that it carried, on both sides, and nothing else."""
    runtime_dir = os.path.join(ctx.dir, "run")
    os.mkdir(runtime_dir, 0o700)
    env = {"POSTERN_RUNTIME_DIR": runtime_dir, "POSTERN_DAEMON_IDLE_SEC": "1"}
    program, port = ctx.built("mistakes"), ctx.port()
    server = ctx.start("server", [program, "serve", "keeper", port], name="serve", env=env)
    ctx.wait_listening(port, server)
    client = ctx.start("client", [program, "connect", "keeper", port], name="connect", env=env)
    end = time.monotonic() + 10
    while "passed" not in client.output():
        check(time.monotonic() < end and client.alive(), lambda: f"client said {client.output()!r}, server {server.output()!r}")
        time.sleep(0.01)
    pids = keepers_of(runtime_dir)
    check(len(pids) == 1, f"{len(pids)} keepers run")
    os.kill(pids[0], signal.SIGKILL)
    client.wait(20)
    server.wait(20)
