# s_inetd.py - programs that find their connection as standard input and output.
# SPDX-License-Identifier: Apache-2.0

from s_web import FETCH
from serverkit import TALK, Client, Server

ECHO = [Client(TALK + "@@DOCS@/f300001 .", "300001 bytes"), Client("@PYTHON@ @KIT@/talk.py @PORT@ '+one\\n' '-one\\n' .")]

SERVERS = [
    Server("inetd_cat", "openbsd-inetd", "a listener whose connections are cat's standard input and output",
           confined="root",
           argv="inetd -i -l @DIR@/conf",
           clients=ECHO,
           hello=["+one\\n", "-one\\n"],
           files={"conf": "127.0.0.1:@PORT@ stream tcp nowait root /bin/cat cat\n"}),
    Server("inetd_micro_httpd", "openbsd-inetd micro-httpd", "the same, by C's stdio, as another user",
           confined="root",
           argv="inetd -i -l @DIR@/conf",
           clients=FETCH,
           files={"conf": "127.0.0.1:@PORT@ stream tcp nowait www-data /usr/sbin/micro-httpd micro-httpd @DOCS@\n"}),
    Server("ncat", "ncat", "a child for each connection, which finds it as standard input and output",
           argv="ncat -k -l 127.0.0.1 @PORT@ -e /bin/cat",
           clients=[Client(TALK + "@@DOCS@/f65536 '+END\\n' '-END\\n'", "65540 bytes")] * 2,
           hello=["+one\\n", "-one\\n"]),
    Server("socat_exec", "socat", "a program behind a socket pair, half closed",
           argv="socat TCP-LISTEN:@PORT@,bind=127.0.0.1,reuseaddr,fork EXEC:/bin/cat",
           clients=ECHO,
           hello=["+one\\n", "-one\\n"]),
    Server("socat_system", "socat", "the connection itself as a shell's standard input and output",
           argv="socat TCP-LISTEN:@PORT@,bind=127.0.0.1,reuseaddr,fork SYSTEM:cat,nofork",
           clients=ECHO,
           hello=["+one\\n", "-one\\n"]),
    Server("nuttcp", "nuttcp", "stdio on a connection that became standard input and output",
           argv="nuttcp -S --nofork -P @PORT@ -p @PORT2@",
           clients=[Client("nuttcp -P @PORT@ -p @PORT2@ -n 64m 127.0.0.1", "64.0000 MB", free=True),
                    Client("nuttcp -r -P @PORT@ -p @PORT2@ -n 64m 127.0.0.1", "64.0000 MB", free=True)]),
    Server("iperf", "iperf", "a thread for each connection, blocking",
           argv="iperf -s -B 127.0.0.1 -p @PORT@",
           clients=[Client("iperf -c 127.0.0.1 -p @PORT@ -n 64M -P 2", "[SUM]", free=True)]),
    Server("qperf", "qperf", "a fork for each connection, addresses of other ports said over it",
           argv="qperf --listen_port @PORT@",
           clients=[Client("qperf --listen_port @PORT@ -t 1 127.0.0.1 tcp_bw tcp_lat", "tcp_lat", free=True)]),
    Server("distcc", "distcc gcc libc6-dev", "children that accept from one listener, becomes another user",
           logs=("log",),
           argv="distccd --no-detach --daemon --user distccd --listen 127.0.0.1 --port @PORT@ --allow 127.0.0.1 -j 2 --log-file "
                "@DIR@/log --log-level error --enable-tcp-insecure",
           clients=[Client("env DISTCC_HOSTS=127.0.0.1:@PORT@ DISTCC_FALLBACK=0 DISTCC_DIR=@DIR@/empty distcc gcc -O1 -c @DIR@/one.c -o "
                           "@DIR@/one.o"),
                    Client("gcc @DIR@/one.o -o @DIR@/one"),
                    Client("@DIR@/one", "each byte right")],
           files={"one.c": "#include <stdio.h>\nint main(void) { puts(\"each byte right\"); }\n"}),
]
