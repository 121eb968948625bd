#!/usr/bin/python3
# commands.py - the commands of README.md, docs/ and the man pages: each is marked as tried, or as not tried and why.
# SPDX-License-Identifier: Apache-2.0
#
# usage: commands.py check            each block of commands has a mark; the last line is "N passed, N failed"
#        commands.py write DIRECTORY  what is to be tried, a folder for each page: NNN.sh, or NNN.file with the file's name in its first line
#
# A mark stands right before its block, as a comment that no reader sees (in Markdown <!-- MARK -->, in a man page .\" MARK):
#   try                 run as it is, by bash -e, as root, in a machine with the packages; all of a page one after the other in one machine
#   try: file PATH      written to PATH there, for the blocks after it
#   tried by: FILE, ... tests that run these very commands; they have to be found there
#   not tried: REASON
# A block is what stands in fences, or is indented by four columns, and whose first line begins with one of COMMANDS, or in fences that
# name a language. In a man page: what stands in .nf.

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMMANDS = re.compile(r"(\./run|(build/|perf/)?[a-z_]+\.py|(build/)?postern[a-z-]*|meson|ninja|systemctl|apt-get|docker|podman|echo|modprobe|ip|ethtool|mkdir|cd|curl)\b")
MARK = re.compile(r"(try|try: file (\S+)|tried by: ([^ ]+(?:, [^ ]+)*)|not tried: (.+))$", re.S)


class Block:
    def __init__(self, page, line, language, text, mark):
        self.page, self.line, self.language, self.text, self.mark = page, line, language, text, mark

    def is_command(self):
        return bool(self.language or COMMANDS.match(self.text))


def mark_before(lines, number):
    """The comment that ends on the line before `number`, or the one before an empty line there."""
    end = number - 1
    if end >= 0 and not lines[end].strip():
        end -= 1
    if end < 0 or not lines[end].rstrip().endswith("-->"):
        return ""
    start = end
    while start > 0 and "<!--" not in lines[start]:
        start -= 1
    text = " ".join(line.strip() for line in lines[start:end + 1])
    return text.partition("<!--")[2].rpartition("-->")[0].strip()


def markdown_blocks(page, lines):
    number = 0
    while number < len(lines):
        line = lines[number]
        if line.startswith("```"):
            end = next(i for i in range(number + 1, len(lines)) if lines[i].startswith("```"))
            yield Block(page, number + 1, line[3:].strip(), "\n".join(lines[number + 1:end]) + "\n", mark_before(lines, number))
            number = end
        elif line.startswith("    ") and (number == 0 or not lines[number - 1].strip()) and not in_list(lines, number):
            end = number
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            yield Block(page, number + 1, "", "".join(text[4:] + "\n" for text in lines[number:end]), mark_before(lines, number))
            number = end
        number += 1


def in_list(lines, number):
    before = next((line for line in reversed(lines[:number]) if line.strip() and not line.startswith(" ")), "")
    return bool(re.match(r"([-*]|\d+\.) ", before))


def man_blocks(page, lines):
    for number, line in enumerate(lines):
        if line == ".nf":
            end = lines.index(".fi", number)
            mark = lines[number - 1][3:].strip() if lines[number - 1].startswith('.\\"') else ""
            text = "\n".join(lines[number + 1:end]) + "\n"
            yield Block(page, number + 1, "man", text.replace("\\-", "-").replace("\\(dq", '"').replace("\\e", "\\"), mark)


def blocks():
    pages = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "kmod/README.md"]
    for folder in ("docs", "docs/man"):
        pages += sorted(f"{folder}/{name}" for name in os.listdir(os.path.join(ROOT, folder)) if re.search(r"\.(md|[18])$", name))
    for page in pages:
        with open(os.path.join(ROOT, page), encoding="utf-8") as file:
            lines = file.read().split("\n")
        yield from (markdown_blocks if page.endswith(".md") else man_blocks)(page, lines)


def complaint(block):
    """What is wrong with a block's mark, or an empty string."""
    found = MARK.match(block.mark)
    if not found:
        return "no mark says whether these commands are tried: see tests/deploy/commands.py"
    if found[3]:
        test = ""
        for name in found[3].split(", "):
            path = os.path.join(ROOT, name)
            if not os.path.exists(path):
                return f"there is no {name}"
            with open(path, encoding="utf-8") as file:
                test += re.sub(r"\s+", " ", file.read())
        for line in block.text.splitlines():
            command = re.sub(r"\s+", " ", line.partition(" #")[0]).strip()
            if command and command not in test:
                return f"{found[3]} does not run: {command}"
    return ""


def check():
    failed = passed = 0
    for block in blocks():
        if not block.is_command():
            continue
        what = complaint(block)
        passed, failed = passed + (not what), failed + bool(what)
        if what:
            print(f"fail  {block.page}:{block.line}: {what}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def write(directory):
    for block in blocks():
        found = MARK.match(block.mark)
        if not found or not block.mark.startswith("try") or block.mark.startswith("tried"):
            continue
        folder = os.path.join(directory, block.page.replace("/", "-"))
        os.makedirs(folder, exist_ok=True)
        name, head = (f"{block.line:04}.file", found[2] + "\n") if found[2] else (f"{block.line:04}.sh", "")
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(head + block.text)
    return 0


if __name__ == "__main__":
    sys.exit(check() if sys.argv[1] == "check" else write(sys.argv[2]))
