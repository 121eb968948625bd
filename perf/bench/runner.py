# runner.py - runs workloads round by round, the columns next to each other in each round.
# SPDX-License-Identifier: Apache-2.0
"""From workloads to results: plain dictionaries, as they are written to the JSON file.

Columns are interleaved so that a machine that gets slower (a neighbour, the clock, the temperature) gets slower for all of them,
and their order turns round from one round to the next, so that none always follows the same.
"""

import time
from statistics import median

from . import process
from .process import BenchError
from .session import Sample

KERNEL_PATH_SHARE_MAX = 0.01  # more kernel connections than this share of the kernel column's: Postern fell back


def sample_record(sample):
    def cpu(value):
        return None if value is None else {"user": round(value.user, 4), "system": round(value.system, 4)}

    return {"values": sample.values, "errors": sample.errors, "notes": sample.notes, "wall_s": round(sample.wall, 4),
            "kept_s": round(sample.kept_s, 4), "server_cpu_s": cpu(sample.server_cpu), "client_cpu_s": cpu(sample.client_cpu),
            "kernel_connections": sample.kernel_connections}


def run_round(workload, session, columns, records):
    """One round of the columns that haven't failed yet, in this order."""
    columns = [column for column in columns if not records[column.name]["errors"]]
    if not hasattr(workload, "run_round"):
        return {column.name: run_once(workload, session, column) for column in columns}
    try:
        return workload.run_round(session, columns)
    except BenchError as error:
        return {column.name: Sample(errors=[str(error)]) for column in columns}


def run_once(workload, session, column):
    """One run; whatever goes wrong ends up in the sample's errors."""
    redirected = column.sockmap.counts()["redirected"] if column.sockmap else 0
    try:
        sample = workload.run(session, column)
    except BenchError as error:
        sample = Sample(errors=[str(error)])
    if column.sockmap:
        sample.notes["redirected"] = column.sockmap.counts()["redirected"] - redirected
    return sample


def runs_of(workload, column, asked, quick):
    """How often. --quick keeps the asked number where a ratio is required, and there for the two columns that it is made of."""
    if workload.runs_min > 1:
        return max(asked, workload.runs_min if quick else workload.runs_full)
    return 1 if quick and not (workload.key and column.name in ("kernel", "postern")) else asked


def run_workload(workload, session, columns, asked):
    """All rounds of one workload. A column that fails once isn't run again."""
    start, used = time.monotonic(), process.seconds_used_by_all()
    records = {}
    usable = []
    for column in workload.columns(columns):
        reason = workload.unavailable(column)
        if not reason and session.quick and workload.quick_columns and column.name not in workload.quick_columns:
            reason = "not part of --quick"
        records[column.name] = {"label": column.label, "unavailable": reason, "errors": [], "runs": []}
        if not reason:
            usable.append(column)
    runs = {column.name: runs_of(workload, column, asked, session.quick) for column in usable}
    for number in range(max(runs.values(), default=0)):
        order = [column for column in usable if number < runs[column.name]]
        for name, sample in run_round(workload, session, order if number % 2 == 0 else order[::-1], records).items():
            records[name]["runs"].append(sample_record(sample))
            records[name]["errors"] = sample.errors
    for record in records.values():
        summarise(workload, record)
    result = {"name": workload.name, "title": workload.title, "baseline": workload.baseline, "columns": records,
              "compared": workload.compared, "place": workload.place,
              "metrics": [{"name": m.name, "unit": m.unit, "higher_is_better": m.higher_is_better}
                          for m in workload.metrics]}
    result["bound"] = bound_of(workload, records.get("kernel"))
    mark_fallback(result)
    took = time.monotonic() - start
    everybody, own = (after - before for after, before in zip(process.seconds_used_by_all(), used))
    result["took_s"] = round(took, 1)
    result["others_cores"] = round(max(everybody - own, 0) / took, 3) if took > 1 else 0.0
    return result


def summarise(workload, record):
    """Median, minimum and maximum of each metric."""
    record["summary"] = {}
    if record["errors"]:
        return
    for metric in workload.metrics:
        values = [run["values"][metric.name] for run in record["runs"] if metric.name in run["values"]]
        if values:
            record["summary"][metric.name] = {"median": median(values), "min": min(values), "max": max(values)}


def bound_of(workload, record):
    """How much faster a network that costs nothing would make this, from the CPU times of the kernel column.

    What is left then is user time, and what the server does with files. With a core for each side it is total CPU time / what
    is left, of the side where that is less. (Not wall time: a neighbour may have had part of the core.) With one request at a time
    the sides take turns and sleep in between, so there it is wall time / what is left of both.
    """
    runs = [run for run in record["runs"] if run["server_cpu_s"] and run["client_cpu_s"]] if record else []
    if not workload.bound or not runs or record["errors"]:
        return None

    def total(function):  # of all runs: the kernel's accounting samples, and one short run may hold no sample of user time
        return sum(function(run) for run in runs)

    wall = total(lambda run: run["wall_s"])
    server_user, client_user = (total(lambda run, side=side: run[side]["user"]) for side in ("server_cpu_s", "client_cpu_s"))
    server_all, client_all = (total(lambda run, side=side: sum(run[side].values())) for side in ("server_cpu_s", "client_cpu_s"))
    kept = total(lambda run: run["kept_s"])
    if min(server_user, client_user) <= 0:
        return None
    if workload.bound == "serial":
        ratio = wall / (server_user + kept + client_user)
    else:
        ratio = min(server_all / (server_user + kept), client_all / client_user)
    return {"kind": workload.bound, "ratio": ratio, "server_busy": server_all / wall, "client_busy": client_all / wall,
            "server_user_share": server_user / server_all, "client_user_share": client_user / client_all,
            "server_file_share": kept / server_all}


def mark_fallback(result):
    """Says in Postern's columns in how many runs connections went through the kernel after all, if any did."""
    if result["baseline"] != "kernel":
        return

    def connections(column):
        return [run["kernel_connections"] for run in result["columns"].get(column, {"runs": []})["runs"]
                if run["kernel_connections"] is not None]

    in_kernel = median(connections("kernel") or [0])
    for name in ("postern", "both"):
        seen = connections(name)
        if not seen:
            continue
        record = result["columns"][name]
        fell_back = sum(count >= 1 and count > in_kernel * KERNEL_PATH_SHARE_MAX for count in seen)
        record["fell_back"] = f"in {fell_back} of {len(seen)} runs connections went through kernel TCP, not through Postern" if fell_back else ""
        record["kernel_connections"] = max(seen)
        if result["place"] == "containers":
            record["accelerated"] = accelerated_text(record["runs"])


def accelerated_text(runs):
    """posternctl's word on the connections of these runs, the worst of them."""
    seen = [run["notes"] for run in runs if run["notes"].get("connections")]
    if len(seen) < len(runs) or not runs:
        return "whether they were accelerated was not seen"
    worst = min(seen, key=lambda notes: notes["accelerated"] / notes["connections"])
    reasons = ", ".join(worst["reasons"])
    return f"{worst['accelerated']} of {worst['connections']} connections accelerated{f' ({reasons})' if reasons else ''}"
