# report.py - results as Markdown, and as lines for the terminal while the bench runs.
# SPDX-License-Identifier: Apache-2.0
"""Text from results. Every empty cell says why it is empty, in a note below the table."""

from .checks import ratio_of

COLUMN_LABELS = {"kernel": "kernel TCP", "unix": "Unix socket", "sockmap": "BPF sockmap", "postern": "Postern", "both": "Postern, both sides"}


def number(value):
    """Four significant digits, thousands apart."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.4g}"


def spread(summary):
    return f"{number(summary['median'])} ({number(summary['min'])} - {number(summary['max'])})"


def terminal_line(result):
    """One workload in a few lines."""
    metric = result["metrics"][0]
    lines = [f"{result['name']}: {result['title']} [{metric['unit']}] ({result['took_s']:.0f} s)"]
    for name, record in result["columns"].items():
        if record["unavailable"]:
            lines.append(f"  {record['label']:<16} -  {record['unavailable']}")
        elif record["errors"]:
            lines.append(f"  {record['label']:<16} FAILED  {record['errors'][0]}")
        elif metric["name"] in record["summary"]:
            ratio = ratio_of(result, metric["name"], name)
            ratio_text = f"  {ratio:.2f}x" if ratio and name != result["baseline"] else ""
            mark = record.get("accelerated") or record.get("fell_back")
            mark = f"  {mark}" if mark else ""
            lines.append(f"  {record['label']:<16} {spread(record['summary'][metric['name']])}{ratio_text}{mark}")
    if result.get("bound"):
        bound = result["bound"]
        lines.append(f"  {'bound':<16} {bound['ratio']:.2f}x  (user time of what the kernel run used: server "
                     f"{100 * bound['server_user_share']:.0f} %, client {100 * bound['client_user_share']:.0f} %; "
                     f"files {100 * bound['server_file_share']:.0f} %)")
    return "\n".join(lines)


class Notes:
    """Numbered foot notes; equal texts share a number."""

    def __init__(self):
        self.texts = []

    def mark(self, text):
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"

    def lines(self):
        return [f"{number}. {text}" for number, text in enumerate(self.texts, 1)]


def cell(result, name, metric, notes):
    record = result["columns"].get(name)
    if record is None:
        return ""
    if record["unavailable"]:
        return "- " + notes.mark(record["unavailable"])
    if record["errors"]:
        return "**FAILED** " + notes.mark(f"{result['name']}, {record['label']}: {record['errors'][0]}")
    summary = record["summary"].get(metric["name"])
    if not summary:
        return ""
    text = spread(summary)
    ratio = ratio_of(result, metric["name"], name)
    if ratio and name != result["baseline"]:
        text += f" **{ratio:.2f}x**" if name == "postern" else f" {ratio:.2f}x"
    mark = record.get("accelerated") or record.get("fell_back")
    return f"{text} {notes.mark(mark)}" if mark else text


def table(results, names, notes, metric_index):
    head = ["workload", "unit"] + [COLUMN_LABELS[name] for name in names] + ["bound"]
    lines = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(names) + 1) + "|"]
    for result in results:
        for index, metric in enumerate(result["metrics"]):
            if (index == 0) != (metric_index == 0):
                continue
            bound = f"{result['bound']['ratio']:.2f}x" if result.get("bound") and index == 0 else ""
            title = result["title"] if index == 0 else f"{result['name']}: {metric['name']}"
            if index == 0 and len(result["metrics"]) > 1:
                title += f", {metric['name']}"
            cells = [cell(result, name, metric, notes) for name in names]
            lines.append("| " + " | ".join([title, metric["unit"]] + cells + [bound]) + " |")
    return lines


def overhead_table(results, notes):
    lines = ["| program | unit | without Postern | Postern |", "|---|---|---:|---:|"]
    for result in results:
        metric = result["metrics"][0]
        cells = [cell(result, name, metric, notes) for name in ("plain", "postern")]
        lines.append("| " + " | ".join([result["title"], metric["unit"]] + cells) + " |")
    return lines


def markdown(document, figures=()):
    """The whole report. figures are file names of plots beside it."""
    machine, settings = document["machine"], document["settings"]
    notes = Notes()
    lines = ["# Postern: benchmark results", "",
             f"{machine['when']}, tree {machine['tree']}, run as {machine['user']} user"
             f"{', --quick: fewer and shorter runs than the titles say' if settings['quick'] else ''}.",
             "", f"- CPU: {machine['cpu']}, {machine['cores']} cores{' (virtual)' if machine['virtual'] else ''}, "
             f"{machine['memory_gib']} GiB", f"- kernel: {machine['kernel']}"]
    lines += [f"- {name}: {text}" for name, text in machine["versions"].items()]
    lines += [f"- load before: {' '.join(machine['load_before'])}; stolen while running: {settings['stolen_percent']:.2f} %", "",
              "Server on one core, client on the other. Median (minimum - maximum), then the ratio to kernel TCP in the "
              "direction in which more is better. *bound* is what a network of no cost would give. Absolute figures are this "
              "machine's; ratios travel.", ""]
    pairs, wire = ([result for result in document["results"] if result.get("place") == place] for place in ("containers", "wire"))
    main = [result for result in document["results"] if result["baseline"] == "kernel" and not result.get("place")]
    names = [name for name in COLUMN_LABELS if any(name in result["columns"] for result in main)]
    if main:
        lines += table(main, names, notes, 0) + [""]
    for name in figures:
        lines += [f"![{name}]({name})", ""]
    if pairs:
        lines += ["## Between two containers", "", "Kernel TCP over a veth pair. A ratio counts for Postern only as far as the note "
                  "says that connections were accelerated.", ""]
        lines += table(pairs, ["kernel", "postern"], notes, 0) + [""]
    if wire:
        lines += ["## Over the wire", "", "A veth pair between two network namespaces, of whose packets Postern's sides take theirs with AF_XDP, or (TAP) from the kernel's segmentation. "
                  "*Postern* is the server alone, its client is on the kernel's TCP.", ""]
        for index in (0, 1) if any(len(result["metrics"]) > 1 for result in wire) else (0,):
            lines += table(wire, ["kernel", "postern", "both"], notes, index) + [""]
    overhead = [result for result in document["results"] if result["baseline"] == "plain"]
    if overhead:
        lines += ["## Programs that Postern can do nothing for", ""] + overhead_table(overhead, notes) + [""]
    if any(len(result["metrics"]) > 1 for result in main + pairs):
        lines += ["## Further figures of the same runs", ""] + table(main + pairs, names or ["kernel", "postern"], notes, 1) + [""]
    if notes.texts:
        lines += ["## Notes", ""] + notes.lines() + [""]
    if document["checks"]:
        lines += ["## Required ratios", "", "| | requirement | figures |", "|---|---|---|"]
        lines += [f"| {check['verdict']} | {check['text']} | {check['figures']} |" for check in document["checks"]] + [""]
    return "\n".join(lines)
