# loads_redis.py - redis-server under redis-benchmark.
# SPDX-License-Identifier: Apache-2.0
"""redis without persistence on one core, redis-benchmark on the other."""

import csv

from ..process import BenchError
from ..session import run_pair
from ..workload import Metric, Workload


def redis_server(port, unix_path, directory, host="127.0.0.1"):
    where = ["--port", "0", "--unixsocket", unix_path] if unix_path else ["--port", str(port), "--bind", host, "--protected-mode", "no"]
    return ["redis-server", *where, "--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", directory,
            "--tcp-backlog", "4096", "--maxclients", "5000", "--loglevel", "warning"]


def redis_client(port, unix_path, *options, host="127.0.0.1"):
    where = ["-s", unix_path] if unix_path else ["-h", host, "-p", str(port)]
    return ["redis-benchmark", *where, "--csv", *options]


def parse_csv(output):
    """{test: {column: number}} of redis-benchmark --csv."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    if not rows or "rps" not in rows[0]:
        raise BenchError(f"no figures in redis-benchmark's output: {output.strip()[-200:]}")
    return {row["test"]: {name: float(value) for name, value in row.items() if name != "test"} for row in rows}


class Redis(Workload):
    no_unix = None
    key = True
    metrics = (Metric("GET", "req/s"), Metric("SET", "req/s"), Metric("GET p50", "ms", False))

    def __init__(self, name, title, clients, count, count_quick, bound):
        self.name, self.title, self.clients, self.bound = name, title, clients, bound
        self.count, self.count_quick = count, count_quick

    def run(self, session, column):
        path = session.path("s") if column.is_unix else None
        port = None if path else session.port()
        count = self.count_quick if session.quick else self.count
        client = redis_client(port, path, "-t", "set,get", "-n", str(count), "-c", str(self.clients), "-d", "1024",
                              host=column.host)
        sample, output = run_pair(session, column, redis_server(port, path, session.work_dir, column.listens_on), client,
                                  port, path, seconds_max=300)
        rows = parse_csv(output)
        for test in ("GET", "SET"):
            if test not in rows:
                raise BenchError(f"redis-benchmark gave no figure for {test}")
            sample.values[test] = rows[test]["rps"]
        sample.values["GET p50"] = rows["GET"]["p50_latency_ms"]
        sample.errors += ["redis-benchmark: " + line for line in output.splitlines() if "rror" in line]
        return sample


WORKLOADS = [
    Redis("redis-c200", "redis-benchmark -t set,get -n 400000 -c 200 -d 1024", 200, 400000, 20000, "cores"),
    Redis("redis-c1", "redis-benchmark -t set,get -n 100000 -c 1 -d 1024", 1, 100000, 5000, "serial"),
]
