# wire_long_test.py - nginx on an interface, by AF_XDP and by DPDK, under load for a minute: no error, every byte right, and the kernel's TCP has no part in it.
# SPDX-License-Identifier: Apache-2.0
#
# usage: wire_long_test.py BUILD_DIR [-v]; exit 77 without root, namespaces, AF_XDP, nginx, wrk or curl. WIRE_SECONDS=N for another time than 60.

import hashlib
import os
import random
import re
import shutil
import signal
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import soft_test
import wire_test
import wirekit
from netlab import V4

SECONDS = int(os.environ.get("WIRE_SECONDS", "60"))
GIB_PIECES = 16  # of 64 MiB
ETH_P_ALL, SOL_PACKET, PACKET_STATISTICS = 3, 263, 6


def tool(name):
    return shutil.which(name, path=wirekit.PATH + ":/usr/local/bin")


class UnderLoad:
    """What both kinds of VI have to do."""

    def write_gib(self, path):
        sha = hashlib.sha256()
        with open(path, "wb") as file:
            for n in range(GIB_PIECES):
                piece = random.Random(n).randbytes(64 << 20)
                sha.update(piece)
                file.write(piece)
        return sha.hexdigest()

    def seen_on(self, side):
        """Packets that a capture on that interface shows from now on (AF_PACKET, as tcpdump)."""
        with self.lab.inside(side):
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.addCleanup(tap.close)
        tap.bind((f"v{side}", ETH_P_ALL))
        return lambda: struct.unpack("II", tap.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[0]

    def test_nginx(self):
        nginx, curl, wrk = map(tool, ("nginx", "curl", "wrk"))
        os.chmod(self.temp.name, 0o755)
        os.mkdir(f"{self.temp.name}/docs")
        wanted = self.write_gib(f"{self.temp.name}/docs/gib")
        with open(f"{self.temp.name}/docs/small", "wb") as file:
            file.write(random.Random(1).randbytes(1024))
        with open(f"{self.temp.name}/nginx.conf", "w", encoding="ascii") as file:
            file.write(wire_test.NGINX.format(dir=self.temp.name, port=self.port))
        self.start_daemon("b")
        self.start("b", [f"{self.build}/postern", "-o", "vi=vb", nginx, "-c", f"{self.temp.name}/nginx.conf"])
        self.until(self.listening, lambda: f"nginx does not listen: {self.log('b')}")
        before, packets = self.lab.segments("b"), self.seen_on("a")
        url = f"http://{V4['b']}:{self.port}"
        load = self.start("a", [wrk, "-t", "1", "-c", "200", "-d", str(SECONDS), f"{url}/small"], stdout=-1)
        with load.stdout:
            got = []
            while load.poll() is None and len(got) < 1000:  # beside the load, again and again
                got.append(self.run_in("a", ["sh", "-c", f"{curl} -sS {url}/gib | sha256sum"], seconds=SECONDS + 120).decode().split()[0])
            said, _ = load.communicate(timeout=SECONDS + 60)
        said = said.decode()
        requests = int(re.search(r"(\d+) requests in", said)[1])
        print(f"{requests} requests in {SECONDS} s, 1 GiB {len(got)} times, {packets()} packets seen", flush=True)
        self.assertEqual(set(got), {wanted}, "other bytes")
        self.assertNotIn("Socket errors", said)
        self.assertNotIn("Non-2xx", said)
        self.assertGreater(requests, 1000)
        self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")


class XskTest(UnderLoad, wirekit.WireTest):
    pass


class SoftTest(soft_test.SoftWire, UnderLoad, wirekit.WireTest):
    """By DPDK's net_af_packet, in a process of its own."""

    def setUp(self):
        if not os.path.exists(f"{self.build}/postern-softnic"):
            self.skipTest("postern-softnic was not built: no libdpdk")
        super().setUp()


if __name__ == "__main__":
    if missing := [name for name in ("nginx", "curl", "wrk") if not tool(name)]:
        print(f"skipped: no {' and no '.join(missing)}")
        sys.exit(77)
    signal.alarm(SECONDS * 8 + 600)
    wirekit.main(wire_test.missing)
