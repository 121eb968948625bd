#!/usr/bin/python3
# calls.py - no room of lib/ calls one above it: asks the compiled objects, where tidy.py asks the includes.
# SPDX-License-Identifier: Apache-2.0
#
#   calls.py build          a meson build directory
# A declaration can be written anywhere, a reference to a symbol can't be hidden. The one name that all may use is kVerbs
# (lib/family/verbs.h), by which lower rooms tell those above. Exit code: 0 none found, 1 found, 2 usage.

import glob
import os
import re
import subprocess
import sys

from tidy import RANK

ARCHIVE = "libroom_(.*).a"  # of a room of lib/: one object in a build by units, else one for each source
VERBS = "_ZN7postern6kVerbsE"


def objects(archive):
    """Of each object in it: its name, the symbols it defines for others, and those it wants of them."""
    found = {}
    for line in subprocess.run(["nm", "--format=posix", archive], check=True, capture_output=True, text=True).stdout.splitlines():
        opening = re.match(r".*\[(?:.*/)?(.*)\]:$", line)
        if opening:
            defined, wanted = found[opening.group(1)] = set(), set()
            continue
        name, kind = line.split()[:2]
        if kind == "U":
            wanted.add(name)
        elif kind in "TDBRGS":  # not weak ones: an inline function is in each object that uses it
            defined.add(name)
    return found


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__ or "usage: calls.py build")
    owner, wants = {}, []
    for archive in glob.glob(os.path.join(sys.argv[1], ARCHIVE.replace("(.*)", "*"))):
        room = re.fullmatch(ARCHIVE, os.path.basename(archive)).group(1).split("_")[0]  # stack_input is a part of stack
        for own, (defined, wanted) in objects(archive).items():
            owner.update(dict.fromkeys(defined, (room, own)))
            wants.append((room, own, wanted))
    if not wants:
        sys.exit(f"calls.py: {sys.argv[1]} has no objects of lib/")
    found = [f"lib/{room}: {own} calls {name} of lib/{owner[name][0]}, which is not below it"
             for room, own, wanted in wants for name in sorted(wanted)
             if name in owner and name != VERBS and owner[name][0] != room and RANK[owner[name][0]] >= RANK[room]]
    print("\n".join([f"fail  {line}" for line in sorted(found)] + [f"{len(wants)} objects"]))
    print(f"{0 if found else 1} passed, {len(found)} failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
