#!/usr/bin/python3
# pyprog.py - the Python programs of the program tests: pyprog.py ROLE PORT [SECONDS]. A client prints "ok N" or fails.
# SPDX-License-Identifier: Apache-2.0

import asyncio
import random
import socket
import socketserver
import sys
import threading
import time
from multiprocessing import Pool
from multiprocessing.managers import BaseManager

HOST = "127.0.0.1"
SIZES = (1, 7, 100, 1024, 4097, 65536, 300001)


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


def serve(kind, port):
    kind.allow_reuse_address, kind.request_queue_size, kind.daemon_threads = True, 128, True
    with kind((HOST, port), Echo) as server:
        server.serve_forever(poll_interval=0.05)


def echo_once(port, seed):
    """Writes from one thread while another reads, half close, then EOF: everything comes back in order."""
    rng = random.Random(seed)
    data = b"".join(rng.randbytes(rng.choice(SIZES)) for _ in range(6))
    with socket.create_connection((HOST, port), timeout=30) as sock:
        def write():
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        writer = threading.Thread(target=write)
        writer.start()
        got = bytearray()
        while chunk := sock.recv(rng.choice(SIZES)):
            got += chunk
        writer.join()
    if bytes(got) != data:
        raise SystemExit(f"echo {seed}: {len(data)} bytes went, {len(got)} came or others")
    return len(data)


def echo_client(port, count=60, parallel=6):
    failed, total, hold = [], [], socket.create_connection((HOST, port), timeout=30)
    hold.sendall(b"x")  # stays open, so that there is always a connection to be seen

    def run(start):
        try:
            for n in range(start, count, parallel):
                total.append(echo_once(port, n))
        except BaseException as error:
            failed.append(repr(error))
    threads = [threading.Thread(target=run, args=(n,)) for n in range(parallel)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.5)
    hold.close()
    if failed:
        raise SystemExit("; ".join(failed))
    print("ok", sum(total))


async def asyncio_server(port):
    async def handle(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
    server = await asyncio.start_server(handle, HOST, port, backlog=512)
    async with server:
        await server.serve_forever()


async def asyncio_client(port, count=100):
    async def one(n):
        rng = random.Random(n)
        reader, writer = await asyncio.open_connection(HOST, port)
        for _ in range(8):
            data = rng.randbytes(rng.choice(SIZES))
            writer.write(data)
            if await reader.readexactly(len(data)) != data:
                raise SystemExit(f"connection {n}: other bytes came back")
        writer.write_eof()
        if await reader.read() != b"":
            raise SystemExit(f"connection {n}: bytes after the end")
        await asyncio.sleep(0.5)
        writer.close()
        await writer.wait_closed()
    await asyncio.gather(*(one(n) for n in range(count)))
    print("ok", count)


class Store:
    def __init__(self):
        self.lock, self.values = threading.Lock(), {}

    def add(self, key, value):
        with self.lock:
            self.values[key] = self.values.get(key, 0) + value
            return self.values[key]

    def get(self, key):
        return self.values.get(key, 0)

    def echo(self, data):
        return data


STORE = Store()


class Manager(BaseManager):
    pass


def manager(port):
    Manager.register("store", callable=lambda: STORE, exposed=("add", "get", "echo"))
    return Manager(address=(HOST, port), authkey=b"postern")


def manager_work(port, seed):
    link, rng = manager(port), random.Random(seed)
    link.connect()
    store = link.store()
    for _ in range(30):
        data = rng.randbytes(rng.choice(SIZES))
        if store.echo(data) != data:
            return "other bytes came back"
        store.add("sum", 1)
    time.sleep(0.5)
    return ""


def manager_client(port):
    with Pool(4) as pool:
        wrong = [w for w in pool.starmap(manager_work, [(port, n) for n in range(8)]) if w]
    link = manager(port)
    link.connect()
    total = link.store().get("sum")
    if wrong or total != 240:
        raise SystemExit(f"{wrong}, sum {total} instead of 240")
    print("ok", total)


def memcached_thread(port, number, seconds, done):
    rng, stored, end = random.Random(number), {}, time.monotonic() + seconds
    with socket.create_connection((HOST, port), timeout=30) as sock:
        file = sock.makefile("rb")
        while time.monotonic() < end:
            key = f"k{number}_{rng.randrange(20)}"
            if rng.random() < 0.4 or key not in stored:
                stored[key] = value = rng.randbytes(rng.choice(SIZES))
                sock.sendall(f"set {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n")
                answer = file.readline()
                if not answer:
                    raise EOFError
                assert answer == b"STORED\r\n", answer
            else:
                sock.sendall(f"get {key}\r\n".encode())
                head = file.readline()
                want = int(head.split()[3]) + 2 if head.endswith(b"\n") else 0
                value = file.read(want)
                if len(value) < max(want, 1):
                    raise EOFError
                assert value[:-2] == stored[key], f"{key}: other bytes"
                if file.readline() != b"END\r\n":
                    raise EOFError
            done[number] += 1


def memcached(port, seconds):
    count, failed = 12, []
    done = [0] * count

    def run(number):
        try:
            memcached_thread(port, number, seconds, done)
        except BaseException as error:
            failed.append(repr(error))
    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed or not all(done):
        raise SystemExit(f"{failed}, operations {done}")
    print("ok", sum(done))


def memcached_dying(port):
    """Load until the server is gone: every connection ends at once, as TCP ends it."""
    count = 12
    done, ends = [0] * count, []

    def run(number):
        try:
            memcached_thread(port, number, 3600, done)
        except BaseException as error:
            ends.append(type(error).__name__)
    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    while not all(done) and not ends:
        time.sleep(0.01)
    print("loading", flush=True)
    for thread in threads:
        thread.join()
    strange = set(ends) - {"EOFError", "ConnectionResetError", "BrokenPipeError"}
    if strange or not all(done):
        raise SystemExit(f"connections ended with {ends}, operations {done}")
    print("ok", sum(done), ends)


def refused(port):
    try:
        socket.create_connection((HOST, port), timeout=30)
    except ConnectionRefusedError:
        print("ok")
        return
    raise SystemExit("somebody accepts")


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    roles = {
        "forking-server": lambda: serve(socketserver.ForkingTCPServer, port),
        "threading-server": lambda: serve(socketserver.ThreadingTCPServer, port),
        "echo-client": lambda: echo_client(port),
        "asyncio-server": lambda: asyncio.run(asyncio_server(port)),
        "asyncio-client": lambda: asyncio.run(asyncio_client(port)),
        "manager-server": lambda: manager(port).get_server().serve_forever(),
        "manager-client": lambda: manager_client(port),
        "refused": lambda: refused(port),
        "memcached-dying": lambda: memcached_dying(port),
        "memcached": lambda: memcached(port, float(sys.argv[3])),
    }
    roles[role]()


if __name__ == "__main__":
    main()
