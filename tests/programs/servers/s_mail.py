# s_mail.py - mail and chat: many small processes of several users that pass connections, one loop, a process for each message.
# SPDX-License-Identifier: Apache-2.0

from serverkit import TALK, Client, Server

MAIL = "From: joe@localhost\nTo: joe@localhost\nSubject: one\n\n" + "".join(f"line {n} of a letter\n" for n in range(3000))

DOVECOT = """
base_dir = @DIR@/run
state_dir = @DIR@/state
log_path = @DIR@/log
protocols = imap pop3
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
auth_mechanisms = plain
auth_failure_delay = 0
mail_location = maildir:@DIR@/mail/%u
first_valid_uid = 1
passdb {
  driver = static
  args = password=secret
}
userdb {
  driver = static
  args = uid=mail gid=mail home=@DIR@/mail/%u
}
service imap-login {
  inet_listener imap {
    port = @PORT@
  }
  inet_listener imaps {
    port = 0
  }
}
service pop3-login {
  inet_listener pop3 {
    port = @PORT2@
  }
  inet_listener pop3s {
    port = 0
  }
}
"""

SERVERS = [
    Server("dovecot", "dovecot-imapd dovecot-pop3d",
           "listeners that a master waits at and chrooted processes of other users accept from, which pass connections on by SCM_RIGHTS",
           path="kernel (two families wait at one listener)", confined="root", logs=("log",),
           prepare=lambda place: place.own(place.ctx.path(f"{place.label}/mail/x")[:-2], "mail"),
           argv="dovecot -F -c @DIR@/conf",
           clients=[Client("curl -sS --user joe:secret -T @DIR@/letter imap://127.0.0.1:@PORT@/INBOX"),
                    Client("curl -sS --user joe:secret imap://127.0.0.1:@PORT@/INBOX;MAILINDEX=1", "line 2999 of a letter"),
                    Client("curl -sS --user joe:secret pop3://127.0.0.1:@PORT2@/1", "line 2999 of a letter"),
                    Client("curl -sS --user joe:wrong imap://127.0.0.1:@PORT@/INBOX", status=67)],
           hello=["-OK"],
           files={"letter": MAIL, "conf": DOVECOT + "default_vsz_limit = 0\n"}),
    Server("dovecot_limited", "dovecot-imapd dovecot-pop3d", "the same with RLIMIT_AS as Debian has it",
           path="kernel (two families wait at one listener)", confined="root", logs=("log",),
           prepare=lambda place: place.own(place.ctx.path(f"{place.label}/mail/x")[:-2], "mail"),
           argv="dovecot -F -c @DIR@/conf",
           clients=[Client("curl -sS --user joe:secret -T @DIR@/letter imap://127.0.0.1:@PORT@/INBOX"),
                    Client("curl -sS --user joe:secret imap://127.0.0.1:@PORT@/INBOX;MAILINDEX=1", "line 2999 of a letter"),
                    Client("curl -sS --user joe:secret pop3://127.0.0.1:@PORT2@/1", "line 2999 of a letter"),
                    Client("curl -sS --user joe:wrong imap://127.0.0.1:@PORT@/INBOX", status=67)],
           hello=["-OK"],
           files={"letter": MAIL, "conf": DOVECOT}),
    Server("exim", "exim4-daemon-light", "a fork for each connection, which executes itself anew to deliver",
           confined="root", owner="Debian-exim", logs=("log-paniclog",), prepare=lambda place: place.own(f"{place.dir}/conf", "root"),
           argv="exim4 -C @DIR@/conf -bdf",
           clients=[Client("curl -sS smtp://127.0.0.1:@PORT@ --mail-from joe@localhost --mail-rcpt joe@localhost -T @DIR@/letter"),
                    Client("curl -sS smtp://127.0.0.1:@PORT@ --mail-from joe@localhost --mail-rcpt none@example.com -T @DIR@/letter",
                           status=55)],
           hello=["-220 "],
           files={"letter": MAIL, "conf": """
primary_hostname = localhost
daemon_smtp_ports = @PORT@
local_interfaces = 127.0.0.1
spool_directory = @DIR@/spool
log_file_path = @DIR@/log-%slog
pid_file_path = @DIR@/pid
acl_smtp_rcpt = check_rcpt
host_lookup =
rfc1413_query_timeout = 0s
begin acl
check_rcpt:
  accept domains = localhost
  deny
begin routers
local:
  driver = accept
  transport = box
begin transports
box:
  driver = appendfile
  file = @DIR@/box
  user = Debian-exim
"""}),
    Server("ngircd", "ngircd", "one process, epoll",
           argv="ngircd -n -f @DIR@/conf",
           clients=[Client((TALK +
                            "'+NICK joe\\r\\nUSER joe 0 * :joe\\r\\n' '- 376 ' '+JOIN #one\\r\\n' '- 366 ' '+PRIVMSG joe :each "
                            "byte\\r\\n' '-each byte' '+QUIT\\r\\n' ."), free=True)] * 2,
           files={"conf": """
[Global]
Name = irc.localhost.test
Info = one
Listen = 127.0.0.1
Ports = @PORT@
ServerUID = irc
ServerGID = irc
[Options]
DNS = no
Ident = no
PAM = no
SyslogFacility = local7
"""}),
    Server("prosody", "prosody", "Lua over epoll or select",
           owner="prosody",
           argv="prosody --config @DIR@/prosody.cfg.lua",
           clients=[Client((TALK +
                            "\"+<?xml version='1.0'?><stream:stream to='localhost' xmlns='jabber:client' "
                            "xmlns:stream='http://etherx.jabber.org/streams' version='1.0'>\" '-</stream:features>' '+</stream:stream>' "
                            "'-</stream:stream>'"), "stream:features", free=True)],
           hello=["+<?xml version='1.0'?>",
                  "+<stream:stream to='localhost' xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' version='1.0'>",
                  "-</stream:features>"],
           files={"prosody.cfg.lua": """
daemonize = false
run_as_root = true
pidfile = "@DIR@/pid"
data_path = "@DIR@"
interfaces = { "127.0.0.1" }
c2s_ports = { @PORT@ }
s2s_ports = { }
http_ports = { }
https_ports = { }
modules_enabled = { "saslauth" }
modules_disabled = { "s2s" }
c2s_require_encryption = false
allow_unencrypted_plain_auth = true
authentication = "internal_plain"
log = { warn = "*console" }
VirtualHost "localhost"
"""}),
]
