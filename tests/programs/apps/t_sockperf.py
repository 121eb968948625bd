# t_sockperf.py - sockperf: ping-pong with its check of the data, throughput, and many sockets under epoll.
# SPDX-License-Identifier: Apache-2.0

import re

from harness import check, need, test


def sockperf(ctx, kind, *options):
    port, seconds = ctx.port(), 1 if ctx.fast else 10
    server = ctx.start("server", [need("sockperf"), "sr", "--tcp", "-i", "127.0.0.1", "-p", port], name="sockperf-server")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [need("sockperf"), kind, "--tcp", "-i", "127.0.0.1", "-p", port, "-t", seconds, *options], name="sockperf-client")
    ctx.expect_path(port)
    client.wait(seconds + 30)
    server.stop(2)
    return client.output()


def expect_whole(said):
    counts = re.findall(r"# (dropped|duplicated|out-of-order) messages = (\d+)", said)
    check(len(counts) == 3 and all(n == "0" for _, n in counts), said)
    received = re.search(r"ReceivedMessages=(\d+)", said)
    check(received and int(received.group(1)) > 100, said)


@test()
def sockperf_ping_pong(ctx):
    expect_whole(sockperf(ctx, "pp", "-m", 14, "--mps=4000000", "--data-integrity"))


@test()
def sockperf_ping_pong_64000(ctx):
    expect_whole(sockperf(ctx, "pp", "-m", 64000, "--data-integrity"))


@test()
def sockperf_throughput(ctx):
    said = sockperf(ctx, "tp", "-m", 64000)
    rate = re.search(r"BandWidth is ([0-9.]+) MBps", said)
    check(rate and float(rate.group(1)) > 0, said)
