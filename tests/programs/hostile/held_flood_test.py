# held_flood_test.py - a peer that says of all connections there can be that it holds something back, and until when: waits cost no more for it.
# SPDX-License-Identifier: Apache-2.0
#
# usage: held_flood_test.py BUILD_DIR [-v] [TEST...]
# The numbers are those of abi/postern_abi.h: the layout of a link group.

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SERVER = """
import select, socket, sys, time
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(64); print(l.getsockname()[1], flush=True)
s = l.accept()[0]; ep = select.epoll(); ep.register(s, select.EPOLLIN)
for line in sys.stdin:
    if line == "echo\\n": s.sendall(s.recv(100)); continue
    begin = time.process_time()
    for _ in range(300): ep.poll(0)
    print((time.process_time() - begin) / 300 * 1e6, flush=True)
"""
CLIENT = """
import mmap, os, socket, struct, sys, time
CONNS, CONN_OFF, CONN_BYTES, CTL_OFF, HELD_OFF = 4096, 2363392, 320, 64, 56
EVMAP_OFF, EVMAP_BYTES, LEAF_OFF, WAITERS, EVMAP_HELD = 4096, 576, 64, 2048, 2046

def is_link(number):
    try: return "postern-lgr" in os.readlink(f"/proc/self/fd/{number}")
    except OSError: return False

s = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); print("connected", flush=True)
memory = mmap.mmap(os.open("/proc/self/fd/" + next(filter(is_link, os.listdir("/proc/self/fd"))), os.O_RDWR), 4 << 20)
for line in sys.stdin:
    if line == "echo\\n": s.sendall(b"x"); print(s.recv(100).decode(), flush=True); continue
    in_an_hour = struct.pack("=Q", int((time.monotonic() + 3600) * 1e9))
    for conn in range(1, CONNS):
        at = CONN_OFF + conn * CONN_BYTES + CTL_OFF + HELD_OFF
        memory[at:at + 8] = in_an_hour
    at = EVMAP_OFF + (WAITERS + EVMAP_HELD) * EVMAP_BYTES
    memory[at + LEAF_OFF:at + LEAF_OFF + CONNS // 8] = b"\\xff" * (CONNS // 8)
    memory[at:at + 8] = b"\\xff" * 8
    print("done", flush=True)
"""
MOST_USEC = 30  # of CPU; all of them take 100 to 1000


class HeldFlood(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="pstn-held-")
        self.addCleanup(shutil.rmtree, self.dir)

    def start(self, text, *args):
        env = {**os.environ, "POSTERN_RUNTIME_DIR": self.dir}
        process = subprocess.Popen([f"{BUILD}/postern", "/usr/bin/python3", "-c", text, *args], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdin.close(), process.stdout.close()))
        return process

    def ask(self, process, word):
        process.stdin.write(word + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    def test_all_connections(self):
        server = self.start(SERVER)
        client = self.start(CLIENT, server.stdout.readline().strip())
        self.assertEqual(client.stdout.readline().strip(), "connected")
        before = float(self.ask(server, "look"))
        self.assertEqual(self.ask(client, "flood"), "done")
        took = [float(self.ask(server, "look")) for _ in range(3)]
        self.assertLess(min(took), MOST_USEC + before, took)
        server.stdin.write("echo\n")
        server.stdin.flush()
        self.assertEqual(self.ask(client, "echo"), "x")


if __name__ == "__main__":
    BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
