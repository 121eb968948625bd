# svg.py - plots of the results, written as SVG by hand.
# SPDX-License-Identifier: Apache-2.0
"""Two plots: ratio to kernel TCP for all workloads on one logarithmic axis, and a panel with absolute figures for each workload.

Whiskers are minimum and maximum of the runs. A dashed mark is the bound: what a network of no cost would give.
"""

import math
from html import escape

from .checks import ratio_of
from .report import COLUMN_LABELS, number

COLOURS = {"kernel": "#8a8f98", "unix": "#c9a227", "sockmap": "#4f8fc0", "postern": "#b5402f"}
FONT = "font-family='sans-serif' font-size='12'"
TICKS = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100)


class Canvas:
    """Collects elements; y grows downwards."""

    def __init__(self, width, height, title):
        self.parts = [f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
                      f"viewBox='0 0 {width} {height}'>", f"<title>{escape(title)}</title>",
                      f"<rect width='{width}' height='{height}' fill='#ffffff'/>"]

    def text(self, x, y, text, anchor="start", colour="#222222", extra=""):
        self.parts.append(f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{colour}' {FONT} {extra}>"
                          f"{escape(text)}</text>")

    def rect(self, x, y, width, height, colour):
        self.parts.append(f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(width, 0.5):.1f}' height='{height:.1f}' fill='{colour}'/>")

    def line(self, x1, y1, x2, y2, colour="#222222", extra=""):
        self.parts.append(f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' {extra}/>")

    def save(self, path):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(self.parts + ["</svg>"]) + "\n")


def legend(canvas, x, y, names):
    for name in names:
        canvas.rect(x, y - 10, 12, 12, COLOURS[name])
        canvas.text(x + 17, y, COLUMN_LABELS[name])
        x += 35 + 8 * len(COLUMN_LABELS[name])


def ratio_range(result, metric, name):
    """Lowest and highest ratio of this column's runs to the base line's median."""
    base = result["columns"][result["baseline"]]["summary"][metric["name"]]["median"]
    summary = result["columns"][name]["summary"][metric["name"]]
    if metric["higher_is_better"]:
        return summary["min"] / base, summary["max"] / base
    return base / summary["max"], base / max(summary["min"], 1e-9)


def plot_ratios(results, path):
    """Horizontal bars, one group for each workload. Returns whether there was anything to draw."""
    rows = []
    for result in results:
        metric = result["metrics"][0]
        bars = [(name, ratio_of(result, metric["name"], name)) for name in COLOURS if name != "kernel"]
        bars = [(name, ratio) for name, ratio in bars if ratio and ratio > 0]
        if bars and result["baseline"] == "kernel":
            rows.append((result, metric, bars))
    if not rows:
        return False
    left, width, bar_height, top = 330, 560, 13, 60
    height = top + sum(len(bars) * bar_height + 14 for _, _, bars in rows) + 40
    canvas = Canvas(left + width + 70, height, "Ratio to kernel TCP")

    def x_of(ratio):
        low, high = math.log(TICKS[0]), math.log(TICKS[-1])
        return left + width * (math.log(min(max(ratio, TICKS[0]), TICKS[-1])) - low) / (high - low)

    canvas.text(10, 22, "How many times better than kernel TCP (logarithmic; dashed: bound)", extra="font-weight='bold'")
    legend(canvas, 10, 44, [name for name in COLOURS if any(name == bar for _, _, bars in rows for bar, _ in bars)])
    for tick in TICKS:
        canvas.line(x_of(tick), top, x_of(tick), height - 25, "#222222" if tick == 1 else "#dddddd")
        canvas.text(x_of(tick), height - 10, f"{tick:g}x", "middle")
    y = top + 6
    for result, metric, bars in rows:
        canvas.text(left - 8, y + len(bars) * bar_height / 2 + 4, f"{result['name']}, {metric['name']}", "end")
        start = y
        for name, ratio in bars:
            x0, x1 = sorted((x_of(1), x_of(ratio)))
            canvas.rect(x0, y, x1 - x0, bar_height - 2, COLOURS[name])
            low, high = ratio_range(result, metric, name)
            canvas.line(x_of(low), y + bar_height / 2 - 1, x_of(high), y + bar_height / 2 - 1)
            how = " (through the kernel)" if result["columns"][name].get("fell_back") else ""
            canvas.text(max(x_of(high), x1, x_of(1)) + 5, y + bar_height - 3, f"{ratio:.2f}x{how}")
            y += bar_height
        if result.get("bound"):
            x = x_of(result["bound"]["ratio"])
            canvas.line(x, start - 3, x, y + 1, "#222222", "stroke-dasharray='3,2'")
        y += 14
    canvas.save(path)
    return True


def plot_values(results, path):
    """A panel for each workload, with the absolute figures of all its columns."""
    panels = []
    for result in results:
        metric = result["metrics"][0]
        bars = [(name, record["summary"][metric["name"]]) for name, record in result["columns"].items()
                if name in COLOURS and metric["name"] in record["summary"]]
        if bars and result["baseline"] == "kernel":
            panels.append((result, metric, bars))
    if not panels:
        return False
    across, panel_width, panel_height = 3, 300, 190
    rows = -(-len(panels) // across)
    canvas = Canvas(across * panel_width, rows * panel_height + 40, "Benchmark results")
    legend(canvas, 10, 22, [name for name in COLOURS if any(name == bar for _, _, bars in panels for bar, _ in bars)])
    for index, panel in enumerate(panels):
        draw_panel(canvas, (index % across) * panel_width, index // across * panel_height + 40, panel)
    canvas.save(path)
    return True


def draw_panel(canvas, left, top, panel):
    result, metric, bars = panel
    height, bar_width = 110, 44
    best = "more is better" if metric["higher_is_better"] else "less is better"
    canvas.text(left + 12, top + 16, f"{result['name']}, {metric['name']}", extra="font-weight='bold'")
    canvas.text(left + 12, top + 31, f"{metric['unit']}, {best}", colour="#666666")
    bottom = top + 50 + height
    highest = max(summary["max"] for _, summary in bars) or 1
    canvas.line(left + 12, bottom, left + 280, bottom)
    for position, (name, summary) in enumerate(bars):
        x = left + 22 + position * (bar_width + 20)

        def y_of(value):
            return bottom - height * max(value, 0) / highest

        canvas.rect(x, y_of(summary["median"]), bar_width, bottom - y_of(summary["median"]), COLOURS[name])
        middle = x + bar_width / 2
        canvas.line(middle, y_of(summary["min"]), middle, y_of(summary["max"]))
        canvas.text(middle, y_of(summary["max"]) - 4, number(summary["median"]), "middle")
