# syn_broker_test.py - the socket option of the SYN option: marks that change while clients come, errors, and the broker that attaches it.
# SPDX-License-Identifier: Apache-2.0
#
# usage: syn_broker_test.py BUILD_DIR [-v] [TEST...]; exit 77 as syn_option_test.py.

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab
import synkit
from synkit import ALL_CAPS, EXID, MARKED, TCP_SAVE_SYN, TCP_SAVED_SYN, TCP_SMC, SynTest, bits, exchanged, main, mark, options_254, since

NEEDED = (synkit.CAP_BPF, synkit.CAP_PERFMON, synkit.CAP_NET_ADMIN)
FEW = [cap for cap in ALL_CAPS if cap not in NEEDED and (cap != synkit.CAP_SYS_RESOURCE or synkit.KERNEL >= (5, 11))]


class Listeners(SynTest):
    """A mark that comes and goes while clients are on their way: both ends agree at each moment."""

    def says(self, listener, marked=1):
        client, taken = self.connect(listener, marked)
        self.carries(client, taken)
        self.assertEqual(exchanged(client), exchanged(taken))
        return exchanged(client)

    @since(5, 15)
    def test_taken_back_and_given_again(self):
        listener = self.listener()
        self.assertEqual(self.says(listener), 1)
        mark(listener, 0)
        self.assertEqual((bits(listener), self.says(listener)), (0, 0))
        mark(listener)
        self.assertEqual((bits(listener), self.says(listener)), (MARKED, 1))
        self.assertEqual([len(options_254(s)) for s in self.synacks()], [1, 0, 1])

    @since(6, 11)
    def test_marked_while_it_listens(self):
        listener = self.listener(0)
        self.assertEqual(self.says(listener), 0)
        mark(listener)
        self.assertEqual(self.says(listener), 1)
        mark(listener, 0)
        self.assertEqual(self.says(listener), 0)

    def test_taken_back_before_anything(self):
        listener = self.listener(0)
        mark(listener, 0)
        self.assertEqual(self.says(listener), 0)
        client = self.client(1)
        mark(client, 0)
        self.connect(self.again(listener), client=client)
        self.assertEqual(options_254(self.syns()[-1]), [])

    def again(self, listener):
        listener.close()
        return self.listener(1)

    def held(self, listener, before, chosen):
        """A client whose segment is held while `before` is done: (client, accepted)."""
        caught, go = threading.Event(), []

        def rule(side, segment):
            if not go and chosen(side, segment):
                go.append(segment)
                caught.set()
                return None
            return [segment]

        self.lab.wire.rule = rule
        client = self.client()
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
        self.assertTrue(caught.wait(10))
        before()
        self.lab.wire.put("b" if chosen is last_ack else "a", go[0])
        taken = self.accept(listener)
        client.settimeout(20)
        self.carries(client, taken)
        return client, taken

    @since(5, 15)
    def test_taken_back_between_synack_and_ack(self):
        """The client has seen the option: the accepted socket says yes, whatever the listener has become."""
        listener = self.listener()
        client, taken = self.held(listener, lambda: mark(listener, 0), last_ack)
        self.assertEqual((exchanged(client), exchanged(taken)), (1, 1))

    @since(5, 15)
    def test_given_between_synack_and_ack(self):
        listener = self.listener()
        mark(listener, 0)
        client, taken = self.held(listener, lambda: mark(listener, 1), last_ack)
        self.assertEqual((exchanged(client), exchanged(taken)), (0, 0))

    def lost_synack(self, listener, change):
        """The first SYN-ACK is lost, the mark changes, the second arrives."""
        lost = []

        def rule(_, segment):
            if segment.is_synack() and not lost:
                lost.append(segment)
                change()
                return None
            return [segment]

        self.lab.wire.rule = rule
        return [exchanged(sock) for sock in self.connect(listener)]

    @since(5, 15)
    def test_taken_back_between_two_synacks(self):
        """What a request was told first it is told again."""
        listener = self.listener()
        self.assertEqual(self.lost_synack(listener, lambda: mark(listener, 0)), [1, 1])
        self.assertEqual([options_254(s) for s in self.synacks(again=True)][1], [EXID])

    @since(5, 15)
    def test_given_between_two_synacks(self):
        listener = self.listener()
        mark(listener, 0)
        self.assertEqual(self.lost_synack(listener, lambda: mark(listener, 1)), [0, 0])

    @since(5, 15)
    def test_mark_changes_all_the_time(self):
        """Whatever it is when, the two ends agree."""
        listener, stop = self.listener(), threading.Event()

        def flip():
            value = 0
            while not stop.is_set():
                mark(listener, value)
                value ^= 1

        flipper = threading.Thread(target=flip)
        flipper.start()
        answers = []
        try:
            for _ in range(300):
                client = self.lab.socket("a")
                mark(client)
                client.connect(listener.getsockname())
                taken = listener.accept()[0]
                answers.append((exchanged(client), exchanged(taken)))
                client.close()
                taken.close()
        finally:
            stop.set()
            flipper.join()
        self.assertEqual(set(answers), {(0, 0), (1, 1)})

    # -- the program's own TCP_SAVE_SYN ------------------------------------------------------------------------------
    def test_program_saves_syns_itself(self):
        listener = self.listener(0)
        listener.setsockopt(socket.SOL_TCP, TCP_SAVE_SYN, 1)
        self.assertEqual(self.says(listener), 0)
        client, taken = self.connect(listener)
        saved = taken.getsockopt(socket.SOL_TCP, TCP_SAVED_SYN, 256)
        self.assertIn(EXID, saved)
        self.assertEqual((exchanged(client), exchanged(taken)), (0, 0))

    @since(5, 15)
    def test_program_saves_syns_of_a_marked_socket(self):
        listener = self.listener()
        listener.setsockopt(socket.SOL_TCP, TCP_SAVE_SYN, 1)
        self.assertEqual(self.says(listener), 1)
        with self.assertRaises(PermissionError):  # the saved SYN decides: the mark stays as long as SYNs are saved
            mark(listener, 0)
        listener.setsockopt(socket.SOL_TCP, TCP_SAVE_SYN, 0)
        self.assertEqual(self.says(listener), 1)
        mark(listener, 0)
        self.assertEqual(self.says(listener), 0)
        listener.setsockopt(socket.SOL_TCP, TCP_SAVE_SYN, 1)
        self.assertEqual(self.says(listener), 0)
        with self.assertRaises(PermissionError):
            mark(listener)
        self.assertEqual(self.says(listener), 0)

    def test_program_saved_syns_before_listen(self):
        listener = self.lab.socket("b")
        self.addCleanup(listener.close)
        listener.bind((netlab.V4["b"], self.port))
        mark(listener)
        listener.setsockopt(socket.SOL_TCP, TCP_SAVE_SYN, 1)
        listener.listen()
        self.assertEqual(self.says(listener), 1)
        with self.assertRaises(PermissionError):
            mark(listener, 0)


def last_ack(side, segment):
    return side == "a" and not segment.flags & netlab.SYN


class Option(SynTest):
    """The socket option as such."""

    def fails(self, error, call, *args):
        with self.assertRaises(OSError) as caught:
            call(*args)
        self.assertEqual(caught.exception.errno, error)

    def test_errors(self):
        client, taken = self.connect(self.listener())
        for sock in (client, taken):
            for value in (0, 1):
                self.fails(errno.EPERM, mark, sock, value)
        fresh = self.client(0)
        for value in (2, -1):
            self.fails(errno.EPERM, mark, fresh, value)
        self.fails(errno.EPERM, mark, fresh, b"\1\0")
        with self.assertRaises(OSError):  # EPERM, or what the kernel said before
            fresh.getsockopt(socket.SOL_TCP, TCP_SMC, 2)
        self.assertEqual(bits(fresh), 0)

    def test_only_tcp(self):
        for kind, level, error in ((socket.SOCK_DGRAM, socket.SOL_TCP, errno.EOPNOTSUPP),
                                   (socket.SOCK_STREAM, socket.SOL_IP, errno.ENOPROTOOPT)):
            sock = self.lab.socket("a", kind=kind)
            self.addCleanup(sock.close)
            self.fails(errno.ENOPROTOOPT, sock.setsockopt, level, TCP_SMC, 1)
            self.fails(error, sock.getsockopt, level, TCP_SMC)

    def test_other_options_pass(self):
        """Long ones too: of those only a page is shown to programs."""
        sock = self.client(0)
        for size in (4, 4096, 8192, 100000):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, b"\1\0\0\0" + bytes(size - 4))
            self.assertEqual(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, min(size, 1024)), b"\1\0\0\0")
        self.assertEqual(long_getsockopt(sock, socket.SO_KEEPALIVE, 100000), (0, 4))
        self.fails(errno.ENOPROTOOPT, sock.setsockopt, socket.SOL_TCP, 999999, b"x" * 8192)
        sock.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
        self.assertEqual(sock.getsockopt(socket.SOL_TCP, socket.TCP_NODELAY), 1)

    def test_outside_the_cgroup(self):
        self.cgroup.leave()
        try:
            sock = self.lab.socket("a")
        finally:
            self.cgroup.enter()
        self.addCleanup(sock.close)
        self.fails(errno.ENOPROTOOPT, mark, sock)
        self.fails(errno.ENOPROTOOPT, bits, sock)

    def test_cgroup_below(self):
        below = synkit.Cgroup(self.cgroup)
        try:
            below.move(below.path)
            mark(self.client(0))
        finally:
            self.cgroup.enter()
            below.remove()

    def test_unprivileged(self):
        """Any program may mark a socket that it has."""
        listener = self.listener(0)
        listener.close()
        sock = self.client(0)
        child = os.fork()
        if child == 0:
            try:
                os.setgid(65534)
                os.setuid(65534)
                mark(sock)
                os._exit(0 if bits(sock) == MARKED else 2)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_only_setup_is_looked_at(self):
        """No program runs for data, marked or not. Those of other brokers, in other cgroups of this host, are not counted."""
        ours = {program["id"] for program in attached_programs(self.cgroup)}

        def runs():
            return sum(program.get("run_cnt", 0) for program in json.loads(bpftool("prog", "show")) if program["id"] in ours)

        pairs = []
        for marks in (0, 1):
            self.port += 1
            pairs.append(self.connect(self.listener(marks), marks))
        counting = ctypes.CDLL("libbpf.so.1").bpf_enable_stats(0)
        self.assertGreaterEqual(counting, 0)
        try:
            before = runs()
            for _ in range(20):
                for pair in pairs:
                    self.carries(*pair)
            self.assertEqual(runs(), before)
            self.port += 1
            self.connect(self.listener())
            self.assertGreater(runs(), before)
        finally:
            os.close(counting)

    def test_gone_with_the_broker(self):
        listener, client = self.listener(), self.client()
        self.broker.stop()
        self.fails(errno.ENOPROTOOPT, bits, client)
        self.carries(*self.connect(listener, client=client))
        self.assertEqual([options_254(s) for s in self.syns() + self.synacks()], [[], []])


def long_getsockopt(sock, name, size):
    buffer, length = ctypes.create_string_buffer(size), ctypes.c_uint(size)
    status = netlab.libc.getsockopt(sock.fileno(), socket.SOL_SOCKET, name, buffer, ctypes.byref(length))
    return status, length.value


def bpftool(*args):
    path = "/usr/sbin:/sbin:/usr/bin:/bin"
    return subprocess.run(["bpftool", "-j", *args], check=True, capture_output=True, text=True, env={"PATH": path}).stdout


def attached_programs(cgroup):
    """bpftool gives up a list of all links at one that is just being made (EAGAIN)."""
    return json.loads(bpftool("cgroup", "show", cgroup.path).strip() or "[]")


class Brokers(SynTest):
    """Which broker attaches it, and for how long."""

    def another(self, *args, **more):
        broker = synkit.Broker(self.build, more.pop("cgroup", self.cgroup.path), *args, home=self.cgroup.home, **more)
        self.addCleanup(broker.stop)
        return broker

    def works(self):
        self.lab.wire.seen.clear()
        self.port += 1
        client, taken = self.connect(self.listener())
        self.carries(client, taken)
        lengths = [len(s.options) for s in self.syns() + self.synacks()]
        self.assertEqual((exchanged(client), exchanged(taken), lengths), (1, 1, [28, 28]))
        self.assertEqual([options_254(s) for s in self.syns() + self.synacks()], [[EXID]] * 2)

    def attached(self):
        return len(attached_programs(self.cgroup))

    def test_second_one_shares(self):
        second = self.another()
        self.assertIn("was attached", second.text)
        self.assertEqual(self.attached(), 3)
        marked = self.listener()
        self.works()
        self.broker.stop(signal.SIGKILL)
        self.works()
        self.assertEqual(exchanged(self.connect(marked)[1]), 1)
        second.stop()
        self.assertEqual(self.attached(), 0)
        with self.assertRaises(OSError):
            bits(self.client(0))

    def test_second_one_that_cannot_see_the_first(self):
        """CAP_SYS_ADMIN is what it takes to see; without, there are two sets, and one option."""
        second = self.another(without_caps=FEW)
        self.assertTrue(second.attached, second.text)
        self.assertEqual(self.attached(), 6)
        marked = self.listener()
        self.works()
        if synkit.KERNEL >= (5, 15):
            for value in (0, 1, 0, 1):
                mark(marked, value)
        self.assertEqual(bits(marked), MARKED)
        self.broker.stop()
        self.works()
        self.assertEqual(exchanged(self.connect(marked)[1]), 1)

    def test_one_in_a_cgroup_above(self):
        below = synkit.Cgroup(self.cgroup)
        try:
            self.assertIn("was attached", self.another(cgroup=below.path).text)
        finally:
            below.remove()

    def test_both_start_at_once(self):
        self.broker.stop()
        started = []
        threads = [threading.Thread(target=lambda: started.append(self.another())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([broker.attached for broker in started], [True] * 4)
        self.assertEqual(self.attached(), 3)

    def test_pinned(self):
        """The broker goes and comes; marks and attachment stay. Taking the pins away ends it."""
        self.broker.stop()
        with tempfile.TemporaryDirectory() as place:
            netlab.call("mount", b"bpf", place.encode(), b"bpf", 0, None)
            try:
                pins = ("--syn-option-pins", f"{place}/postern")
                first = self.another(*pins)
                self.assertTrue(first.attached, first.text)
                marked = self.listener()
                first.stop(signal.SIGKILL)
                self.works()
                self.assertEqual(exchanged(self.connect(marked)[1]), 1)
                second = self.another(*pins, without_caps=FEW)
                self.assertIn("was attached", second.text)
                os.unlink(f"{place}/postern/pstn_syn1_set")  # incomplete: put there again
                third = self.another(*pins)
                self.assertIn("was attached", third.text)
                self.assertEqual((len(os.listdir(f"{place}/postern")), self.attached()), (3, 3))
                second.stop()
                third.stop()
                self.assertEqual(self.attached(), 3)
                for name in os.listdir(f"{place}/postern"):
                    os.unlink(f"{place}/postern/{name}")
                self.assertTrue(self.gone())
                self.assertEqual(self.attached(), 0)
            finally:
                netlab.call("umount2", place.encode(), 2)

    def gone(self):
        """The option is unknown: what is unpinned, the kernel detaches a moment later."""
        client, end = self.client(0), time.monotonic() + 10
        while time.monotonic() < end:
            try:
                bits(client)
            except OSError:
                return True
            time.sleep(0.02)
        return False

    def refused(self, said, *args, **more):
        """It says why, and serves."""
        broker = self.another(*args, **more)
        self.assertEqual((broker.attached, broker.status), (False, None), broker.text)
        self.assertIn(said, broker.text)

    def test_refusals(self):
        self.broker.stop()
        self.refused("is not a directory of a cgroup2 mount", cgroup="/tmp")
        self.refused("No such file", cgroup=self.cgroup.path + "/no")
        self.refused("posternd lacks CAP_NET_ADMIN CAP_BPF CAP_PERFMON", without_caps=ALL_CAPS)
        for cap, name in ((synkit.CAP_BPF, "CAP_BPF"), (synkit.CAP_PERFMON, "CAP_PERFMON"), (synkit.CAP_NET_ADMIN, "CAP_NET_ADMIN")):
            self.refused(f"posternd lacks {name}:", without_caps=[*FEW, cap])
        self.refused("can't be pinned", "--syn-option-pins", "/tmp/pstn-no-bpffs")
        os.rmdir("/tmp/pstn-no-bpffs")
        self.assertEqual(self.attached(), 0)

    def test_off(self):
        self.broker.stop()
        self.refused("ready in", cgroup="off")

    def test_whole_host(self):
        """The default: the host's cgroup root, pinned in the place for it (here a file system of our own, in our mount namespace)."""
        self.broker.stop()
        netlab.call("mount", b"bpf", b"/sys/fs/bpf", b"bpf", 0, None)
        try:
            broker = self.another(cgroup="auto")
            self.assertTrue(broker.attached, broker.text)
            self.works()
            broker.stop()
            self.works()  # pinned
        finally:
            for name in os.listdir("/sys/fs/bpf/postern"):
                os.unlink(f"/sys/fs/bpf/postern/{name}")
            netlab.call("umount2", b"/sys/fs/bpf", 2)
        self.assertTrue(self.gone())

    def test_capabilities_are_given_up(self):
        with open(f"/proc/{self.broker.process.pid}/status", encoding="utf-8", errors="replace") as file:
            held = int(next(line for line in file if line.startswith("CapPrm")).split()[1], 16)
        for cap in (synkit.CAP_BPF, synkit.CAP_PERFMON):
            self.assertFalse(held >> cap & 1, hex(held))

    def test_not_a_users_daemon(self):
        done = subprocess.run([f"{self.build}/posternd", "--foreground", "--runtime-dir", "/tmp/pstn-none", "--syn-option", self.cgroup.path],
                              capture_output=True, text=True, timeout=20, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--syn-option requires --system", done.stderr)


if __name__ == "__main__":
    main(Listeners, Option, Brokers)
