# lossy.py - bulk transfers between two network namespaces over a link of ours that loses, delays and reorders.
# SPDX-License-Identifier: Apache-2.0
"""Between the namespaces is perf/lossy_relay, which has the same model as the simulator's links: 100 Mbit/s, a queue of one round trip,
losses and late packets on the way of the data only. Either end may be Postern's: its posternd grants the VI of that end's interface, and
the filters of a run are gone before the next one begins.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from .process import BenchError

import netlab

RATE_BPS = 100_000_000
QUEUE_BYTES_MIN = 100_000
PORT_FIRST = 7300
READY_SEC = 20
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "programs", "bulk.py")
PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
# Neither the link nor an end waits for what else runs on the machine: the kernel's TCP, which runs in interrupts, would not either.
FIRST = ["nice", "-n", "-15"]
AUTOGROUP = "/proc/self/autogroup"  # where there is one, it is the session that waits
# Which ends are Postern's: a sends, b receives. Congestion control is the sender's, so that one alone is "Postern".
SIDES = {"kernel": "", "postern": "a", "receiver": "b", "both": "ab"}


class Link(netlab.Lab):
    """The lab with another wire: a program that is as fast as the link."""

    def __init__(self, build, columns):
        super().__init__()
        self.build, self.port, self.daemons = build, PORT_FIRST, {}
        self.wire.stopped = True
        self.wire.join()
        for end in self.wire.ends.values():
            end.close()
        self.write("net/ipv6/conf/all/disable_ipv6", 1)
        for side in "ab":
            self.sysctl(side, "net/ipv4/tcp_no_metrics_save", 1)  # a run must know nothing of the one before
        self.temp = tempfile.TemporaryDirectory(prefix="pstn-loss-")
        self.weigh(-15)
        try:
            for side in sorted(set("".join(SIDES[column] for column in columns))):
                self.start_daemon(side)
        except BaseException:
            self.close()
            raise

    def close(self):
        for side, daemon in self.daemons.items():
            daemon.terminate()
            daemon.wait()
            self.detach(side, 0)
        self.daemons = {}
        self.temp.cleanup()
        self.weigh(0)

    @staticmethod
    def weigh(nice):
        with contextlib.suppress(OSError), open(AUTOGROUP, "w", encoding="ascii") as file:
            file.write(str(nice))

    # ---- Postern's part

    def runtime_dir(self, side):
        return f"{self.temp.name}/{side}"

    def environment(self, side):
        return {"PATH": PATH, "POSTERN_RUNTIME_DIR": self.runtime_dir(side), "HOME": self.temp.name, "POSTERN_DAEMON_SPAWN": "off"}

    def start_daemon(self, side):
        log = f"{self.temp.name}/{side}.log"
        argv = [*FIRST, f"{self.build}/posternd", "--runtime-dir", self.runtime_dir(side), "--foreground", "--idle-sec", "0", "--verbose",
                "--broker", f"{self.temp.name}/none.sock", "--vi", f"v{side}"]
        with self.inside(side), open(log, "wb") as file:
            daemon = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=file, env={"PATH": PATH})
        self.daemons[side] = daemon
        end = time.monotonic() + READY_SEC
        while "ready in" not in self.log(side):
            if daemon.poll() is not None or time.monotonic() > end:
                raise BenchError(f"no posternd: {self.log(side).strip()[-300:]}")
            time.sleep(0.02)

    def log(self, side):
        with open(f"{self.temp.name}/{side}.log", encoding="utf-8") as file:
            return file.read()

    def has_vi(self, side):
        with self.inside(side):
            shown = subprocess.run(["ip", "-d", "link", "show", "dev", f"v{side}"], capture_output=True, text=True, check=True)
        return "xdp" in shown.stdout

    def keepers(self, side):
        netns = os.fstat(self.fds[side]).st_ino
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                if file.read().startswith("postern-keeper") and os.stat(f"/proc/{pid}/ns/net").st_ino == netns:
                    yield int(pid)

    def detach(self, side, wait_sec=READY_SEC):
        """The keeper leaves when the connection is over; one that waits for a link that is gone would wait long."""
        end = time.monotonic() + wait_sec
        while self.has_vi(side) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in self.keepers(side):
            os.kill(pid, signal.SIGKILL)
        if wait_sec and self.has_vi(side):
            raise BenchError(f"the interface is still held: {self.log(side).strip()[-300:]}")

    def opens(self, side):
        """Connections that the kernel's TCP has made there."""
        with self.inside(side), open("/proc/thread-self/net/snmp", encoding="ascii") as file:
            names, values = [line.split() for line in file if line.startswith("Tcp:")]
        counters = dict(zip(names, values))
        return int(counters["ActiveOpens"]) + int(counters["PassiveOpens"])

    # ---- a run

    @contextlib.contextmanager
    def relay(self, point, seed, counts):
        rtt_us = point["rtt_ms"] * 1000
        queue = max(QUEUE_BYTES_MIN, RATE_BPS // 8 * point["rtt_ms"] // 1000)
        argv = [f"{self.build}/perf/lossy_relay", "ma", "mb", f"there:loss={point['loss']}", f"there:late={point['late']}",
                f"there:delay_us={rtt_us // 2}", f"there:late_us={rtt_us // 4}", f"there:rate_bps={RATE_BPS}",
                f"there:queue_bytes={queue}", f"there:seed={seed}", f"back:delay_us={rtt_us // 2}", f"back:seed={seed + 1}"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as relay:
            os.sched_setscheduler(relay.pid, os.SCHED_RR, os.sched_param(1))
            try:
                if relay.stdout.readline() != "ready\n":
                    raise BenchError("the relay does not start")
                yield
            finally:
                relay.send_signal(signal.SIGTERM)
                with contextlib.suppress(ValueError):
                    counts.update(json.loads(relay.communicate(timeout=10)[0]))

    def start(self, side, column, argv):
        is_postern = side in SIDES[column]
        prefix = [f"{self.build}/postern", "-o", f"vi=v{side}"] if is_postern else []
        with self.inside(side):
            return subprocess.Popen([*FIRST, *prefix, sys.executable, PROGRAM, *map(str, argv)], stdout=subprocess.PIPE, text=True,
                                    env=self.environment(side) if is_postern else None)

    @staticmethod
    def said(program, seconds):
        out, _ = program.communicate(timeout=seconds + 60)
        if program.returncode != 0:
            raise BenchError(f"{' '.join(map(str, program.args))}: exit {program.returncode}")
        return json.loads(out)

    def run(self, point, column, seconds, seed):
        """{"mbit_s", "sender": TCP_INFO, "relay": counts}."""
        self.port += 1
        before = {side: self.opens(side) for side in "ab"}
        counts, programs = {}, []
        with self.relay(point, seed, counts):
            try:
                programs.append(self.start("b", column, ["take", self.port, seconds]))
                if programs[0].stdout.readline() != "ready\n":
                    raise BenchError("the receiver does not start")
                programs.append(self.start("a", column, ["give", netlab.V4["b"], self.port, seconds, point["congestion"]]))
                taken, sender = (self.said(program, seconds) for program in programs)
            finally:
                for program in programs:
                    program.kill()
                    program.wait()
                    program.stdout.close()
                for side in SIDES[column]:
                    self.detach(side)
        for side in "ab":
            if (self.opens(side) == before[side]) != (side in SIDES[column]):
                raise BenchError(f"{column}: side {side} has taken the other way: {self.log(side) if side in self.daemons else ''}")
        return {"mbit_s": taken["bytes"] * 8 / taken["seconds"] / 1e6, "sender": sender, "relay": counts["there"]}
