# t_ssh.py - OpenSSH over a local address: login by key, bulk data, port forwarding, kill -9 of a session.
# SPDX-License-Identifier: Apache-2.0
#
# sshd executes itself anew for each connection, forks a child that gives up its rights (chroot, user sshd) and, with
# what comes through a forwarded port, is client and server at once. HOME is the test's: what the user's shell does at login must not be seen.

import hashlib
import os
import pwd
import signal
import subprocess

from harness import check, need, test, wait_until
from nginxkit import Nginx, documents
from t_nginx import expect_clean, expect_healthy, load_result

CONF = """
Port {port}
ListenAddress 127.0.0.1
HostKey {dir}/host_key
PidFile none
AuthorizedKeysFile {dir}/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PermitRootLogin yes
AllowTcpForwarding yes
UseDNS no
LogLevel VERBOSE
MaxStartups 50
SetEnv HOME={dir}
"""


class Sshd:
    def __init__(self, ctx):
        self.ctx, self.port, self.program, self.ssh = ctx, ctx.port(), need("sshd"), need("ssh")
        if os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # where it confines its child: it does not start without
        for name in ("host_key", "key"):
            subprocess.run([need("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", ctx.path(name)], check=True)
        conf = ctx.write("sshd_config", CONF.format(port=self.port, dir=ctx.dir))
        self.proc = ctx.start("server", [self.program, "-D", "-e", "-f", conf], name="sshd")
        ctx.wait_listening(self.port, self.proc)
        self.options = ["-F", "none", "-i", ctx.path("key"), "-o", f"UserKnownHostsFile={ctx.path('known_hosts')}", "-o", "StrictHostKeyChecking=accept-new",
                        "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR"]
        self.to = f"{pwd.getpwuid(os.getuid()).pw_name}@127.0.0.1"
        self.argv = [self.ssh, *self.options, "-p", self.port, self.to]

    def run(self, command, **kw):
        return self.ctx.run("client", [*self.argv, command], name="ssh", **kw)

    def start(self, *args, **kw):
        return self.ctx.start("client", [*self.argv, *args], **kw)

    def sessions(self):
        """Pids of the listening sshd's children, one for each connection."""
        with open(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]

    def expect_healthy(self):
        check(self.proc.alive(), lambda: f"sshd ended: {self.proc.output()[-800:]}")


def same(path, data):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest() == hashlib.sha256(data).digest()


@test()
def ssh_login_and_bulk(ctx):
    """Commands with their exit codes, several logins at once, and megabytes there and back."""
    sshd = Sshd(ctx)
    said = sshd.run("echo out; echo err >&2; exit 7", expect=7)
    check(sorted(said.split()) == ["err", "out"], said)
    quiet, hold = os.pipe()  # a session that says nothing, to be looked at
    held = sshd.start("echo going >&2; cat", name="held", stdin=quiet)
    wait_until(lambda: "going" in held.output(), "no session")  # until then a child in a sandbox has the connection, too (sshd-auth)
    ctx.expect_path(sshd.port)
    many = [sshd.start(f"echo {n}; exit {n}", name=f"ssh{n}") for n in range(8 if ctx.fast else 40)]
    for n, ssh in enumerate(many):
        ssh.wait(60, expect=n)
        check(ssh.output() == f"{n}\n", ssh.output())
    data = os.urandom(4 << 20 if ctx.fast else 300 << 20)
    name = ctx.write("data", data)
    with open(name, "rb") as file:
        check(sshd.run("sha256sum", stdin=file).split()[0] == hashlib.sha256(data).hexdigest(), "the other side got other bytes")
    with open(name, "rb") as file:
        back = sshd.start("cat", stdin=file, name="cat")
        back.wait(120)
    check(same(back.log, data), "what went through cat came back with other bytes")
    os.close(hold)
    held.wait()
    sshd.expect_healthy()


@test()
def ssh_forwarding(ctx):
    """HTTP through a forwarded port in both directions (-L, -R), under load, and one connection through -W."""
    sshd = Sshd(ctx)
    nginx = Nginx(ctx, docs=documents(ctx))
    there, back = ctx.port(), ctx.port()
    tunnel = sshd.start("-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{there}:127.0.0.1:{nginx.port}", "-R",
                        f"127.0.0.1:{back}:127.0.0.1:{nginx.port}", name="tunnel")
    ctx.wait_listening(there, tunnel)
    ctx.wait_listening(back, tunnel)
    clients = [ctx.script("client", "http_load.py", f"--port={port}", f"--docs={nginx.docs}", "--threads=3", "--close=0.2",
                          f"--seconds={1.5 if ctx.fast else 20}") for port in (there, back)]
    for client in clients:
        client.wait()
        expect_clean(load_result(client))
    request = ctx.write("request", "GET /f300001 HTTP/1.0\r\n\r\n")
    with open(request, "rb") as stdin:
        straight = ctx.start("client", [*sshd.argv[:-1], "-W", f"127.0.0.1:{nginx.port}", sshd.to], name="ssh-W", stdin=stdin)
        straight.wait()
    with open(straight.log, "rb") as got, open(os.path.join(nginx.docs, "f300001"), "rb") as want:
        check(got.read().split(b"\r\n\r\n", 1)[1] == want.read(), "what came through -W differs")
    tunnel.stop(expect=0)
    sshd.expect_healthy()
    expect_healthy(nginx)


@test()
def ssh_kill_session(ctx):
    """kill -9 of what serves a session ends that one at once, with the status that the kernel gives it, and no other."""
    sshd = Sshd(ctx)
    for _ in range(2 if ctx.fast else 20):
        wait_until(lambda: not sshd.sessions(), "the last session stays")  # a login's process ends after the login's ssh
        quiet, hold = os.pipe()
        held = sshd.start("cat", name="held", stdin=quiet)
        wait_until(lambda: len(sshd.sessions()) == 1, "no session")
        first = set(sshd.sessions())
        with open("/dev/zero", "rb") as zeros:
            bulk = sshd.start("echo going >&2; cat > /dev/null", stdin=zeros, name="bulk")
            wait_until(lambda: "going" in bulk.output(), lambda: f"no bulk session: {bulk.output()}")
        (victim,) = set(sshd.sessions()) - first
        os.kill(victim, signal.SIGKILL)
        bulk.wait(30, expect=255)
        check(held.alive(), "the other session ended")
        os.close(hold)
        held.wait()
        check(sshd.run("echo again") == "again\n", "no login after the kill")
    sshd.expect_healthy()
