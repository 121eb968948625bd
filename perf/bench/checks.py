# checks.py - the ratios that Postern has to reach, and whether it does.
# SPDX-License-Identifier: Apache-2.0
"""One line for each requirement: PASS or MISS, with figures. Only ratios are required: they travel between machines."""

import math
from dataclasses import dataclass
from statistics import median

OVERHEAD_MAX = 0.02
IDLE_BYTES_MAX = 4096
IDLE_MS_MAX = 5.0  # above the kernel column: less than one tick of top's
BOUND_SHARE_AIM = 0.85
OTHERS_CORES_MAX = 0.1  # the machine isn't quiet if processes that aren't ours use more


@dataclass(frozen=True)
class Ratio:
    """Postern against the kernel, medians, in the direction in which more is better."""

    workload: str
    metric: str
    text: str
    need: float
    aim: float | None = None
    aim_bound_share: float | None = None


RATIOS = (
    Ratio("sockperf-pp-14", "p50", "sockperf 14 B, p50 lower", 10, 25),
    Ratio("msgrate", "rate", "message rate 100 B, ipc-bench's round trips", 10, 30),
    Ratio("msgrate-oneway", "rate", "message rate 100 B, one way", 10, 30),
    Ratio("sockperf-tp-64000", "bandwidth", "sockperf 64000 B bandwidth", 2.5, 3.5),
    Ratio("nginx-1k-c500", "rate", "nginx 1 KiB, wrk -t 1 -c 500", 2, None, BOUND_SHARE_AIM),
    Ratio("nginx-t8-c500", "rate", "nginx 1 KiB, wrk -t 8 -c 500", 1.5),
    Ratio("nginx-close", "rate", "nginx 1 KiB, Connection: close", 2),
    Ratio("redis-c200", "GET", "redis GET c=200", 2),
    Ratio("redis-c200", "SET", "redis SET c=200", 2),
    Ratio("redis-c1", "GET", "redis GET c=1", 3),
    Ratio("redis-c1", "SET", "redis SET c=1", 3),
    # What is required in one network namespace, over a veth pair.
    Ratio("pair-nginx-t1-c500", "rate", "containers: nginx 1 KiB, wrk -t 1 -c 500", 2),
    Ratio("pair-nginx-t8-c500", "rate", "containers: nginx 1 KiB, wrk -t 8 -c 500", 1.5),
    Ratio("pair-redis-c200", "GET", "containers: redis GET c=200", 2),
    Ratio("pair-redis-c200", "SET", "containers: redis SET c=200", 2),
    Ratio("pair-sockperf-pp-14", "p50", "containers: sockperf 14 B, p50 lower", 10),
    # Over a veth pair with AF_XDP, the client on the kernel's TCP.
    Ratio("wire-nginx-c1", "rate", "wire: nginx 1 KiB, wrk -t 1 -c 1", 1),
    Ratio("wire-nginx-c100", "rate", "wire: nginx 1 KiB, wrk -t 1 -c 100", 1),
    Ratio("wire-sockperf-pp-14", "p50", "wire: sockperf 14 B, p50 lower", 1),
)


def ratio_of(result, metric_name, column="postern"):
    """How many times better the column is than the base line, or None."""
    if not result["compared"]:
        return None
    metric = next(m for m in result["metrics"] if m["name"] == metric_name)
    base = result["columns"].get(result["baseline"], {}).get("summary", {}).get(metric_name)
    other = result["columns"].get(column, {}).get("summary", {}).get(metric_name)
    if not base or not other or base["median"] <= 0 or other["median"] <= 0:
        return None
    return other["median"] / base["median"] if metric["higher_is_better"] else base["median"] / other["median"]


def why_missing(result):
    """Why there is no ratio."""
    for name in ("postern", result["baseline"]):
        record = result["columns"].get(name)
        if record is None:
            return f"column {name} wasn't run"
        if record["unavailable"]:
            return record["unavailable"]
        if record["errors"]:
            return f"{record['label']} failed: {record['errors'][0]}"
    return "no figures"


def line(passed, text, figures, result=None):
    """One verdict. Figures that Postern hasn't made can't pass; those of a busy machine say so."""
    if result and result["columns"]["postern"].get("fell_back"):
        passed = False
        figures += ", WENT THROUGH THE KERNEL"
    if result and result["others_cores"] > OTHERS_CORES_MAX:
        figures += f" (others used {result['others_cores']:.2f} cores meanwhile)"
    return {"verdict": "PASS" if passed else "MISS", "text": text, "figures": figures}


def check_ratio(check, result):
    ratio = ratio_of(result, check.metric)
    if ratio is None:
        return line(False, check.text, "not measured: " + why_missing(result))
    figures = f"{ratio:.2f}x, required {check.need:g}x"
    aim = check.aim
    bound = result.get("bound")
    if check.aim_bound_share and bound:
        aim = check.aim_bound_share * bound["ratio"]
        figures += f", bound {bound['ratio']:.2f}x ({100 * ratio / bound['ratio']:.0f} % of it)"
    if aim:
        figures += f", aim {aim:.3g}x {'reached' if ratio >= aim else 'not reached'}"
    return line(ratio >= check.need, check.text, figures, result)


def median_interval(ordered):
    """Where the true median is with 95 % certainty, from the order of the values alone (sign test, normal approximation)."""
    half = 0.98 * len(ordered) ** 0.5
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, math.floor(middle - half))], ordered[min(len(ordered) - 1, math.ceil(middle + half))]


def check_overhead(result):
    runs = [result["columns"].get(name, {"runs": []})["runs"] for name in ("plain", "postern")]
    slices = [[rate for run in column for rate in run["notes"].get("slices", [])] for column in runs]
    slower = sorted(plain / wrapped - 1 for plain, wrapped in zip(*slices))
    text = "overhead: " + result["title"]
    if len(slower) < 3 or why_missing(result) != "no figures":
        return line(False, text, "not measured: " + why_missing(result))
    low, high = median_interval(slower)
    unsure = ", within the noise" if low <= OVERHEAD_MAX < high else ""
    return line(median(slower) <= OVERHEAD_MAX, text,
                f"slower by {100 * median(slower):+.2f} % (95 % sure: {100 * low:+.1f} to {100 * high:+.1f} %, {len(slower)} "
                f"pairs), at most {100 * OVERHEAD_MAX:g} %{unsure}", result)


def check_idle_memory(result):
    text = "memory of an idle connection, Postern's own, both sides"
    records = [result["columns"].get(name, {}).get("summary", {}).get("own") for name in ("kernel", "postern")]
    if not all(records):
        return line(False, text, "not measured: " + why_missing(result))
    own = records[1]["median"] - records[0]["median"]
    return line(own <= IDLE_BYTES_MAX, text, f"{own:.0f} B, at most {IDLE_BYTES_MAX} B", result)


def check_idle_cpu(result):
    text = result["title"]
    records = [result["columns"].get(name, {}).get("summary", {}).get("all") for name in ("kernel", "postern")]
    if not all(records):
        return line(False, text, "not measured: " + why_missing(result))
    kernel, postern = records[0]["median"], records[1]["median"]
    return line(postern <= kernel + IDLE_MS_MAX, text,
                f"{postern:.1f} ms with posternd's, {kernel:.1f} ms without Postern, at most {IDLE_MS_MAX:g} ms more", result)


def can_be(result):
    """Containers take root: an ordinary user has no verdict on them (the table says why)."""
    record = result["columns"].get("postern")
    return not (result["place"] and record and record["unavailable"])


def check_all(results):
    """The lines for all workloads that were run."""
    by_name = {result["name"]: result for result in results}
    lines = [check_ratio(check, by_name[check.workload]) for check in RATIOS if check.workload in by_name and can_be(by_name[check.workload])]
    for result in results:
        if result["name"].startswith("overhead-"):
            lines.append(check_overhead(result))
        elif result["name"] == "idle-memory":
            lines.append(check_idle_memory(result))
        elif result["name"].startswith("idle-cpu-"):
            lines.append(check_idle_cpu(result))
    return lines
