#!/usr/bin/env bash
# deb.sh - Debian packages of the committed tree: `./run deb [DIRECTORY]`.
# SPDX-License-Identifier: Apache-2.0
#
# The tree is put into a directory of its own, as packaging/debian has to be called debian there. Packages come to DIRECTORY, by default
# build-deb. Dates in them are the changelog's, and paths of the build are left out. DEB_BUILD_PROFILES=pkg.postern.nodpdk (nobpf,
# noverbs) leaves a part out; so it is where its libraries are missing.
set -euo pipefail

top=$(dirname "$(dirname "$(readlink -f "$0")")")
out=${1:-$top/build-deb}

die() { printf 'deb.sh: %s\n' "$*" >&2; exit 1; }

version=$(sed -n "s/^  version: '\(.*\)',/\1/p" "$top/meson.build")
[ "$(dpkg-parsechangelog -l "$top/packaging/debian/changelog" -S Version)" = "$version" ] || die "packaging/debian/changelog is not of version $version"
command -v dh >/dev/null || die "debhelper is missing (apt-get install debhelper)"

profiles=${DEB_BUILD_PROFILES:-}
if ! pkg-config --exists libdpdk; then profiles+=" pkg.postern.nodpdk"; fi
if ! pkg-config --exists libibverbs; then profiles+=" pkg.postern.noverbs"; fi
if ! pkg-config --exists libbpf || ! PATH=$PATH:/usr/sbin command -v bpftool >/dev/null; then profiles+=" pkg.postern.nobpf"; fi

mkdir -p "$out"
out=$(readlink -f "$out")
tree=$out/postern-$version
rm -rf "$tree"
find "$out" -maxdepth 1 -name 'postern*' -type f -delete
mkdir "$tree"
git -c safe.directory='*' -C "$top" archive HEAD | tar -x -C "$tree"
mv "$tree/packaging/debian" "$tree/debian"
cd "$tree"
# -d: the packages by which it is built are those of ./run setup, some of which have alternatives (clang-14).
DEB_BUILD_PROFILES=$(echo $profiles) DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS:-} parallel=${JOBS:-$(nproc)}" dpkg-buildpackage -b -uc -us -d
cd "$out"
rm -rf "$tree"
ls -l "$out"/*.deb
