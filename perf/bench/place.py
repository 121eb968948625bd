# place.py - where a workload between containers runs: two of them, and above them a broker of the bench's own.
# SPDX-License-Identifier: Apache-2.0
"""Client and server in a network, mount and pid namespace each, joined by a veth pair (tests/programs/kit/containers.py).

Both columns run in the same two containers. Each container's posternd finds the broker as in a real one, by a bind mount of its
directory. The SYN option is attached to a cgroup in which only Postern's programs are: kernel TCP is measured without.
"""

import collections
import functools
import json
import os
import sys
import time

from . import process
from .process import BenchError
from .sockmap import find_cgroup2

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "programs", "kit"))
import containers  # noqa: E402
import netlab  # noqa: E402

FIRST_SEC_MAX = 3.0  # until a client on a busy machine has connected
ACCELERATED = ("same-host", "intra-stack", "smc-d")  # posternctl's words


@functools.cache
def why_not():
    """Why there can be no containers here, or None."""
    try:
        containers.Containers().close()
    except netlab.Unavailable as reason:
        return f"two containers: {reason}"
    return None


def beside(wrapper, name):
    """A program of ours, from a build directory or an installation."""
    here = os.path.dirname(wrapper)
    for place in (here, os.path.join(here, "..", "libexec", "postern")):
        if os.access(os.path.join(place, name), os.X_OK):
            return os.path.abspath(os.path.join(place, name))
    raise BenchError(f"no {name} beside {wrapper}")


class Place:
    """From __init__ to close(). Without a wrapper, there is kernel TCP only."""

    def __init__(self, work_dir, program_dir, wrapper=None):
        self.broker = self.cgroup = self.pair = None
        broker_dir = os.path.join(work_dir, "broker")
        try:
            if wrapper:
                self.cgroup = self._make_cgroup()
                self.posternctl = beside(wrapper, "posternctl")
                self.broker = containers.Broker(os.path.dirname(beside(wrapper, "posternd")), broker_dir, "--syn-option", self.cgroup or "off")
            shared = {work_dir, program_dir, *([os.path.dirname(wrapper)] if wrapper else [])}
            self.pair = containers.Containers(broker_dir if wrapper else None, sorted(path for path in shared if os.path.isdir(path)))
        except (netlab.Unavailable, OSError) as error:
            self.close()
            raise BenchError(str(error)) from error
        except BenchError:
            self.close()
            raise

    @staticmethod
    def _make_cgroup():
        root = find_cgroup2()
        if not root:
            return None
        path = os.path.join(root, f"postern-bench-{os.getpid()}-pair")
        os.mkdir(path)
        return path

    @property
    def host(self):
        """The server's address, as the client knows it."""
        return self.pair.server

    def opens(self):
        """Where the kernel counts connections that are none of Postern's: at the client."""
        return f"/proc/{self.pair.a.init.pid}/net", "ActiveOpens"

    def look(self, sample, is_postern, port):
        """While the client runs: how many connections there are, and by posternctl's word how many are accelerated. (A kernel
        connection stays open under each that is, so that counting those says nothing.)"""
        in_kernel, fast, slow = 0, [], []
        end = time.monotonic() + FIRST_SEC_MAX
        while not (in_kernel or fast or slow) and time.monotonic() < end:
            time.sleep(0.05)
            in_kernel = self.pair.b.tcp_sockets(port, process.TCP_ESTABLISHED)
            fast, slow = self._connections(port) if is_postern else ([], [])
        if not (in_kernel or fast or slow):
            return  # run_pair() then takes what the kernel has opened
        sample.kernel_connections = in_kernel
        if not is_postern:
            return
        sample.kernel_connections = max(len(slow), in_kernel - len(fast), 0)
        reasons = collections.Counter(s.get("reason") or "none given" for s in slow)
        sample.notes.update(accelerated=len(fast), connections=len(fast) + sample.kernel_connections, reasons=dict(reasons.most_common(3)),
                            syn_option="attached to" in self.broker.log())

    def _connections(self, port):
        """The client's sockets that are connected to that port: (accelerated, not)."""
        try:
            said = json.loads(self.pair.a.run([self.posternctl, "ss", "--json"], timeout=20))
        except (AssertionError, ValueError) as error:
            raise BenchError(f"posternctl ss: {error}") from error
        ours = [s for s in said["sockets"] if s["path"] != "listen" and (s.get("peer") or "").endswith(f":{port}")]
        fast = [s for s in ours if s["path"] in ACCELERATED]
        return fast, [s for s in ours if s["path"] not in ACCELERATED]

    def close(self):
        if self.pair:
            self.pair.close()
        if self.broker:
            self.broker.close()
        for _ in range(50 if self.cgroup else 0):  # the last process may still be on its way out
            try:
                os.rmdir(self.cgroup)
                break
            except OSError:
                time.sleep(0.02)
        self.pair = self.broker = self.cgroup = None
