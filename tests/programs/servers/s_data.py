# s_data.py - stores and queues: databases, caches, brokers.
# SPDX-License-Identifier: Apache-2.0

import signal

from serverkit import NO_LISTENER, TALK, Client, Server

POSTGRES = "/usr/lib/postgresql/15/bin/"
MARIADB = "mariadb --no-defaults -h 127.0.0.1 -P @PORT@ -u root -N -e "


def tables(place):
    place.do("mariadb-install-db --no-defaults --user=mysql --auth-root-authentication-method=normal --datadir=@DIR@/data "
             "--innodb-log-file-size=8M --skip-test-db")


def cluster(place):
    place.own(place.dir)
    place.do("setpriv --reuid=postgres --regid=postgres --clear-groups " + POSTGRES + "initdb -N -A trust -U postgres -D @DIR@/data")


SERVERS = [
    Server("memcached", "memcached", "becomes another user before its first socket, threads with libevent",
           argv="memcached -u memcache -l 127.0.0.1 -p @PORT@ -U 0 -t 3",
           clients=[Client(TALK + "'+set a 0 0 65536\\r\\n' @@DOCS@/f65536 '+\\r\\n' -STORED '+get a\\r\\n' '-END\\r\\n'"),
                    Client(TALK + "'+get b\\r\\n' '-END\\r\\n' '+quit\\r\\n' .")],
           hello=["+version\\r\\n", "-VERSION"]),
    Server("mosquitto", "mosquitto mosquitto-clients", "one process, epoll, becomes another user before it listens",
           owner="mosquitto",
           argv="mosquitto -c @DIR@/conf",
           clients=[Client("mosquitto_pub -p @PORT@ -h 127.0.0.1 -t one -r -f @DOCS@/f65536"),
                    Client("mosquitto_sub -p @PORT@ -h 127.0.0.1 -t one -C 1 -N", "sha256 f65536")],
           files={"conf": """
listener @PORT@ 127.0.0.1
allow_anonymous true
user mosquitto
persistence false
log_type warning
"""}),
    Server("redis_threads", "redis-server redis-tools", "I/O threads beside one loop",
           argv="redis-server --bind 127.0.0.1 --port @PORT@ --io-threads 3 --io-threads-do-reads yes --save '' --dir @DIR@ --loglevel "
                "warning",
           clients=[Client("redis-cli -p @PORT@ -x set one", "OK", stdin="@DOCS@/f300001"),
                    Client("redis-cli -p @PORT@ getrange one 0 20"),
                    Client("redis-benchmark -p @PORT@ --csv -n 4000 -c 20 -P 4 -t set,get", "GET", free=True)],
           hello=["+PING\\r\\n", "-PONG"]),
    Server("beanstalkd", "beanstalkd", "one process, epoll, becomes another user before its loop",
           owner="beanstalkd",
           argv="beanstalkd -l 127.0.0.1 -p @PORT@ -u beanstalkd",
           clients=[Client(TALK + "'+put 1 0 60 1024\\r\\n' @@DOCS@/f1024 '+\\r\\n' -INSERTED '+reserve\\r\\n' -RESERVED '+quit\\r\\n' .")],
           hello=["+stats\\r\\n", "-OK"]),
    Server("mariadb", "mariadb-server mariadb-client", "a thread for each connection, poll, becomes another user before it listens",
           owner="mysql", logs=("log",), prepare=tables,
           argv="mariadbd --no-defaults --user=mysql --datadir=@DIR@/data --socket=@DIR@/sock --bind-address=127.0.0.1 --port=@PORT@ "
                "--pid-file=@DIR@/pid --innodb-buffer-pool-size=16M --innodb-log-file-size=8M --innodb-use-native-aio=0 "
                "--skip-name-resolve --skip-log-bin --log-error=@DIR@/log",
           clients=[Client((MARIADB +
                            "\"create database one; use one; create table t (a int, b longtext); insert into t select seq, repeat(seq, "
                            "1000) from seq_1_to_500\"")),
                    Client(MARIADB + "\"select count(*), sum(a), md5(group_concat(b)) from one.t\"", "500"),
                    Client(MARIADB + "\"select b from one.t order by a\""),
                    Client(MARIADB + "\"select nothing\"", status=1)]),
    Server("slapd", "slapd ldap-utils", "a listener's loop and a pool of threads, becomes another user",
           owner="openldap", prepare=lambda place: place.own(place.ctx.path(f"{place.label}/db/x")[:-2]),
           argv="slapd -d 0 -u openldap -g openldap -f @DIR@/conf -h ldap://127.0.0.1:@PORT@",
           clients=[Client("ldapadd -x -H ldap://127.0.0.1:@PORT@ -D cn=joe,dc=test -w secret -f @DIR@/ldif", "adding new entry"),
                    Client("ldapsearch -x -LLL -H ldap://127.0.0.1:@PORT@ -b dc=test description", "each byte right"),
                    Client("ldapsearch -x -H ldap://127.0.0.1:@PORT@ -D cn=joe,dc=test -w wrong -b dc=test", status=49)],
           files={"ldif": """dn: dc=test
objectClass: dcObject
objectClass: organization
o: one
dc: test
description: each byte right
""", "conf": """
include /etc/ldap/schema/core.schema
pidfile @DIR@/pid
argsfile @DIR@/args
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
suffix dc=test
rootdn cn=joe,dc=test
rootpw secret
directory @DIR@/db
"""}),
    Server("etcd", "etcd-server etcd-client", "Go: sockets by direct system calls",
           path=NO_LISTENER,
           argv="etcd --data-dir @DIR@/data --listen-client-urls http://127.0.0.1:@PORT@ --advertise-client-urls http://127.0.0.1:@PORT@ "
                "--listen-peer-urls http://127.0.0.1:@PORT2@ --initial-advertise-peer-urls http://127.0.0.1:@PORT2@ --initial-cluster "
                "default=http://127.0.0.1:@PORT2@ --logger zap --log-level error",
           clients=[Client("env ETCDCTL_API=3 etcdctl --endpoints=http://127.0.0.1:@PORT@ put one right", "OK"),
                    Client("env ETCDCTL_API=3 etcdctl --endpoints=http://127.0.0.1:@PORT@ get one", "right")]),
    Server("pgbouncer", "pgbouncer postgresql-15", "libevent, becomes another user, before a server with a fork for each connection",
           confined="root", owner="postgres", stop=signal.SIGINT, prepare=cluster,
           argv="pgbouncer @DIR@/conf",
           beside=[("setpriv --reuid=postgres --regid=postgres --clear-groups " + POSTGRES +
                    "postgres -D @DIR@/data -p @PORT2@ -k @DIR@ -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB")],
           clients=[Client("psql -h 127.0.0.1 -p @PORT@ -U postgres -w -Atc \"select count(*), md5(string_agg(repeat(n::text, 100), "
                           "',')) from generate_series(1, 3000) n\" postgres", "3000|"),
                    Client("psql -h 127.0.0.1 -p @PORT@ -U postgres -w -Atc \"select repeat(n::text, 100) from generate_series(1, 3000) "
                           "n\" postgres"),
                    Client("psql -h 127.0.0.1 -p @PORT@ -U postgres -w -Atc 'select nothing' postgres", status=1)],
           files={"users": "\"postgres\" \"\"\n", "conf": """
[databases]
postgres = host=127.0.0.1 port=@PORT2@ user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = @PORT@
unix_socket_dir =
auth_type = any
user = postgres
logfile = @DIR@/log
pidfile = @DIR@/pid
"""}),
]
