#!/usr/bin/python3
# bulk.py - the two ends of one bulk transfer, for perf/loss.py: unmodified programs.
# SPDX-License-Identifier: Apache-2.0
#
#   bulk.py take PORT SECONDS                      prints "ready", then {"bytes", "seconds"} of what one client has sent in that time
#   bulk.py give HOST PORT SECONDS CONGESTION      sends until the other end has had enough; prints what TCP_INFO said before that

import json
import socket
import struct
import sys
import time

TCP_CONGESTION = 13
# Where tcp_info has them (linux/tcp.h).
FIELDS = {"mss": 16, "rtt_us": 68, "rttvar_us": 72, "ssthresh": 76, "cwnd": 80, "reordering": 88, "resent": 100}
GIVE_UP_SEC = 20


def take(port, seconds):
    with socket.create_server(("0.0.0.0", port)) as listener:
        print("ready", flush=True)
        listener.settimeout(GIVE_UP_SEC)
        conn, _ = listener.accept()
    with conn:
        conn.settimeout(1)
        taken, begun = 0, time.monotonic()
        while (now := time.monotonic()) - begun < seconds:
            try:
                data = conn.recv(1 << 18)
            except TimeoutError:
                continue
            if not data:
                break
            taken += len(data)
    print(json.dumps({"bytes": taken, "seconds": now - begun}))


def info(conn):
    raw = conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return {name: struct.unpack_from("I", raw, at)[0] for name, at in FIELDS.items()}


def give(host, port, seconds, congestion):
    said = None
    with socket.socket() as conn:
        conn.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())
        conn.connect((host, port))
        conn.settimeout(0.5)
        data, begun = bytes(1 << 17), time.monotonic()
        while (now := time.monotonic()) - begun < seconds + GIVE_UP_SEC:
            if said is None and now - begun > 0.9 * seconds:
                said = info(conn)
            try:
                conn.send(data)
            except TimeoutError:
                continue
            except OSError:
                break  # the receiver has had enough
    print(json.dumps(said))


if __name__ == "__main__":
    if sys.argv[1] == "take":
        take(int(sys.argv[2]), float(sys.argv[3]))
    else:
        give(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
