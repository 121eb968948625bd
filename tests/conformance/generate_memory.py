# generate_memory.py - steps of the generator with memory that is not there, with odd sizes, and on descriptors of other kinds.
# SPDX-License-Identifier: Apache-2.0
#
# What a call with such memory moves is the kernel's to say. Left out is what the kernel itself has by chance: how much of more than
# some hundred bytes it sends before it meets the end of the memory.

WHERES = ("null", "low", "nowhere", "wild", "kernel", "none", "file", "readonly", "end", "last", "endfile", "fine")
GONE = ("null", "low", "nowhere", "wild", "kernel", "none", "file")
SENDS = ("write", "send", "sendoob", "writev", "writevsecond", "sendmsg", "sendmsgiov", "sendmsgname", "sendmsgcontrol", "sendmmsg",
         "sendmmsgsecond", "sendto")
RECVS = ("recv", "peek", "recvmsg", "recvmsgiov", "recvmsgname", "recvmsgcontrol", "recvmmsg", "recvmmsgsecond", "recvmmsgtime", "recvfrom",
         "recvfromlen")
RECVS_BLOCKING = ("read", "readv", "readvsecond")
NAMES = ("name", "namelen", "peer", "peerlen")
OPTIONS = ("get", "getlen", "get", "getlen", "set")
WAITS = ("poll", "ppoll", "selectr", "selectw", "pselect", "ppolltime", "ppollmask", "selecttime", "pselecttime", "pselectmask")
SETS = ("add", "mod", "del", "wait", "waitone", "pwait", "pwaitmask", "pwait2time")
BY_LIBC = ("ppolltime", "selecttime", "pselecttime")  # libc itself looks at the time
OTHERS = ("fionread", "fionbio", "outq", "lock")
CUT_SENDS = ("send", "sendnow", "write", "writev", "sendmsg", "sendmmsg")
CUT_RECVS = ("recv", "recvall", "peek", "trunc", "recvfrom", "recvmsg", "recvmmsg")
CUT_RECVS_BLOCKING = ("read", "readv")
HALVES = ("nowhere", "none", "file", "readonly", "fine")
HUGE = ("0x7fffffff", "0x80000000", "0x7ffffffffffff000", "-1", "100000000")
ODD = ("sendto-negative", "sendto-long", "sendto-short", "sendto-none", "sendto-nowhere", "sendto-null", "recvfrom-negative", "recvfrom-length",
       "recvfrom-null", "name-negative", "name-long", "name-null", "name-nowhere", "control-huge", "control-null", "pieces-many", "piece-negative")
VECTORS = ("readvmany", "writevmany", "readvnegative", "writevnegative", "readvcount", "writevcount", "readvnone", "writevnone", "sendmsgmany",
           "recvmsgmany", "sendmmsgnone", "recvmmsgnone", "sendmsgnone", "recvmsgnone")
ON_OTHERS = ("send {n} abc NOSIGNAL", "recv {n} 10 DONTWAIT", "sendto {n} abc 9 NOSIGNAL", "recvmsg {n} 10 DONTWAIT", "recvmmsg {n} 10 DONTWAIT",
             "sendmmsg {n} ab cd", "shutdown {n} wr", "shutdown {n} bad", "listen {n} 3", "accept {n} x nonblock", "bind {n} 127.0.0.1 0",
             "name {n}", "peer {n}", "getopt {n} ERROR", "getopt {n} NODELAY", "setopt {n} NODELAY 1", "setopt {n} KEEPALIVE 1",
             "ioctl {n} FIONREAD", "ioctl {n} SIOCATMARK", "poll 0 {n}:IN,OUT", "select 0 {n}:rw", "epwait {n} 0", "epadd {n} {n} IN",
             "lseek {n}", "fstat {n}", "getfl {n}", "preadv2 {n} 5 -1 NOWAIT", "pread {n}", "write {n} -", "recvfrom {n} 10 DONTWAIT")
KINDS = (("file {y} content", 1), ("pipe {y} {z} nonblock", 2), ("socketpair {y} {z} unix nonblock", 2), ("socket {y} inet dgram nonblock", 1),
         ("socket {y} inet6 dgram nonblock", 1), ("socket {y} unix stream nonblock", 1), ("epcreate {y}", 1))


class MemorySteps:
    """Mixed into Generator, whose model it uses."""

    def some_socket(self, *kinds):
        some = self.alive(*(kinds or ("stream", "stream", "stream", "new", "listener")))
        return self.r.choice(some) if some else None

    def moved(self, o, size):
        """At most so many bytes go to the peer. False: it has too many already."""
        if o.peer is not None and o.peer.under_way + size > self.QUEUE_MAX or o.kind == "stream" and o.peer is None and o.early + size > self.QUEUE_MAX:
            return False
        if o.peer is not None:
            o.peer.under_way += size
        elif o.kind == "stream":
            o.early += size
        return True

    def bad_send(self):
        o = self.some_socket()
        what = self.r.choice(SENDS)
        if o is None or what == "sendoob" and not self.has_urgent or not self.moved(o, 30):
            return False
        self.emit(o.actor, f"bad {what} {self.r.choice(WHERES)} {self.r.choice(o.names)}")
        return True

    def one_piece(self, o):
        """What there is to read was sent at once: of several pieces the kernel has some in one, and some not. Or there is nothing."""
        if not self.quiet(o) or o.peer.actor == o.actor and self.has_urgent:
            return o.peer is None or not o.names
        self.emit(o.actor, f"recv {o.names[0]} 100000 DONTWAIT")
        if self.r.random() < 0.9:
            self.emit(o.peer.actor, f"send {o.peer.names[0]} {self.r.choice(('a', '0123456', 'x*100', 'yz*700'))} NOSIGNAL")
            o.under_way += 1400
        return True

    def take_error(self, o, what):
        """What keeps a recvmmsg() from its next message is told later, here by SO_ERROR alone (docs/deviations.md)."""
        if what.startswith("recvmmsg"):
            self.emit(o.actor, f"getopt {o.names[0]} ERROR")

    def bad_recv(self):
        o = self.some_socket()
        if o is None:
            return False
        waits = RECVS_BLOCKING if o.nonblock or o.kind != "stream" else ()
        what, where = self.r.choice(RECVS + waits), self.r.choice(WHERES)
        if (where in ("end", "last", "endfile") or "second" in what) and not self.one_piece(o):
            return False
        self.emit(o.actor, f"bad {what} {where} {self.r.choice(o.names)}")
        self.take_error(o, what)
        o.surely = 0
        return True

    def cut_send(self):
        o = self.some_socket("stream", "stream", "new")
        what, where = self.r.choice(CUT_SENDS), self.r.choice(HALVES)
        good = self.r.choice((1, 2, 10, 64, 100))
        size = self.r.choice((0, 1, good, good + 1, good + 1, 200, 1000, *HUGE))
        if where in ("readonly", "fine") and size in HUGE:
            size = 2000
        if o is None or not self.moved(o, 4000 if where in ("readonly", "fine") else 200):
            return False
        self.emit(o.actor, f"cut {what} {size} {good} {where} {self.r.choice(o.names)}")
        return True

    def cut_recv(self):
        o = self.some_socket()
        if o is None:
            return False
        waits = CUT_RECVS_BLOCKING if o.nonblock or o.kind != "stream" else ()
        good = self.r.choice((1, 2, 10, 64, 100, 1000))
        size = self.r.choice((0, 1, good, good + 1, good + 1, 200, 1000, 5000, *HUGE))
        if not (isinstance(size, int) and size <= good) and not self.one_piece(o):
            return False
        what = self.r.choice(CUT_RECVS + waits)
        self.emit(o.actor, f"cut {what} {size} {good} {self.r.choice(HALVES)} {self.r.choice(o.names)}")
        self.take_error(o, what)
        o.surely = 0
        return True

    def bad_question(self):
        o = self.some_socket()
        if o is None:
            return False
        what = self.r.choice((*NAMES, *OPTIONS, *OTHERS))
        if what.startswith("peer") and o.peer is not None and not o.peer.names:
            return False
        wheres = GONE if what == "set" else tuple(w for w in WHERES if w not in ("fine", "readonly", "end", "last", "endfile")) if what == "fionbio" else WHERES
        self.emit(o.actor, f"bad {what} {self.r.choice(wheres)} {self.r.choice(o.names)}")
        return True

    def bad_accept(self):
        """The client is lost, whether its name can be told or not."""
        some = [o for o in self.alive("listener") if not o.odd and (o.waiting or o.nonblock)]
        if not some:
            return False
        o = self.r.choice(some)
        self.emit(o.actor, f"bad {self.r.choice(('accept', 'acceptlen'))} {self.r.choice(WHERES)} {self.r.choice(o.names)}")
        client = o.waiting.pop(0) if o.waiting else None
        if client is not None:
            client.odd = client.ended = True
        return True

    def bad_connect(self):
        """A socket of its own, whose connection nobody uses."""
        some = [o for o in self.alive("listener") if o.family == "inet" and not o.odd and not o.waiting]
        if not some:
            return False
        o = self.r.choice(some)
        self.made += 1
        name = f"k{self.made}"
        self.emit(o.actor, f"socket {name} inet stream")
        self.emit(o.actor, f"bad {self.r.choice(('connect', 'bind'))} {self.r.choice(GONE + ('end', 'last', 'endfile'))} {name} {self.r.choice(o.names)}")
        self.emit(o.actor, f"peer {name}")
        self.emit(o.actor, f"close {name}")
        return True

    def bad_wait(self):
        actor = self.r.choice("AB")
        mine = [o for o in self.alive("stream", "new", "listener") if o.actor == actor]
        if not mine:
            return False
        one, two = (self.r.choice(self.r.choice(mine).names) for _ in "12")
        what = self.r.choice(WAITS)
        wheres = WHERES if what not in BY_LIBC else ("fine",) if what == "selecttime" else ("readonly", "fine")
        self.emit(actor, f"bad {what} {self.r.choice(wheres)} {one} {self.r.choice((two, 'nosuch'))}")
        return True

    def bad_set(self):
        sets = self.alive("set")
        if not sets:
            return self.epoll()
        o = self.r.choice(sets)
        mine = [x for x in self.alive("stream", "new", "listener") if x.actor == o.actor]
        if not mine:
            return False
        what = self.r.choice(SETS)
        self.emit(o.actor, f"bad {what} {self.r.choice(WHERES)} {self.r.choice(o.names)} {self.r.choice(self.r.choice(mine).names)}")
        return True

    def odd_size(self):
        o = self.some_socket("stream", "stream", "new")
        if o is None or not self.moved(o, 20):
            return False
        name = self.r.choice(o.names)
        what = self.r.choice(ODD + VECTORS)
        if what.startswith(("readv", "writev")) and not o.nonblock and "none" not in what and "count" not in what and "many" not in what:
            return False
        self.emit(o.actor, f"odd {what} {name}" if what in ODD else f"badvector {what} {name}")
        o.surely = 0
        return True

    def other_kind(self):
        """Descriptors that are no TCP sockets, or none."""
        actor = self.r.choice("AB")
        self.made += 1
        y, z = f"y{self.made}", f"z{self.made}"
        form, count = self.r.choice(KINDS)
        self.emit(actor, form.format(y=y, z=z))
        for _ in range(self.r.randrange(1, 5)):
            name = self.r.choice((y, z)[:count] + ("nosuch",) * (self.r.random() < 0.2))
            if self.r.random() < 0.4:
                what = self.r.choice(tuple(w for w in SENDS + RECVS + NAMES + WAITS + OTHERS if w != "fionbio" and w not in BY_LIBC))
                self.emit(actor, f"bad {what} {self.r.choice(WHERES)} {name} {y}")
            else:
                step = self.r.choice(ON_OTHERS)
                if step.startswith("epadd") and form.startswith("epcreate") or name == "nosuch" and step.startswith("select"):
                    continue
                self.emit(actor, step.format(n=name))
        for name in (y, z)[:count]:
            self.emit(actor, f"close {name}")
        return True

    MEMORY_STEPS = ((bad_send, 14), (bad_recv, 14), (cut_send, 16), (cut_recv, 18), (bad_question, 8), (bad_accept, 2), (bad_connect, 2),
                    (bad_wait, 6), (bad_set, 8), (odd_size, 5), (other_kind, 3))
