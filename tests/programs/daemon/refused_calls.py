# refused_calls.py - says whether the kernel has refused a system call of one of our daemons since a time: it writes so into its log, and a
# list of calls that lacks one that a daemon makes shows itself nowhere else.
# SPDX-License-Identifier: Apache-2.0
#
# usage: refused_calls.py SECONDS_OF_UPTIME
# Exit 1: there are such calls. confined_test.py, which causes some, does so under another name.

import os
import re
import sys

OURS = ("posternd", "postern-keeper", "postern-reaper")


def lines():
    """Each line of the kernel's log, with the time at which it was written."""
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                head, _, text = os.read(log, 8192).decode(errors="replace").partition(";")
            except BlockingIOError:
                return
            except BrokenPipeError:  # the oldest lines have gone meanwhile
                continue
            yield int(head.split(",")[2]) / 1e6, text
    finally:
        os.close(log)


def main(since):
    try:
        found = [text for at, text in lines() if at >= since and "type=1326" in text and
                 (name := re.search(r'comm="([^"]*)"', text)) and name.group(1) in OURS]
    except PermissionError as error:
        print(f"the kernel's log can't be read: {error}\n0 passed, 0 failed")
        return 0
    for text in found:
        print(text.strip())
    print("0 passed, 1 failed" if found else "1 passed, 0 failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
