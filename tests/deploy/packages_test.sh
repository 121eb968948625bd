#!/usr/bin/env bash
# packages_test.sh - the Debian packages on bare Debians 12 and 13 whose systemd runs: `./run test-deb [SUITE...]`.
# SPDX-License-Identifier: Apache-2.0
#
# usage: packages_test.sh [SUITE...]         (root; suites: bookworm, trixie)
# Builds the packages by `./run deb`, for which debhelper and lintian are wanted; POSTERN_DEBS names a directory of such that are there.
# Packages of drivers are for the Debian that they were built on: on another one only the others are installed. The last line is
# "N passed, N failed".
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(readlink -f "$0")")/machine.sh"
here=$(dirname "$(readlink -f "$0")")
own_mounts "$0" "$@"

cd "$here/../.."
debs=${POSTERN_DEBS:-build-deb}
if [ -z "${POSTERN_DEBS:-}" ]; then ./run deb; fi
if [ $# = 0 ]; then set -- bookworm trixie; fi
built_on=$(. /etc/os-release; echo "${VERSION_CODENAME:-}")

# The library for programs of 32 bits has no contents, and so no symbols for a debugger.
check "lintian" lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs,debug-file-with-no-debug-symbols "$debs"/*.changes

for suite; do
  say "$suite"
  machine_root "$suite"
  mkdir "$root/build-deb" "$root/tests"
  cp "$debs"/postern_*.deb "$debs"/postern-broker_*.deb "$root/build-deb"
  if [ "$suite" = "$built_on" ]; then
    for driver in postern-softnic postern-verbsnic; do
      cp "$debs/$driver"_*.deb "$root/build-deb" || say "$suite: without $driver, of which $debs has no package"
    done
  else
    say "$suite: without the drivers' packages, which are for $built_on"
  fi
  cp "$here"/*.sh "$root/tests"
  printf 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n' >"$root/etc/apt/apt.conf.d/99test"
  check "$suite: what the packages need is downloaded" with_network sh -c 'apt-get update && apt-get install --download-only /build-deb/*.deb'
  boot
  count "$suite" in_machine /tests/installed.sh
  power_off
  # The commands of the pages, each page in a machine that was just started.
  python3 tests/deploy/commands.py write "$root/tests/pages"
  boot
  check "$suite: the packages are installed again" in_machine /tests/again.sh
  for page in "$root"/tests/pages/*; do
    power_off
    boot
    count "$suite: $(basename "$page")" in_machine /tests/documented.sh "/tests/pages/$(basename "$page")"
  done
  power_off
done
summary
