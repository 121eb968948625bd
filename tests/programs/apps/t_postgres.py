# t_postgres.py - PostgreSQL: a process for each connection, a connection for each transaction, kill -9 of a backend.
# SPDX-License-Identifier: Apache-2.0
#
# pgbench's transactions keep four sums equal (accounts, tellers, branches, history) and write one line of history each: a
# statement that was lost, repeated or cut would show.

import glob
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time

from harness import Skip, check, test
from otheruser import OtherUser

CONF = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
fsync = off
shared_buffers = 16MB
dynamic_shared_memory_type = mmap
max_connections = 60
"""
SUMS = """select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),
  (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)"""


def tool(name):
    """Debian keeps the server's own programs out of PATH, and its pgbench there is a wrapper that looks for clusters."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}")) or [shutil.which(name)]
    if not found[-1]:
        raise Skip(f"{name} is not installed")
    return found[-1]


class Postgres:
    def __init__(self, ctx):
        self.ctx, self.port = ctx, ctx.port()
        tools = [tool(name) for name in ("initdb", "postgres", "pgbench", "psql", "pg_isready")]
        self.user = OtherUser(ctx, ("postgres", "nobody"))
        data = ctx.path("data")
        subprocess.run(["cp", "-a", self.template(tools[0]), data], check=True)
        with open(os.path.join(data, "postgresql.conf"), "a", encoding="ascii") as file:
            file.write(CONF.format(port=self.port))
        self.proc = ctx.start("server", [tools[1], "-D", data], name="postgres")
        ctx.wait_listening(self.port, self.proc)
        self.to = ["-h", "127.0.0.1", "-p", self.port, "-U", "bench"]
        self.pg_isready = [tools[4], "-q", *self.to]
        self.pgbench = [tools[2], *self.to]
        self.psql = [tools[3], *self.to, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", "postgres"]
        self.until_ready()
        ctx.run("client", [*self.pgbench, "-i", "-q", "-s", 4, "postgres"], name="pgbench-i")

    def template(self, initdb):
        """A new cluster, made once in a run of the tests."""
        with self.ctx.making("postgres") as made:
            if not os.path.exists(made):
                data = self.user.give(self.ctx.path("template", "x")[:-2])
                self.user.do([initdb, "-D", data, "-U", "bench", "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8"], cwd=self.ctx.dir)
                os.rename(data, made)
        return made

    def until_ready(self):
        """Accepting (0) comes after rejecting (1); that nobody answers (2) would be a listener that is gone."""
        end = time.monotonic() + 30
        while code := self.ctx.start("client", self.pg_isready, name="pg_isready").wait(20, None):
            check(code == 1 and time.monotonic() < end, lambda: f"pg_isready: {code}; {self.proc.output()[-800:]}")

    def ask(self, sql):
        return self.ctx.run("client", [*self.psql, "-c", sql], name="psql").strip()

    def start_bench(self, *options):
        return self.ctx.start("client", [*self.pgbench, "-n", *options, "postgres"], name="pgbench")

    def done(self, bench):
        """The number of transactions that a run without a failure has made."""
        bench.wait(120)
        said = bench.output()
        done = re.search(r"number of transactions actually processed: (\d+)", said)
        check(done and int(done.group(1)) > 0 and "number of failed transactions: 0 " in said and "aborted" not in said, said)
        return int(done.group(1))

    def expect_sums(self, least, most=None):
        sums = self.ask(SUMS).split("|")
        check(len(sums) == 4 and len(set(sums)) == 1, f"accounts, tellers, branches, history: {sums}")
        lines = int(self.ask("select count(*) from pgbench_history"))
        check(least <= lines <= (most or least), f"{lines} transactions are in the history, clients know of {least} to {most or least}")

    def leave(self):
        check(self.proc.alive(), lambda: f"postgres ended: {self.proc.output()[-800:]}")
        self.user.leave()


@test(watchdog_s=180)
def postgres_pgbench(ctx):
    server = Postgres(ctx)
    bench = server.start_bench("-c", 8, "-j", 2, "-T", 1 if ctx.fast else 15)
    ctx.expect_path(server.port)
    total = server.done(bench)
    total += server.done(server.start_bench("-c", 6, "-M", "prepared", "-t", 50 if ctx.fast else 500))
    total += server.done(server.start_bench("-C", "-c", 6, "-j", 2, "-t", 25 if ctx.fast else 250))
    server.expect_sums(total)
    server.leave()


@test(watchdog_s=120)
def postgres_copy_and_cancel(ctx):
    """20 MB by COPY in both directions; a query is cancelled, for which libpq makes a connection of its own."""
    server = Postgres(ctx)
    rows = "".join(f"{n}\t{ctx.random.randbytes(100).hex()}\n" for n in range(100_000)).encode()
    name = ctx.write("rows", rows)
    server.ask("create table rows(n int, t text)")
    with open(name, "rb") as file:
        ctx.run("client", [*server.psql, "-c", "copy rows from stdin"], stdin=file, name="psql-in")
    got = ctx.run("client", [*server.psql, "-c", "copy (select * from rows order by n) to stdout"], name="psql-out").encode()
    check(hashlib.sha256(got).digest() == hashlib.sha256(rows).digest(), f"{len(rows)} bytes went, {len(got)} came or others")
    sleeper = ctx.start("client", [*server.psql, "-c", "select 'slept', pg_sleep(60)"], name="psql-sleep")
    end = time.monotonic() + 20
    while server.ask("select count(*) from pg_stat_activity where wait_event = 'PgSleep'") != "1":
        check(time.monotonic() < end, "the query that sleeps is not to be seen")
    ctx.expect_path(server.port)
    sleeper.popen.send_signal(signal.SIGINT)
    sleeper.wait(20, expect=1)
    check("canceling statement due to user request" in sleeper.output(), sleeper.output())
    server.leave()


@test(watchdog_s=180)
def postgres_kill_backend(ctx):
    """kill -9 of one backend: the postmaster ends all others, recovers, and goes on. Every client hears of it at once."""
    server, clients, known = Postgres(ctx), 6, 0
    for number in range(1 if ctx.fast else 10):
        bench = server.start_bench("-c", clients, "-j", 2, "-T", 600)
        ctx.expect_path(server.port)
        query = "select pid from pg_stat_activity where application_name = 'pgbench'"
        end = time.monotonic() + 20
        while len(pids := server.ask(query).split()) < clients:
            check(time.monotonic() < end, f"{len(pids)} backends instead of {clients}")
        os.kill(int(ctx.random.choice(pids)), signal.SIGKILL)
        bench.wait(30, expect=2)
        said = bench.output()
        check(len(re.findall(r"client \d+ (?:script \d+ )?aborted", said)) == clients, said)
        check("terminating connection because of crash of another" in said, said)  # the kernel does not deliver it to all either
        known += int(re.search(r"number of transactions actually processed: (\d+)", said).group(1))
        server.until_ready()
        again = server.done(server.start_bench("-c", 4, "-C", "-t", 20))
        known += again
        # What a client did not hear of may have been committed: one transaction each.
        server.expect_sums(known, known + clients * (number + 1))
    log = server.proc.output()
    check(log.count("was terminated by signal 9") == number + 1 and "signal 11" not in log, log[-1500:])
    server.leave()
