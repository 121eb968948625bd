#!/usr/bin/python3
# loss.py - goodput by loss: the kernel's own TCP, and Postern's, over a link of ours that loses, delays and reorders.
# SPDX-License-Identifier: Apache-2.0
#
#   loss.py [--build build] [--columns kernel,sim] [--seconds 5] [--runs 3] [--rtt 20,40,100] [--loss 0,0.001,0.01,0.05,0.1]
#           [--late 0,0.1] [--congestion cubic] [--out build/perf/loss]
#
# Two network namespaces, and between them perf/lossy_relay, which has the same model as the simulator's links: 100 Mbit/s, a queue
# of one round trip, losses and late packets on the way of the data only. One bulk transfer for each point; what its receiver has
# taken in --seconds counts. Columns: `kernel`; `postern`, the same programs under the wrapper (both ends), a wire path between the
# namespaces being there; `sim`, the simulator's table for comparison. Root. Writes OUT.json and OUT.svg, prints a table.

import argparse
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "tests", "programs")]
import netlab  # noqa: E402
from bench import machine  # noqa: E402
from bench.svg import Canvas  # noqa: E402

RATE_BPS = 100_000_000
PORT = 7300
TCP_CONGESTION = 13
COLOURS = {"kernel": "#8a8f98", "postern": "#b5402f", "sim": "#4f8fc0"}
LABELS = {"kernel": "kernel TCP", "postern": "Postern", "sim": "Postern, simulated"}


# ---- the two programs: this file again, in a namespace

def serve(seconds):
    """Takes one connection, and prints what came of it."""
    with socket.create_server(("0.0.0.0", PORT)) as listener:
        print("ready", flush=True)
        conn, _ = listener.accept()
    with conn:
        conn.settimeout(1)
        taken, begun = 0, time.monotonic()
        while (now := time.monotonic()) - begun < seconds:
            try:
                data = conn.recv(1 << 18)
            except TimeoutError:
                continue
            if not data:
                break
            taken += len(data)
    print(json.dumps({"bytes": taken, "seconds": now - begun}))


def send(seconds, congestion):
    with socket.socket() as conn:
        conn.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())
        conn.connect((netlab.V4["b"], PORT))
        conn.settimeout(1)
        data, begun = bytes(1 << 17), time.monotonic()
        while time.monotonic() - begun < seconds + 2:
            try:
                conn.send(data)
            except TimeoutError:
                continue
            except OSError:
                break  # the receiver has had enough


# ---- a point

class RelayLab(netlab.Lab):
    """The lab with another wire: a program that is as fast as the link."""

    def __init__(self, build):
        super().__init__()
        self.build = build
        self.wire.stopped = True
        self.wire.join()
        for end in self.wire.ends.values():
            end.close()
        self.write("net/ipv6/conf/all/disable_ipv6", 1)
        for side in "ab":
            self.sysctl(side, "net/ipv4/tcp_no_metrics_save", 1)  # a point must know nothing of the one before

    def relay(self, rtt_ms, loss, late, seed):
        queue = max(100_000, RATE_BPS // 8 * rtt_ms // 1000)
        half = rtt_ms * 500
        argv = [f"{self.build}/perf/lossy_relay", "ma", "mb", f"there:loss={loss}", f"there:late={late}", f"there:delay_us={half}",
                f"there:late_us={rtt_ms * 250}", f"there:rate_bps={RATE_BPS}", f"there:queue_bytes={queue}", f"there:seed={seed}",
                f"back:delay_us={half}", f"back:seed={seed + 1}"]
        relay = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        if relay.stdout.readline() != "ready\n":
            raise RuntimeError("the relay does not start")
        return relay

    def start(self, side, argv, prefix):
        with self.inside(side):
            return subprocess.Popen(prefix + [sys.executable, os.path.abspath(__file__), *argv], stdout=subprocess.PIPE, text=True)

    def measure(self, point, seconds, seed, prefix):
        relay = self.relay(point["rtt_ms"], point["loss"], point["late"], seed)
        server = client = None
        try:
            server = self.start("b", ["--serve", str(seconds)], prefix)
            if server.stdout.readline() != "ready\n":
                raise RuntimeError("the receiver does not start")
            client = self.start("a", ["--send", str(seconds), "--congestion", point["congestion"]], prefix)
            taken = json.loads(server.communicate(timeout=seconds + 60)[0])
        finally:
            for program in (client, server):
                if program is not None and program.poll() is None:
                    program.kill()
                    program.wait()
            relay.send_signal(signal.SIGTERM)
            counts = json.loads(relay.communicate(timeout=10)[0])
        return {"mbit_s": taken["bytes"] * 8 / taken["seconds"] / 1e6, "relay": counts["there"]}


# ---- results

def same(point, other):
    return all(math.isclose(point[name], other[name]) if name != "congestion" else point[name] == other[name]
               for name in ("congestion", "rtt_ms", "loss", "late"))


def simulate(build, points):
    """The simulator's figures for these points; where it has none, none."""
    known = json.loads(subprocess.run([f"{build}/tests/sim/netsim", "--json"], check=True, capture_output=True, text=True).stdout)
    for point in points:
        found = [entry for entry in known if same(point, entry)]
        if found:
            point["columns"]["sim"] = {"mbit_s": found[0]["mbit_s"], "runs": [found[0]["mbit_s"]]}
            point["formula_mbit_s"] = found[0]["formula_mbit_s"]


def show(points, columns):
    print(f"{'':38}" + "".join(f"{LABELS[name]:>22}" for name in columns))
    for point in points:
        cells = [point["columns"].get(name) for name in columns]
        text = "".join(f"{cell['mbit_s']:>15.2f} Mbit/s" if cell else f"{'-':>22}" for cell in cells)
        print(f"{point['congestion']:5} rtt {point['rtt_ms']:3} ms  late {point['late'] * 100:2.0f} %  loss {point['loss'] * 100:4.1f} %  {text}")


def plot(points, columns, path):
    """A panel for each round trip, reordering and congestion control; goodput on a logarithmic axis by loss."""
    kinds = sorted({(p["congestion"], p["late"], p["rtt_ms"]) for p in points})
    width, height, across = 300, 220, 3
    canvas = Canvas(width * across, 50 + height * -(-len(kinds) // across), "Goodput by loss")
    canvas.text(10, 20, "Goodput by loss, Mbit/s (logarithmic), 100 Mbit/s link", extra="font-weight='bold'")
    for number, name in enumerate(columns):
        canvas.rect(10 + 170 * number, 30, 12, 12, COLOURS[name])
        canvas.text(27 + 170 * number, 40, LABELS[name])
    losses = sorted({p["loss"] for p in points})
    for number, kind in enumerate(kinds):
        left, top = number % across * width + 40, number // across * height + 75
        canvas.text(left, top - 8, f"{kind[0]}, {kind[2]} ms, {kind[1] * 100:.0f} % late", extra="font-weight='bold'")

        def at(loss, value, left=left, top=top):
            x = left + (width - 70) * losses.index(loss) / max(len(losses) - 1, 1)
            return x, top + (height - 70) * (1 - math.log10(max(value, 0.1) / 0.1) / 3)

        for value in (0.1, 1, 10, 100):
            _, y = at(losses[0], value)
            canvas.line(left, y, left + width - 70, y, "#dddddd")
            canvas.text(left - 4, y + 4, f"{value:g}", "end")
        for loss in losses:
            canvas.text(at(loss, 0.1)[0], top + height - 52, f"{loss * 100:g} %", "middle")
        for name in columns:
            line = [at(p["loss"], p["columns"][name]["mbit_s"]) for p in points
                    if (p["congestion"], p["late"], p["rtt_ms"]) == kind and name in p["columns"]]
            for (x1, y1), (x2, y2) in zip(line, line[1:]):
                canvas.line(x1, y1, x2, y2, COLOURS[name], "stroke-width='2'" + (" stroke-dasharray='5,3'" if name == "sim" else ""))
            for x, y in line:
                canvas.rect(x - 2, y - 2, 4, 4, COLOURS[name])
    canvas.save(path)


def numbers(text, kind):
    return [kind(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--columns", default="kernel,sim")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rtt", default="20,40,100")
    parser.add_argument("--loss", default="0,0.001,0.01,0.05,0.1")
    parser.add_argument("--late", default="0,0.1")
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--out")
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--send", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve)
    if args.send:
        return send(args.send, args.congestion)
    columns = args.columns.split(",")
    build = os.path.abspath(args.build)
    points = [{"congestion": congestion, "rtt_ms": rtt_ms, "late": late, "loss": loss, "columns": {}}
              for congestion in args.congestion.split(",") for rtt_ms in numbers(args.rtt, int)
              for late in numbers(args.late, float) for loss in numbers(args.loss, float)]
    prefixes = {"kernel": [], "postern": [f"{build}/postern"]}
    document = {"machine": machine.describe(os.path.join(HERE, ".."), prefixes["postern"]), "rate_bps": RATE_BPS,
                "seconds": args.seconds, "points": points}
    if set(columns) & set(prefixes):
        lab = RelayLab(build)
        for point in points:
            for name in (column for column in columns if column in prefixes):
                runs = [lab.measure(point, args.seconds, 1000 + run, prefixes[name]) for run in range(args.runs)]
                rates = [run["mbit_s"] for run in runs]
                point["columns"][name] = {"mbit_s": statistics.median(rates), "runs": rates, "relay": [run["relay"] for run in runs]}
            print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    if "sim" in columns:
        simulate(build, points)
    show(points, columns)
    out = args.out or f"{build}/perf/loss"
    with open(f"{out}.json", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    plot(points, columns, f"{out}.svg")
    print(f"written: {out}.json {out}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
