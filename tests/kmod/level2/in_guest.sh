#!/bin/sh
# in_guest.sh - what a guest runs at level 2: run.py, and of the other tests what has to do with descriptors that leave their program.
# SPDX-License-Identifier: Apache-2.0
#
#   BUILD=DIR in_guest.sh [GLOB]   of run.py only those; the last lines of each part are "N passed, N failed"
set -u
cd "$(dirname "$0")/../../.." || exit 1
if [ $# -gt 0 ]; then
  python3 tests/kmod/level2/run.py --build "$BUILD" --only "$1"
  exit
fi
python3 tests/kmod/level2/run.py --build "$BUILD"
POSTERN_RUNTIME_DIR=$(mktemp -d)
# An emulated machine may take longer than the library waits for the kernel's answer.
export POSTERN_RUNTIME_DIR POSTERN_MODULE=auto POSTERN_FIREWALL=ignore
python3 tests/programs/run.py --build "$BUILD" --mode both --only 'export_*,uring_late*,mistake_passed*,mistake_inherited*'
python3 tests/conformance/run.py --build "$BUILD" --layout pair --mode both --jobs 2 --only 'fork_*,exec_*,dup*,ring*,shut*,send_*' &&
  echo "1 passed, 0 failed" || echo "0 passed, 1 failed"
