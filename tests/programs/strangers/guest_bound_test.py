# guest_bound_test.py - servers that root starts, that bind, become another user, and only then listen: they stay accelerated.
# SPDX-License-Identifier: Apache-2.0
#
# usage: guest_bound_test.py BUILD_DIR [-v] [TEST...]; exit 77: not root.
# Each test has a daemon of its own.

import os
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "daemon"))
import guest_test
from broker_test import copied
from daemon_test import load_layout
from guest_test import NOBODY, Actor, Guest


class Bound(Guest):
    def bound(self):
        """A server whose socket is bound, with two children that have become another user since."""
        server = Actor(self)
        server.do("s = socket.socket()", "s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50000)", "s.bind(('127.0.0.1', 0))")
        port = server.number("s.getsockname()[1]")
        for name in ("helper", "a"):
            server.do(f"fork('{name}')", f"{name}: become()")
        return server, port

    def expect_served(self, server, who, port, uid, count=5):
        server.tell(f"{who}serve(s, {count})")
        self.served(Actor(self), port, count, uid)
        self.assertEqual(server.hear(), f"{count}")

    def test_one_of_them_listens(self):
        """As varnish's, whose manager binds, has helpers compile as another user, and a child listen that is one."""
        server, port = self.bound()
        server.do("a: s.listen(64)")
        self.listed(NOBODY)
        self.assertEqual(server.ask("a: s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)"), "100000")
        self.expect_served(server, "a: ", port, NOBODY)
        self.assertEqual((self.counted(NOBODY, "accepts"), self.counted(NOBODY, "kernel_accepts")), (5, 0))

    def test_all_of_their_user_can_accept(self):
        server, port = self.bound()
        server.do("a: s.listen(64)")
        self.expect_served(server, "a: ", port, NOBODY)
        self.expect_served(server, "helper: ", port, NOBODY)
        server.do("helper: s.listen(32)")
        self.expect_served(server, "a: ", port, NOBODY)
        self.assertEqual((self.counted(NOBODY, "accepts"), self.counted(NOBODY, "kernel_accepts")), (15, 0))

    def test_the_one_that_has_bound_accepts(self):
        """The socket listens, whichever process has made it. Its clients are the kernel's there."""
        server, port = self.bound()
        server.do("a: s.listen(64)")
        self.expect_served(server, "a: ", port, NOBODY)
        server.do("a: s.close()", "helper: s.close()")
        self.expect_served(server, "", port, 0)

    def test_the_one_that_has_bound_listens(self):
        """Nothing of the socket has changed there."""
        server, port = self.bound()
        server.do("s.listen(64)")
        self.expect_served(server, "", port, 0)
        self.assertEqual((self.counted(0, "accepts"), self.counted(0, "kernel_accepts")), (5, 0))


def load_tests(_loader, _tests, _pattern):
    return unittest.TestSuite(Bound(name) for name in vars(Bound) if name.startswith("test_"))


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
