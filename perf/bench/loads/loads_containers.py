# loads_containers.py - the same programs as elsewhere, between two containers.
# SPDX-License-Identifier: Apache-2.0
"""nginx, redis and sockperf with client and server in network namespaces of their own: kernel TCP over a veth pair, and Postern.

What was accelerated is asked of posternctl in each run and written beside the figure; a ratio of connections that were not is none
of Postern's making, and says so.
"""

import copy

from .. import place
from .loads_http import Http
from .loads_rate import SockperfLatency
from .loads_redis import Redis
from ..workload import Workload

LABELS = {"kernel": "kernel TCP, veth", "postern": "Postern"}


class BetweenContainers(Workload):
    """Another workload, elsewhere."""

    place = "containers"
    no_unix = None

    def __init__(self, name, inner):
        self.inner = inner
        self.name, self.title = name, f"{inner.title}, two containers"
        self.metrics, self.bound = inner.metrics, inner.bound

    def columns(self, columns):
        chosen = [copy.copy(column) for column in columns if column.name in LABELS]
        for column in chosen:
            column.label = LABELS[column.name]
        return chosen

    def unavailable(self, column):
        return column.unavailable or place.why_not()

    def run(self, session, column):
        column.place = session.place()
        column.cgroup = column.place.cgroup if column.is_postern else None
        return self.inner.run(session, column)


WORKLOADS = [
    BetweenContainers("pair-nginx-t1-c500", Http("", "nginx 1 KiB, wrk -t 1 -c 500", 1, 500, 10)),
    BetweenContainers("pair-nginx-t8-c500", Http("", "nginx 1 KiB, wrk -t 8 -c 500 -d 30", 8, 500, 30)),
    BetweenContainers("pair-redis-c200", Redis("", "redis-benchmark -t set,get -n 400000 -c 200 -d 1024", 200, 400000, 200000, "cores")),
    BetweenContainers("pair-sockperf-pp-14", SockperfLatency()),
]
