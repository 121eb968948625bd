# process.py - starts, watches, accounts for and ends the programs that are measured.
# SPDX-License-Identifier: Apache-2.0
"""One program, pinned to a core, in a session of its own, with its output in files.

Output goes to files and not to pipes because a wrapper may leave a helper daemon behind that has inherited them: a pipe
would then never come to its end. Only processes started here are ever signalled, by pid, or by the session made for them.
"""

import contextlib
import os
import resource
import signal
import subprocess
import time
from dataclasses import dataclass

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STOP_SECONDS_MAX = 5.0
READY_SECONDS_MAX = 10.0
TCP_ESTABLISHED = "01"
TCP_LISTEN = "0A"


class BenchError(Exception):
    """A run that can't be used; the text says why."""


@dataclass
class Cpu:
    """User and system time in seconds."""

    user: float = 0.0
    system: float = 0.0

    def __sub__(self, other):
        return Cpu(self.user - other.user, self.system - other.system)

    @property
    def total(self):
        return self.user + self.system


def read_text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def parents():
    """Parent of each process, by pid."""
    result = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = read_text(f"/proc/{name}/stat").rpartition(")")[2].split()
            if len(fields) > 1:
                result[int(name)] = int(fields[1])
    return result


def tree(root):
    """root and all its living descendants."""
    by_parent = {}
    for pid, parent in parents().items():
        by_parent.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue.extend(by_parent.get(pid, []))
    return found


def cpu_of(pids):
    """User and system time of living processes, with those of children that they have waited for."""
    total = Cpu()
    for pid in pids:
        fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) > 14:
            total.user += (int(fields[11]) + int(fields[13])) / TICKS_PER_SECOND
            total.system += (int(fields[12]) + int(fields[14])) / TICKS_PER_SECOND
    return total


def run_times_ns(pids):
    """Time on a CPU of each thread of these processes, from the scheduler: much finer than ticks."""
    times = {}
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            fields = read_text(f"/proc/{pid}/task/{thread}/schedstat").split()
            if fields:
                times[thread] = int(fields[0])
    return times


def run_time_between_ns(before, after):
    """What those threads have used that are there at the end (one that ended takes its account with it)."""
    return sum(time_ns - before.get(thread, 0) for thread, time_ns in after.items())


def pss_kib(pids):
    """Proportional set size: private memory, and shared memory divided by the number of processes that map it."""
    total = 0
    for pid in pids:
        for line in read_text(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total


def helper_daemons():
    """posternd processes of this user. Their CPU and memory are part of what Postern costs."""
    own_uid = os.getuid()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid == own_uid and read_text(f"/proc/{name}/comm").strip() == "posternd":
                found.append(int(name))
        except OSError:
            continue
    return found


def meminfo_kib(*names):
    values = {}
    for line in read_text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0])
    return [values.get(name, 0) for name in names]


def count_tcp(port, state, net="/proc/net"):
    """Kernel TCP sockets with this local port in this state. Connections of Postern aren't among them."""
    wanted = f":{port:04X}"
    count = 0
    for path in (f"{net}/tcp", f"{net}/tcp6"):
        for line in read_text(path).splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(wanted) and fields[3] == state:
                count += 1
    return count


def kernel_opens(net="/proc/net", kind="PassiveOpens"):
    """Connections that a listener of the kernel's TCP has had in that network namespace since boot; or ActiveOpens, of clients, which
    counts first contact, too (lib/peer/contact): that never gets to a listener's queue."""
    lines = [line.split() for line in read_text(f"{net}/snmp").splitlines() if line.startswith("Tcp:")]
    if len(lines) < 2:
        return 0
    return int(dict(zip(lines[0], lines[1])).get(kind, 0))


def seconds_used_by_all():
    """CPU seconds that all processes of the machine have used since boot, and those of them that were ours and have ended."""
    fields = [int(field) for field in read_text("/proc/stat").splitlines()[0].split()[1:]]
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    busy = sum(fields[:8]) - fields[3] - fields[4]
    return busy / TICKS_PER_SECOND, sum(usage.ru_utime + usage.ru_stime for usage in own)


class Program:
    """A program that runs. Ends with stop(), which must be called whatever happens (use it as a context manager)."""

    def __init__(self, argv, cpu=None, cgroup=None, log_stem="/dev/null", stdin=subprocess.DEVNULL, container=None):
        self.argv = argv
        self.out_path = log_stem if log_stem == "/dev/null" else log_stem + ".out"
        self.err_path = log_stem if log_stem == "/dev/null" else log_stem + ".err"
        self.net = f"/proc/{container.init.pid}/net" if container else "/proc/net"

        def prepare():
            if cgroup:
                with open(os.path.join(cgroup, "cgroup.procs"), "w", encoding="ascii") as file:
                    file.write("0")
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})
            if container:
                container.enter()

        inside = container.inside() if container else contextlib.nullcontext()
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err, inside:
            try:
                self.popen = subprocess.Popen(argv, stdin=stdin, stdout=out, stderr=err, preexec_fn=prepare,
                                              start_new_session=True,
                                              env=container.environment() if container else None)
            except OSError as error:
                raise BenchError(f"can't start {argv[0]}: {error.strerror}") from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def pid(self):
        return self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def out(self):
        return read_text(self.out_path)

    def err(self):
        return read_text(self.err_path)

    def said(self):
        """The last lines of what it printed, for error messages."""
        lines = (self.out() + self.err()).strip().splitlines()
        return " | ".join(lines[-4:]) if lines else "no output"

    def stop(self, signal_number=signal.SIGTERM):
        """Ends it, with SIGKILL for the whole session if it doesn't go by itself. True if that wasn't needed."""
        if self.popen.stdin:
            self.popen.stdin.close()
        if not self.alive():
            return True
        self.popen.send_signal(signal_number)
        try:
            self.popen.wait(STOP_SECONDS_MAX)
            return True
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self.popen.wait()
            return False

    def wait_listening(self, port=None, unix_path=None):
        """Until the kernel says that the port is listened on. No connection is made: the program might count it."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            if not self.alive():
                raise BenchError(f"{os.path.basename(self.argv[0])} ended at once: {self.said()}")
            if os.path.exists(unix_path) if unix_path else count_tcp(port, TCP_LISTEN, self.net) > 0:
                return
            time.sleep(0.01)
        raise BenchError(f"{os.path.basename(self.argv[0])} doesn't listen: {self.said()}")

    def wait_line(self, line, seconds_max):
        """Until it has printed this line."""
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            if line in self.out().splitlines():
                return
            if not self.alive():
                raise BenchError(f"{os.path.basename(self.argv[0])} ended before '{line}': {self.said()}")
            time.sleep(0.01)
        raise BenchError(f"no '{line}' in {seconds_max:g} s: {self.said()}")


def wait_client(program, seconds_max, in_the_middle=None):
    """Waits for a client to end well. Returns its CPU time and the time it took; calls in_the_middle once while it runs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    try:
        try:
            program.popen.wait(0.35)
        except subprocess.TimeoutExpired:
            if in_the_middle:
                in_the_middle()
            program.popen.wait(seconds_max)
    except subprocess.TimeoutExpired as error:
        program.stop()
        raise BenchError(f"client hasn't ended after {seconds_max:g} s: {program.said()}") from error
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if program.popen.returncode != 0:
        raise BenchError(f"client ended with {program.popen.returncode}: {program.said()}")
    return Cpu(after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime), wall
