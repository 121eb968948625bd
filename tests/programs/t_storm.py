# t_storm.py - the kill storm as a test of the runner: 20 rounds, 200 in the long tier.
# SPDX-License-Identifier: Apache-2.0

import random

from harness import Fail, test
from kill_storm import storm


@test(modes=("both", "kernel"), watchdog_s=900)
def kill_storm(ctx):
    seed = random.SystemRandom().randrange(10**6)  # told by the failure; repeat with kill_storm.py --seed
    try:
        storm(ctx, 20 if ctx.fast else 200, seed)
    except Fail as error:
        raise Fail(f"{error}\n      kill_storm.py --mode {ctx.mode} --seed {seed}") from None
