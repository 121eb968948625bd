# refusing_posternd.py - a posternd of another version, as programs and posternctl meet one: it refuses whatever it is asked.
# SPDX-License-Identifier: Apache-2.0

import socket
import struct
import threading

REFUSAL = 93  # EPROTONOSUPPORT


def start(test, runtime_dir):
    """Serves there, with the listener that it returns, until the test ends."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    test.addCleanup(listener.close)
    listener.bind(f"{runtime_dir}/posternd.sock")
    listener.listen()

    def refuse():
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                asked = bytearray(line.recv(1000))
                if asked:
                    struct.pack_into("=Ii", asked, 8, struct.unpack_from("=I", asked, 8)[0], REFUSAL)
                    line.send(asked)

    threading.Thread(target=refuse, daemon=True).start()
    return listener
