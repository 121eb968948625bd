# t_curl.py - curl against nginx: many transfers, one large one, IPv6, and chosen local addresses.
# SPDX-License-Identifier: Apache-2.0

import hashlib
import os
import subprocess

from harness import check, need, test
from nginxkit import Nginx, documents


def transfers(ctx, options, count):
    """`count` downloads in one curl; every file that arrives is compared."""
    nginx = Nginx(ctx, docs=documents(ctx))
    names = [f"f{size}" for size in (0, 1, 100, 1024, 4095, 65536, 300001)]
    picked = [ctx.random.choice(names) for _ in range(count)]
    lines = []
    for n, name in enumerate(picked):
        lines += [f'url = "http://127.0.0.1:{nginx.port}/{name}"', f'output = "{ctx.path("got", str(n))}"']
    config = ctx.write("curl.conf", "\n".join(lines) + "\n")
    ctx.run("client", [need("curl"), "-sS", "-f", *options, "-K", config])
    for n, name in enumerate(picked):
        path = ctx.path("got", str(n))
        got = open(path, "rb").read() if os.path.exists(path) else b""  # curl makes no file for an empty body
        with open(os.path.join(nginx.docs, name), "rb") as want:
            check(got == want.read(), f"transfer {n} ({name}) differs: {len(got)} bytes")


@test()
def curl_many_in_turn(ctx):
    transfers(ctx, [], 300)


@test()
def curl_many_parallel(ctx):
    transfers(ctx, ["-Z", "--parallel-max", "40", "--parallel-immediate"], 300)


@test(watchdog_s=120)
def curl_1gib(ctx):
    block = os.urandom((4 << 20) + 3)  # odd, so that no offset in a ring sees the same bytes twice
    path, left, digest = os.path.join(ctx.config.cache_dir, "big"), 1 << 30, hashlib.sha256()
    want_path = path + ".sha256"
    if not os.path.exists(want_path):
        with open(path, "wb") as file:
            while left:
                part = block[:left]
                file.write(part)
                digest.update(part)
                left -= len(part)
        with open(want_path, "w", encoding="ascii") as file:
            file.write(digest.hexdigest())
    with open(want_path, encoding="ascii") as file:
        want = file.read()
    nginx = Nginx(ctx, docs=ctx.config.cache_dir, user="root" if os.getuid() == 0 else "")  # whose directory that is
    argv = ctx.argv("client", [need("curl"), "-sS", "-f", f"http://127.0.0.1:{nginx.port}/big"])
    curl = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    ctx.adopt_session(curl.pid)
    got, size, looked = hashlib.sha256(), 0, False
    while chunk := curl.stdout.read(1 << 20):
        got.update(chunk)
        size += len(chunk)
        if not looked:
            ctx.expect_path(nginx.port)
            looked = True
    check(curl.wait(30) == 0, f"curl: exit {curl.returncode} after {size} bytes")
    check(size == 1 << 30, f"{size} bytes instead of {1 << 30}")
    check(got.hexdigest() == want, "SHA-256 of the download differs from the file's")


@test()
def curl_ipv6(ctx):
    nginx = Nginx(ctx, docs=documents(ctx))
    said = ctx.run("client", [need("curl"), "-sS", "-f", "-g", f"http://[::1]:{nginx.port}/who"])
    check(said == "::1\n", f"the server saw {said!r}")
    client = ctx.script("client", "http_load.py", f"--port={nginx.port}", "--addr=::1", f"--docs={nginx.docs}", "--seconds=1")
    ctx.expect_path(nginx.port)
    client.wait()
    check('"error_' not in client.output(), client.output())


@test()
def curl_interface_addresses(ctx):
    """The server has to see the address that the client chose, not just any loopback address."""
    nginx = Nginx(ctx, docs=documents(ctx))
    for address in ("127.0.0.1", "127.0.0.5", "127.255.255.254"):
        said = ctx.run("client", [need("curl"), "-sS", "-f", "--interface", address, f"http://127.0.0.1:{nginx.port}/who"])
        check(said == address + "\n", f"client bound to {address}, the server saw {said!r}")


@test()
def curl_refused(ctx):
    """Nobody listens: exit code 7 at once, not a timeout."""
    ctx.run("client", [need("curl"), "-sS", f"http://127.0.0.1:{ctx.port()}/"], expect=7)
