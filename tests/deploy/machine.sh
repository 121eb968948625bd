# machine.sh - a bare Debian that runs its systemd as PID 1, in namespaces: for tests of what is installed. Sourced by bash, as root.
# SPDX-License-Identifier: Apache-2.0
#
#   own_mounts "$0" "$@"         first: runs the script again in a mount namespace of its own, so that nothing stays mounted
#   machine_root SUITE           sets $root to a fresh overlay over a root that debootstrap makes once, in $POSTERN_ROOTS
#   with_network COMMAND...      in that root, not booted, with this machine's network
#   boot; in_machine COMMAND...; power_off
#
# The machine has a loopback as its only network, a cgroup, and a BPF file system of its own. All that it starts ends with it.

roots=${POSTERN_ROOTS:-/var/cache/postern}
machine_packages=systemd,systemd-sysv,dbus,libpam-systemd,nginx-light,curl,ca-certificates,iproute2,man-db

say() { printf '== %s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

own_mounts() {
  [ "$(id -u)" = 0 ] || die "mounts need root"
  if [ -z "${POSTERN_OWN_MOUNTS:-}" ]; then POSTERN_OWN_MOUNTS=1 exec unshare --mount -- "$@"; fi
  work=$(mktemp -d /tmp/pstn-deploy-XXXXXX)
  mount -t tmpfs -o size=3g tmpfs "$work"
  trap machine_end EXIT
}

machine_end() {
  power_off
  cd /
  # The verdict stands by now; what is left behind is said.
  umount -R -l "$work" || say "$work stays mounted"
  rmdir "$work" || say "$work stays"
}

# Where this machine's apt gets Debian itself from.
mirror() {
  apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n '/^Debian Debian /{s/.* //;p;q}'
}

# machine_base SUITE NAME: the root itself, which stays.
machine_base() {
  local suite=$1 base=$roots/$2 from
  if [ ! -e "$base/made-by-postern" ]; then
    command -v debootstrap >/dev/null || die "debootstrap is missing (Debian: apt-get install debootstrap)"
    from=$(mirror)
    [ -n "$from" ] || die "this machine's apt knows no Debian mirror"
    say "debootstrap in $base"
    rm -rf "$base"
    mkdir -p "$base"
    debootstrap --variant=minbase --include=$machine_packages "$suite" "$base" "$from" >/dev/null ||
      { tail -n 20 "$base/debootstrap/debootstrap.log"; die "debootstrap has failed"; }
    touch "$base/made-by-postern"
  fi
}

# over NAME: $root is a fresh one, over that.
over() {
  root=$work/$1
  mkdir -p "$root" "$work/upper-$1" "$work/work-$1"
  mount -t overlay -o "lowerdir=$roots/$1,upperdir=$work/upper-$1,workdir=$work/work-$1" overlay "$root"
}

machine_root() {
  machine_base "$1" "deploy-$1"
  over "deploy-$1"
  # A service that is installed starts when there is a systemd, and that is what is tested; but nginx is to be the test's own.
  rm -f "$root/etc/systemd/system/multi-user.target.wants/nginx.service"
}

as_inside=(/usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive)

with_network() {
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  if [ -d /etc/apt/apt.conf.d ]; then apt-config dump Acquire | grep -i '::proxy' >"$root/etc/apt/apt.conf.d/90proxy" || rm -f "$root/etc/apt/apt.conf.d/90proxy"; fi
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount --pid --fork --kill-child -- sh -ec '
    mount --rbind /dev "$1/dev"
    mount -t proc proc "$1/proc"
    root=$1
    shift
    exec chroot "$root" "$@"' sh "$root" "${as_inside[@]}" ${http_proxy:+http_proxy=$http_proxy} ${https_proxy:+https_proxy=$https_proxy} "$@"
}

boot() {
  local unified i state
  unified=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
  [ -n "$unified" ] || die "no cgroup2 is mounted"
  cgroup=$unified/$(basename "$work")
  mkdir -p "$cgroup"
  # shellcheck disable=SC2016
  sh -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' sh "$cgroup" \
    unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child -- sh -ec '
    root=$1
    mount --make-rprivate /
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs tmpfs "$root/tmp"
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t bpf bpf "$root/sys/fs/bpf"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for name in null zero full random urandom tty; do
      touch "$root/dev/$name"
      mount --bind "/dev/$name" "$root/dev/$name"
    done
    mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/run/old"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    mount -t tmpfs tmpfs "$root/dev/shm"
    cd "$root"
    pivot_root . run/old
    umount -l /run/old
    cd /
    rmdir /run/old
    mount --make-rshared /  # as on a host, and in a container that nspawn makes
    exec env -i container=postern-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --log-target=journal' \
    sh "$root" </dev/null >"$work/console" 2>&1 &
  holder=$!
  for ((i = 0; i < 600; i++)); do
    init=$(pgrep -P "$holder") || init=
    if [ -n "$init" ] && [ "$(cat "/proc/$init/comm")" = systemd ]; then
      # It says "starting" with a failure; one that stays at that is printed, and the end (below).
      state=$(in_machine systemctl is-system-running 2>/dev/null) || state=${state:-does not answer}
      if [ "$state" = running ] || [ "$state" = degraded ]; then return; fi
    fi
    sleep 0.1
  done
  cat "$work/console"
  die "systemd does not come up: ${state:-it has not begun}"
}

in_machine() {
  # shellcheck disable=SC2016
  nsenter -t "$init" --mount --pid --net --uts --ipc --cgroup -- "${as_inside[@]}" sh -c 'cd /; exec "$@"' sh "$@"
}

power_off() {
  if [ -z "${holder:-}" ]; then return; fi
  # unshare is deaf to other signals; its child goes with it
  kill -KILL "$holder" || say "the machine (pid $holder) had ended by itself"
  local status=0
  wait "$holder" 2>/dev/null || status=$?
  if [ $status != 137 ]; then say "the machine (pid $holder) had ended by itself, with status $status"; fi
  holder=
  find "$cgroup" -depth -type d -exec rmdir {} \; || say "control groups stay below $cgroup"
}

# ---- verdicts ----

passed=0
failed=0

# check NAME COMMAND...: one test. A function ends at the first of its commands that fails: hence no `||` behind it.
check() {
  local name=$1 out status=0
  shift
  out=$(mktemp)
  set +e
  (set -e; "$@") >"$out" 2>&1 </dev/null
  status=$?
  set -e
  if [ $status = 0 ]; then
    echo "pass  $name"
    passed=$((passed + 1))
  else
    echo "fail  $name (exit status $status)"
    sed 's/^/    /' "$out" | tail -n 60
    failed=$((failed + 1))
  fi
  rm -f "$out"
}

# count NAME COMMAND...: adds the last "N passed, N failed" that it prints. One that fails without a failure to show is one.
count() {
  local name=$1 out line status=0
  shift
  out=$(mktemp)
  "$@" </dev/null 2>&1 | tee "$out" || status=$?
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$out" | tail -n 1) || line=
  rm -f "$out"
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
    if [ $status != 0 ] && [ "${BASH_REMATCH[2]}" = 0 ]; then
      failed=$((failed + 1))
      echo "fail  $name (exit status $status)"
    fi
  else
    failed=$((failed + 1))
    echo "fail  $name: it has not come to its end"
  fi
}

summary() {
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}
