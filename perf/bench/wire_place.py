# wire_place.py - where a workload over the wire runs: two containers, and in each a posternd that grants VIs.
# SPDX-License-Identifier: Apache-2.0
"""Client and server in network namespaces joined by a veth pair, as in place.py, but neither can see the other's memory: what they have
in common is packets. Postern's sides take theirs from AF_XDP queues of the veth, or from TAPs beside it, the kernel's column from the
same veth.
"""

import functools
import os
import time

from . import process
from .place import beside, why_not as why_no_containers
from .process import BenchError

import containers  # in place.py's path
import netlab

READY_SEC = 10.0
FIRST_SEC_MAX = 3.0
INTERFACE = "eth0"
DIRECTORY = "/tmp/postern-0"  # in the container: where the wrapper looks without XDG_RUNTIME_DIR


@functools.cache
def why_not():
    """Why there can be no wire here, or None."""
    return why_no_containers()


class WirePlace:
    """From __init__ to close(). Without a wrapper, there is kernel TCP only. `kind` is what --vi has before the interface's name."""

    def __init__(self, work_dir, program_dir, wrapper=None, kind=""):
        self.cgroup = self.pair = None
        self._logs = []
        shared = {work_dir, program_dir, *([os.path.dirname(wrapper)] if wrapper else [])}
        try:
            self.pair = containers.Containers(None, sorted(path for path in shared if os.path.isdir(path)))
            for container in (self.pair.a, self.pair.b) if wrapper else ():
                self._start_daemon(container, beside(wrapper, "posternd"), kind, os.path.join(work_dir, f"posternd-{container.name}.log"))
        except (netlab.Unavailable, OSError) as error:
            self.close()
            raise BenchError(str(error)) from error
        except BenchError:
            self.close()
            raise

    @staticmethod
    def _start_daemon(container, posternd, kind, log_path):
        argv = [posternd, "--foreground", "--verbose", "--idle-sec", "0", "--vi", kind + INTERFACE, "--runtime-dir", DIRECTORY]
        with open(log_path, "wb") as log:
            daemon = container.popen(["sh", "-c", f'umask 077; mkdir -p {DIRECTORY}; exec "$@"', "sh", *argv], stderr=log)
        end = time.monotonic() + READY_SEC
        while "ready in" not in process.read_text(log_path):
            if daemon.poll() is not None or time.monotonic() > end:
                raise BenchError(f"no posternd in container {container.name}: {process.read_text(log_path).strip()[-300:]}")
            time.sleep(0.02)

    @property
    def host(self):
        """The server's address, as the client knows it."""
        return self.pair.server

    def opens(self):
        """Where the kernel counts connections that are none of Postern's: at the server, whose client may be the kernel's."""
        return f"/proc/{self.pair.b.init.pid}/net", "PassiveOpens"

    def look(self, sample, is_postern, port):
        """While the client runs: connections that the server's kernel has. Of one that comes by a VI it knows nothing."""
        end = time.monotonic() + (FIRST_SEC_MAX if not is_postern else 0.2)
        while not sample.kernel_connections:
            time.sleep(0.05)
            sample.kernel_connections = self.pair.b.tcp_sockets(port, process.TCP_ESTABLISHED)
            if time.monotonic() > end:
                return

    def close(self):
        if self.pair:
            self.pair.close()
        self.pair = None
