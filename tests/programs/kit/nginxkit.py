# nginxkit.py - Debian's nginx with a configuration of its own: master, two workers, nothing outside the test's directory.
# SPDX-License-Identifier: Apache-2.0

import os
import pwd
import random
import shutil

import posternview
from harness import need, wait_until

CONF = """
{user}worker_processes {workers};
daemon {daemon};
pid {dir}/nginx.pid;
error_log {dir}/error.log warn;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; {events} }}
http {{
  access_log off;
  default_type application/octet-stream;
  client_body_temp_path {dir}/tmp_body; proxy_temp_path {dir}/tmp_proxy; fastcgi_temp_path {dir}/tmp_fcgi;
  uwsgi_temp_path {dir}/tmp_uwsgi; scgi_temp_path {dir}/tmp_scgi;
  client_max_body_size 2g;
  keepalive_requests 100000;
  sendfile on; tcp_nopush on;
  {http}
  server {{
    listen 127.0.0.1:{port}{reuseport}; listen [::1]:{port}{reuseport};
    root {docs};
    location = /who {{ return 200 "$remote_addr\\n"; }}
    location = /post {{ return 200 "got $content_length\\n"; }}
    location /put/ {{ root {dir}; dav_methods PUT; create_full_put_path on; client_body_temp_path {dir}/put/tmp; }}
    {server}
  }}
}}
"""


class Nginx:
    def __init__(self, ctx, name="nginx", side="server", docs=None, workers=2, events="", http="", server="", reuseport=False, daemon=False,
                 user="www-data"):
        self.ctx, self.dir, self.port = ctx, ctx.path(name, "x")[:-2], ctx.port()
        os.chmod(ctx.dir, 0o755)
        self.docs = docs or self.dir
        for sub in ("put", "put/tmp"):
            os.makedirs(os.path.join(self.dir, sub), exist_ok=True)
            if os.getuid() == 0:
                shutil.chown(os.path.join(self.dir, sub), user)
        conf = CONF.format(user=f"user {user};\n" if os.getuid() == 0 else "", workers=workers, dir=self.dir, port=self.port, docs=self.docs, events=events,
                           http=http, server=server, daemon="on" if daemon else "off", reuseport=" reuseport" if reuseport else "")
        self.conf = ctx.write(f"{name}/nginx.conf", conf)
        self.argv = [need("nginx"), "-c", self.conf, "-p", self.dir, "-e", os.path.join(self.dir, "error.log")]
        self.side = side
        self.proc = ctx.start(side, self.argv, name=name)
        if daemon:
            self.proc.wait(20)
            ctx.wait_listening(self.port)
            self.master = self.written_pid()
            ctx.adopt_session(self.master)  # that of its setsid(), which may be yet to come
        else:
            ctx.wait_listening(self.port, self.proc)
            self.master = self.proc.pid
        if ctx.wrapped(side) and ctx.config.posternctl:
            uid = pwd.getpwnam(user).pw_uid if os.getuid() == 0 else os.getuid()
            posternview.wait_served(ctx.config.posternctl, self.port, self.workers, workers, uid)

    def signal(self, what):
        """nginx -s reload | stop | quit, as an administrator would."""
        return self.ctx.run(self.side, [*self.argv, "-s", what], name=f"nginx-s-{what}")

    def written_pid(self):
        """The pid in the file that a master makes, or None while there is none: a new master's predecessor renames its own."""
        try:
            with open(os.path.join(self.dir, "nginx.pid"), encoding="ascii") as file:
                text = file.read()
        except FileNotFoundError:
            return None
        return int(text) if text.endswith("\n") else None

    def workers(self, master=None):
        """Pids of the master's children: the workers, also while old ones are still shutting down."""
        master = master or self.master
        with open(f"/proc/{master}/task/{master}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]

    def errors(self):
        """Lines of the error log that tell of a failure in nginx itself."""
        with open(os.path.join(self.dir, "error.log"), encoding="utf-8", errors="replace") as file:
            return [line for line in file if any(f"[{level}]" in line for level in ("emerg", "alert", "crit"))]


def documents(ctx, sizes=(0, 1, 100, 1024, 4095, 65536, 300001)):
    """A directory of files of these sizes with content that tells files and offsets apart."""
    for size in sizes:
        ctx.write(f"docs/f{size}", random.Random(size).randbytes(size))
    return os.path.join(ctx.dir, "docs")


def expect_going(client):
    """Waits until http_load.py has been served. Before that SIGTERM may end it, as its interpreter is still starting."""
    wait_until(lambda: client.output().startswith("going"), "no load", timeout=60.0)
