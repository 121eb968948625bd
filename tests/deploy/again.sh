#!/bin/sh
# again.sh - in a booted machine (machine.sh): the packages, and users of the pages' commands.
# SPDX-License-Identifier: Apache-2.0
set -e
cd /
apt-get install ./build-deb/*.deb
useradd --system redis
for user in alice bob; do id "$user" >/dev/null 2>&1 || useradd --create-home "$user"; done
