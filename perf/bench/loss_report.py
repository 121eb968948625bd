# loss_report.py - goodput by loss as a table, a plot, and the verdicts on it.
# SPDX-License-Identifier: Apache-2.0
"""A point is {"congestion", "rtt_ms", "late", "loss", "columns": {name: {"mbit_s": median, "runs": [...]}}}.

Random losses make random goodput: a run of ten seconds has seen a few hundred of them, or a few. So a column counts as less than the
kernel's only if its mean is so by more than chance explains (two standard errors of the difference), or if its median is by more than
SHORT_MAX, which no number of runs excuses.
"""

import math
from statistics import fmean, median, variance

from .svg import Canvas

COLOURS = {"kernel": "#8a8f98", "postern": "#b5402f", "receiver": "#c9a227", "both": "#6a8f3c", "sim": "#4f8fc0"}
LABELS = {"kernel": "kernel TCP", "postern": "Postern sends", "receiver": "Postern receives", "both": "Postern, both ends",
          "sim": "Postern, simulated"}
SHORT_MAX = 0.15
CHANCE_MIN = 0.01  # of a point without losses, whose runs agree better than machines keep time


def kind(point):
    return point["congestion"], point["late"], point["rtt_ms"]


def title(point):
    return f"{point['congestion']:5} rtt {point['rtt_ms']:3} ms  late {point['late'] * 100:2.0f} %  loss {point['loss'] * 100:4.1f} %"


def show(points, columns):
    """Medians, and below them the extremes."""
    print(f"{'Mbit/s':38}" + "".join(f"{LABELS[name]:>26}" for name in columns))
    for point in points:
        cells = ""
        for name in columns:
            cell = point["columns"].get(name)
            text = "-" if not cell else f"{cell['mbit_s']:.2f}"
            if cell and len(cell["runs"]) > 1:
                text += f" ({min(cell['runs']):.2f} - {max(cell['runs']):.2f})"
            cells += f"{text:>26}"
        print(f"{title(point):38}{cells}")


# ---- verdicts

def relative_error(runs):
    """Of their mean."""
    return math.sqrt(variance(runs) / len(runs)) / fmean(runs) if len(runs) > 1 else 0.0


def verdict(text, ratio, middle, chance):
    chance = max(chance, CHANCE_MIN)
    passed = ratio >= 1 - chance and middle >= 1 - SHORT_MAX
    unsure = ", within chance" if passed and ratio < 1 else ""
    return {"verdict": "PASS" if passed else "MISS", "text": text,
            "figures": f"{ratio:.3f}x the kernel's (medians {middle:.3f}x), required 1x less chance ({chance * 100:.1f} %){unsure}"}


def against_kernel(point, name):
    """A column's goodput by the kernel's: of the means, of the medians, and what chance explains."""
    runs, kernel = (point["columns"][column]["runs"] for column in (name, "kernel"))
    chance = 2 * math.hypot(relative_error(runs), relative_error(kernel))
    return fmean(runs) / fmean(kernel), median(runs) / median(kernel), chance


def calm(points, point, name):
    """The same link without late packets."""
    return next((p for p in points if kind(p) == (point["congestion"], 0, point["rtt_ms"]) and p["loss"] == point["loss"]
                 and name in p["columns"]), None)


def check(points, columns):
    """A line for each point and column of Postern's. Where packets are late and none is lost, of what is left of the same link without."""
    lines = []
    for name in (column for column in columns if column not in ("kernel", "sim")):
        for point in (p for p in points if {name, "kernel"} <= set(p["columns"])):
            ratio, middle, chance = against_kernel(point, name)
            text = f"{LABELS[name]}: {title(point)}"
            other = calm(points, point, name) if point["late"] and not point["loss"] else None
            if other:
                calm_ratio, calm_middle, calm_chance = against_kernel(other, name)
                ratio, middle, chance, text = ratio / calm_ratio, middle / calm_middle, math.hypot(chance, calm_chance), text + ": what is left"
            lines.append(verdict(text, ratio, middle, chance))
    return lines


# ---- plot

def plot(points, columns, path):
    """A panel for each round trip, reordering and congestion control; goodput on a logarithmic axis by loss. Whiskers: all runs."""
    kinds = sorted({kind(point) for point in points})
    width, height, across = 300, 220, min(3, len(kinds))
    canvas = Canvas(max(width * across, 160 * len(columns) + 20), 50 + height * -(-len(kinds) // across), "Goodput by loss")
    canvas.text(10, 20, "Goodput by loss, Mbit/s (logarithmic), 100 Mbit/s link", extra="font-weight='bold'")
    for number, name in enumerate(columns):
        canvas.rect(10 + 160 * number, 30, 12, 12, COLOURS[name])
        canvas.text(27 + 160 * number, 40, LABELS[name])
    for number, chosen in enumerate(kinds):
        panel(canvas, (number % across * width + 40, number // across * height + 75, width - 70, height - 70),
              [point for point in points if kind(point) == chosen], columns)
    canvas.save(path)


def panel(canvas, box, points, columns):
    left, top, width, height = box
    losses = sorted({point["loss"] for point in points})
    congestion, late, rtt_ms = kind(points[0])
    canvas.text(left, top - 8, f"{congestion}, {rtt_ms} ms, {late * 100:.0f} % late", extra="font-weight='bold'")

    def at(loss, value):
        x = left + width * losses.index(loss) / max(len(losses) - 1, 1)
        return x, top + height * (1 - math.log10(max(value, 0.1) / 0.1) / 3)

    for value in (0.1, 1, 10, 100):
        _, y = at(losses[0], value)
        canvas.line(left, y, left + width, y, "#dddddd")
        canvas.text(left - 4, y + 4, f"{value:g}", "end")
    for loss in losses:
        canvas.text(at(loss, 0.1)[0], top + height + 18, f"{loss * 100:g} %", "middle")
    for name in columns:
        cells = [(point["loss"], point["columns"][name]) for point in points if name in point["columns"]]
        line = [at(loss, cell["mbit_s"]) for loss, cell in cells]
        for (x1, y1), (x2, y2) in zip(line, line[1:]):
            canvas.line(x1, y1, x2, y2, COLOURS[name], "stroke-width='2'" + (" stroke-dasharray='5,3'" if name == "sim" else ""))
        for (x, y), (loss, cell) in zip(line, cells):
            canvas.rect(x - 2, y - 2, 4, 4, COLOURS[name])
            canvas.line(x, at(loss, min(cell["runs"]))[1], x, at(loss, max(cell["runs"]))[1], COLOURS[name])
