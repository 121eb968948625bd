# pauses.py - how long a process waits for a CPU of this machine, and so how much later than on an idle one "at once" may be.
# SPDX-License-Identifier: Apache-2.0
#
# A limit of time tells a program that answers at once from one that waits for a time-out of seconds. On a busy machine each process
# between question and answer waits for a CPU as well, at times for a second. A process that does nothing but sleep and wake up measures
# such waits while the test runs; the limit grows by them.

import atexit
import subprocess
import sys

WAKES = 8  # of processes one after another, from the question to the answer, at most
SLEEPER = """
import select, sys, time
BEAT_SEC, KEPT_SEC = 0.01, 300
late = []
while True:
    before = time.monotonic()
    if select.select([0], [], [], BEAT_SEC)[0]:
        line = sys.stdin.readline()
        if not line:
            break
        print(max((sec for when, sec in late if when >= float(line)), default=0.0), flush=True)
        continue
    now = time.monotonic()
    if now - before > 2 * BEAT_SEC:
        late.append((now, now - before - BEAT_SEC))
        late = [(when, sec) for when, sec in late if when > now - KEPT_SEC]
"""


class Pauses:
    """Measured from now on, until end()."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-S", "-c", SLEEPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.longest(0)

    def longest(self, since):
        """Of the waits that ended after `since` (time.monotonic()), in seconds."""
        self.process.stdin.write(f"{since}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def limit(self, since, sec):
        """What takes less than `sec` on an idle machine may have taken so long on this one, since then."""
        return sec + WAKES * self.longest(since)


_started = []


def begin():
    """To be called before what is measured."""
    if not _started:
        _started.append(Pauses())
        atexit.register(_started[0].end)


def limit(since, sec):
    begin()
    return _started[0].limit(since, sec)
