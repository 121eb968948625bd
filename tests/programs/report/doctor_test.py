# doctor_test.py - `posternctl explain` in prepared situations: what it says is so, and it claims nothing that it can't know. And the host's doctor.
# SPDX-License-Identifier: Apache-2.0
#
# usage: doctor_test.py BUILD_DIR [-v] [TEST...]

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import refusing_posternd
from readable import readable

BUILD = "build"
PYTHON = "/usr/bin/python3"  # other users may run it
NOBODY = 65534

# A program says "ready" when it is as it is to be looked at, and stays.
START = """
import ctypes, os, resource, socket, sys
def stay(*what):
    print("ready", *what, flush=True)
    sys.stdin.read()
"""
SERVE = START + "s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); stay(s.getsockname()[1])"
CONNECT = START + "s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); stay()"
SECCOMP = START + """
class Step(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("steps", ctypes.POINTER(Step))]
libc = ctypes.CDLL(None)
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(317 if os.uname().machine == "x86_64" else 277, 1, 0, ctypes.byref(Program(1, (Step * 1)(Step(6, 0, 0, 0x7fff0000))))) == 0
stay()
"""
STAY_C = r"""
#include <unistd.h>
int main(void) { char c; if (write(1, "ready\n", 6) != 6) return 1; return read(0, &c, 1) < 0; }
"""
GO_NOTE = r"""
__asm__(".pushsection .note.go.buildid, \"a\", @note\n.long 4, 4, 4\n.ascii \"Go\\0\\0abcd\"\n.popsection\n");
"""


def as_root(test):
    return unittest.skipUnless(os.geteuid() == 0, "not root")(test)


class Doctor(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn")
        os.chmod(self.top, 0o755)
        self.addCleanup(shutil.rmtree, self.top, True)
        self.places = []
        self.addCleanup(self.stop)
        self.env = {"PATH": "/usr/bin:/bin", "POSTERN_RUNTIME_DIR": self.place("run")}

    def place(self, name, uid=None):
        path = f"{self.top}/{name}"
        os.mkdir(path, 0o700)
        if uid is not None:
            os.chown(path, uid, uid)
        self.places.append(path)
        return path

    def stop(self):
        for place in self.places:
            try:
                with open(f"{place}/posternd.pid", encoding="ascii") as file:
                    os.kill(int(file.read()), signal.SIGTERM)
            except (FileNotFoundError, ProcessLookupError, ValueError):
                pass

    def start(self, *command, env=None, **more):
        program = subprocess.Popen(command, env={**self.env, **(env or {})}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)
        self.addCleanup(lambda: (program.stdin.close(), program.stdout.close(), program.wait(timeout=30)))
        ready, *program.said = program.stdout.readline().split()
        self.assertEqual(ready, "ready")
        return program

    def postern(self, script, *args, options=(), **more):
        return self.start(f"{BUILD}/postern", *options, PYTHON, "-c", script, *map(str, args), **more)

    def plain(self, script, *args, **more):
        return self.start(PYTHON, "-c", script, *map(str, args), **more)

    def explain(self, program, code=0, asker=()):
        pid = program if isinstance(program, int) else program.pid
        shown = subprocess.run([*asker, f"{BUILD}/posternctl", "explain", "--json", str(pid)], env=self.env, text=True, timeout=60, capture_output=True, check=False)
        self.assertEqual(shown.returncode, code, (shown.stdout, shown.stderr))
        words = subprocess.run([*asker, f"{BUILD}/posternctl", "explain", str(pid)], env=self.env, text=True, timeout=60, capture_output=True, check=False)
        report = json.loads(shown.stdout)
        report["words"] = words.stdout
        self.assertIn(report["verdict"], words.stdout)
        return report

    def verdict(self, report):
        return report["verdict"], report["why"]

    def socket_of(self, report, path="kernel"):
        found = [s for s in report["sockets"] if s["path"] == path]
        self.assertEqual(len(found), 1, report["sockets"])
        return found[0]

    # -- by itself
    def test_accelerated(self):
        server = self.postern(SERVE, 0)
        client = self.postern(CONNECT, *server.said)
        report = self.explain(client)
        self.assertEqual((self.verdict(report), report["known"]), (("accelerated", ""), True))
        self.assertEqual(self.socket_of(report, "same-host")["reason"], "")
        self.assertEqual(self.verdict(self.explain(server)), ("accelerated", ""))

    def test_no_socket_yet(self):
        self.assertEqual(self.verdict(self.explain(self.postern(START + "stay()"), code=1)), ("idle", ""))

    def test_not_started_with_postern(self):
        report = self.explain(self.plain(SERVE, 0), code=1)
        self.assertEqual(self.verdict(report), ("not-accelerated", "no-library"))
        self.assertIn("was not started with `postern`", report["words"])
        self.assertEqual(self.socket_of(report, "listen")["reason"], "")

    def compiled(self, name, source, *options):
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if not compiler:
            self.skipTest("no C compiler")
        with open(f"{self.top}/{name}.c", "w", encoding="ascii") as file:
            file.write(source)
        subprocess.run([compiler, *options, "-o", f"{self.top}/{name}", f"{self.top}/{name}.c"], check=True, timeout=60)
        return f"{self.top}/{name}"

    def test_static(self):
        report = self.explain(self.start(f"{BUILD}/postern", self.compiled("static", STAY_C, "-static")), code=1)
        self.assertEqual(self.verdict(report), ("not-accelerated", "static"))

    def test_go(self):
        self.assertEqual(self.verdict(self.explain(self.start(self.compiled("go", GO_NOTE + STAY_C, "-static")), code=1)), ("not-accelerated", "go"))

    @as_root
    def test_set_user_id(self):
        program = self.compiled("gains", STAY_C)
        os.chmod(program, 0o4755)
        report = self.explain(self.start("setpriv", f"--reuid={NOBODY}", "--clear-groups", program), code=1)
        self.assertEqual(self.verdict(report), ("not-accelerated", "privileged"))

    def test_switched_off(self):
        self.assertEqual(self.verdict(self.explain(self.postern(SERVE, 0, options=("-o", "accel=off")), code=1)), ("not-accelerated", "off"))

    def test_seccomp(self):
        server = self.postern(SERVE, 0)
        report = self.explain(self.postern(SECCOMP, *server.said))
        self.assertEqual(self.verdict(report), ("not-accelerated", ""))
        self.assertEqual(self.socket_of(report)["reason"], "sandbox")

    def test_no_posternd(self):
        report = self.explain(self.postern(SERVE, 0, options=("-o", "daemon.spawn=off")), code=1)
        self.assertEqual(self.verdict(report), ("not-accelerated", "no-daemon"))
        self.assertFalse(report["running"])

    def test_address_space(self):
        limit = "resource.setrlimit(resource.RLIMIT_AS, (100 << 20, 100 << 20)); "
        report = self.explain(self.postern(SERVE.replace("s = ", limit + "s = "), 0), code=1)
        self.assertEqual(self.verdict(report), ("not-accelerated", "limits"))

    def test_inherited(self):
        with socket.create_server(("127.0.0.1", 0)) as own:
            script = START + f"s = socket.socket(fileno={own.fileno()}); t = socket.socket(); stay()"
            report = self.explain(self.postern(script, pass_fds=[own.fileno()]))
        self.assertEqual(self.socket_of(report, "listen")["reason"], "inherited")

    def test_other_kinds_of_sockets(self):
        report = self.explain(self.postern(START + "s = socket.socket(); u = [socket.socket(socket.AF_UNIX) for _ in range(3)]; stay()"))
        self.assertEqual(report["others"]["reason"], "not-stream")
        self.assertGreaterEqual(report["others"]["count"], 3)

    def test_gone(self):
        with subprocess.Popen(["true"]) as program:
            program.wait(timeout=30)
        self.assertEqual(self.verdict(self.explain(program.pid, code=1)), ("gone", ""))

    @as_root
    def test_another_users_says_nothing(self):
        report = self.explain(self.postern(SERVE, 0), code=1, asker=("setpriv", f"--reuid={NOBODY}", "--clear-groups"))
        self.assertEqual(self.verdict(report), ("unknown", ""))
        self.assertIn("you may not look into it", report["words"])

    def test_a_posternd_of_another_version(self):
        listener = refusing_posternd.start(self, self.env['POSTERN_RUNTIME_DIR'])
        report = self.explain(self.postern(SERVE, 0), code=1)
        own = self.env["POSTERN_RUNTIME_DIR"] + ": "  # root asks those of other tests, too
        said = [line for line in report["unasked"] if line.startswith(own)]
        self.assertEqual(len(said), 1, report["unasked"])
        self.assertIn("Protocol not supported", said[0])
        listener.shutdown(socket.SHUT_RDWR)

    # -- with another
    def test_server_without_postern(self):
        server = self.plain(SERVE, 0)
        report = self.explain(self.postern(CONNECT, *server.said))
        s = self.socket_of(report)
        self.assertEqual((self.verdict(report)[0], s["reason"], s["other_pid"]), ("not-accelerated", "no-listener", server.pid))
        self.assertIn("was not started with `postern`", s["other_end"])

    def test_client_without_postern(self):
        server = self.postern(START + "s = socket.create_server(('127.0.0.1', 0)); print('ready', s.getsockname()[1], flush=True); c = s.accept()[0]; stay()")
        client = self.plain(CONNECT, *server.said)
        server.stdout.readline()
        s = self.socket_of(self.explain(server))
        self.assertEqual((s["reason"], s["other_pid"]), ("kernel-client", client.pid))

    def test_excluded_port(self):
        server = self.postern(SERVE, 0, options=("-o", "ports.exclude=1-65535"))
        s = self.socket_of(self.explain(self.postern(CONNECT, *server.said)))
        self.assertEqual(s["reason"], "no-listener")
        self.assertIn(f"excludes port {server.said[0]}", s["other_end"])

    def test_another_directory(self):
        server = self.postern(SERVE, 0, env={"POSTERN_RUNTIME_DIR": self.place("other")})
        s = self.socket_of(self.explain(self.postern(CONNECT, *server.said)))
        self.assertIn(f"whose posternd is that of {self.top}/other", s["other_end"])

    @as_root
    def test_private_tmp(self):
        private = ("unshare", "--mount", "--propagation", "private", "sh", "-c", f"mount -t tmpfs -o mode=700 none {self.env['POSTERN_RUNTIME_DIR']} && exec \"$@\"", "sh")
        server = self.start(*private, f"{BUILD}/postern", PYTHON, "-c", SERVE, "0", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        s = self.socket_of(self.explain(self.postern(CONNECT, *server.said)))
        self.assertIn("another mount namespace", s["other_end"])
        # What is inside is found, too, by root.
        self.assertEqual(self.verdict(self.explain(server)), ("accelerated", ""))

    @as_root
    def test_another_user(self):
        env = {"POSTERN_RUNTIME_DIR": self.place("nobody", NOBODY)}
        server = self.start("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"{BUILD}/postern", PYTHON, "-c", SERVE, "0", env=env)
        s = self.socket_of(self.explain(self.postern(CONNECT, *server.said)))
        self.assertIn("of user nobody", s["other_end"])
        report = self.explain(server)  # root asks that user's posternd
        self.assertEqual((self.verdict(report), report["posternd"]), (("accelerated", ""), env["POSTERN_RUNTIME_DIR"]))
        shown = subprocess.run([f"{BUILD}/posternctl", "--runtime-dir", f"{self.top}/none", "status"], env=self.env, text=True, timeout=30, capture_output=True, check=False)
        self.assertEqual(shown.returncode, 0)
        self.assertIn(f"That of user nobody runs: --runtime-dir {env['POSTERN_RUNTIME_DIR']}", shown.stdout)
        self.assertNotIn("nothing is accelerated", shown.stdout)

    @as_root
    def test_another_network_namespace(self):
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        server = self.start("unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh", f"{BUILD}/postern", PYTHON, "-c",
                            START + "sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.readline(); s = socket.create_server(('0.0.0.0', 4000)); stay()", env=env)
        link, end = f"pd{os.getpid()}a", f"pd{os.getpid()}b"
        for command in (f"link add {link} type veth peer name {end} netns {server.pid}", f"addr add 10.213.7.1/30 dev {link}", f"link set {link} up"):
            subprocess.run(["ip", *command.split()], check=True, timeout=30, env=env)
        self.addCleanup(subprocess.run, ["ip", "link", "del", link], check=False, timeout=30, env=env)
        for command in (f"addr add 10.213.7.2/30 dev {end}", f"link set {end} up"):
            subprocess.run(["nsenter", f"--net=/proc/{server.pid}/ns/net", "ip", *command.split()], check=True, timeout=30, env=env)
        server.stdin.write("\n")
        server.stdin.flush()
        self.assertEqual(server.stdout.readline().split()[0], "ready")
        s = self.socket_of(self.explain(self.postern(START + "s = socket.create_connection(('10.213.7.2', 4000)); stay()")))
        self.assertEqual((s["reason"], s["other_pid"]), ("not-local", server.pid))
        self.assertIn("in another network namespace of this host", s["other_end"])

    # -- the command
    def test_errors_name_what_was_wrong(self):
        for words, what in ((("explain", "abc"), "'abc' is no number"), (("explain", "0"), "'0' is no number"), (("explain",), "PID"), (("what",), "what")):
            done = subprocess.run([f"{BUILD}/posternctl", *words], env=self.env, text=True, timeout=30, capture_output=True, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(what, done.stderr)
            self.assertLess(len(done.stderr), 300)

    def test_what_can_not_be_written_is_an_error(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            for words in (("explain", "1"), ("doctor",), ("status",)):
                done = subprocess.run([f"{BUILD}/posternctl", *words], env=self.env, text=True, timeout=30, stdout=full, stderr=subprocess.PIPE, check=False)
                self.assertEqual((done.returncode, done.stderr), (1, "posternctl: standard output can't be written\n"))

    def test_host(self):
        done = subprocess.run([f"{BUILD}/posternctl", "doctor", "--json"], env=self.env, text=True, timeout=60, capture_output=True, check=False)
        report = json.loads(done.stdout)
        states = {f["what"]: f["state"] for f in report["findings"]}
        self.assertEqual((states["kernel"], states["limits"], states["directory"]), ("good", "good", "good"))
        self.assertEqual(done.returncode, 3 if "bad" in states.values() else 0)
        os.chmod(self.env["POSTERN_RUNTIME_DIR"], 0o777)
        done = subprocess.run([f"{BUILD}/posternctl", "doctor"], env=self.env, text=True, timeout=60, capture_output=True, check=False)
        self.assertEqual(done.returncode, 3)
        self.assertRegex(done.stdout, r"(?m)^bad +directory")

    def test_interfaces_that_can_have_no_vi(self):
        done = subprocess.run([f"{BUILD}/postern", "-o", "vi=lo,nosuch0", "true"], env=self.env, text=True, timeout=30, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0)
        self.assertIn("'lo' leads to no other host", done.stderr)
        self.assertIn("there is no interface 'nosuch0'", done.stderr)

    @as_root
    def test_the_error_of_no_vi_is_in_the_status(self):
        net = ("unshare", "--net", "sh", "-c", "ip link set lo up && ip link add vi0 type veth peer name vi1 && ip addr add 10.9.0.1/24 dev vi0 && ip link set vi0 up && exec \"$@\"", "sh")
        server = self.start(*net, f"{BUILD}/postern", "-o", "vi=vi0", PYTHON, "-c", START + "s = socket.create_server(('10.9.0.1', 4000)); stay()",
                            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        self.assertEqual(self.socket_of(self.explain(server), "listen")["reason"], "no-vi")
        status = subprocess.run([f"{BUILD}/posternctl", "status"], env=self.env, text=True, timeout=30, capture_output=True, check=False)
        self.assertIn("no VI on vi0: no broker is there, and this posternd was started without --vi", status.stdout)

    def test_a_posternd_for_no_interface(self):
        place = self.place("vis")
        done = subprocess.run([f"{BUILD}/posternd", "--runtime-dir", place, "--vi", "nosuch0", "--broker", ""], env=self.env, text=True, timeout=30, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("VI on nosuch0: there is no such interface here", done.stderr)


if __name__ == "__main__":
    signal.alarm(300)
    with readable(sys.argv.pop(1)) as BUILD:
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
