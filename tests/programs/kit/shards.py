# shards.py - program tests side by side: processes that each take the next test, in a network, a /dev/shm and a posternd of their own.
# SPDX-License-Identifier: Apache-2.0
#
# Most tests wait most of the time, so several of them share the CPUs. What they would otherwise share as well is a shard's own:
#   the network namespace   ports, the ephemeral ports that a test may use up, connections in TIME_WAIT, interfaces
#   /dev/shm                in which tests look for what has been left behind
#   the runtime directory   posternd, whose stacks a test counts, and which it may kill or stop
# Root can make these; without them, tests run one after the other. A test that has to have the machine to itself says why
# (harness.test, `alone`) and runs when the shards have done the others. All modes of a test run in one shard, in turn: what one of them
# keeps for the next (Config.cache_dir) is then there, and whole.

import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import tempfile
import traceback

import netlab
import posternview


def why_not():
    """Why there can be no shards here; empty if there can."""
    if os.geteuid() != 0:
        return "not root"
    if not shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin"):
        return "no ip command (iproute2)"
    ours, theirs = multiprocessing.Pipe(duplex=False)
    attempt = multiprocessing.get_context("fork").Process(target=_attempt, args=(theirs,))
    attempt.start()
    attempt.join()
    theirs.close()
    return ours.recv() if ours.poll() else "it ended at once"


def _attempt(line):
    try:
        with _Place():
            line.send("")
    except (netlab.Unavailable, OSError) as error:
        line.send(str(error))


class _Place:
    """What this process has for itself while its tests run."""

    def __enter__(self):
        netlab.call("unshare", netlab.CLONE_NEWNS | netlab.CLONE_NEWNET)
        netlab.call("mount", b"none", b"/", None, netlab.MS_REC_PRIVATE, None)
        netlab.call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)
        os.chmod("/dev/shm", 0o1777)
        netlab.Lab.ip("link", "set", "dev", "lo", "up")
        self.runtime = tempfile.mkdtemp(prefix="pstn-shard-")
        os.environ["POSTERN_RUNTIME_DIR"] = self.runtime

    def __exit__(self, *_):
        daemon = posternview.daemon_pid()
        if daemon:
            os.kill(daemon, signal.SIGTERM)
        shutil.rmtree(self.runtime, ignore_errors=True)


def _shard(line, others, run_group, at_end):
    """Asks for work until there is none. What it says is ("result", ...) of run_group and at_end, "next", or ("broken", text)."""
    for other in others:  # of the runner: with it ends what it holds alone
        other.close()
    try:
        with _Place():
            line.send("next")
            while (group := line.recv()) is not None:
                for result in run_group(group):
                    line.send(("result", result))
                line.send("next")
            for result in at_end():
                line.send(("result", result))
    except EOFError:
        pass  # the runner has ended
    except Exception:  # whatever it is, the runner has to say that tests are missing
        line.send(("broken", traceback.format_exc()))


class _Dispatch:
    def __init__(self, together, alone):
        self.left, self.alone, self.idle = list(reversed(together)), list(reversed(alone)), []
        self.lines = []

    def give(self, line):
        """The shard asks: it gets a group, or waits until none is under way; then one shard goes on with those that want to be alone."""
        if self.left:
            line.send(self.left.pop())
            return
        self.idle.append(line)
        if len(self.idle) < len(self.lines):
            return
        if self.alone:
            self.idle.pop().send(self.alone.pop())
            return
        for waiting in self.idle:
            waiting.send(None)
        self.idle = []

    def end(self, line):
        self.lines.remove(line)
        if line in self.idle:
            self.idle.remove(line)


def run(count, together, alone, run_group, at_end):
    """Yields what run_group(group) yields for each of the groups, and at_end() in each of `count` shards. A shard that breaks is an
    exception: its tests are missing."""
    context, dispatch, processes = multiprocessing.get_context("fork"), _Dispatch(together, alone), []
    for _ in range(count):
        ours, theirs = context.Pipe()
        dispatch.lines.append(ours)
        processes.append(context.Process(target=_shard, args=(theirs, list(dispatch.lines), run_group, at_end), daemon=True))
        processes[-1].start()
        theirs.close()
    while dispatch.lines:
        for line in multiprocessing.connection.wait(list(dispatch.lines)):
            try:
                said = line.recv()
            except EOFError:
                dispatch.end(line)
                continue
            if said == "next":
                dispatch.give(line)
            elif said[0] == "result":
                yield said[1]
            else:
                raise RuntimeError(f"a shard has ended: {said[1]}")
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"a shard has ended with {process.exitcode}")
