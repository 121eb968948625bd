# generate_cork.py - cases of what MSG_MORE and TCP_CORK hold back, and when the reader sees it.
# SPDX-License-Identifier: Apache-2.0
#
# One connection. What is sent is less than the smallest first segment, so that no segment fills, but where TCP_CORK is off. The kernel
# sends what MSG_MORE holds back with the next acknowledgement, which it delays once both sides have sent: MSG_MORE without TCP_CORK is
# for the cases in which one side sends, a few times, and those in which both do have TCP_NODELAY from the start (Nagle).

import random

from actors import macro

SENDS = ("send {n} {data}", "send {n} {data} DONTWAIT", "write {n} {data}", "writev {n} {data} - {data}", "sendfile {n} {data}", "spliceto {n} {data}",
         "sendmsgs {n} - {data} {data}", "send {n} {data} EOR", "send {n} {data} OOB")
WORDS = ("a", "bc", "0123456789", "x*100", "yz*700", "w*3000", "-")
LOOKS = ("poll 0 {n}:IN,OUT,RDHUP", "select 0 {n}:rwe", "ioctl {n} FIONREAD", "recv {n} 3 DONTWAIT", "recv {n} 100 DONTWAIT PEEK",
         "recv {n} 100000 DONTWAIT", "recvmsg {n} 200 DONTWAIT", "epwait e{n} 0")
SENT_MAX = 30000  # in a row, held back
TURNS = 12        # segments of one side that the kernel is sure to acknowledge at once


class CorkGenerator:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.lines = []

    def emit(self, actor, text):
        self.lines.append((actor, text))

    def send(self, actor, name, more):
        form, data = self.r.choice(SENDS), self.r.choice(WORDS)
        if "OOB" in form and self.r.random() < 0.8:
            form = SENDS[0]
        if more and form.startswith("send {n}") and "OOB" not in form:
            form += " MORE"
        self.emit(actor, form.format(n=name, data=data))
        word, _, times = data.partition("*")
        return 2 * len(word) * int(times or 1)

    def case(self):
        r = self.r
        pair = macro(r.choice(("pair", "pair", "pair6")))
        (writer, w), (reader, n) = r.choice(((("A", "c"), ("B", "s")), (("B", "s"), ("A", "c"))))
        both = r.random() < 0.5
        corked, held, turns = False, 0, 0
        if both:
            self.emit(writer, f"setopt {w} NODELAY 1")
        self.emit(reader, f"epcreate e{n}")
        self.emit(reader, f"epadd e{n} {n} {r.choice(('IN', 'IN,ET', 'IN,OUT,ET', 'IN,OUT', 'IN,ONESHOT', 'IN,RDHUP'))}")
        for _ in range(r.randrange(6, 30)):
            dice = r.random()
            if dice < 0.15 or (both and not corked and dice < 0.4):
                corked = r.random() < 0.6 if not both else not corked
                self.emit(writer, f"setopt {w} CORK {int(corked)}")
                held, turns = 0 if not corked else held, turns + 1
            elif dice < 0.5 and turns < TURNS and (corked or not both):
                if held < SENT_MAX - 12000:
                    held += self.send(writer, w, r.random() < 0.5)
                turns += not corked
            elif dice < 0.58:
                self.emit(writer, f"setopt {w} {r.choice(('NODELAY 1', 'NODELAY 1', 'NODELAY 0' if not both else 'NODELAY 1', 'KEEPALIVE 1'))}")
                turns += 1
            elif dice < 0.62 and both and corked:
                self.emit(reader, f"send {n} {r.choice(WORDS[:3])}")
            elif dice < 0.63 and both:  # what comes after a pause is acknowledged late
                self.emit(reader, "sleep 300")
                held, turns = 0, turns + 1
            elif dice < 0.65 and not both:
                self.emit(writer, f"ioctl {w} {r.choice(('SIOCOUTQ', 'SIOCOUTQNSD'))}")
            else:
                self.emit(reader, r.choice(LOOKS).format(n=n))
        self.emit(writer, r.choice((f"close {w}", f"shutdown {w} wr", f"setopt {w} CORK 0")))
        self.emit(reader, "sleep 20")
        for form in (LOOKS[0], LOOKS[-1], LOOKS[2], LOOKS[5], LOOKS[5]):
            self.emit(reader, form.format(n=n))
        return [*pair, *(f"{actor} {text}" for actor, text in self.lines)]
