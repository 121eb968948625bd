# s_web.py - servers of HTTP: event loops, processes and threads for each connection, Go.
# SPDX-License-Identifier: Apache-2.0

import os

from serverkit import NO_LISTENER, Client, Server

GET = ["+GET /f1024 HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n", "-\\r\\n\\r\\n"]
FETCH = [Client("curl -sS http://127.0.0.1:@PORT@/f300001", "sha256 f300001"),
         Client("curl -sS http://127.0.0.1:@PORT@/f1 http://127.0.0.1:@PORT@/f0 http://127.0.0.1:@PORT@/f65536"),
         Client("curl -sS -f http://127.0.0.1:@PORT@/none", status=22)]

SERVERS = [
    Server("lighttpd", "lighttpd", "one process, epoll and sendfile, becomes another user",
           owner="www-data", logs=("error.log",),
           argv="lighttpd -D -f @DIR@/conf",
           clients=FETCH,
           hello=GET,
           files={"conf": """
server.port = @PORT@
server.bind = "127.0.0.1"
server.document-root = "@DOCS@"
server.username = "www-data"
server.errorlog = "@DIR@/error.log"
"""}),
    Server("mini_httpd", "mini-httpd", "a fork for each connection, chroot, becomes another user",
           confined="root", owner="www-data",
           argv="mini_httpd -D -p @PORT@ -h 127.0.0.1 -d @DOCS@ -u www-data -r -i @DIR@/pid",
           clients=FETCH),
    Server("caddy", "caddy", "Go: sockets by direct system calls",
           path=NO_LISTENER, env={"HOME": "@DIR@", "XDG_DATA_HOME": "@DIR@"},
           argv="caddy run --adapter caddyfile --config @DIR@/Caddyfile",
           clients=FETCH,
           hello=GET,
           files={"Caddyfile": """
{
  admin off
  auto_https off
}
http://127.0.0.1:@PORT@ {
  root * @DOCS@
  file_server
}
"""}),
    Server("php_fpm", "php-fpm libfcgi-bin", "workers that share a listener, as another user, FastCGI",
           logs=("log",),
           argv="php-fpm8.2 -F -R -n -y @DIR@/conf",
           clients=[Client("env -i PATH=/usr/bin SCRIPT_FILENAME=@DIR@/one.php REQUEST_METHOD=GET QUERY_STRING=7 cgi-fcgi -bind -connect "
                           "127.0.0.1:@PORT@", "7 7 7")] * 3,
           files={"one.php": "<?php echo str_repeat($_SERVER['QUERY_STRING'] . ' ', 30000);\n", "conf": """
[global]
error_log = @DIR@/log
daemonize = no
[one]
user = www-data
group = www-data
listen = 127.0.0.1:@PORT@
pm = static
pm.max_children = 3
"""}),
    Server("monit", "monit", "one loop of select, a thread for its clock",
           confined="root", logs=("log",), prepare=lambda place: os.chmod(f"{place.dir}/conf", 0o600),
           argv="monit -I -c @DIR@/conf",
           clients=[Client("curl -sS -u joe:secret http://127.0.0.1:@PORT@/_ping"),
                    Client("curl -sS -f http://127.0.0.1:@PORT@/_status", status=22)],
           hello=["+GET / HTTP/1.0\\r\\n\\r\\n", "-\\r\\n\\r\\n"],
           files={"conf": """
set daemon 60
set pidfile @DIR@/pid
set idfile @DIR@/id
set statefile @DIR@/state
set log @DIR@/log
set httpd port @PORT@ and
  use address 127.0.0.1
  allow 127.0.0.1
  allow joe:"secret"
"""}),
]
