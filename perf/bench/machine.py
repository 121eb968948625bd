# machine.py - on what was measured: processor, kernel, versions. No names and no addresses.
# SPDX-License-Identifier: Apache-2.0
"""What has to stand beside a figure so that it can be judged later."""

import os
import platform
import re
import shutil
import subprocess
import time

from .process import read_text

VERSIONS = {
    "nginx": ["nginx", "-v"],
    "wrk": ["wrk", "-v"],
    "redis": ["redis-server", "--version"],
    "sockperf": ["sockperf", "--version"],
    "iperf3": ["iperf3", "--version"],
}


def first_line(argv):
    if not shutil.which(argv[0]):
        return "missing"
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=5, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr).strip()
    return text.splitlines()[0].strip() if text else "unknown"


def cpu_model():
    found = re.search(r"^model name\s*: (.*)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def tree_version(root):
    """Commit of the tree, with "+" if it has changes."""
    git = ["git", "-C", root]
    commit = subprocess.run(git + ["rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if commit.returncode != 0:
        return "no commit"
    changed = subprocess.run(git + ["status", "--porcelain"], capture_output=True, text=True, check=False)
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


def describe(root, postern_prefix):
    versions = {name: first_line(argv) for name, argv in VERSIONS.items()}
    versions["postern"] = first_line(postern_prefix + ["--version"]) if postern_prefix else "missing"
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "virtual": " hypervisor" in read_text("/proc/cpuinfo"),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "load_before": read_text("/proc/loadavg").split()[:3],
        "tree": tree_version(root),
        "versions": versions,
        "when": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def cpu_ticks():
    """(all, idle, stolen) ticks of all CPUs since boot."""
    fields = [int(field) for field in read_text("/proc/stat").splitlines()[0].split()[1:]]
    return sum(fields[:8]), fields[3] + fields[4], fields[7]
