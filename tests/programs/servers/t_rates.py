# t_rates.py - what programs do in a second, over the kernel and under Postern in turns: no program is to be worse off.
# SPDX-License-Identifier: Apache-2.0
#
# `./run rates` installs the packages and runs these, one at a time. A server of each column is up all the while; the loads, which run
# under the wrapper of their column, take turns. A program fails if Postern's rate is below the kernel's in each run, and the median by
# more than a tenth. The CPU time is the whole machine's for one unit of the rate, shown and not judged.

import os
import re
import shlex
import statistics
import subprocess
import time
from dataclasses import dataclass, replace

import s_data
import s_files
import s_inetd
import s_mail
import s_names
import s_relays
import s_runtimes
import s_web
import serverkit
from harness import check, test
from serverkit import ACCELERATED, Server
from surroundings import posternd_of_its_own

ROUNDS = 5
WORSE = 0.9
BEFORE = {server.name: server for table in (s_data, s_files, s_inetd, s_mail, s_names, s_relays, s_runtimes, s_web) for server in table.SERVERS}

NGINX_CONF = """
daemon off;
pid @DIR@/pid;
error_log @DIR@/error.log;
worker_processes 1;
events { worker_connections 1000; }
http {
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path @DIR@/b; proxy_temp_path @DIR@/p; fastcgi_temp_path @DIR@/f; uwsgi_temp_path @DIR@/u; scgi_temp_path @DIR@/s;
  server { listen 127.0.0.1:%s; root @DOCS@; }
}
"""
NGINX = Server("nginx", "nginx-light", "one worker, epoll and sendfile", argv="nginx -e @DIR@/error.log -c @DIR@/nginx.conf", clients=[],
               files={"nginx.conf": NGINX_CONF % "@PORT@"})
APACHE = Server("apache", "apache2-bin", "processes with threads and an event loop", argv="apache2 -X -f @DIR@/apache.conf", clients=[],
                files={"apache.conf": """
ServerName localhost
ServerRoot @DIR@
PidFile @DIR@/pid
ErrorLog @DIR@/error.log
Listen 127.0.0.1:@PORT@
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
User www-data
Group www-data
MaxKeepAliveRequests 0
DocumentRoot @DOCS@
"""})


def with_nginx_behind(name):
    """A relay of the tables, with a server behind it that is no bottleneck."""
    server = BEFORE[name]
    return replace(server, beside=["nginx -e @DIR@/error.log -c @DIR@/nginx.conf"],
                   files={**server.files, "nginx.conf": NGINX_CONF % "@PORT2@", "through.lua": "wrk.path = 'http://127.0.0.1:@PORT2@/f1024'\n"})


def plain_postgres():
    pool = BEFORE["pgbouncer"]
    return replace(pool, name="postgres", style="a process for each connection", beside=[], argv=pool.beside[0].replace("@PORT2@", "@PORT@"))


@dataclass
class Rate:
    server: Server
    load: str = ""  # a command line that takes @SECONDS@ seconds, and prints its rate; else
    found: str = r"Requests/sec:\s+([\d.]+)"
    again: str = ""  # one that is repeated for so long: the rate is how often it ends
    unit: str = "requests"
    less: bool = False  # what it prints is a time: less is better
    name: str = ""


def ask(server, options, name="", unit="answers"):
    return Rate(server, f"@ASK@ -p @PORT@ -t @SECONDS@ {options}", r"answers_per_sec ([\d.]+)", unit=unit, name=name)


def get(server, options="-c 16", path="f1024", scheme="http", name=""):
    return Rate(server, f"wrk -t 1 {options} -d @SECONDS@ {scheme}://127.0.0.1:@PORT@/{path}", name=name)


def through(name):
    return get(with_nginx_behind(name), "-c 16 -s @DIR@/through.lua")


QUERY = "\\x00\\x1a\\x00\\x01\\x00\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x03one\\x04test\\x00\\x00\\x01\\x00\\x01"
DNS = f"-l -q '{QUERY}'"
ECHO = "-q 'each byte right\\n'"
SELECT = {"one.sql": "select 1;\n"}
PGBENCH = Rate(None, "pgbench -h 127.0.0.1 -p @PORT@ -U postgres -n -c 4 -T @SECONDS@ -f @DIR@/one.sql postgres", r"tps = ([\d.]+)")

RATES = [
    get(NGINX), get(NGINX, "-c 1", name="nginx_c1"), get(NGINX, "-c 16 -H 'Connection: close'", name="nginx_close"),
    get(NGINX, "-c 4", "f300001", name="nginx_300k"),
    get(APACHE), get(BEFORE["lighttpd"]), get(BEFORE["mini_httpd"], "-c 4"), get(BEFORE["caddy"]), get(BEFORE["node"]),
    get(BEFORE["node_uring"]), get(BEFORE["uvicorn_uvloop"]), get(BEFORE["gunicorn"], "-c 4"), get(BEFORE["gunicorn_threads"], "-c 4"),
    get(BEFORE["puma"], "-c 4"), get(BEFORE["perl_http"], "-c 4"),
    get(with_nginx_behind("varnish")), get(with_nginx_behind("haproxy_workers")), get(with_nginx_behind("stunnel"), scheme="https"),
    get(with_nginx_behind("socat"), "-c 4"), through("tinyproxy"), through("privoxy"),
    ask(BEFORE["memcached"], "-c 16 -q 'get one\\r\\n' -e 'END\\r\\n'"),
    ask(BEFORE["redis_threads"], "-c 16 -q 'PING\\r\\n' -e '+PONG\\r\\n'"),
    ask(BEFORE["beanstalkd"], "-c 16 -q 'use one\\r\\n' -e 'USING one\\r\\n'"),
    ask(BEFORE["inetd_cat"], ECHO), ask(BEFORE["ncat"], ECHO), ask(BEFORE["socat_exec"], ECHO), ask(BEFORE["socat_system"], ECHO),
    ask(BEFORE["unbound"], DNS), ask(BEFORE["bind"], DNS), ask(BEFORE["knot"], DNS), ask(BEFORE["nsd"], DNS), ask(BEFORE["dnsmasq"], DNS + " -o -c 4"),
    ask(BEFORE["dovecot"], "-g OK -q 'a NOOP\\r\\n' -e 'completed.\\r\\n'"),
    Rate(BEFORE["mariadb"], "mariadb-slap --no-defaults -h 127.0.0.1 -P @PORT@ -u root --concurrency=4 --number-of-queries=20000 --query='select 1'",
         r"Average number of seconds to run all queries: ([\d.]+)", unit="seconds", less=True),
    *(replace(PGBENCH, server=replace(server, files={**server.files, **SELECT})) for server in (plain_postgres(), BEFORE["pgbouncer"])),
    Rate(BEFORE["nuttcp"], "nuttcp -P @PORT@ -p @PORT2@ -T @SECONDS@ 127.0.0.1", r"([\d.]+) Mbps", unit="Mbit/s"),
    Rate(BEFORE["iperf"], "iperf -c 127.0.0.1 -p @PORT@ -t @SECONDS@ -f m", r"([\d.]+) Mbits/sec", unit="Mbit/s"),
    Rate(BEFORE["qperf"], "qperf --listen_port @PORT@ -t @SECONDS@ -u 127.0.0.1 tcp_lat", r"latency\s+=\s+([\d.]+)", unit="us", less=True),
    Rate(BEFORE["vsftpd"], again="curl -sS ftp://127.0.0.1:@PORT@/f300001 -o @DIR@/got", unit="files"),
    Rate(BEFORE["rsync"], again="rsync -a --ignore-times rsync://127.0.0.1:@PORT@/docs/ @DIR@/copy", unit="copies"),
    Rate(BEFORE["git_daemon"], again="git ls-remote git://127.0.0.1:@PORT@/one.git", unit="lists"),
    Rate(BEFORE["qemu_nbd"], again="nbdcopy --connections=1 nbd://127.0.0.1:@PORT@/one @DIR@/copy", unit="copies"),
    Rate(BEFORE["inetd_micro_httpd"], again="curl -sS http://127.0.0.1:@PORT@/f1024 -o @DIR@/got", unit="files"),
    Rate(BEFORE["exim"], again="curl -sS smtp://127.0.0.1:@PORT@ --mail-from joe@localhost --mail-rcpt joe@localhost -T @DIR@/letter", unit="letters"),
]


def busy_ticks():
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, *more = map(int, file.readline().split()[1:])
    return user + nice + system + sum(more[:3])


def measured(ctx, record, place):
    """The rate of one run, and the machine's CPU time in it."""
    seconds = ctx.config.seconds or 1
    place.names["SECONDS"] = str(seconds)
    words = ctx.argv("client", place.words(record.load or record.again))
    before, began, ends = busy_ticks(), time.monotonic(), 0
    while not ends or (record.again and time.monotonic() - began < seconds):
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=60, check=False, cwd=place.dir,
                              stdin=subprocess.DEVNULL, env={**os.environ, "HOME": place.dir})
        check(done.returncode == 0, lambda: f"{shlex.join(words)}: exit {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
        ends += 1
    took, cpu_s = time.monotonic() - began, (busy_ticks() - before) / os.sysconf("SC_CLK_TCK")
    if record.again:
        return ends / took, cpu_s / ends
    found = re.search(record.found, done.stdout + done.stderr)
    check(found, lambda: f"{shlex.join(words)}: no rate in: {done.stdout[-800:]} {done.stderr[-300:]}")
    rate = float(found.group(1))
    check(rate > 0, lambda: f"{shlex.join(words)}: nothing was answered: {done.stdout[-800:]}")
    return rate, cpu_s / (1 if record.less else rate * took)


def shown(values):
    def short(value):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{short(statistics.median(values))} ({short(min(values))} to {short(max(values))})"


def verdict(record, rates, cpu, path):
    kernel, ours = rates["kernel"], rates["postern"]
    ratios = [statistics.median(kernel) / statistics.median(ours), statistics.median(ours) / statistics.median(kernel)]
    ratio = ratios[0] if record.less else ratios[1]
    apart = min(ours) > max(kernel) if record.less else max(ours) < min(kernel)
    spent = statistics.median(cpu["postern"]) / max(statistics.median(cpu["kernel"]), 1e-12)
    text = f"{ratio:.2f}x  {record.unit}: kernel {shown(kernel)}, Postern {shown(ours)}; CPU time {spent:.2f}x; {path}"
    check(not (apart and ratio < WORSE), f"worse: {text}")
    return text


def rate_of(record):
    server = record.server

    def run(ctx):
        serverkit.installed(server)
        serverkit.adopt_orphans()
        os.chmod(ctx.dir, 0o755)
        wrappers, places, started = {"kernel": [], "postern": ctx.config.wrapper}, {}, []
        with posternd_of_its_own(ctx):
            rates, cpu = ({column: [] for column in wrappers} for _ in range(2))
            for column, wrapper in wrappers.items():
                ctx.config.wrapper = wrapper
                places[column] = serverkit.Place(ctx, server, column, 0)
                places[column].names["ASK"] = os.path.join(ctx.config.build, "perf", "answers")
                proc, behind = serverkit.start(ctx, server, places[column])
                started += [(proc, server.stop), *((one, None) for one in behind)]
                measured(ctx, record, places[column])  # what it learns once
            for turn in range(ROUNDS):
                for column in sorted(wrappers, reverse=turn % 2 == 1):
                    ctx.config.wrapper = wrappers[column]
                    rate, spent = measured(ctx, record, places[column])
                    rates[column].append(rate)
                    cpu[column].append(spent)
            look = bool(ctx.config.posternctl)
            path = serverkit.path_of(ctx, places["postern"], look)
            check(not look or (path == ACCELERATED) == (server.path == ACCELERATED),
                  f"connections are '{path}', expected: '{server.path}'")
            for proc, signal in started:
                proc.stop(*([signal] if signal else []), timeout=40)
            serverkit.nobody_left(ctx)
        return verdict(record, rates, cpu, path)
    run.__name__ = f"rate_{record.name or server.name}"
    test(modes=("both",), watchdog_s=600, alone="its rate is what counts")(run)


for one in RATES:
    rate_of(one)
