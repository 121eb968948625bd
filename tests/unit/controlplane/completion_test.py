#!/usr/bin/python3
# completion_test.py - what bash, fish and zsh offer is what the programs take, by their own --help.
# SPDX-License-Identifier: Apache-2.0
#
#   completion_test.py BUILD_DIR

import os
import re
import shutil
import subprocess
import sys
import unittest

BUILD = os.path.abspath(sys.argv[1])
MADE = BUILD + "/packaging"
PROGRAMS = [name[1:] for name in sorted(os.listdir(MADE)) if name.startswith("_postern")]

BASH = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"_${1//-/_}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def run(*argv):
    done = subprocess.run(argv, text=True, capture_output=True, timeout=60, check=False, env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"})
    if done.returncode != 0:
        raise AssertionError(f"{argv}: {done.stderr}")
    return done.stdout


def offered(*words):
    """What bash offers for the last word."""
    return run("bash", "--norc", "-c", BASH, "bash", f"{MADE}/{words[0]}.bash", *words).split()


def said(program, *words):
    """{option} of --help, which begins the line of each."""
    return {name for line in run(f"{BUILD}/{program}", *words, "--help").splitlines()
            if (found := re.match(r" {2,6}((?:-\w,? ?)?(?:--[a-z-]+)?(?:,-\w)?)", line)) for name in re.findall(r"(?<![\w-])--?[A-Za-z][a-z-]*", found[1])}


def commands(program, *words):
    found = run(f"{BUILD}/{program}", *words, "--help").partition("Subcommands:")[2]
    return re.findall(r"^  ([a-z]+)", found, re.M)


class Completion(unittest.TestCase):
    def test_there_are_some(self):
        self.assertIn("postern", PROGRAMS)
        self.assertIn("posternctl", PROGRAMS)

    def test_options(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                self.assertEqual(set(offered(program, "-")), said(program))

    def test_commands_and_their_options(self):
        def below(*words):
            names = commands("posternctl", *words)
            if names:
                self.assertEqual(set(offered("posternctl", *words, "")), set(names))
            # Options of the whole line may follow any command.
            self.assertEqual(set(offered("posternctl", *words, "-")), said("posternctl", *words) | said("posternctl"))
            for name in names:
                below(*words, name)

        self.assertIn("explain", commands("posternctl"))
        below()

    def test_an_option_before_a_command_and_its_value(self):
        self.assertIn("status", offered("posternctl", "--runtime-dir", "/x", ""))
        self.assertEqual(offered("posternctl", "--runtime-dir", "/us"), ["/usr"])
        self.assertIn(str(os.getpid()), offered("posternctl", "explain", ""))

    def test_keys_and_values_of_option(self):
        self.assertEqual(offered("postern", "-o", "spin.u"), ["spin.usec="])
        keys = {line.split()[0] + "=" for line in run(f"{BUILD}/postern", "--help").splitlines() if re.match(r"  [a-z._]+ = ", line)}
        self.assertEqual(set(offered("postern", "-o", "")), keys)
        self.assertEqual(offered("postern", "-o", "log.level", "=", "d"), ["debug"])
        self.assertEqual(offered("postern", "-o", "accel", "="), ["on", "off"])

    def test_the_command_behind(self):
        self.assertIn("true", offered("postern", "tru"))
        self.assertIn("true", offered("postern", "-o", "accel", "=", "on", "--strict", "tru"))

    def test_fish(self):
        if not shutil.which("fish"):
            self.skipTest("no fish")
        for program in PROGRAMS:
            lines = run("fish", "--no-config", "-c", f"source {MADE}/{program}.fish; complete -C '{program} --'").splitlines()
            self.assertEqual({line.split("\t")[0] for line in lines}, {name for name in said(program) if name.startswith("--")})
        lines = run("fish", "--no-config", "-c", f"source {MADE}/posternctl.fish; complete -C 'posternctl '").splitlines()
        self.assertEqual({line.split("\t")[0] for line in lines}, set(commands("posternctl")))

    def test_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh")
        for program in PROGRAMS:
            run("zsh", "-n", f"{MADE}/_{program}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
