#!/usr/bin/env bash
# installed.sh - in a booted machine (machine.sh): the packages are installed, used, upgraded, removed and purged.
# SPDX-License-Identifier: Apache-2.0
#
# Two users have a server and a client each. `--strict` on a client turns falling back to the kernel's TCP into an error, so that what
# such a client gets came through shared memory.
set -euo pipefail
. "$(dirname "$0")/machine.sh"

names=(postern postern-broker)
for driver in softnic verbsnic; do
  if compgen -G "/build-deb/postern-${driver}_*.deb" >/dev/null; then names+=("postern-$driver"); fi
done

# ---- what is there ----

# Of what packages own or make: caches, logs and dpkg's own lists apart, which are not theirs.
files() {
  find / -xdev \( -path /build-deb -o -path /tests -o -path /var/cache -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /home -o -path /var/tmp \) -prune -o -print | sort
}

same_files() { diff <(cat "$1") <(files); }

# ---- users and programs ----

as() {
  local user=$1
  shift
  runuser -u "$user" -- "$@"
}

# A server of a user's own.
nginx_of() {
  local user=$1 port=$2 dir=$3
  cat >"$dir/nginx.conf" <<CONF
worker_processes 1;
pid $dir/nginx.pid;
error_log $dir/error.log;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path $dir/t1; proxy_temp_path $dir/t2; fastcgi_temp_path $dir/t3; uwsgi_temp_path $dir/t4; scgi_temp_path $dir/t5;
  server {
    listen 0.0.0.0:$port;
    root $dir/www;
    location /slow { alias $dir/www/large; limit_rate 1m; }
  }
}
CONF
  mkdir -p "$dir/www"
  echo "from $user" >"$dir/www/index.html"
  head -c 12000000 /dev/zero | tr '\0' x >"$dir/www/large"
  chown -R "$user:" "$dir"
}

answers() { [ "$("$@")" = "from alice" ]; }

# Until it holds, at most 20 s.
becomes() {
  local i
  for ((i = 0; i < 200; i++)); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  "$@"
}

fetch() { as bob postern "${@:2}" --strict curl -sS --max-time 20 "$1"; }

# ---- installation ----

useradd --create-home alice
useradd --create-home bob
alice=~alice bob=~bob
nginx_of alice 8080 "$alice"
apt-get autoremove --purge >/dev/null
files >/tmp/before

# From what is downloaded: there is no network here.
install() {
  cd /
  apt-get install ./build-deb/postern_*.deb ./build-deb/postern-broker_*.deb
  apt-get install ./build-deb/*.deb
}
check "the packages are installed" install
files >/tmp/installed

commands_are_there() {
  local name
  for name in postern posternctl posternd; do
    "$name" --version
    man -w "$name"
    [ -s "/usr/share/bash-completion/completions/$name.bash" ] && [ -s "/usr/share/zsh/vendor-completions/_$name" ] && [ -s "/usr/share/fish/vendor_completions.d/$name.fish" ]
  done
}
check "commands, man pages and completion" commands_are_there
check "the host's profile" sh -ec 'postern -p site true; echo "spin.usec = 0" >/etc/postern/profiles/quiet.conf; postern -p quiet env | grep -x POSTERN_SPIN_USEC=0; rm /etc/postern/profiles/quiet.conf'

# ---- the broker ----

check "the unit is in order" systemd-analyze verify --man=no postern.service postern-bells.service
check "its exposure" sh -ec 'systemd-analyze security --no-pager postern.service; systemd-analyze security --threshold=42 --no-pager postern.service >/dev/null'
check "the broker runs" becomes systemctl is-active postern.service
check "it is enabled" systemctl is-enabled postern.service
broker() { systemctl show -P MainPID postern.service; }
is_sandboxed() {
  local pid
  pid=$(broker)
  grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs|Seccomp):' "/proc/$pid/status"
  grep -qx "CapPrm:[[:space:]]*0000000000081000" "/proc/$pid/status"  # CAP_SYS_PTRACE, CAP_NET_ADMIN
  grep -qx "NoNewPrivs:[[:space:]]*1" "/proc/$pid/status"
  grep -qx "Seccomp:[[:space:]]*2" "/proc/$pid/status"
  if nsenter -t "$pid" -m touch /usr/written || nsenter -t "$pid" -m touch /etc/written; then return 1; fi
  [ -z "$(nsenter -t "$pid" -m sh -c "ls -A /home; ls -A /root" 2>/dev/null)" ]
  nsenter -t "$pid" -m touch /run/postern/written && rm /run/postern/written
}
check "it is sandboxed" is_sandboxed
bells() { findmnt -n -o SOURCE /run/postern/bells; }
bells_are_the_hosts() {
  local before
  before=$(bells)
  systemctl restart postern.service
  becomes systemctl is-active postern.service
  [ -n "$before" ] && [ "$(bells)" = "$before" ] && [ "$(nsenter -t "$(broker)" -m findmnt -n -o SOURCE /run/postern/bells | sort -u)" = "$before" ]
}
check "the doorbells' namespace is the host's, and outlives a restart" bells_are_the_hosts
said_nothing_bad() {
  if journalctl -u postern.service --no-pager -o cat | grep -E "lacks|not connected|cannot|can't|not permitted|filter of system calls"; then return 1; fi
}
check "it has what it needs" said_nothing_bad
check "the SYN option is attached" becomes sh -c 'ls /sys/fs/bpf/postern/* >/dev/null && ! journalctl -u postern.service -o cat | grep "SYN option:"'

# ---- two users ----

check "alice's nginx" as alice postern nginx -c "$alice/nginx.conf"
check "bob reaches it through shared memory" answers fetch http://127.0.0.1:8080/
check "without postern he does, too" answers as bob curl -sS http://127.0.0.1:8080/
listens() { as alice posternctl ss | grep -E '8080'; }
check "posternctl shows the listener" listens

policy_denies() {
  cp /etc/postern/policy.json /tmp/policy
  echo '{ "rules": [ { "from": { "user": "bob" }, "verdict": "deny" } ] }' >/etc/postern/policy.json
  systemctl reload postern.service
  becomes sh -c '! runuser -u bob -- postern --strict curl -sS --max-time 20 http://127.0.0.1:8080/'
  answers as bob postern curl -sS http://127.0.0.1:8080/
  cp /tmp/policy /etc/postern/policy.json
  systemctl reload postern.service
  becomes answers fetch http://127.0.0.1:8080/
}
check "the policy is obeyed when it is reloaded" policy_denies

# ---- a user's own unit ----

user_unit() {
  local uid
  uid=$(id -u alice)
  systemctl start "user@$uid.service"
  as alice env XDG_RUNTIME_DIR="/run/user/$uid" systemctl --user start posternd.service
  becomes as alice env XDG_RUNTIME_DIR="/run/user/$uid" posternctl status
  as alice env XDG_RUNTIME_DIR="/run/user/$uid" systemctl --user is-active posternd.service
  as alice env XDG_RUNTIME_DIR="/run/user/$uid" postern -v true 2>&1 | grep "runtime directory /run/user/$uid/postern"
  as alice env XDG_RUNTIME_DIR="/run/user/$uid" systemctl --user stop posternd.service
  systemctl stop "user@$uid.service"
}
check "the user's unit" user_unit

# ---- network namespaces and interfaces ----

ip link add ve1 type veth peer name ve2
ip netns add box
ip link set ve2 netns box
ip address add 10.77.0.1/24 dev ve1
ip link set ve1 up
ip -n box address add 10.77.0.2/24 dev ve2
ip -n box link set ve2 up
ip -n box link set lo up
in_box() { ip netns exec box runuser -u bob -- env POSTERN_RUNTIME_DIR="$bob/box" "$@"; }
as bob mkdir -m 700 "$bob/box"
from_a_box() { [ "$(in_box postern curl -sS --max-time 20 http://10.77.0.1:8080/)" = "from alice" ]; }
accelerated_from_a_box() {
  local i
  for ((i = 0; i < 20; i++)); do
    if [ "$(in_box postern --strict curl -sS --max-time 20 http://10.77.0.1:8080/)" = "from alice" ]; then return; fi
    sleep 0.2
  done
  return 1
}
check "another network namespace reaches it" from_a_box
check "through shared memory" accelerated_from_a_box

by_interface() {
  local status=0
  echo 'POSTERND_OPTIONS="--vi ve1"' >/etc/default/postern-broker
  systemctl restart postern.service
  sed 's,^pid .*,pid /run/box.pid; user root;,' "$alice/nginx.conf" >/run/box.conf
  ip netns exec box nginx -c /run/box.conf
  becomes sh -c '[ "$(runuser -u bob -- postern --strict -o vi=ve1 curl -sS --max-time 20 http://10.77.0.2:8080/)" = "from alice" ]' && status=0 || status=1
  kill "$(cat /run/box.pid)"
  rm /etc/default/postern-broker
  if [ $status != 0 ]; then journalctl -u postern.service --no-pager -o cat | tail -n 5; fi
  systemctl restart postern.service
  return $status
}
check "with --vi, a VI takes an interface's packets" by_interface

# ---- upgrade ----

upgrade() {
  local client
  becomes answers fetch http://127.0.0.1:8080/  # the users' daemons have found the broker again
  fetch http://127.0.0.1:8080/slow >/tmp/slow &
  client=$!
  sleep 1
  apt-get install --reinstall ./build-deb/*.deb
  wait $client
  [ "$(wc -c </tmp/slow)" = 12000000 ]
  systemctl is-active postern.service
  becomes answers fetch http://127.0.0.1:8080/
}
check "an upgrade cuts no connection, and new ones are accelerated" upgrade
check "its files are the same" same_files /tmp/installed

# ---- the end ----

kill "$(cat "$alice/nginx.pid")"
ip netns delete box
without_programs() { ! pgrep -u alice,bob; }
check "the users' daemons leave by themselves" becomes without_programs
check "the packages are removed" apt-get remove "${names[@]}"
removed() {
  if pgrep -x posternd; then return 1; fi
  [ ! -e /run/postern ] && [ ! -e /sys/fs/bpf/postern ]
  for name in postern posternctl posternd; do if command -v "$name"; then return 1; fi; done
  [ -e /etc/postern/policy.json ] && [ -e /etc/postern/profiles/site.conf ]
}
check "what runs has ended, and the administrator's files are still there" removed
check "they are purged" sh -ec 'apt-get purge postern postern-broker; apt-get autoremove --purge'  # drivers have no configuration: dpkg has forgotten them
check "nothing is left" same_files /tmp/before
summary
