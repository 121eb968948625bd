# t_storm.py - the kill storm as a test of the runner: 20 rounds, 200 in the long tier.
# SPDX-License-Identifier: Apache-2.0

import os
import random
import signal
import time

import posternview
from harness import Fail, Skip, check, test
from kill_storm import nothing_left, own_runtime, storm
from nginxkit import Nginx, documents


@test(modes=("both", "kernel"), watchdog_s=900)
def kill_storm(ctx):
    seed = random.SystemRandom().randrange(10**6)  # told by the failure; repeat with kill_storm.py --seed
    try:
        storm(ctx, 20 if ctx.fast else 200, seed)
    except Fail as error:
        raise Fail(f"{error}\n      kill_storm.py --mode {ctx.mode} --seed {seed}") from None


@test(modes=("both",))
def posternd_restart_other_user(ctx):
    """Workers that have changed their user find a restarted posternd: what connects then is accelerated again."""
    if os.getuid() != 0:
        raise Skip("needs root, to start workers of another user")
    runtime, shm_before = own_runtime(ctx), posternview.shm_files()
    docs = documents(ctx)
    nginx = Nginx(ctx, docs=docs, user="www-data")
    before = ctx.script("client", "http_load.py", f"--port={nginx.port}", f"--docs={docs}", "--threads=1", "--seconds=1")
    time.sleep(0.3)
    ctx.expect_path(nginx.port)
    os.kill(posternview.daemon_pid(), signal.SIGKILL)
    before.wait(30)
    end = time.monotonic() + 20
    while True:
        client = ctx.script("client", "http_load.py", f"--port={nginx.port}", f"--docs={docs}", "--threads=1", "--seconds=1")
        time.sleep(0.5)
        try:
            ctx.expect_path(nginx.port)
            break
        except Fail:
            check(time.monotonic() < end, "nobody published the listener again")
        finally:
            client.wait(30)
    nothing_left(ctx, runtime, shm_before)
