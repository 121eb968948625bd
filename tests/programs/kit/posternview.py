# posternview.py - the only place that knows what posternctl prints.
# SPDX-License-Identifier: Apache-2.0
#
# `posternctl ss --json`     {"sockets":[{"pid","fd","path","reason","local","peer","rx_bytes","tx_bytes"}]}
# `posternctl status --json` counts of what is alive; the names looked for are in LEFTOVER_KEYS.
# When these schemas change, this file changes and no test does.

import glob
import json
import os
import re
import subprocess
import time

ACCELERATED = ("same-host", "intra-stack", "smc-d")
LEFTOVER_KEYS = ("stacks", "link_groups", "reapers_failed")


def abi_limit(name):
    """Of lib/abi/postern_abi.h, as "PSTN_WAITERS"."""
    header = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "lib", "abi", "postern_abi.h")
    with open(header, encoding="ascii") as file:
        return int(re.search(rf"^#define {name} (\d+)u", file.read(), re.MULTILINE).group(1))


class ViewError(Exception):
    """posternctl failed, or shows something else than the test demands."""


def _posternctl(posternctl, *args, env=None):
    done = subprocess.run([posternctl, *args, "--json"], capture_output=True, text=True, timeout=30, env=env)
    if done.returncode != 0:
        raise ViewError(f"posternctl {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()}")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise ViewError(f"posternctl {' '.join(args)}: not JSON ({error}): {done.stdout[:200]!r}") from error


def sockets(posternctl, env=None):
    return _posternctl(posternctl, "ss", env=env)["sockets"]


def _port_of(name):
    return int(name.rsplit(":", 1)[1]) if name and ":" in name and name.rsplit(":", 1)[1].isdigit() else None


def connections_of(all_sockets, port):
    """Sockets that are one end of a connection to `port` (listeners excluded)."""
    return [s for s in all_sockets
            if s["path"] != "listen" and _port_of(s.get("peer")) and port in (_port_of(s.get("local")), _port_of(s.get("peer")))]


def wait_served(posternctl, port, workers, count, uid, deadline_s=10.0):
    """Waits until `count` of `workers()` are in a stack of that user's which has a listener at `port`: those that become another user
    leave their family first, and clients that come in that moment are the kernel's. Not at all costs: what it is for says what is wrong."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        status, pids = _posternctl(posternctl, "status"), set(workers())
        serve = {listener["stack"] for listener in status["listeners"] if _port_of(listener["local"]) == port}
        ready = {process["pid"] for stack in status["stacks"] if stack["id"] in serve and stack["uid"] == uid for process in stack["processes"]}
        if len(pids & ready) >= count:
            return
        time.sleep(0.03)


class NotYet(ViewError):
    """Nothing wrong so far, but not enough to be seen."""


def judge(connections, mode):
    """Raises ViewError when a connection is not what `mode` demands, NotYet when there is none or it carried nothing."""
    if not connections:
        raise NotYet("no connection to that port is listed")
    fast = [c for c in connections if c["path"] in ACCELERATED]
    slow = [c for c in connections if c["path"] not in ACCELERATED]
    unexplained = [c for c in slow if not c.get("reason")]
    if unexplained:
        raise ViewError(f"not accelerated and no reason given: {unexplained[:3]}")
    if mode == "both":
        if slow:
            why = sorted({f"{c['comm']}: {c['reason']}" for c in slow})
            raise ViewError(f"{len(slow)} of {len(connections)} connections not accelerated ({', '.join(why)}), e.g. {slow[0]}")
        if not any(c["rx_bytes"] + c["tx_bytes"] > 0 for c in fast):
            raise NotYet("accelerated, but no byte went that way")
    elif fast:
        raise ViewError(f"accelerated although one side is not under postern: {fast[0]}")


def expect_path(posternctl, port, mode, deadline_s=10.0, env=None):
    """Waits until connections to `port` can be seen. One that is not what `mode` demands fails at once: no second chance."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            return judge(connections_of(sockets(posternctl, env), port), mode)
        except NotYet as wait:
            if time.monotonic() > end:
                raise ViewError(f"port {port}, mode {mode}: {wait}") from None
        except ViewError as error:
            raise ViewError(f"port {port}, mode {mode}: {error}") from None
        time.sleep(0.05)


def leftovers(posternctl, env=None):
    """What posternd still holds, as {name: count}; empty when nothing is left."""
    status = _posternctl(posternctl, "status", env=env)
    left = {}
    for key in LEFTOVER_KEYS:
        if key == "reapers_failed" and not status["running"]:
            continue
        if key not in status:
            raise ViewError(f"posternctl status has no '{key}': {sorted(status)}")
        count = len(status[key]) if isinstance(status[key], (list, dict)) else int(status[key])
        if count:
            left[key] = status[key]
    return left


def expect_nothing_left(posternctl, deadline_s=10.0, env=None):
    """posternd learns of deaths from pidfds, so give it time; then nothing may be left."""
    end = time.monotonic() + deadline_s
    while True:
        left = leftovers(posternctl, env)
        if not left:
            return
        if time.monotonic() > end:
            raise ViewError(f"left behind after every program ended: {left}")
        time.sleep(0.1)


def explain(posternctl, pid, env=None):
    return _posternctl(posternctl, "explain", str(pid), env=env)


def status(posternctl, env=None):
    return _posternctl(posternctl, "status", env=env)


def counters(posternctl, env=None):
    """{stack's id: its counters}, as far as they have been used."""
    return {stack["id"]: stack["counters"] for stack in status(posternctl, env)["stacks"]}


def runtime_dir(env=None):
    """Where posternd keeps its socket and pid file: the variable, else the first place where one is found."""
    env = os.environ if env is None else env
    if env.get("POSTERN_RUNTIME_DIR"):
        return env["POSTERN_RUNTIME_DIR"]
    uid = os.getuid()
    places = [f"{env['XDG_RUNTIME_DIR']}/postern"] if env.get("XDG_RUNTIME_DIR") else []
    places += [f"/run/user/{uid}/postern", f"/tmp/postern-{uid}", f"/run/postern-{uid}", "/run/postern"]
    for place in places:
        if os.path.exists(f"{place}/posternd.pid"):
            return place
    return None


def daemon_pid(env=None):
    """posternd's pid, None when none lives. The name is checked: a stale file must not get a stranger killed."""
    place = runtime_dir(env)
    try:
        with open(f"{place}/posternd.pid", encoding="ascii") as file:
            pid = int(file.read().split()[0])
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return pid if file.read().strip().startswith("posternd") else None
    except (OSError, ValueError, IndexError):
        return None


def shm_files():
    return set(glob.glob("/dev/shm/*") + glob.glob("/dev/shm/.*"))
