# stuck_bell_test.py - another user's message to the doorbell of a server, with a socket whose last close takes an hour: the server goes on.
# SPDX-License-Identifier: Apache-2.0
#
# usage: stuck_bell_test.py BUILD_DIR [-v] [TEST...]
# Root runs it. Exit 77: not root. Linux 6.16 refuses such a message to its sender; as an older kernel, it is played by a seccomp filter.

import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

for room in ("daemon", "kit"):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", room))
import netlab
from broker_test import copied
from stuck_close_test import Lingers, send_with
from trespass_test import A, B, become

BUILD = "build"
SO_PASSRIGHTS = 83
PATIENCE_S = 20
SERVER = """
import selectors, socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); print(s.getsockname()[1], flush=True)
watch = selectors.EpollSelector(); watch.register(s, selectors.EVENT_READ)
while True:
    for key, _ in watch.select():
        if key.fileobj is s: watch.register(s.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(100): key.fileobj.sendall(data)
"""
CLIENT = """
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20)
for line in sys.stdin: c.sendall(line.encode()); print(c.recv(100).decode(), end="", flush=True)
"""


def old_kernel():
    """setsockopt(SO_PASSRIGHTS) fails as where there is none."""
    number, argument, errno = 54, SO_PASSRIGHTS, 92
    code = [(0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 32), (0x15, 0, 1, argument), (0x06, 0, 0, 0x50000 | errno), (0x06, 0, 0, 0x7fff0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
    filter_ = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, filter_, 0, 0) != 0:
        os._exit(77)


class Bell(unittest.TestCase):
    old = False

    def setUp(self):
        netlab.call("unshare", netlab.CLONE_NEWNET)  # its bells are the only ones there
        subprocess.run(["ip", "link", "set", "dev", "lo", "up"], check=True)
        self.runtime = tempfile.mkdtemp(prefix="pstn-bell-")
        self.addCleanup(shutil.rmtree, self.runtime)
        os.chown(self.runtime, A, A)
        self.server = self.program(SERVER)
        port = self.server.stdout.readline().strip()
        self.client = self.program(CLIENT, port)
        self.ping()

    def program(self, text, *args):
        env = dict(os.environ, POSTERN_RUNTIME_DIR=self.runtime)
        program = subprocess.Popen([f"{BUILD}/postern", "--strict", "/usr/bin/python3", "-c", text, *args], env=env, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=self.begin)
        self.addCleanup(lambda: (program.kill(), program.wait(), program.stdin.close(), program.stdout.close()))
        return program

    def begin(self):
        become(A)
        if self.old:
            old_kernel()

    def ping(self):
        self.client.stdin.write("ping\n")
        self.client.stdin.flush()
        self.assertEqual(self.client.stdout.readline(), "ping\n", "the server does not answer")

    @staticmethod
    def names():
        with open("/proc/net/unix", encoding="utf-8") as file:
            return {line.split()[-1] for line in file if "@postern/" in line}

    def test_a_message_with_a_socket(self):
        lingers = Lingers()
        until = time.monotonic() + PATIENCE_S
        while not (names := self.names()):  # the server sleeps, so it has a bell
            self.assertLess(time.monotonic(), until, "the server has no bell")
            time.sleep(0.02)
        os.kill(self.server.pid, signal.SIGSTOP)  # so that the last close is its own, which the sender can only hope for
        try:
            for name in names:
                sock = lingers.make()
                child = os.fork()
                if child == 0:
                    become(B)
                    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                    try:
                        line.connect(b"\0" + name[1:].encode())
                        send_with(line, b"!", [sock])
                    except OSError:
                        os._exit(1)  # refused
                    os._exit(0)
                if os.waitpid(child, 0)[1] != 0:  # the last close is ours, then
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
                os.close(sock.detach())  # what is on its way is the only one left
        finally:
            os.kill(self.server.pid, signal.SIGCONT)
        self.ping()


@unittest.skipIf(os.uname().machine != "x86_64", "the filter has this machine's number of the call")
class OldKernelsBell(Bell):
    old = True


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: root makes other users")
        sys.exit(77)
    signal.alarm(100)
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        BUILD = copied(os.path.abspath(sys.argv.pop(1)), directory)
        ended = unittest.main(exit=False)
    sys.exit(not ended.result.wasSuccessful())
