# forked.py - a child of fork() that has to do work of its own while its parent's other threads wait for somebody.
# SPDX-License-Identifier: Apache-2.0

import contextlib
import os

# For programs of wirekit.py and of the containers. forked(more) is the parent's: None if the child has done its work and has ended. It
# gives no time but one that is far beyond what any of it takes: whether the child hangs.
FORKED = """
import os, signal, socket, time, traceback
FORKED_SEC = 15
def own_work():
    data = bytes(range(256)) * 40
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server = listener.accept()[0]
        with server:
            for one, other in (client, server), (server, client):
                one.sendall(data)
                assert other.recv(len(data), socket.MSG_WAITALL) == data
def forked(more=lambda: None):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own_work()
            more()
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        os._exit(status)
    end = time.monotonic() + FORKED_SEC
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done == child:
            assert status == 0, f"the child's status is {status}"
            return
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.001)
"""


def children(pid):
    """Of every thread of that process. It, or a thread, may end meanwhile."""
    found = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
            found += map(int, file.read().split())
    return found


def requests_left(shown):
    """Bytes that processes have sent to their posternd and it has not read. `shown` is what `ss -xaH` says in its network namespace."""
    fields = [line.split() for line in shown.splitlines()]
    return sum(int(f[2]) for f in fields if f[:2] == ["u_seq", "ESTAB"] and ("/posternd.sock" in f[4] or f[4].startswith("@postern-ctl-")))
