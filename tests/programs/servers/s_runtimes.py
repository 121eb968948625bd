# s_runtimes.py - servers in the languages' own runtimes.
# SPDX-License-Identifier: Apache-2.0

from s_web import FETCH, GET
from serverkit import NO_LISTENER, Client, Server

WSGI = """
import os

ROOT = "@DOCS@"


def app(environ, start):
    try:
        with open(ROOT + environ["PATH_INFO"], "rb") as file:
            body = file.read()
    except OSError:
        start("404 Not Found", [("Content-Length", "0")])
        return []
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""
ASGI = """
ROOT = "@DOCS@"


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    try:
        with open(ROOT + scope["path"], "rb") as file:
            status, body = 200, file.read()
    except OSError:
        status, body = 404, b""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})
"""
RACK = """
run lambda { |env|
  name = "@DOCS@" + env["PATH_INFO"]
  File.file?(name) ? [200, {"Content-Type" => "application/octet-stream"}, [File.binread(name)]] : [404, {}, []]
}
"""
PERL = """
use HTTP::Daemon;
my $d = HTTP::Daemon->new(LocalAddr => "127.0.0.1", LocalPort => @PORT@, ReuseAddr => 1) or die;
$SIG{CHLD} = "IGNORE";
while (my $c = $d->accept) {
  next if fork;
  while (my $r = $c->get_request) {
    my $name = "@DOCS@" . $r->uri->path;
    -f $name ? $c->send_file_response($name) : $c->send_error(404);
  }
  exit;
}
"""
NODE = """
const fs = require("fs"), http = require("http");
http.createServer((request, response) => {
  fs.readFile("@DOCS@" + request.url, (error, data) => {
    response.writeHead(error ? 404 : 200, {"Content-Length": error ? 0 : data.length});
    response.end(error ? "" : data);
  });
}).listen(@PORT@, "127.0.0.1");
process.on("SIGTERM", () => process.exit(0));
"""

PKEYS = (329, 330, 331)  # V8's: pkey_mprotect, pkey_alloc, pkey_free

SERVERS = [
    Server("gunicorn", "gunicorn", "workers that share a listener, select and blocking calls",
           argv="gunicorn -w 3 -b 127.0.0.1:@PORT@ --chdir @DIR@ --log-level warning one:app",
           clients=FETCH,
           files={"one.py": WSGI}),
    Server("gunicorn_threads", "gunicorn", "the same with threads and epoll, workers as another user",
           owner="www-data",
           argv="gunicorn -w 2 --threads 4 -u www-data -g www-data -b 127.0.0.1:@PORT@ --chdir @DIR@ --log-level warning one:app",
           clients=FETCH,
           hello=GET,
           files={"one.py": WSGI}),
    Server("uvicorn_uvloop", "uvicorn python3-uvloop", "libuv, in one process",
           argv="uvicorn --loop uvloop --host 127.0.0.1 --port @PORT@ --app-dir @DIR@ --log-level warning one:app",
           clients=FETCH,
           hello=GET,
           files={"one.py": ASGI}),
    Server("puma", "puma", "Ruby: threads and nio4r's epoll, workers",
           argv="puma -q -e production -w 2 -t 2:2 -b tcp://127.0.0.1:@PORT@ @DIR@/config.ru",
           clients=FETCH,
           hello=GET,
           files={"config.ru": RACK}),
    Server("perl_http", "perl libhttp-daemon-perl", "Perl: a fork for each connection, stdio of its own",
           argv="perl @DIR@/one.pl",
           clients=[FETCH[0], FETCH[2]],
           hello=GET,
           files={"one.pl": PERL}),
    Server("node", "nodejs", "libuv: epoll, or io_uring for it",
           also=PKEYS,
           argv="node @DIR@/one.js",
           clients=FETCH,
           hello=GET,
           files={"one.js": NODE}),
    Server("node_uring", "nodejs", "libuv with io_uring asked for",
           path=NO_LISTENER, env={"UV_USE_IO_URING": "1"}, also=PKEYS,
           argv="node @DIR@/one.js",
           clients=FETCH,
           hello=GET,
           files={"one.js": NODE}),
]
