# clckit.py - the CLC messages of a peer that is not ours, built and read byte by byte (docs/protocols/smcd.md, lib/wire/clc/clc_layout.h).
# SPDX-License-Identifier: Apache-2.0
#
# For tests that have to stop between two bytes of a handshake: a plain socket marked by its owner, without the wrapper. Nothing here is
# shared with the C++ that it talks to.

import socket
import struct

import synkit

SMCR, SMCD = b"\xe2\xd4\xc3\xd9", b"\xe2\xd4\xc3\xc4"
PROPOSAL, ACCEPT, CONFIRM, DECLINE = 1, 2, 3, 4
VERSION, FIRST_CONTACT, PATH_D, PATH_NONE = 2 << 4, 0x08, 1, 2
CHID, EMULATED, RELEASE, LINUX = 0xffff, 1, 1, 2
UEID = b"POSTERN".ljust(32)
AGREE = b"\1"  # our own feature: the attach is acknowledged
NOBODYS = 0x0123456789abcdef  # a token that no broker has given out
DIAG_CONFIG, DIAG_NO_MEMORY = 0x03000000, 0x01010000


def device(broker_dir):
    """GID and extended GID as on the wire: each half of the UUID in the host's order, which the file has, too."""
    with open(f"{broker_dir}/gid", "rb") as file:
        gid = file.read()
    assert len(gid) == 16
    return gid[:8], gid[8:]


def frame(kind, bits, body):
    mark = SMCD if kind in (ACCEPT, CONFIRM) else SMCR
    return mark + struct.pack("!BHB", kind, 8 + len(body) + 4, VERSION | bits) + body + mark


def proposal(gid):
    v1 = bytes(8 + 16 + 6 + 2 + 8 + 2) + struct.pack("!H", 28) + bytes(3) + b"PSTN" + AGREE + bytes(20)
    v2 = struct.pack("!BBxBxxH16xBBH12x", 1, 2, RELEASE << 4, 32 + 32, 255, 2, EMULATED) + UEID
    entries = b"".join(half + struct.pack("!H", CHID) for half in gid)
    return frame(PROPOSAL, PATH_D << 2 | PATH_NONE, v1 + v2 + bytes(48) + entries)


def accept(gid, token=NOBODYS, kind=ACCEPT):
    body = gid[0] + struct.pack("!QBBxxIH", token, 0, 2 << 4, 1, CHID) + UEID + gid[1]
    first = struct.pack("!BBxx32sBBH", 0, LINUX << 4 | RELEASE, b"clckit".ljust(32), 16, 1, EMULATED) + b"PST" + AGREE + bytes(8)
    return frame(kind, FIRST_CONTACT | PATH_D, body + first)


def confirm(gid, token=NOBODYS):
    return accept(gid, token, CONFIRM)


def decline(diagnosis=DIAG_CONFIG):
    return frame(DECLINE, 0, struct.pack("!8xIB3x16x", diagnosis, LINUX << 4))


def whole(sock):
    """The next message and not one byte more: (kind, bytes), or None at the end of the stream; a reset raises."""
    head = _exactly(sock, 8)
    if head is None:
        return None
    assert head[:4] in (SMCR, SMCD), head
    kind, size, _ = struct.unpack("!BHB", head[4:])
    rest = _exactly(sock, size - 8)
    assert rest is not None and rest[-4:] == head[:4], "no trailer"
    return kind, head + rest


def diagnosis_of(message):
    return struct.unpack_from("!I", message, 16)[0]


def token_of(message):
    return struct.unpack_from("!Q", message, 16)[0]


def _exactly(sock, size):
    got = b""
    while len(got) < size:
        more = sock.recv(size - len(got))
        if not more:
            assert not got, f"the stream ends behind {got.hex()}"
            return None
        got += more
    return got


def marked(inside):
    """A TCP socket whose SYN or SYN-ACK has the option, in the network namespace that `inside` enters."""
    with inside:
        sock = socket.socket()
    synkit.mark(sock)
    sock.settimeout(10)
    return sock
