#!/usr/bin/python3
# syn_option.py - what posternd --syn-option costs connections that have nothing to do with it, and those that have.
# SPDX-License-Identifier: Apache-2.0
#
#   syn_option.py --build build [--pairs 15] [--seconds 1]
#
# Connect, accept and close over the loopback interface of a network namespace of our own, by perf/connrate, client and server on
# one CPU. With and without the programs in turns, in one cgroup; a ratio is taken within each pair of neighbours, since on a
# shared machine the rate drifts more than the programs cost. CPU time of both processes counts, not the clock.

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "programs", "kit"))
import netlab  # noqa: E402
import synkit  # noqa: E402

PORT = "7100"


def connection_usec(build, seconds, cpu):
    """CPU time of one connection, both ends."""
    def before():
        os.sched_setaffinity(0, {cpu})

    server = subprocess.Popen([f"{build}/perf/connrate", "server", "-p", PORT], preexec_fn=before, stderr=subprocess.DEVNULL)
    try:
        begun = resource.getrusage(resource.RUSAGE_CHILDREN)
        time.sleep(0.1)
        out = subprocess.run([f"{build}/perf/connrate", "client", "-p", PORT, "-t", str(seconds)], preexec_fn=before, check=True,
                             capture_output=True, text=True).stdout
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_sec = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    return cpu_sec * 1e6 / float(out.split()[1])


def option_nsec(loops=20000):
    """setsockopt + getsockopt of something else, as seen from here (Python's share included)."""
    import socket
    with socket.socket() as sock:
        begun = time.process_time()
        for _ in range(loops):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        return (time.process_time() - begun) * 1e9 / loops


def show(name, pairs, unit):
    without, with_it = (statistics.median(column) for column in zip(*pairs))
    more = sorted(b / a - 1 for a, b in pairs)
    quarter = len(more) // 4
    print(f"{name}: {without:.2f} {unit} without, {with_it:.2f} with; in pairs {100 * statistics.median(more):+.1f} % "
          f"(middle half {100 * more[quarter]:+.1f} .. {100 * more[-1 - quarter]:+.1f})")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=int, default=1)
    args = parser.parse_args()
    netlab.call("unshare", netlab.CLONE_NEWNET)
    netlab.Lab.ip("link", "set", "dev", "lo", "up")
    cgroup = synkit.Cgroup()
    connections, options = [], []
    try:
        cgroup.enter()
        cpu = max(os.sched_getaffinity(0))
        for i in range(args.pairs):
            got = {}
            for attached in ((False, True), (True, False))[i % 2]:
                broker = synkit.Broker(args.build, cgroup.path, home=cgroup.home) if attached else None
                got[attached] = connection_usec(args.build, args.seconds, cpu), option_nsec()
                if broker:
                    broker.stop()
            connections.append((got[False][0], got[True][0]))
            options.append((got[False][1], got[True][1]))
    finally:
        cgroup.remove()
    show("connection that is not marked", connections, "us of CPU")
    show("setsockopt + getsockopt", options, "ns")


if __name__ == "__main__":
    main()
