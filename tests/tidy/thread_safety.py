#!/usr/bin/python3
# thread_safety.py - clang's -Wthread-safety over lib/ and preload/: is each lock held where it has to be?
# SPDX-License-Identifier: Apache-2.0
#
#   thread_safety.py build [-j JOBS]         a meson build directory: which sources there are, and how they are compiled
# The annotations are those of lib/abi/thread_safety.h. Each room is one test: its sources are compiled as one unit, or as several,
# by name and without code. The first test is that this very check refuses a source that breaks a rule.
# Exit code: 0 all passed or clang is missing, which is printed as skipped; 1 not; 2 usage.

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CHECKED = ("lib", "preload")
COMPILERS = ("clang++-14", "clang++", "clang-14", "clang")  # as PACKAGES_BUILD of ./run has them
WARNINGS = ["-Wno-everything", "-Wthread-safety", "-Werror=thread-safety", "-Wno-thread-safety-reference", "-ferror-limit=0"]
SOURCES_IN_UNIT = 12  # so that no core is left with one large room at the end

# Each line that is marked has to be refused for its reason, and no other line.
BROKEN = """
#include "base/lock.h"
namespace postern {
struct Two { pstn_lock lock, other; int value PSTN_GUARDED_BY(lock); };
void NeedsLock(Two& t) PSTN_REQUIRES(t.lock);
int Held(Two& t) { Guard g(t.lock); NeedsLock(t); return t.value; }
int Asserted(Two& t) { AssertHeld(t.lock); return t.value; }
int Tried(Two& t) { if (!TryLock(t.lock)) return 0; NeedsLock(t); Unlock(t.lock); return 1; }
int ReadsWithout(Two& t) { return t.value; }                           // BROKEN reading variable 'value'
void CallsWithout(Two& t) { NeedsLock(t); }                            // BROKEN calling function 'NeedsLock'
void HoldsOther(Two& t) { Guard g(t.other); NeedsLock(t); }            // BROKEN calling function 'NeedsLock'
void Keeps(Two& t) { Lock(t.lock); }                                   // BROKEN still held at the end
void GivesWhatItHasNot(Two& t) { Unlock(t.lock); }                     // BROKEN that was not held
void Twice(Two& t) { Guard g(t.lock); Lock(t.lock); Unlock(t.lock); }  // BROKEN that is already held
}
"""


def compiler():
    return next((path for path in map(shutil.which, COMPILERS) if path), None)


def flags_of(command):
    """What decides how a source is read: directories, definitions, the language. The rest is for GCC, or for code."""
    words, flags = shlex.split(command), []
    for word, following in zip(words, words[1:] + [""]):
        if word in ("-I", "-isystem", "-D", "-U", "-iquote"):
            flags += [word, following]
        elif re.match(r"-(I|isystem|D|U|std=|pthread|f(no-)?(exceptions|rtti))", word):
            flags.append(word)
    return flags


def sources_of(entry):
    """Of one unit of the build: the file itself, or those that meson has put together in it."""
    path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
    if not re.search(r"-unity\d+\.c(pp|c|xx)$", path):
        return [path]
    with open(path, encoding="utf-8") as unit:
        return [os.path.realpath(os.path.join(entry["directory"], name)) for name in re.findall(r"#include\s*[<\"](.*)[>\"]", unit.read())]


def rooms(build):
    """By folder of the tree: how it is compiled, and its sources."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        entries = json.load(f)
    found, known = {}, set()
    for entry in entries:
        for path in sources_of(entry):
            inside = os.path.relpath(path, ROOT)
            if inside.split(os.sep)[0] not in CHECKED or not path.endswith(".cc") or path in known:
                continue
            known.add(path)
            command = entry.get("command") or shlex.join(entry["arguments"])
            found.setdefault(os.path.dirname(inside), (entry["directory"], flags_of(command), []))[2].append(path)
    return found


def on_disk():
    for top in CHECKED:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            yield from (os.path.join(folder, name) for name in names if name.endswith(".cc"))


def check(clang, directory, flags, text):
    return subprocess.run([clang, *flags, *WARNINGS, "-fsyntax-only", "-x", "c++", "-"], input=text, cwd=directory, capture_output=True, text=True)


def including(paths):
    return "".join(f'#include "{path}"\n' for path in paths)


def check_itself(clang, directory, flags):
    """Complaints about the check: a line that has to be refused was not, or another one was."""
    refused = {}
    for number, message in re.findall(r"^<stdin>:(\d+):\d+: error: (.*)", check(clang, directory, flags, BROKEN).stderr, re.M):
        refused.setdefault(int(number), []).append(message)
    for number, line in enumerate(BROKEN.split("\n"), 1):
        wanted = re.search(r"// BROKEN (.*)", line)
        got = refused.pop(number, [])
        if wanted and not any(wanted.group(1) in message for message in got):
            yield f"not refused as '{wanted.group(1)}': {line.strip()}"
        elif got and not wanted:
            yield f"refused: {line.strip()}: {got[0]}"
    if refused:
        yield f"refused: {refused}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("-j", type=int, default=os.cpu_count())
    options = parser.parse_args()
    clang = compiler()
    if clang is None:
        print("skipped: thread safety: none of " + ", ".join(COMPILERS) + " is installed")
        print("0 passed, 0 failed")
        return 0
    found = rooms(options.build)
    if not found:
        sys.exit(f"thread_safety.py: {options.build} has no sources of lib/")
    units = [(room, directory, flags, paths[at:at + SOURCES_IN_UNIT])
             for room, (directory, flags, paths) in found.items() for at in range(0, len(paths), SOURCES_IN_UNIT)]
    units.sort(key=lambda unit: -sum(os.path.getsize(path) for path in unit[3]))  # the largest first
    failed = {}
    any_room = next(iter(found.values()))
    failed["check itself"] = "\n".join(check_itself(clang, any_room[0], any_room[1]))
    listed = {path for _, _, paths in found.values() for path in paths}
    failed["every source"] = "\n".join(f"{os.path.relpath(path, ROOT)} is not in {options.build}/compile_commands.json"
                                       for path in sorted(on_disk()) if path not in listed)
    with concurrent.futures.ThreadPoolExecutor(options.j) as pool:
        runs = [(room, pool.submit(check, clang, directory, flags, including(paths))) for room, directory, flags, paths in units]
        for room, run in runs:
            done = run.result()
            failed[room] = failed.get(room, "") + ("" if done.returncode == 0 else done.stderr or f"exit status {done.returncode}")
    for room, errors in failed.items():
        print(f"{'fail' if errors else 'pass'}  {room}")
        if errors:
            print("  " + errors.rstrip().replace("\n", "\n  "))
    bad = sum(bool(errors) for errors in failed.values())
    print(f"{len(listed)} sources in {len(units)} units, by {clang}")
    print(f"{len(failed) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
