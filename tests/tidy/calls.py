#!/usr/bin/python3
# calls.py - no room of lib/ calls one above it: asks the compiled objects, where tidy.py asks the includes.
# SPDX-License-Identifier: Apache-2.0
#
#   calls.py build          a meson build directory
# A declaration can be written anywhere, a reference to a symbol can't be hidden. The one name that all may use is kVerbs
# (lib/family/verbs.h), by which lower rooms tell those above. Exit code: 0 none found, 1 found, 2 usage.

import glob
import os
import subprocess
import sys

from tidy import RANK, room_of

VERBS = "_ZN7postern6kVerbsE"


def symbols(path):
    """Of an object: those it defines for others, and those it wants of them."""
    defined, wanted = set(), set()
    for line in subprocess.run(["nm", "--format=posix", path], check=True, capture_output=True, text=True).stdout.splitlines():
        name, kind = line.split()[:2]
        if kind == "U":
            wanted.add(name)
        elif kind in "TDBRGS":  # not weak ones: an inline function is in each object that uses it
            defined.add(name)
    return defined, wanted


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__ or "usage: calls.py build")
    rooms, owner, wants = {}, {}, []
    top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    for source in glob.glob(os.path.join(top, "lib", "**", "*.cc"), recursive=True):
        inside = os.path.relpath(source, os.path.join(top, "lib"))
        rooms["lib_" + inside.replace("/", "_") + ".o"] = (room_of(inside), inside)
    for path in glob.glob(os.path.join(sys.argv[1], "libpostern_core.a.p", "lib_*.o")):
        known = rooms.get(os.path.basename(path))
        if known is None:
            continue  # of a source that is no more
        defined, wanted = symbols(path)
        owner.update(dict.fromkeys(defined, known))
        wants.append((known, wanted))
    if not wants:
        sys.exit(f"calls.py: {sys.argv[1]} has no objects of lib/")
    found = [f"lib/{own}: calls {name} of lib/{owner[name][1]}, which is not below it"
             for (room, own), wanted in wants for name in sorted(wanted)
             if name in owner and name != VERBS and owner[name][0] != room and RANK[owner[name][0]] >= RANK[room]]
    print("\n".join([f"fail  {line}" for line in sorted(found)] + [f"{len(wants)} objects"]))
    print(f"{0 if found else 1} passed, {len(found)} failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
