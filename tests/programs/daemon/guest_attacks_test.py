# guest_attacks_test.py - a guest that holds locks of the kernel's which root's daemon would take, one that makes stacks without end, and what it calls itself.
# SPDX-License-Identifier: Apache-2.0
#
# usage: guest_attacks_test.py BUILD_DIR [-v] [TEST...]; exit 77: not root.
# Each test has a daemon of its own.

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import guest_test
from broker_test import copied
from daemon_test import L, load_layout
from guest_test import GUEST, HELLO, NOBODY, Actor, Trespass
from stuck_close_test import SilentFuse

INTRODUCE, WRITE = 4, 1
GUESTS_MOST = 32  # stacks of one user
OTHER = 60004
# What it may do with locks of the kernel's: a page of a file whose system never answers.
STICK = r"""
import threading
CALL = ctypes.CDLL(None).syscall
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its own files in /proc are its own
MAP = ctypes.CDLL(None).mmap; MAP.restype = ctypes.c_void_p; MAP.argtypes = [ctypes.c_void_p] + [ctypes.c_long] * 5
PAGE = MAP(None, 4096, 3, 2, os.open(FILE, os.O_RDWR), 0)
def stick(number, *args):
    tids = []
    def call():
        tids.append(threading.get_native_id())
        CALL(*[ctypes.c_long(a) for a in (number, *args)])
    threading.Thread(target=call, daemon=True).start()
    while True:
        time.sleep(0.05)
        if tids and open("/proc/self/task/%d/syscall" % tids[0]).read().split()[0] == str(number): return
"""


def ticket(key, uuid, uid):
    """As posternd makes it: SipHash-2-4."""
    mask = (1 << 64) - 1

    def turn(x, n):
        return (x << n | x >> (64 - n)) & mask

    k = struct.unpack("=QQ", key)
    v = [k[i % 2] ^ int.from_bytes(text, "big") for i, text in enumerate((b"somepseu", b"dorandom", b"lygenera", b"tedbytes"))]

    def rounds(n):
        for _ in range(n):
            v[0] = (v[0] + v[1]) & mask
            v[2] = (v[2] + v[3]) & mask
            v[1], v[3] = turn(v[1], 13) ^ v[0], turn(v[3], 16) ^ v[2]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[1]) & mask
            v[0] = (v[0] + v[3]) & mask
            v[1], v[3] = turn(v[1], 17) ^ v[2], turn(v[3], 21) ^ v[0]
            v[2] = turn(v[2], 32)

    for word in (*uuid, uid, 24 << 56):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xff
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


class Attacks(Trespass):
    def sticks(self, server):
        """The guest's file, and what ends it."""
        try:
            fuse = SilentFuse(f"{self.top}/fuse")
        except OSError as error:
            self.skipTest(f"no FUSE: {error}")
        self.addCleanup(fuse.end)
        script = f"{self.top}/stick.py"
        with open(script, "w", encoding="ascii") as file:
            file.write(f"FILE = {fuse.at + '/f'!r}\n" + STICK)
        server.do(f"a: exec(open({script!r}).read(), globals())")

    def root_is_served(self, server):
        server.do("k = listener()")
        port = server.number("k.getsockname()[1]")
        server.tell("serve(k, 3)")
        self.served(Actor(self), port, 3, 0)
        self.assertEqual(server.hear(), "3")
        self.assertEqual(self.counted(0, "kernel_accepts"), 0)

    def test_memory_whose_lock_is_held(self):
        """By write() from a page that never comes: pwrite() would wait for it."""
        server = self.guest()
        self.sticks(server)
        self.own_slot(server)
        root = self.stacks(0)[0]["id"]
        server.do(f"a: l = line(); r = say(l, {HELLO}, fd=m, a=SLOT, uuid=me, cookie=word(m, {L['ticket']}))")
        self.assertEqual(server.ask("a: r"), "0")
        server.do("a: os.lseek(m, os.fstat(m).st_size - 4096, 0) and None", f"a: stick({WRITE}, m, PAGE, 4096)")
        server.tell(f"a: say(l, {INTRODUCE}, uuid=({int(root[:16], 16)}, {int(root[16:], 16)}))")
        self.assertNotIn(server.hear(), ("0", "cut off"))
        self.root_is_served(server)

    def test_a_name_that_is_a_command_to_the_terminal(self):
        """Of the guest's process, which root looks at with posternctl."""
        server = self.guest()
        self.assertEqual(server.ask(r"a: ctypes.CDLL(None).prctl(15, b'\x1b[2J\xc2\x9b5nX', 0, 0, 0)"), "0")
        for what in (("status",), ("ss",), ("explain", server.ask("a: os.getpid()"))):
            said = subprocess.run([f"{guest_test.TOOLS}/posternctl", "--runtime-dir", self.runtime, *what], check=True, capture_output=True).stdout
            self.assertIn(b"X", said, f"{what}: it does not name the process")
            self.assertEqual([byte for byte in said if byte in b"\x1b\x9b\x07"], [], said)

    def test_stacks_without_end(self):
        """One for each network namespace that it makes itself: so many, and no more, and others have theirs."""
        server = self.guest()
        master = server.number("os.getpid()")
        root = next(stack["id"] for stack in self.stacks(0) if master in [process["pid"] for process in stack["processes"]])
        uuid = int(root[:16], 16), int(root[16:], 16)
        server.do("fork('b')", "b: q = socket.socket()", "b: LIBC = ctypes.CDLL(None)", "b: stack = own_stack()",
                  # setresgid() and setresuid() past every libc: it does not leave root's family.
                  "b: import mmap; code = mmap.mmap(-1, 4096, prot=7); code.write(b'\\xb8\\x77\\0\\0\\0\\x0f\\x05\\xc3\\xb8\\x75\\0\\0\\0\\x0f\\x05\\xc3')",
                  "b: at = ctypes.addressof(ctypes.c_char.from_buffer(code)); call = ctypes.CFUNCTYPE(*[ctypes.c_long] * 4)",
                  f"b: [call(at + off)(*[{NOBODY}] * 3) for off in (0, 8)] and None",
                  "b: n = os.memfd_create('x', 3); os.ftruncate(n, os.fstat(stack).st_size); os.pwrite(n, os.pread(stack, 1 << 16, 0), 0)",
                  "b: import fcntl; fcntl.fcntl(n, 1033, 6)", "b: l = line(); kept = []")
        another = r"LIBC.unshare(0x10000000 * (not kept) | 0x40000000); kept.append(os.open('/proc/self/ns/net', 0))"
        server.do(f'b: exec("def more():\\n  {another}\\n  return say(l, {GUEST}, fd=n, uuid={uuid})", globals())')
        said = json.loads(server.ask(f"b: [more() for _ in range({GUESTS_MOST + 20})]"))
        self.assertGreater(said.count(0), 1, f"it gets none: this test is about something else: {said}")
        self.assertLessEqual(said.count(0), GUESTS_MOST)
        server.do("fork('c')", f"c: become({OTHER})", "c: k = listener()")
        self.until(lambda: self.stacks(OTHER), "another user gets none")


    def test_stacks_of_before(self):
        """With tickets that it has kept: no more than it may ask for. What it has is heard of all the same."""
        server = self.guest()
        self.own_slot(server)
        with open(f"{self.runtime}/posternd.guests", "rb") as file:
            key = file.read(16)
        uuids = [(7, i) for i in range(1, GUESTS_MOST + 20)]
        script = f"{self.top}/bring.py"
        with open(script, "w", encoding="ascii") as file:
            file.write("import fcntl, mmap\nlines, maps = [], []\ndef bring(uuid, cookie):\n"
                       "  n = os.memfd_create('x', 3); os.ftruncate(n, os.fstat(m).st_size); os.pwrite(n, os.pread(m, 1 << 20, 0), 0)\n"
                       f"  os.pwrite(n, struct.pack('=QQ', *uuid), {L['hdr_id']}); fcntl.fcntl(n, 1033, 6); maps.append(mmap.mmap(n, 4096))\n"
                       f"  lines.append(line()); return say(lines[-1], {HELLO}, fd=n, a=SLOT, uuid=uuid, cookie=cookie)\n")
        server.do(f"a: exec(open({script!r}).read(), globals())")
        self.assertEqual(self.stacks(NOBODY).__len__(), 1)
        own = json.loads(server.ask("a: list(me)"))
        self.assertEqual(int(server.ask(f"a: word(m, {L['ticket']})")), ticket(key, own, NOBODY))
        said = [server.ask(f"a: bring({uuid}, {ticket(key, uuid, NOBODY)})") for uuid in uuids]
        self.assertEqual(said.count("0"), GUESTS_MOST - 1, said)
        self.assertEqual(said[:3], ["0"] * 3)
        self.assertEqual(len(self.stacks(NOBODY)), GUESTS_MOST)
        server.do(f"a: l = line(); r = say(l, {HELLO}, fd=m, a=SLOT, uuid=me, cookie=word(m, {L['ticket']}))")
        self.assertEqual(server.ask("a: r"), "0")


def load_tests(_loader, _tests, _pattern):
    return unittest.TestSuite(Attacks(name) for name in vars(Attacks) if name.startswith("test_"))


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: root makes other users")
        sys.exit(77)
    signal.alarm(200)
    load_layout()
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        guest_test.TOOLS = os.path.abspath(sys.argv.pop(1))
        guest_test.BUILD = copied(guest_test.TOOLS, directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
