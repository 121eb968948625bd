# loads_http.py - nginx under wrk.
# SPDX-License-Identifier: Apache-2.0
"""nginx with one worker on one core, wrk on the other: the seeds' parameters, and one thread at c=1, 50 and 500."""

import os
import re

from .loads_rate import need
from ..process import BenchError, read_text
from ..session import run_pair
from ..workload import Metric, Workload

CONFIG = """daemon off;
master_process on;
worker_processes 1;
{user}
pid {dir}/nginx.pid;
error_log {dir}/error.log error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  sendfile on;
  default_type text/plain;
  keepalive_requests 1000000000;
  keepalive_timeout {keepalive};
  client_body_temp_path {dir}/body;
  proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi;
  scgi_temp_path {dir}/scgi;
  server {{
    listen {host}:{port} backlog=4096;
    root {dir};
    location = /ok {{ return 200 "ok\\n"; }}
  }}
}}
"""


def nginx(session, port, keepalive="3600s", host="127.0.0.1"):
    """Writes a configuration and the 1 KiB file into a directory of their own. Returns (command line, directory).

    Run by root, the worker stays root: it must be able to reach what belongs to the user who started it.
    """
    directory = session.path("nginx")
    os.mkdir(directory)
    config = os.path.join(directory, "nginx.conf")
    with open(config, "w", encoding="ascii") as file:
        file.write(CONFIG.format(dir=directory, port=port, host=host, keepalive=keepalive,
                                 user="user root root;" if os.geteuid() == 0 else ""))
    with open(os.path.join(directory, "1k"), "wb") as file:
        file.write(b"0123456789abcde\n" * 64)
    return ["nginx", "-p", directory, "-e", os.path.join(directory, "error.log"), "-c", config], directory


def nginx_errors(directory):
    lines = read_text(os.path.join(directory, "error.log")).strip().splitlines()
    return [f"nginx: {line}" for line in lines[:3]]


def milliseconds(text):
    """wrk's "1.23ms", "45.00us", "1.20s" in milliseconds."""
    found = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text)
    if not found:
        raise BenchError(f"not a time of wrk's: {text}")
    return float(found.group(1)) * {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}[found.group(2)]


def parse_wrk(output):
    """(values, errors) of one run of wrk --latency."""
    values = {"rate": need(r"Requests/sec: +([\d.]+)", output, "request rate")}
    for name in ("50%", "99%"):
        found = re.search(rf"^ +{name} +(\S+)$", output, re.MULTILINE)
        if found:
            values["p" + name.rstrip("%")] = milliseconds(found.group(1))
    errors = ["wrk: " + line.strip() for line in output.splitlines()
              if "Socket errors" in line or "Non-2xx" in line or "unable to" in line]
    if values["rate"] == 0:
        errors.append("wrk: no request was answered")
    return values, errors


class Http(Workload):
    """wrk's time-out only decides what it counts as an error, it changes nothing in what it sends. Its 2 s are starvation on a core
    shared by eight threads and a busy neighbour; a third of the run is a connection that hangs.
    """

    no_unix = "wrk has no Unix sockets"
    metrics = (Metric("rate", "req/s"), Metric("p50", "ms", False), Metric("p99", "ms", False))

    def __init__(self, name, title, threads, connections, seconds, path="/1k", key=False, close=False):
        self.name, self.title, self.path, self.key, self.close = name, title, path, key, close
        self.threads, self.connections, self.seconds = threads, connections, seconds
        self.bound = "serial" if connections == 1 else "cores"
        self.quick_columns = None if key else ("kernel", "postern")

    def run(self, session, column):
        port = session.port()
        seconds = 1 if session.quick else self.seconds
        server, directory = nginx(session, port, "0" if self.close else "3600s", column.listens_on)
        client = ["wrk", "-t", str(self.threads), "-c", str(self.connections), "-d", str(seconds), "--latency"]
        client += ["--timeout", f"{max(2, seconds // 3)}s"]
        client += ["-H", "Connection: close"] if self.close else []
        client.append(f"http://{column.host}:{port}{self.path}")
        sample, output = run_pair(session, column, server, client, port, seconds_max=seconds + 30, short_lived=self.close)
        sample.values, errors = parse_wrk(output)
        sample.errors += errors + nginx_errors(directory)
        if column.name == "kernel" and self.path == "/1k":
            sample.kept_s = sample.values["rate"] * seconds * session.file_seconds()
        return sample


def _one_thread(path, label):
    return [Http(f"nginx-{label}-c{c}", f"nginx {label}, wrk -t 1 -c {c}", 1, c, 10, path, key=(label == "1k" and c == 500))
            for c in (1, 50, 500)]


WORKLOADS = [
    Http("nginx-t8-c500", "nginx 1 KiB, wrk -t 8 -c 500 -d 30", 8, 500, 30, key=True),
    Http("nginx-t8-c1000", "nginx 1 KiB, wrk -t 8 -c 1000 -d 30", 8, 1000, 30),
    *_one_thread("/1k", "1k"),
    *_one_thread("/ok", "return200"),
    Http("nginx-close", "nginx 1 KiB, Connection: close, wrk -t 1 -c 50", 1, 50, 10, key=True, close=True),
]
