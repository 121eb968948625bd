#!/usr/bin/env bash
# debian13.sh - the committed tree on a bare Debian 13, whatever this machine runs: `./run test-debian13 [all]`.
# SPDX-License-Identifier: Apache-2.0
#
# debootstrap makes the root once, in $POSTERN_DEBIAN13 (default: /var/cache/postern/debian13), from the mirror that this machine's
# apt uses; later runs use it again. What is tested is a clean clone in it, so that neither a file that was not committed nor a
# package that `./run setup` does not name can help. The tests have the root by pivot_root (behind chroot the kernel gives out no user
# namespaces), in mount, PID and network namespaces of their own: all that they start ends with them, and their only network is a
# loopback. Setting up has the machine's network.
#
#   (no argument)  setup, then by the newest GCC and by the newest Clang that apt offers there: build, the suites unit and stress,
#                  and the written cases of the conformance tier (layout pair, mode both)
#   all            `./run demo` and `./run test`, as root and as an ordinary user
# Needs root. The last line is "N passed, N failed".
set -euo pipefail

root=${POSTERN_DEBIAN13:-/var/cache/postern/debian13}
top=$(dirname "$(dirname "$(readlink -f "$0")")")

say() { printf '== %s\n' "$*"; }
die() { printf 'debian13.sh: %s\n' "$*" >&2; exit 1; }

# ---- on this machine -------------------------------------------------------------------------------------------------------

# Where this machine's apt gets Debian itself from.
mirror() {
  apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n '/^Debian Debian /{s/.* //;p;q}'
}

make_root() {
  local from
  if [ -e "$root/made-by-postern" ]; then return; fi
  command -v debootstrap >/dev/null || die "debootstrap is missing (Debian: apt-get install debootstrap)"
  from=$(mirror)
  [ -n "$from" ] || die "this machine's apt knows no Debian mirror"
  say "debootstrap in $root"
  mkdir -p "$root"
  debootstrap --variant=minbase trixie "$root" "$from" >/dev/null || { tail -n 20 "$root/debootstrap/debootstrap.log"; die "debootstrap has failed"; }
  touch "$root/made-by-postern"
}

# clone DIR: what is committed, in this directory of the root.
clone() {
  rm -rf "${root:?}$1"
  mkdir -p "$root$(dirname "$1")"
  git -c safe.directory='*' clone --quiet --no-hardlinks "$top" "$root$1"
}

# in_root NET COMMAND...: runs it in the root; NET is the option that gives unshare the network namespace, or empty.
in_root() {
  local net=$1
  shift
  # shellcheck disable=SC2016,SC2086  # expanded by the inner shell; an empty option is none
  unshare --mount --pid --fork --kill-child $net -- sh -ec '
    root=$1
    shift
    mount --bind "$root" "$root"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/run"
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
    mount -t bpf bpf "$root/sys/fs/bpf"
    mount -t tracefs tracefs "$root/sys/kernel/tracing" || echo "no tracefs here: the tests that need it say so and are skipped"
    cd "$root"
    pivot_root . .
    umount -l .
    cd /
    exec "$@"' sh "$root" /usr/bin/env -i HOME=/ TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive ${JOBS:+JOBS=$JOBS} ${http_proxy:+http_proxy=$http_proxy} ${https_proxy:+https_proxy=$https_proxy} \
    "$@"
}

outside() {
  [ "$(id -u)" = 0 ] || die "mounts need root"
  make_root
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  if [ -d /etc/apt/apt.conf.d ]; then apt-config dump Acquire | grep -i '::proxy' >"$root/etc/apt/apt.conf.d/90proxy" || say "apt uses no proxy here"; fi
  clone /postern
  say "$(git -c safe.directory='*' -C "$root/postern" log -1 --format='the tree as of %h: %s')"
  in_root '' /postern/tests/debian13.sh inside-setup
  if [ "$1" = all ]; then clone /tester/postern; fi
  in_root --net /postern/tests/debian13.sh "inside-$1"
}

# ---- in the root -----------------------------------------------------------------------------------------------------------

# newest PREFIX: the package of the highest version among those called PREFIX and a number.
newest() {
  apt-cache pkgnames "$1" | grep -E "^${1//+/\\+}[0-9]+\$" | sort -V | tail -n 1
}

inside_setup() {
  ./run setup
  apt-get install -y --no-install-recommends "$(newest g++-)" "$(newest clang-)" >/dev/null
  id tester >/dev/null 2>&1 || useradd --home-dir /tester --no-create-home --shell /bin/bash tester
}

passed=0
failed=0

# count NAME COMMAND...: runs it, and adds the last "N passed, N failed" that it prints; without one it is a test itself.
count() {
  local name=$1 out status=0 line ok=0 bad=0
  shift
  say "$name"
  out=$(mktemp)
  "$@" </dev/null 2>&1 | tee "$out" || status=$?
  line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$out" | tail -n 1) || line=
  rm -f "$out"
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]]; then
    ok=${BASH_REMATCH[1]} bad=${BASH_REMATCH[2]}
  elif [ $status = 0 ]; then
    ok=1
  fi
  if [ $status != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
  if [ "$bad" != 0 ]; then say "FAILED: $name (exit status $status)"; fi
  passed=$((passed + ok)) failed=$((failed + bad))
}

summary() {
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

# with_compiler CC CXX UNITY: with the last off each source has to compile by itself.
with_compiler() {
  local build=build-$1
  export CC=$1 CXX=$2 UNITY=$3
  count "$1: build" env BUILD_DIR="$build" ./run build
  if [ ! -x "$build/postern" ]; then return; fi
  count "$1: unit and stress tests" ./run meson-tests "$build"
  count "$1: conformance" env BUILD_DIR="$build" ./run conformance-tests --layout pair --mode both
}

inside_fast() {
  local gcc clang
  ip link set lo up
  gcc=$(newest g++-)
  clang=$(newest clang-)
  with_compiler "${gcc/g++/gcc}" "$gcc" off
  with_compiler "$clang" "${clang/clang/clang++}" on
  summary
}

inside_all() {
  ip link set lo up
  chown -R tester: /tester
  count "root: demo" ./run demo
  count "root: test" ./run test
  cd /tester/postern
  local as=(setpriv --reuid tester --regid tester --init-groups env HOME=/tester)
  count "an ordinary user: demo" "${as[@]}" ./run demo
  count "an ordinary user: test" "${as[@]}" ./run test
  summary
}

cd "$top"
case ${1:-fast} in
  fast | all) outside "${1:-fast}" ;;
  inside-setup) inside_setup ;;
  inside-fast) inside_fast ;;
  inside-all) inside_all ;;
  *) die "knows all, or no argument, not $1" ;;
esac
