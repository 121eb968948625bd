# ss_test.py - `posternctl ss`, `metrics` and `status --watch`: what is shown, and what a filter leaves of it.
# SPDX-License-Identifier: Apache-2.0
#
# usage: ss_test.py BUILD_DIR [-v] [TEST...]

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
from readable import readable

BUILD = "build"
PYTHON = "/usr/bin/python3"  # other users may run it
NOBODY = 65534
SENT = 100000

# A server with a connection of the kernel's and one through memory, from which it has read; its client; a client of the kernel's.
SERVER = """
import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
held = []
for _ in range(2):
    c = s.accept()[0]
    left = int(sys.argv[1])
    while left > 0:
        left -= len(c.recv(65536))
    held.append(c)
print("read", flush=True)
sys.stdin.read()
"""
CLIENT = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.sendall(bytes(int(sys.argv[2]))); print('sent', flush=True); sys.stdin.read()"


class Ss(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.top = tempfile.mkdtemp(prefix="pstn")
        os.chmod(cls.top, 0o755)
        cls.addClassCleanup(shutil.rmtree, cls.top, True)
        cls.run_dir = f"{cls.top}/run"
        cls.env = {"PATH": "/usr/bin:/bin", "POSTERN_RUNTIME_DIR": cls.run_dir}
        cls.addClassCleanup(cls.stop, cls.run_dir)
        cls.server = cls.start(f"{BUILD}/postern", PYTHON, "-c", SERVER, str(SENT))
        cls.port = int(cls.server.stdout.readline())
        cls.fast = cls.start(f"{BUILD}/postern", PYTHON, "-c", CLIENT, str(cls.port), str(SENT))
        cls.slow = cls.start(PYTHON, "-c", CLIENT, str(cls.port), str(SENT))
        assert cls.server.stdout.readline() == "read\n"

    @staticmethod
    def stop(place):
        try:
            with open(f"{place}/posternd.pid", encoding="ascii") as file:
                os.kill(int(file.read()), signal.SIGTERM)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            pass

    @classmethod
    def start(cls, *command, env=None):
        program = subprocess.Popen(command, env=env or cls.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        cls.addClassCleanup(lambda: (program.kill(), program.stdin.close(), program.stdout.close(), program.wait(timeout=30)))
        return program

    def ask(self, *words, code=0, env=None):
        done = subprocess.run([f"{BUILD}/posternctl", *words], env=env or self.env, text=True, timeout=30, capture_output=True, check=False)
        self.assertEqual(done.returncode, code, (done.stdout, done.stderr))
        return done.stdout if code != 1 and code != 2 else done.stderr

    def paths(self, *filters):
        return sorted(s["path"] for s in json.loads(self.ask("ss", "--json", *filters))["sockets"])

    def test_filters(self):
        every = ["kernel", "listen", "same-host", "same-host"]
        self.assertEqual(self.paths(), every)
        for words, shown in ((["state", "listening"], ["listen"]), (["state", "established"], ["kernel", "same-host", "same-host"]),
                             (["exclude", "listening"], ["kernel", "same-host", "same-host"]),
                             (["sport", "=", f":{self.port}"], ["kernel", "listen", "same-host"]), (["dport", "=", str(self.port)], ["same-host"]),
                             ([f"( dport = :{self.port} or path = kernel ) and pid = {self.server.pid}"], ["kernel"]),
                             (["not", "(", "path", "=", "same-host", ")"], ["kernel", "listen"]), (["state established dport = :http"], []),
                             (["dst", "127.0.0.0/8", f"sport >= :{self.port}", "sport", "<=", str(self.port)], ["kernel", "same-host"]),
                             (["dst 10.0.0.0/8"], []), ([f"src 127.0.0.1:{self.port}"], ["kernel", "listen", "same-host"]),
                             (["reason", "=", "kernel-client"], ["kernel"]), (["-p", str(self.fast.pid)], ["same-host"]), (["comm != python3"], [])):
            self.assertEqual(self.paths(*words), shown, words)

    def test_wrong_filters_are_named(self):
        for words, what in (("state nowhere", "'nowhere' is no state"), ("sport = :nosuch", "'nosuch' is no port"), ("( sport = :1", "a ')' is missing"),
                            ("colour = red", "'colour' is no test"), ("sport", "the filter ends"), ("sport 80", "operator"), ("dst 1.2.3", "'1.2.3' is no address"), ("pid = 4 )", "what is ')' doing there?")):
            self.assertIn(what, self.ask("ss", words, code=1))
        self.assertIn("there is no user 'nosuchuser'", self.ask("ss", "-u", "nosuchuser", code=1))

    def test_bytes_are_live(self):
        """Of connections that are open; what is not known is shown as that."""
        lines = [line.split() for line in self.ask("ss", "-H").splitlines()]
        self.assertEqual(len(lines), 4)
        by_path = {(w[0], int(w[4].split("/")[0])): w[6:8] for w in lines}
        self.assertEqual(by_path["same-host", self.fast.pid], ["0", str(SENT)])
        self.assertEqual(by_path["same-host", self.server.pid], [str(SENT), "0"])
        self.assertEqual(by_path["kernel", self.server.pid], ["-", "-"])
        self.assertEqual(by_path["listen", self.server.pid], ["-", "-"])

    def test_details(self):
        sockets = {s["path"]: s for s in json.loads(self.ask("ss", "--json", "-i", "-p", str(self.server.pid)))["sockets"]}
        self.assertEqual(sockets["kernel"]["rx_bytes"], SENT)  # the kernel was asked
        self.assertGreater(sockets["kernel"]["rtt_us"], 0)
        self.assertGreater(sockets["kernel"]["cwnd"], 0)
        self.assertEqual(sockets["listen"]["accept_queue"], 0)
        text = self.ask("ss", "-i", "-m", "-e")
        for what in ("rtt:", "cwnd:", "ring:(r", "accept_queue:0", "records:", f"uid:{os.geteuid()}", "ino:", "stack:"):
            self.assertIn(what, text)
        sender, = json.loads(self.ask("ss", "--json", "-i", "-p", str(self.fast.pid)))["sockets"]
        self.assertGreater(sender["records"], 0)
        self.assertEqual(sender.get("tx_queue", 0), 0)  # all was read
        self.assertNotIn("ring_queue", self.ask("ss"))

    @unittest.skipUnless(os.geteuid() == 0, "not root")
    def test_other_users(self):
        place = f"{self.top}/nobody"
        os.mkdir(place, 0o700)
        os.chown(place, NOBODY, NOBODY)
        self.addCleanup(self.stop, place)
        env = {**self.env, "POSTERN_RUNTIME_DIR": place}
        other = self.start("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"{BUILD}/postern", PYTHON, "-c", SERVER, "1", env=env)
        port = int(other.stdout.readline())
        mine = f"sport = :{port}"
        self.assertEqual(self.paths(mine), [])
        self.assertEqual(self.paths("--all", mine), ["listen"])
        self.assertEqual(self.paths("--user", "nobody", mine), ["listen"])
        self.assertEqual(self.paths("--user", "root", mine), [])
        shown, = json.loads(self.ask("ss", "--json", "--all", mine))["sockets"]
        self.assertEqual((shown["uid"], shown["pid"]), (NOBODY, other.pid))
        self.assertIn('user="nobody"', self.ask("metrics"))

    @unittest.skipUnless(os.geteuid() == 0, "not root")
    def test_one_that_does_not_answer(self):
        """It is named, and the others' sockets are shown."""
        place = f"{self.top}/broken"
        os.mkdir(place, 0o700)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.bind(f"{place}/posternd.sock")
            line.listen()

            def hang_up():
                while True:
                    try:
                        line.accept()[0].close()
                    except OSError:
                        return

            threading.Thread(target=hang_up, daemon=True).start()
            done = subprocess.run([f"{BUILD}/posternctl", "ss", "--json", "--all", f"sport = :{self.port}"], env=self.env, text=True, timeout=30,
                                  capture_output=True, check=True)
            line.shutdown(socket.SHUT_RDWR)
        said = json.loads(done.stdout)
        self.assertEqual(sorted(s["path"] for s in said["sockets"]), ["kernel", "listen", "same-host"])
        self.assertGreaterEqual(said["unanswered"], 1)
        self.assertIn(f"posternctl: {place}: ", done.stderr)

    def metric(self, page, name, **labels):
        return sum(float(value) for found, of, value in re.findall(r"(?m)^(\w+)\{(.*)\} (\S+)$", page)
                   if found == name and all(f'{k}="{v}"' in of for k, v in labels.items()) and self.run_dir_of(page, of))

    def run_dir_of(self, page, of):
        """Other posterns of this user may run."""
        stacks = {s["id"] for s in json.loads(self.ask("status", "--json"))["stacks"]}
        stack = re.search(r'stack="(\w+)"', of)
        return stack is None or stack[1] in stacks

    def test_metrics(self):
        page = self.ask("metrics")
        self.assertEqual(self.metric(page, "postern_up", runtime_dir=self.run_dir), 1)
        self.assertEqual(self.metric(page, "postern_connects_total"), 1)
        self.assertEqual(self.metric(page, "postern_sent_bytes_total"), SENT)
        self.assertEqual(self.metric(page, "postern_received_bytes_total"), SENT)
        self.assertEqual(self.metric(page, "postern_fallbacks_total", reason="kernel-client"), 1)
        # Each family once, with its help and kind before its lines.
        heads = re.findall(r"(?m)^# HELP (\w+) \S.*\n# TYPE (\w+) (counter|gauge)$", page)
        self.assertTrue(all(a == b for a, b, _ in heads))
        self.assertEqual(len({a for a, _, _ in heads}), len(heads))
        self.assertEqual({line.split("{")[0] for line in page.splitlines() if not line.startswith("#")}, {a for a, _, _ in heads})

    def test_watch(self):
        with subprocess.Popen([f"{BUILD}/posternctl", "status", "--watch", "1"], env=self.env, text=True, stdout=subprocess.PIPE) as watch:
            seen = 0
            for line in watch.stdout:
                seen += line.startswith("posternd ")
                if seen == 2:
                    break
            watch.kill()
        self.assertEqual(seen, 2)

    def test_none_runs(self):
        env = {**self.env, "POSTERN_RUNTIME_DIR": f"{self.top}/none"}
        self.assertIn("not running", self.ask("ss", env=env))
        self.assertEqual(json.loads(self.ask("ss", "--json", env=env)), {"running": False, "sockets": []})


if __name__ == "__main__":
    signal.alarm(200)
    with readable(sys.argv.pop(1)) as BUILD:
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
