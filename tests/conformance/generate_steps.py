# generate_steps.py - steps of the generator in which something waits, or descriptors change hands.
# SPDX-License-Identifier: Apache-2.0
#
# A call that would wait for ever is made under a timer whose signal ends it (`ticking`), with a timeout, or in a thread that
# another step wakes; so that the kernel answers the same each time. What the kernel decides by the clock is left out: data that
# MSG_MORE or TCP_CORK holds back is let go in the same step, a full buffer is emptied in the same step.

TICKED_READS = ("recv {n} {size}", "read {n} {size}", "readv {n} 1 {size}", "recvfrom {n} {size}", "recvmsg {n} {size}", "recvmmsg {n} {size} {size}",
                "recv {n} {size} WAITALL", "recv {n} {size} PEEK", "preadv2 {n} {size} -1", "splicefrom {n} {size}")
WAITS = ("recv {n} 10", "read {n} 7", "readv {n} 3 3", "recvfrom {n} 9", "recvmsg {n} 10", "recvmmsg {n} 10", "splicefrom {n} 10", "preadv2 {n} 8 -1",
         "recv {n} 4 WAITALL", "recv {n} 10 PEEK", "poll 3000 {n}:IN", "ppoll 3000 {n}:IN", "select 3000 {n}:r", "pselect 3000 {n}:r",
         "ppollm 3000 empty {n}:IN", "poll -1 {n}:IN,RDHUP")
WAKES = ("send {n} wake", "write {n} wake", "writev {n} wa ke", "sendfile {n} wake", "spliceto {n} wake", "sendmsgs {n} - wa ke", "pwritev2 {n} wake -1",
         "shutdown {n} wr")
IMAGES = ("child", "execself", "vforkself", "spawnself none")
TICK_MS, TIMEOUT_MS = 3, 8


class WaitingSteps:
    """Mixed into Generator, whose model it uses."""

    def quiet(self, o):
        """A stream of which both ends are open and known."""
        return o.peer is not None and o.peer.names and not (o.odd or o.peer.odd or o.ended or o.peer.ended or o.gone or o.peer.gone)

    def ticked(self):
        """A signal ends what would wait; what does not wait is not touched."""
        some = [o for o in self.alive("stream") if not o.lowat]
        if not some:
            return False
        o = self.r.choice(some)
        size = self.r.choice((1, 5, 64, 1000, 100000))
        form = self.r.choice(TICKED_READS)
        self.emit(o.actor, f"ticking {TICK_MS} " + form.format(n=self.r.choice(o.names), size=size))
        o.surely = 0
        return True

    def ticked_accept(self):
        some = [o for o in self.alive("listener") if not o.waiting and not o.odd]
        if not some:
            return False
        o = self.r.choice(some)
        self.emit(o.actor, f"ticking {TICK_MS} accept {self.r.choice(o.names)} x")
        return True

    def timeout(self):
        some = [o for o in self.alive("stream") if not o.nonblock and not o.lowat]
        if not some:
            return False
        o = self.r.choice(some)
        name = self.r.choice(o.names)
        self.emit(o.actor, f"setopt {name} RCVTIMEO {TIMEOUT_MS}")
        form = self.r.choice(TICKED_READS)
        self.emit(o.actor, form.format(n=name, size=self.r.choice((3, 64, 100000))))
        self.emit(o.actor, f"setopt {name} RCVTIMEO 0")
        o.surely = 0
        return True

    def held_back(self):
        """MSG_MORE and TCP_CORK: all is there when the last part is."""
        some = [o for o in self.alive("stream") if self.quiet(o) and o.peer.under_way < 8000]
        if not some:
            return False
        o = self.r.choice(some)
        name = self.r.choice(o.names)
        if self.r.random() < 0.5:
            self.emit(o.actor, f"send {name} part MORE NOSIGNAL")
            self.emit(o.actor, self.r.choice((f"send {name} whole NOSIGNAL", f"writev {name} who le", f"sendmsgs {name} NOSIGNAL who le")))
        else:
            self.emit(o.actor, f"setopt {name} CORK 1")
            self.emit(o.actor, f"send {name} part NOSIGNAL")
            self.emit(o.actor, f"sendmmsg {name} wh ole")
            self.emit(o.actor, f"setopt {name} CORK 0")
        o.peer.under_way += 20
        return True

    def full(self):
        """A writer that waits for room, until the reader has taken all there is."""
        some = [o for o in self.alive("stream") if self.quiet(o) and o.peer.actor != o.actor and not o.peer.lowat and not self.has_urgent]
        if not some:
            return False
        o = self.r.choice(some)
        name, peer = self.r.choice(o.names), self.r.choice(o.peer.names)
        self.emit(o.peer.actor, f"recv {peer} 100000 DONTWAIT")
        self.emit(o.actor, f"setfl {name} block")
        o.nonblock = False
        self.emit(o.actor, f"fill {name}")
        self.emit(o.actor, f"bg w send {name} f*500 NOSIGNAL")
        self.emit(o.peer.actor, f"drain {peer}")
        self.emit(o.actor, "join w")
        self.emit(o.actor, f"shutdown {name} wr")
        self.emit(o.peer.actor, f"setfl {peer} block")
        self.emit(o.peer.actor, f"rest {peer}")
        o.peer.nonblock = False
        o.peer.ended, o.peer.under_way = True, 0
        return True

    def wakes(self):
        """A thread waits, in any of the calls that do; the other side ends the wait."""
        some = [o for o in self.alive("stream") if self.quiet(o) and not o.nonblock and not o.lowat and o.peer.actor != o.actor]
        if not some:
            return False
        o = self.r.choice(some)
        name, peer = self.r.choice(o.names), self.r.choice(o.peer.names)
        self.emit(o.actor, f"recv {name} 100000 DONTWAIT")
        self.emit(o.actor, "bg w " + self.r.choice(WAITS).format(n=name))
        self.emit(o.peer.actor, self.r.choice(WAKES).format(n=peer))
        o.ended = o.ended or "shutdown" in self.lines[-1][1]
        o.under_way += 4
        self.emit(o.actor, "join w")
        return True

    def accept_waits(self):
        some = [o for o in self.alive("listener") if not o.nonblock and not o.waiting and not o.odd]
        if not some:
            return False
        o = self.r.choice(some)
        other = "A" if o.actor == "B" else "B"
        client = self.connected_object(other, o.family)
        o.clients.append(client)
        made = self.connected_object(o.actor, o.family)
        self.made += 2
        c, s = f"c{self.made - 1}", f"a{self.made}"
        self.emit(o.actor, f"bg w accept {self.r.choice(o.names)} {s}")
        self.emit(other, f"socket {c} {o.family} stream")
        self.emit(other, f"connect {c} {'::1' if o.family == 'inet6' else '127.0.0.1'} ${o.port}")
        self.emit(o.actor, "join w")
        client.names, made.names = [c], [s]
        client.peer, made.peer = made, client
        for actor, name in ((other, c), (o.actor, s)):
            self.emit(actor, f"setopt {name} NODELAY 1")
        return True

    def lowat(self):
        """Readiness from so many bytes on. The kernel's own reader may sleep on, so that none waits from here on."""
        some = self.alive("stream")
        if not some:
            return False
        o = self.r.choice(some)
        self.emit(o.actor, f"setopt {self.r.choice(o.names)} RCVLOWAT {self.r.choice((1, 2, 4, 10))}")
        o.lowat = True
        return True

    def passed_to_oneself(self):
        """Nothing that is connected: the connection is bridged, and a bridge has a time of its own. No edge comes twice (deviations.txt)."""
        some = [o for o in self.alive("new", "listener") if not o.waiting and not o.odd and not o.edge]
        if not some:
            return False
        o = self.r.choice(some)
        o.passed = True
        self.made += 1
        y, z = f"y{self.made}", f"z{self.made}"
        old = self.r.choice(o.names)
        self.emit(o.actor, f"socketpair {y} {z} unix")
        self.emit(o.actor, f"passfd {y} {old}")
        if self.r.random() < 0.3 and len(o.names) > 1:
            o.names.remove(old)
            self.emit(o.actor, f"close {old}")
        self.emit(o.actor, f"takefd {z} {'cloexec ' * (self.r.random() < 0.3)}{self.name(o, 'd')}")
        self.emit(o.actor, f"close {y}")
        self.emit(o.actor, f"close {z}")
        return True

    def passed_on(self):
        """To the other actor, which goes on with it."""
        some = [o for o in self.alive("new", "listener") if not o.waiting and not o.odd and not o.edge and len(o.names) == 1]
        if not some:
            return False
        o = self.r.choice(some)
        old, o.names = o.names[0], []
        line = {"A": "xa", "B": "xb"}
        other = "A" if o.actor == "B" else "B"
        self.emit(o.actor, f"passfd {line[o.actor]} {old}")
        self.emit(o.actor, f"close {old}")
        self.emit(other, f"takefd {line[other]} {self.name(o, 'd')}")
        o.actor, o.passed = other, True
        return True

    def image(self):
        """A new image goes on where the actor was. What close-on-exec would close is kept, so that the model knows what there is. No edge of a
        listener comes twice (deviations.txt)."""
        if self.images == 1 or any(o.edge for o in self.alive("listener")):
            return False
        self.images = 1
        for o in self.alive():
            for name in o.names:
                self.emit(o.actor, f"setfd {name} off")
        self.emit(self.r.choice("AB"), "become")
        return True

    WAITING_STEPS = ((ticked, 2), (ticked_accept, 0.4), (timeout, 1), (held_back, 2), (full, 0.12), (wakes, 3), (accept_waits, 0.7), (lowat, 0.5),
                     (passed_to_oneself, 1), (passed_on, 0.5), (image, 0.3))
