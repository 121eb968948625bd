# selftest_test.py - `posternctl selftest` itself: as the user that runs this, as an ordinary user, and when it is interrupted.
# SPDX-License-Identifier: Apache-2.0
#
# usage: selftest_test.py BUILD_DIR [-v] [TEST...]

import glob
import json
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
from readable import readable

BUILD = "build"
NOBODY = 65534


def selftest(*args, **options):
    return subprocess.Popen([f"{BUILD}/posternctl", "selftest", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def leftovers():
    """Directories, cgroups and mounts of self-tests."""
    found = glob.glob("/tmp/pstn-self-*")
    with open("/proc/self/mounts", encoding="utf-8") as file:
        mounts = [line.split()[1:3] for line in file]
    for place, kind in mounts:
        if kind == "cgroup2":
            found += glob.glob(f"{place}/pstn-self-*")
    return set(found) | {place for place, _ in mounts if "pstn-self-" in place}


class Selftest(unittest.TestCase):
    def setUp(self):
        self.before = leftovers()

    def tearDown(self):
        self.assertLessEqual(leftovers(), self.before)

    def run_it(self, *args, status=0, **options):
        process = selftest("--json", *args, **options)
        out, err = process.communicate()
        self.assertEqual(process.returncode, status, f"{err}{out[-3000:]}")
        return json.loads(out)["causes"] if status in (0, 77) else None

    def as_nobody(self):
        if os.geteuid() != 0:
            return {}
        return {"user": NOBODY, "group": NOBODY, "extra_groups": []}

    def test_user(self):
        causes = self.run_it(**self.as_nobody())
        for cause in causes:
            simulated = cause["cause"].startswith("sim/")
            self.assertEqual(cause["verdict"], "ok" if simulated else "skipped", cause)
        self.assertGreater(sum(cause["verdict"] == "ok" for cause in causes), 100)
        self.assertEqual({cause["remark"] for cause in causes if cause["verdict"] == "skipped"}, {"needs root"})

    def test_nothing_could_be_run(self):
        causes = self.run_it("--only", "pair/healthy", status=77, **self.as_nobody())
        self.assertEqual([cause["verdict"] for cause in causes], ["skipped"])

    def test_names(self):
        done = subprocess.run([f"{BUILD}/posternctl", "selftest", "--list"], capture_output=True, text=True, check=True)
        names = [line.split()[0] for line in done.stdout.splitlines()]
        self.assertEqual(len(names), len(set(names)))
        self.run_it("--only", "no/such/cause", status=1)

    def test_root(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        process = selftest("--json", "--only", "client/", "server/", "pair/", "relay/")  # sim/ is test_user's
        out, err = process.communicate()
        causes = json.loads(out)["causes"]
        if process.returncode == 77:
            self.skipTest(causes[0]["remark"])
        self.assertEqual([cause for cause in causes if cause["verdict"] != "ok"], [], err)

    def test_interrupted(self):
        """Whenever it is: nothing of it is left, and none of its processes."""
        if os.geteuid() != 0:
            self.skipTest("not root")
        for number, after_sec in ((signal.SIGINT, 0), (signal.SIGTERM, 0.1), (signal.SIGHUP, 0.5), (signal.SIGTERM, 2)):
            process = selftest("--only", "client/silent", "pair/")
            time.sleep(after_sec)
            process.send_signal(number)
            process.communicate()  # a process that still runs would hold the pipes open
            self.assertNotEqual(process.returncode, 0)
            self.assertLessEqual(leftovers(), self.before)


if __name__ == "__main__":
    signal.alarm(480)
    with readable(sys.argv.pop(1)) as BUILD:
        ended = unittest.main(warnings="ignore", exit=False)
    sys.exit(not ended.result.wasSuccessful())
