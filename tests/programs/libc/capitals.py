# capitals.py - a server that sends each line back in capitals, to many clients at once. PORT
# SPDX-License-Identifier: Apache-2.0

import socketserver
import sys


class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


Server(("127.0.0.1", int(sys.argv[1])), Lines).serve_forever()
