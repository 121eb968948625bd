#!/usr/bin/python3
# kill_storm.py - kill -9 at random moments under load: nobody else hangs, crashes or gets wrong bytes.
# SPDX-License-Identifier: Apache-2.0
#
#   kill_storm.py --build build [--mode both|server|client|kernel] [--rounds 20] [--seed N] [--victims client,worker,...]
#
# nginx (master, two workers) serves three load clients that compare each byte (http_load.py). Each round kills one process at a
# random moment, lets the others go on, and looks at what they met:
#   client    nothing at all
#   worker    connections that end as TCP ends them: reset, or end of stream; never a refused connection or a hang
#   master    nothing: orphaned workers go on serving
#   posternd  nothing: what is open goes on, what is new is made somehow
#   both      posternd and a worker, one soon after the other: what of a worker
# The daemon of this run is its own (POSTERN_RUNTIME_DIR), so that nobody else's is killed.

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time

import harness
import posternview
from harness import Fail, check
from nginxkit import Nginx, documents, expect_going

VICTIMS = ("client", "worker", "master", "posternd", "both")
# What a load client may count, by victim. `idle_close` is no error: see http_load.py.
ALLOWED = {"client": (), "worker": ("error_reset", "error_eof"), "master": (), "posternd": (), "both": ("error_reset", "error_eof")}
CLIENTS = 3


class Storm:
    def __init__(self, ctx, seed):
        self.ctx, self.random = ctx, random.Random(seed)
        self.docs = documents(ctx)
        self.number, self.nginx, self.clients = 0, None, []

    def start_server(self):
        self.number += 1
        # Workers of another user than the master's can't reach posternd by its path once it has been restarted.
        self.nginx = Nginx(self.ctx, f"nginx{self.number}", docs=self.docs, user=self.random.choice(("root", "www-data")))
        end = time.monotonic() + 20
        while len(self.nginx.workers()) < 2:
            check(time.monotonic() < end, "nginx has no two workers")
            time.sleep(0.02)

    def start_client(self):
        client = self.ctx.script("client", "http_load.py", f"--port={self.nginx.port}", f"--docs={self.docs}", "--threads=3",
                                 f"--close={self.random.choice((0, 0.2, 1.0))}", f"--seed={self.random.randrange(10**6)}")
        self.clients.append(client)

    def finish_clients(self, victim):
        """Ends the load and judges what it met; `ok` after the kill is sure, as a client that hangs does not end in time."""
        for client in self.clients:
            expect_going(client)
            client.stop(expect=0, timeout=60)
            counts = json.loads(client.output().strip().splitlines()[-1])
            bad = {k: v for k, v in counts["counts"].items() if k.startswith("error_") and k not in ALLOWED[victim]}
            check(not bad, f"after kill -9 of {victim}: {bad}, first {counts['first']}; all {counts['counts']}")
            check(counts["counts"].get("ok", 0) > 0, f"after kill -9 of {victim}: no request succeeded: {counts}")
        self.clients = []

    def kill(self, victim):
        """Kills and returns the pids that have to live on."""
        nginx = self.nginx
        if victim == "both":
            first, second = self.random.sample(("posternd", "worker"), 2)
            survivors = self.kill(first)
            time.sleep(self.random.random() * 0.4)
            return [pid for pid in self.kill(second) if pid in survivors]
        if victim == "client":
            target = self.random.choice(self.clients)
            self.clients.remove(target)
            target.popen.kill()
            target.popen.wait()
            return [nginx.master, *nginx.workers()]
        if victim == "worker":
            target = self.random.choice(nginx.workers())
            os.kill(target, signal.SIGKILL)
            return [nginx.master, *(pid for pid in nginx.workers() if pid != target)]
        if victim == "master":
            workers = nginx.workers()
            nginx.proc.popen.kill()
            nginx.proc.popen.wait()
            return workers
        daemon = posternview.daemon_pid()
        check(daemon is not None, "no posternd to kill: no pid file in the runtime directory")
        os.kill(daemon, signal.SIGKILL)
        return [nginx.master, *nginx.workers()]

    def probe(self, victim):
        """A client that starts after the kill gets served."""
        late = self.ctx.script("client", "http_load.py", f"--port={self.nginx.port}", f"--docs={self.docs}", "--threads=2", "--seconds=0.2", "--close=0.5", name="late")
        late.wait(60)
        counts = json.loads(late.output().strip().splitlines()[-1])["counts"]
        check(counts.get("ok", 0) > 0 and not any(k.startswith("error_") for k in counts), f"a client started after kill -9 of {victim}: {counts}")

    def round(self, victim):
        if self.nginx is None:
            self.start_server()
        for _ in range(CLIENTS):
            self.start_client()
        time.sleep(0.15 + self.random.random() * 0.5)
        survivors = self.kill(victim)
        time.sleep(self.random.random() * 0.3)
        self.probe(victim)
        self.finish_clients(victim)
        for pid in survivors:
            check(not harness.is_gone(pid), f"process {pid} ended after kill -9 of {victim}")
        crashes = [line for line in self.nginx.errors() if "exited on signal" in line and "signal 9" not in line]
        check(not crashes, f"after kill -9 of {victim}: {crashes[:2]}")
        if victim == "master":
            harness.kill_pids(survivors, signal.SIGQUIT)
            self.nginx = None


def own_runtime(ctx):
    runtime = ctx.path("run", "x")[:-2]
    os.chmod(runtime, 0o700)
    os.environ["POSTERN_RUNTIME_DIR"] = runtime
    return runtime


def nothing_left(ctx, runtime, shm_before):
    complaints = ctx.finish()
    check(not complaints, "; ".join(complaints))
    if ctx.config.posternctl and ctx.mode != "kernel":
        try:
            posternview.expect_nothing_left(ctx.config.posternctl)
        except posternview.ViewError as error:
            raise Fail(str(error)) from None
        daemon = posternview.daemon_pid()
        if daemon:
            os.kill(daemon, signal.SIGTERM)
            end = time.monotonic() + 10
            while not harness.is_gone(daemon) and time.monotonic() < end:
                time.sleep(0.05)
            check(harness.is_gone(daemon), "posternd does not end on SIGTERM")
    strange = [name for name in os.listdir(runtime) if not name.startswith("posternd")]
    check(not strange, f"files left in the runtime directory: {strange}")
    new = posternview.shm_files() - shm_before
    check(not new, f"files left in /dev/shm: {sorted(new)}")


def storm(ctx, rounds, seed, victims=None, say=lambda text: None):
    victims = victims or [v for v in VICTIMS if v not in ("posternd", "both") or (ctx.mode != "kernel" and ctx.config.posternctl)]
    runtime, shm_before = own_runtime(ctx), posternview.shm_files()
    run = Storm(ctx, seed)
    for number in range(rounds):
        # Each comes up once first; then the order and the moments are random.
        victim = victims[number % len(victims)] if number < len(victims) else run.random.choice(victims)
        try:
            run.round(victim)
        except Fail as error:
            raise Fail(f"round {number}, seed {seed}, victim {victim}: {error}") from None
        say(f"round {number}: {victim}")
    nothing_left(ctx, runtime, shm_before)


def main():
    parser = argparse.ArgumentParser(description="kill -9 under load.")
    parser.add_argument("--build", default="build")
    parser.add_argument("--mode", default="both", choices=harness.MODES)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--victims", default="", help="comma separated: " + ",".join(VICTIMS))
    args = parser.parse_args()
    build = os.path.abspath(args.build)
    config = harness.Config(build=build, wrapper=[f"{build}/postern"], posternctl=f"{build}/posternctl")
    print(f"seed {args.seed}, {args.rounds} rounds, mode {args.mode}", flush=True)
    with tempfile.TemporaryDirectory(prefix="pstn-storm-") as directory:
        ctx = harness.Context(config, args.mode, directory)
        try:
            storm(ctx, args.rounds, args.seed, [v for v in args.victims.split(",") if v], lambda text: print(text, flush=True))
        except Fail as error:
            print(f"FAILED: {error}")
            return 1
        finally:
            ctx.finish()
    print(f"{args.rounds} rounds passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
