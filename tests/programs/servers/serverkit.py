# serverkit.py - a server of the distribution with its clients, from a record: over the kernel, then as the mode has it.
# SPDX-License-Identifier: Apache-2.0
#
# The kernel is the oracle. What a client prints there it has to print under Postern, and it ends with the same status. The
# server ends with the same status on the same signal, and writes no line that it does not write over the kernel. Numbers,
# and words that have some, are left out of that: times, ports, process ids.
# In the texts of a record @DIR@ is a directory of the run's own, @PORT@ and @PORT2@ are free ports, @DOCS@ has documents
# (nginxkit.documents), @KIT@ is this folder.

import contextlib
import ctypes
import hashlib
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field

import harness
import posternview
from harness import PYTHON, Fail, Skip, check, need
from nginxkit import documents

HERE = os.path.dirname(os.path.abspath(__file__))
PR_SET_CHILD_SUBREAPER = 36
ACCELERATED = "accelerated"
TALK = "@PYTHON@ @KIT@/talk.py @PORT@ "  # with steps behind it
NO_LISTENER = "kernel (no-listener)"  # the server's sockets are the kernel's: the client finds none in the directory


@dataclass
class Client:
    argv: str  # a command line
    want: str = ""  # what is in its output; "sha256 NAME": its output is that document
    stdin: str = ""  # a file
    status: int = 0
    free: bool = False  # what it prints differs from run to run, over the kernel as well: `want` alone has to be there


@dataclass
class Server:
    name: str
    packages: str
    style: str  # how it uses sockets
    argv: str
    clients: list
    files: dict = field(default_factory=dict)
    owner: str = ""  # the user to whom the run's directory belongs: the one that the server becomes
    prepare: object = None  # of the place: what has to be there before, made outside of Postern
    beside: list = field(default_factory=list)  # servers behind this one, which have @PORT2@
    ready: str = ""  # what it writes when it serves, if it listens before that
    hello: list = field(default_factory=list)  # steps of talk.py, after which a connection can be looked at
    path: str = ACCELERATED  # or why it isn't: in each mode but `both` it can't be
    confined: str = "user"  # "root": it has to be started by root; else why it can't run under restrictions at all
    also: tuple = ()  # numbers of system calls that its unit would allow it beside @system-service
    stop: int = signal.SIGTERM
    quiet: bool = False  # it complains when it is stopped while a thread of it has yet to see that a client has left
    logs: tuple = ()  # files that it writes its complaints to
    env: dict = field(default_factory=dict)


class Place:
    """A run's own directory and ports."""

    def __init__(self, ctx, server, label, user):
        self.ctx, self.server, self.label, self.user = ctx, server, label, user
        self.dir = ctx.path(label, "x")[:-2]
        self.names = {"DIR": self.dir, "PORT": str(ctx.port()), "PORT2": str(ctx.port()), "DOCS": documents(ctx), "KIT": HERE,
                      "PYTHON": PYTHON}
        for path in (ctx.dir, self.dir, self.names["DOCS"]):
            os.chmod(path, 0o755)

    @property
    def port(self):
        return int(self.names["PORT"])

    def text(self, text):
        return re.sub("@([A-Z0-9]+)@", lambda found: self.names[found.group(1)], text)

    def words(self, line):
        words = [self.text(word) for word in shlex.split(line)]
        return [need(words[0]), *words[1:]]

    def own(self, path, user=None):
        """`path` becomes that user's, or the server's; where it may not become another user, that of the whole run."""
        owner = self.user or user or self.server.owner
        if owner:
            shutil.chown(path, owner)

    def make(self):
        os.makedirs(f"{self.dir}/empty")
        for name, text in self.server.files.items():
            path = self.ctx.write(f"{self.label}/{name}", self.text(text))
            if text.startswith("#!"):
                os.chmod(path, 0o755)
        for folder, _, files in os.walk(self.dir):
            for name in (".", *files):
                self.own(os.path.join(folder, name))
        if self.server.prepare:
            self.server.prepare(self)

    def do(self, line, **kw):
        return subprocess.run(self.words(line), check=True, capture_output=True, timeout=120, stdin=subprocess.DEVNULL, **kw)


def scrubbed(text):
    """Lines without what differs from run to run: words with digits, and dovecot's name=<something>."""
    def word_shown(word):
        return "#" if "=<" in word or any(c.isdigit() for c in word) else word
    return [" ".join(map(word_shown, line.split())) for line in text.splitlines()]


def talk_to(ctx, place, client, number):
    """[status, output, its complaints]"""
    base = ctx.path(f"{place.label}-client{number}")
    stdin = open(place.text(client.stdin), "rb") if client.stdin else subprocess.DEVNULL
    with open(f"{base}.out", "wb") as out, open(f"{base}.err", "wb") as err:
        popen = subprocess.Popen(ctx.argv("client", place.words(client.argv)), stdin=stdin, stdout=out, stderr=err,
                                 start_new_session=True, cwd=place.dir, env={**os.environ, "HOME": place.dir})
        ctx.adopt_session(popen.pid)
        try:
            popen.wait(60)
        except subprocess.TimeoutExpired:
            harness.kill_pids(harness.session_members({popen.pid}))
            popen.wait()
            raise Fail(f"{client.argv} hangs; so far: {tail(base + '.out')} {tail(base + '.err')}") from None
    with open(f"{base}.out", "rb") as out:
        said = out.read()
    with open(f"{base}.err", encoding="utf-8", errors="replace") as err:
        complaints = err.read()
    check(popen.returncode == client.status, f"{client.argv}: exit {popen.returncode}: {said[-300:]} {complaints[-600:]}")
    if client.want.startswith("sha256 "):
        with open(os.path.join(place.names["DOCS"], client.want[7:]), "rb") as file:
            check(said == file.read(), f"{client.argv}: {len(said)} bytes, or others: {said[:200]} {complaints[-600:]}")
    else:
        check(place.text(client.want).encode() in said, f"{client.argv}: no '{client.want}' in {said[-600:]} {complaints[-600:]}")
    text = said.decode(errors="backslashreplace")
    if client.free:
        shown = ""
    else:
        for name in ("DIR", "PORT", "PORT2"):
            text = text.replace(place.names[name], f"@{name}@")
        shown = text if len(text) < 3000 else hashlib.sha256(said).hexdigest()
    return [popen.returncode, shown, scrubbed(complaints)]


def tail(path):
    with open(path, "rb") as file:
        return file.read()[-500:]


def path_of(ctx, place, look):
    """How a connection to the server goes, as posternctl shows it while one is held; without `look` it is only held."""
    line = [PYTHON, os.path.join(HERE, "talk.py"), place.port, *map(place.text, place.server.hello), "hold"]
    held = ctx.start("client", line, name="held")
    end, found = time.monotonic() + 30, []
    while "holding" not in held.output():
        check(held.alive() and time.monotonic() < end, lambda: f"no connection to look at: {held.output()}")
        time.sleep(0.01)
    end = time.monotonic() + 5
    while look and not found and time.monotonic() < end:
        found = posternview.connections_of(posternview.sockets(ctx.config.posternctl), place.port)
    held.go_on()
    held.wait(30)
    slow = {s["reason"] or s["path"] for s in found if s["path"] not in posternview.ACCELERATED}
    return f"kernel ({', '.join(sorted(slow))})" if slow or not found else ACCELERATED


def start(ctx, server, place):
    """The server and those behind it, which listen."""
    place.make()
    behind = []
    for number, line in enumerate(server.beside):
        behind.append(ctx.start("server", place.words(line), name=f"{place.label}-behind{number}"))
        ctx.wait_listening(int(place.names["PORT2"]), behind[-1])
    env = {name: place.text(value) for name, value in server.env.items()}
    proc = ctx.start("server", place.words(server.argv), name=f"{place.label}-{server.name}", env=env)
    ctx.wait_listening(place.port, proc, timeout=40)
    end = time.monotonic() + 40
    while server.ready not in proc.output():
        check(time.monotonic() < end, lambda: f"not ready: {proc.output()[-1500:]}")
        time.sleep(0.02)
    return proc, behind


def run(ctx, server, label, look, user=0):
    """One run: what came of it, and the path if it was looked at. `user`: whose it is from the start, unless root's."""
    place = Place(ctx, server, label, user)
    proc, behind = start(ctx, server, place)
    threads = threads_of(proc)
    clients = [talk_to(ctx, place, client, number) for number, client in enumerate(server.clients)]
    path = path_of(ctx, place, look)
    check(proc.alive(), f"{server.name} has ended: {proc.output()[-1500:]}")
    end = time.monotonic() + 40
    while server.quiet and threads_of(proc) > threads:
        check(time.monotonic() < end, f"{threads_of(proc)} threads for no client, {threads} before the first")
        time.sleep(0.02)
    status = proc.stop(server.stop, timeout=40)
    said = proc.output()
    for name in server.logs:
        with contextlib.suppress(FileNotFoundError), open(f"{place.dir}/{name}", encoding="utf-8", errors="replace") as file:
            said += file.read()
    for one in behind:
        one.stop()
    nobody_left(ctx)
    said = said.replace(place.dir, "@DIR@").replace(ctx.dir, "@TOP@")
    return {"status": status, "clients": clients, "said": sorted(set(scrubbed(said)))}, path


def threads_of(proc):
    return len(os.listdir(f"/proc/{proc.pid}/task"))


def children():
    """{pid: name} of this process's children, which is given orphans: those of a server that it has left behind."""
    found = {}
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        for pid in file.read().split():
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
                    found[int(pid)] = comm.read().strip()
    return found


def nobody_left(ctx):
    end, known = time.monotonic() + 10, {proc.pid for proc in ctx.procs if proc.alive()}
    while True:
        left = {pid: name for pid, name in children().items() if pid not in known and not name.startswith("postern")}
        for pid in [pid for pid in left if harness.is_gone(pid)]:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            del left[pid]
        if not left:
            return
        if time.monotonic() > end:
            harness.kill_pids(left)
            raise Fail(f"processes are left behind: {left}")
        time.sleep(0.05)


def over_kernel(ctx, server, kind, user=0):
    """What comes of it over the kernel: once in a run of the tests."""
    with ctx.making(f"server-{server.name}-{kind}") as path:
        if not os.path.exists(path):
            wrapper, ctx.config.wrapper = ctx.config.wrapper, []
            outcome, _ = run(ctx, server, "kernel", False, user)
            ctx.config.wrapper = wrapper
            with open(path, "w", encoding="utf-8") as file:
                json.dump(outcome, file)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def compare(want, got):
    check(want["status"] == got["status"], f"the server's status is {got['status']}, {want['status']} over the kernel")
    for wanted, seen in zip(want["clients"], got["clients"]):
        check(wanted[:2] == seen[:2], f"a client has printed\n{seen[1]}\nin place of\n{wanted[1]}")
        more = sorted(set(seen[2]) - set(wanted[2]))
        check(not more, f"a client complains: {more}")
    more = sorted(set(got["said"]) - set(want["said"]))
    check(not more, "the server says, and not over the kernel:\n" + "\n".join(more))


def installed(server):
    if server.owner:
        try:
            pwd.getpwnam(server.owner)
        except KeyError:
            raise Skip(f"no user {server.owner}: {server.packages} is not installed") from None
    if os.getuid() != 0:
        raise Skip("not root, as these servers are started")
    need(shlex.split(server.argv)[0])


def adopt_orphans():
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
