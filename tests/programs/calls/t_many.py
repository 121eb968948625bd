# t_many.py - many connections: 10,000 between 20 pairs of stacks in a storm, 100,000 that are held and say nothing.
# SPDX-License-Identifier: Apache-2.0
#
# Each pair is a server and a client, each a stack of its own (many.cc). One pair of the idle test has more connections than one
# link group holds. Memory is measured as in perf/bench/loads/loads_idle.py, between the first connection and the last: all that the
# processes and posternd have of their own, shared pages by proportional set size. The kernel's sockets are counted apart.

import os
import resource
import signal
import socket
import time

import posternview
from harness import Fail, Skip, check, test
from kill_storm import nothing_left, own_runtime

PAIRS = 20
STORM_OPEN, STORM_TOTAL = 500, 1000  # of each pair, in each of two rounds
TIME_WAIT_MAX = 12000
LINK_CONNECTIONS = 4096  # PSTN_CONNS
IDLE_BYTES_MAX = 4096  # of one connection, both sides
# What a pair may keep after a storm for each connection of its peak: an endpoint on each side, a slot, entries of tables ...
KEPT_BYTES_MAX = 2048
KEPT_BYTES_PAIR_MAX = 2 << 20  # ... tables, code and heap of two processes ...
WARM_BYTES_MAX = 2 << 20  # ... and 256 warm rings on each side of a link group (kWarmMax)


class Pairs:
    def __init__(self, ctx, count):
        self.ctx, self.runtime, self.shm = ctx, own_runtime(ctx), posternview.shm_files()
        wait_for_ports()
        self.many = ctx.built("many")
        self.ports = [ctx.port() for _ in range(count)]
        self.servers = [ctx.start("server", [self.many, "serve", "127.0.0.1", port], name=f"server{i}") for i, port in enumerate(self.ports)]
        for server, port in zip(self.servers, self.ports):
            ctx.wait_listening(port, server)
        self.clients, self.stops = [], 0

    def start_clients(self, what, sources, *args):
        """`sources` are the addresses to connect from; each of the other arguments is one value, or a list of one for each pair."""
        for i, port in enumerate(self.ports):
            own = [str(a[i] if isinstance(a, list) else a) for a in args]
            self.clients.append(self.ctx.start("client", [self.many, what, sources[i], "127.0.0.1", port, *own], name=f"client{i}"))

    def wait_holding(self):
        """Until all clients have stopped once more."""
        self.stops += 1
        end = time.monotonic() + 240
        for client in self.clients:
            while client.output().count("holding\n") < self.stops:
                check(client.alive() and time.monotonic() < end, lambda: f"{client.name} does not get to its stop {self.stops}: {client.output()[-800:]}")
                time.sleep(0.02)

    def go_on(self):
        for client in self.clients:
            client.go_on()

    def watched(self):
        return self.ctx.mode == "both" and self.ctx.config.posternctl

    def status(self):
        return posternview.status(self.ctx.config.posternctl)

    def check_accelerated(self, connections):
        """That many are open, and nobody has ever gone another way."""
        if not self.watched():
            return
        status = self.status()
        found = sum(link["connections"] for link in status["link_groups"])
        fallbacks = [stack["fallbacks"] for stack in status["stacks"] if stack["fallbacks"]]
        check(not fallbacks, f"connections were left to the kernel: {fallbacks}")
        check(found == connections, f"{found} connections in link groups, not {connections}")

    def check_empty(self):
        """Nothing in use, a moment after the last close: servers hear of it a little later, rings go when their owner sleeps."""
        if not self.watched():
            return
        listeners = len(self.servers)
        end = time.monotonic() + 10
        while True:
            status = self.status()
            left = {key: sum(link[key] for link in status["link_groups"]) for key in ("connections", "rings")}
            left["endpoints"] = sum(stack["endpoints"] for stack in status["stacks"]) - listeners
            if not any(left.values()):
                return
            check(time.monotonic() < end, f"in use after the last close: {left}")
            time.sleep(0.05)

    def memory(self):
        """{of the programs and posternd, by PSS; of the shared areas; of the kernel: slabs}, in bytes."""
        own = sum(self.pss_bytes_of(program) for program in (*self.servers, *self.clients))
        areas = 0
        if self.watched():
            status = self.status()
            areas = sum(entry["memory_bytes"] for entry in (*status["stacks"], *status["link_groups"]))
            own += self.pss_bytes_of_posternd()
        return {"own": own, "areas": areas, "slab": slab_bytes()}

    def pss_bytes_of(self, program):
        try:
            return pss_bytes(program.pid)
        except OSError as error:
            raise Fail(f"{program.name}, pid {program.pid}, has ended ({error}, code {program.popen.poll()}): {program.output()[-800:]}") from None

    def pss_bytes_of_posternd(self):
        pid = posternview.daemon_pid()
        try:
            return pss_bytes(pid)
        except OSError as error:
            with open(os.path.join(self.runtime, "posternd.log"), encoding="utf-8", errors="replace") as file:
                raise Fail(f"posternd, pid {pid}, has ended ({error}), now {posternview.daemon_pid()}: {file.read()[-800:]}") from None

    def end(self):
        """The clients are on their way out."""
        for client in self.clients:
            client.wait(120)
        for server in self.servers:
            server.stop(expect=0, timeout=60)
            check("served" in server.output(), f"{server.name}: {server.output()[-400:]}")
        nothing_left(self.ctx, self.runtime, self.shm)


def wait_for_ports():
    """Tests before this one may have left most of the 28,000 ephemeral ports in TIME_WAIT, from where no port can be reserved."""
    end = time.monotonic() + 70
    while time.monotonic() < end:
        with open("/proc/net/sockstat", encoding="ascii") as file:
            tcp = next(line.split() for line in file if line.startswith("TCP:"))
        if int(tcp[tcp.index("tw") + 1]) <= TIME_WAIT_MAX:
            return
        time.sleep(0.5)


def pss_bytes(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


def slab_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Slab:"))


def storm(ctx, count, most, total):
    """`most` connections of each of `count` pairs at a time, `total` of them opened, used and closed in any order, twice: what is left
    is bounded, and no more after the second time."""
    started = time.monotonic()
    pairs = Pairs(ctx, count)
    pairs.start_clients("storm", ["any"] * count, most, total, [ctx.config.seed * 100 + i for i in range(count)])
    kept = []
    for _ in range(2):
        pairs.wait_holding()
        pairs.check_accelerated(count * most)
        pairs.go_on()
        pairs.wait_holding()
        pairs.check_accelerated(0)
        pairs.check_empty()
        kept.append(pairs.memory())
        pairs.go_on()
    warm = count * (1 + most // LINK_CONNECTIONS) * WARM_BYTES_MAX
    bound = count * (KEPT_BYTES_PAIR_MAX + KEPT_BYTES_MAX * most) + warm
    print(f"      {count} pairs: kept {kept}, bound {bound}; {time.monotonic() - started:.1f} s")
    for now in kept:
        check(max(now["own"], now["areas"]) <= bound, f"kept after the storm: {kept}, bound {bound}")
    # How many rings are warm is chance, of which the sum over many pairs shows little.
    slack = (1 << 20) if count > 1 else warm
    check(kept[1]["areas"] <= kept[0]["areas"] * 1.1 + slack, f"the second storm left more than the first: {kept}")
    pairs.end()


@test(modes=("both", "kernel"), watchdog_s=300)
def many_storm(ctx):
    storm(ctx, PAIRS, STORM_OPEN, STORM_TOTAL)


@test(modes=("both", "kernel"), watchdog_s=300)
def many_storm_one_pair(ctx):
    storm(ctx, 1, 2 * LINK_CONNECTIONS + 500, 12000)


def need_room(connections):
    """The kernel's two sockets of each take 9 KB, whether they are used or not."""
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    if free < connections * 16000:
        raise Skip(f"{free >> 20} MiB of memory are free: {connections} connections need {connections * 16000 >> 20}")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files < connections // PAIRS + 1000:
        raise Skip(f"a process may have {files} files open: {connections} connections of {PAIRS} pairs need more")


def hold(ctx, count):
    """`count` connections at once; of one pair so many that two link groups are needed."""
    started = time.monotonic()
    pairs = Pairs(ctx, PAIRS)
    each = count // PAIRS
    first = max(each, LINK_CONNECTIONS + 500)
    rest = (count - first) // (PAIRS - 1)
    counts = [count - rest * (PAIRS - 1), *[rest] * (PAIRS - 1)]
    # As with the kernel, some 28,000 connections from one address to one port.
    pairs.start_clients("hold", [f"127.0.{i + 1}.1" for i in range(PAIRS)], counts)
    pairs.wait_holding()
    time.sleep(0.3)
    before = pairs.memory()
    pairs.go_on()
    pairs.wait_holding()
    opened = time.monotonic()
    time.sleep(1)
    after = pairs.memory()
    pairs.check_accelerated(count)
    each = {key: (after[key] - before[key]) / (count - PAIRS) for key in after}
    print(f"      hold: {count} connections in {opened - started:.1f} s; bytes of each: {', '.join(f'{k} {v:.0f}' for k, v in each.items())}")
    check(max(each["own"], each["areas"]) <= IDLE_BYTES_MAX or not pairs.watched(), f"bytes of an idle connection: {each}")
    pairs.go_on()
    pairs.wait_holding()  # some have been used once more
    pairs.check_accelerated(count)
    pairs.go_on()
    pairs.end()


@test(modes=("both", "kernel"), watchdog_s=300)
def many_idle(ctx):
    need_room(100000)
    hold(ctx, 100000)


@test(modes=("both",), watchdog_s=120)
def many_restart(ctx):
    """posternd is killed and comes back while a pair has two link groups, of which one stack brings both back, then the other."""
    count = LINK_CONNECTIONS + 500
    pairs = Pairs(ctx, 1)
    pairs.start_clients("hold", ["any"], [count])
    pairs.wait_holding()
    pairs.go_on()
    pairs.wait_holding()
    pairs.check_accelerated(count)
    os.kill(posternview.daemon_pid(), signal.SIGKILL)
    time.sleep(7)  # the server has started the next one, and the client's stack has had its time to come
    pairs.go_on()
    pairs.wait_holding()
    end = time.monotonic() + 20
    while pairs.watched():
        links = pairs.status()["link_groups"]
        if len(links) == 2 or time.monotonic() > end:
            break
        time.sleep(0.1)
    if pairs.watched():
        check(sum(link["connections"] for link in links) == count and len(links) == 2, f"what came back: {links}")
        check(not any(link["peer_dead"] for link in links), f"ended although both live: {links}")
    pairs.go_on()
    pairs.end()


@test(modes=("both", "kernel"), watchdog_s=300)
def many_ports(ctx):
    """30,000 connections from one address to three ports, which the kernel can have and its 28,000 ephemeral ports allow; and others
    can still connect."""
    need_room(60000)
    pairs = Pairs(ctx, 3)
    pairs.start_clients("hold", ["any"] * 3, 10000)
    for _ in range(2):
        pairs.wait_holding()
        pairs.go_on()
    pairs.wait_holding()
    for port in pairs.ports:
        with socket.create_connection(("127.0.0.1", port), 20) as one_more:
            one_more.sendall(b"\x01")
            check(one_more.recv(10) == b"\xfe", "an outsider is not served")
    if pairs.watched():
        status = pairs.status()
        others = set().union(*(stack["fallbacks"] for stack in status["stacks"])) - {"no-port", "kernel-client"}
        fast = sum(link["connections"] for link in status["link_groups"])
        check(not others and fast > 5000, f"{fast} connections are accelerated, and there are other reasons: {others}")
    pairs.go_on()
    pairs.end()
