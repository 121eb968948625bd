# t_redis.py - redis with its own clients: values, pipelining, pub/sub, replication.
# SPDX-License-Identifier: Apache-2.0

import hashlib
import os
import re
import time

from harness import check, need, test


def redis(ctx, side="server", name="redis", *options, port=None):
    port = port or ctx.port()
    os.makedirs(ctx.path(name, "x")[:-2], exist_ok=True)
    proc = ctx.start(side, [need("redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                            "--dir", os.path.join(ctx.dir, name), "--enable-debug-command", "local", "--repl-diskless-sync-delay", 0,
                            *options], name=name)
    ctx.wait_listening(port, proc)
    return proc, port


def cli(ctx, port, *args, side="client", **kw):
    return ctx.run(side, [need("redis-cli"), "-p", port, *args], **kw).strip()


@test()
def redis_cli_values(ctx):
    proc, port = redis(ctx)
    for size in (1, 100, 16384, 70001, 8 << 20):
        value = os.urandom(size).hex()[:size].encode()
        with open(ctx.write("value", value), "rb") as file:
            check(cli(ctx, port, "-x", "set", f"k{size}", stdin=file) == "OK", f"set of {size} bytes")
        got = cli(ctx, port, "get", f"k{size}").encode()
        check(hashlib.sha256(got).digest() == hashlib.sha256(value).digest(), f"get of {size} bytes differs ({len(got)} came)")
    check(proc.alive(), "redis ended")


def benchmark(ctx, *options):
    proc, port = redis(ctx)
    count = 40000 if ctx.fast else 400000
    bench = ctx.start("client", [need("redis-benchmark"), "-p", port, "-n", count, "-q", *options])
    ctx.expect_path(port)
    bench.wait(300)
    said = bench.output()
    check(re.search(r"requests per second", said) and "rror" not in said, said)
    check(proc.alive(), "redis ended")


@test()
def redis_benchmark_50(ctx):
    benchmark(ctx, "-t", "set,get", "-c", 50)


@test()
def redis_benchmark_pipelined(ctx):
    benchmark(ctx, "-t", "set,get,lrange_100", "-c", 50, "-P", 16, "-d", 100)


@test()
def redis_benchmark_threads(ctx):
    benchmark(ctx, "-t", "set,get,incr", "-c", 200, "--threads", 2, "-d", 1024)


@test()
def redis_pub_sub(ctx):
    """Every subscriber gets every message in order."""
    _, port = redis(ctx)
    script = ctx.write("publish", "".join(f"publish ch m{n}\n" for n in range(2000)) + "publish ch end\n")
    subscribers = [ctx.start("client", [need("redis-cli"), "-p", port, "subscribe", "ch"], name=f"sub{n}") for n in range(5)]
    end = time.monotonic() + 20
    while "5" != cli(ctx, port, "pubsub", "numsub", "ch").split()[-1]:
        check(time.monotonic() < end, "the subscribers do not get subscribed")
    ctx.expect_path(port)
    with open(script, "rb") as file:
        cli(ctx, port, stdin=file)
    for subscriber in subscribers:
        end = time.monotonic() + 20
        while "\nend\n" not in subscriber.output():
            check(time.monotonic() < end, lambda: f"no end after {subscriber.output()[-200:]!r}")
            time.sleep(0.05)
        got = [line for line in subscriber.output().split("\n") if re.fullmatch(r"m\d+", line)]
        check(got == [f"m{n}" for n in range(2000)], f"a subscriber got {len(got)} messages or in another order")


@test()
def redis_replication(ctx):
    """Full copy to a new replica (redis forks a child that writes to the sockets), then the stream; then it is promoted."""
    _, master = redis(ctx, "server", "master")
    cli(ctx, master, "debug", "populate", 50000, "key", 300)
    _, replica = redis(ctx, "client", "replica", "--replicaof", f"127.0.0.1 {master}")
    end = time.monotonic() + 30
    while "master_link_status:up" not in cli(ctx, replica, "info", "replication"):
        check(time.monotonic() < end, "the replica does not get into step")
        time.sleep(0.1)
    ctx.expect_path(master)
    ctx.run("client", [need("redis-benchmark"), "-p", master, "-n", 20000, "-q", "-t", "set,lpush", "-r", 1000, "-P", 8])
    check(cli(ctx, master, "wait", 1, 20000) == "1", "the replica does not acknowledge")
    digests = [cli(ctx, port, "debug", "digest") for port in (master, replica)]
    check(digests[0] == digests[1] and len(digests[0]) == 40, f"replica differs from master: {digests}")
    cli(ctx, replica, "replicaof", "no", "one")
    check(cli(ctx, replica, "set", "a", "b") == "OK", "promoted replica takes no writes")
