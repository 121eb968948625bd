# generate.py - socket-call programs at random: seeded, guided by a model of what may block, and shrunk when they differ.
# SPDX-License-Identifier: Apache-2.0
#
# A generated case is what a hand-written one is: lines for the actors A and B. The model knows just enough of TCP to stay clear
# of what the kernel itself does differently from run to run: calls that would block for ever, queues that overflow, Nagle's and
# the delayed acknowledgement's clocks. What the calls return it does not know: the kernel says that.

import random

from generate_memory import MemorySteps
from generate_ports import PortSteps
from generate_steps import IMAGES, WaitingSteps

READS = ("recv {n} {size} DONTWAIT", "recv {n} {size} DONTWAIT", "recv {n} {size} DONTWAIT PEEK", "recvfrom {n} {size} DONTWAIT",
         "recvmsg {n} {size} DONTWAIT", "recvmmsg {n} {size} {size} DONTWAIT", "recv {n} {size} DONTWAIT TRUNC", "preadv2 {n} {size} -1 NOWAIT",
         "recvmmsgt {n} 1000 {size} 2 DONTWAIT", "recvmsgc {n} {size} DONTWAIT")
READS_BLOCKING = ("read {n} {size}", "readv {n} 1 {size}", "recv {n} {size}", "recvfrom {n} {size}", "splicefrom {n} {size}", "recvmsg {n} {size} PEEK",
                  "preadv2 {n} {size} -1")
WRITES = ("send {n} {data}", "send {n} {data} NOSIGNAL", "send {n} {data} DONTWAIT", "write {n} {data}", "writev {n} {data} - {data}",
          "sendmmsg {n} {data} {data}", "sendfile {n} {data}", "spliceto {n} {data}", "sendto {n} {data} 9 NOSIGNAL", "sendmsgs {n} - {data} {data}",
          "pwritev2 {n} {data} -1")
URGENT = ("send {n} {data} OOB", "recv {n} 1 OOB DONTWAIT", "recv {n} 1 OOB DONTWAIT", "recv {n} 1 OOB PEEK DONTWAIT", "ioctl {n} SIOCATMARK",
          "recvmsg {n} 2 OOB DONTWAIT")
WORDS = ("a", "bc", "def", "0123456789", "x*100", "yz*700", "-")
EVENTS = ("IN", "OUT", "IN,OUT", "IN,RDHUP", "IN,OUT,RDHUP,PRI", "RDHUP", "IN,ET", "IN,OUT,ET", "IN,OUT,RDHUP,ET", "IN,ONESHOT", "OUT,ONESHOT",
          "IN,OUT,ET,ONESHOT", "IN,EXCLUSIVE", "IN,ET,EXCLUSIVE", "IN,OUT,HUP,ERR")
OPTIONS_GET = ("PRIORITY", "DONTROUTE", "REUSEPORT", "LINGER2", "SNDLOWAT", "CONGESTION", "CORK", "ACCEPTCONN", "ERROR",
               "KEEPALIVE", "LINGER", "OOBINLINE", "REUSEADDR", "TYPE", "DOMAIN", "PROTOCOL", "NODELAY", "RCVLOWAT", "KEEPIDLE",
               "RCVTIMEO", "SNDTIMEO", "KEEPCNT", "KEEPINTVL", "USER_TIMEOUT", "SYNCNT", "UNKNOWN", "UNKNOWN_TCP", "BROADCAST",
               "BUF_LOCK", "NOTSENT_LOWAT")
OPTIONS_SET = ("PRIORITY 3", "PRIORITY 9", "DONTROUTE 1", "LINGER2 20", "KEEPCNT 0", "KEEPIDLE 40000", "SNDLOWAT 3",
               "SYNCNT 200", "KEEPALIVE 1", "KEEPALIVE 0", "OOBINLINE 1", "REUSEADDR 1", "NODELAY 1", "KEEPIDLE 30",
               "KEEPCNT 3", "KEEPINTVL 0", "RCVTIMEO 5000", "SNDTIMEO 5000", "USER_TIMEOUT 9000", "UNKNOWN 1", "UNKNOWN_TCP 1",
               "TYPE 1", "LINGER 0 7", "BROADCAST 1", "SYNCNT 3",
               "SNDBUF 30000", "SNDBUF 90000", "SNDBUFFORCE 50000", "RCVBUF 70000", "RCVBUFFORCE 90000", "NOTSENT_LOWAT 9000",
               "NOTSENT_LOWAT 40000")
QUEUE_MAX = 24000  # bytes under way in one direction: no buffer is as small
BACKLOG = 8        # and no queue as short


class Object:
    """What descriptors mean: a socket or an event set. Duplicates share one."""

    def __init__(self, actor, kind, family="inet", nonblock=False):
        self.actor, self.kind, self.family, self.nonblock = actor, kind, family, nonblock
        self.names = []
        self.port = None     # variable with a listener's port
        self.waiting = []    # clients that the listener has not accepted
        self.clients = []    # all that it has had
        self.peer = None     # other end
        self.under_way = 0   # bytes sent to it and not read, at most
        self.surely = 0      # ... at least
        self.ended = False   # its peer has closed or shut down
        self.odd = False     # reset, or something that makes the model's knowledge void
        self.refused = False  # a connect() failed: the kernel's from then on
        self.passed = False  # to another process, or to its own: the same

    def way(self):
        return self.actor, self.refused, self.epoch, self.passed


class Generator(WaitingSteps, PortSteps):
    QUEUE_MAX = QUEUE_MAX

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.lines, self.objects = [], []
        self.made = self.ports = 0
        self.images = 0  # that an actor was replaced by
        self.has_urgent = self.r.random() < 0.1  # in few: it changes all that is read

    def emit(self, actor, text):
        self.lines.append((actor, text))

    def name(self, thing, prefix):
        self.made += 1
        name = f"{prefix}{self.made}"
        thing.names.append(name)
        return name

    def alive(self, *kinds):
        return [o for o in self.objects if o.names and (not kinds or o.kind in kinds)]

    def data(self):
        return self.r.choice(WORDS) if self.r.random() < 0.9 else f"blk{self.r.randrange(10)}*{self.r.choice((300, 1000, 2000))}"

    # ---- steps; each returns False when it does not apply

    def new_socket(self):
        o = Object(self.r.choice("AB"), "new", self.r.choice(("inet", "inet", "inet6")), self.r.random() < 0.6)
        self.objects.append(o)
        flags = " nonblock" * o.nonblock + " cloexec" * (self.r.random() < 0.2)
        self.emit(o.actor, f"socket {self.name(o, 's')} {o.family} stream{flags}")
        return True

    def listener(self):
        o = Object(self.r.choice("AB"), "listener", self.r.choice(("inet", "inet", "inet6")), self.r.random() < 0.7)
        self.objects.append(o)
        name = self.name(o, "l")
        self.emit(o.actor, f"socket {name} {o.family} stream{' nonblock' * o.nonblock}")
        host = self.r.choice(("127.0.0.1", "0.0.0.0", "127.0.0.1")) if o.family == "inet" else self.r.choice(("::1", "::", "::1"))
        o.any = host in ("0.0.0.0", "::")
        if self.r.random() < 0.15:
            self.emit(o.actor, f"listen {name} {BACKLOG}")  # without bind: any address
            o.any = True
        else:
            self.emit(o.actor, f"bind {name} {host} 0")
            self.emit(o.actor, f"listen {name} {BACKLOG}")
        self.ports += 1
        o.port = f"p{self.ports}"
        self.lines.append((o.actor, f"name {name} => {o.port}"))
        return True

    def connect(self):
        listeners = [o for o in self.alive("listener") if len(o.waiting) < BACKLOG - 2 and not o.odd]
        if not listeners:
            return False
        target = self.r.choice(listeners)
        fits = [o for o in self.alive("new") if o.family == target.family and not o.odd]
        if not fits or self.r.random() < 0.5:
            o = Object(self.r.choice("AB"), "new", target.family, self.r.random() < 0.5)
            self.objects.append(o)
            self.emit(o.actor, f"socket {self.name(o, 'c')} {o.family} stream{' nonblock' * o.nonblock}")
        else:
            o = self.r.choice(fits)
        # Clients through the kernel and others are in two queues, without an order between them (docs/deviations.md).
        if any(one is not None and one.way() != o.way() for one in target.waiting):
            return False
        host = {"inet": "127.0.0.1", "inet6": "::1"}[o.family]
        if target.any and o.family == "inet" and self.r.random() < 0.3:
            host = self.r.choice(("127.0.0.9", "0.0.0.0"))
        name = self.r.choice(o.names)
        self.emit(o.actor, f"connect {name} {host} ${target.port}")
        self.emit(o.actor, f"setopt {name} NODELAY 1")
        o.kind = "stream"
        target.waiting.append(o)
        target.clients.append(o)
        if self.r.random() < 0.7:
            self.accept_from(target)
        return True

    def accept_from(self, o):
        nonblock = self.r.random() < 0.5
        made = Object(o.actor, "stream", o.family, nonblock)
        command = self.r.choice(("accept",) * 4 + ("acceptnull",))
        name = self.name(made, "a")
        self.emit(o.actor, f"{command} {self.r.choice(o.names)} {name}" + (" nonblock" if nonblock and command == "accept" else ""))
        made.nonblock = nonblock and command == "accept"
        if o.waiting:
            client = o.waiting.pop(0)
            if client is not None:
                made.peer, client.peer = client, made
                made.under_way, made.surely, made.ended, made.odd = client.early, client.early, client.gone, client.odd or client.gone
            self.emit(o.actor, f"setopt {name} NODELAY 1")
            self.objects.append(made)
        return True

    def accept(self):
        ready = [o for o in self.alive("listener") if o.waiting or o.nonblock]
        return bool(ready) and self.accept_from(self.r.choice(ready))

    def refused(self):
        fits = [o for o in self.alive("new") if not o.odd]
        if not fits:
            return False
        o = self.r.choice(fits)
        o.refused = True
        host = {"inet": "127.0.0.1", "inet6": "::1"}[o.family]
        self.emit(o.actor, f"connect {self.r.choice(o.names)} {host} 1")
        return True

    def write(self):
        streams = [o for o in self.alive("stream", "new", "listener")]
        if not streams:
            return False
        o = self.r.choice(streams)
        peer = o.peer
        data = self.data()
        size = self.size_of(data) * 2
        if peer is not None and peer.under_way + size > QUEUE_MAX or peer is None and o.kind == "stream" and o.early + size > QUEUE_MAX:
            return False
        form = self.r.choice(WRITES if data != "-" else WRITES[:-1])
        self.emit(o.actor, form.format(n=self.r.choice(o.names), data=data))
        if peer is not None:
            peer.under_way += size
            peer.surely += 0 if peer.odd or o.odd or data == "-" else 1
        elif o.kind == "stream":
            o.early += size
        return True

    def urgent(self):
        some = [o for o in self.alive("stream") if o.peer is None or o.peer.under_way < QUEUE_MAX]
        if not some or not self.has_urgent:
            return False
        o = self.r.choice(some)
        self.emit(o.actor, self.r.choice(URGENT).format(n=self.r.choice(o.names), data=self.r.choice(("!", "abc!"))))
        if o.peer is not None:
            o.peer.under_way += 4
        return True

    @staticmethod
    def size_of(data):
        word, _, times = data.partition("*")
        return len(word) * int(times or 1)

    def read(self):
        some = self.alive("stream", "new", "listener")
        if not some:
            return False
        o = self.r.choice(some)
        size = self.r.choice((0, 1, 2, 3, 5, 10, 64, 100, 1000, 5000, 100000))
        safe = o.nonblock or o.kind != "stream"
        form = self.r.choice(READS + READS_BLOCKING * 2 if safe else READS)
        size = max(size, 1) if "preadv2" in form else size
        self.emit(o.actor, form.format(n=self.r.choice(o.names), size=size))
        if "PEEK" not in form:
            o.surely = 0
            if size >= 100000:
                o.under_way = 0
        return True

    def shutdown(self):
        some = self.alive("stream", "stream", "new")
        if not some:
            return False
        o = self.r.choice(some)
        self.emit(o.actor, f"shutdown {self.r.choice(o.names)} {self.r.choice(('wr', 'wr', 'wr', 'rd', 'rdwr', 'bad'))}")
        if o.peer is not None:
            o.peer.ended = True
        elif o.kind == "stream":
            o.gone = True
        return True

    def close(self):
        some = self.alive()
        if len(some) < 2:
            return False
        o = self.r.choice(some)
        name = self.r.choice(o.names)
        o.names.remove(name)
        if o.kind == "stream" and not o.names and self.r.random() < 0.2:
            self.emit(o.actor, f"setopt {name} LINGER 1 0")
        self.emit(o.actor, f"close {name}")
        if not o.names:
            if o.peer is not None:
                o.peer.ended = o.peer.odd = True
            o.gone = True
            for client in o.waiting:
                if client is not None:
                    client.odd = client.ended = True
        return True

    def dup(self):
        some = self.alive()
        if not some:
            return False
        o = self.r.choice(some)
        old = self.r.choice(o.names)
        self.emit(o.actor, f"{self.r.choice(('dup', 'dup', 'dupfd'))} {old} {self.name(o, 'd')}")
        return True

    def child(self):
        """A forked child uses what it inherits, and ends: its copies close."""
        some = [o for o in self.alive("stream") if o.peer is not None and o.peer.under_way < QUEUE_MAX - 4000]
        if not some:
            return False
        o = self.r.choice(some)
        name = self.r.choice(o.names)
        actions = [f"send {name} {self.r.choice(WORDS)} NOSIGNAL", f"recv {name} 5 DONTWAIT", f"poll 0 {name}:IN,OUT,RDHUP", f"name {name}",
                   f"getopt {name} ERROR", f"ioctl {name} FIONREAD"]
        if self.r.random() < 0.1:
            actions.append(f"shutdown {name} wr")
            o.peer.ended = True
        chosen = self.r.sample(actions, self.r.randrange(1, 4))
        image = self.r.choices(IMAGES, (8, 2, 1, 1))[0]
        self.emit(o.actor, f"{image} " + " ; ".join(chosen))
        o.peer.under_way += 1400
        o.surely = 0
        return True

    def epoll(self):
        sets = self.alive("set")
        if not sets or len(sets) < 2 and self.r.random() < 0.1:
            o = Object(self.r.choice("AB"), "set")
            self.objects.append(o)
            self.emit(o.actor, f"epcreate {self.name(o, 'e')}")
            return True
        o = self.r.choice(sets)
        mine = [x for x in self.alive() if x.actor == o.actor and x is not o and (x.kind != "set" or self.r.random() < 0.1)]
        name = self.r.choice(o.names)
        dice = self.r.random()
        if mine and dice < 0.5:
            x = self.r.choice(mine)
            what = self.r.choice(("epadd", "epadd", "epadd", "epmod", "epdel"))
            events = self.r.choice(EVENTS if x.kind != "set" else ("IN", "IN,OUT"))
            self.emit(o.actor, f"{what} {name} {self.r.choice(x.names)}" + (f" {events}" if what != "epdel" else ""))
            x.edge = x.edge or "ET" in events
        else:
            self.emit(o.actor, self.r.choice(("epwait {n} 0", "epwait {n} 0", "epwait2 {n} 0", "epwaitm {n} 0 empty")).format(n=name))
        return True

    def readiness(self):
        actor = self.r.choice("AB")
        mine = [o for o in self.alive("stream", "new", "listener") if o.actor == actor]
        if not mine:
            return False
        some = self.r.sample(mine, min(len(mine), self.r.randrange(1, 4)))
        dice = self.r.random()
        if dice < 0.2:
            o = some[0]
            self.emit(actor, self.r.choice(("ppoll 0 {n}:IN,OUT,RDHUP", "pselect 0 {n}:rwe", "ppollm 0 empty {n}:IN,OUT", "poll 0 {n}:IN,OUT,HUP,ERR,NVAL"))
                      .format(n=self.r.choice(o.names)))
        elif dice < 0.7:
            events = ("IN", "OUT", "IN,OUT", "IN,OUT,RDHUP,PRI", "RDHUP", "")
            self.emit(actor, "poll 0 " + " ".join(f"{self.r.choice(o.names)}:{self.r.choice(events)}" for o in some))
        else:
            self.emit(actor, "select 0 " + " ".join(f"{self.r.choice(o.names)}:{self.r.choice(('r', 'w', 'rw', 'rwe'))}" for o in some))
        return True

    def question(self):
        some = self.alive("stream", "new", "listener")
        if not some:
            return False
        o = self.r.choice(some)
        name = self.r.choice(o.names)
        form = self.r.choice(("name {n}", "peer {n}", "getopt {n} {g}", "getopt {n} ERROR", "setopt {n} {s}", "ioctl {n} FIONREAD", "ioctl {n} SIOCATMARK",
                              "getfl {n}", "fstat {n}", "lseek {n}", "pread {n}", "badbuffer {n} send", "setfd {n} on"))
        if form == "peer {n}" and o.peer is not None and not o.peer.names:
            return False  # the next socket may have its port (docs/deviations.md)
        self.emit(o.actor, form.format(n=name, g=self.r.choice(OPTIONS_GET), s=self.r.choice(OPTIONS_SET)))
        return True

    def wrong(self):
        """Calls in a state that does not take them."""
        some = self.alive("stream", "new", "listener", "set")
        if not some:
            return False
        o = self.r.choice(some)
        name = self.r.choice(o.names)
        forms = ["bind {n} 127.0.0.1 0", "accept {n} x", "epwait {n} 0", "epadd {n} {n} IN", "connect {n} 192.0.2.1 9 3", "bind {n} ::1 0"]
        if o.kind in ("stream", "listener"):
            forms += ["connect {n} 127.0.0.1 1"]
        if o.kind == "stream":
            forms += ["listen {n} 5"]
        form = self.r.choice(forms)
        ended = o.ended or o.odd or o.gone or o.peer is None or o.peer.ended or o.peer.odd or o.peer.gone
        if form.startswith("bind") and o.kind == "stream" and ended:
            return False  # the kernel has given up the port of a connection that was reset
        if "accept" in form and o.kind == "listener":
            return False
        self.emit(o.actor, form.format(n=name))
        if o.kind == "new":
            o.odd = True
        return True

    def connected_object(self, actor, family):
        o = Object(actor, "stream", family)
        self.objects.append(o)
        return o

    # ---- whole cases

    STEPS = ((new_socket, 4), (listener, 3), (connect, 14), (accept, 6), (refused, 1), (write, 22), (read, 20), (shutdown, 5), (close, 6), (dup, 3),
             (child, 1.5), (epoll, 18), (readiness, 12), (urgent, 12), (question, 8), (wrong, 2), *WaitingSteps.WAITING_STEPS,
             *PortSteps.PORT_STEPS)

    def case(self):
        length = self.r.choice((6, 10, 16, 25, 40))
        self.listener()
        self.connect()
        steps, weights = zip(*self.STEPS)
        while len(self.lines) < length:
            self.r.choices(steps, weights)[0](self)
        for o in self.alive("stream", "new", "listener"):
            n = o.names[0]
            self.emit(o.actor, f"poll 0 {n}:IN,OUT,RDHUP,PRI")
            if o.kind == "stream":
                self.emit(o.actor, f"recv {n} 100000 DONTWAIT")
                self.emit(o.actor, f"recv {n} 100000 DONTWAIT")
                self.emit(o.actor, f"getopt {n} ERROR")
        for actor in "AB":
            self.emit(actor, "sigpipes")
        return [f"{actor} {text}" for actor, text in self.lines]


Object.epoch = 0      # which of its actor's ways to connect was the one at that time
Object.early = 0      # bytes written before the connection was accepted
Object.gone = False   # closed or shut down by its owner
Object.any = False
Object.edge = False   # it may be in a set that tells of edges
Object.lowat = False  # it has SO_RCVLOWAT: a reader may wait for more than is sent


class MemoryGenerator(MemorySteps, Generator):
    """Every other step has bad memory, an odd size or a descriptor of another kind."""

    STEPS = (*Generator.STEPS, *MemorySteps.MEMORY_STEPS)


class PortGenerator(Generator):
    """Ports in FIN_WAIT2 and TIME_WAIT, names after a reset, whole queues."""

    STEPS = (*Generator.STEPS, *PortSteps.FREED_STEPS)


def generate(seed, count, kind=Generator, prefix="g"):
    """`count` distinct cases [(name, lines)]; the same for the same seed."""
    cases, seen, number = [], set(), 0
    while len(cases) < count:
        lines = kind(f"{seed}-{number}").case()
        if tuple(lines) not in seen:
            seen.add(tuple(lines))
            cases.append((f"{prefix}{seed}-{number}", lines))
        number += 1
    return cases


def shrink(lines, still_differs):
    """The fewest of these lines for which still_differs(lines) holds (delta debugging)."""
    pieces = 2
    while len(lines) >= 2:
        size = max(1, len(lines) // pieces)
        for at in range(0, len(lines), size):
            fewer = lines[:at] + lines[at + size:]
            if fewer and still_differs(fewer):
                lines, pieces = fewer, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(lines), pieces * 2)
    return lines
