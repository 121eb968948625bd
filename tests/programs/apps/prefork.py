# prefork.py - an HTTP server of four processes made by multiprocessing, each with an asyncio loop: prefork.py PORT DOCS.
# SPDX-License-Identifier: Apache-2.0

import asyncio
import multiprocessing
import os
import signal
import socket
import sys


def bodies_of(docs):
    found = {}
    for name in os.listdir(docs):
        with open(os.path.join(docs, name), "rb") as file:
            found[f"/{name}"] = file.read()
    return found


async def serve(listener, bodies):
    async def handle(reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                body = bodies[head.split()[1]]
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
                if "connection: close" in head.lower():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        writer.close()
    server = await asyncio.start_server(handle, sock=listener)
    os.write(1, f"worker {os.getpid()}\n".encode())  # in one piece
    async with server:
        await server.serve_forever()


def work(listener, bodies):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(serve(listener, bodies))


def main():
    bodies = bodies_of(sys.argv[2])
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
    context = multiprocessing.get_context("fork")

    def start():
        process = context.Process(target=work, args=(listener, bodies), daemon=True)  # ends with this one
        process.start()
        return process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    workers = {process.sentinel: process for process in (start() for _ in range(4))}
    while True:
        for ended in multiprocessing.connection.wait(workers):
            process = workers.pop(ended)
            process.join()
            how = signal.Signals(-process.exitcode).name if process.exitcode < 0 else process.exitcode
            os.write(1, f"gone {process.pid} {how}\n".encode())
            fresh = start()
            workers[fresh.sentinel] = fresh


if __name__ == "__main__":
    import multiprocessing.connection
    main()
