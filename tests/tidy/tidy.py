#!/usr/bin/python3
# tidy.py - lints the tree: the rules of the house style that a machine can check.
# SPDX-License-Identifier: Apache-2.0
#
# Each rule is a function that yields "path:line: what is wrong"; each is one test. A line that has to break the rule of banned
# calls says why in a comment on it or just above it: "tidy-allow: reason".
# Exit code: 0 all passed, 1 not.

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

LINES_MAX = 800
FOLDER_FILES = 20
# Names that mean the same wherever they stand: a program's main(), what runs a folder's tests, a Python package.
SAME_NAMES = ("main.cc", "run.py", "__init__.py")
MARKDOWN_COLUMNS = CODE_COLUMNS = 100
SKIPPED_DIRS = re.compile(r"^(\.git|\.cache|__pycache__|build.*|out)$")
CODE = (".c", ".cc", ".h")
SOURCE = CODE + (".py", ".sh", ".def", ".map")
HEADER_LINES = 3  # a #! line, the comment and the SPDX line, the last two in either order

# Directories of lib/ from the bottom up. A file includes from its own directory and from lower ranks.
RANK = {"abi": 0, "base": 1, "tcp": 2, "ctl": 2, "wire": 3, "state": 3, "udp": 4, "smcd": 4, "vi": 5, "stack": 6, "family": 7, "endpoint": 8, "control": 9, "event": 10,
        "peer": 11, "stream": 12, "life": 13, "offhost": 14, "option": 15, "sock": 16, "include": 17}
# Above lib/: what each may include from it, as the highest rank.
CONSUMERS = {"preload": 17, "controlplane": 16, "tests": 17}

# Directories within a directory ("rooms") from the bottom up; what stands in one string is side by side, "." is the directory itself.
# A file includes from its own room and from lower ones.
ROOMS = {
    "lib/base": (".", "schema space", "log"),
    "lib/tcp": ("segment", "congestion", ".", "input output recovery"),
    "lib/wire": (".", "clc ip", "packet"),
    "lib/vi": (".", "tap soft decorator"),
    "lib/stack": ("route reassembly", ".", "input"),
    "controlplane/posternd": ("bpf", "guard", "kit", "line directory routes steer", "registry nic", "report", "member broker", "server"),
    "controlplane/posternctl": ("line", "host", "doctor metrics ss top", "selftest", "selftest/causes", "."),
}

# Outside kmod/ everything can be had under Apache-2.0.
LICENSES = {"kmod": "GPL-2.0", "": "Apache-2.0"}

# In lib/ and preload/, which run inside other people's programs: pattern, what to use instead.
BANNED = [
    (r"\b(malloc|calloc|realloc|free|strdup|aligned_alloc)\s*\(", "slots of the stack (lib/state), or sys::Mmap at start-up"),
    (r"\bnew\b(?!\s*\()", "placement new into a slot"),
    (r"\bdelete\b(?!\s*[;,])", "the owner's Free()"),
    (r"\bstd::(string|vector|map|unordered_map|set|deque|list|function|shared_ptr|unique_ptr)\b", "fixed arrays and indices"),
    (r"\bstd::(mutex|lock_guard|unique_lock|condition_variable|call_once|thread)\b", "base/lock.h"),
    (r"(?<![\w.])(printf|fprintf|vfprintf|puts|fputs|putchar|perror|fwrite|fopen)\s*\(", "the log, or write(2) on a formatted buffer"),
    (r"\bstd::(cout|cerr|clog|endl)\b", "the log"),
    (r"(?<![\w.])(sprintf|vsprintf|strcpy|strcat|strtok|gets)\s*\(", "snprintf and explicit lengths"),
    (r"(?<![\w.])(atoi|atol|atoll|strtol|strtoul|strtoll|strtoull)\s*\(", "OptionSet, or digits by hand: no locale, no errno"),
    (r"(?<![\w.])(rand|srand|random)\s*\(", "Rng&"),
    (r"\bvolatile\b(?!\s*\()", "std::atomic or std::atomic_ref"),
    (r"\b(throw|dynamic_cast|typeid)\b", "Result<T>"),
]


class File:
    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path)
        self.ext = os.path.splitext(path)[1]
        with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as f:
            self.lines = f.read().splitlines()
        first = self.lines[0] if self.lines else ""
        self.is_source = (self.ext in SOURCE or self.name == "meson.build" or first.startswith("#!"))

    def under(self, *dirs):
        return self.path.split(os.sep)[0] in dirs


def load():
    files = []
    for top, dirs, names in os.walk(ROOT):
        dirs[:] = sorted(d for d in dirs if not SKIPPED_DIRS.match(d))
        for name in sorted(names):
            path = os.path.join(top, name)
            if os.path.isfile(path) and not name.endswith((".pyc", ".png", ".svg")):
                files.append(File(os.path.relpath(path, ROOT)))
    return files


def without_comments_and_strings(lines):
    """C or C++ code with comments and the contents of literals blanked out, line for line."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    blank = lambda m: re.sub(r"[^\n]", " ", m.group())
    return pattern.sub(blank, "\n".join(lines)).split("\n")


def rule_file_length(files):
    for f in files:
        if f.is_source and len(f.lines) > LINES_MAX:
            yield f"{f.path}:{LINES_MAX}: {len(f.lines)} lines, the limit is {LINES_MAX}: split by idea"


def rule_folder_size(files):
    counts = {}
    for f in files:
        counts.setdefault(os.path.dirname(f.path), []).append(f.name)
    for folder, names in counts.items():
        if len(names) > FOLDER_FILES:
            yield f"{folder}: {len(names)} files, the limit is {FOLDER_FILES}: two rooms"


def rule_file_names(files):
    first = {}
    for f in files:
        if f.ext not in SOURCE or f.name in SAME_NAMES:
            continue
        if f.name in first:
            yield f"{f.path}:1: {first[f.name]} has that name: name it by what is in it"
        first.setdefault(f.name, f.path)


def rule_first_comment(files):
    for f in files:
        opening = re.compile(r"^(//|/\*|#) " + re.escape(f.name) + " - .{10,}")
        if f.is_source and not any(opening.match(line) for line in f.lines[:HEADER_LINES]):
            yield f"{f.path}:1: begin with '{f.name} - what it is'"


def rule_spdx(files):
    for f in files:
        if not f.is_source:
            continue
        wanted = LICENSES["kmod"] if f.under("kmod") else LICENSES[""]
        tags = [line for line in f.lines[:HEADER_LINES] if "SPDX-License-" + "Identifier:" in line]
        if not tags:
            yield f"{f.path}:1: no SPDX line"
        elif wanted not in tags[0]:
            yield f"{f.path}:1: licence is not {wanted}, which is that of the tree (LICENSE)"


def included(f):
    for number, line in enumerate(f.lines, 1):
        match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if match:
            yield number, match.group(1)


def room_of(inside):
    """The room of a file, by its path inside lib/."""
    return inside.split(os.sep)[0]


def rule_include_direction(files):
    for f in files:
        parts = f.path.split(os.sep)
        if f.ext not in CODE + (".def",) or parts[0] not in ("lib", *CONSUMERS):
            continue
        in_lib = parts[0] == "lib"
        own = room_of(os.path.join(*parts[1:])) if in_lib else None
        if in_lib and own not in RANK:
            yield f"{f.path}:1: lib/{own} has no rank in tests/tidy/tidy.py"
            continue
        rank = RANK[own] if in_lib else CONSUMERS[parts[0]]
        for number, target in included(f):
            group = target.split("/")[0]
            if in_lib and (group in ("preload", "controlplane") or target.startswith("../")):
                yield f"{f.path}:{number}: lib must not include {target}"
            elif group in RANK and "/" in target and group != own and (RANK[group] > rank or in_lib and RANK[group] == rank):
                yield f"{f.path}:{number}: {target} is not below {own or parts[0]}"


def rule_room_direction(files):
    paths = {f.path for f in files}
    for f in files:
        for folder, order in ROOMS.items():
            if f.ext not in CODE + (".def",) or not f.path.startswith(folder + os.sep):
                continue
            rank = {room: number for number, rooms in enumerate(order) for room in rooms.split()}
            own = os.path.relpath(os.path.dirname(f.path), folder)
            if own not in rank:
                yield f"{f.path}:1: {own} has no rank among the rooms of {folder} in tests/tidy/tidy.py"
                continue
            for number, target in included(f):
                near = os.path.normpath(os.path.join(os.path.dirname(f.path), target))
                path = near if near in paths else os.path.join("lib", target)
                room = os.path.relpath(os.path.dirname(path), folder)
                if path in paths and path.startswith(folder + os.sep) and room != own and rank.get(room, 0) >= rank[own]:
                    yield f"{f.path}:{number}: {target} is not below {folder}/{own}"


def rule_includes_exist(files):
    paths = {f.path for f in files}
    for f in files:
        if f.ext not in CODE or not f.under("lib", "preload", "controlplane"):
            continue
        for number, target in included(f):
            near = os.path.normpath(os.path.join(os.path.dirname(f.path), target))
            if near not in paths and os.path.join("lib", target) not in paths:
                yield f"{f.path}:{number}: no file {target}"


# What a header declares: a type, or a function at the left margin.
DECLARED = re.compile(r"\s*(?:class|struct|union|enum|enum class) (?:PSTN_\w+(?:\([^)]*\))? |alignas\([^)]*\) )*([A-Z]\w+)\b(?! *;)"
                      r"|(?:\[\[.*?\]\] )?[\w:<>,&*\[\] ]+[ *&]([A-Z]\w+)\(")

# The same, and what is nested or only named as a type, in the file itself.
OWN = re.compile(r"(?:enum class|class|struct|union|enum|using|typename|namespace)\s+(?:PSTN_\w+(?:\([^)]*\))? )*(\w+)|^(?:\[\[.*?\]\] )?[\w:<>,&*\[\] ]+[ *&](\w+)\(")


class Names:
    """The headers that each name is declared in, and what a file comes to by its includes."""

    FOLDERS = ("", "lib", "preload", "controlplane", "controlplane/posternd")

    def __init__(self, files):
        self.code = {f.path: without_comments_and_strings(f.lines) for f in files if f.ext in CODE}
        self.words = {path: set(re.findall(r"\w+", " ".join(code))) for path, code in self.code.items()}
        self.files = {f.path: f for f in files}
        self.where = {}
        for path, code in self.code.items():
            for name in (m[1] or m[2] for m in map(DECLARED.match, code) if m and path.endswith(".h")):
                self.where.setdefault(name, set()).add(path)

    def reached(self, path, seen):
        for _, target in included(self.files[path]):
            tries = [os.path.normpath(os.path.join(folder, target)) for folder in (os.path.dirname(path), *self.FOLDERS)]
            found = next((q for q in tries if q in self.code), None)
            if found and found not in seen:
                seen.add(found)
                self.reached(found, seen)
        return seen


def rule_includes_what_it_names(files):
    """A build of many files in one (unity) compiles without; ./run fuzz and ./run lint do not."""
    files = [f for f in files if f.ext in CODE and f.under("lib", "preload", "controlplane")]
    names = Names(files)
    for f in files:
        reached = names.reached(f.path, {f.path})
        told = set().union(*(names.words[path] for path in reached if path != f.path))
        missing = {name for name in names.words[f.path] - told if len(names.where.get(name, ())) == 1 and not names.where[name] & reached}
        if not missing:
            continue
        own = {name for line in names.code[f.path] for pair in OWN.findall(line) for name in pair}
        for number, code in enumerate(names.code[f.path], 1):
            for name in set(re.findall(r"(?<![\w.>:~])([A-Z]\w*[a-z]\w*)\b", code)) & missing - own:
                if not code.endswith("\\"):
                    yield f"{f.path}:{number}: {name} is declared in {next(iter(names.where[name]))}, which is not included"


def rule_braced_lists(files):
    # GCC 12's headers include <initializer_list> for each other; GCC 14's do not.
    needs = re.compile(r"\bfor\s*\((?:[^;{}()]*;)?[^;{}]*?[^:;{}]:\s*\{|\bstd::(?:min|max|minmax)(?:<[^<>]*>)?\s*\(\s*\{|\binitializer_list\s*<")
    for f in files:
        if f.ext not in CODE or not f.under("lib", "preload", "controlplane", "tests", "perf"):
            continue
        code = "\n".join(without_comments_and_strings(f.lines))
        match = needs.search(code)
        if match and "#include <initializer_list>" not in f.lines:
            yield f"{f.path}:{code.count(chr(10), 0, match.end()) + 1}: a braced list: include <initializer_list>"


def rule_local_locks(files):
    # A lock that a fork does not know of stays held in the child for as long as the parent lives.
    declared = re.compile(r"^(?!extern)(static |constinit |alignas\(\d+\) )*pstn_lock \w+( = |\{|;)")
    for f in files:
        if f.ext != ".cc" or not f.under("lib", "preload"):
            continue
        for number, line in enumerate(f.lines, 1):
            if declared.match(line) and "tidy-allow: " not in line:
                yield f"{f.path}:{number}: a lock of the process's own: declare it by a macro of lib/family/local_lock.h"


def rule_lock_words(files):
    # Somebody may hold it: a word that is overwritten, even for a moment, lets in two. What has a lock is copied by CopyButLock().
    written = re.compile(r"[.>](\w+_)?lock\.word = |[tr]x\.lock = |[.>][tr]x = [^;=]*\b[tr]x;|Store\w+\([^;]*lock\.word")
    for f in files:
        if f.ext not in CODE or not f.under("lib", "preload", "controlplane") or f.path == "lib/base/lock.h":
            continue
        for number, line in enumerate(without_comments_and_strings(f.lines), 1):
            if written.search(line) and "tidy-allow: " not in f.lines[number - 1] + f.lines[number - 2]:
                yield f"{f.path}:{number}: the word of a lock is written by Lock() and Unlock() alone"


def rule_locks_documented(files):
    # docs/concurrency.md names each lock: as it is called, or with its struct before it if all are called `lock`.
    page = "\n".join("\n".join(f.lines) for f in files if f.path == "docs/concurrency.md")
    declared = re.compile(r"^\s*(?:PSTN_LINE |alignas\(\d+\) |struct |constinit )*(?:pstn_lock|std::mutex|std::shared_mutex) ((?:\w+(?:\{\})?(?:, )?)+);|^PSTN_LOCK_(?:WHOLE|RENEWED)\((\w+)")
    for f in files:
        if f.ext not in CODE or not f.under("lib", "preload", "controlplane") or f.name == "local_lock.h":
            continue
        owner = None
        for number, line in enumerate(without_comments_and_strings(f.lines), 1):
            opening = re.match(r"(?:struct|class) (?:PSTN_\w+(?:\(.*?\))? |alignas\(\d+\) )*(\w+)[^;]*\{", line)
            owner = opening.group(1) if opening else owner
            match = declared.match(line)
            for name in re.findall(r"\w+", (match.group(1) or match.group(2)) if match else ""):
                wanted = f"{owner}.lock" if name == "lock" else f"{owner}::{name}" if name.endswith("_") else name
                if not re.search(r"\b" + re.escape(wanted) + r"\b", page):
                    yield f"{f.path}:{number}: docs/concurrency.md does not name {wanted}"


def rule_endpoint_states(files):
    # Only SetState (lib/endpoint/state.h) knows which state may follow which.
    written = re.compile(r"Store\w*\([^;]*\bstate, PSTN_EP_|\bstate = PSTN_EP_")
    for f in files:
        if f.ext not in CODE or not f.under("lib", "preload", "controlplane") or f.path.endswith("endpoint/state.h"):
            continue
        for number, line in enumerate(f.lines, 1):
            if written.search(line):
                yield f"{f.path}:{number}: the state of an endpoint is set by SetState()"


def rule_preload_translates(files):
    # What kind of socket a number is, and in which state, is for lib/sock and the rooms below it.
    kinds = re.compile(r"\b(IsKernels|IsDatagram|WatchesKernelOnly)\b|\bPSTN_EPF?_|\bpstn_ep\b|\bep\(\)->")
    for f in files:
        if f.ext not in CODE or not f.under("preload"):
            continue
        for number, code in enumerate(without_comments_and_strings(f.lines), 1):
            if kinds.search(code):
                yield f"{f.path}:{number}: a kind of socket, or a field of an endpoint: ask lib/sock"


def rule_tables(files):
    # An index of shared memory becomes a reference by its table alone: lib/state/table.h, At(). The compiler refuses subscripts.
    around = [
        (r"reinterpret_cast<(const )?pstn_(waiter|epoll|slot|lgr_ref|ep|item|fdchunk|stack_hdr|evmap|conn|lgr_hdr)\b",
         "an address is made an object of shared memory: a table's At(), or LgrHdr(), LgrConn(), LgrEvmap()"),
        (r"reinterpret_cast<[^>]*>\(&[^()]*\bhdr\b|&[\w.>-]+(\.|->)hdr \+|\+ PSTN_LGR_(EVMAP|CONN|SLAB)_OFF",
         "arithmetic on a segment's base: OffOf(), or a table"),
        (r"\bhdr\.counts\b|\blayout\.(?!bytes\b)\w", "what a stack's header says is read once, when it is mapped: a table's count()"),
        (r"\bOwn\(\w+Index\((Load|Exchange)|\bOwn\(\w+Index\([^()]*\b(?!slot\b)\w+(\.|->)(lgr|ep|epoll|waiter|listener|conn)_idx\b"
         r"|\bOwn\(\w+Index\([^()]*\b(item_head|accept_head|accept_tail|ready_\w+|all_\w+|ep_next)\b",
         "an index that comes out of shared memory: At(), not Own()"),
        (r"\.(Own|At)\([^;]*\)\[|\b(Own|At)\([^;]*\)\) [+-] \d", "arithmetic on an entry: look up the one that is meant"),
    ]
    patterns = [(re.compile(p), use) for p, use in around]
    for f in files:
        if f.ext not in CODE or not f.under("lib", "preload", "controlplane") or f.path.startswith("lib/state/"):
            continue
        lines = without_comments_and_strings(f.lines)
        for number, code in enumerate(lines, 1):
            # An argument may be on the next line.
            code += " " + lines[number].strip() if code.rstrip().endswith(("(", ",")) and number < len(lines) else ""
            for pattern, use in patterns:
                if pattern.search(code):
                    yield f"{f.path}:{number}: {use}"


# Words that one side of a handshake [F1] (docs/concurrency.md) raises by a locked instruction, and looks for the other's afterwards: on
# x86 that instruction is the fence, on aarch64 it is none. The fence follows at once, or the next look stands behind it.
RAISES = re.compile(r"\b(FetchOr|FetchAdd)\([^;]*\b(tx_wait|rx_wait|(?<!set\.)sleepers|changing|leaf|summary|posted)\b|\bExchange\([^;]*\bposted, 1u\)")
LETS_GO = [
    (re.compile(r"\bRelease\(\);"), re.compile(r"\bWirePoll\(|\bHasNews\(")),
    (re.compile(r"\bUnlock\([^;]*ctl_lock\)|\bCtlLeaveLine\("), re.compile(r"\bwire_errands\(|\bHasErrands\(")),
    (re.compile(r"\bCompareExchange\([^;]*\bstate, connecting, PSTN_EP_ESTABLISHED"), re.compile(r"Load\w+\([^;]*\bsleepers\b")),
    (re.compile(r"Store\w+\([^;]*\b(frozen, 1u|sleeping, 1u)\)"), re.compile(r"Load\w+\(")),
]
FENCE = re.compile(r"\b(FenceAfterLocked|FullFence)\(\)")
FENCES_DOC = "docs/concurrency.md"


def body_behind(code, at):
    """Lines of the function behind line `at`; once more from the start of a loop that goes on with its condition."""
    for line in code[at + 1:]:
        if line.startswith("}"):
            return
        yield line


def rule_fences(files):
    for f in files:
        if f.ext not in CODE or not f.under("lib") or f.path == "lib/state/bits.h":  # there the owner puts back what it has taken
            continue
        code = without_comments_and_strings(f.lines)
        for at, line in enumerate(code):
            behind = [other for other in body_behind(code, at) if other.strip()]
            if RAISES.search(line) and "tidy-allow: " not in f.lines[at] + f.lines[at - 1] and not any(FENCE.search(other) for other in [line] + behind[:1]):
                yield f"{f.path}:{at + 1}: a handshake's word is raised: FenceAfterLocked() stands behind it"
            for goes, looks in LETS_GO:
                if not goes.search(line):
                    continue
                for other in behind:
                    if FENCE.search(other):
                        break
                    if looks.search(other):
                        yield f"{f.path}:{at + 1}: {looks.pattern} looks for the other side's word without a fence before it"
                        break


def rule_fences_as_listed(files):
    # The places that the document names have one; a place that is renamed is named anew there.
    text = next(f for f in files if f.path == FENCES_DOC)
    start = next(i for i, line in enumerate(text.lines) if line.startswith("| news, then a locked instruction"))
    bodies = {}
    for f in files:
        if f.ext in CODE and f.under("lib"):
            code = without_comments_and_strings(f.lines)
            for at, line in enumerate(code):
                begun = re.match(r"^ *(?:[\w:<>*&]+ )*(?:explicit )?(?:\w+::)*(\w+)\([^;]*$", line)
                if begun:
                    bodies.setdefault(begun[1], []).append("\n".join([line] + code[at + 1:at + 45]).split("\n}\n")[0])
    for number, row in enumerate(text.lines[start + 2:], start + 3):
        if not row.startswith("|"):
            break
        for name in re.findall(r"\(`(?:\w+::)?(\w+)`[,)]|, `(?:\w+::)(\w+)`\)", row.split("|")[1]):
            name = name[0] or name[1]
            if not any(FENCE.search(body) for body in bodies.get(name, [])):
                yield f"{FENCES_DOC}:{number}: {name}() has no fence"


# What orders memory: each line of these has a label, [E1], whose other end has the same one (docs/memory-order.md).
# In kmod/ the kernel's names stand for the same.
RELEASES = r"\b(StoreRelease|SetState|smp_store_release)\s*\(|memory_order_(release|acq_rel)|__ATOMIC_RELEASE"
ACQUIRES = r"\b(LoadAcquire|LoadHint|smp_load_acquire)\s*\(|memory_order_(acquire|acq_rel)|__ATOMIC_ACQUIRE"
FENCES = r"\b(FullFence|FenceAfterLocked|DeathFence|smp_mb)\s*\(|atomic_thread_fence"
CHANGES = r"\b(Exchange|CompareExchange|Fetch(Add|Sub|Or|And)|atomic_(fetch_)?(or|andnot))\s*\("  # either end
HANDSHAKES = r"\b(LightFence|HeavyFence)\s*\("
LABEL = re.compile(r"\[([A-Z]\d+)\]")
ORDERS_DOC = "docs/memory-order.md"


def labels_of(f):
    """(line number, code, labels) of each line that orders memory, or has a label: its own, or of the comment above it."""
    code = without_comments_and_strings(f.lines)
    for number, line in enumerate(code):
        if not line.strip():
            continue
        found, above = set(LABEL.findall(f.lines[number][len(line.rstrip()):])), number - 1
        while above >= 0 and re.match(r"\s*(//|/\*|\*)", f.lines[above]):
            found |= set(LABEL.findall(f.lines[above]))
            above -= 1
        yield number + 1, line, found


def label_rows(files):
    for f in files:
        for number, line in enumerate(f.lines, 1):
            match = re.match(r"\| \[([A-Z]\d+)\] \|", line)
            if f.path == ORDERS_DOC and match:
                yield number, match.group(1), line


def rule_order_labels(files):
    ends, places = {}, {}
    for f in files:
        if f.ext not in CODE or not f.under("lib", "preload", "controlplane", "kmod") or f.path in ("lib/base/atomic.h", "kmod/ring/shared.h"):
            continue
        for number, code, labels in labels_of(f):
            kinds = {kind for kind, pattern in (("store", RELEASES), ("load", ACQUIRES), ("both", CHANGES), ("fence", FENCES), ("fence", HANDSHAKES))
                     if re.search(pattern, code)}
            if not labels and re.search("|".join((re.sub(r"\|SetState", "", RELEASES), ACQUIRES, FENCES)), code) and not f.under("controlplane"):
                yield f"{f.path}:{number}: it orders memory, without a label ({ORDERS_DOC})"
            for label in labels if kinds else ():
                ends.setdefault(label, set()).update(kinds)
                places.setdefault(label, []).append(f"{f.path}:{number}")
    rows = {}
    for number, label, line in label_rows(files):
        if label in rows:
            yield f"{ORDERS_DOC}:{number}: a second row for [{label}]"
        rows[label] = line
        if label not in places:
            yield f"{ORDERS_DOC}:{number}: [{label}] is nowhere in the code"
    for label, where in sorted(places.items()):
        if label not in rows:
            yield f"{where[0]}: [{label}] has no row in {ORDERS_DOC}"
            continue
        # The other end of some is relaxed on purpose, or under a lock, or the kernel's: the row has to say so.
        excused = re.search(r"\brelaxed\b|under the lock|the kernel,", rows[label])
        whole = "fence" in ends[label] or {"store", "load"} <= ends[label] or "both" in ends[label] and len(where) > 1
        if not whole and not excused:
            yield f"{where[0]}: [{label}] has one end only ({len(where)} places)"


def rule_no_marks(files):
    marks = re.compile(r"\b(FIX" r"ME|TO" r"DO|XX" r"X|HA" r"CK)\b")
    for f in files:
        if not f.is_source or f.under("facts"):
            continue
        for number, line in enumerate(f.lines, 1):
            if marks.search(line) and "type=to" + "do" not in line:
                yield f"{f.path}:{number}: mark of unfinished work: finish it, or open an issue"


def rule_no_machine_paths(files):
    paths = re.compile(r"(?<![\w.$}/])/(work|root|home/\w+|Users/\w+)/")
    for f in files:
        for number, line in enumerate(f.lines, 1):
            if paths.search(line) and f.name != "LICENSE":
                yield f"{f.path}:{number}: path of one machine"


def rule_which_python(files):
    # The first one of PATH may be private to one user, and another Python than the one that was tested.
    bare = re.compile(r"""(?<!/usr/bin/python3', \[)["']python3["'], """)
    for f in files:
        if f.ext != ".py":
            continue
        for number, line in enumerate(f.lines, 1):
            if bare.search(line) and "plugin" not in line:
                yield f"{f.path}:{number}: starts the python3 of PATH, not /usr/bin/python3"


def rule_comment_width(files):
    # clang-format keeps code within its columns, and leaves comments alone (.clang-format).
    for f in files:
        if f.ext not in CODE:
            continue
        table = False  # that is not for clang-format either
        for number, line in enumerate(f.lines, 1):
            text = line.rstrip("\n")
            table = "clang-format off" in text or table and "clang-format on" not in text
            if len(text) > CODE_COLUMNS and not table and re.search(r"//|/\*|\*/|^\s*\* ", text) and '"' not in text and "http" not in text:
                yield f"{f.path}:{number}: {len(text)} columns, of {CODE_COLUMNS}"


def rule_citations(files):
    # A search finds "RFC 9293, 3.8.5" only if it stands on one line.
    torn = re.compile(r"(\bRFC|\bADR|\bRFC \d+,)$")
    for f in files:
        if f.ext not in CODE + (".md", ".py"):
            continue
        for number, line in enumerate(f.lines, 1):
            if torn.search(line.rstrip()):
                yield f"{f.path}:{number}: a citation is torn between two lines"


def rule_markdown_width(files):
    # Not of tables, which can't be wrapped, nor of code.
    for f in files:
        if f.ext != ".md":
            continue
        fenced = False
        for number, line in enumerate(f.lines, 1):
            fenced ^= line.lstrip().startswith("```")
            if len(line.rstrip("\n")) > MARKDOWN_COLUMNS and not fenced and not re.match(r"\||```| {4}", line):
                yield f"{f.path}:{number}: {len(line.rstrip())} columns, of {MARKDOWN_COLUMNS}"


def rule_doc_links(files):
    link = re.compile(r"\[[^\]]*\]\(([^)\s#]+)(?:#[^)]*)?\)")
    for f in files:
        if f.ext != ".md":
            continue
        for number, line in enumerate(f.lines, 1):
            for target in link.findall(re.sub(r"`[^`]*`", "", line)):
                is_local = not re.match(r"[a-z]+:", target)
                if is_local and not os.path.exists(os.path.join(ROOT, os.path.dirname(f.path), target)):
                    yield f"{f.path}:{number}: link to {target}, which is not there"


def rule_banned_calls(files):
    patterns = [(re.compile(p), use) for p, use in BANNED]
    for f in files:
        if f.ext not in CODE or not f.under("lib", "preload"):
            continue
        for number, code in enumerate(without_comments_and_strings(f.lines), 1):
            around = "".join(f.lines[max(number - 2, 0):number])
            # Freestanding assembly is volatile by its nature.
            if "tidy-allow: " in around or re.match(r"\s*(__)?asm", code):
                continue
            for pattern, use in patterns:
                match = pattern.search(code)
                if match:
                    yield f"{f.path}:{number}: '{match.group().strip()}' is banned here; use {use}"


def rule_listed_in_meson(files):
    """A .cc that no meson.build names is dead, or worse, believed to be tested. (perf/ and tests/stress make their lists up.)"""
    texts = {os.path.dirname(f.path): "\n".join(f.lines) for f in files if f.name == "meson.build"}
    for f in files:
        if f.ext != ".cc" or not f.path.startswith(("lib/", "preload/", "controlplane/", "tests/unit/")):
            continue
        folder = os.path.dirname(f.path)
        while folder and folder not in texts:
            folder = os.path.dirname(folder)
        if f"'{os.path.relpath(f.path, folder or '.')}'" not in texts.get(folder, ""):
            yield f"{f.path}:1: not listed in {folder}/meson.build"


def main():
    files = load()
    rules = [(name[len("rule_"):], rule) for name, rule in globals().items() if name.startswith("rule_")]
    failed = 0
    for name, rule in rules:
        problems = list(rule(files))
        failed += bool(problems)
        print(f"{'fail' if problems else 'pass'}  {name}" + (f": {len(problems)}" if problems else ""))
        for problem in problems:
            print("  " + problem)
    print(f"{len(files)} files")
    print(f"{len(rules) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
