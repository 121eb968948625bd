# soft_test.py - TCP of unmodified programs over a card that postern-softnic drives by DPDK (posternd --vi soft:...).
# SPDX-License-Identifier: Apache-2.0
#
# usage: soft_test.py BUILD_DIR [-v] [TEST...]; exit 77 without root, namespaces, or where postern-softnic was not built.
#
#     namespace a, kernel    va ====== vb    namespace n: no address; postern-softnic has vb by DPDK
#                                                |
#                                   namespace b: vb, its TAP, with the addresses; posternd and the programs
#
# The tests of wire_test.py that have the server in b are run as they are. Then come those of the driver: which programs it may serve
# at once, what becomes of the connections when it dies, and the other DPDK drivers that need no hardware.

import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kit"))
import netlab
import wire_test
import wirekit
from netlab import MAC, V4, V6
from wirekit import EXCHANGE, exchange

SIOCETHTOOL, ETHTOOL_STSO, ETHTOOL_SGSO = 0x8946, 0x1f, 0x24
EAL = ["--no-huge", "-m", "128", "--no-shconf", "--no-telemetry", "--no-pci"]
DEVICES = {
    "af_packet": ["--vdev=net_af_packet0,iface=vb"],
    "af_xdp": ["--vdev=net_af_xdp0,iface=vb"],
    "tap": ["--vdev=net_tap0,iface=va"],
    # The other side of a virtio-user port is a vhost: here that of a second driver, whose TAP is a's.
    "virtio_user": ["--single-file-segments", "--vdev=net_virtio_user0,path={vhost},queue_size=1024"],
}
VHOST = ["--vdev=net_vhost0,iface={vhost}"]


class Wire(wirekit.Pair):
    """Namespaces a, b and n; the pair va and vb between a and n, if there is to be one."""

    def __init__(self, device):  # pylint: disable=super-init-not-called
        self.fds = {"lab": os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)}
        for name in "abn":
            netlab.call("unshare", netlab.CLONE_NEWNET)
            self.fds[name] = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            self.ip("link", "set", "dev", "lo", "up")
        netlab.call("setns", self.fds["lab"], netlab.CLONE_NEWNET)
        self.at = "a" if device == "tap" else "n"  # where the driver runs; a tap is made by it
        if device in ("af_packet", "af_xdp"):
            self.sysctl("n", "net/ipv6/conf/all/disable_ipv6", 1)
            with self.inside("n"):
                self.ip("link", "add", "vb", "address", MAC["b"], "type", "veth", "peer", "name", "va", "address", MAC["a"], "netns",
                        self.path("a"))
                self.whole_segments("vb")
                self.ip("link", "set", "dev", "vb", "up")
            self.address("a")

    def path(self, name):
        return f"/proc/{os.getpid()}/fd/{self.fds[name]}"

    def address(self, side):
        with self.inside(side):
            if side == "a":  # a tap that DPDK makes has the address of the card at its other end
                self.whole_segments("va")
                self.ip("link", "set", "dev", "va", "address", MAC["a"])
            self.ip("addr", "add", f"{V4[side]}/24", "dev", f"v{side}")
            self.ip("addr", "add", f"{V6[side]}/64", "dev", f"v{side}", "nodad")
            self.ip("link", "set", "dev", f"v{side}", "up")

    @staticmethod
    def whole_segments(name):
        """What goes over a wire is no larger than its MTU: veth's is none, and would hand on what TSO was to cut up."""
        for command in (ETHTOOL_STSO, ETHTOOL_SGSO):
            ethtool_off(name, command)


def ethtool_off(name, command):
    value = bytearray(struct.pack("II", command, 0))
    request = bytearray(40)
    address = (netlab.ctypes.c_char * len(value)).from_buffer(value)
    struct.pack_into("16sP", request, 0, name.encode(), netlab.ctypes.addressof(address))
    with socket.socket() as sock:
        try:
            fcntl.ioctl(sock, SIOCETHTOOL, request)
        except OSError as error:
            raise netlab.Unavailable(f"ethtool's {command:#x} of {name}: {error.strerror}") from error


class SoftWire:
    """What a test case has more than those of wirekit."""

    device = "af_packet"
    driver = None
    vhost = None  # the driver at the other end

    def new_lab(self):
        return Wire(self.device)

    def setUp(self):
        self.addressed = False
        super().setUp()

    def tearDown(self):
        try:
            super().tearDown()
        finally:
            self.stop_driver(signal.SIGTERM)
            if self.vhost is not None:
                self.vhost.kill()
                self.vhost.wait()

    def start_daemon(self, side, vi="soft:vb"):
        if self.driver is None:
            self.start_driver()
        super().start_daemon(side, vi)

    def command(self, interface, netns, arguments):
        return [f"{self.build}/postern-softnic", "--interface", interface, "--netns", self.lab.path(netns), "--", *EAL,
                *(word.format(vhost=f"{self.temp.name}/vhost") for word in arguments)]

    def run_driver(self, interface, netns, arguments):
        """A driver, when it is ready; Unavailable if it ends."""
        log = f"{self.temp.name}/{interface}-driver.log"
        command = self.command(interface, netns, arguments)
        with self.lab.inside(self.lab.at), open(log, "ab") as file:
            before = file.tell()
            driver = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                                      env={"PATH": wirekit.PATH, "HOME": self.temp.name})

        def ready():
            with open(log, "rb") as file:
                file.seek(before)
                said = file.read().decode(errors="replace")
            if driver.poll() is not None:
                raise netlab.Unavailable(next((line for line in said.splitlines() if line.startswith(os.path.basename(command[0]))),
                                              said[-300:]))
            return "is ready" in said

        self.until(ready, "the driver is not ready")
        return driver

    def start_driver(self):
        if self.device == "virtio_user" and self.vhost is None:
            self.vhost = self.run_driver("va", "a", VHOST)
        self.driver = self.run_driver("vb", "b", DEVICES[self.device])
        if not self.addressed:
            self.lab.address("b")
            if self.device in ("tap", "virtio_user"):
                self.lab.address("a")
        self.addressed = True

    def stop_driver(self, how=signal.SIGKILL):
        if self.driver is not None:
            driver, self.driver = self.driver, None
            driver.send_signal(how)
            driver.wait(20)

    def attached(self, side="b"):
        """Whether the driver has a VI."""
        if self.driver is None:
            return False
        with open(f"/proc/{self.driver.pid}/maps", encoding="ascii") as file:
            return "memfd:postern-vi" in file.read()


class ServerTest(SoftWire, wire_test.ServerTest):
    """All of wire_test.py's with the server over the VI, but two."""

    test_taken = None  # nobody finds it taken: test_several_stacks
    test_cookies_at_listen = None  # what the kernel has answered with a SYN cookie can't be told from here (docs/vi.md)

    def test_nginx(self):
        """With 200 connections, as the driver has more to do than a queue of AF_XDP."""
        nginx, wrk = (shutil.which(name, path=wirekit.PATH + ":/usr/local/bin") for name in ("nginx", "wrk"))
        super().test_nginx()
        if not nginx or not wrk:
            self.skipTest("no nginx or wrk")
        before = self.lab.segments("b")
        url = f"http://{V4['b']}:{self.port}"
        said = self.run_in("a", [wrk, "-t", "1", "-c", "200", "-d", "5", f"{url}/small"]).decode()
        self.assertNotIn("Socket errors", said)
        self.assertNotIn("Non-2xx", said)
        self.assertGreater(int(re.search(r"(\d+) requests in", said)[1]), 200)
        self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")


class DriverTest(SoftWire, wirekit.WireTest):
    def setUp(self):
        super().setUp()
        self.start_daemon("b")

    def test_client(self):
        server = self.plain("a")
        self.echo_server(server)
        client = self.program("b")
        client.do(EXCHANGE)
        before = self.lab.opens("b")
        for size in wire_test.SIZES:
            client.do("""
with socket.create_connection((HOST, PORT), timeout=20) as sock:
    exchange(sock, random.Random(SIZE).randbytes(SIZE))
""", HOST=V4["a"], PORT=self.port, SIZE=size)
        self.assertEqual(self.lab.opens("b"), before, "the kernel's TCP had a part in it")

    capabilities = ("NET_ADMIN", "NET_RAW", "IPC_LOCK")  # that it keeps

    def test_rights(self):
        """What strangers write is read by a process that has given up the rest (controlplane/confine/driver.h)."""
        numbers = {"NET_ADMIN": 12, "NET_RAW": 13, "IPC_LOCK": 14, "BPF": 39}
        with open(f"/proc/{self.driver.pid}/status", encoding="utf-8", errors="replace") as file:
            status = dict(re.findall(r"^(\w+):\s*(.*)$", file.read(), re.M))
        kept = sum(1 << numbers[name] for name in self.capabilities)
        self.assertEqual([int(status[kind], 16) for kind in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd")], [kept, kept, 0, 0, 0])
        self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))

    def test_several_stacks(self):
        """Each program has a VI of its own; the kernel serves the clients that it has always served."""
        servers = [self.program() for _ in range(3)]
        kernels = self.plain("b")
        for server in servers:
            self.port += 1
            self.echo_server(server)
        before = self.lab.segments("b")
        for _ in servers:
            with self.connected() as sock:
                exchange(sock, wire_test.content(1 << 20))
            self.port -= 1
        self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")
        self.echo_server(kernels)
        with self.connected() as sock:
            exchange(sock, wire_test.content(1 << 20))
        self.assertNotEqual(self.lab.segments("b"), before)
        # One ends: the others go on, and its port is refused by the kernel.
        servers[0].kill()
        self.port += 2
        with self.connected() as sock:
            exchange(sock, wire_test.content(100000))
        self.port -= 1
        # Until posternd has seen its death, the stack's keeper answers in its name, and resets what it has begun.
        end = time.monotonic() + 10
        while True:
            try:
                self.connected().close()
            except ConnectionRefusedError:
                break
            except ConnectionResetError:
                pass
            self.assertLess(time.monotonic(), end, "a dead program's port is not refused")

    def test_kernels_connection_stays_the_kernels(self):
        """Made before the port had a filter; the listener's successor has one."""
        kernels = self.plain("b")
        kernels.do("""
listener = socket.create_server((HOST, PORT), reuse_port=True)
def serve():
    sock, _ = listener.accept()
    while data := sock.recv(65536):
        sock.sendall(data)
threading.Thread(target=serve, daemon=True).start()
""", HOST="0.0.0.0", PORT=self.port)
        with self.connected() as old:
            old.sendall(b"a")
            self.assertEqual(old.recv(9), b"a")
            kernels.do("listener.close()")
            server = self.program()
            self.echo_server(server)
            self.until(self.attached, "no VI")
            with self.connected() as new:
                exchange(new, wire_test.content(100000))
                old.sendall(b"b")
                self.assertEqual(old.recv(9), b"b")

    def test_through_the_broker(self):
        """A posternd that may not ask the broker, which may."""
        self.stop_daemon("b", signal.SIGTERM)
        self.start_broker("b", "soft:vb")
        self.start_daemon("b", vi="off")
        server = self.program()
        self.echo_server(server)
        before = self.lab.segments("b")
        with self.connected() as sock:
            exchange(sock, wire_test.content(1 << 20))
        self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")

    def test_driver_killed(self):
        """As a card that is reset: what was under way is sent again, new connections wait."""
        server = self.program()
        self.echo_server(server)
        before = self.lab.opens("b")
        with self.connected() as sock:
            exchange(sock, b"a" * 1000, end=False)
            self.stop_driver()
            sock.sendall(b"b")  # on its way to nobody
            self.start_driver()
            self.assertEqual(sock.recv(9), b"b")
            exchange(sock, wire_test.content(1 << 20))
        with self.connected() as sock:
            exchange(sock, wire_test.content(1 << 20))
        for _ in range(3):
            with self.connected() as sock:
                exchange(sock, b"a" * 1000, end=False)
                self.stop_driver()
                self.start_driver()
                exchange(sock, wire_test.content(300000))
        self.assertEqual(self.lab.opens("b"), before, "the kernel's TCP had a part in it")

    def test_driver_killed_under_load(self):
        """Bytes of streams that are never idle when the driver dies."""
        server = self.program()
        self.echo_server(server)
        socks = [self.connected() for _ in range(4)]
        data = wire_test.content(64 << 20)
        errors = []

        def stream(sock):
            try:
                exchange(sock, data)
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)

        threads = [wirekit.threading.Thread(target=stream, args=(sock,)) for sock in socks]
        for thread in threads:
            thread.start()
        for _ in range(2):
            self.stop_driver()
            self.assertTrue(any(thread.is_alive() for thread in threads), "all was over before")
            self.start_driver()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])

    def test_posternd_and_driver_killed(self):
        """One after the other: the new posternd has from the living driver what the next driver wants to know."""
        server = self.program()
        self.echo_server(server)
        with self.connected() as sock:
            exchange(sock, b"a" * 1000, end=False)
            self.stop_daemon("b")
            exchange(sock, b"b" * 1000, end=False)
            self.start_daemon("b")
            self.until(lambda: "hello from pid" in self.log("b").rsplit("ready in", maxsplit=1)[1], "nobody has come back")
            # Whether the VI was adopted shows when the next one is told of it.
            with self.connected() as new:
                exchange(new, b"c" * 1000)
            wirekit.time.sleep(2)
            self.stop_driver()
            self.start_driver()
            exchange(sock, wire_test.content(300000))
            with self.connected() as new:
                exchange(new, wire_test.content(300000))

    def test_driver_and_posternd_are_gone(self):
        """Nobody brings the VI back: connections end by their own timers, the keeper does not spin on a bell without an end."""
        server = self.program()
        self.echo_server(server)
        with self.connected() as sock:
            exchange(sock, b"a" * 1000, end=False)
            self.until(lambda: len(self.keepers()) == 1, "no keeper")
            keeper = self.keepers()[0]
            self.stop_daemon("b")
            self.stop_driver()

            def used():
                with open(f"/proc/{keeper}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rsplit(")", maxsplit=1)[1].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

            wirekit.time.sleep(0.5)
            before = used()
            wirekit.time.sleep(2)
            self.assertLess(used() - before, 1, "the keeper spins")

    def test_kernel_through_the_tap(self):
        """What no filter takes is the kernel's both ways: neighbour discovery, and TCP and UDP of programs that are not ours."""
        plain = self.plain("b")
        for family in wire_test.FAMILIES:
            self.port += 1
            self.echo_server(plain, family=family)
            with self.connected(family=family) as sock:
                exchange(sock, wire_test.content(1 << 20))
        plain.do("u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind((HOST, PORT))", HOST=V4["b"], PORT=self.port)
        plain.tell("d, a = u.recvfrom(2000); u.sendto(d, a); result = len(d)")
        sock = self.lab.socket("a", socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(sock.close)
        sock.sendto(b"x" * 1400, (V4["b"], self.port))
        self.assertEqual(sock.recv(2000), b"x" * 1400)
        self.assertEqual(plain.read("recvfrom"), 1400)


class DeviceTest(SoftWire, wirekit.WireTest):
    """The other DPDK drivers that need no hardware."""

    def echo(self, device):
        self.device = device
        self.tearDown()
        self.setUp()
        try:
            self.start_daemon("b")
        except netlab.Unavailable as reason:
            self.skipTest(f"net_{device}: {reason}")
        server = self.program()
        for family in wire_test.FAMILIES:
            self.port += 1
            self.echo_server(server, family=family)
            before = self.lab.segments("b")
            for size in wire_test.SIZES:
                with self.connected(family=family) as sock:
                    exchange(sock, wire_test.content(size))
            self.assertEqual(self.lab.segments("b"), before, "the kernel's TCP had a part in it")

    def test_tap(self):
        self.echo("tap")

    def test_af_xdp(self):
        self.echo("af_xdp")

    def test_virtio_user(self):
        self.echo("virtio_user")


def missing(build, program="postern-softnic", probe=DriverTest):
    """Why nothing can be tested here, or None."""
    if not os.path.exists(f"{build}/{program}"):
        return f"{program} was not built: its library is missing"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    wirekit.WireTest.build = build
    test = probe("test_client")
    try:
        test.setUp()
    except netlab.Unavailable as reason:
        return reason
    test.tearDown()
    return None


if __name__ == "__main__":
    wirekit.main(missing)
