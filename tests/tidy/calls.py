#!/usr/bin/python3
# calls.py - asks the compiled objects what tidy.py can't see in the text.
# SPDX-License-Identifier: Apache-2.0
#
#   calls.py build          a meson build directory
# No room of lib/ calls one above it: a declaration can be written anywhere, a reference to a symbol can't be hidden. The one name
# that all may use is kVerbs (lib/family/verbs.h), by which lower rooms tell those above.
# No room that is given a Family has a variable beside it: what it keeps is a family's (lib/sock/rooms.h), or its thread's.
# Exit code: 0 none found, 1 found, 2 usage.

import glob
import os
import re
import subprocess
import sys

from tidy import RANK

ARCHIVE = "libroom_(.*).a"  # of a room of lib/: one object in a build by units, else one for each source
VERBS = "_ZN7postern6kVerbsE"
OF_A_FAMILY = [room for room, rank in RANK.items() if RANK["family"] <= rank < RANK["sock"]]


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


def variables(archive):
    """Names of what can be written, but for thread-local ones and what the linker makes read-only."""
    lines = subprocess.run(["nm", "--format=sysv", "--demangle", "--defined-only", archive], check=True, capture_output=True, text=True).stdout.splitlines()
    for fields in (line.split("|") for line in lines):
        if len(fields) == 7 and re.match(r"\.(bss|data(?!\.rel\.ro))", fields[6].strip()):
            yield fields[0].strip()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__ or "usage: calls.py build")
    owner, wants, kept = {}, [], []
    for archive in glob.glob(os.path.join(sys.argv[1], ARCHIVE.replace("(.*)", "*"))):
        room = re.fullmatch(ARCHIVE, os.path.basename(archive)).group(1).split("_")[0]  # stack_input is a part of stack
        for own, (defined, wanted) in objects(archive).items():
            owner.update(dict.fromkeys(defined, (room, own)))
            wants.append((room, own, wanted))
        if room in OF_A_FAMILY:
            kept += [f"lib/{room}: {name} is a variable of the process: keep it for the family (lib/sock/rooms.h)" for name in variables(archive)]
    if not wants:
        sys.exit(f"calls.py: {sys.argv[1]} has no objects of lib/")
    found = [f"lib/{room}: {own} calls {name} of lib/{owner[name][0]}, which is not below it"
             for room, own, wanted in wants for name in sorted(wanted)
             if name in owner and name != VERBS and owner[name][0] != room and RANK[owner[name][0]] >= RANK[room]]
    print("\n".join([f"fail  {line}" for line in sorted(found + kept)] + [f"{len(wants)} objects"]))
    print(f"{(not found) + (not kept)} passed, {len(found) + len(kept)} failed")
    return 1 if found or kept else 0


if __name__ == "__main__":
    sys.exit(main())
