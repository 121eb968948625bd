# readable.py - what was built, where every user can read it: the directory that it lies in is often closed to others, as a home is.
# SPDX-License-Identifier: Apache-2.0

import contextlib
import os
import shutil
import tempfile

PROGRAMS = ("postern", "libpostern.so", "posternd", "postern-keeper", "postern-reaper", "posternctl")


def copied(build, to, names=PROGRAMS):
    os.chmod(to, 0o755)
    for name in names:
        shutil.copy(f"{build}/{name}", to)
    shutil.copytree(f"{build}/profiles", f"{to}/profiles")
    return to


@contextlib.contextmanager
def readable(build, names=PROGRAMS):
    with tempfile.TemporaryDirectory(prefix="pstn-build-") as directory:
        yield copied(os.path.abspath(build), directory, names)
