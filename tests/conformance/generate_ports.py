# generate_ports.py - steps of the generator about ports that are taken, and about the sizes of buffers.
# SPDX-License-Identifier: Apache-2.0
#
# The kernel says what is taken; the steps stay clear of what Postern is known to have otherwise (docs/deviations.md): ports of
# connections between two other programs, and clients beyond a listener's backlog.

SIZES = ("SNDBUF 1", "SNDBUF 5000", "SNDBUF 40000", "SNDBUF 200000", "SNDBUFFORCE 9000", "RCVBUF 1", "RCVBUF 5000", "RCVBUF 60000",
         "RCVBUFFORCE 9000", "NOTSENT_LOWAT 1", "NOTSENT_LOWAT 20000")
# Of a socket whose connect() waits.
ASKS_WAITING = ("poll 20 {n}:IN,OUT,RDHUP,PRI", "select 0 {n}:rwx", "getopt {n} ERROR", "peer {n}", "send {n} x NOSIGNAL", "recv {n} 5", "sendfile {n} abc",
                "readv {n} 3 3", "writev {n} a b", "ioctl {n} FIONREAD", "tcpstate {n}", "listen {n} 2", "bind {n} 127.0.0.1 0", "shutdown {n} wr",
                "shutdown {n} rdwr", "connect {n} unspec 0")


class PortSteps:
    """Mixed into Generator, whose model it uses."""

    def port_is_known(self, listener, actor):
        """Each connection over its port is open at both ends, and the actor has one of them."""
        def is_open(client):
            both = (client, client.peer) if client.peer is not None else (client,)
            return all(o.names and not (o.odd or o.ended or o.gone or o.refused) for o in both) and any(o.actor == actor for o in both)
        return not listener.odd and listener.port and all(is_open(client) for client in listener.clients)

    def bind_to_taken(self):
        """With a socket that is closed again at once."""
        actor = self.r.choice("AB")
        some = [o for o in self.objects if o.kind == "listener" and o.family == "inet" and o.clients and self.port_is_known(o, actor)]
        if not some:
            return False
        o = self.r.choice(some)
        # A listener that is closed with clients in its queue resets them.
        if not o.names and o.waiting:
            return False
        self.made += 1
        name = f"b{self.made}"
        host = self.r.choice(("127.0.0.1", "127.0.0.1", "0.0.0.0" if o.any else "127.0.0.1"))
        self.emit(actor, f"socketbind {name} inet {host} ${o.port} {self.r.choice(('REUSEADDR', 'REUSEADDR', 'REUSEPORT'))} {self.r.randrange(2)}")
        self.emit(actor, f"close {name}")
        return True

    def reusing_listener(self):
        """A listener with SO_REUSEADDR, a client of it, and the listener closed."""
        self.made += 3
        l, c, s = f"l{self.made - 2}", f"c{self.made - 1}", f"a{self.made}"
        server, client = self.r.choice(("AB", "BA"))
        self.ports += 1
        port = f"p{self.ports}"
        self.emit(server, f"socketbind {l} inet 127.0.0.1 0 {self.r.choice(('REUSEADDR', 'REUSEPORT'))} {self.r.randrange(2)}")
        self.emit(server, f"listen {l} 4")
        self.emit(server, f"name {l} => {port}")
        self.emit(client, f"socketconnect {c} inet 127.0.0.1 ${port}")
        self.emit(server, f"accept {l} {s}")
        closed = self.r.random() < 0.7
        if closed:
            self.emit(server, f"close {l}")
        if self.r.random() < 0.5:
            self.emit(server, f"setopt {s} REUSEADDR {self.r.randrange(2)}")
        for actor in self.r.sample((server, client), self.r.randrange(1, 3)):
            self.emit(actor, f"socketbind b{s} inet 127.0.0.1 ${port} {self.r.choice(('REUSEADDR', 'REUSEPORT'))} {self.r.randrange(2)}")
            self.emit(actor, f"close b{s}")
        for actor, name in ((client, c), (server, s)):
            self.emit(actor, f"setopt {name} LINGER 1 0")
            self.emit(actor, f"close {name}")
        if not closed:
            self.emit(server, f"close {l}")
        return True

    def same_names(self):
        """Two clients that share a port, to one listener."""
        some = [o for o in self.alive("listener") if o.family == "inet" and not o.waiting and not o.odd]
        if not some:
            return False
        o = self.r.choice(some)
        other = self.r.choice("AB")
        self.made += 1
        one, two, s, port = f"t{self.made}", f"u{self.made}", f"v{self.made}", f"q{self.made}"
        option = self.r.choice(("REUSEADDR", "REUSEPORT"))
        host = self.r.choice(("127.0.0.1", "0.0.0.0", "127.0.0.5" if o.any else "127.0.0.1"))
        self.emit(other, f"socketbind {one} inet {host} 0 {option} 1")
        self.emit(other, f"name {one} => {port}")
        self.emit(other, f"connect {one} 127.0.0.1 ${o.port}")
        self.emit(o.actor, f"accept {self.r.choice(o.names)} {s}")
        self.emit(other, f"socketbind {two} inet {host} ${port} {option} 1")
        self.emit(other, f"connect {two} 127.0.0.1 ${o.port}")
        self.emit(other, f"name {two}")
        self.emit(other, f"close {two}")
        for actor, name in ((other, one), (o.actor, s)):
            self.emit(actor, f"setopt {name} LINGER 1 0")
            self.emit(actor, f"close {name}")
        return True

    def bounded(self):
        """A connection with small buffers of its own: filled, emptied, filled while a thread waits."""
        some = [o for o in self.alive("listener") if not o.waiting and not o.odd]
        if not some:
            return False
        o = self.r.choice(some)
        other = "A" if o.actor == "B" else "B"
        self.made += 1
        c, s = f"f{self.made}", f"g{self.made}"
        host = "::1" if o.family == "inet6" else "127.0.0.1"
        self.emit(other, f"socket {c} {o.family} stream")
        early, late = self.r.choice(SIZES), self.r.choice(SIZES)
        self.emit(other, f"setopt {c} {early}")
        self.emit(other, f"connect {c} {host} ${o.port}")
        self.emit(o.actor, f"accept {self.r.choice(o.names)} {s}")
        writer, w, reader, r = self.r.choice(((other, c, o.actor, s), (o.actor, s, other, c)))
        self.emit(writer, f"setopt {w} {late}")
        option = late.split()[0].replace("FORCE", "")
        self.emit(writer, f"getopt {w} {option}")
        self.emit(writer, f"getopt {w} BUF_LOCK")
        self.emit(writer, f"fill {w}")
        self.emit(writer, f"poll 0 {w}:OUT")
        if self.r.random() < 0.3:
            self.emit(writer, f"setopt {w} SNDBUF 300000")
        else:
            self.emit(reader, f"drain {r}")
        self.emit(writer, f"poll 1000 {w}:OUT")
        self.emit(writer, f"bg w send {w} f*200000 NOSIGNAL")
        self.emit(reader, f"poll 1000 {r}:IN")
        self.emit(reader, f"drain {r}")
        self.emit(writer, "join w")
        self.emit(writer, f"close {w}")
        self.emit(reader, f"rest {r}")
        self.emit(reader, f"close {r}")
        return True

    def small_server(self, backlog=4):
        """A listener of its own, which no other step uses: (its actor, the other, its name, its port)."""
        self.made += 1
        self.ports += 1
        name, port = f"l{self.made}", f"p{self.ports}"
        server, client = self.r.choice(("AB", "BA"))
        host = self.r.choice(("127.0.0.1", "127.0.0.1", "0.0.0.0"))
        self.emit(server, f"socketbind {name} inet {host} 0 {self.r.choice(('REUSEADDR', 'REUSEPORT'))} {self.r.randrange(2)}")
        self.emit(server, f"listen {name} {backlog}")
        self.emit(server, f"name {name} => {port}")
        return server, client, name, port

    def small_pair(self):
        """Of a small server, with one client: what small_server() says, and both ends, (actor, name) each, in the order in which they end."""
        server, client, l, port = self.small_server()
        self.made += 2
        c, s = f"c{self.made - 1}", f"a{self.made}"
        self.emit(client, f"socketconnect {c} inet 127.0.0.1 ${port}")
        self.emit(server, f"accept {l} {s}")
        ends = [(server, s), (client, c)]
        self.r.shuffle(ends)
        return server, client, l, port, *ends

    def ended_port(self):
        """A connection that ends in one of the ways there are, and who may bind to its port while that is in FIN_WAIT2 or TIME_WAIT."""
        server, client, l, port, (first, one), (second, two) = self.small_pair()
        if self.r.random() < 0.3:
            self.emit(second, f"send {two} unread")
        self.emit(server, f"close {l}")
        if self.r.random() < 0.3:
            self.emit(first, f"shutdown {one} wr")
            self.emit(second, f"poll 1000 {two}:IN")
        else:
            if self.r.random() < 0.15:
                self.emit(first, f"setopt {one} LINGER 1 0")
            self.emit(first, f"close {one}")
            one = None
            self.emit(second, f"poll 1000 {two}:IN")
            if self.r.random() < 0.5:
                self.bind_once(server, port)
        if self.r.random() < 0.3:
            self.emit(second, f"shutdown {two} wr")
        self.emit(second, f"close {two}")
        if one is not None:
            self.emit(first, f"poll 1000 {one}:IN")
            self.emit(first, f"recv {one} 10")
            self.emit(first, f"close {one}")
        self.emit(server, "sleep 2")
        for actor in self.r.sample((server, client), self.r.randrange(1, 3)):
            self.bind_once(actor, port)
        return True

    def bind_once(self, actor, port):
        self.made += 1
        name = f"b{self.made}"
        option = f"{self.r.choice(('REUSEADDR', 'REUSEADDR', 'REUSEPORT'))} {self.r.randrange(2)}"
        self.emit(actor, f"socketbind {name} inet {self.r.choice(('127.0.0.1', '127.0.0.1', '0.0.0.0', '127.0.0.7'))} ${port} {option}")
        if self.r.random() < 0.5:
            self.emit(actor, f"listen {name} 3")
        self.emit(actor, f"close {name}")

    def renamed(self):
        """A connection that was reset, or has ended, is bound anew."""
        server, client, l, port, (first, one), (second, two) = self.small_pair()
        if self.r.random() < 0.5:
            self.emit(first, f"setopt {one} LINGER 1 0")
            self.emit(first, f"close {one}")
        else:
            self.emit(first, f"shutdown {one} wr")
            self.emit(second, f"shutdown {two} wr")
            self.emit(first, f"poll 1000 {one}:HUP")
            self.emit(first, f"close {one}")
        self.emit(second, f"poll 1000 {two}:HUP")
        host = self.r.choice(("127.0.0.1 0", "0.0.0.0 0", "192.0.2.1 0", "::1 0", f"127.0.0.1 ${port}"))
        self.emit(second, f"bind {two} {host}")
        self.emit(second, f"recv {two} 5 DONTWAIT")
        self.emit(second, f"connect {two} 127.0.0.1 ${port}")
        self.emit(second, f"close {two}")
        self.emit(server, f"close {l}")
        return True

    def whole_queue(self):
        """As many clients as a listener's queue takes; none has to wait."""
        backlog = self.r.randrange(4)
        server, client, l, port = self.small_server(backlog)
        self.made += backlog + 1
        clients = [f"c{self.made - i}" for i in range(backlog + 1)]
        for c in clients:
            self.emit(client, f"socketconnect {c} inet 127.0.0.1 ${port}")
            if self.r.random() < 0.3:
                self.emit(client, f"send {c} early NOSIGNAL")
        gone = self.r.choice(clients) if self.r.random() < 0.3 else None
        if gone:
            self.emit(client, f"close {gone}")
        for c in clients:
            self.emit(server, f"accept {l} a{c}")
            if self.r.random() < 0.5:
                self.emit(server, f"recv a{c} 10 DONTWAIT")
        self.emit(server, f"setfl {l} nonblock")
        self.emit(server, f"accept {l} x")
        for c in clients:
            self.emit(server, f"close a{c}")
            if c != gone:
                self.emit(client, f"close {c}")
        self.emit(server, f"close {l}")
        return True

    def beyond_queue(self):
        """One more client than a listener's queue takes: it waits. What it would get when there is room again takes the kernel a second."""
        backlog = self.r.randrange(1, 4)
        server, client, l, port = self.small_server(backlog)
        self.made += backlog + 2
        clients = [f"c{self.made - i}" for i in range(backlog + 1)]
        late = f"c{self.made - backlog - 1}"
        for c in clients:
            self.emit(client, f"socketconnect {c} inet 127.0.0.1 ${port}")
        nonblock = self.r.random() < 0.8
        self.emit(client, f"socket {late} inet stream{' nonblock' * nonblock}")
        if not nonblock:
            self.emit(client, f"setopt {late} SNDTIMEO 5")
        self.emit(client, f"connect {late} 127.0.0.1 ${port}")
        if not nonblock:
            self.emit(client, f"setfl {late} nonblock")
        for ask in self.r.sample(ASKS_WAITING, self.r.randrange(1, 6)):
            self.emit(client, ask.format(n=late))
        self.emit(client, f"close {late}")
        for c in clients:
            self.emit(server, f"accept {l} a{c}")
        for c in self.r.sample(clients, len(clients)):
            self.emit(client, f"close {c}")
            self.emit(server, f"close a{c}")
        self.emit(server, f"close {l}")
        return True

    def bind_beside(self):
        """The port of a client that was not bound, at its address, at another one, at all."""
        server, client, l, port = self.small_server(2)
        self.made += 2
        c, s, taken = f"c{self.made - 1}", f"a{self.made}", f"q{self.made}"
        self.emit(client, f"socketconnect {c} inet 127.0.0.1 ${port}")
        self.emit(client, f"name {c} => {taken}")
        self.emit(server, f"accept {l} {s} nonblock")
        for i, host in enumerate(self.r.sample(("127.0.0.1", "127.0.0.2", "127.0.0.77", "0.0.0.0"), self.r.randrange(1, 4))):
            actor = self.r.choice("AB")
            self.emit(actor, f"socketbind b{i}{s} inet {host} ${taken} REUSEADDR {self.r.randrange(2)}")
            self.emit(actor, f"close b{i}{s}")
        for actor, name in ((client, c), (server, s), (server, l)):
            self.emit(actor, f"close {name}")
        return True

    PORT_STEPS = ((bind_to_taken, 3), (reusing_listener, 0.7), (same_names, 0.7), (bounded, 0.15), (beyond_queue, 0.3), (bind_beside, 0.5))
    # These bind to ports that are free again, which the kernel may give to another program of this host first: for a host, and a run
    # (--jobs 1), in which no other one asks for ports.
    FREED_STEPS = ((ended_port, 20), (renamed, 10), (whole_queue, 10))
