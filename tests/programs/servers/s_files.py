# s_files.py - file transfer: a process for each session, confined and of another user, with connections that it makes and accepts.
# SPDX-License-Identifier: Apache-2.0

import os
import shutil

from serverkit import TALK, Client, Server

VSFTPD = """
listen=YES
listen_ipv6=NO
listen_address=127.0.0.1
listen_port=@PORT@
background=NO
anonymous_enable=YES
local_enable=NO
write_enable=YES
anon_upload_enable=YES
anon_root=@DIR@/root
secure_chroot_dir=@DIR@/empty
xferlog_enable=YES
vsftpd_log_file=@DIR@/log
connect_from_port_20=YES
seccomp_sandbox="""


def root_folder(place):
    os.makedirs(f"{place.dir}/root/up")
    shutil.copy(f"{place.names['DOCS']}/f300001", f"{place.dir}/root/f300001")
    shutil.chown(f"{place.dir}/root/up", "ftp")


def disk(place):
    with open(f"{place.dir}/disk", "wb") as file, open(f"{place.names['DOCS']}/f300001", "rb") as content:
        file.write(content.read() + bytes((1 << 20) - 300001))


def repository(place):
    place.do("git init -q --bare @DIR@/one.git")
    work = "git -c user.name=joe -c user.email=joe@localhost --git-dir=@DIR@/one.git --work-tree=@DOCS@ "
    place.do(work + "add f300001 f65536")
    dates = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}  # the names of commits come of them
    place.do(work + "commit -q -m one", env={**os.environ, **dates})


NBD = [Client("nbdcopy --connections=1 nbd://127.0.0.1:@PORT@/one @DIR@/copy"), Client("cmp @DIR@/copy @DIR@/disk")]

SERVERS = [
    Server("vsftpd", "vsftpd", "processes for each session: chroot, another user; active and passive data connections",
           confined="root", logs=("log",), prepare=root_folder,
           argv="vsftpd @DIR@/conf",
           clients=[Client("curl -sS ftp://127.0.0.1:@PORT@/f300001", "sha256 f300001"),
                    Client("curl -sS -P 127.0.0.1 ftp://127.0.0.1:@PORT@/f300001", "sha256 f300001"),
                    Client("curl -sS -T @DOCS@/f65536 ftp://127.0.0.1:@PORT@/up/new"),
                    Client("curl -sS -l ftp://127.0.0.1:@PORT@/up/", "new"),
                    Client("curl -sS ftp://127.0.0.1:@PORT@/none", status=78)],
           hello=["-220 "],
           files={"conf": VSFTPD + "NO\n"}),
    # What it allows itself is less than today's libc needs for a file.
    Server("vsftpd_seccomp", "vsftpd", "the same under a filter of its own, which kills",
           confined="root", logs=("log",), prepare=root_folder,
           argv="vsftpd @DIR@/conf",
           clients=[Client(TALK + "'-220 ' '+USER ftp\\r\\n' -331 '+PASS x@y\\r\\n' -230 '+PWD\\r\\n' -257 '+QUIT\\r\\n' .", "221 ")],
           hello=["-220 "],
           files={"conf": VSFTPD + "YES\n"}),
    Server("rsync", "rsync", "a fork for each connection, chroot, becomes another user",
           confined="root", logs=("log",),
           argv="rsync --daemon --no-detach --config=@DIR@/conf --address=127.0.0.1 --port=@PORT@ --log-file=@DIR@/log",
           clients=[Client("rsync -a rsync://127.0.0.1:@PORT@/docs/ @DIR@/copy"),
                    Client("diff -r @DOCS@ @DIR@/copy"),
                    Client("rsync rsync://127.0.0.1:@PORT@/", "docs"),
                    Client("rsync -a rsync://127.0.0.1:@PORT@/none/ @DIR@/none", status=5)],
           hello=["-@RSYNCD"],
           files={"conf": "pid file = @DIR@/pid\nuse chroot = yes\n[docs]\npath = @DOCS@\nuid = nobody\ngid = nogroup\n"}),
    Server("git_daemon", "git", "a child for each connection, which finds it as standard input and output",
           confined="root", prepare=repository,
           argv="git daemon --reuseaddr --listen=127.0.0.1 --port=@PORT@ --base-path=@DIR@ --export-all --verbose",
           clients=[Client("git clone -q git://127.0.0.1:@PORT@/one.git @DIR@/clone"),
                    Client("cmp @DIR@/clone/f300001 @DOCS@/f300001"),
                    Client("git ls-remote git://127.0.0.1:@PORT@/one.git", "refs/heads/"),
                    Client("git clone -q git://127.0.0.1:@PORT@/none.git @DIR@/none", status=128)]),
    Server("qemu_nbd", "qemu-utils libnbd-bin", "coroutines over GLib's loop",
           prepare=disk,
           argv="qemu-nbd -x one -f raw -r -t -e 4 -b 127.0.0.1 -p @PORT@ @DIR@/disk",
           clients=NBD,
           hello=["-NBDMAGIC"]),
    Server("samba", "samba smbclient", "a fork for each connection, with uids that change from call to call",
           confined="root",
           prepare=lambda place: [os.makedirs(f"{place.dir}/{name}") for name in ("private", "lock", "state", "cache", "pid", "ncalrpc")],
           argv="smbd -F --no-process-group -s @DIR@/conf -l @DIR@",
           clients=[Client("smbclient -s @DIR@/conf -p @PORT@ -N //127.0.0.1/docs -c 'get f300001 @DIR@/copy'", free=True),
                    Client("cmp @DIR@/copy @DOCS@/f300001"),
                    Client("smbclient -s @DIR@/conf -p @PORT@ -N //127.0.0.1/none -c ls", status=1)],
           files={"conf": """
[global]
interfaces = 127.0.0.1
bind interfaces only = yes
smb ports = @PORT@
disable netbios = yes
map to guest = Bad User
guest account = nobody
load printers = no
printing = bsd
log level = 0
private dir = @DIR@/private
lock directory = @DIR@/lock
state directory = @DIR@/state
cache directory = @DIR@/cache
pid directory = @DIR@/pid
ncalrpc dir = @DIR@/ncalrpc
[docs]
path = @DOCS@
guest ok = yes
"""}),
]
