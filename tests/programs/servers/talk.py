#!/usr/bin/python3
# talk.py - a client for servers that have none of their own: says lines, waits for answers, prints what came.
# SPDX-License-Identifier: Apache-2.0
#
#   talk.py PORT STEP...
#     +TEXT   sends TEXT, in which \r, \n and the like are escapes
#     @FILE   sends the file
#     -TEXT   reads until TEXT has come; the next step begins behind it
#     .       sends no more, and reads to the end
#     hold    prints "holding" and keeps the connection until SIGUSR1
# What came is printed: up to 2000 bytes as they are, more as their number and SHA-256.

import hashlib
import signal
import socket
import sys
import threading


def shown(data):
    if len(data) > 2000:
        return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()}"
    return data.decode(errors="backslashreplace")


def unescaped(text):
    return text.encode().decode("unicode_escape").encode("latin-1")


class Talk:
    def __init__(self, port):
        self.line, self.rest = socket.create_connection(("127.0.0.1", port), timeout=60), b""

    def more(self):
        data = self.line.recv(65536)
        self.rest += data
        return data

    def send(self, data):
        """What comes meanwhile is read: a server that returns all it gets would wait for that."""
        sender = threading.Thread(target=self.line.sendall, args=(data,))
        sender.start()
        return sender

    def until(self, text):
        while text not in self.rest:
            if not self.more():
                sys.exit(f"the end came before {text!r}: {shown(self.rest)}")
        before, _, self.rest = self.rest.partition(text)
        print(shown(before + text))

    def to_end(self, sender):
        if sender:
            sender.join(60)
        self.line.shutdown(socket.SHUT_WR)
        while self.more():
            pass
        print(shown(self.rest))
        self.rest = b""


def main():
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    talk, sender = Talk(int(sys.argv[1])), None
    for step in sys.argv[2:]:
        if step == "hold":
            print("holding", flush=True)
            signal.sigwait({signal.SIGUSR1})
        elif step == ".":
            talk.to_end(sender)
        elif step.startswith("-"):
            talk.until(unescaped(step[1:]))
        else:
            if sender:
                sender.join(60)
            if step.startswith("@"):
                with open(step[1:], "rb") as file:
                    sender = talk.send(file.read())
            else:
                sender = talk.send(unescaped(step[1:]))
    if sender:
        sender.join(60)


if __name__ == "__main__":
    main()
