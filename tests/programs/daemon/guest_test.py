# guest_test.py - programs that root has started and that become another user: they leave root's family, take their sockets along, and
# stay accelerated; what they try with root's daemon, they try in vain.
# SPDX-License-Identifier: Apache-2.0
#
# usage: guest_test.py BUILD_DIR [-v] [TEST...]; exit 77: not root.
# Each test has a daemon of its own.

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import broker_test
from broker_test import CLIENT, SERVER, Program, copied
from daemon_test import EPERM, L, load_layout, start_time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab

BUILD = TOOLS = "build"
NOBODY = 65534
PATIENCE_S = 20

# Each line is Python, an expression or a statement; `name: ...` is one for the child of that name, which is forked by fork(name).
ACTOR = r"""
import ctypes, os, select, signal, socket, struct, sys, threading, time
children = {}
def become(uid=%d):
    os.setgid(uid); os.setuid(uid)
def listener(backlog=64):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", 0)); s.listen(backlog)
    return s
def fork(name):
    to, back = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.dup2(to[0], 0); os.dup2(back[1], 1); os.close(to[1]); os.close(back[0])
        children.clear()
        work(os.fdopen(0, "r"), os.fdopen(1, "w"))
        os._exit(0)
    children[name] = os.fdopen(to[1], "w", buffering=1), os.fdopen(back[0], "r")
def serve(s, count):
    s.settimeout(20)
    for _ in range(count):
        c = s.accept()[0]
        while data := c.recv(65536): c.sendall(b"%%d " %% os.getuid() + data)
        c.close()
    return count
def work(lines, out):
    for line in iter(lines.readline, ""):
        name, _, rest = line.partition(": ")
        if name in children:
            children[name][0].write(rest)
            print(children[name][1].readline(), end="", file=out, flush=True)
            continue
        try:
            try:
                code = compile(line, "line", "eval")
            except SyntaxError:
                exec(line, globals()); print("ok", file=out, flush=True)
            else:
                print(repr(eval(code, globals())), file=out, flush=True)
        except BaseException as e:
            print(type(e).__name__, str(e).replace("\n", " "), file=out, flush=True)
if __name__ == "__main__":
    work(sys.stdin, sys.stdout)
""" % NOBODY


class Actor:
    def __init__(self, test, *options):
        self.test = test
        env = dict(os.environ, POSTERN_RUNTIME_DIR=test.runtime)
        self.process = subprocess.Popen([f"{BUILD}/postern", *options, "/usr/bin/python3", test.actor], env=env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        test.addCleanup(self.end)

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, line):
        self.tell(line)
        return self.hear()

    def do(self, *lines):
        for line in lines:
            answer = self.ask(line)
            self.test.assertIn(answer, ("ok", "None"), line)

    def number(self, line):
        return int(self.ask(line))


class Guest(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp(prefix="pstn-guest-")
        os.chmod(self.top, 0o755)
        self.addCleanup(shutil.rmtree, self.top)
        self.actor = f"{self.top}/actor.py"
        with open(self.actor, "w", encoding="ascii") as file:
            file.write(ACTOR)
        self.runtime = f"{self.top}/runtime"
        self.start_daemon()
        self.addCleanup(self.end_daemon)

    def start_daemon(self):
        with open(f"{self.top}/daemon.log", "ab") as log:
            self.daemon = subprocess.Popen([f"{BUILD}/posternd", "--foreground", "--verbose", "--runtime-dir", self.runtime], stderr=log)
        self.until(self.answers, "posternd does not answer")

    def end_daemon(self):
        """When all have ended, nothing is left of them."""
        self.until(lambda: not self.status()["stacks"], "stacks are left")
        self.daemon.kill()
        self.daemon.wait()
        netlab.forget_bells(self.runtime)

    def log(self):
        with open(f"{self.top}/daemon.log", encoding="utf-8") as file:
            return file.read()

    def answers(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            return line.connect_ex(f"{self.runtime}/posternd.sock") == 0

    def until(self, condition, complaint):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end, complaint)
            time.sleep(0.02)

    def status(self):
        said = subprocess.run([f"{TOOLS}/posternctl", "--runtime-dir", self.runtime, "status", "--json"], check=True, capture_output=True)
        return json.loads(said.stdout)

    def stacks(self, uid):
        return [stack for stack in self.status()["stacks"] if stack["uid"] == uid]

    def counted(self, uid, name):
        return sum(stack["counters"][name] for stack in self.stacks(uid))

    def listed(self, uid):
        """Since a process of that user's waits for clients."""
        def is_there():
            status = self.status()
            ids = {stack["id"] for stack in status["stacks"] if stack["uid"] == uid}
            return any(listener["stack"] in ids for listener in status["listeners"])
        self.until(is_there, f"no listener of user {uid}")

    def served(self, client, port, count, uid):
        """Connections in turn, each of which that user answers."""
        client.do(f"def go(): c = socket.create_connection(('127.0.0.1', {port}), 20); c.sendall(b'x'); d = c.recv(100); c.close(); return d")
        for _ in range(count):
            self.assertEqual(client.ask("go()"), repr(b"%d x" % uid))

    def memory_of(self, pid):
        """Inodes of the stacks that a process maps or has a descriptor of."""
        with open(f"/proc/{pid}/maps", encoding="ascii") as file:
            found = {int(line.split()[4]) for line in file if "postern-stack" in line}
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if "postern-stack" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                    found.add(os.stat(f"/proc/{pid}/fd/{fd}").st_ino)
            except FileNotFoundError:
                pass  # the listing's own
        return found

    def server(self, *names):
        """A server of root's that listens, with a child of each name that is somebody else."""
        server = Actor(self)
        server.do("s = listener()")
        port = server.number("s.getsockname()[1]")
        pids = []
        for name in names:
            server.do(f"fork('{name}')", f"{name}: become()")
            pids.append(server.number(f"{name}: os.getpid()"))
        return server, port, pids


class Listeners(Guest):
    def expect_served(self, server, port, who=""):
        server.tell(f"{who}serve(s, 5)")
        self.listed(NOBODY)
        self.served(Actor(self), port, 5, NOBODY)
        self.assertEqual((server.hear(), self.counted(NOBODY, "accepts")), ("5", 5))

    def test_workers_of_another_user(self):
        server, port, pids = self.server("a", "b")
        client = Actor(self)
        server.tell("a: serve(s, 10)")
        self.listed(NOBODY)
        self.served(client, port, 10, NOBODY)
        self.assertEqual(server.hear(), "10")
        server.tell("b: serve(s, 10)")
        self.served(client, port, 10, NOBODY)
        self.assertEqual(server.hear(), "10")
        roots = self.memory_of(server.number("os.getpid()"))
        theirs = [self.memory_of(pid) for pid in pids]
        self.assertEqual((len(roots), len(theirs[0])), (1, 1))
        self.assertEqual(theirs[0], theirs[1], "two workers of one server have no stack in common")
        self.assertFalse(roots & theirs[0], "a worker has its master's memory")
        self.assertEqual(self.counted(NOBODY, "accepts"), 20)
        self.assertEqual(self.counted(NOBODY, "kernel_accepts"), 0)

    def test_who_does_not_accept_gets_no_clients(self):
        """A child that only has inherited the listener."""
        server, port, _ = self.server("idle")
        client = Actor(self)
        server.tell("serve(s, 10)")
        self.served(client, port, 10, 0)
        self.assertEqual(server.hear(), "10")
        self.assertEqual(self.counted(0, "accepts"), 10)

    def test_both_accept(self):
        """Each client is whose process accepts it first: clients wait where both see them, in the kernel's queue."""
        server, port, _ = self.server("a")
        loop = ("def loop(): exec('e = select.epoll(); e.register(s, select.EPOLLIN)\\nwhile e.poll(20):\\n  try: c = s.accept()[0]\\n"
                "  except BlockingIOError: continue\\n  c.sendall(b\"%d\" % os.getuid()); c.close()', globals())")
        server.do("s.setblocking(False)", loop, "a: " + loop, "a: threading.Thread(target=loop).start()")
        self.listed(NOBODY)
        server.do("threading.Thread(target=loop).start()")
        self.until(lambda: not self.status()["listeners"], "clients wait where only one sees them")
        client = Actor(self)
        client.do(f"def go(): c = socket.create_connection(('127.0.0.1', {port}), 20); d = c.recv(100); c.close(); return d")
        said = [client.ask("go()") for _ in range(60)]
        self.assertLessEqual(set(said), {repr(b"%d" % uid) for uid in (0, NOBODY)}, said)

    def test_one_looks_and_another_accepts(self):
        """As php-fpm, whose master polls the listener and has a child, which is another user, accept the client."""
        server = Actor(self)
        server.do("s = listener()", "e = select.epoll()", "e.register(s, select.EPOLLIN)")
        port = server.number("s.getsockname()[1]")
        client = Actor(self)
        for name in ("a", "b"):
            server.tell("len(e.poll(20))")
            client.do(f"c = socket.create_connection(('127.0.0.1', {port}), 20)", "c.sendall(b'q')")
            self.assertEqual(server.hear(), "1")
            server.do(f"fork('{name}')", f"{name}: become()", f"{name}: s.settimeout(20)")
            self.assertEqual(server.ask(f"{name}: s.accept()[0].recv(10)"), repr(b"q"))

    def test_root_does_not_accept_any_more(self):
        """It has waited once, and may again: but the clients are those' that wait."""
        server = Actor(self)
        server.do("s = listener()")
        port = server.number("s.getsockname()[1]")
        client = Actor(self)
        server.tell("serve(s, 1)")
        self.served(client, port, 1, 0)
        self.assertEqual(server.hear(), "1")
        server.do("fork('a')", "a: become()")
        server.tell("a: serve(s, 10)")
        self.until(lambda: not self.status()["listeners"], "clients wait where only one sees them")
        self.served(client, port, 10, NOBODY)
        self.assertEqual(server.hear(), "10")

    def test_waiting_clients_go_along(self):
        """Of a listener that one process has, which becomes another user while clients wait."""
        server = Actor(self)
        server.do("s = listener()")
        port = server.number("s.getsockname()[1]")
        client = Actor(self)
        client.do(f"cs = [socket.create_connection(('127.0.0.1', {port}), 20) for _ in range(5)]", "[c.sendall(b'early') for c in cs] and None")
        server.do("become()")
        server.tell("serve(s, 6)")
        self.assertEqual(client.ask("[(c.recv(100), c.close())[0] for c in cs]"), repr([b"%d early" % NOBODY] * 5))
        self.served(client, port, 1, NOBODY)
        self.assertEqual(server.hear(), "6")
        self.assertEqual(self.counted(NOBODY, "accepts"), 1)

    def ends_with_clients(self, *how):
        """A worker gives its listener up while three clients wait for it: they are the master's then."""
        server, port, _ = self.server("a")
        client = Actor(self)
        server.tell("a: serve(s, 1)")
        self.listed(NOBODY)
        self.served(client, port, 1, NOBODY)
        self.assertEqual(server.hear(), "1")
        client.do(f"cs = [socket.create_connection(('127.0.0.1', {port}), 20) for _ in range(3)]", "[c.sendall(b'y') for c in cs] and None")
        server.do(*how)
        server.tell("serve(s, 3)")
        self.assertEqual(client.ask("[(c.recv(100), c.close())[0] for c in cs]"), repr([b"0 y"] * 3))
        self.assertEqual(server.hear(), "3")

    def test_clients_of_a_worker_that_closes(self):
        self.ends_with_clients("a: s.close()")

    def test_clients_of_a_worker_that_ends(self):
        self.ends_with_clients("children['a'][0].write('ctypes.CDLL(None).exit(0)\\n') and None", "os.wait() and None")

    def test_clients_of_a_worker_that_is_killed(self):
        self.ends_with_clients("children['a'][0].write('os.kill(os.getpid(), 9)\\n') and None", "os.wait() and None")

    def test_clients_of_workers_that_are_killed(self):
        """The second one's wait while the keeper of its stack still carries those of the first."""
        server, port, _ = self.server("a")
        client = Actor(self)
        client.do("cs = []")
        for name in "ab":
            if name == "b":
                server.do("children.clear()", "fork('b')", "b: become()")
            server.tell(f"{name}: serve(s, 1)")
            self.listed(NOBODY)
            # What came before waits in the kernel's queue, and may be first.
            more = "[cs.append(socket.create_connection(('127.0.0.1', %d), 20)) for _ in range(3)] and None" % port
            client.do(more, "[c.sendall(b'y') for c in cs[-3:]] and None")
            if name == "a":
                client.do("first = cs.pop(0)", "f = first.recv(100)", "first.close()")
            else:
                client.do("select.select(cs, [], [], 20) and None")
                client.do("[(c.recv(100), c.close(), cs.remove(c)) for c in select.select(cs, [], [], 20)[0]] and None")
            self.assertEqual(server.hear(), "1")
            server.do(f"children['{name}'][0].write('os.kill(os.getpid(), 9)\\n') and None", "os.wait() and None")
        count = client.number("len(cs)")
        self.assertEqual(count, 4)
        server.tell(f"serve(s, {count})")
        self.assertEqual(client.ask("[(c.recv(100), c.close())[0] for c in cs]"), repr([b"0 y"] * count))

    def test_clients_of_a_master_that_is_killed(self):
        """They wait in its queue, and a worker that has not waited for any has the socket."""
        server, port, pids = self.server("a")
        client = Actor(self)
        server.tell("serve(s, 1)")
        self.served(client, port, 1, 0)
        self.assertEqual(server.hear(), "1")
        client.do(f"cs = [socket.create_connection(('127.0.0.1', {port}), 20) for _ in range(3)]", "[c.sendall(b'y') for c in cs] and None")
        server.do("a: master = os.getppid()",
                  "a: def alone(): ctypes.CDLL(None).prctl(15, b'alone'); exec('while os.getppid() == master: time.sleep(0.01)'); serve(s, 3); os._exit(0)")
        server.tell("a: alone()")
        def is_told():
            with open(f"/proc/{pids[0]}/comm", encoding="utf-8", errors="replace") as file:
                return file.read() == "alone\n"
        self.until(is_told, "the worker does not begin")
        server.process.kill()
        self.assertEqual(client.ask("[(c.recv(100), c.close())[0] for c in cs]"), repr([b"%d y" % NOBODY] * 3))

    def test_a_user_namespace(self):
        """In which its ids have other names, or none yet: it is the same user."""
        server = Actor(self)
        server.do("s = listener()")
        port = server.number("s.getsockname()[1]")
        self.assertEqual(server.ask("ctypes.CDLL(None).unshare(0x10000000)"), "0")  # CLONE_NEWUSER
        server.do("fork('a')")
        server.tell("a: serve(s, 2)")
        self.served(Actor(self), port, 2, 65534)
        self.assertEqual(server.hear(), "2")
        self.assertEqual(self.counted(0, "accepts"), 2)

    def test_an_event_set_of_its_parents(self):
        """It tells nothing of what the parent has in it, and nothing that the program has never put there."""
        server = Actor(self)
        server.do("s = listener()", "e = select.epoll()", "e.register(s, select.EPOLLIN)", "fork('a')", "a: become()")
        with socket.create_connection(("127.0.0.1", server.number("s.getsockname()[1]"))):
            self.assertEqual(server.ask("[fd == s.fileno() for fd, _ in e.poll(20)]"), "[True]")
            self.assertEqual(server.ask("a: e.poll(0.2)"), "[]")

    def test_a_first_socket_under_another_id(self):
        server = Actor(self)
        server.do(f"os.seteuid({NOBODY})", "k = listener()", "os.seteuid(0)", "s = listener()")
        port = server.number("s.getsockname()[1]")
        server.tell("serve(s, 2)")
        self.served(Actor(self), port, 2, 0)
        self.assertEqual(server.hear(), "2")
        self.assertEqual(self.counted(0, "accepts"), 2)

    def test_a_worker_is_killed(self):
        server, port, pids = self.server("a")
        client = Actor(self)
        server.tell("a: serve(s, 1)")
        self.served(client, port, 1, NOBODY)
        self.assertEqual(server.hear(), "1")
        os.kill(pids[0], signal.SIGKILL)
        server.do("os.wait() and None", "children.clear()", "fork('b')", "b: become()")
        server.tell("b: serve(s, 5)")
        self.served(client, port, 5, NOBODY)
        self.assertEqual(server.hear(), "5")

    def test_a_worker_that_was_waited_for(self):
        """What it held is released when wait() returns: the port has no listener, the connections have ended."""
        server = Actor(self)
        server.do("k = listener()", "fork('a')", "a: s = listener()", "a: become()", "a: s.settimeout(0.01)")
        port = server.number("a: s.getsockname()[1]")
        server.ask("a: s.accept()")
        self.listed(NOBODY)
        client = Actor(self)
        client.do(f"c = socket.create_connection(('127.0.0.1', {port}), 20)", "c.settimeout(20)")
        server.do("a: s.settimeout(20)", "a: c = s.accept()[0]", f"os.kill({server.number('a: os.getpid()')}, 9)", "os.wait() and None")
        self.assertIn("ConnectionRefused", client.ask(f"socket.create_connection(('127.0.0.1', {port}), 20)"))
        self.assertEqual(client.ask("c.recv(10)"), repr(b""))

    def test_the_next_image(self):
        server, port, _ = self.server("a")
        server.do("s.set_inheritable(True)", "fork('b')", "b: become()")
        text = "import os, sys; sys.path.insert(0, os.path.dirname(sys.argv[1])); import actor; actor.s = actor.socket.socket(fileno=int(sys.argv[2])); print('begun', flush=True); actor.work(sys.stdin, sys.stdout)"
        line = f"os.execv('/usr/bin/python3', ['python3', '-c', {text!r}, {self.actor!r}, str(s.fileno())])\n"
        self.assertIn("begun", server.ask(f"children['b'][0].write({line!r}) and children['b'][1].readline()"))  # it reads what follows
        self.expect_served(server, port, "b: ")
        self.assertEqual(self.counted(NOBODY, "execs"), 1)

    def test_posternd_comes_anew(self):
        server, port, _ = self.server("a")
        client = Actor(self)
        server.tell("a: serve(s, 1)")
        self.served(client, port, 1, NOBODY)
        self.assertEqual(server.hear(), "1")
        self.daemon.kill()
        self.daemon.wait()
        self.start_daemon()
        server.do("a: s.settimeout(0.5)")
        server.ask("a: s.accept()")  # it looks for the new one
        self.until(lambda: self.stacks(NOBODY), "the guest did not come back")
        before = self.counted(NOBODY, "accepts")
        server.tell("a: serve(s, 5)")
        self.listed(NOBODY)
        self.served(client, port, 5, NOBODY)
        self.assertEqual(server.hear(), "5")
        self.assertEqual(self.counted(NOBODY, "accepts"), before + 5)

    def test_who_can_go_back_stays(self):
        server = Actor(self)
        server.do("s = listener()")
        port = server.number("s.getsockname()[1]")
        before = self.memory_of(server.process.pid)
        server.do(f"os.seteuid({NOBODY})")
        self.assertEqual(self.memory_of(server.process.pid), before)
        client = Actor(self)
        server.tell("serve(s, 2)")
        self.served(client, port, 2, 0)  # by its real user id
        self.assertEqual(server.hear(), "2")
        server.do("os.seteuid(0)")
        self.assertEqual(self.counted(0, "accepts"), 2)

    def test_before_its_first_socket(self):
        server = Actor(self)
        server.do("become()", "s = listener()")
        self.expect_served(server, server.number("s.getsockname()[1]"))

    def test_a_root_without_proc_after_threads(self):  # haproxy's worker
        server = Actor(self)
        server.do("t = threading.Thread(target=len, args=('',)); t.start(); t.join()", "s = listener()", "fork('a')", f"a: os.chroot('{self.top}')", "a: become()")
        self.expect_served(server, server.number("s.getsockname()[1]"), "a: ")

    def test_other_threads(self):
        """They may be in calls on the stack: all is the kernel's, and no memory of root's is left."""
        server = Actor(self)
        server.do("s = listener()", "import queue", "got = queue.Queue()",
                  "def take(): exec('while True: got.put(s.accept()[0])', globals())", "threading.Thread(target=take, daemon=True).start()")
        port = server.number("s.getsockname()[1]")
        client = Actor(self)
        client.do(f"c = socket.create_connection(('127.0.0.1', {port}), 20)")
        server.do("c = got.get(timeout=20)", "become()")
        client.do("c.sendall(b'after')")
        self.assertEqual(server.ask("c.recv(100)"), repr(b"after"))
        client.do(f"d = socket.create_connection(('127.0.0.1', {port}), 20)", "d.sendall(b'new')")
        self.assertEqual(server.ask("got.get(timeout=20).recv(100)"), repr(b"new"))
        self.assertEqual(self.memory_of(server.process.pid), set())
        self.until(lambda: f"pid {server.process.pid} has become another user" in self.log(), "posternd does not say why")


class Connections(Guest):
    def pair(self):
        server, client = Actor(self), Actor(self)
        server.do("s = listener()")
        port = server.number("s.getsockname()[1]")
        client.do(f"c = socket.create_connection(('127.0.0.1', {port}), 20)", "c.settimeout(20)")
        server.do("c = s.accept()[0]", "c.settimeout(20)")
        return server, client, port

    def expect_shared_memory(self):
        self.assertEqual(sum(stack["fallbacks"].get("exported", 0) for stack in self.stacks(NOBODY)), 0)
        self.assertEqual(self.counted(NOBODY, "kernel_accepts") + self.counted(NOBODY, "kernel_connects"), 0)
        with open("/proc/net/tcp", encoding="ascii") as file:
            established = [line for line in file if line.split()[3] == "01"]
        return established

    def test_goes_along(self):
        server, client, port = self.pair()
        names = server.ask("c.getsockname(), c.getpeername()")
        client.do("c.sendall(b'one')")
        server.do("become()")
        self.assertEqual(server.ask("c.getsockname(), c.getpeername()"), names)
        self.assertEqual(server.ask("c.recv(100)"), repr(b"one"))
        server.do("c.sendall(b'two')")
        self.assertEqual(client.ask("c.recv(100)"), repr(b"two"))
        self.assertFalse(any(f":{port:04X} " in line for line in self.expect_shared_memory()), "the kernel has a connection of it")
        self.assertEqual(len(self.memory_of(server.process.pid)), 1)
        client.do("c.close()")
        self.assertEqual(server.ask("c.recv(100)"), repr(b""))

    def test_much_that_is_on_its_way(self):
        """In both directions, more than the rings hold."""
        server, client, _ = self.pair()
        send = "def send(): c.sendall(bytes(range(256)) * 8192); c.shutdown(socket.SHUT_WR); return 'sent'"
        take = "def take(): exec('got = b\"\"\\nwhile d := c.recv(65536): got += d', globals()); return got == bytes(range(256)) * 8192"
        client.do(send, take, "t = threading.Thread(target=send)", "t.start()", "time.sleep(0.2)")
        server.do("become()", send, take, "t = threading.Thread(target=send)", "t.start()")
        self.assertEqual(server.ask("take()"), "True")
        self.assertEqual(client.ask("take()"), "True")

    def test_what_can_be_read_still_can(self):
        server, client, _ = self.pair()
        client.do("c.sendall(b'last words')", "c.close()")
        server.do("become()", "c.setblocking(False)")
        self.assertEqual(server.ask("c.recv(4)"), repr(b"last"))
        self.assertEqual(server.ask("c.recv(100)"), repr(b" words"))
        self.assertEqual(server.ask("c.recv(100)"), repr(b""))

    def test_half_closed(self):
        server, client, _ = self.pair()
        server.do("c.sendall(b'all')", "c.shutdown(socket.SHUT_WR)", "become()")
        self.assertEqual(client.ask("c.recv(100), c.recv(100)"), repr((b"all", b"")))
        client.do("c.sendall(b'answer')")
        self.assertEqual(server.ask("c.recv(100)"), repr(b"answer"))
        self.assertIn("BrokenPipe", server.ask("c.send(b'x')"))

    def test_reset(self):
        server, client, _ = self.pair()
        server.do("become()")
        client.do("c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))", "c.close()")
        self.assertIn("ConnectionReset", server.ask("c.recv(100)"))

    def test_in_an_event_set(self):
        server, client, _ = self.pair()
        server.do("e = select.epoll()", "e.register(c, select.EPOLLIN)", "e.register(s, select.EPOLLIN | select.EPOLLET)", "become()")
        self.assertEqual(server.ask("e.poll(0)"), "[]")
        client.do("c.sendall(b'x')")
        fd = server.number("c.fileno()")
        self.assertEqual(server.ask("e.poll(20)"), repr([(fd, 1)]))
        server.do("c.recv(10) and None", f"e.modify({fd}, select.EPOLLOUT)")
        self.assertEqual(server.ask("e.poll(20)"), repr([(fd, 4)]))
        server.do(f"e.unregister({fd})")
        self.assertEqual(server.ask("e.poll(0)"), "[]")

    def test_a_client_that_becomes_another_user(self):
        server, client, _ = self.pair()
        client.do("c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)", "become()")
        self.assertEqual(client.ask("c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)"), "1")
        client.do("c.sendall(b'hello')")
        self.assertEqual(server.ask("c.recv(100)"), repr(b"hello"))
        server.do("c.close()")
        self.assertEqual(client.ask("c.recv(100)"), repr(b""))

    def test_not_connected_yet(self):
        server, client, port = self.pair()
        client.do("d = socket.socket()", "d.settimeout(20)", "become()", f"d.connect(('127.0.0.1', {port}))", "d.sendall(b'x')")
        self.assertEqual(server.ask("s.accept()[0].recv(10)"), repr(b"x"))
        self.assertEqual(self.counted(NOBODY, "connects"), 1)

    def test_shared_with_one_that_stays(self):
        """It is the kernel's then: one stream, one path."""
        server, client, _ = self.pair()
        server.do("fork('a')", "a: become()", "a: c.sendall(b'child')")
        self.assertEqual(client.ask("c.recv(100)"), repr(b"child"))
        server.do("c.sendall(b'parent')")
        self.assertEqual(client.ask("c.recv(100)"), repr(b"parent"))
        server.do("c.close()", "a: c.close()")
        self.assertEqual(client.ask("c.recv(100)"), repr(b""))


class AcrossUsers(broker_test.Broker):
    """Clients of a second user, who reach root's posternd by the broker."""

    def guest(self):
        become = "import os, select; os.setgid(33); os.setuid(33); select.select([s], [], [], 0)\nheld = []\n"
        server = Program(self, "a", SERVER.replace("held = []\n", become))
        port = int(server.line())
        self.wait_for("a", "guests of")
        self.wait_for("a", f"listens on port {port}", 2)
        return server, port

    def strict(self, port):
        client = Program(self, "b", CLIENT, "--strict")
        end = time.monotonic() + PATIENCE_S
        while client.ask(f"connect {port}") != "ok":  # until the daemon of b has heard of it
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return client

    def test_they_are_accelerated(self):
        server, port = self.guest()
        client = self.strict(port)
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, client)

    def test_the_broker_comes_anew(self):
        server, port = self.guest()
        client = self.strict(port)
        self.assertEqual(server.ask("accept"), "accepted")
        self.kill("system")
        self.echo(server, client, "without")
        self.start_broker()
        for name in "ab":
            self.wait_for(name, "joined", 2)
        other = self.strict(port)
        self.assertEqual(server.ask("accept"), "accepted")
        self.echo(server, other, "again")


# What a guest may say to root's daemon, beside what its library says.
SPEAK = r"""
import array
MSG = struct.Struct("=IIIiIIIIQQ24s48s")
def name_of(path):
    h = 0xcbf29ce484222325
    for b in path.encode(): h = ((h ^ b) * 0x100000001b3) %% 2**64
    return b"\0postern-ctl-%%016x" %% h
def own_stack():
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "postern-stack" in os.readlink("/proc/self/fd/" + fd): return os.open("/proc/self/fd/" + fd, os.O_RDWR)
        except OSError: pass
def say(line, kind, fd=None, **fields):
    get = lambda name: fields.get(name, 0)
    message = MSG.pack(%d, kind, 1, 0, get("a"), get("b"), get("c"), get("d"), *fields.get("uuid", (0, 0)), bytes(24),
                       bytes(32) + struct.pack("=QQ", get("cookie"), 0))
    line.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else [])
    line.settimeout(20)
    while True:
        answer, control, _, _ = line.recvmsg(200, 1000)
        if not answer: return "cut off"
        if MSG.unpack(answer)[2] == 1: return MSG.unpack(answer)[3]
def line():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(name_of(SOCKET)); return s
def word(fd, at, form="Q"): return struct.unpack("=" + form, os.pread(fd, struct.calcsize(form), at))[0]
"""
PROTOCOL = 4
HELLO, STATUS, QUIT, EXPORT, VI, FILTER, WIRE, NAMED, GUEST = 1, 8, 10, 11, 33, 34, 35, 38, 39


class Trespass(Guest):
    def guest(self):
        server, port, _ = self.server("a")
        server.tell("a: serve(s, 1)")
        self.served(Actor(self), port, 1, NOBODY)
        self.assertEqual(server.hear(), "1")
        script = f"{self.top}/speak.py"
        with open(script, "w", encoding="ascii") as file:
            file.write(f"SOCKET = {self.runtime + '/posternd.sock'!r}\n" + SPEAK % PROTOCOL)
        for who in ("", "a: "):
            server.do(f"{who}exec(open({script!r}).read(), globals())")
        return server

    def hello(self, cookie):
        at = L["hdr_id"]
        return (f"a: m = own_stack(); l = line(); r = say(l, {HELLO}, fd=m, a=SLOT, uuid=(word(m, {at}), word(m, {at + 8})), cookie={cookie})")

    def test_a_guest_that_says_hello_itself(self):
        """With its own slot and ticket it is heard; it is told nothing of root's, and moves nothing."""
        server = self.guest()
        slots = {stack["id"]: stack["processes"][0]["slot"] for stack in self.stacks(NOBODY)}
        self.assertEqual(len(slots), 1)
        server.do(f"a: SLOT = {list(slots.values())[0]}", self.hello(f"word(m, {L['ticket']})"))
        self.assertEqual(server.ask("a: r"), "0")
        for kind in (STATUS, QUIT, NAMED, VI, FILTER, WIRE):
            self.assertEqual(server.ask(f"a: say(l, {kind}, fd=m)"), str(EPERM), kind)
        master = server.number("os.getpid()")
        moved = server.ask(f"a: say(l, {EXPORT}, fd=s.fileno(), a=0xffffffff, b={master}, c=s.fileno())")
        self.assertNotEqual(moved, "0", "it has moved a socket of root's process")
        self.assertTrue(self.daemon.poll() is None and self.answers())

    def test_a_ticket_of_its_own_making(self):
        server = self.guest()
        server.do("a: SLOT = 0", self.hello(f"word(m, {L['ticket']}) ^ 1"))
        self.assertNotEqual(server.ask("a: r"), "0")

    def test_another_stack_with_that_ticket(self):
        """The ticket is its stack's alone."""
        server = self.guest()
        server.do("a: m = own_stack()", f"a: t = word(m, {L['ticket']})",
                  "a: LIBC = ctypes.CDLL(None); n = os.memfd_create('x', 3); os.ftruncate(n, os.fstat(m).st_size)",
                  "a: os.pwrite(n, os.pread(m, 1 << 20, 0), 0) and None", "a: import fcntl", "a: fcntl.fcntl(n, 1033, 6) or None",
                  f"a: os.pwrite(n, struct.pack('=QQ', 7, 7), {L['hdr_id']}) and None",
                  f"a: l = line(); r = say(l, {HELLO}, fd=n, uuid=(7, 7), cookie=t)")
        self.assertNotEqual(server.ask("a: r"), "0")

    def test_who_was_never_of_the_family(self):
        """Another user's process that knows the name of root's stack."""
        server = self.guest()
        root = self.stacks(0)[0]["id"]
        uuid = int(root[:16], 16), int(root[16:], 16)
        with open(f"{self.top}/speak.py", encoding="ascii") as file:
            text = file.read()
        program = f"import ctypes, os, socket, struct\n{text}\nn = os.memfd_create('x', 3); os.ftruncate(n, 4096)\nprint(say(line(), {GUEST}, fd=n, uuid={uuid}))"
        said = subprocess.run(["/usr/bin/python3", "-c", program], capture_output=True, text=True, timeout=60, check=False,
                              preexec_fn=lambda: os.setresuid(NOBODY, NOBODY, NOBODY))
        self.assertEqual(said.stdout.strip(), str(EPERM), said.stderr)
        # And one that is root's still: it could have what it wants without.
        self.assertEqual(server.ask(f"say(line(), {GUEST}, fd=os.memfd_create('x', 3), uuid={uuid})"), str(EPERM))

    def test_roots_memory_in_other_hands(self):
        """A descriptor of root's stack that another user has got does not make it one of the family."""
        server = self.guest()
        server.do("import array", "p = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)", "fork('b')",
                  "q = own_stack()", "p[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [q]))]) and None",
                  "b: become()", "b: g = p[1].recvmsg(10, 100)", "b: q = array.array('i', bytes(g[1][0][2]))[0]")
        at = L["hdr_id"]
        said = server.ask(f"b: say(line(), {HELLO}, fd=q, a=9, uuid=(word(q, {at}), word(q, {at + 8})))")
        self.assertNotEqual(said, "0")

    def test_posternds_memory_for_a_stack_of_roots(self):
        """A link group's memory is posternd's, and the guest can write it: it writes a stack into it, and has a program that it may start as
        root (setuid) be the process."""
        server = self.guest()
        sleep = f"{self.top}/sleep"
        shutil.copy("/bin/sleep", sleep)
        os.chmod(sleep, 0o4755)
        counts = [L[f"count{i}"] for i in range(8)]
        page = lambda at: -(-at // 4096) * 4096
        sockets, chunks = 300000, 4688
        room = L["lgr_bytes"] - page(L["chunk_size"] * chunks) - page(L["eps"] + L["ep_size"] * sockets)
        counts[4:7] = sockets, room // L["item_size"], chunks
        find = r"for f in os.listdir('/proc/self/fd'):\n  try:\n    if 'postern-lgr' in os.readlink('/proc/self/fd/' + f): g = os.open('/proc/self/fd/' + f, os.O_RDWR)\n  except OSError: pass"
        start = r"p = os.fork()\nif p == 0:\n  l.connect(name_of(SOCKET)); os.execv(SLEEP, ['sleep', '100'])"
        server.do("a: m = own_stack()", f'a: exec("{find}", globals())', "a: h = bytearray(os.pread(m, 65536, 0))",
                  f"a: struct.pack_into('=8I', h, {L['counts']}, *{counts})", f"a: struct.pack_into('=Q', h, {L['hdr_size']}, {L['lgr_bytes']})",
                  f"a: struct.pack_into('=QQ', h, {L['hdr_id']}, 7, 7)", f"a: struct.pack_into('=I', h, {L['slots_hw']}, 1)",
                  "a: os.pwrite(g, h, 0) and None", "a: l = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)", f"a: SLEEP = {sleep!r}",
                  f'a: exec("{start}", globals())')
        pid = server.number("a: p")
        self.until(lambda: os.readlink(f"/proc/{pid}/exe") == sleep, "it does not start")
        server.do(f"a: os.pwrite(g, struct.pack('=IIQ', 2, p, {start_time(pid)}), {L['slots']}) and None")
        self.assertNotEqual(server.ask(f"a: say(l, {HELLO}, fd=g, uuid=(7, 7))"), "0")
        os.kill(pid, signal.SIGKILL)

    def own_slot(self, server):
        server.do("a: m = own_stack()", f"a: me = word(m, {L['hdr_id']}), word(m, {L['hdr_id'] + 8})",
                  f"a: SLOT = [i for i in range(64) if word(m, {L['slots']} + i * {L['slot_size']} + 4, 'I') == os.getpid()][0]")

    def test_a_line_for_each_hello(self):
        """posternd's descriptors are all its programs'."""
        server = self.guest()
        self.own_slot(server)
        before = len(os.listdir(f"/proc/{self.daemon.pid}/fd"))
        hello = f"say(keep[-1], {HELLO}, fd=m, a=SLOT, uuid=me, cookie=word(m, {L['ticket']}))"
        server.do("a: keep = []")
        self.assertEqual(server.ask(f"a: {{(keep.append(line()), {hello})[1] for _ in range(200)}}"), "{0}")
        self.assertLess(len(os.listdir(f"/proc/{self.daemon.pid}/fd")), before + 100)

    def test_slots_of_a_process_with_many_mappings(self):
        """What they say is looked up in /proc, but posternd has others to answer, too."""
        server = self.guest()
        self.own_slot(server)
        big = (r"r, w = os.pipe()\nbig = os.fork()\nif big == 0:\n  f = os.memfd_create('x'); os.ftruncate(f, 4096); map = ctypes.CDLL(None).mmap; map.restype = ctypes.c_void_p; map.argtypes = [ctypes.c_void_p] + [ctypes.c_long] * 5"
               r"\n  for n in range(60000): map(None, 4096, 1 + 2 * (n % 2), 2, f, 0)\n  os.write(w, b'x'); time.sleep(100)")
        server.do(f'a: exec("{big}", globals())', "a: os.read(r, 1) and None")
        pid = server.number("a: big")
        server.do(f"a: [os.pwrite(m, struct.pack('=IIQ', 2, big, {start_time(pid)}), {L['slots']} + i * {L['slot_size']}) for i in range(64, 250)] and None",
                  f"a: os.pwrite(m, struct.pack('=I', 250), {L['slots_hw']}) and None")
        server.tell(f"a: say(line(), {HELLO}, fd=m, a=SLOT, uuid=me, cookie=word(m, {L['ticket']}))")
        for _ in range(10):
            self.status()  # posternctl has its own patience
        self.assertEqual(server.hear(), "0")
        server.do("a: os.kill(big, 9)")

    def test_a_reaper_that_is_stopped(self):
        """It is the guest's user's. Root, which waits for a child, does not take posternd for gone."""
        server = self.guest()
        server.do("fork('b')", "b: become()", "b: s.settimeout(0.1)")
        server.ask("b: s.accept()")
        stop = (r"import glob\nfor p in glob.glob('/proc/[0-9]*'):\n  try:\n    if 'postern-reaper' in open(p + '/comm', errors='replace').read(): os.kill(int(p[6:]), signal.SIGSTOP)"
                r"\n  except OSError: pass")
        server.do("b: (os.fork() or os._exit(0)) and None", "b: os.wait() and None", f'b: exec("{stop}", globals())')
        pid = server.number("a: os.getpid()")
        os.kill(pid, signal.SIGKILL)
        server.do(f"os.waitpid({pid}, 0) and None", "k = listener()")
        port = server.number("k.getsockname()[1]")
        self.assertTrue(any(str(port) in str(one) for one in self.status()["listeners"]), "it has no posternd")


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: root makes other users")
        sys.exit(77)
    signal.alarm(280)
    load_layout()
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        TOOLS = os.path.abspath(sys.argv.pop(1))
        BUILD = copied(TOOLS, directory)
        broker_test.BUILD = BUILD
        tests = ["Listeners", "Connections", "AcrossUsers", "Trespass"]
        ended = unittest.main(exit=False, defaultTest=tests if all(a.startswith("-") for a in sys.argv[1:]) else None)
    sys.exit(not ended.result.wasSuccessful())
