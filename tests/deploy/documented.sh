#!/usr/bin/env bash
# documented.sh - in a booted machine (machine.sh): the commands of one page, as commands.py has written them.
# SPDX-License-Identifier: Apache-2.0
#
# usage: documented.sh FOLDER
set -euo pipefail
. "$(dirname "$0")/machine.sh"

page=$(basename "$1")
for block in "$1"/*; do
  name="$page:$(basename "${block%.*}" | sed 's/^0*//')"
  case $block in
    *.file)
      path=$(head -n 1 "$block")
      mkdir -p "$(dirname "$path")"
      tail -n +2 "$block" >"$path"
      # Of a policy that can't be read the broker says so, and does not start.
      if [ "$path" = /etc/postern/policy.json ]; then check "$name: the broker takes it" sh -c 'systemctl restart postern.service && sleep 1 && systemctl is-active postern.service'; fi
      ;;
    *.sh) check "$name" timeout -k 5 120 bash -e "$block" ;;
  esac
done
summary
