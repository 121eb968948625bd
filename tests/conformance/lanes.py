# lanes.py - network namespaces for cases that are played at once, so that none has a port of another's.
# SPDX-License-Identifier: Apache-2.0
#
# A case binds a port that it has just given up, or that it has at one address, at all of them. Another case's may be there by then, of
# the kernel's or of one that Postern has reserved, and the answer is EADDRINUSE.

import contextlib
import glob
import os
import queue
import signal
import subprocess

# As an ordinary user in a user namespace, where it stays what it is.
OF_USER = ["--user", "--map-current-user", "--keep-caps"]


class Lane:
    """A network namespace, and the posternd of its programs."""

    def __init__(self, runtime):
        own = [] if os.geteuid() == 0 else OF_USER
        self.process = subprocess.Popen(["unshare", *own, "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"],  # pylint: disable=consider-using-with
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.works = self.process.stdout.readline() == "up\n"
        spaces = f"/proc/{self.process.pid}/ns"
        enter = [f"--net={spaces}/net", *(own and [f"--user={spaces}/user", "--preserve-credentials"])]
        self.before = ["env", f"POSTERN_RUNTIME_DIR={runtime}", "nsenter", *enter, "--"]  # of a command

    def close(self):
        self.process.communicate()


@contextlib.contextmanager
def opened(count):
    """A queue of lanes, as what is put before a command."""
    runtime, lanes, free = os.environ["POSTERN_RUNTIME_DIR"], [], queue.SimpleQueue()
    try:
        for at in range(count):
            lanes.append(Lane(f"{runtime}/lane-{at}"))
            free.put(lanes[-1].before if lanes[-1].works else [])
        if not all(lane.works for lane in lanes):
            print("no network namespace can be made here: cases that are played at once share their ports")
        yield free
    finally:
        for path in glob.glob(f"{glob.escape(runtime)}/lane-*/posternd.pid"):
            with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
                os.kill(int(file.read()), signal.SIGTERM)
        for lane in lanes:
            lane.close()
