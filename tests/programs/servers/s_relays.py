# s_relays.py - proxies and relays: server and client at once, with a server behind them.
# SPDX-License-Identifier: Apache-2.0

import signal

from s_web import FETCH, GET
from serverkit import Client, Server

BEHIND = ["@PYTHON@ -m http.server -d @DOCS@ --bind 127.0.0.1 @PORT2@"]


def certificate(place):
    place.do("openssl req -x509 -newkey rsa:2048 -nodes -keyout @DIR@/key.pem -out @DIR@/cert.pem -days 2 -subj /CN=localhost")
    for name in ("key.pem", "cert.pem"):
        place.own(f"{place.dir}/{name}")

THROUGH = [Client("curl -sS -x http://127.0.0.1:@PORT@ --noproxy '' http://127.0.0.1:@PORT2@/f300001", "sha256 f300001"),
           Client("curl -sS -x http://127.0.0.1:@PORT@ --noproxy '' http://127.0.0.1:@PORT2@/f1 http://127.0.0.1:@PORT2@/f65536")]

SERVERS = [
    Server("stunnel", "stunnel4", "a thread with a small stack for each connection, poll",
           prepare=certificate,
           argv="stunnel4 @DIR@/conf",
           beside=BEHIND,
           clients=[Client("curl -sS -k https://127.0.0.1:@PORT@/f300001", "sha256 f300001"),
                    Client("curl -sS -k https://127.0.0.1:@PORT@/f0 https://127.0.0.1:@PORT@/f65536")],
           files={"conf": """
foreground = yes
pid =
debug = warning
[web]
accept = 127.0.0.1:@PORT@
connect = 127.0.0.1:@PORT2@
cert = @DIR@/cert.pem
key = @DIR@/key.pem
"""}),
    Server("varnish", "varnish gcc libc6-dev",
           "a manager and a child of another user, which share a socket that is bound before it is listened at",
           confined="root",
           argv="varnishd -F -a 127.0.0.1:@PORT@ -b 127.0.0.1:@PORT2@ -n @DIR@/v -s malloc,32m -T none",
           beside=BEHIND,
           clients=FETCH[:2] * 2,
           hello=GET),
    Server("haproxy_workers", "haproxy", "a master and workers, chroot, becomes another user",
           confined="root", owner="haproxy",
           argv="haproxy -W -db -f @DIR@/conf",
           beside=BEHIND,
           clients=FETCH,
           hello=GET,
           files={"conf": """
global
  user haproxy
  group haproxy
  chroot @DIR@/empty
  nbthread 2
defaults
  mode http
  timeout connect 20s
  timeout client 60s
  timeout server 60s
listen web
  bind 127.0.0.1:@PORT@
  server one 127.0.0.1:@PORT2@
"""}),
    Server("squid", "squid", "a forward proxy of processes, becomes another user",
           owner="proxy", logs=("log",),
           argv="squid -N -f @DIR@/conf",
           beside=BEHIND,
           clients=THROUGH,
           files={"conf": """
http_port 127.0.0.1:@PORT@
http_access allow localhost
cache_mem 8 MB
cache deny all
access_log none
cache_log @DIR@/log
cache_store_log none
pid_filename @DIR@/pid
coredump_dir @DIR@
cache_effective_user proxy
netdb_filename none
icp_port 0
pinger_enable off
shutdown_lifetime 0 seconds
visible_hostname localhost
"""}),
    Server("tinyproxy", "tinyproxy", "a thread for each connection, poll, becomes another user",
           owner="tinyproxy", quiet=True,
           argv="tinyproxy -d -c @DIR@/conf",
           beside=BEHIND,
           clients=THROUGH,
           files={"conf": """
User tinyproxy
Group tinyproxy
Port @PORT@
Listen 127.0.0.1
Timeout 600
LogLevel Warning
MaxClients 50
"""}),
    Server("privoxy", "privoxy", "a thread for each connection, poll",
           confined="root", owner="privoxy",
           argv="privoxy --no-daemon --user privoxy @DIR@/conf",
           beside=BEHIND,
           clients=THROUGH,
           files={"conf": """
listen-address 127.0.0.1:@PORT@
logdir @DIR@
confdir /etc/privoxy
templates-dir /etc/privoxy/templates
debug 8192
toggle 0
"""}),
    Server("socat", "socat", "a fork for each connection, select",
           stop=signal.SIGTERM,
           argv="socat TCP-LISTEN:@PORT@,bind=127.0.0.1,reuseaddr,fork TCP:127.0.0.1:@PORT2@",
           beside=BEHIND,
           clients=FETCH,
           hello=GET),
]
