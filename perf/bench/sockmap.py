# sockmap.py - loads the BPF sockmap program for the bench's own cgroup, and takes it away again.
# SPDX-License-Identifier: Apache-2.0
"""The BPF sockmap column: perf/bpf/sockmap.bpf.c, compiled with clang, loaded and attached with bpftool.

Everything is private to one run: a bpffs mounted in the run's own directory and a cgroup of its own. What makes it impossible
(no root, no cgroup2, no compiler...) is said in words, and becomes the text of the column.
"""

import glob
import json
import os
import shutil
import subprocess
import time

from .process import BenchError, read_text

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bpf", "sockmap.bpf.c")


def find_clang():
    candidates = ["clang"] + sorted((os.path.basename(p) for p in glob.glob("/usr/bin/clang-[0-9]*")
                                     if os.path.basename(p).removeprefix("clang-").isdigit()), reverse=True)
    return next((path for path in map(shutil.which, candidates) if path), None)


def find_bpftool():
    return shutil.which("bpftool") or shutil.which("bpftool", path="/usr/sbin:/sbin")


def find_cgroup2():
    for line in read_text("/proc/mounts").splitlines():
        fields = line.split()
        if fields[2] == "cgroup2":
            return fields[1]
    return None


def tool(argv):
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        text = (done.stderr or done.stdout).strip().splitlines()
        raise BenchError(f"{os.path.basename(argv[0])} {argv[1]}: {text[-1] if text else done.returncode}")
    return done.stdout


class Sockmap:
    """Attached from __init__ to close(). .cgroup is where programs go to be redirected."""

    def __init__(self, work_dir):
        self.bpftool = find_bpftool()
        self.clang = find_clang()
        self.cgroup = None
        self.mount = None
        self.attached = []
        if os.geteuid() != 0:
            raise BenchError("needs root")
        if not self.bpftool:
            raise BenchError("bpftool is missing")
        if not self.clang:
            raise BenchError("clang is missing")
        cgroup_root = find_cgroup2()
        if not cgroup_root:
            raise BenchError("no cgroup2 mounted")
        try:
            self._load(work_dir)
            self._attach(cgroup_root)
        except (BenchError, OSError):
            self.close()
            raise

    def _load(self, work_dir):
        machine = os.uname().machine
        compiled = os.path.join(work_dir, "sockmap.bpf.o")
        tool([self.clang, "-O2", "-g", "-Wall", "-target", "bpf", f"-I/usr/include/{machine}-linux-gnu",
              "-c", SOURCE, "-o", compiled])
        mount = os.path.join(work_dir, "bpffs")
        os.mkdir(mount)
        tool(["mount", "-t", "bpf", "bpf", mount])
        self.mount = mount
        tool([self.bpftool, "prog", "loadall", compiled, mount + "/prog", "pinmaps", mount + "/map"])

    def _attach(self, cgroup_root):
        cgroup = os.path.join(cgroup_root, f"postern-bench-{os.getpid()}")
        os.mkdir(cgroup)
        self.cgroup = cgroup
        established = ["sock_ops", "pinned", self.mount + "/prog/bench_established"]
        redirect = ["pinned", self.mount + "/prog/bench_redirect", "msg_verdict", "pinned",
                    self.mount + "/map/bench_socks"]
        tool([self.bpftool, "prog", "attach"] + redirect)
        self.attached.append([self.bpftool, "prog", "detach"] + redirect)
        tool([self.bpftool, "cgroup", "attach", cgroup] + established)
        self.attached.append([self.bpftool, "cgroup", "detach", cgroup] + established)

    def counts(self):
        """Sockets filed, messages redirected, messages left to TCP, since loading."""
        text = tool([self.bpftool, "-j", "map", "dump", "pinned", self.mount + "/map/bench_counts"])
        counts = [int.from_bytes(bytes(int(b, 16) for b in entry["value"]), "little") for entry in json.loads(text)]
        return dict(zip(("filed", "redirected", "left"), counts))

    def close(self):
        for argv in reversed(self.attached):
            subprocess.run(argv, capture_output=True, check=False)
        self.attached = []
        if self.mount:
            subprocess.run(["umount", self.mount], capture_output=True, check=False)
            self.mount = None
        if self.cgroup:
            for _ in range(50):  # the last process of the cgroup may still be on its way out
                try:
                    os.rmdir(self.cgroup)
                    break
                except OSError:
                    time.sleep(0.02)
            self.cgroup = None
