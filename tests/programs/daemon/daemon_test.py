# daemon_test.py - posternd by itself: a client made here speaks the protocol, and dies in every way.
# SPDX-License-Identifier: Apache-2.0
#
# usage: daemon_test.py BUILD_DIR [-v] [TEST...]; exit 77 when there is no C compiler for the layout.
# The layout of the shared memory is asked of the compiler, so that this file need not follow it.

import array
import fcntl
import json
import mmap
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LIB = os.path.join(HERE, "..", "..", "..", "lib")
BUILD = "build"

HELLO, LISTEN, UNLISTEN, INTRODUCE, LGR, GET_LGR, ADD_LGR, STATUS, EXPORT = *range(1, 9), 11
QUIT, NAMED = 10, 38
MSG = struct.Struct("=IIIiIIIIQQ24s48s")
EMBRYO, LIVE = 1, 2
EPERM, ENOENT, EINVAL, ENOSYS, ENOTCONN, EEXIST, ENOSPC = 1, 2, 22, 38, 107, 17, 28
ADD_SEALS, SEALS = 1033, 2 | 4

LAYOUT_C = r"""
#include <stddef.h>
#include <stdio.h>
#include "abi/postern_abi.h"
#define P(n, v) printf("\"%s\": %llu,\n", n, (unsigned long long)(v))
/* Each table of a stack begins at a page of its own (lib/state/stack_map.cc). */
static const struct pstn_stack_counts counts = {PSTN_WAITERS, 2048, 256, 256, 131072, 262144, 4096, 0};
static unsigned long long end = sizeof(struct pstn_stack_hdr);
static unsigned long long table(unsigned long long size, unsigned count) {
  const unsigned long long begin = PSTN_ALIGN_UP(end, 4096ull);
  end = begin + size * count;
  return begin;
}
int main(void) {
  printf("{");
  table(sizeof(struct pstn_waiter), counts.waiters); table(sizeof(struct pstn_epoll), counts.epolls);
  P("slots", table(sizeof(struct pstn_slot), counts.slots)); P("lgrs", table(sizeof(struct pstn_lgr_ref), counts.lgrs));
  P("eps", table(sizeof(struct pstn_ep), counts.eps)); table(sizeof(struct pstn_item), counts.items);
  P("fdchunks", table(sizeof(struct pstn_fdchunk), counts.fdchunks)); P("stack_size", PSTN_ALIGN_UP(end, 4096ull));
  P("counts", offsetof(struct pstn_stack_hdr, counts));
  for (unsigned i = 0; i < 8; i++) printf("\"count%u\": %u,\n", i, ((const pstn_u32*)&counts)[i]);
  P("slot_size", sizeof(struct pstn_slot)); P("slot_start", offsetof(struct pstn_slot, start_time));
  P("hdr_id", offsetof(struct pstn_stack_hdr, id)); P("hdr_size", offsetof(struct pstn_stack_hdr, size_bytes));
  P("options", offsetof(struct pstn_stack_hdr, options)); P("options_size", PSTN_OPTIONS_BYTES);
  P("slots_hw", offsetof(struct pstn_stack_hdr, slots_hw)); P("ticket", offsetof(struct pstn_stack_hdr, ticket)); P("slot_chunk", offsetof(struct pstn_slot, chunk));
  P("ep_size", sizeof(struct pstn_ep)); P("item_size", sizeof(struct pstn_item)); P("chunk_size", sizeof(struct pstn_fdchunk));
  P("ep_gen", offsetof(struct pstn_ep, gen)); P("ep_reason", offsetof(struct pstn_ep, reason));
  P("ep_family", offsetof(struct pstn_ep, family));
  P("chunk_fd", offsetof(struct pstn_fdchunk, fd));
  P("lgr_size", sizeof(struct pstn_lgr_ref));
  P("lgr_id", offsetof(struct pstn_lgr_ref, id)); P("lgr_conns", offsetof(struct pstn_lgr_ref, conns));
  P("lgr_conn_ep", offsetof(struct pstn_lgr_ref, conn_ep));
  P("lgrs_hw", offsetof(struct pstn_stack_hdr, lgrs_hw));
  P("lgr_bytes", PSTN_LGR_BYTES); P("side_dead", offsetof(struct pstn_lgr_hdr, side_dead));
  P("conns_hw", offsetof(struct pstn_lgr_hdr, conns_hw)); P("pair_lgrs", PSTN_PAIR_LGRS); P("conns", PSTN_CONNS);
  P("dir_size", sizeof(struct pstn_dir)); P("dir_mutex", offsetof(struct pstn_dir, alive_mutex));
  P("dir_seq", offsetof(struct pstn_dir, seq)); P("dir_heads", offsetof(struct pstn_dir, port_head));
  P("dir_addr_count", offsetof(struct pstn_dir, addr_count)); P("dir_addrs", offsetof(struct pstn_dir, addrs));
  P("dir_listeners", offsetof(struct pstn_dir, listeners)); P("dl_size", sizeof(struct pstn_dir_listener));
  P("dl_stack", offsetof(struct pstn_dir_listener, stack)); P("dl_local", offsetof(struct pstn_dir_listener, local));
  P("pools", offsetof(struct pstn_stack_hdr, eps)); P("pool_size", sizeof(struct pstn_pool));
  P("magic_stack", PSTN_MAGIC_STACK); P("magic_dir", PSTN_MAGIC_DIR); P("abi", PSTN_ABI_VERSION);
  printf("\"end\": 0}\n");
  return 0;
}
"""
L = {}


def load_layout():
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        print("skipped: no C compiler to ask for the layout")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as directory:
        with open(f"{directory}/layout.c", "w", encoding="ascii") as file:
            file.write(LAYOUT_C)
        subprocess.run([compiler, "-I", LIB, "-o", f"{directory}/layout", f"{directory}/layout.c"], check=True)
        L.update(json.loads(subprocess.run([f"{directory}/layout"], check=True, capture_output=True).stdout))


def start_time(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rsplit(")", 1)[1].split()[19])


class Stack:
    """A stack's memory, written as a program would write it."""

    def __init__(self, seals=SEALS, size=None):
        self.id = (random.getrandbits(64), random.getrandbits(64))
        self.fd = os.memfd_create("test-stack", os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size or L["stack_size"])
        fcntl.fcntl(self.fd, ADD_SEALS, seals)
        if size:
            return
        self.map = mmap.mmap(self.fd, L["stack_size"])
        struct.pack_into("=IIQ", self.map, 0, L["magic_stack"], L["abi"], L["stack_size"])
        struct.pack_into("=QQ", self.map, L["hdr_id"], *self.id)
        struct.pack_into("=8I", self.map, L["counts"], *(L[f"count{i}"] for i in range(8)))
        for pool in range(5):
            struct.pack_into("=Q", self.map, L["pools"] + pool * L["pool_size"], 0xffffffff)

    def slot(self, idx, pid, state=LIVE, start=None):
        at = L["slots"] + idx * L["slot_size"]
        self.map[at + L["slot_chunk"]:at + L["slot_chunk"] + 4096] = b"\xff" * 4096
        struct.pack_into("=Q", self.map, at + L["slot_start"], start_time(pid) if start is None else start)
        struct.pack_into("=II", self.map, at, state, pid)
        hw = struct.unpack_from("=I", self.map, L["slots_hw"])[0]
        struct.pack_into("=I", self.map, L["slots_hw"], max(hw, idx + 1))

    def slot_state(self, idx):
        return struct.unpack_from("=I", self.map, L["slots"] + idx * L["slot_size"])[0]

    def endpoint(self, idx, state, gen=1, reason=0, family=socket.AF_INET):
        at = L["eps"] + idx * L["ep_size"]
        struct.pack_into("=II", self.map, at, state, gen)
        struct.pack_into("=I", self.map, at + L["ep_family"], family)
        struct.pack_into("=I", self.map, at + L["ep_reason"], reason)

    def set_fd(self, slot, fd, ep):
        struct.pack_into("=I", self.map, L["slots"] + slot * L["slot_size"] + L["slot_chunk"], 0)
        struct.pack_into("=I", self.map, L["fdchunks"] + L["chunk_fd"] + 4 * fd, 0x10000000 | ep)

    def lgr(self, idx):
        return struct.unpack_from("=II", self.map, L["lgrs"] + idx * L["lgr_size"])

    def set_conns(self, idx, count):
        """So many connections of ours in that link group: one of our endpoint number 0, the others only by their number."""
        struct.pack_into("=I", self.map, L["lgrs"] + idx * L["lgr_size"] + L["lgr_conns"], count)
        struct.pack_into("=I", self.map, L["lgrs"] + idx * L["lgr_size"] + L["lgr_conn_ep"], min(count, 1))


class Client:
    """One connection to posternd."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(5)
        self.sock.connect(path)
        self.seq = 0
        self.pushed = []

    def send(self, kind, a=0, b=0, c=0, uuid=(0, 0), fd=None, version=4):
        self.seq += 1
        data = MSG.pack(version, kind, self.seq, 0, a, b, c, 0, *uuid, bytes(24), bytes(48))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        self.sock.sendmsg([data], rights)

    def receive(self):
        """(type, seq, status, a, uuid, fd or None)"""
        data, control, _, _ = self.sock.recvmsg(MSG.size, socket.CMSG_SPACE(4))
        if not data:
            raise EOFError
        _, kind, seq, status, a, _, _, _, hi, lo, _, _ = MSG.unpack(data)
        fd = struct.unpack("i", control[0][2])[0] if control else None
        return kind, seq, status, a, (hi, lo), fd

    def ask(self, kind, **args):
        """(status, a, fd)"""
        self.send(kind, **args)
        while True:
            got = self.receive()
            if got[1] == 0:
                self.pushed.append(got)
            elif got[1] == self.seq:
                return got[2], got[3], got[5]

    def report(self, which=0, pid=0):
        status, _, fd = self.ask(STATUS, a=which, b=pid)
        assert status == 0
        with os.fdopen(fd, "rb") as file:
            return json.loads(file.read())


class Peer:
    """A process of its own that only holds a slot and a connection; killed at will."""

    def __init__(self, path, stack, slot=0, closes=False):
        ready, tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                stack.slot(slot, os.getpid())
                client = Client(path)
                ok = client.ask(HELLO, a=slot, uuid=stack.id, fd=stack.fd)[0] == 0
                if closes:
                    client.sock.close()
                os.write(tell, b"1" if ok else b"0")
                time.sleep(60)
            finally:
                os._exit(1)
        os.close(tell)
        self.ok = os.read(ready, 1) == b"1"
        os.close(ready)

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


class DaemonTest(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.dir = os.path.join(self.temp.name, "run")
        self.path = f"{self.dir}/posternd.sock"
        self.peers, self.daemon = [], None
        self.start()

    def tearDown(self):
        for peer in self.peers:
            peer.kill()
        self.stop(signal.SIGKILL)
        self.temp.cleanup()

    def start(self, *args):
        self.daemon = subprocess.Popen([f"{BUILD}/posternd", "--runtime-dir", self.dir, "--foreground", "--idle-sec", "0",
                                        "--verbose", *args], stderr=open(f"{self.temp.name}/log", "ab"))
        self.assertTrue(until(self.answers), self.log())

    def answers(self):
        try:
            Client(self.path).sock.close()
            return True
        except OSError:
            return False

    def stop(self, sig=signal.SIGTERM):
        if self.daemon:
            self.daemon.send_signal(sig)
            code = self.daemon.wait(10)
            self.daemon = None
            return code
        return None

    def log(self):
        with open(f"{self.temp.name}/log", encoding="utf-8") as file:
            return file.read()

    def peer(self, stack, slot=0, closes=False):
        self.peers.append(Peer(self.path, stack, slot, closes))
        self.assertTrue(self.peers[-1].ok, self.log())
        return self.peers[-1]

    def hello(self, stack, slot=0):
        stack.slot(slot, os.getpid())
        client = Client(self.path)
        status, _, fd = client.ask(HELLO, a=slot, uuid=stack.id, fd=stack.fd)
        self.assertEqual(status, 0, self.log())
        client.directory = mmap.mmap(fd, L["dir_size"], prot=mmap.PROT_READ)
        client.directory_fd = fd
        return client

    def status(self):
        return Client(self.path).report()

    def stacks(self):
        return len(self.status()["stacks"])

    # -- hello ---------------------------------------------------------------------------------------------------
    def test_directory_is_readable_and_not_writable(self):
        client = self.hello(Stack())
        self.assertEqual(struct.unpack_from("=I", client.directory)[0], L["magic_dir"])
        with self.assertRaises(OSError):
            mmap.mmap(client.directory_fd, L["dir_size"])  # writable
        with self.assertRaises(OSError):
            os.pwrite(client.directory_fd, b"x", 0)
        with self.assertRaises(OSError):
            os.ftruncate(client.directory_fd, 0)

    def test_killed_daemon_leaves_its_mark(self):
        client = self.hello(Stack())
        word = lambda: struct.unpack_from("=I", client.directory, L["dir_mutex"])[0]
        self.assertEqual(word() & 0x3fffffff, self.daemon.pid)
        self.assertEqual(word() & 0x40000000, 0)
        self.stop(signal.SIGKILL)
        self.assertNotEqual(word() & 0x40000000, 0)

    def test_terminated_daemon_leaves_its_mark_and_no_socket(self):
        client = self.hello(Stack())
        self.assertEqual(self.stop(), 0)
        self.assertNotEqual(struct.unpack_from("=I", client.directory, L["dir_mutex"])[0] & 0x40000000, 0)
        self.assertFalse(os.path.exists(self.path))

    def test_bad_hellos_are_refused(self):
        stack = Stack()
        stack.slot(0, os.getpid())
        stack.slot(1, os.getppid())
        ask = lambda **args: Client(self.path).ask(HELLO, **args)[0]
        self.assertEqual(ask(a=0, uuid=stack.id), EINVAL)                             # no memory
        self.assertEqual(ask(a=256, uuid=stack.id, fd=stack.fd), EINVAL)              # no such slot
        self.assertEqual(ask(a=0, uuid=(1, 2), fd=stack.fd), EINVAL)                  # another id
        self.assertEqual(ask(a=1, uuid=stack.id, fd=stack.fd), EPERM)                 # somebody else's slot
        self.assertEqual(ask(a=0, uuid=stack.id, fd=Stack(seals=0).fd), EINVAL)       # could be truncated
        self.assertEqual(ask(a=0, uuid=stack.id, fd=Stack(size=4096).fd), EINVAL)     # too small
        self.assertEqual(ask(a=0, uuid=stack.id, fd=self.daemon_socket_fd()), EINVAL)  # no memory at all
        self.assertEqual(self.stacks(), 0)
        twin = Stack()
        twin.id = stack.id
        struct.pack_into("=QQ", twin.map, L["hdr_id"], *stack.id)
        twin.slot(0, os.getpid())
        first = self.hello(stack)
        self.assertEqual(ask(a=0, uuid=stack.id, fd=twin.fd), EEXIST)                 # other memory, same id
        self.assertEqual(self.stacks(), 1)
        first.sock.close()

    def daemon_socket_fd(self):
        self.keep = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        return self.keep.fileno()

    def test_requests_before_hello_and_unknown_ones(self):
        client = Client(self.path)
        self.assertEqual(client.ask(LISTEN, a=1)[0], ENOTCONN)
        self.assertEqual(client.ask(77)[0], ENOSYS)
        client.send(HELLO, version=9)
        self.assertEqual(client.receive()[2], 93)  # EPROTONOSUPPORT
        with self.assertRaises(EOFError):
            client.receive()
        short = Client(self.path)
        short.sock.send(b"short")
        with self.assertRaises(EOFError):
            short.receive()
        self.assertEqual(self.stacks(), 0)

    def test_what_names_no_stack_is_refused(self):
        """Name or memory that is none; a name is only a name as far as its room goes."""
        client = Client(self.path)
        self.assertEqual(client.ask(NAMED)[0], EINVAL)
        for bad in (Stack(), Stack(seals=0), Stack(size=4096)):
            self.assertEqual(client.ask(NAMED, fd=bad.fd)[0], EINVAL)
        first, second = Stack(), Stack()
        for stack in (first, second):
            stack.map[L["options"]:L["options"] + L["options_size"]] = b"x" * L["options_size"]
            status, _, fd = client.ask(NAMED, fd=stack.fd)
            self.assertEqual((status, os.fstat(fd).st_ino), (0, os.fstat(first.fd).st_ino))
            os.close(fd)
        self.assertEqual(self.stacks(), 0)

    # -- life and death ------------------------------------------------------------------------------------------
    def test_stack_goes_with_its_last_process(self):
        stack = Stack()
        one, two = self.peer(stack, 0), self.peer(stack, 1)
        self.assertEqual(len(self.status()["stacks"][0]["processes"]), 2)
        one.kill()
        self.assertTrue(until(lambda: len(self.status()["stacks"][0]["processes"]) == 1))
        self.assertTrue(until(lambda: stack.slot_state(0) != LIVE))
        self.assertEqual(stack.slot_state(1), LIVE)
        two.kill()
        self.assertTrue(until(lambda: self.stacks() == 0))

    def test_end_of_connection_is_not_death(self):
        stack = Stack()
        peer = self.peer(stack, closes=True)
        time.sleep(0.2)
        self.assertEqual(self.stacks(), 1)
        peer.kill()
        self.assertTrue(until(lambda: self.stacks() == 0))

    def test_silent_child_is_found_when_its_parent_dies(self):
        stack = Stack()
        parent = self.peer(stack)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        stack.slot(1, child)
        parent.kill()
        self.assertTrue(until(lambda: [p["pid"] for s in self.status()["stacks"] for p in s["processes"]] == [child]))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.assertTrue(until(lambda: self.stacks() == 0))

    def test_child_that_takes_its_slot_over_is_watched(self):
        stack = Stack()
        stack.slot(1, os.getpid(), EMBRYO)
        client = self.hello(stack)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        self.assertEqual(len(self.status()["stacks"][0]["processes"]), 1)
        stack.slot(1, child)  # takes over
        self.assertTrue(until(lambda: len(self.status()["stacks"][0]["processes"]) == 2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.assertTrue(until(lambda: stack.slot_state(1) != LIVE))
        client.sock.close()

    def test_embryo_of_a_dead_child_is_reaped(self):
        """Its parent lives, and has written down the child's pid (Adopted, preload/process_calls.cc)."""
        stack = Stack()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        stack.slot(1, child, EMBRYO, start=0)
        client = self.hello(stack)
        self.assertTrue(until(lambda: stack.slot_state(1) != EMBRYO))
        self.assertEqual(self.stacks(), 1)
        client.sock.close()

    def test_embryo_of_a_dead_parent_is_reaped(self):
        stack = Stack()
        parent = self.peer(stack)
        stack.slot(1, parent.pid, EMBRYO)
        parent.kill()
        self.assertTrue(until(lambda: stack.slot_state(1) != EMBRYO))
        self.assertTrue(until(lambda: self.stacks() == 0))

    def test_reused_pid_is_not_the_process(self):
        stack = Stack()
        client = self.hello(stack)
        stack.slot(1, 1, start=12345)  # init did not start then
        stack.slot(2, 0x7ffffff0, start=1)
        self.hello(stack)
        self.assertTrue(until(lambda: stack.slot_state(1) != LIVE and stack.slot_state(2) != LIVE))
        client.sock.close()

    def test_a_stranger_in_a_slot_is_no_process_of_the_stack(self):
        stack = Stack()
        peer = self.peer(stack)
        stack.slot(1, os.getppid(), start=0)  # lives, and has nothing to do with it
        stack.slot(2, os.getppid(), state=EMBRYO)
        peer.kill()
        del stack.map  # or this process would be of the family
        self.assertTrue(until(lambda: self.stacks() == 0), self.log())

    # -- listeners -----------------------------------------------------------------------------------------------
    def listeners(self, client, port):
        """[(stack, ip)] as a client reads it: again when posternd wrote meanwhile."""
        seq = lambda: struct.unpack_from("=Q", client.directory, L["dir_seq"])[0]
        while True:
            before, found = seq(), []
            entry = struct.unpack_from("=I", client.directory, L["dir_heads"] + 4 * port)[0]
            while entry and len(found) < 100:
                at = L["dir_listeners"] + (entry - 1) * L["dl_size"]
                entry, used = struct.unpack_from("=II", client.directory, at)
                ip, bound = struct.unpack_from("=16sH", client.directory, at + L["dl_local"])
                stack = struct.unpack_from("=QQ", client.directory, at + L["dl_stack"])
                found.append((stack, ip, used, bound))
            if before % 2 == 0 and seq() == before:
                break
        self.assertTrue(all((used, bound) == (1, port) for _, _, used, bound in found), found)
        return [(stack, ip) for stack, ip, _, _ in found]

    def listening(self, address="127.0.0.1", family=socket.AF_INET):
        sock = socket.socket(family, socket.SOCK_STREAM)
        self.addCleanup(sock.close)
        sock.bind((address, 0))
        sock.listen(8)
        return sock, sock.getsockname()[1]

    def test_listen_publishes_the_kernels_address(self):
        stack = Stack()
        client = self.hello(stack)
        mapped = bytes(10) + b"\xff\xff"
        for address, family, ip in (("127.0.0.1", socket.AF_INET, mapped + b"\x7f\0\0\1"), ("0.0.0.0", socket.AF_INET, bytes(16)),
                                    ("::1", socket.AF_INET6, bytes(15) + b"\1"), ("::", socket.AF_INET6, bytes(16))):
            sock, port = self.listening(address, family)
            for _ in range(2):  # idempotent
                self.assertEqual(client.ask(LISTEN, a=7, b=3, c=8, fd=sock.fileno())[0], 0, self.log())
                self.assertEqual(self.listeners(client, port), [(stack.id, ip)])
            self.assertEqual(client.ask(UNLISTEN, a=7, b=3)[0], 0)
            self.assertEqual(client.ask(UNLISTEN, a=7, b=3)[0], ENOENT)
            self.assertEqual(self.listeners(client, port), [])

    def test_daemon_keeps_no_copy_of_the_listener(self):
        client = self.hello(Stack())
        sock, port = self.listening()
        self.assertEqual(client.ask(LISTEN, a=7, b=3, fd=sock.fileno())[0], 0)
        sock.close()
        again = socket.socket()
        again.bind(("127.0.0.1", port))
        again.listen()
        again.close()

    def test_what_is_no_tcp_listener_is_refused(self):
        client = self.hello(Stack())
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.bind(f"{self.temp.name}/u")
        unix.listen()
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        for sock in (unix, udp, bound):
            self.assertEqual(client.ask(LISTEN, a=1, fd=sock.fileno())[0], EINVAL)
            sock.close()
        self.assertNotEqual(client.ask(LISTEN, a=1, fd=os.open("/dev/null", os.O_RDONLY))[0], 0)
        self.assertEqual(client.ask(LISTEN, a=1)[0], EINVAL)
        sock, _ = self.listening()
        self.assertEqual(client.ask(LISTEN, a=131072, fd=sock.fileno())[0], EINVAL)
        self.assertEqual(self.status()["listeners"], [])

    def test_several_listeners_on_one_port(self):
        one, two = Stack(), Stack()
        first, second = self.hello(one), self.hello(two)
        a, port = self.listening("127.0.0.1")
        b = socket.socket()
        self.addCleanup(b.close)
        b.bind(("127.0.0.2", port))
        b.listen()
        first.ask(LISTEN, a=1, fd=a.fileno())
        second.ask(LISTEN, a=1, fd=b.fileno())
        self.assertEqual([s for s, _ in self.listeners(first, port)], [one.id, two.id])
        first.ask(UNLISTEN, a=1)
        self.assertEqual([s for s, _ in self.listeners(first, port)], [two.id])

    def test_listeners_go_with_their_holder(self):
        stack, mine = Stack(), Stack()
        watcher = self.hello(mine)
        peer, other = self.peer(stack, 0), self.peer(stack, 1)
        ports = []
        via = Client(self.path)
        stack.slot(2, os.getpid())
        via.ask(HELLO, a=2, uuid=stack.id, fd=stack.fd)
        for ep in (4, 5):
            sock, port = self.listening()
            stack.endpoint(ep, 2)
            self.assertEqual(via.ask(LISTEN, a=ep, b=1, fd=sock.fileno())[0], 0)
            ports.append(port)
        stack.endpoint(4, 0)  # as the reaper leaves it
        peer.kill()
        self.assertTrue(until(lambda: not self.listeners(watcher, ports[0])))
        self.assertTrue(self.listeners(watcher, ports[1]))
        stack.map[L["slots"] + 2 * L["slot_size"]] = 0  # we leave; posternd sees us live on
        other.kill()

    def test_addresses(self):
        client = self.hello(Stack())
        count = struct.unpack_from("=I", client.directory, L["dir_addr_count"])[0]
        addresses = [struct.unpack_from("=16s", client.directory, L["dir_addrs"] + 24 * i)[0] for i in range(count)]
        self.assertIn(bytes(10) + b"\xff\xff\x7f\0\0\1", addresses)

    # -- link groups ---------------------------------------------------------------------------------------------
    def pair(self):
        one, two = Stack(), Stack()
        return one, two, self.hello(one), self.hello(two)

    def test_introduce(self):
        one, two, client, server = self.pair()
        status, idx, fd = client.ask(INTRODUCE, uuid=two.id)
        self.assertEqual((status, idx), (0, 0), self.log())
        self.assertEqual(os.fstat(fd).st_size, L["lgr_bytes"])
        kind, seq, _, a, uuid, pushed = server.receive()
        self.assertEqual((kind, seq, a, uuid), (LGR, 0, 0, one.id))
        self.assertEqual(os.fstat(pushed).st_ino, os.fstat(fd).st_ino)
        self.assertEqual(client.pushed[0][4], two.id)
        self.assertEqual((one.lgr(0), two.lgr(0)), ((1, 0), (1, 1)))
        status, idx, again = client.ask(INTRODUCE, uuid=two.id)
        self.assertEqual(os.fstat(again).st_ino, os.fstat(fd).st_ino)
        status, back, other = server.ask(INTRODUCE, uuid=one.id)  # the other way round: one of its own
        self.assertEqual((status, back), (0, 1))
        self.assertNotEqual(os.fstat(other).st_ino, os.fstat(fd).st_ino)
        status, idx, got = server.ask(GET_LGR, a=0)
        self.assertEqual((status, os.fstat(got).st_ino), (0, os.fstat(fd).st_ino))
        self.assertEqual(server.ask(GET_LGR, a=9)[0], ENOENT)
        self.assertEqual(client.ask(INTRODUCE, uuid=(5, 6))[0], ENOENT)
        self.assertEqual(len(self.status()["link_groups"]), 2)

    def test_introduce_to_oneself(self):
        stack = Stack()
        client = self.hello(stack)
        status, idx, _ = client.ask(INTRODUCE, uuid=stack.id)
        self.assertEqual((status, stack.lgr(0), stack.lgr(1)), (0, (1, 0), (1, 1)))
        self.assertEqual(idx, 0)
        self.assertEqual(sorted(p[3] for p in client.pushed), [0, 1])
        self.assertEqual(client.ask(INTRODUCE, uuid=stack.id)[1], 0)

    def test_one_more_when_all_are_full(self):
        one, two, client, server = self.pair()
        first = client.ask(INTRODUCE, uuid=two.id)
        second = client.ask(INTRODUCE, uuid=two.id, a=1)
        self.assertEqual((second[0], second[1], one.lgr(1), two.lgr(1)), (0, 1, (1, 0), (1, 1)))
        self.assertNotEqual(os.fstat(first[2]).st_ino, os.fstat(second[2]).st_ino)
        self.assertEqual([server.receive()[3] for _ in range(2)], [0, 1])
        one.set_conns(0, L["conns"])
        # A client that has not heard of the second yet gets that one, and so does one that does not say.
        self.assertEqual([client.ask(INTRODUCE, uuid=two.id, a=full)[1] for full in (1, 0)], [1, 1])
        one.set_conns(1, L["conns"])
        for i in range(2, L["pair_lgrs"]):
            self.assertEqual(client.ask(INTRODUCE, uuid=two.id, a=i)[:2], (0, i))
        self.assertEqual(client.ask(INTRODUCE, uuid=two.id, a=L["pair_lgrs"])[0], ENOSPC)
        self.assertEqual(client.ask(INTRODUCE, uuid=two.id, a=1000)[0], ENOSPC)
        self.assertEqual(client.ask(INTRODUCE, uuid=two.id, a=3)[1], 2)  # an empty one
        self.assertEqual(server.ask(INTRODUCE, uuid=one.id)[:2], (0, L["pair_lgrs"]))  # the other way round has its own

    def test_one_more_to_oneself(self):
        stack = Stack()
        client = self.hello(stack)
        for i in range(3):
            self.assertEqual(client.ask(INTRODUCE, uuid=stack.id, a=i)[:2], (0, 2 * i))
        self.assertEqual(client.ask(INTRODUCE, uuid=stack.id, a=2)[0], 0)
        self.assertEqual(len(self.status()["link_groups"]), 3)

    def test_all_of_a_pair_end_with_the_peer(self):
        one, two = Stack(), Stack()
        client, peer = self.hello(one), self.peer(two)
        for i in range(3):
            self.assertEqual(client.ask(INTRODUCE, uuid=two.id, a=i)[:2], (0, i))
        one.set_conns(1, 1)
        peer.kill()
        self.assertTrue(until(lambda: [one.lgr(i)[0] for i in range(3)] == [0, 2, 0]), self.log())
        one.set_conns(1, 0)
        self.assertTrue(until(lambda: self.status()["link_groups"] == []), self.log())

    def test_death_of_the_peer(self):
        one, two = Stack(), Stack()
        client, peer = self.hello(one), self.peer(two)
        self.assertEqual(client.ask(INTRODUCE, uuid=two.id)[0], 0)
        one.set_conns(0, 1)
        peer.kill()
        self.assertTrue(until(lambda: one.lgr(0)[0] == 2), self.log())
        self.assertEqual(client.ask(INTRODUCE, uuid=two.id)[0], ENOENT)
        self.assertEqual(len(self.status()["link_groups"]), 1)
        one.set_conns(0, 0)
        self.assertTrue(until(lambda: one.lgr(0)[0] == 0))
        self.assertEqual(self.status()["link_groups"], [])

    def test_slow_reader_does_not_block(self):
        two = Stack()
        server = self.hello(two)  # never reads
        for _ in range(40):
            one = Stack()
            client = self.hello(one)
            self.assertEqual(client.ask(INTRODUCE, uuid=two.id)[0], 0)
        self.assertEqual(sum(1 for _ in range(40) if server.receive()[0] == LGR), 40)

    # -- restart -------------------------------------------------------------------------------------------------
    def test_everything_comes_back_after_a_restart(self):
        one, two, client, _ = self.pair()
        _, idx, fd = client.ask(INTRODUCE, uuid=two.id)
        one.set_conns(0, 1)
        self.stop(signal.SIGKILL)
        self.start()
        client, server = self.hello(one), self.hello(two)
        for _ in range(2):
            self.assertEqual(client.ask(ADD_LGR, a=idx, fd=fd)[0], 0)
            self.assertEqual(server.ask(ADD_LGR, a=0, fd=fd)[0], 0)
        with mmap.mmap(fd, L["lgr_bytes"]) as memory:
            struct.pack_into("=I", memory, L["conns_hw"], 1)
        link = self.status()["link_groups"]
        self.assertEqual((len(link), link[0]["connections"]), (1, 1))
        self.assertEqual(os.fstat(client.ask(INTRODUCE, uuid=two.id)[2]).st_ino, os.fstat(fd).st_ino)
        self.assertEqual(client.ask(ADD_LGR, a=5, fd=fd)[0], ENOENT)
        self.assertEqual(client.ask(ADD_LGR, a=0, fd=one.fd)[0], EINVAL)

    def test_link_of_another_stack_is_refused(self):
        one, two, client, _ = self.pair()
        _, _, fd = client.ask(INTRODUCE, uuid=two.id)
        thief = Stack()
        other = self.hello(thief)
        at = L["lgrs"]
        thief.map[at:at + L["lgr_size"]] = one.map[at:at + L["lgr_size"]]
        self.assertEqual(other.ask(ADD_LGR, a=0, fd=fd)[0], EPERM)

    def test_a_connection_is_moved_for_who_has_its_socket(self):
        """Another process's number is moved to the kernel only for one that shows the kernel's socket behind it."""
        with socket.socket() as held, socket.socket() as other:
            stack, asker = Stack(), self.hello(Stack())
            stack.endpoint(0, 4)
            victim, _ = self.peer(stack), stack.set_fd(0, held.fileno(), 0)
            ask = lambda fd: asker.ask(EXPORT, a=0xffffffff, b=victim.pid, c=held.fileno(), fd=fd)[0]
            self.assertEqual([ask(None), ask(other.fileno()), ask(stack.fd)], [EPERM] * 3)
            self.assertNotEqual(ask(held.fileno()), EPERM)

    def test_peer_that_never_comes_back(self):
        one, two = Stack(), Stack()
        client, peer = self.hello(one), self.peer(two)
        _, idx, fd = client.ask(INTRODUCE, uuid=two.id)
        one.set_conns(0, 1)
        self.stop(signal.SIGKILL)
        peer.kill()
        self.start()
        client = self.hello(one)
        self.assertEqual(client.ask(ADD_LGR, a=idx, fd=fd)[0], 0)
        time.sleep(2)
        self.assertEqual(one.lgr(0)[0], 1)
        self.assertTrue(until(lambda: one.lgr(0)[0] == 2, 60))

    def test_idle_peer_is_given_all_the_time_it_needs(self):
        one, two, client, _ = self.pair()
        _, idx, fd = client.ask(INTRODUCE, uuid=two.id)
        one.set_conns(0, 1)
        holder = os.fork()
        if holder == 0:
            held = mmap.mmap(fd, L["lgr_bytes"])
            time.sleep(60)
            os._exit(len(held) & 1)
        self.stop(signal.SIGKILL)
        self.start()
        client = self.hello(one)
        self.assertEqual(client.ask(ADD_LGR, a=idx, fd=fd)[0], 0)
        time.sleep(7)
        self.assertEqual(one.lgr(0)[0], 1)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        self.assertTrue(until(lambda: one.lgr(0)[0] == 2, 60))

    # -- the daemon itself ---------------------------------------------------------------------------------------
    def test_second_daemon_leaves_quietly(self):
        for mode in (["--foreground"], []):
            done = subprocess.run([f"{BUILD}/posternd", "--runtime-dir", self.dir, *mode], capture_output=True, timeout=10)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(self.status()["pid"], self.daemon.pid)

    def test_directory_open_to_others_is_refused(self):
        place = f"{self.temp.name}/open"
        os.mkdir(place)
        os.chmod(place, 0o777)
        done = subprocess.run([f"{BUILD}/posternd", "--runtime-dir", place], capture_output=True, timeout=10)
        self.assertEqual(done.returncode, 1)

    def test_leaves_when_idle(self):
        self.stop()
        place = f"{self.temp.name}/idle"
        begun = time.monotonic()
        done = subprocess.run([f"{BUILD}/posternd", "--runtime-dir", place, "--idle-sec", "1", "--foreground"], timeout=20)
        self.assertEqual(done.returncode, 0)
        self.assertGreaterEqual(time.monotonic() - begun, 1)
        self.assertFalse(os.path.exists(f"{place}/posternd.sock"))

    def test_background(self):
        place = f"{self.temp.name}/back"
        done = subprocess.run([f"{BUILD}/posternd", "--runtime-dir", place, "--idle-sec", "0"], capture_output=True, timeout=10)
        self.assertEqual(done.returncode, 0)
        client = Client(f"{place}/posternd.sock")  # it listens by the time that it returns
        with open(f"{place}/posternd.pid", encoding="ascii") as file:
            self.assertEqual(int(file.read()), client.report()["pid"])
        self.assertEqual(client.ask(QUIT)[0], 0)
        client.sock.close()
        self.assertTrue(until(lambda: not os.path.exists(f"{place}/posternd.sock")))

    # -- posternctl ----------------------------------------------------------------------------------------------
    def posternctl(self, *args, code=0):
        done = subprocess.run([f"{BUILD}/posternctl", "--runtime-dir", self.dir, *args], capture_output=True, text=True, timeout=10)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout

    def test_posternctl(self):
        stack = Stack()
        client = self.hello(stack)
        listener, port = self.listening()
        stack.endpoint(3, 2)
        stack.endpoint(4, 5, reason=3)
        client.ask(LISTEN, a=3, b=1, fd=listener.fileno())
        taken = socket.create_connection(("127.0.0.1", port))
        stack.set_fd(0, listener.fileno(), 3)
        stack.set_fd(0, taken.fileno(), 4)
        stack.set_fd(0, 900, 0x0ffffff)  # no such endpoint
        sockets = {s["path"]: s for s in json.loads(self.posternctl("ss", "--json"))["sockets"]}
        self.assertEqual(sorted(sockets), ["kernel", "listen"])
        kernel = sockets["kernel"]
        self.assertEqual((kernel["reason"], kernel["peer"], kernel["state"]), ("not-local", f"127.0.0.1:{port}", "ESTAB"))
        self.assertEqual(json.loads(self.posternctl("ss", "--json", "-p", "1"))["sockets"], [])
        self.assertIn("not-local", self.posternctl("ss"))
        text = self.posternctl("explain", str(os.getpid()))
        self.assertIn("The peer is not on this host", text)
        self.assertIn("is not known", self.posternctl("explain", "1", code=1))
        self.assertIn(f"127.0.0.1:{port}", self.posternctl("status"))
        self.assertEqual(len(json.loads(self.posternctl("status", "--json"))["stacks"]), 1)
        taken.close()

    def test_posternctl_without_daemon(self):
        self.stop()
        self.assertIn("not running", self.posternctl("status"))
        status = json.loads(self.posternctl("status", "--json"))
        self.assertEqual((status["running"], status["stacks"], status["link_groups"]), (False, [], []))
        self.assertEqual(json.loads(self.posternctl("ss", "--json"))["sockets"], [])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = sys.argv.pop(1)
    load_layout()
    unittest.main(warnings="ignore")
