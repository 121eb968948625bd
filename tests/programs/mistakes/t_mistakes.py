# t_mistakes.py - one test for each mistake that others have made (facts/anchors.md, section 4).
# SPDX-License-Identifier: Apache-2.0
#
# The two sides are `mistakes serve NAME` and `mistakes connect NAME`, separate programs, so that in mode `both` they meet over
# the same-host path. What is measured from outside (memory, permissions, the daemon's part) is here.

import contextlib
import os
import platform
import re
import signal
import stat
import subprocess
import time

import posternview
from harness import MODES, Fail, Proc, Skip, check, need, test
from t_xfer import transfer


def sides(ctx, name):
    program, port = ctx.built("mistakes"), ctx.port()
    server = ctx.start("server", [program, "serve", name, port], name="serve")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [program, "connect", name, port], name="connect")
    return server, client, port


def pair(ctx, name, server_ends=True, look=False):
    server, client, port = sides(ctx, name)
    if look:
        ctx.expect_path(port)
        client.go_on()
    try:
        client.wait(40)
    except Fail as error:
        raise Fail(f"{error}; server said: {server.output()[-500:]!r}") from None
    if server_ends:
        server.wait(20)
    else:
        check(server.alive(), f"server ended: {server.output()[-500:]}")


def simple(name, case, root=False, modes=MODES, **kw):
    """Registers a test that is a pair of programs and nothing else."""
    def run(ctx):
        if root and os.getuid() != 0:
            raise Skip("needs root, for a network namespace of its own")
        pair(ctx, case, **kw)
    run.__name__ = name
    test(modes=modes)(run)


simple("mistake_fork_two_producers", "fork_two_producers")
simple("mistake_fork_two_consumers", "fork_two_consumers")
simple("mistake_exec_keeps_state", "exec_keeps_state")
simple("mistake_passed_fd_refused", "passed_fd")
simple("mistake_passed_fd_to_stranger", "passed_fd_to_stranger")
simple("mistake_inherited_by_exec", "inherited_by_exec")
simple("mistake_inherited_by_stranger", "inherited_by_stranger")
simple("mistake_posix_spawn", "posix_spawn")
simple("mistake_clone3", "clone3")


@test()
def mistake_pidfd_spawn(ctx):
    if tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2]) < (2, 39):
        raise Skip("this C library has no pidfd_spawn()")
    pair(ctx, "pidfd_spawn")


simple("mistake_underscore_fork", "_Fork")
simple("mistake_crowd_fork", "crowd_fork")
simple("mistake_crowd_spawn", "crowd_spawn")
simple("mistake_late_images", "late_images")
simple("mistake_exec_beside_send", "exec_beside_send")
simple("mistake_images_without", "images_without", modes=("both",))
simple("mistake_crowd_poll", "crowd_poll")
simple("mistake_crowd_set", "crowd_set")
simple("mistake_clone", "clone")
simple("mistake_unshare_net", "unshare_net", root=True)
simple("mistake_system", "system")
simple("mistake_popen", "popen")
simple("mistake_vfork", "vfork")
simple("mistake_numbers_beyond_1023", "high_numbers")
simple("mistake_set_number_beyond_1023", "high_set")
simple("mistake_small_stack", "small_stack")
simple("mistake_large_environment", "large_environment")
simple("mistake_shells_in_threads", "shells")
simple("mistake_shell_ways", "shell_ways")
simple("mistake_pidfd_getfd", "pidfd_getfd")
simple("mistake_peer_death", "peer_death")
simple("mistake_fork_lock_owner_dies", "fork_lock_owner_dies", server_ends=False)
simple("mistake_accept_not_waiting_for_unaccelerated", "accept_not_waiting")
simple("mistake_nonblocking_connect_accelerated", "nonblocking_connect", look=True)
simple("mistake_nonblock_flag_reread", "nonblock_flag_reread")
simple("mistake_peek_waitall_rcvtimeo", "peek_waitall_timeouts")
simple("mistake_close_range_closefrom_spawn", "close_ways")
simple("mistake_vmsplice_tee_preadv2", "pipes")
simple("mistake_reset_epipe_sigpipe", "reset")
simple("mistake_dup_and_shutdown_missing", "half_close")
simple("mistake_thread_not_cancelled", "cancel")
simple("mistake_both_write_first", "write_first")


@test()
def mistake_mixed_calls_split_stream(ctx):
    """Each message by another call: one stream has to come out, through another call for each read."""
    for chunk, rchunk in ((100, 4096), (4097, 333), (65536, 65536)):
        transfer(ctx, chunk * 500, chunk * 500, write="mix", read="mix", chunk=chunk, rchunk=rchunk, look=chunk == 100)
    transfer(ctx, 3000001, 3000001, write="mix", read="mix", who="single", nonblock=1, wait="epoll-et", chunk=5000)


@test()
def mistake_recvmmsg_sendmmsg(ctx):
    transfer(ctx, 3000001, 3000001, write="sendmmsg", read="recvmmsg", chunk=6000, look=True)
    transfer(ctx, 1000001, 1000001, write="sendmmsg", read="recvmmsg", who="single", nonblock=1, wait="epoll-et", chunk=999)


@test(watchdog_s=90)
def mistake_any_local_address(ctx):
    """Other than 127.0.0.1: all of 127/8, IPv6, mapped IPv4."""
    for addr in ("127.0.0.2", "127.200.1.1", "::1"):
        transfer(ctx, 100001, 100001, addr=addr, look=True)
    transfer(ctx, 100001, 100001, server={"addr": "::"}, client={"addr": "127.0.0.1"}, look=True)


@test(watchdog_s=90)
def mistake_interface_address(ctx):
    """Addresses that are local without being loopback ones: those of an interface made for this test."""
    if os.getuid() != 0:
        raise Skip("needs root to make an interface")
    name = f"pstn{os.getpid() % 100000}"
    kinds = ("dummy", "ifb", "bridge")  # a kernel need not have the first; which one does not matter
    if not any(subprocess.run(["ip", "link", "add", name, "type", kind], capture_output=True, check=False).returncode == 0 for kind in kinds):
        raise Skip(f"this kernel makes no interface of type {', '.join(kinds)}")
    try:
        for family, addr in (("-4", "198.51.100.77/32"), ("-6", "fd00:5051::77/128")):
            nodad = ["nodad"] if family == "-6" else []
            subprocess.run(["ip", family, "addr", "add", addr, "dev", name, *nodad], check=True)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        transfer(ctx, 100001, 100001, addr="198.51.100.77", look=True)
        transfer(ctx, 100001, 100001, addr="fd00:5051::77", look=True)
        transfer(ctx, 100001, 100001, server={"addr": "0.0.0.0"}, client={"addr": "198.51.100.77"}, look=True)
    finally:
        subprocess.run(["ip", "link", "del", name], check=False)


@test()
def mistake_namespace_confusion(ctx):
    """127.0.0.1 of another network namespace is another host: a client there must not reach our server."""
    if os.getuid() != 0:
        raise Skip("needs root to make a network namespace")
    server, client, port = sides(ctx, "echo")
    client.wait()
    inside = f"ip link set lo up && exec {' '.join(ctx.argv('client', [need('curl'), '-s', '-m', '10', '-H', 'x: y', f'http://127.0.0.1:{port}/']))}"
    ctx.run(None, [need("unshare"), "-n", "sh", "-c", inside], expect=7, name="curl-elsewhere")
    check(server.alive(), "server ended")


@test()
def mistake_pid_namespace(ctx):
    """A server in a pid namespace of its own: its death is noticed although its pid says nothing here."""
    if os.getuid() != 0:
        raise Skip("needs root to make a pid namespace")
    program, port = ctx.built("mistakes"), ctx.port()
    server = ctx.start(None, [need("unshare"), "-p", "-f", "--kill-child", *ctx.argv("server", [program, "serve", "many", port])], name="serve")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [program, "connect", "echo", port], name="connect")
    client.wait(40)
    xfer_like = ctx.start("client", [need("curl"), "-sS", "-m", "40", f"http://127.0.0.1:{port}/"], name="curl")
    time.sleep(0.5)
    server.stop(signal.SIGKILL)
    code = xfer_like.wait(40, expect=None)
    check(code in (1, 52, 56), f"curl: exit {code}, expected the end of the connection: {xfer_like.output()}")


def memory_of(pid):
    """Bytes that would be free without this process: its part of all it maps."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return 1024 * int(re.search(r"^Pss:\s+(\d+) kB", file.read(), re.M).group(1))


def wait_output(proc, text, timeout=40.0):
    end = time.monotonic() + timeout
    while text not in proc.output():
        check(proc.alive() and time.monotonic() < end, lambda: f"no '{text}' from {proc.name}: {proc.output()[-500:]}")
        time.sleep(0.02)


@test()
def mistake_memory_per_connection(ctx):
    """500 more connections that have carried 1 KiB each way and are idle: at most 16 KiB each for both processes."""
    server, client, port = sides(ctx, "many")
    wait_output(client, "open 20")
    before = memory_of(server.pid) + memory_of(client.pid)
    client.go_on()
    wait_output(client, "open 520")
    ctx.expect_path(port)
    each = (memory_of(server.pid) + memory_of(client.pid) - before) // 500
    check(each <= 16384, f"{each} bytes for each idle connection")
    client.go_on()
    client.wait()


def shared_writable(pid):
    """{(device, inode): name} of what this process maps shared and writable."""
    found = {}
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        for line in file:
            fields = line.split(None, 5)
            if fields[1][1] == "w" and fields[1][3] == "s" and fields[4] != "0":
                found[(fields[3], fields[4])] = fields[5].strip() if len(fields) > 5 else ""
    return found


@test()
def mistake_shm_permissions(ctx):
    """Nothing in /dev/shm or the runtime directory that others may open, and no memory writable by two pairs that do not talk."""
    before = posternview.shm_files()
    pairs = [sides(ctx, "many") for _ in range(2)]
    for _, client, port in pairs:
        wait_output(client, "open 20")
        ctx.expect_path(port)
    open_to_others = []
    for name in posternview.shm_files() - before:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(name).st_mode & 0o077:
                open_to_others.append(name)
    check(not open_to_others, f"open to other users: {open_to_others}")
    maps = [{**shared_writable(server.pid), **shared_writable(client.pid)} for server, client, _ in pairs]
    common = [maps[0][key] for key in maps[0].keys() & maps[1].keys()]
    check(not common, f"writable by programs that have nothing to do with each other: {common}")
    place = posternview.runtime_dir()
    if ctx.mode != "kernel" and ctx.config.posternctl:
        check(place, "runtime directory not found")
        mode = stat.S_IMODE(os.stat(place).st_mode)
        check(mode & 0o077 == 0, f"{place} has mode {mode:o}")
    for _, client, _ in pairs:
        client.stop(signal.SIGKILL)


@test(modes=("both",))
def mistake_syscall_per_send(ctx):
    """50,000 sends of 64 bytes: no system call for each (a doorbell only for a peer that sleeps)."""
    strace, program, port = need("strace"), ctx.built("mistakes"), ctx.port()
    server = ctx.start("server", [program, "serve", "small_sends", port], name="serve")
    ctx.wait_listening(port, server)
    table = ctx.path("strace")
    ctx.run(None, [strace, "-f", "-c", "-o", table, *ctx.argv("client", [program, "connect", "small_sends", port])])
    server.wait()
    with open(table, encoding="ascii") as file:
        total = int(re.search(r"^100\.00\s.*?(\d+)\s+(?:\d+\s+)?total$", file.read(), re.M).group(1))
    check(total < 25000, f"{total} system calls for 50000 sends")


@test(modes=("both",))
def mistake_daemon_on_the_data_path(ctx):
    """With posternd stopped an open connection goes on: no third party carries data or events."""
    runtime = ctx.path("runtime", "x")[:-2]
    os.chmod(runtime, 0o700)
    os.environ["POSTERN_RUNTIME_DIR"] = runtime  # a daemon of our own: others' programs must not stand still for us
    server, client, port = sides(ctx, "many")
    wait_output(client, "open 20")
    ctx.expect_path(port)
    daemon = posternview.daemon_pid()
    if not ctx.config.posternctl:
        raise Skip("the wrapper was overridden, so there is no posternd to stop")
    check(daemon is not None, "no posternd with a pid file in POSTERN_RUNTIME_DIR")
    program, echo_port = ctx.built("xfer"), ctx.port()
    args = [f"--port={echo_port}", f"--up={2 << 30}", f"--down={64 << 20}", "--chunk=65536"]
    serving = ctx.start("server", [program, "serve", *args], name="xfer-server")
    ctx.wait_listening(echo_port, serving)
    sending = ctx.start("client", [program, "connect", *args], name="xfer-client")
    ctx.expect_path(echo_port)
    os.kill(daemon, signal.SIGSTOP)
    try:
        check(sending.alive(), "the transfer was over before the daemon was stopped")
        end = time.monotonic() + 60
        while "client sent" not in sending.output():
            check(time.monotonic() < end, "the transfer stands still while posternd does")
            time.sleep(0.05)
    finally:
        os.kill(daemon, signal.SIGCONT)
    sending.wait()
    serving.wait()
    client.stop(signal.SIGKILL)
    server.stop(signal.SIGKILL)
    os.kill(daemon, signal.SIGTERM)


@test(modes=("both",), watchdog_s=90)
def mistake_fork_in_question(ctx):
    """A child of fork meets the locks of a thread that its parent has and it has not: the one by which the wire is begun."""
    runtime = ctx.path("runtime", "x")[:-2]
    os.chmod(runtime, 0o700)
    os.environ["POSTERN_RUNTIME_DIR"] = runtime  # a daemon of our own: others' programs must not stand still for us
    program, port = ctx.built("mistakes"), ctx.port()
    server = ctx.start("server", [program, "serve", "fork_in_question", port], name="serve")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [program, "connect", "fork_in_question", port], name="connect", env={"POSTERN_VI": "nosuch0"})
    while "holding\n" not in client.output():
        check(client.alive(), client.output())
        time.sleep(0.01)
    daemon = posternview.daemon_pid()
    os.kill(daemon, signal.SIGSTOP)
    try:
        client.go_on()
        while client.output().count("holding\n") < 2:
            check(client.alive(), client.output())
            time.sleep(0.01)
    finally:
        os.kill(daemon, signal.SIGCONT)
    client.go_on()
    client.wait(30)
    server.wait(20)
    os.kill(daemon, signal.SIGTERM)


# The value that chi-square exceeds in one fair run of two million, by its degrees of freedom.
CHI_SQUARE = {1: 25.3, 2: 29.1, 4: 35.2, 7: 42.8}


def unfair(counts):
    """How far above what is fair the spread of `counts` is: 1 and more is no accident."""
    fair = sum(counts) / len(counts)
    return sum((count - fair) ** 2 / fair for count in counts) / CHI_SQUARE[len(counts) - 1]


def group_counts(server, client):
    client.wait(110)
    server.wait(20)
    return [(line.split()[0], [int(n) for n in line.split()[1:]]) for line in client.output().splitlines() if line.startswith(("one ", "many "))]


@test(watchdog_s=260)
def mistake_reuseport_group(ctx):
    """Listeners that share a port get equal shares, as with the kernel, whose figures are taken in the same run."""
    program, port = ctx.built("mistakes"), ctx.port()
    with_kernel = []
    for name, side in (("serve", "serve"), ("connect", "connect")):
        proc = Proc(ctx, [program, side, "reuseport_group", str(port)], f"kernel-{name}", dict(os.environ), None)
        ctx.procs.append(proc)
        with_kernel.append(proc)
        if name == "serve":
            ctx.wait_listening(port, proc)
    oracle = group_counts(*with_kernel)
    server, client, _ = sides(ctx, "reuseport_group")
    ours = group_counts(server, client)
    check(len(ours) == len(oracle) == 8, f"{ours} {oracle}")
    for (by, counts), (_, kernels) in zip(ours, oracle):
        check(sum(counts) == sum(kernels), f"{counts}: not as many as with the kernel: {kernels}")
        check(unfair(kernels) < 1, f"the kernel itself is unfair, to {by}: {kernels}")
        check(unfair(counts) < 1, f"not fair to {len(counts)} listeners of {by}: {counts}, the kernel: {kernels}")
