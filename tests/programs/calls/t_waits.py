# t_waits.py - event sets and waits under conditions that few programs meet; the program compares with what the kernel does.
# SPDX-License-Identifier: Apache-2.0

import sys

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
single("many_sets")
single("set_older_than_link")
single("close_twice")
single("poll_reused_number")
single("fall_back_after_dup")
single("add_then_listen")
for crowd in ("byte_each", "end", "others", "writers", "killed"):
    single(crowd, program="crowd")

# Says how many of its connections are there, and goes on when it is told to.
CLIENT = """
import select, signal, socket, sys, time
PORT, COUNT = int(sys.argv[1]), int(sys.argv[2])
poll, socks = select.poll(), [socket.socket() for _ in range(COUNT)]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
for sock in socks:
    sock.setblocking(False)
    sock.connect_ex(("127.0.0.1", PORT))
    poll.register(sock, select.POLLOUT)
print(len(poll.poll(300)), "there\\nholding", flush=True)
signal.sigwait({signal.SIGUSR1})
end = time.monotonic() + 40
while len(poll.poll(1000)) < COUNT and time.monotonic() < end:
    time.sleep(0.01)
print(len(poll.poll(0)), "in the end", sum(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for sock in socks), flush=True)
"""
SERVER = """
import signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
listener = socket.socket()
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(8)
print("holding", flush=True)
signal.sigwait({signal.SIGUSR1})
kept = [listener.accept() for _ in range(int(sys.argv[2]))]
print("accepted", len(kept), "\\nholding", flush=True)
signal.sigwait({signal.SIGUSR1})
"""
PROGRAMS, EACH, BACKLOG = 4, 12, 8


@test(modes=("both",))
def backlog_of_programs(ctx):
    """A listener that does not accept lets as many clients in as its backlog says, of whatever programs; the others when it accepts."""
    port = ctx.port()
    server = ctx.start("server", [sys.executable, "-c", SERVER, port, PROGRAMS * EACH], name="server")
    ctx.wait_listening(port, server)
    clients = [ctx.start("client", [sys.executable, "-c", CLIENT, port, EACH], name=f"client{i}") for i in range(PROGRAMS)]
    for client in clients:
        client.wait_holding()
    there = [int(client.output().split()[0]) for client in clients]
    check(sum(there) == BACKLOG + 1, f"{there} clients were let in")
    for proc in [server, *clients]:
        proc.go_on()
    for client in clients:
        client.wait(50)
        check(f"{EACH} in the end 0" in client.output(), client.output())
    server.go_on()
    check(f"accepted {PROGRAMS * EACH} " in server.output(), server.output())
    server.wait(20)
