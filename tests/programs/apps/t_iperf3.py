# t_iperf3.py - iperf3: streams in parallel, in reverse and in both directions; its own accounting has to agree.
# SPDX-License-Identifier: Apache-2.0

import json
import re

from harness import check, need, test


def uncounted_bytes(report):
    """Since 3.16 each stream has a thread, which is cancelled at the end: between sending its last block and counting it, perhaps."""
    start = report["start"]
    version = tuple(int(n) for n in re.match(r"iperf (\d+)\.(\d+)", start["version"]).groups())
    return start["test_start"]["blksize"] * start["test_start"]["num_streams"] if version >= (3, 16) else 0


def iperf(ctx, *options):
    port, seconds = ctx.port(), 1 if ctx.fast else 10
    server = ctx.start("server", [need("iperf3"), "-s", "-1", "-B", "127.0.0.1", "-p", port], name="iperf3-server")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [need("iperf3"), "-c", "127.0.0.1", "-p", port, "-t", seconds, "-J", *options], name="iperf3-client")
    ctx.expect_path(port)
    client.wait(seconds + 30)
    server.wait(20)
    report = json.loads(client.output())
    check("error" not in report, report.get("error"))
    end = report["end"]
    for direction in ("", "_bidir_reverse") if "--bidir" in options else ("",):
        sent, received = end[f"sum_sent{direction}"]["bytes"], end[f"sum_received{direction}"]["bytes"]
        check(0 < received <= sent + uncounted_bytes(report), f"{direction or 'one way'}: {sent} bytes sent, {received} received")
    for stream in end["streams"]:
        check(stream["receiver"]["bytes"] > 0, f"a stream starved: {stream}")


@test()
def iperf3_parallel(ctx):
    iperf(ctx, "-P", "4")


@test()
def iperf3_reverse(ctx):
    iperf(ctx, "-R", "-P", "2")


@test()
def iperf3_bidir(ctx):
    iperf(ctx, "--bidir")


@test()
def iperf3_zerocopy(ctx):
    """-Z sends with sendfile."""
    iperf(ctx, "-Z")


@test()
def iperf3_nodelay_small(ctx):
    iperf(ctx, "-N", "-l", "100")
