# t_environments.py - programs under limits and sandboxes, with small stacks, and with children of vfork(): as on Linux.
# SPDX-License-Identifier: Apache-2.0
#
# What a program prints over the kernel, in the same surroundings and without Postern, is what it has to print: nothing else stands in
# its output, such as a complaint of the loader. Whether its connections are accelerated is another matter.

import contextlib
import os
import subprocess

import posternview
from harness import PYTHON, Fail, Skip, check, need, test, wait_until
from surroundings import confined, nobody, posternd_of_its_own

HERE = os.path.dirname(os.path.abspath(__file__))
SIDES = ("both", "server", "client")
# Of x86-64: what the library may ask the kernel for and the program does not.
CALLS = {"memfd_create": 319, "ftruncate": 77, "prlimit64": 302, "getrandom": 318, "mremap": 25, "madvise": 28, "pwrite64": 18,
         "getdents64": 217, "kcmp": 312, "pidfd_open": 434, "membarrier": 324, "getresuid": 118, "prctl": 157, "close_range": 436,
         "newfstatat": 262, "readlinkat": 267, "fstatfs": 138, "sendmsg": 46, "recvmsg": 47, "getppid": 110, "nanosleep": 35, "tgkill": 234}


def may_run(ctx):
    if subprocess.run([*ctx.as_user, "test", "-x", ctx.built("xfer")], check=False).returncode:
        raise Skip("another user may not run what was built")


def pair(ctx, program, server, client):
    """What both have printed. In the order in which a server listens and its client comes."""
    port = ctx.port()
    serving = ctx.start("server", [program, "serve", *(f"{a}".replace("PORT", str(port)) for a in server)], name="serve")
    ctx.wait_listening(port, serving)
    connecting = ctx.start("client", [program, "connect", *(f"{a}".replace("PORT", str(port)) for a in client)], name="connect")
    for proc in (connecting, serving):
        proc.wait(60, expect=None)
    return [f"{proc.output()}exit {proc.popen.returncode}" for proc in (serving, connecting)]


def as_on_kernel(ctx, program, server, client):
    """The same pair twice: over the kernel, then as the mode has it."""
    wrapper, ctx.config.wrapper = ctx.config.wrapper, []
    want = pair(ctx, program, server, client)
    ctx.config.wrapper = wrapper
    got = pair(ctx, program, server, client)
    for side, wanted, seen in zip(("server", "client"), want, got):
        check(wanted == seen, f"the {side} has printed\n{seen}\nin place of\n{wanted}")
    return want


def transfer(ctx):
    size = 3_000_000
    sides = as_on_kernel(ctx, ctx.built("xfer"), ["--port=PORT", f"--up={size}", f"--down={size}", "--who=single", "--nonblock=1", "--wait=epoll-lt"],
                         ["--port=PORT", f"--up={size}", f"--down={size}", "--who=single", "--nonblock=1", "--wait=poll"])
    for text in sides:
        check(text.endswith("exit 0") and str(size) in text, f"over the kernel: {text}")


def under(*options, running=True):
    def run(ctx):
        with posternd_of_its_own(ctx, running):
            confined(ctx, options)
            transfer(ctx)
            ctx.as_user = []
    return run


def environment(name, *options, running=True, watchdog_s=60.0):
    run = under(*options, running=running)
    run.__name__ = f"environment_{name}"
    test(modes=SIDES, watchdog_s=watchdog_s)(run)


environment("no_unix", "--deny-unix")
environment("no_unix_alone", "--deny-unix", running=False)
environment("fsize", "--limit=fsize:1000000:1000000")
environment("fsize_soft", "--limit=fsize:1000000:inf")
environment("fsize_alone", "--limit=fsize:1000000:1000000", running=False)
environment("fsize_soft_alone", "--limit=fsize:2000000:inf", running=False)
environment("as", "--limit=as:300000000:300000000")
environment("as_soft_alone", "--limit=as:300000000:inf", running=False)
environment("nofile", "--plain", "--limit=nofile:16:16")
environment("nofile_alone", "--plain", "--limit=nofile:16:16", running=False)
environment("memlock", "--plain", "--limit=memlock:0:0")
environment("no_proc", "--hide=/proc")
environment("no_proc_alone", "--hide=/proc", running=False)
environment("no_shm", "--hide=/dev/shm")
environment("landlock", "--landlock")


@test(modes=SIDES)
def environment_few_descriptors(ctx):
    """With 0 to 3 numbers left, of a limit that may not be raised, each call says what the kernel says; and when it is over all are there."""
    with posternd_of_its_own(ctx):
        for options, lefts in (([], ("0", "1", "2", "3", "8", "lower")), (["--plain"], ("0", "3", "lower")),
                               (["--plain", "--limit=nofile:512:512"], ("=0", "=1", "=2", "=3", "=40"))):
            confined(ctx, options)
            for left in lefts:
                as_on_kernel(ctx, ctx.built("narrow"), ["PORT", left], ["PORT", left])
        ctx.as_user = []


def lowers(ctx, how):
    script, port = os.path.join(HERE, "lowered.py"), ctx.port()
    server = ctx.start("server", [PYTHON, script, "serve", port, how], name="serve")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [PYTHON, script, "connect", port, how], name="connect")
    client.wait(50)
    server.wait(20)
    check(client.output() == "each byte right\n" and server.output() == "served\n", f"{client.output()}\n{server.output()}")


@test()
def environment_as_lowered(ctx):
    """Processes that limit their address space to so little that they leave their stack with their connections, and take most of the rest."""
    lowers(ctx, "as")


@test()
def environment_as_256(ctx):
    """The same with the 256 MiB that Debian's dovecot gives each process: they stay accelerated, and have what they ask for."""
    lowers(ctx, "as256")


LIMITED = """
import os, resource, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if os.fork() == 0:
    with open("/proc/self/statm", encoding="ascii") as file:
        little = int(file.read().split()[0]) * resource.getpagesize() + (60 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (little, little))
    os._exit(0)
os.wait()
print("limited", flush=True)
sys.stdin.read()
"""


@test(modes=("server",))
def environment_as_is_said(ctx):
    """A process that steps aside for its limits is not said to have become another user."""
    quiet, hold = os.pipe()
    with posternd_of_its_own(ctx) as runtime:
        proc = ctx.start("server", [PYTHON, "-c", LIMITED, ctx.port()], name="limited", stdin=quiet)
        wait_until(lambda: "limited" in proc.output(), lambda: f"not limited: {proc.output()}")
        stacks = posternview.status(ctx.config.posternctl)["stacks"] if ctx.config.posternctl else []
        os.close(hold)
        proc.wait(20)
        with open(f"{runtime}/posternd.log", encoding="utf-8") as log:
            check("another user" not in log.read(), "posternd says that it has become another user")
        for stack in stacks:
            check("limits" in stack["fallbacks"] and "security" not in stack["fallbacks"], stack["fallbacks"])


SERVICE = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
client = socket.create_connection(listener.getsockname())
client.sendall(b"each byte")
print(listener.accept()[0].recv(100), flush=True)
sys.stdin.read()
"""


@test(modes=("both",))
def environment_service(ctx):
    """A program that systemd confines has its posternd started below the same filter, which ends what makes another call."""
    quiet, hold = os.pipe()
    port = ctx.port()
    with posternd_of_its_own(ctx, running=False):
        confined(ctx, ["--system-service"])
        proc = ctx.start("server", [PYTHON, "-c", SERVICE, port], name="service", stdin=quiet)
        wait_until(lambda: "each byte" in proc.output(), lambda: f"no bytes: {proc.output()}")
        ctx.expect_path(port)
        os.close(hold)
        proc.wait(20)
        check(proc.output() == "b'each byte'\n", proc.output())
        ctx.as_user = []


def roomy(ctx, what, *args, side="server"):
    script = os.path.join(HERE, "roomy.py")
    return ctx.start(side, [PYTHON, script, what, *args], name=what)


def come(ctx, port, count):
    """Clients, of which each holds a connection that has carried its data."""
    for client in [roomy(ctx, "connect", port, side="client") for _ in range(count)]:
        wait_until(lambda c=client: c.output() == "each byte right\n" or not c.alive(), lambda c=client: c.output(), 40)
        check(client.output() == "each byte right\n", client.output())


def served_within(ctx, limit):
    port = ctx.port()
    confined(ctx, [f"--limit=as:{limit}:{limit}"])
    server = roomy(ctx, "serve", port)
    ctx.wait_listening(port, server)
    come(ctx, port, 8)
    ctx.expect_path(port)
    for _ in range(3):
        roomy(ctx, "finish", port, side="client").wait(30)
    server.wait(30)
    check(server.output() == "served\n", server.output())
    ctx.as_user = []


@test()
def environment_as_roomy(ctx):
    """With 1 GiB of address space to spare programs are accelerated: workers that were forked before any client came, and each client."""
    served_within(ctx, 1200000000)


@test()
def environment_as_roomy_256(ctx):
    """The same with 256 MiB in all, of which the program takes 120 MiB at its end: what the kernel would give it, it gets."""
    served_within(ctx, 256 << 20)


@test()
def environment_as_filled(ctx):
    """Processes of 256 MiB that take all that their limit leaves, to the last page: their connections are served on, and new ones are."""
    with posternd_of_its_own(ctx):
        port = ctx.port()
        confined(ctx, ["--limit=as:268435456:268435456"])
        server = ctx.start("server", [ctx.built("filled"), "serve", port], name="serve")
        ctx.wait_listening(port, server)
        client = ctx.start("client", [ctx.built("filled"), "connect", port], name="connect")
        ctx.as_user = []
        wait_until(lambda: "filled" in client.output() or not client.alive(), lambda: client.output(), 40)
        ctx.expect_path(port)
        client.wait(50)
        server.wait(20)
        check(client.output() == "filled\neach byte right\n" and server.output() == "served after its limit\n",
              f"{client.output()}\n{server.output()}")


@test(modes=("both",))
def environment_as_short(ctx):
    """A server that runs out of address space has as many connections as it has room for, and then the kernel's, which say why."""
    with posternd_of_its_own(ctx):
        port = ctx.port()
        confined(ctx, ["--limit=as:900000000:900000000"])
        server = roomy(ctx, "serve", port, 300 << 20)
        ctx.as_user = []
        ctx.wait_listening(port, server)
        for _ in range(16):
            come(ctx, port, 1)
        paths = {}
        for conn in posternview.connections_of(posternview.sockets(ctx.config.posternctl), port):
            if conn["peer"].endswith(f":{port}"):
                paths[conn["path"], conn["reason"]] = paths.get((conn["path"], conn["reason"]), 0) + 1
        fast = sum(n for (path, _), n in paths.items() if path in posternview.ACCELERATED)
        slow = sum(n for (path, reason), n in paths.items() if path not in posternview.ACCELERATED and reason == "no-memory")
        check(fast >= 4 and slow >= 2 and fast + slow == 16, paths)
        roomy(ctx, "finish", port, side="client").wait(30)
        server.wait(30)
        check(server.output() == "served\n", server.output())


@test()
def environment_landlock_later(ctx):
    """Processes that have connections when they confine themselves by Landlock."""
    if os.uname().machine != "x86_64":
        raise Skip("the numbers are those of x86-64")
    confined(ctx, ["--landlock"])  # whether there is such a thing
    ctx.as_user = []
    lowers(ctx, "landlock")


@test(modes=SIDES, watchdog_s=120)
def environment_denied_calls(ctx):
    """A filter from the start, each with one more call that is denied."""
    if os.uname().machine != "x86_64":
        raise Skip("the numbers are those of x86-64")
    needed = []
    with posternd_of_its_own(ctx):
        for name, number in CALLS.items():
            try:
                confined(ctx, [f"--deny={number}"])
                transfer(ctx)
            except Skip:
                needed.append(name)
            except Fail as error:
                raise Fail(f"without {name}: {error}") from None
        check(len(needed) < len(CALLS) / 2, f"the loader or libc needs {needed}")
        ctx.as_user = []


@test(modes=SIDES)
def environment_nowhere_to_run(ctx):
    """No runtime directory can be made: /tmp is read-only, and the environment names no other."""
    user = nobody()
    os.chmod(ctx.dir, 0o711)
    confined(ctx, ["--unset=XDG_RUNTIME_DIR", "--unset=POSTERN_RUNTIME_DIR", "--read-only=/tmp", f"--user={user}"])
    may_run(ctx)
    transfer(ctx)


@test(modes=SIDES)
def environment_noexec(ctx):
    """The loader may not map the library."""
    if not ctx.config.wrapper:
        raise Skip("an overridden wrapper")
    with posternd_of_its_own(ctx):
        confined(ctx, [f"--noexec={ctx.config.build}/libpostern.so"])
        transfer(ctx)
        ctx.as_user = []


@test(modes=SIDES)
def environment_nproc(ctx):
    """No process more may be made, so that there is no posternd."""
    if os.geteuid() != 0:
        raise Skip("root makes another user, for whom few processes are many")
    with posternd_of_its_own(ctx, running=False) as runtime:
        user = nobody()
        os.chown(runtime, user, user)
        os.chmod(ctx.dir, 0o711)
        confined(ctx, ["--plain", "--limit=nproc:2:2", f"--user={user}"])
        may_run(ctx)
        transfer(ctx)
        ctx.as_user = []


@test(modes=SIDES)
def environment_memory(ctx):
    """A control group with little memory."""
    base = next((p for p in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup") if os.path.exists(p + "/cgroup.procs")), None)
    group = f"{base}/pstn-{os.getpid()}"
    try:
        os.mkdir(group)
    except (OSError, TypeError) as error:
        raise Skip(f"no control group can be made: {error}") from None
    try:
        limit = next((f for f in ("memory.max", "memory.limit_in_bytes") if os.path.exists(f"{group}/{f}")), None)
        if limit is None:
            raise Skip("control groups without a limit of memory")
        with open(f"{group}/{limit}", "w", encoding="ascii") as file:
            file.write(str(12 << 20))
        with posternd_of_its_own(ctx):
            confined(ctx, [f"--cgroup={group}"])
            transfer(ctx)
            ctx.as_user = []
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(group)


@test(modes=("both",))
def environment_32_bits(ctx):
    """A program for which there is no library, as the command and as its child."""
    program = os.path.join(ctx.config.build, "tests/programs/program32")
    if not os.path.exists(program) or subprocess.run([program], capture_output=True, check=False).returncode:
        raise Skip("no programs of 32 bits here (Debian: libc6-i386)")
    for argv in ([program], ["sh", "-c", f"{program}; exit 0"], ["env", program]):
        said = ctx.run("server", argv)
        check(said == "32 bits\n", said)


@test(modes=("both",))
def environment_musl(ctx):
    """The same for a program of another C library."""
    compiler = need("musl-gcc")
    source, program = ctx.write("hello.c", "#include <stdio.h>\nint main(void) { puts(\"musl\"); }\n"), ctx.path("hello")
    subprocess.run([compiler, "-o", program, source], check=True, timeout=60)
    for argv in ([program], ["sh", "-c", f"{program}; exit 0"], ["env", program]):
        said = ctx.run("server", argv)
        check(said == "musl\n", said)


@test(modes=("both", "server"))
def vfork_plain(ctx):
    """Without sockets: the parent waits, and sees what the child has written."""
    if ctx.config.sanitizer:
        raise Skip("vfork is fork there: a sanitizer has to see two processes")
    for _ in range(2):
        said = ctx.run("server", [ctx.built("vforks"), "plain"])
        check(said == "as on Linux\n", said)


@test()
def vfork_sockets(ctx):
    """With connections, of which children and their images have some."""
    if ctx.config.sanitizer:
        raise Skip("vfork is fork there: a sanitizer has to see two processes")
    port = ctx.port()
    server = ctx.start("server", [ctx.built("vforks"), "serve", port, ctx.built("vforks_static")], name="serve")
    ctx.wait_listening(port, server)
    client = ctx.start("client", [ctx.built("vforks"), "connect", port], name="connect")
    ctx.expect_path(port)
    client.go_on()
    client.wait(60)
    server.wait(60)
    check(client.output() == "holding\neach byte right\n" and server.output() == "as on Linux\n", f"{client.output()}\n{server.output()}")


@test(modes=("both", "kernel"))
def small_stacks(ctx):
    """Threads with 16 and 64 KiB of stack make each call, in each way of making a child."""
    for size in (16384, 65536):
        said = ctx.run("server", [ctx.built("stacks"), ctx.port(), size])
        check(said == "done\n", said)


@test(modes=("both",))
def stack_depth(ctx):
    """No call takes 4 KiB more of its caller's stack than over the kernel."""
    program, most = ctx.built("stacks"), 4096
    if ctx.config.sanitizer:
        raise Skip("a sanitizer's frames are larger")

    def depths(text):
        return {name: int(depth) for name, depth in (line.split(": ") for line in text.splitlines() if ": " in line)}
    plain = depths(subprocess.run([program, str(ctx.port()), "depth"], capture_output=True, text=True, timeout=60, check=True).stdout)
    ours = depths(ctx.run("server", [program, ctx.port(), "depth"]))
    check(plain.keys() == ours.keys() and plain, f"{plain} {ours}")
    deep = {name: ours[name] - depth for name, depth in plain.items() if ours[name] > depth + most}
    check(not deep, f"bytes more than over the kernel: {deep}")
