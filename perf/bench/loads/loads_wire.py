# loads_wire.py - programs that have only a wire in common: server on Postern, client on the kernel's TCP, and both on Postern.
# SPDX-License-Identifier: Apache-2.0
"""The baseline is kernel TCP over the same veth pair. What went through the server's kernel all the same is counted there."""

import copy

from .. import wire_place
from .loads_bulk import Iperf
from .loads_http import Http
from .loads_rate import SockperfLatency
from .loads_redis import Redis
from ..workload import Workload

OPTION = ["-o", f"vi={wire_place.INTERFACE}"]


class OverTheWire(Workload):
    """Another workload, elsewhere."""

    place = "wire"
    no_unix = None

    def __init__(self, name, inner, kind=""):
        self.inner, self.kind = inner, kind
        self.name, self.title = name, f"{inner.title}, veth{' and TAP' if kind else ''}"
        self.metrics = inner.metrics

    def columns(self, columns):
        """Kernel; Postern at the server; Postern at both."""
        chosen = [copy.copy(column) for column in columns if column.name in ("kernel", "postern")]
        for column in [column for column in chosen if column.is_postern]:
            column.label, column.client_prefix = "Postern, client on the kernel", []
            column.server_prefix = column.server_prefix + OPTION
            both = copy.copy(column)
            both.name, both.label, both.client_prefix = "both", "Postern, both sides", both.server_prefix
            chosen.append(both)
        return chosen

    def unavailable(self, column):
        return column.unavailable or wire_place.why_not()

    def run(self, session, column):
        column.place = session.wire_place(self.kind)
        column.cgroup = None
        return self.inner.run(session, column)


WORKLOADS = [
    OverTheWire("wire-nginx-c1", Http("", "nginx 1 KiB, wrk -t 1 -c 1", 1, 1, 5)),
    OverTheWire("wire-nginx-c100", Http("", "nginx 1 KiB, wrk -t 1 -c 100", 1, 100, 10)),
    OverTheWire("wire-nginx-close", Http("", "nginx 1 KiB, Connection: close, wrk -t 1 -c 50", 1, 50, 5, close=True)),
    OverTheWire("wire-redis-c1", Redis("", "redis-benchmark -t set,get -n 100000 -c 1 -d 1024", 1, 100000, 5000, "serial")),
    OverTheWire("wire-sockperf-pp-14", SockperfLatency()),
    OverTheWire("wire-iperf3", Iperf()),
    OverTheWire("wire-iperf3-back", Iperf(back=True)),
    OverTheWire("wire-tap-nginx-c100", Http("", "nginx 1 KiB, wrk -t 1 -c 100", 1, 100, 10), "tap:"),
    OverTheWire("wire-tap-sockperf-pp-14", SockperfLatency(), "tap:"),
    OverTheWire("wire-tap-iperf3", Iperf(), "tap:"),
    OverTheWire("wire-tap-iperf3-back", Iperf(back=True), "tap:"),
]
