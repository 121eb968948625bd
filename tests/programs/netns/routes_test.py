# routes_test.py - posternd's tables of the routes against the kernel, while the configuration changes.
# SPDX-License-Identifier: Apache-2.0
#
# usage: routes_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root or network namespaces.
# SEED=N repeats a run. Each test has a network namespace of its own, another one at the far ends of its interfaces, and a posternd.
#
# What is compared is what `ip route get` asks (RTM_GETROUTE), by route_pairs, which says what counts as a pair.

import json
import mmap
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab
from netlab import CLONE_NEWNET, Unavailable
from readable import readable

BUILD = "build"
SEED = int(os.environ.get("SEED", "1"))
PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
MARKER = "203.0.113.254"
LINKS = ("e0", "e1", "e2", "e3")
TABLES = ("main", "main", "main", "101", "102", "103")
WANTED = 5000  # pairs at least, while things change
CHANGES = 120  # and as many changes, of some routes, rules, addresses each


class Space:
    """A namespace with four interfaces, and one with their other ends."""

    def __init__(self):
        if os.geteuid() != 0:
            raise Unavailable("not root")
        self.fds = {}
        for name in ("far", "near"):
            netlab.call("unshare", CLONE_NEWNET)
            self.fds[name] = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            self.ip("link set lo up")
        for i, name in enumerate(LINKS):
            self.ip(f"link add {name} type veth peer name f{i} netns /proc/{os.getpid()}/fd/{self.fds['far']}")
            self.inside("far", lambda i=i: self.ip(f"link set f{i} up", f"addr add 10.0.{i}.2/24 dev f{i}",
                                                   f"addr add fd00:{i}::2/64 dev f{i} nodad"))
            for setting in ("accept_dad", "dad_transmits", "router_solicitations"):
                netlab.Lab.write(f"net/ipv6/conf/{name}/{setting}", 0)
            self.ip(f"link set {name} up", f"addr add 10.0.{i}.1/24 dev {name}", f"addr add fd00:{i}::1/64 dev {name} nodad")
        self.index = {name: socket.if_nametoindex(name) for name in (*LINKS, "lo")}

    def inside(self, name, function):
        netlab.call("setns", self.fds[name], CLONE_NEWNET)
        try:
            return function()
        finally:
            netlab.call("setns", self.fds["near"], CLONE_NEWNET)

    @staticmethod
    def ip(*lines, must=True):
        """Commands in one batch, those that begin with -4 or -6 in two others behind it. What the kernel refuses of generated ones is
        nobody's business."""
        fine = True
        for family in ("", "-4", "-6"):
            batch = [line.removeprefix(family).strip() for line in lines if (line[:2] if line[0] == "-" else "") == family]
            if not batch:
                continue
            done = subprocess.run(["ip", *([family] if family else []), "-force", "-batch", "-"], input="\n".join(batch) + "\n",
                                  capture_output=True, text=True, check=False, env={"PATH": PATH})
            if must and done.returncode != 0:
                raise Unavailable(f"ip {batch}: {done.stderr.strip()}")
            fine = fine and done.returncode == 0
        return fine

    def close(self):
        for fd in self.fds.values():
            os.close(fd)


class Tester:
    """posternd and route_pairs in the namespace that we are in."""

    def __init__(self, *options):
        self.dir = tempfile.mkdtemp(prefix="pstn-routes-")
        self.posternd = subprocess.Popen([f"{BUILD}/posternd", "--foreground", "--runtime-dir", self.dir, "--idle-sec", "0",
                                          "--broker", f"{self.dir}/none", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 20
        while not os.path.exists(f"{self.dir}/posternd.sock"):
            if time.monotonic() > deadline or self.posternd.poll() is not None:
                raise AssertionError(f"posternd: {self.posternd.stdout.read1(4096)}")
            time.sleep(0.01)
        with open(f"{self.dir}/state", "w+b") as file:
            file.write(bytes(16))
            file.flush()
            self.state = mmap.mmap(file.fileno(), 16)
        self.seq = self.marker = 0
        self.pairs = subprocess.Popen([f"{BUILD}/tests/programs/route_pairs", f"{self.dir}/posternd.sock", f"{self.dir}/state"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command):
        self.send(command)
        return self.answer()

    def send(self, command):
        self.pairs.stdin.write(command + "\n")
        self.pairs.stdin.flush()

    def answer(self):
        line = self.pairs.stdout.readline().strip()
        if not line or line.startswith("error"):
            raise AssertionError(f"route_pairs: {line or 'gone'}")
        return line

    def change(self, lines):
        """Applies ip's commands, and then the marker. Returns how many the kernel took."""
        self.note(self.seq + 1, self.marker)
        Space.ip(*lines, must=False)
        marker = self.marker % 50000 + 1
        Space.ip(f"route replace table local {MARKER}/32 dev lo mtu {1000 + marker}")
        self.note(self.seq + 1, marker)

    def note(self, seq, marker):
        self.seq, self.marker = seq, marker
        self.state[:16] = struct.pack("QQ", seq, marker)

    def queries(self, lines):
        with open(f"{self.dir}/queries", "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
        assert self.ask(f"queries {self.dir}/queries") == f"queries {len(lines)}"

    def caught_up(self):
        return self.ask("caught-up") == "yes"

    def posternctl(self, *words, check=True):
        done = subprocess.run([f"{BUILD}/posternctl", "--runtime-dir", self.dir, *words], capture_output=True, text=True, check=False,
                              timeout=30)
        if check and done.returncode != 0:
            raise AssertionError(f"posternctl {words}: {done.stdout}{done.stderr}")
        return done

    def close(self):
        self.pairs.stdin.close()
        self.pairs.wait(20)
        self.posternd.terminate()
        self.posternd.wait(20)
        self.posternd.stdout.close()
        self.pairs.stdout.close()
        self.state.close()
        shutil.rmtree(self.dir, ignore_errors=True)


# ---- generated configurations ------------------------------------------------------------------------------------------------

class Generator:
    """Commands for ip, and questions about places that they are about."""

    def __init__(self, seed, index):
        self.random = random.Random(seed)
        self.index = index
        self.places = {4: ["10.0.0.2", "10.0.1.77", "8.8.8.8", "127.0.0.1", "10.0.2.1", "10.0.0.255", "255.255.255.255", "224.0.0.5"],
                       6: ["fd00:0::2", "fd00:1::77", "2001:4860::8888", "::1", "fe80::1", "ff02::1", "fd00:2::1"]}
        self.made = []
        self.rules = []

    def pick(self, *choices):
        return self.random.choice(choices)

    def chance(self, percent):
        return self.random.randrange(100) < percent

    def prefix(self, family):
        r = self.random
        if family == 4:
            length = self.pick(8, 12, 16, 16, 20, 24, 24, 24, 30, 32, 0)
            address = (20 + r.randrange(4)) << 24 | r.randrange(4) << 16 | r.randrange(4) << 8 | r.randrange(256)
            inside = socket.inet_ntoa(struct.pack("!I", address))
            address &= ~((1 << (32 - length)) - 1) & 0xffffffff
            text = socket.inet_ntoa(struct.pack("!I", address))
        else:
            length = self.pick(16, 32, 48, 48, 64, 64, 96, 127, 128, 0)
            raw = bytearray(16)
            raw[0], raw[1] = 0x20, 0x01
            for at in (2, 3, 5, 7, 11, 15):
                raw[at] = r.randrange(3)
            inside = socket.inet_ntop(socket.AF_INET6, bytes(raw))
            whole = int.from_bytes(raw, "big") >> (128 - length) << (128 - length)
            text = socket.inet_ntop(socket.AF_INET6, whole.to_bytes(16, "big"))
        self.places[family].append(inside)
        return f"{text}/{length}"

    def gateway(self, family, link):
        host = self.random.randrange(2, 9)
        return f"10.0.{link}.{host}" if family == 4 else self.pick(f"fd00:{link}::{host}", f"fe80::{host}")

    def hop(self, family):
        link = self.random.randrange(4)
        if self.chance(25):
            return f"dev e{link}"
        if family == 4 and self.chance(8):
            return f"via inet6 fe80::{self.random.randrange(2, 9)} dev e{link}"
        onlink = " onlink" if self.chance(15) else ""
        return f"via {self.gateway(family, link)} dev e{link}{onlink}"

    def route(self, family):
        prefix = self.prefix(family)
        table = f" table {self.pick(*TABLES)}"
        metric = f" metric {self.pick(10, 20, 1024)}" if self.chance(60) else ""
        if self.chance(15):
            return f"{self.pick('blackhole', 'unreachable', 'prohibit', 'throw')} {prefix}{table}{metric}"
        tos = f" tos {self.pick('0x04', '0x08', '0x10')}" if family == 4 and self.chance(6) else ""
        if self.chance(12):
            return f"{prefix}{table}{metric}{tos} nhid {self.pick(1, 2, 3, 4, 5, 60, 61, 62, 63, 64)}"
        if self.chance(20):
            weights = [f"nexthop {self.hop(family)} weight {self.random.randrange(1, 9)}" for _ in range(self.random.randrange(2, 5))]
            return f"{prefix}{table}{metric}{tos} {' '.join(weights)}"
        source = f" src {self.source(family)}" if self.chance(20) else ""
        more = self.pick("", "", "", " mtu 1400", " advmss 1200", " initcwnd 20", " window 30000", " mtu lock 1300 initrwnd 7")
        return f"{prefix}{table}{metric}{tos} {self.hop(family)}{source}{more}"

    def source(self, family):
        link = self.random.randrange(4)
        return f"10.0.{link}.1" if family == 4 else f"fd00:{link}::1"

    def add_route(self):
        family = self.pick(4, 6)
        text = self.route(family)
        self.made.append((family, text))
        if family == 4:
            return f"-4 route {self.pick('add', 'append', 'prepend', 'replace')} {text}"
        # What is appended between the next hops of a route of the same metric is left out of the kernel's own dump (docs/routes.md).
        verbs = ("add", "append", "replace") if " via " in text else ("add", "replace")
        return f"-6 route {self.pick(*verbs)} {text}"

    def delete_route(self):
        if not self.made:
            return self.add_route()
        family, text = self.made.pop(self.random.randrange(len(self.made)))
        return f"-{family} route del {text}"

    def nexthops(self):
        yield "nexthop replace id 1 via 10.0.0.3 dev e0"
        yield "nexthop replace id 2 via 10.0.1.3 dev e1"
        yield "nexthop replace id 3 dev e2"
        yield "nexthop replace id 4 group 1,3/2,7"
        yield "nexthop replace id 5 blackhole"
        yield "-6 nexthop replace id 60 via fd00:0::3 dev e0"
        yield "-6 nexthop replace id 61 via fd00:1::3 dev e1"
        yield "-6 nexthop replace id 62 dev e3"
        yield "-6 nexthop replace id 63 group 60/61,4"
        yield "-6 nexthop replace id 64 blackhole"

    def rule(self):
        family = self.pick(4, 6)
        parts = [f"pref {self.random.randrange(10, 32000)}"]
        where = self.prefix(family)
        kind = self.random.randrange(10)
        if kind < 3:
            parts.append(f"to {where}")
        if kind in (2, 3, 4):
            parts.append(f"from {self.source(family)}")
        if kind == 5:
            parts.append(f"fwmark {self.pick('0x1', '0x2', '0x10/0xf0')}")
        if kind == 6:
            parts.append(f"uidrange {self.pick('0-100', '1000-2000')}")
        if kind == 7:
            parts.append(f"ipproto {self.pick('tcp', 'udp')} {self.pick('', 'dport 80', 'dport 1000-2000', 'sport 5000-6000')}")
        if kind == 8:
            parts.append(f"{self.pick('iif lo', 'oif e1', 'iif e2', 'oif e3')}")
        if kind == 9 and family == 4:
            parts.append(f"tos {self.pick('0x04', '0x10')}")
        words = " ".join(parts)
        if self.chance(10):
            words = f"not {words}"
        act = self.random.randrange(20)
        if act == 0:
            words += f" {self.pick('unreachable', 'blackhole', 'prohibit')}"
        elif act == 1:
            words += f" goto {self.pick(20000, 32766)}"
        elif act == 2:
            words += " nop"
        else:
            words += f" lookup {self.pick('101', '102', '103', 'main')}"
            if self.chance(25):
                words += f" suppress_prefixlength {self.pick(0, 16, 24)}"
        self.rules.append((family, words))
        return f"-{family} rule add {words}"

    def delete_rule(self):
        if not self.rules:
            return self.rule()
        family, words = self.rules.pop(self.random.randrange(len(self.rules)))
        return f"-{family} rule del {words}"

    def addresses(self):
        i = self.random.randrange(4)
        verb = self.pick("replace", "replace", "del")
        yield self.pick(f"addr {verb} 10.0.{i}.{self.random.randrange(100, 104)}/24 dev e{i}",
                        f"addr {verb} 172.16.{i}.1/30 dev e{i} scope {self.pick('global', 'link', 'host')}",
                        f"addr {verb} 192.168.{i}.1 peer 192.168.{i}.9 dev e{i}",
                        f"-6 addr {verb} fd00:{i}::{self.random.randrange(100, 103)}/64 dev e{i}" + (" nodad" if verb != "del" else ""),
                        f"-6 addr {verb} fd00:{i}::dead/64 dev e{i}" + (" nodad preferred_lft 0" if verb != "del" else ""),
                        f"-6 addr {verb} 2001:0:1::{i}/48 dev e{i}" + (" nodad" if verb != "del" else ""))

    def interface(self):
        link = self.random.randrange(4)
        yield f"link set e{link} down"
        if self.chance(70):
            yield f"link set e{link} up"
            for i in range(4):  # IPv6 addresses are gone with it
                yield f"link set e{i} up"
                yield f"-6 addr replace fd00:{i}::1/64 dev e{i} nodad"

    def neighbour(self):
        link = self.random.randrange(4)
        to = self.gateway(6, link)
        yield f"-6 neigh replace {to} dev e{link} lladdr 02:00:00:00:00:09 nud {self.pick('reachable', 'stale', 'permanent')}"
        if self.chance(60):
            yield f"-6 neigh replace {to} dev e{link} nud failed"

    def batch(self):
        """One change of the configuration, of one kind or several."""
        lines = []
        for _ in range(self.random.randrange(1, 6)):
            kind = self.random.randrange(100)
            if kind < 45:
                lines.append(self.add_route())
            elif kind < 65:
                lines.append(self.delete_route())
            elif kind < 73:
                lines.append(self.rule())
            elif kind < 81:
                lines.append(self.delete_rule())
            elif kind < 88:
                lines.extend(self.addresses())
            elif kind < 91:
                lines.extend(self.interface())
            elif kind < 96:
                lines.extend(self.neighbour())
            else:
                lines.extend(self.random.sample(list(self.nexthops()), 3))
        return lines

    def start(self):
        lines = [*self.nexthops()]
        lines += [self.add_route() for _ in range(250)]
        return lines

    def query(self):
        family = self.pick(4, 6)
        dst = self.random.choice(self.places[family])
        src = self.source(family) if self.chance(25) else "-"
        oif = self.index[self.pick(*LINKS)] if self.chance(20) else "-"
        mark = self.pick(1, 2, 0x10, 0x25) if self.chance(20) else 0
        uid = self.pick(0, 50, 1500)
        tos = self.pick(4, 8, 0x10) if self.chance(15) else 0
        proto, sport, dport = self.pick((0, 0, 0), (6, 5500, 80), (6, 7000, 1500), (17, 5001, 53))
        return f"{dst} {src} {oif} {mark} {uid} {tos} {proto} {sport} {dport}"


def parse_round(line):
    """({name: count}, [texts of what differed])"""
    numbers, *texts = line.split(" | ")
    words = numbers.split()
    return {words[i]: int(words[i + 1]) for i in range(0, len(words) - 1, 2)}, texts


class RoutesTest(unittest.TestCase):
    def setUp(self):
        self.space = Space()
        self.addCleanup(self.space.close)

    def made_tester(self, *options):
        tester = Tester(*options)
        self.addCleanup(tester.close)
        tester.change([])
        return tester

    def round(self, tester, total, times=1):
        counts, texts = parse_round(tester.ask(f"round {times}"))
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
        self.assertEqual(texts, [], f"seed {SEED}" + self.around(texts))
        return counts

    @staticmethod
    def around(texts):
        """What the kernel has of the first place that differed."""
        if not texts:
            return ""
        place = texts[0].split()[0]
        shown = ""
        for words in (f"route show table all match {place}", "route get fibmatch " + place, "rule", "nexthop"):
            family = "-6" if ":" in place else "-4"
            shown += f"\n{words}\n" + subprocess.run(["ip", family, *words.split()], capture_output=True, text=True, check=False,
                                                     env={"PATH": PATH}).stdout
        return shown

    def test_plain(self):
        """As a host is that nobody has configured: no rules but the kernel's own."""
        tester = self.made_tester()
        generator = Generator(SEED, self.space.index)
        total = {}
        for _ in range(4):
            tester.change([line for line in generator.start() if " table 1" not in line])
            tester.queries([generator.query() for _ in range(600)])
            self.assertTrue(tester.caught_up())
            self.round(tester, total)
        print(f"plain: {total}", file=sys.stderr)
        self.assertGreater(total["compared"], 1500, total)

    def test_changing(self):
        """Thousands of pairs while routes, rules, addresses, interfaces and neighbours change."""
        tester = self.made_tester()
        generator = Generator(SEED + 1, self.space.index)
        tester.change(generator.start())
        for _ in range(25):
            tester.change([generator.rule()])
        total, asks, changes, stop = {}, Generator(SEED + 7, self.space.index), [0], threading.Event()
        asks.places = generator.places

        def keep_changing():
            while not stop.wait(0.04):
                tester.change(generator.batch())
                changes[0] += 1

        changer = threading.Thread(target=keep_changing)
        changer.start()
        try:
            deadline = time.monotonic() + 150
            while (total.get("compared", 0) < 4 * WANTED or changes[0] < CHANGES) and time.monotonic() < deadline:
                tester.queries([asks.query() for _ in range(400)])
                self.round(tester, total, 4)
        finally:
            stop.set()
            changer.join()
        print(f"changing: {changes[0]} changes, {total}", file=sys.stderr)
        self.assertGreaterEqual(changes[0], CHANGES)
        self.assertGreater(total["compared"], WANTED, total)
        self.assertLess(total.get("late", 0), total["compared"] / 50, total)
        for kind in ("by-gateway", "on-link", "refused", "local", "multipath"):
            self.assertGreater(total.get(kind, 0), 20, total)

    def test_overruns(self):
        """With hardly any room for notifications: what is lost is read anew."""
        tester = self.made_tester("--netlink-bytes", "1")
        generator = Generator(SEED + 2, self.space.index)
        total = {}
        for _ in range(12):
            tester.change(generator.start())
            tester.change([f"neigh replace 10.0.{i % 4}.{10 + i} dev e{i % 4} lladdr 02:00:00:00:00:{i:02x} nud reachable"
                           for i in range(64)])
            tester.queries([generator.query() for _ in range(300)])
            self.assertTrue(tester.caught_up())
            self.round(tester, total)
        overruns = int(tester.ask("overruns").split()[1])
        print(f"overruns: {overruns}, {total}", file=sys.stderr)
        self.assertGreater(overruns, 3)
        self.assertGreater(total["compared"], 2000, total)
        for i in range(64):
            self.assertEqual(self.state_of(tester, f"e{i % 4}", f"10.0.{i % 4}.{10 + i}", "good")[1], f"02:00:00:00:00:{i:02x}")

    def state_of(self, tester, link, address, *wanted, seconds=20):
        deadline = time.monotonic() + seconds
        while True:
            state, mac = tester.ask(f"neighbour {self.space.index[link]} {address}").split()
            if state in wanted or time.monotonic() > deadline:
                self.assertIn(state, wanted, f"{address} on {link}")
                return state, mac
            time.sleep(0.01)

    def test_neighbours(self):
        """Asked for by a process: found, or failed; used while stale; gone when the kernel forgets them."""
        tester = self.made_tester()
        index = self.space.index["e0"]
        show = lambda: subprocess.run(["ip", "-j", "link", "show", "f0"], capture_output=True, check=True, env={"PATH": PATH}).stdout
        far = json.loads(self.space.inside("far", show))[0]["address"]
        for there, nobody in (("10.0.0.2", "10.0.0.99"), ("fd00:0::2", "fd00:0::99")):
            self.assertEqual(self.state_of(tester, "e0", there, "unknown")[0], "unknown")
            tester.ask(f"resolve {index} {there}")
            tester.ask(f"resolve {index} {nobody}")
            state, mac = self.state_of(tester, "e0", there, "good", "stale")
            self.assertEqual(mac, far)
            self.state_of(tester, "e0", nobody, "failed")
            Space.ip(f"neigh replace {there} dev e0 lladdr 02:00:00:00:00:77 nud stale")
            self.assertEqual(self.state_of(tester, "e0", there, "stale")[1], "02:00:00:00:00:77")
            Space.ip(f"neigh del {there} dev e0")
            self.state_of(tester, "e0", there, "unknown", "failed")
            # Asked for again, what had failed is not failed any more until the kernel says so.
            tester.ask(f"resolve {index} {nobody}")
            self.state_of(tester, "e0", nobody, "asking", seconds=0.5)
            self.state_of(tester, "e0", nobody, "failed")

    def test_interface_down_and_up(self):
        tester = self.made_tester()
        get = lambda *words: json.loads(tester.posternctl("route", "get", *words, "--json").stdout)
        self.assertEqual(get("10.0.3.9")["dev"], "e3")
        tester.change(["link set e3 down"])
        self.assertTrue(tester.caught_up())
        self.assertEqual((get("10.0.3.9")["verdict"], get("10.0.3.9")["error"]), ("refused", "ENETUNREACH"))
        tester.change(["link set e3 up"])
        self.assertTrue(tester.caught_up())
        self.assertEqual((get("10.0.3.9")["verdict"], get("10.0.3.9")["src"]), ("unicast", "10.0.3.1"))

    def test_posternctl(self):
        tester = self.made_tester()
        tester.change(["route add 198.51.100.0/24 via 10.0.1.2 dev e1 mtu 1400", "route add unreachable 192.0.2.0/24"])
        self.assertTrue(tester.caught_up())
        said = tester.posternctl("route", "get", "198.51.100.7").stdout
        self.assertIn("198.51.100.7 via 10.0.1.2 dev e1 src 10.0.1.1", said)
        self.assertIn("mtu 1400", said)
        refused = tester.posternctl("route", "get", "192.0.2.1", check=False)
        self.assertEqual((refused.returncode, "No route to host" in refused.stdout), (2, True), refused.stdout)
        bad = tester.posternctl("route", "get", "nowhere", check=False)
        self.assertEqual(bad.returncode, 1)

    def test_netfilter(self):
        """Rules that could touch a flow keep it in the kernel; counting, forwarding and empty chains don't."""
        if not shutil.which("nft", path=PATH):
            self.skipTest("no nft")
        tester = self.made_tester()
        self.assertEqual(self.reason(tester, "none"), "none")
        for rules, reason in (("add table ip t; add chain ip t c { type filter hook output priority 0; }", "none"),
                              ("add rule ip t c counter", "none"),
                              ("add rule ip t c tcp dport 80 counter accept", "netfilter"),
                              ("flush ruleset", "none"),
                              ("add table inet t; add chain inet t c { type filter hook forward priority 0; policy drop; }", "none"),
                              ("add chain inet t i { type filter hook input priority 0; policy drop; }", "netfilter"),
                              ("flush ruleset", "none"),
                              ("add table ip n; add chain ip n p { type nat hook postrouting priority 100; }; add rule ip n p masquerade",
                               "netfilter"),
                              ("flush ruleset", "none")):
            subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True, env={"PATH": PATH})
            self.assertEqual(self.reason(tester, reason), reason, rules)

    def reason(self, tester, wanted):
        deadline = time.monotonic() + 10
        while True:
            said = json.loads(tester.posternctl("route", "get", "10.0.0.2", "--json").stdout)["reason"]
            if said == wanted or time.monotonic() > deadline:
                return said
            time.sleep(0.02)

    def test_without_privileges(self):
        """Another user's posternd may not look at netfilter: alone it is undecided, with a broker it hands out the broker's tables."""
        nobody, build = 65534, self.enterContext(readable(BUILD, ("posternd", "posternctl")))
        top = tempfile.mkdtemp(prefix="pstn-routes-")
        self.addCleanup(shutil.rmtree, top, ignore_errors=True)
        self.addCleanup(netlab.forget_bells, f"{top}/system")
        os.chmod(top, 0o755)
        with open(f"{top}/policy.json", "w", encoding="ascii") as file:
            file.write("{}")

        def start(name, user, *options):
            os.mkdir(f"{top}/{name}")
            os.chown(f"{top}/{name}", user, user)
            process = subprocess.Popen([f"{build}/posternd", "--foreground", "--verbose", "--runtime-dir", f"{top}/{name}", *options],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.setresuid(user, user, user))
            self.addCleanup(process.stderr.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            wanted = "ready in" if "--system" in options or options[-1].endswith("none") else "joined"
            while wanted not in (line := process.stderr.readline()):
                self.assertTrue(line, f"{name} has ended")
            return f"{top}/{name}"

        def reason(directory):
            done = subprocess.run([f"{build}/posternctl", "--runtime-dir", directory, "route", "get", "10.0.0.2", "--json"], capture_output=True,
                                  text=True, check=True, timeout=30, preexec_fn=lambda: os.setresuid(nobody, nobody, nobody))
            return json.loads(done.stdout)["reason"]

        self.assertEqual(reason(start("alone", nobody, "--idle-sec", "0", "--broker", f"{top}/none")), "netfilter")
        start("system", 0, "--system", "--policy", f"{top}/policy.json", "--syn-option", "off")
        self.assertEqual(reason(start("member", nobody, "--idle-sec", "0", "--broker", f"{top}/system/broker.sock")), "none")

    def test_ipsec(self):
        tester = self.made_tester()
        self.assertEqual(self.reason(tester, "none"), "none")
        if not Space.ip("xfrm policy add dir out src 10.0.0.0/24 dst 10.0.0.0/24 tmpl proto esp mode tunnel src 10.0.0.1 dst 10.0.0.2",
                        must=False):
            self.skipTest("no IPsec in this kernel")
        self.assertEqual(self.reason(tester, "xfrm"), "xfrm")
        Space.ip("xfrm policy flush")
        self.assertEqual(self.reason(tester, "none"), "none")

    def test_kinds_of_links(self):
        """What no VI can be put on is undecided, by name; VLANs and bonds where the kernel has them."""
        tester = self.made_tester()
        get = lambda to: json.loads(tester.posternctl("route", "get", to, "--json").stdout)
        seen = []
        for name, make, kind in (("br9", "link add br9 type bridge", "undecided"), ("mv9", "link add mv9 link e0 type macvlan", "undecided"),
                                 ("e0.9", "link add link e0 name e0.9 type vlan id 9", "unicast"),
                                 ("b9", "link add b9 type bond mode active-backup", "undecided")):
            if not Space.ip(make, must=False):
                continue
            seen.append(name)
            net = 50 + len(seen)
            tester.change([f"link set {name} up", f"addr add 10.{net}.0.1/24 dev {name}"])
            self.assertTrue(tester.caught_up())
            answer = get(f"10.{net}.0.9")
            self.assertEqual((answer["dev"], answer["verdict"]), (name, kind), answer)
            if kind == "undecided":
                self.assertEqual((answer["reason"], answer["routes"]), ("link", "unicast"))
            else:
                self.assertEqual((answer["vi"], answer["vlan"]), ("e0", [9]))
        print(f"links: {seen}", file=sys.stderr)
        self.assertIn("br9", seen)


def main():
    global BUILD
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BUILD = os.path.abspath(sys.argv.pop(1))
    try:
        pid = os.fork()  # namespaces that are tried out here are gone with the child
        if pid == 0:
            try:
                Space().close()
                os._exit(0)
            except Unavailable as missing:
                print(missing, flush=True)
                os._exit(77)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except OSError as error:
        print(error)
        status = 77
    if status != 0:
        sys.exit(status)
    unittest.main()


if __name__ == "__main__":
    main()
