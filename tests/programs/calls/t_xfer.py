# t_xfer.py - the table of xfer runs: which ways of writing, reading and waiting meet, and what has to come out.
# SPDX-License-Identifier: Apache-2.0
#
# Each test is a list of option sets. Fast tier: a seeded sample (the seed is printed by run.py) up to 64 MiB; long tier: all of
# it and 1 GiB. A failed run is named by the two command lines that repeat it.

import itertools

from harness import Fail, check, test

WRITES = ("write", "send", "sendto", "sendmsg", "sendmmsg", "writev", "sendfile", "splice", "more", "mix")
READS = ("read", "recv", "recvfrom", "recvmsg", "recvmmsg", "readv", "waitall", "peek", "splice", "mix")
WAITS = ("poll", "ppoll", "select", "pselect", "epoll-lt", "epoll-et", "epoll-oneshot")
CHUNKS = (1, 7, 63, 64, 65, 4095, 4096, 4097, 64000, 1 << 20)
SIZES = (0, 1, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, 5000000)


def options(values):
    return [f"--{key}={value}" for key, value in values.items()]


def report(output, role):
    lines = [line.split() for line in output.splitlines() if line.startswith(role)]
    check(len(lines) == 1, f"no report of the {role}: {output[-500:]}")
    words = lines[0]
    return (words[2], words[3]), (words[5], words[6])


def compare(server_output, client_output, up, down):
    server_sent, server_got = report(server_output, "server")
    client_sent, client_got = report(client_output, "client")
    check(client_sent == server_got and int(client_sent[0]) == up, f"up: sent {client_sent}, received {server_got}, wanted {up}")
    check(server_sent == client_got and int(server_sent[0]) == down, f"down: sent {server_sent}, received {client_got}, wanted {down}")


def transfer(ctx, up, down, server=None, client=None, look=False, **both):
    """One connection; options in `both` go to each side, `server` and `client` to one of them."""
    xfer, port = ctx.built("xfer"), ctx.port()
    common = {"port": port, "up": up, "down": down, **both}
    server_args = options({**common, **(server or {})})
    client_args = options({**common, **(client or {}), **({"hold": 1} if look else {})})
    try:
        serving = ctx.start("server", [xfer, "serve", *server_args], name="xfer-server")
        ctx.wait_listening(port, serving)
        connecting = ctx.start("client", [xfer, "connect", *client_args], name="xfer-client")
        if look:
            ctx.expect_path(port)
            connecting.go_on()
        connecting.wait(120)
        serving.wait(60)
        compare(serving.output(), connecting.output(), up, down)
    except Fail as error:
        raise Fail(f"{error}\n      xfer serve {' '.join(server_args)}\n      xfer connect {' '.join(client_args)}") from None


def sample(ctx, everything, fast_count):
    everything = list(everything)
    if not ctx.fast or len(everything) <= fast_count:
        return everything
    return ctx.random.sample(everything, fast_count)


def chunk_bytes(chunk, wanted):
    """Few bytes for tiny chunks: a transfer of `wanted` in single bytes would be all system calls."""
    return min(wanted, chunk * 20000)


@test(watchdog_s=300)
def xfer_write_read_matrix(ctx):
    """Each write variant meets each read variant, blocking, both directions at once from two threads."""
    pairs = list(itertools.product(WRITES, READS))
    # Every write and every read at least once, whatever the sample is.
    chosen = dict.fromkeys([(w, READS[n]) for n, w in enumerate(WRITES)] + sample(ctx, pairs, 15))
    for n, (write, read) in enumerate(chosen):
        chunk, rchunk = ctx.random.choice(CHUNKS[3:]), ctx.random.choice(CHUNKS[3:])
        size = chunk_bytes(min(chunk, rchunk), 3000001)
        transfer(ctx, size, size // 2, write=write, read=read, chunk=chunk, rchunk=rchunk, look=n == 0)


@test(watchdog_s=300)
def xfer_waits_nonblocking(ctx):
    """One thread, both directions in one loop, woken by each kind of wait."""
    for wait in WAITS:
        for write, read in sample(ctx, itertools.product(WRITES, READS), 2):
            chunk = ctx.random.choice(CHUNKS[4:])
            transfer(ctx, 2000003, 1500007, wait=wait, who="single", nonblock=1, write=write, read=read, chunk=chunk, rchunk=ctx.random.choice(CHUNKS[4:]))
        transfer(ctx, 8 << 20, 8 << 20, wait=wait, who="single", nonblock=1, server={"slow": 1})


@test(watchdog_s=300)
def xfer_waits_threads(ctx):
    """Separate threads read and write the same socket, each with a wait of its own, blocking and not."""
    for wait in WAITS:
        transfer(ctx, 3000001, 3000001, wait=wait, nonblock=1)
        if wait != "epoll-et":
            transfer(ctx, 1000001, 3000001, wait=wait, chunk=4097, rchunk=65)


@test(watchdog_s=300)
def xfer_chunks(ctx):
    for chunk, rchunk in sample(ctx, itertools.product(CHUNKS, CHUNKS), 25):
        size = chunk_bytes(min(chunk, rchunk), 2000003)
        transfer(ctx, size, size, chunk=chunk, rchunk=rchunk, nodelay=1)


@test(watchdog_s=300)
def xfer_sizes(ctx):
    """Small and odd totals, one direction or both; 0 bytes is a connection that only ends."""
    for size in SIZES:
        transfer(ctx, size, 0)
        transfer(ctx, 0, size, who="single", nonblock=1, wait="epoll-et")
        transfer(ctx, size, size, who="fork")


@test(watchdog_s=600)
def xfer_bulk(ctx):
    """64 MiB (1 GiB in the long tier): singly, both at once, and with a reader that is slower than the writer."""
    size = 64 << 20 if ctx.fast else 1 << 30
    transfer(ctx, size, 0, chunk=1 << 20, rchunk=1 << 20, look=True)
    transfer(ctx, 0, size, write="sendfile", chunk=1 << 20)
    transfer(ctx, size, size, who="single", nonblock=1, wait="epoll-et")
    transfer(ctx, size, size // 4, write="writev", read="splice", server={"slow": 1})
    if not ctx.fast:
        for write, read in zip(WRITES, READS):
            transfer(ctx, size, size, write=write, read=read, chunk=1 << 20, rchunk=64000)


@test(watchdog_s=300)
def xfer_fork_after_accept(ctx):
    for who in ("threads", "fork"):
        transfer(ctx, 5000001, 5000001, who=who, server={"accept": "fork"}, look=True)


@test(watchdog_s=300)
def xfer_fork_both_directions(ctx):
    """After fork one process writes and the other reads the same socket, on both ends."""
    for write, read in sample(ctx, itertools.product(WRITES, READS), 8):
        transfer(ctx, 2000003, 2000003, who="fork", write=write, read=read, chunk=4097)
    transfer(ctx, 2000003, 2000003, who="fork", nonblock=1, wait="epoll-lt")


@test(watchdog_s=300)
def xfer_fork_in_turns(ctx):
    """Two processes write by turns, two read by turns: never two producers, never a byte twice or out of order."""
    for write, read in sample(ctx, itertools.product(WRITES, READS), 8):
        transfer(ctx, 300007, 300007, who="fork", turns=1, write=write, read=read, chunk=997, rchunk=1021)
    transfer(ctx, 1000003, 1000003, who="fork", turns=1, nonblock=1, wait="poll")


@test(watchdog_s=300)
def xfer_dup(ctx):
    """The original descriptor is closed; reading and writing go on through two duplicates."""
    transfer(ctx, 3000001, 3000001, dup=1, look=True)
    transfer(ctx, 3000001, 3000001, dup=1, who="fork")
    transfer(ctx, 3000001, 3000001, dup=1, who="single", nonblock=1, wait="epoll-lt")


@test(watchdog_s=300)
def xfer_preadv2_pwritev2(ctx):
    transfer(ctx, 3000001, 3000001, write="pwritev2", read="preadv2")


@test(watchdog_s=300)
def xfer_addresses(ctx):
    transfer(ctx, 1000001, 1000001, addr="::1", look=True)
    transfer(ctx, 1000001, 1000001, client={"bind": "127.0.0.9"}, look=True)
    transfer(ctx, 1000001, 1000001, addr="127.1.2.3", look=True)
    transfer(ctx, 1000001, 1000001, server={"addr": "0.0.0.0"}, look=True)
    transfer(ctx, 1000001, 1000001, server={"addr": "::"}, look=True)


@test(modes=("both", "kernel"), watchdog_s=300)
def xfer_one_family(ctx):
    """Both ends in one process family: parent and child of a fork are connected to each other."""
    xfer = ctx.built("xfer")
    for extra in ({}, {"who": "fork"}, {"who": "fork", "turns": 1, "chunk": 997}, {"who": "single", "nonblock": 1, "wait": "epoll-et"}, {"write": "mix", "read": "mix"}):
        said = ctx.run("server", [xfer, "self", *options({"up": 1000003, "down": 700001, **extra})])
        compare(said, said, 1000003, 700001)
