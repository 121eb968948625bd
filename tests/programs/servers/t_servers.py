# t_servers.py - the distribution's servers and their clients: on both sides, on one, and under systemd's restrictions.
# SPDX-License-Identifier: Apache-2.0
#
# The tables are s_*.py, by what the servers are for. `./run servers` installs the packages and runs these tests.

import importlib
import os
import pwd
import socket
import subprocess

import serverkit
from harness import Skip, check, test
from serverkit import ACCELERATED
from surroundings import nobody, posternd_of_its_own

TABLES = ("s_web", "s_relays", "s_files", "s_mail", "s_names", "s_data", "s_inetd", "s_runtimes")
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)


def judge_path(server, mode, path):
    """What the record says of the path is what is seen: one that is lost is a failure, and so is a page that is out of date."""
    if mode == "both":
        check((path == ACCELERATED) == (server.path == ACCELERATED), f"connections are '{path}', expected: '{server.path}'")
    else:
        check(path != ACCELERATED, "accelerated, though one side is not under postern")
    return path


def plain(server):
    def run(ctx):
        serverkit.installed(server)
        serverkit.adopt_orphans()
        look = bool(ctx.config.posternctl) and ctx.mode != "kernel"
        if not look:
            serverkit.over_kernel(ctx, server, "plain")
            return server.style
        os.chmod(ctx.dir, 0o755)
        with posternd_of_its_own(ctx):
            want = serverkit.over_kernel(ctx, server, "plain")
            got, path = serverkit.run(ctx, server, "ours", look)
            serverkit.compare(want, got)
        return f"{server.style}: {judge_path(server, ctx.mode, path)}"
    run.__name__ = f"server_{server.name}"
    test(watchdog_s=400)(run)


CHROOT = 161


def restrictions(ctx, server, user):
    """What Debian's units have: a file system that can't be written to but for the service's own, a /tmp of its own, no more rights by
    exec, few families of sockets, @system-service, a limit of descriptors, its user from the start."""
    also = [*server.also, CHROOT] if user == "0:0" else server.also
    kept = [path for path in (ctx.dir, ctx.config.build, serverkit.HERE) if path.startswith("/tmp/")]
    options = [f"--private-tmp={','.join(kept)}", "--read-only=/usr", "--read-only=/etc", "--limit=nofile:4096:4096",
               f"--families={','.join(str(int(family)) for family in FAMILIES)}", "--system-service=" + ",".join(map(str, also))]
    return [*options, f"--user={user}"]


def ids(server):
    """Of the user that its unit would start it as."""
    if server.confined == "root":
        return 0, 0
    if server.owner:
        account = pwd.getpwnam(server.owner)
        return account.pw_uid, account.pw_gid
    user = nobody()
    return user, user


def under_restrictions(server):
    def run(ctx):
        serverkit.installed(server)
        if server.confined not in ("user", "root"):
            raise Skip(server.confined)
        if os.uname().machine != "x86_64":
            raise Skip("the numbers are those of x86-64")
        serverkit.adopt_orphans()
        os.chmod(ctx.dir, 0o755)
        uid, gid = ids(server)
        with posternd_of_its_own(ctx, running=False) as runtime:
            os.chown(runtime, uid, gid)
            server_as = [ctx.built("confine"), *restrictions(ctx, server, f"{uid}:{gid}"), "--"]
            client_as = [ctx.built("confine"), f"--user={uid}:{gid}", "--"]
            if subprocess.run([*server_as, "test", "-x", ctx.config.wrapper[0]], check=False).returncode:
                raise Skip("another user may not run what was built, or there is no such confinement here")
            subprocess.run([*client_as, *ctx.config.wrapper, "-o", "daemon.idle_sec=30", "true"], check=True, timeout=30,
                           stdin=subprocess.DEVNULL)
            as_user = {"server": server_as, "client": client_as}
            ctx.argv = lambda side, argv: [*as_user[side], *(ctx.config.wrapper if ctx.wrapped(side) else []), *argv]
            want = serverkit.over_kernel(ctx, server, "confined", uid)
            got, path = serverkit.run(ctx, server, "ours", bool(ctx.config.posternctl), uid)
            serverkit.compare(want, got)
        return f"{'another user' if uid else 'root'}, restricted: {judge_path(server, ctx.mode, path)}"
    run.__name__ = f"server_{server.name}_restricted"
    test(modes=("both",), watchdog_s=400)(run)


for table in TABLES:
    for record in importlib.import_module(table).SERVERS:
        plain(record)
        under_restrictions(record)
