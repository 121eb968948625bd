# actors.py - runs a case: lines for two actors, one call each, and what came of it.
# SPDX-License-Identifier: Apache-2.0

import itertools
import os
import re
import select
import socket
import subprocess
import time

ADDRESS = re.compile(r"(\d+\.\d+\.\d+\.\d+|\[[0-9a-f:.]+\]):(\d+)")
PORT = re.compile(r":P\d+\b")
# Lines after which there is nothing to wait for, by a ring or not.
QUIET = ("poll", "getopt", "setopt", "name", "ioctl", "epcreate", "epwait", "select", "sigpipes", "getfl", "setfd", "fstat", "lseek", "dup",
         "dupfd", "socket", "bind", "listen")
BROKEN = ("SCRIPT ERROR", "HANG", "ACTOR GONE")


def popen(argv, lines, errors, **how):
    argv = [*argv, *(f"fd:{name}={end.fileno()}" for name, end in lines.items())]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                            pass_fds=[end.fileno() for end in lines.values()], **how)


class Here:
    """The place of actors that meet on this host, as it is. Another one: wire.py."""

    @staticmethod
    def start(_who, argv, lines, errors):
        """The program, told of the descriptors in lines {name: socket}."""
        return popen(argv, lines, errors)

    @staticmethod
    def line(_who, line, _owners):
        """What the line means here. owners: {port's variable: the actor that has named it}."""
        return line

    @staticmethod
    def owner(who, _result):
        """Whose port the actor has just named, with this result."""
        return who

    @staticmethod
    def settle(command):
        """Called after each: what it has sent arrives."""


class Unhurried(Here):
    """Here, with a pause after each line that may pass something on: a bridge takes its time."""

    def __init__(self, settle_s):
        self.settle_s = settle_s

    def patient(self, times):
        return Unhurried(self.settle_s * times)

    def settle(self, command):  # pylint: disable=arguments-differ
        words = command.split()
        while words[:1] in (["ring"], ["bg"]):
            words = words[2:]
        if words[:1] and words[0] not in QUIET:
            time.sleep(self.settle_s)


class Actor:
    def __init__(self, who, place, argv, lines, errors):
        """lines: {name: end of a Unix socket to the other actor}."""
        self.popen = place.start(who, argv, lines, errors)
        self.rest = b""

    def call(self, line, hang_s):
        try:
            self.popen.stdin.write((line + "\n").encode())
            self.popen.stdin.flush()
        except OSError:
            return f"ACTOR GONE {self.popen.wait()}"
        end = time.monotonic() + hang_s
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.popen.stdout], [], [], max(0, end - time.monotonic()))
            if not ready:
                return "HANG"
            data = os.read(self.popen.stdout.fileno(), 65536)
            if not data:
                return f"ACTOR GONE {self.popen.wait()}"
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode(errors="replace")

    def end(self):
        self.popen.kill()
        self.popen.wait()
        self.popen.stdin.close()
        self.popen.stdout.close()


class Stage:
    """Two actors, or one that plays both parts, with what is put before their command."""

    def __init__(self, program, layout, wrap_a, wrap_b, show=False, hang_s=20.0, ports_last=True, place=Here, fresh=False):
        self.place = place
        self.program, self.layout, self.wrap_a, self.wrap_b, self.hang_s = program, layout, wrap_a, wrap_b, hang_s
        self.ports_last = ports_last  # a port number means the same connection to the end of a case
        self.errors = None if show else subprocess.DEVNULL
        self.fresh = fresh  # actors for each case, that may step aside: a bridge has ports of its own (docs/deviations.md)
        self.actors = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for actor in set(self.actors.values()):
            actor.end()
        self.actors = {}

    def _begin(self):
        """Fresh actors at first, and after something went wrong; else the same, with everything closed."""
        if self.fresh:
            self.__exit__()
        if not self.actors:
            xa, xb = socket.socketpair()
            local = self.layout == "local"
            with xa, xb:
                actor_a = Actor("A", self.place, [*self.wrap_a, self.program], {"xa": xa, "xb": xb} if local else {"xa": xa}, self.errors)
                actor_b = actor_a if local else Actor("B", self.place, [*self.wrap_b, self.program], {"xb": xb}, self.errors)
                self.actors = {"A": actor_a, "B": actor_b}
        else:
            for actor in set(self.actors.values()):
                actor.call("reset", self.hang_s)

    def play(self, lines):
        """The lines, each with its result. What only names the run (port numbers) is made the same for all runs."""
        self._begin()
        names, values, owners, out = Names(), {}, {}, []
        for line in itertools.chain.from_iterable(macro(one) for one in lines):
            who, command = line.split(None, 1)
            command, _, keep = command.partition(" => ")
            result = self.actors[who].call(expand_ports(self.place.line(who, command, owners), values), self.hang_s)
            self.place.settle(command)
            if keep:
                owners[keep] = self.place.owner(who, result)
                values[keep] = ADDRESS.search(result).group(2) if ADDRESS.search(result) else "1"
            if not self.ports_last and command.startswith(("close ", "accept ")):
                names.forget()
            told = names.normal(result)
            out.append(f"{line}  ->  " + (PORT.sub(":P", told) if self.fresh else told))
            if result == "HANG" or result.startswith("ACTOR GONE"):
                self.__exit__()
                break
        return out


class Names:
    """Ports by order of appearance: the numbers differ from run to run, which ones are equal does not."""

    def __init__(self):
        self.ports, self.given = {"0": "0"}, 0

    def normal(self, text):
        return ADDRESS.sub(lambda m: f"{m.group(1)}:{self._of(m.group(2))}", text)

    def _of(self, port):
        if port not in self.ports:
            self.given += 1
            self.ports[port] = f"P{self.given}"
        return self.ports[port]

    def forget(self):
        """A new socket may have a closed one's port, under Postern at once (docs/deviations.md)."""
        self.ports = {"0": "0"}


def macro(line):
    """`pair` and `pair6`: a listener l, a client c and the accepted s."""
    if line not in ("pair", "pair6"):
        return [line]
    family, host = ("inet6", "::1") if line == "pair6" else ("inet", "127.0.0.1")
    return [f"B socket l {family} stream", f"B bind l {host} 0", "B listen l 5", "B name l => p", f"A socket c {family} stream",
            f"A connect c {host} $p", "B accept l s"]


def expand_ports(command, values):
    for key in sorted(values, key=len, reverse=True):
        command = command.replace("$" + key, values[key])
    return command


def broken(transcript):
    return [line for line in transcript if any(word in line for word in BROKEN)]
