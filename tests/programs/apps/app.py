# app.py - the application that uwsgi serves: which worker it is, echo, a body of any size.
# SPDX-License-Identifier: Apache-2.0

import os
import random


def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/pid":
        body = str(os.getpid()).encode()
    elif path == "/echo":
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    else:  # /f300001: nginxkit's documents
        size = int(path[2:])
        body = random.Random(size).randbytes(size)
    start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))])
    return [body]
