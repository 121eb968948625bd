# generate_rings.py - cases whose actors make their calls by an io_uring, each or from some line on.
# SPDX-License-Identifier: Apache-2.0
#
# A process whose ring is about to do something with a socket of Postern's steps aside: its connections are bridged, in whatever state
# they are. So there are data under way, halves that are closed, clients that wait and members of event sets when the ring begins.
# What a bridge passes on takes its time; the lines are played with pauses (run.py).

from generate import Generator

BY_RING = {"socket", "bind", "listen", "connect", "accept", "acceptnull", "shutdown", "close", "send", "write", "writev", "recv", "read", "readv",
           "recvmsg", "spliceto", "splicefrom", "poll", "epadd", "epmod", "epdel", "epwait"}
HOWS = ("ring", "ring", "ring", "ring", "fixed", "sqpoll", "async", "link", "zc", "fixed,link", "async,sqpoll")
WAITING = {"accept", "acceptnull", "recv", "read", "readv", "recvmsg", "splicefrom"}  # also on non-blocking sockets, by a ring
BEFORE = {"bg": 2, "ticking": 2}  # words before the command that is run
LEFT_OUT = ("full", "bounded", "bind_to_taken", "reusing_listener", "same_names", "passed_to_oneself", "passed_on", "lowat")


class RingGenerator(Generator):
    def __init__(self, seed):
        super().__init__(seed)
        self.has_urgent = False
        self.users = self.r.choice(("A", "B", "AB"))
        self.begins = self.r.choice((0, 0, self.r.randrange(25)))  # with this line
        self.share = self.r.choice((1, 0.5, 0.2))
        self.asides = 0  # lines by rings: from the first one on a process may not be accelerated any more

    def emit(self, actor, text):
        words = text.split()
        at = BEFORE.get(words[0], 0)
        if actor in self.users and len(self.lines) >= self.begins and words[at] in BY_RING and self.r.random() < self.share:
            how = self.r.choice(HOWS) + ",within" * (at == 0 and words[0] in WAITING and "DONTWAIT" not in words)
            text = " ".join([*words[:at], "ring", how, *words[at:]])
            self.asides += 1
            if words[at] == "socket":
                for o in self.objects:
                    o.refused = o.refused or words[at + 1] in o.names  # the kernel's
        super().emit(actor, text)

    def by_ring(self, actor, text):
        self.asides += 1
        super().emit(actor, text)

    def connect(self):
        """Clients that came by different ways wait in different queues (docs/deviations.md)."""
        for o in self.objects:
            if o.kind == "new":
                o.epoch = self.asides > 0
        return super().connect()

    def users_streams(self):
        return [o for o in self.alive("stream") if o.actor in self.users and self.quiet(o)]

    def accept_multi(self):
        """Of clients that wait, and of one that comes while the entry waits for it."""
        some = [o for o in self.alive("listener") if not o.odd and o.actor in self.users and all(client is not None for client in o.waiting)]
        if not some:
            return False
        o = self.r.choice(some)
        other = "A" if o.actor == "B" else "B"
        clients = list(o.waiting)
        late = not clients  # who waits gets into the kernel's queue by a bridge: not always before who comes then
        names, made = [], []
        for client in clients:
            made.append(self.connected_object(o.actor, o.family))
            names.append(self.name(made[-1], "a"))
            made[-1].peer, client.peer = client, made[-1]
            made[-1].under_way, made[-1].ended, made[-1].odd = client.early, client.gone, client.odd or client.gone
        o.waiting.clear()
        if late:
            accepted = self.connected_object(o.actor, o.family)
            names.append(self.name(accepted, "a"))
            client = self.connected_object(other, o.family)
            c = self.name(client, "c")
            client.peer, accepted.peer = accepted, client
            o.clients.append(client)
        how = self.r.choice(("ring", "fixed", "sqpoll"))
        command = f"acceptmulti {how} {self.r.choice(o.names)} {' '.join(names)}"
        if late:
            self.by_ring(o.actor, "bg w " + command)
            self.emit(other, f"socket {c} {o.family} stream")
            self.emit(other, f"connect {c} {'::1' if o.family == 'inet6' else '127.0.0.1'} ${o.port}")
            super().emit(o.actor, "join w")
        else:
            self.by_ring(o.actor, command)
        return True

    def recv_multi(self):
        some = [o for o in self.users_streams() if o.peer.actor != o.actor]
        if not some:
            return False
        o = self.r.choice(some)
        name, peer = self.r.choice(o.names), self.r.choice(o.peer.names)
        self.emit(o.actor, f"recv {name} 100000 DONTWAIT")
        self.by_ring(o.actor, f"bg w recvmulti {self.r.choice(('ring', 'fixed'))} {name} {self.r.choice((4, 8))}")
        for _ in range(2):
            self.emit(o.peer.actor, self.r.choice(("send {n} four", "write {n} four", "writev {n} fo ur", "sendfile {n} four")).format(n=peer))
        super().emit(o.actor, "join w")
        o.under_way, o.surely = 8, 0
        return True

    def within(self):
        """What has not come in time is not waited for."""
        some = [o for o in self.users_streams() if not o.nonblock]
        if not some:
            return False
        o = self.r.choice(some)
        self.by_ring(o.actor, f"ring within {self.r.choice(('recv {n} 5', 'read {n} 64', 'recvmsg {n} 3', 'readv {n} 1 1')).format(n=self.r.choice(o.names))}")
        o.surely = 0
        return True

    STEPS = (*((step, weight) for step, weight in Generator.STEPS if step.__name__ not in LEFT_OUT), (accept_multi, 5), (recv_multi, 4), (within, 2))
