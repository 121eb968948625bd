# s_names.py - servers of names: TCP beside UDP, threads, chroot, another user.
# SPDX-License-Identifier: Apache-2.0

from serverkit import Client, Server

DIG = [Client("dig +tcp +short +tries=1 -p @PORT@ @127.0.0.1 one.test A", "192.0.2.1"),
       Client("dig +tcp +short +tries=1 -p @PORT@ @127.0.0.1 long.test TXT", "abcdefgh"),
       Client("dig +notcp +short +tries=1 -p @PORT@ @127.0.0.1 one.test A", "192.0.2.1")]

ZONE = """$TTL 60
@ IN SOA ns.test. joe.test. 1 3600 600 86400 60
@ IN NS ns.test.
ns IN A 192.0.2.2
one IN A 192.0.2.1
long IN TXT "abcdefgh" "ijklmnop"
"""

SERVERS = [
    Server("unbound", "unbound bind9-dnsutils", "threads with libevent, chroot, becomes another user",
           confined="root", owner="unbound",
           argv="unbound -d -p -c @DIR@/conf",
           clients=DIG,
           files={"conf": """
server:
  interface: 127.0.0.1
  port: @PORT@
  username: "unbound"
  chroot: "@DIR@"
  directory: "@DIR@"
  logfile: ""
  use-syslog: no
  num-threads: 2
  local-zone: "test." static
  local-data: "one.test. A 192.0.2.1"
  local-data: 'long.test. TXT "abcdefgh" "ijklmnop"'
remote-control:
  control-enable: no
"""}),
    Server("bind", "bind9 bind9-dnsutils", "libuv, threads, becomes another user before it listens",
           owner="bind", ready="all zones loaded",
           argv="named -g -n 2 -u bind -c @DIR@/conf",
           clients=DIG,
           files={"zone": ZONE, "conf": """
options {
  directory "@DIR@";
  pid-file "@DIR@/pid";
  session-keyfile "@DIR@/session.key";
  listen-on port @PORT@ { 127.0.0.1; };
  listen-on-v6 { none; };
  recursion no;
  dnssec-validation no;
  notify no;
};
controls { };
zone "test" { type master; file "@DIR@/zone"; };
"""}),
    Server("knot", "knot bind9-dnsutils", "threads, epoll, SO_REUSEPORT, becomes another user",
           owner="knot", ready="loaded, serial",
           argv="knotd -c @DIR@/conf",
           clients=DIG,
           files={"test.zone": ZONE, "conf": """
server:
  rundir: "@DIR@"
  user: knot:knot
  listen: 127.0.0.1@@PORT@
log:
  - target: stderr
    any: info
database:
  storage: "@DIR@/db"
template:
  - id: default
    storage: "@DIR@"
    file: "%s.zone"
zone:
  - domain: test
"""}),
    Server("nsd", "nsd bind9-dnsutils", "processes that share sockets, chroot, becomes another user",
           confined="root", owner="nsd", logs=("log",),
           argv="nsd -d -c @DIR@/conf",
           clients=DIG,
           files={"zone": ZONE, "conf": """
server:
  ip-address: 127.0.0.1@@PORT@
  server-count: 2
  username: nsd
  chroot: "@DIR@"
  zonesdir: "@DIR@"
  pidfile: "@DIR@/pid"
  database: ""
  xfrdfile: "@DIR@/xfrd"
  zonelistfile: "@DIR@/zones"
  logfile: "@DIR@/log"
  xfrdir: "@DIR@"
remote-control:
  control-enable: no
zone:
  name: test
  zonefile: zone
"""}),
    Server("dnsmasq", "dnsmasq-base bind9-dnsutils", "a fork for each TCP connection, becomes another user",
           argv="dnsmasq -k -C @DIR@/conf",
           clients=DIG,
           files={"conf": """
port=@PORT@
listen-address=127.0.0.1
bind-interfaces
no-resolv
no-hosts
pid-file=@DIR@/pid
log-facility=@DIR@/log
address=/one.test/192.0.2.1
txt-record=long.test,abcdefgh,ijklmnop
"""}),
]
