#!/usr/bin/python3
# wrapper_test.py - the wrapper `postern`, in an installed-looking tree with a stand-in for posternd and for libpostern.so.
# SPDX-License-Identifier: Apache-2.0
#
#   wrapper_test.py BUILD_DIR SOURCE_DIR

import glob
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

BUILD, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])

# Accepts on the socket that the wrapper looks for, and leaves its pid and its view of the world beside it.
POSTERND = """#!/usr/bin/python3
import os, socket, sys
assert sys.argv[1] == "--runtime-dir", sys.argv
run = sys.argv[2]
inherited = [n for n in os.listdir("/proc/self/fd") if int(n) > 2 and os.path.exists("/proc/self/fd/" + n)]
with open(run + "/started", "a") as f:
    f.write(f"{os.getpid()} {os.getsid(0)} {os.environ.get('LD_PRELOAD')} {os.environ.get('POSTERN_SPIN_USEC')} "
            f"{inherited}\\n")
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(run + "/posternd.sock")
s.listen(8)
while True:
    s.accept()[0].close()
"""

# In a mount namespace with a /tmp of its own, in which another user was faster. The tree is below /mnt.
SQUATTED = """
import json, os, socket, stat, subprocess, sys
run = lambda *argv: subprocess.run(argv, check=True, text=True, capture_output=True, env={"PATH": "/usr/bin:/bin"}).stdout
run("mount", "--bind", sys.argv[1], "/mnt")
run("mount", "-t", "tmpfs", "-o", "mode=1777", "none", "/tmp")
def by_another():
    for name in "/tmp/postern-0", "/tmp/postern-0-000000":
        os.mkdir(name, 0o755)
        os.chown(name, 65534, 65534)
    open("/tmp/roots", "w").close()
    os.link("/tmp/roots", "/tmp/postern-0-000001")
def runtime_dir():
    seen = run("/mnt/bin/postern", "-o", "daemon.spawn=off", "env")
    return dict(line.split("=", 1) for line in seen.splitlines())["POSTERN_RUNTIME_DIR"]
first = runtime_dir() if sys.argv[2] == "late" else None
if first:
    os.rmdir(first)
by_another()
trap = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
trap.bind("/tmp/postern-0/posternd.sock")
trap.listen()
trap.setblocking(False)
before = subprocess.run(["/mnt/bin/posternctl", "status"], text=True, capture_output=True, env={}).stdout
places = [runtime_dir() for _ in range(3)]
after = subprocess.run(["/mnt/bin/posternctl", "status"], text=True, capture_output=True, env={}).stdout
try:
    trap.accept()
    trapped = True
except BlockingIOError:
    trapped = False
status = os.lstat(places[0])
print(json.dumps({"first": first, "places": places, "uid": status.st_uid, "mode": stat.S_IMODE(status.st_mode), "trapped": trapped,
                  "left": sorted(os.listdir("/tmp")), "said": [before, after]}))
"""


def stand_in_library():
    """Any shared object that does nothing when preloaded."""
    return sorted(glob.glob("/lib/*-linux-gnu/libm.so.6") + glob.glob("/lib64/libm.so.6"))[0]


class WrapperTest(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn")
        self.addCleanup(shutil.rmtree, self.top, True)
        self.postern = self.top + "/bin/postern"
        self.library = self.top + "/lib/postern/libpostern.so"
        self.daemon = self.top + "/libexec/postern/posternd"
        self.run_dir = self.top + "/run"
        for path in (self.postern, self.library, self.daemon):
            os.makedirs(os.path.dirname(path))
        shutil.copy(BUILD + "/postern", self.postern)
        shutil.copy(stand_in_library(), self.library)
        shutil.copytree(SOURCE + "/profiles", self.top + "/share/postern/profiles")
        with open(self.daemon, "w") as f:
            f.write(POSTERND)
        os.chmod(self.daemon, 0o755)
        # The second is for a wrapper built with ASan, which is preloaded to on purpose here.
        self.env = {"PATH": "/usr/bin:/bin", "POSTERN_RUNTIME_DIR": self.run_dir,
                    "ASAN_OPTIONS": "verify_asan_link_order=0"}
        self.addCleanup(self.stop_daemon)

    def started(self):
        try:
            with open(self.run_dir + "/started") as f:
                return [line.split(" ", 4) for line in f]
        except FileNotFoundError:
            return []

    def stop_daemon(self):
        for row in self.started():
            os.kill(int(row[0]), signal.SIGKILL)

    def wrap(self, *args, env=None, **more):
        return subprocess.run([self.postern, *args], env=self.env if env is None else env, text=True, timeout=30,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)

    def environment(self, *args, env=None):
        done = self.wrap(*args, "env", env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(line.split("=", 1) for line in done.stdout.splitlines())

    def assert_usage(self, text, *args, env=None):
        done = self.wrap(*args, env=env)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(self.started(), [], "bad usage must not start anything")

    def test_bad_usage(self):
        self.assert_usage("no command")
        self.assert_usage("usage:", "--nonsense", "true")
        self.assert_usage("requires an argument", "-o")
        self.assert_usage("key=value", "-o", "strict", "true")
        self.assert_usage("key=value", "-o", "=1", "true")
        self.assert_usage("did you mean 'spin.usec'?", "-o", "spin.use=1", "true")
        self.assert_usage("0..1000000 us", "-o", "spin.usec=-1", "true")
        self.assert_usage("larger than", "-o", "ring.min=1M", "-o", "ring.max=4K", "true")
        self.assert_usage("safe", "--profile", "nope", "true")
        self.assert_usage("not a file", "--profile", "/", "true")
        self.assert_usage("did you mean 'POSTERN_STRICT'?", "true", env={**self.env, "POSTERN_STRIKT": "1"})
        self.assert_usage("absolute", "true", env={**self.env, "POSTERN_RUNTIME_DIR": "x"})

    def test_bad_profile_names_file_and_line(self):
        with open(self.top + "/p.conf", "w") as f:
            f.write("# fine\nspin.usec = 3\nbogus\n")
        self.assert_usage("p.conf:3: expected key=value", "-p", self.top + "/p.conf", "true")

    def test_command_keeps_its_own_options(self):
        done = self.wrap("printf", "%s;", "-o", "--strict", "-v", "--", "a b")
        self.assertEqual((done.returncode, done.stdout), (0, "-o;--strict;-v;--;a b;"), done.stderr)
        self.assertEqual(self.wrap("--", "printf", "x").stdout, "x")
        self.assertEqual(self.wrap("sh", "-c", "exit 7").returncode, 7)

    def test_exports_what_was_given_and_only_that(self):
        seen = self.environment("-p", "latency", "-o", "ring.max=64k", "--strict", "-v",
                                env={**self.env, "POSTERN_SPIN_USEC": "7", "LD_PRELOAD": ""})
        self.assertEqual(seen["POSTERN_SPIN_USEC"], "7")     # environment beats profile
        self.assertEqual(seen["POSTERN_SPIN_YIELD"], "off")  # from the profile
        self.assertEqual(seen["POSTERN_RING_MAX"], "64K")
        self.assertEqual(seen["POSTERN_STRICT"], "on")
        self.assertEqual(seen["POSTERN_LOG_LEVEL"], "info")
        self.assertNotIn("POSTERN_FDCACHE_MAX", seen)
        self.assertEqual(seen["LD_PRELOAD"], self.library)
        self.assertEqual(seen["POSTERN_DAEMON"], self.daemon)
        self.assertEqual(seen["POSTERN_RUNTIME_DIR"], self.run_dir)
        self.assertEqual(self.environment("-o", "spin.usec=9", env={**self.env, "POSTERN_SPIN_USEC": "7"})
                         ["POSTERN_SPIN_USEC"], "9")

    def test_keeps_an_existing_preload_and_nests(self):
        other = stand_in_library()
        seen = self.environment(env={**self.env, "LD_PRELOAD": other})
        self.assertEqual(seen["LD_PRELOAD"], self.library + ":" + other)
        self.assertEqual(self.environment(self.postern)["LD_PRELOAD"], self.library)

    def test_verbose_does_not_lower_the_log_level(self):
        self.assertEqual(self.environment("-v", "-o", "log.level=debug")["POSTERN_LOG_LEVEL"], "debug")

    def test_daemon_is_started_once_and_detached(self):
        for _ in range(3):
            self.assertEqual(self.wrap("-o", "spin.usec=5", "true").stderr, "")
        rows = self.started()
        self.assertEqual(len(rows), 1)
        pid, session, preload, spin, fds = rows[0]
        self.assertNotEqual(int(session), os.getsid(0))
        self.assertEqual((preload, spin), ("None", "5"))
        self.assertEqual(fds.strip(), "[]", "the daemon inherited descriptors")
        with open(f"/proc/{pid}/stat") as f:
            parent = int(f.read().rsplit(")", 1)[1].split()[1])
        self.assertNotEqual(parent, os.getpid(), "the daemon is a child of the command")

    def test_no_daemon_when_not_wanted(self):
        self.wrap("-o", "daemon.spawn=off", "true")
        self.wrap("-o", "accel=off", "true")
        self.wrap("no-such-command")
        self.assertEqual(self.started(), [])

    def test_a_daemon_that_fails_is_only_a_warning(self):
        with open(self.daemon, "w") as f:
            f.write("#!/nonexistent\n")
        done = self.wrap("echo", "ran")
        self.assertEqual((done.returncode, done.stdout), (0, "ran\n"))
        self.assertIn("cannot start", done.stderr)
        os.unlink(self.daemon)
        self.assertIn("neither built nor installed", self.wrap("true").stderr)

    def test_a_daemon_that_hangs_is_waited_for_two_seconds(self):
        with open(self.daemon, "w") as f:
            f.write("#!/bin/sh\nexit 1\n")
        begin = time.monotonic()
        done = self.wrap("echo", "ran")
        self.assertGreater(time.monotonic() - begin, 1.9)
        self.assertEqual((done.returncode, done.stdout), (0, "ran\n"))
        self.assertIn("does not answer", done.stderr)

    def test_exit_codes_of_env(self):
        self.assertEqual(self.wrap("no-such-command").returncode, 127)
        self.assertEqual(self.wrap(self.top + "/none").returncode, 127)
        self.assertEqual(self.wrap("/etc/passwd").returncode, 126)
        self.assertEqual(self.wrap(self.top).returncode, 126)
        self.assertEqual(self.wrap("").returncode, 127)
        os.unlink(self.library)
        done = self.wrap("true")
        self.assertEqual(done.returncode, 125)
        self.assertIn("libpostern.so", done.stderr)

    def test_runtime_directory_is_made_private(self):
        self.wrap("true")
        self.assertEqual(stat.S_IMODE(os.stat(self.run_dir).st_mode), 0o700)
        xdg = self.top + "/xdg"
        os.mkdir(xdg)
        env = {"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": xdg}
        seen = self.environment("-o", "daemon.spawn=off", env=env)
        self.assertEqual(seen["POSTERN_RUNTIME_DIR"], xdg + "/postern")
        env["XDG_RUNTIME_DIR"] = "/etc/passwd"  # no directory
        seen = self.environment("-o", "daemon.spawn=off", env=env)
        self.assertEqual(seen["POSTERN_RUNTIME_DIR"], f"/tmp/postern-{os.geteuid()}")

    def test_runtime_directory_that_cannot_be_trusted(self):
        def refused(text):
            done = self.wrap("true")
            self.assertEqual(done.returncode, 125)
            self.assertIn(text, done.stderr)
        os.symlink(self.top, self.run_dir)
        refused("symbolic link")
        os.unlink(self.run_dir)
        with open(self.run_dir, "w"):
            pass
        refused("not a directory")
        os.unlink(self.run_dir)
        os.mkdir(self.run_dir, 0o755)
        os.chmod(self.run_dir, 0o755)
        refused("0700")
        os.rmdir(self.run_dir)
        self.env["POSTERN_RUNTIME_DIR"] = self.top + "/x" * 60
        refused("too long")
        self.env["POSTERN_RUNTIME_DIR"] = "/"
        refused("/")
        if os.geteuid() == 0:
            os.mkdir(self.run_dir, 0o700)
            os.chown(self.run_dir, 65534, 65534)
            self.env["POSTERN_RUNTIME_DIR"] = self.run_dir
            refused("another user")

    def test_runtime_directory_whose_name_another_user_has(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        shutil.copy(BUILD + "/posternctl", self.top + "/bin/posternctl")
        for when in ("early", "late"):
            done = subprocess.run(["unshare", "--mount", "--propagation", "private", sys.executable, "-c", SQUATTED, self.top, when],
                                  text=True, timeout=60, capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            said = json.loads(done.stdout)
            self.assertEqual(said["first"], "/tmp/postern-0" if when == "late" else None)
            place, *others = said["places"]
            self.assertEqual(others, [place, place])
            self.assertRegex(place, "^/tmp/postern-0-[A-Za-z0-9]{6}$")
            self.assertEqual((said["uid"], said["mode"]), (0, 0o700))
            self.assertEqual(said["left"], sorted(["roots", "postern-0", "postern-0-000000", "postern-0-000001", os.path.basename(place)]))
            self.assertFalse(said["trapped"], "posternctl asks another user's")
            for text in said["said"]:
                self.assertIn("not running", text)

    def test_profiles_of_the_host_come_first(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        profiles = self.top + "/etc/postern/profiles"
        os.makedirs(profiles)
        for name, text in ("site", "spin.usec = 7"), ("safe", "spin.usec = 8"):
            with open(f"{profiles}/{name}.conf", "w") as f:
                f.write(text + "\n")

        def spin(*args):
            done = subprocess.run(["unshare", "--mount", "sh", "-ec", 'mount -t overlay -o "lowerdir=$0/etc:/etc" none /etc; exec "$@"', self.top,
                                   self.postern, *args, "env"], env=self.env, text=True, timeout=30, capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            return dict(line.split("=", 1) for line in done.stdout.splitlines()).get("POSTERN_SPIN_USEC")

        self.assertEqual(spin("-p", "site"), "7")
        self.assertEqual(spin(), "8", "the host's default")
        self.assertEqual(spin("-p", "latency"), "1000", "the package's")

    def test_says_what_preload_cannot_reach(self):
        script = self.top + "/script"
        with open(script, "w") as f:
            f.write("#!/bin/sh\n")
        os.chmod(script, 0o755)
        self.assertNotIn("accelerated", self.wrap("-v", script).stderr)
        self.assertNotIn("accelerated", self.wrap("-v", "true").stderr)
        static = shutil.which("ldconfig", path="/sbin:/usr/sbin")
        if static:
            self.assertIn("statically linked", self.wrap("-v", static, "--version").stderr)

    def test_help_lists_every_option(self):
        done = self.wrap("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        with open(SOURCE + "/lib/base/schema/options.def") as f:
            keys = [line.split('"')[1] for line in f if line.startswith("PSTN_OPTION(\"")]
        self.assertGreater(len(keys), 10)
        for key in keys:
            self.assertIn(f"  {key} = ", done.stdout)
        self.assertRegex(self.wrap("--version").stdout, r"^postern \d+\.\d+\.\d+\n$")

    def test_tuning_page_is_up_to_date(self):
        with open(SOURCE + "/docs/tuning.md") as f:
            self.assertEqual(f.read(), self.wrap("--dump-tuning-md").stdout,
                             "regenerate: build/postern --dump-tuning-md > docs/tuning.md")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
