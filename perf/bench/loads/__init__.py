# __init__.py - what is measured: one file for each kind of program, and the list of all.
# SPDX-License-Identifier: Apache-2.0
from . import loads_bulk, loads_containers, loads_http, loads_idle, loads_overhead, loads_rate, loads_redis, loads_wire


def load_all():
    """In the order of the report."""
    return (loads_rate.WORKLOADS + loads_bulk.WORKLOADS + loads_http.WORKLOADS + loads_redis.WORKLOADS +
            loads_containers.WORKLOADS + loads_wire.WORKLOADS + loads_idle.WORKLOADS + loads_overhead.WORKLOADS)
