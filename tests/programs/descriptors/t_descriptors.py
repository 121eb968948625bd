# t_descriptors.py - a call holds its descriptor until it returns: numbers that go away under calls (descriptors*.cc).
# SPDX-License-Identifier: Apache-2.0
#
# Each small case says what its calls have returned. What it has to say is what it says over the kernel alone, where each case
# is run once, too.

import os

from harness import check, test
from t_chaos import Traffic, expect_no_report

CASES = """
recv_close recv_dup2 recv_dup3 recv_close_range recv_kinds_close recv_kinds_dup2 recv_close_end recv_close_reset recv_close_timeout
recv_linger_close recv_shutdown_by_copy recv_two_close recv_dup2_many_times recv_close_at_limit
send_close send_dup2 send_kinds_close send_kinds_dup2 send_close_reset sendfile_close sendfile_dup2
splice_out_close splice_out_dup2 splice_in_close splice_in_dup2
accept_close accept_close_only accept_dup2 accept_dup3 accept_shutdown_by_copy connect_close connect_dup2 connect_goes_away
poll_close_only poll_close poll_dup2 poll_close_timeout poll_close_other
poll_listener poll_listener_dup2 poll_listener_timeout
crowd_recv crowd_poll crowd_send
epoll_close epoll_dup2 epoll_dup3 epoll_dup2_socket epoll_dup2_pipe epoll_close_reuse epoll_close_timeout
epoll_member_close epoll_member_lives epoll_member_held epoll_ctl_by_number
jump_then_close jump_then_go_on jump_out_of_accept jump_out_of_connect
cancel_deferred cancel_asynchronous cancel_after_close cancel_asynchronous_after_close exit_in_handler
handler_interrupts handler_restarts handler_interrupts_on_alternate_stack handler_restarts_on_alternate_stack handler_blocks
fork_while_recv exec_while_recv spawn_while_recv fork_while_accept fork_while_epoll jvm_close
""".split()


def environment():
    """ThreadSanitizer is told that numbers are closed under calls on purpose."""
    options = os.environ.get("TSAN_OPTIONS", "")
    # io_sync=0: the runtime of GCC 12 keeps a clock for each number, and dies of one that another thread has just closed.
    return {"TSAN_OPTIONS": f"{options}:io_sync=0:suppressions={os.path.join(os.path.dirname(os.path.abspath(__file__)), 'numbers.supp')}"}


def transcript(ctx, name, server, client):
    """Of a case. Client "family": its peer is its child."""
    program = ctx.built("descriptors")
    peer = []
    if client != "family":
        peer = [ctx.path(f"peer-{server}")]
        ctx.start(client, [program, "peer", *peer], name=f"peer-{server}", env=environment())
    proc = ctx.start(server, [program, name, *peer], name=f"{name}-{server}-{client}", env=environment())
    return proc.wait(45, expect=None), proc.output()


def over_kernel(ctx, name):
    kept = os.path.join(ctx.config.cache_dir, f"descriptors-{name}") if ctx.config.cache_dir else ""
    if kept and os.path.exists(kept):
        with open(kept, encoding="utf-8") as file:
            return file.read()
    mode, ctx.mode = ctx.mode, "kernel"  # no role is wrapped
    code, text = transcript(ctx, name, "oracle", "oracle's peer")
    ctx.mode = mode
    check(code == 0 and text.endswith("as it should be\n"), f"over the kernel (exit {code}): {text}")
    if kept:
        with open(kept, "w", encoding="utf-8") as file:
            file.write(text)
    return text


def difference(expected, got):
    """The lines around the first that differs."""
    want, have = expected.splitlines(), got.splitlines()
    at = next((i for i, (a, b) in enumerate(zip(want, have)) if a != b), min(len(want), len(have)))
    lines = [f"      at line {at + 1}:"] + [f"        kernel: {line}" for line in want[at:at + 3]] + [f"        here:   {line}" for line in have[at:at + 6]]
    return "\n".join(lines)


def case(name):
    """Registers one small case. With both sides under the wrapper the peer is another family, then a child."""
    def run(ctx):
        expected = over_kernel(ctx, name)
        if ctx.mode == "kernel":
            return
        for client in ("client", "family") if ctx.mode == "both" else ("client",):
            code, text = transcript(ctx, name, "server", client)
            check(code == 0 and text == expected, lambda: f"exit {code}, the peer a {client}\n{difference(expected, text)}")
        expect_no_report(ctx)
    run.__name__ = f"descriptors_{name}"
    test(watchdog_s=150)(run)


for each in CASES:
    case(each)


@test(modes=("kernel",))
def descriptors_all_cases(ctx):
    """Each case of the program is a test here."""
    names = ctx.run(None, [ctx.built("descriptors")]).split()
    check(sorted(names) == sorted(CASES), f"only in one of the two lists: {sorted(set(names) ^ set(CASES))}")


def stress(ctx, *args, patience=120):
    program, seed = ctx.built("descriptors_stress"), ctx.random.randrange(10**6)
    traffic = Traffic(ctx)
    proc = ctx.start("server", [program, "--seed", seed, *args], name="stress", env=environment())
    traffic.wait(proc, patience)
    code = proc.wait(1, expect=None)
    check(code == 0 and proc.output().startswith("ok "), lambda: f"seed {seed}, exit {code}: {proc.output()[:4000]}")
    print(f"      seed {seed}: {proc.output().strip()}", flush=True)
    if traffic.seen:
        connects = sum(counts.get("connects", 0) for counts in traffic.seen.values())
        check(connects > 100, f"only {connects} connections through shared memory")
    expect_no_report(ctx)


@test(modes=("both", "kernel"), watchdog_s=7200)
def descriptors_stress(ctx):
    """All of it: threads, children, images, descriptors that are passed, event sets."""
    seconds = ctx.config.seconds or (20 if ctx.fast else 300)
    stress(ctx, "--seconds", seconds, patience=seconds)


@test(modes=("both", "kernel"), watchdog_s=7200)
def descriptors_stress_threads(ctx):
    """Threads alone, on connections that may end anywhere: the most closes."""
    seconds = ctx.config.seconds or (8 if ctx.fast else 300)
    stress(ctx, "--modes", "lossy,epoll", "--seconds", seconds, patience=seconds)


@test(modes=("both", "kernel"), watchdog_s=300)
def descriptors_race_one_number(ctx):
    """Four threads receive and send by one number, which is closed or another's 100,000 times."""
    stress(ctx, "--modes", "lossy", "--numbers", 1, "--threads", 4, "--taken", 100000)


@test(modes=("both", "kernel"), watchdog_s=300)
def descriptors_race_one_number_lossless(ctx):
    stress(ctx, "--modes", "lossless", "--numbers", 1, "--threads", 4, "--taken", 20000)


@test(modes=("kernel",))
def descriptors_stress_sees(ctx):
    """A byte that is changed, lost or read twice, by the program itself, is reported: silence means something."""
    for wrong, text in (("changed", "nobody has sent"), ("lost", "are missing"), ("twice", "read before")):
        said = ctx.run(None, [ctx.built("descriptors_stress"), "--modes", "lossless", "--seconds", 5, "--wrong", wrong], expect=1)
        check(said.startswith("BAD ") and text in said, f"{wrong}: {said}")
