# loads_bulk.py - throughput: sockperf tp and iperf3.
# SPDX-License-Identifier: Apache-2.0
"""Workloads in which one side only sends."""

import json

from .loads_rate import need, sockperf_errors, sockperf_pair
from ..process import BenchError
from ..session import run_pair
from ..workload import Metric, Workload


class SockperfThroughput(Workload):
    no_unix = "this sockperf has no Unix sockets"
    quick_columns = ("kernel", "postern")  # it sleeps for 2 s before each run
    metrics = (Metric("bandwidth", "MB/s"), Metric("rate", "msg/s"))

    def __init__(self, size, key):
        self.name = f"sockperf-tp-{size}"
        self.title = f"sockperf tp --tcp -m {size}"
        self.size, self.key = size, key

    def run(self, session, column):
        sample, output = sockperf_pair(session, column, "tp", self.size, 1 if session.quick else 5)
        sample.values["bandwidth"] = need(r"BandWidth is ([\d.]+) MBps", output, "bandwidth")
        sample.values["rate"] = need(r"Message Rate is ([\d.]+)", output, "message rate")
        sample.errors += sockperf_errors(output)
        return sample


class Iperf(Workload):
    metrics = (Metric("bandwidth", "Gbit/s"),)
    no_unix = "iperf3 has no Unix sockets"

    def __init__(self, back=False):
        self.name = self.title = "iperf3 -R" if back else "iperf3"
        self.back = back

    def run(self, session, column):
        port = session.port()
        seconds = 1 if session.quick else 5
        sample, output = run_pair(session, column, ["iperf3", "-s", "-p", str(port), "-B", column.listens_on],
                                  ["iperf3", "-c", column.host, "-p", str(port), "-t", str(seconds), "-J", *(["-R"] if self.back else [])], port,
                                  seconds_max=seconds + 30)
        try:
            result = json.loads(output)
        except ValueError as error:
            raise BenchError(f"iperf3's output isn't JSON: {output.strip()[-200:]}") from error
        if "error" in result:
            raise BenchError("iperf3: " + result["error"])
        sample.values["bandwidth"] = result["end"]["sum_received"]["bits_per_second"] / 1e9
        return sample


WORKLOADS = [SockperfThroughput(64000, True), SockperfThroughput(100, False), Iperf()]
