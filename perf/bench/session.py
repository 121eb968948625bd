# session.py - one run: a server on one core, a client on the other, and what both cost.
# SPDX-License-Identifier: Apache-2.0
"""Session holds what all runs share (cores, directory, ports, durations); run_pair() is one run of two programs."""

import itertools
import os
import shutil
import subprocess
from dataclasses import dataclass, field

from . import process
from .place import Place
from .process import BenchError, Program
from .wire_place import WirePlace

PORT_FIRST = 21000  # below the range from which the kernel takes local ports
PORT_COUNT = 8000
PROGRAMS = ("msgrate", "connrate", "idleconn", "plainio")


@dataclass
class Sample:
    """What one run gave. values is by metric; errors makes it, and the workload, a failure."""

    values: dict = field(default_factory=dict)
    errors: list = field(default_factory=list)
    notes: dict = field(default_factory=dict)
    server_cpu: process.Cpu | None = None
    client_cpu: process.Cpu | None = None
    wall: float = 0.0
    kept_s: float = 0.0  # system time of the server that isn't the network's: no network can take it away
    kernel_connections: int | None = None  # kernel TCP connections seen on the server's port during the run


class Session:
    def __init__(self, work_dir, program_dir, quick, cpus=None, wrapper=None):
        self.work_dir = work_dir
        self.quick = quick
        allowed = sorted(os.sched_getaffinity(0))
        self.server_cpu, self.client_cpu = cpus or (allowed[0], allowed[-1])
        self._ports = itertools.cycle(range(PORT_FIRST, PORT_FIRST + PORT_COUNT))
        for _ in range(os.getpid() % PORT_COUNT):
            next(self._ports)
        self._numbers = itertools.count(1)
        self._file_seconds = None
        self.program_dir = program_dir
        self._programs_ready = False
        self._wrapper = wrapper
        self._place = None
        self._wire_places = {}

    def place(self):
        """The two containers, made at the first call."""
        if self._place is None:
            self._place = Place(self.work_dir, self.program_dir, self._wrapper)
        return self._place

    def wire_place(self, kind=""):
        """The two containers between which there are only packets, with VIs of that kind."""
        if kind not in self._wire_places:
            self._wire_places[kind] = WirePlace(self.work_dir, self.program_dir, self._wrapper, kind)
        return self._wire_places[kind]

    def close(self):
        for place in (self._place, *self._wire_places.values()):
            if place:
                place.close()

    def _find_programs(self):
        """Makes sure that msgrate and the others are there: those of the build directory, else compiled here and now."""
        self._programs_ready = True
        if all(os.access(os.path.join(self.program_dir, name), os.X_OK) for name in PROGRAMS):
            return
        compiler = shutil.which("c++") or shutil.which("clang++")
        if not compiler:
            raise BenchError(f"no measuring programs in {self.program_dir}, and no c++ to compile them")
        here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "programs")
        for name in PROGRAMS:
            subprocess.run([compiler, "-std=c++20", "-O2", "-o", os.path.join(self.work_dir, name),
                            os.path.join(here, name + ".cc")], check=True)
        self.program_dir = self.work_dir

    def program(self, name):
        if not self._programs_ready:
            self._find_programs()
        return os.path.join(self.program_dir, name)

    def port(self):
        """A port that nobody listens on."""
        while True:
            port = next(self._ports)
            if process.count_tcp(port, process.TCP_LISTEN) == 0:
                return port

    def data_file(self):
        """A file of 256 KiB, in the page cache."""
        path = os.path.join(self.work_dir, "data")
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(bytes(256 * 1024))
        return path

    def file_seconds(self):
        """CPU time to open a file, ask for its size, read 1 KiB and close it, on the server's core. Measured once."""
        if self._file_seconds is None:
            argv = [self.program("plainio"), "-o", "-f", self.data_file(), "-t", "300"]
            with Program(argv, self.server_cpu, log_stem=self.path("files")) as program:
                cpu, wall = process.wait_client(program, 30)
                share = min(cpu.total / wall, 1)  # of the core; a neighbour may have had the rest
                self._file_seconds = share * float(program.out().split()[-1]) * 1e-6
        return self._file_seconds

    def path(self, suffix):
        """A name in the run's directory that hasn't been used before."""
        return os.path.join(self.work_dir, f"{next(self._numbers):04d}-{suffix}")

    def start_server(self, column, argv):
        return Program(column.server_prefix + argv, self.server_cpu, column.cgroup, self.path("server"),
                       container=column.place and column.place.pair.b)

    def start_client(self, column, argv, stdin=subprocess.DEVNULL):
        return Program(column.client_prefix + argv, self.client_cpu, column.cgroup, self.path("client"), stdin,
                       container=column.place and column.place.pair.a)


def run_pair(session, column, server_argv, client_argv, port=None, unix_path=None, seconds_max=60.0, short_lived=False,
             server_ends=False, while_running=None):
    """Starts the server, waits until it listens, runs the client to its end. Returns (Sample, client's output).

    while_running is called once in the middle. short_lived says that connections come and go, so that counting them at one moment would say nothing. server_ends says that
    the server ends by itself after the client, and has to end well.
    """
    sample = Sample()
    with session.start_server(column, server_argv) as server:
        server.wait_listening(port, unix_path)
        net = column.place.opens() if column.place else ("/proc/net",)
        opens_before = process.kernel_opens(*net)
        cpu_before = process.cpu_of(process.tree(server.pid))

        def look():
            if column.place and not short_lived:
                column.place.look(sample, column.is_postern, port)
            elif not unix_path and not short_lived:
                sample.kernel_connections = process.count_tcp(port, process.TCP_ESTABLISHED)
            if while_running:
                while_running()

        with session.start_client(column, client_argv) as client:
            sample.client_cpu, sample.wall = process.wait_client(client, seconds_max, look)
            output = client.out() + client.err()
        if server_ends:
            _check_server_end(server, sample)
        elif not server.alive():
            sample.errors.append(f"server ended during the run ({server.popen.returncode}): {server.said()}")
        else:
            sample.server_cpu = process.cpu_of(process.tree(server.pid)) - cpu_before
        if sample.kernel_connections is None and not unix_path:
            sample.kernel_connections = process.kernel_opens(*net) - opens_before
        if not server.stop():
            sample.errors.append("server had to be killed: SIGTERM didn't end it")
    if unix_path and os.path.exists(unix_path):
        os.unlink(unix_path)
    return sample, output


def _check_server_end(server, sample):
    try:
        server.popen.wait(5)
    except subprocess.TimeoutExpired:
        sample.errors.append("server hasn't ended after its client")
        return
    if server.popen.returncode != 0:
        sample.errors.append(f"server ended with {server.popen.returncode}: {server.said()}")
