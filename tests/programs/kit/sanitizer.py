# sanitizer.py - builds whose library, daemon and programs are watched by AddressSanitizer or ThreadSanitizer: options, reports.
# SPDX-License-Identifier: Apache-2.0
#
# The wrapper puts libpostern.so in front of everything, the sanitizer's runtime included: a program's calls reach the library
# first, and the library's own reach libc through the sanitizer.

import glob
import os
import re

import posternview

# What the runtimes are called in what an instrumented file imports.
MARKS = {"asan": b"__asan_report_load8", "tsan": b"__tsan_read8"}
REPORT = re.compile(r"ERROR: AddressSanitizer|WARNING: ThreadSanitizer|FATAL: ThreadSanitizer|ERROR: LeakSanitizer|: runtime error: ")


def kind_of(path):
    """asan, tsan, or None where neither is built into the file."""
    try:
        with open(path, "rb") as file:
            image = file.read()
    except OSError:
        return None
    return next((kind for kind, mark in MARKS.items() if mark in image), None)


def options(directory):
    """Environment variables: reports of all processes go to files in `directory`."""
    common = f"log_path={directory}/report"
    return {
        "ASAN_OPTIONS": f"{common}:verify_asan_link_order=0:detect_stack_use_after_return=1",
        "TSAN_OPTIONS": f"{common}:halt_on_error=0",
        "UBSAN_OPTIONS": f"{common}:print_stacktrace=1:halt_on_error=1",
    }


def _texts(directory, others):
    for path in sorted(glob.glob(f"{directory}/report.*")) + list(others):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                yield path, file.read()
        except OSError:
            continue


def reports(directory, others=()):
    """[(path, text from the first report on)] of all files in which one is. UBSan beside ASan knows no log_path: `others`."""
    found = []
    for path, text in _texts(directory, others):
        if match := REPORT.search(text):
            found.append((path, text[max(0, match.start() - 200):]))
    return found


def daemon_log():
    """posternd's, which is also that of its keepers."""
    place = posternview.runtime_dir()
    return f"{place}/posternd.log" if place else "/dev/null"
