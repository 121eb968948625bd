# workerkit.py - an HTTP server of several processes that share a port, under load, while one of them is killed.
# SPDX-License-Identifier: Apache-2.0
#
# The server prints "worker PID" for each that serves and "gone PID SIGKILL" for each that it has replaced.

import os
import re
import signal
import time

from harness import check, wait_until
from nginxkit import expect_going
from t_nginx import expect_clean, load_result

WORKERS, THREADS = 4, 8


class Prefork:
    def __init__(self, ctx, argv, port, name, env=None):
        self.ctx, self.port = ctx, port
        self.proc = ctx.start("server", argv, name=name, env=env)
        wait_until(lambda: len(self.workers()) == WORKERS, lambda: f"no workers: {self.proc.output()}")

    def workers(self):
        said = self.proc.output()
        return [int(pid) for pid in re.findall(r"worker (\d+)\n", said) if f"gone {pid} " not in said]

    def start_load(self, docs, *options):
        client = self.ctx.script("client", "http_load.py", f"--port={self.port}", f"--docs={docs}", f"--threads={THREADS}", "--close=0.1", *options)
        expect_going(client)
        return client

    def expect_accelerated(self):
        """Not in mixed modes: posternctl is slow to name connections of the kernel, and these come and go (see nginx_binary_upgrade)."""
        if self.ctx.mode == "both":
            self.ctx.expect_path(self.port)

    def kill_worker(self):
        time.sleep(self.ctx.random.random() * 0.3)  # any moment of the load
        victim = self.ctx.random.choice(self.workers())
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: f"gone {victim} SIGKILL" in self.proc.output() and len(self.workers()) == WORKERS,
                   lambda: f"not replaced: {self.proc.output()}")

    def expect_kills(self, client, kills):
        """Each kill may cost every connection that the worker had, and nobody else's: that client hears of it at once."""
        client.stop(expect=0)
        result = load_result(client)
        expect_clean(result, allowed=("reset", "eof"))
        lost = sum(result["counts"].get(f"error_{kind}", 0) for kind in ("reset", "eof"))
        check(lost <= kills * THREADS, f"{kills} kills, {result['counts']}")
        check(self.proc.alive() and self.proc.output().count("gone") == kills, self.proc.output())
