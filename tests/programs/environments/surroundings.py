# surroundings.py - a posternd of a test's own, and programs under limits and sandboxes (environments/confine_command.cc).
# SPDX-License-Identifier: Apache-2.0

import contextlib
import os
import subprocess

import posternview
from harness import Skip
from kill_storm import nothing_left, own_runtime


@contextlib.contextmanager
def posternd_of_its_own(ctx, running=True):
    """With a runtime directory of this test's; `running`: posternd is there before anything is confined."""
    before, shm_before = os.environ.get("POSTERN_RUNTIME_DIR"), posternview.shm_files()
    runtime = own_runtime(ctx)
    if running and ctx.mode != "kernel" and ctx.config.wrapper:
        subprocess.run([*ctx.config.wrapper, "-o", "daemon.idle_sec=30", "true"], check=True, timeout=30, stdin=subprocess.DEVNULL)
    try:
        yield runtime
        nothing_left(ctx, runtime, shm_before)
    finally:
        if before is None:
            os.environ.pop("POSTERN_RUNTIME_DIR", None)
        else:
            os.environ["POSTERN_RUNTIME_DIR"] = before


def confined(ctx, options):
    """Programs that are started from now on are confined, with the wrapper, if they have one."""
    confine = ctx.built("confine")
    probe = subprocess.run([confine, *options, "--", "true"], capture_output=True, text=True, timeout=30, check=False)
    if probe.returncode:
        raise Skip(probe.stdout.strip() or probe.stderr.strip())
    ctx.as_user = [confine, *options, "--"]


def nobody():
    """A user that has no process and no directory."""
    taken = set()
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):  # it has ended
            taken.add(os.stat(f"/proc/{name}").st_uid)
    return next(n for n in range(40000, 60000) if n not in taken and not os.path.exists(f"/tmp/postern-{n}"))
