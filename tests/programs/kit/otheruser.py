# otheruser.py - programs that refuse to run as root: a test that root has started goes on as an ordinary user.
# SPDX-License-Identifier: Apache-2.0
#
# Postern accelerates within one user, so both sides change, and posternd with them: it gets a runtime directory of this
# user, and the test that asked for it ends it (leave).

import os
import pwd
import subprocess

import posternview
from harness import Skip, need
from kill_storm import nothing_left, own_runtime


class OtherUser:
    def __init__(self, ctx, names):
        self.ctx, self.runtime, self.shm_before = ctx, own_runtime(ctx), posternview.shm_files()
        self.prefix, self.account = [], None
        if os.getuid() != 0:
            return
        known = [name for name in names if name in {entry.pw_name for entry in pwd.getpwall()}]
        if not known:
            raise Skip(f"none of these users exists: {', '.join(names)}")
        self.account = pwd.getpwnam(known[0])
        self.prefix = [need("setpriv"), f"--reuid={self.account.pw_uid}", f"--regid={self.account.pw_gid}", "--clear-groups", "--inh-caps=-all"]
        os.chmod(ctx.dir, 0o711)
        self.give(self.runtime)
        if subprocess.run([*self.prefix, "test", "-x", ctx.config.wrapper[0] if ctx.config.wrapper else "/"], check=False).returncode:
            raise Skip(f"user {known[0]} may not run {ctx.config.wrapper[0]}")
        os.environ["HOME"] = ctx.dir  # not root's, in which it may read nothing
        ctx.as_user = self.prefix

    def give(self, path):
        """The file or directory (without what is in it) becomes this user's."""
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)
        return path

    def do(self, argv, **kw):
        """Preparation, which is not tested: outside of Postern."""
        return subprocess.run([*self.prefix, *map(str, argv)], check=True, capture_output=True, text=True, **kw)

    def leave(self):
        nothing_left(self.ctx, self.runtime, self.shm_before)
