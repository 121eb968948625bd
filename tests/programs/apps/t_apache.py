# t_apache.py - Apache as Debian runs it: root starts it, its children are www-data, and answer.
# SPDX-License-Identifier: Apache-2.0

import os
import shutil
import signal
import time

from harness import Skip, check, need, test, wait_until
from nginxkit import documents
from t_nginx import expect_clean, load, load_result

MODULES = "/usr/lib/apache2/modules"
CONF = """
ServerRoot {dir}
PidFile {dir}/apache.pid
ErrorLog {dir}/error.log
LogLevel warn
ServerName localhost
User www-data
Group www-data
Mutex file:{dir} default
LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so
LoadModule authz_core_module {modules}/mod_authz_core.so
StartServers 2
KeepAlive On
MaxKeepAliveRequests 0
Listen 127.0.0.1:{port}
DocumentRoot {docs}
<Directory {docs}>
  Require all granted
</Directory>
"""


class Apache:
    def __init__(self, ctx, mpm):
        if os.getuid() != 0:
            raise Skip("only root's Apache has children of another user")
        self.dir, self.port, self.docs = ctx.path("apache", "x")[:-2], ctx.port(), documents(ctx)
        os.chmod(ctx.dir, 0o755)
        shutil.chown(self.dir, "www-data")
        self.conf = ctx.write("apache/apache.conf", CONF.format(dir=self.dir, port=self.port, docs=self.docs, mpm=mpm, modules=MODULES))
        self.proc = ctx.start("server", [need("apache2"), "-DFOREGROUND", "-f", self.conf], name="apache")
        ctx.wait_listening(self.port, self.proc)

    def children(self):
        with open(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]

    def errors(self):
        with open(os.path.join(self.dir, "error.log"), encoding="utf-8", errors="replace") as file:
            return [line for line in file if any(f":{level}]" in line for level in ("emerg", "alert", "crit"))]


def uid_of(pid):
    """-1: it has just ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Uid:"))
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        return -1


def served(ctx, mpm):
    apache = Apache(ctx, mpm)
    wait_until(lambda: len(apache.children()) >= 2 and all(uid_of(pid) > 0 for pid in apache.children()), "no children, or one is root")
    client = load(ctx, apache, 1.5, threads=4, close=0.2)
    if ctx.mode == "both":  # connections come and go: nginx_keep_alive looks at those of mixed modes
        ctx.expect_path(apache.port)
    client.wait()
    expect_clean(load_result(client))
    check(apache.proc.alive() and not apache.errors(), lambda: f"Apache complains: {apache.errors()[:3]}")
    return apache


@test(tier="long")  # its end left a stack in posternd, 2 times of 15 under load: not understood yet
def apache_prefork(ctx):
    """A process for each connection."""
    served(ctx, "prefork")


@test(tier="long")  # its end left a stack in posternd, 2 times of 15 under load: not understood yet
def apache_event(ctx):
    """Threads, begun after the child has become www-data; and a graceful restart under load."""
    apache = served(ctx, "event")
    client = load(ctx, apache, 3600, threads=4, close=0.1)
    time.sleep(0.5)
    os.kill(apache.proc.pid, signal.SIGUSR1)
    time.sleep(1.5)
    client.stop(expect=0)
    # Its children close kept connections when they are told to end.
    expect_clean(load_result(client), allowed=("reset", "eof"))
