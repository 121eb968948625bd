# t_waits.py - event sets and waits under conditions that few programs meet; the program compares with what the kernel does.
# SPDX-License-Identifier: Apache-2.0

from harness import check, test


def single(name, env=None, program="waits"):
    """Registers a test that is one process under the wrapper."""
    def run(ctx):
        proc = ctx.start("server", [ctx.built(program), name], env=env or {})
        proc.wait(50)
        check("as it should be" in proc.output(), proc.output())
    run.__name__ = f"{program}_{name}"
    test()(run)


single("poll_beside_backlog")
single("backlog_count", {"POSTERN_STRICT": "on"})
single("accept_restarts")
single("paused_listener")
single("limits")
single("add_at_once")
single("set_after_child")
single("poll_after_parent")
single("close_under_wait")
single("two_sleepers_level")
single("two_sleepers_oneshot")
single("sleeper_and_looker")
single("room_by_other_ways")
single("many_sets")
single("set_of_two_numbers")
single("set_older_than_link")
single("close_twice")
single("poll_reused_number")
single("fall_back_after_dup")
single("add_then_listen")
for crowd in ("byte_each", "end", "others", "writers", "killed"):
    single(crowd, program="crowd")
