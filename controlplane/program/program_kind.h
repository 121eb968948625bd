// program_kind.h - what kind of program a file is, and whether a preloaded library can reach it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace postern {

// The file may be anything: a short, cut off or hostile one only makes less be known of it.
struct ProgramKind {
  bool is_64_bit = false;
  bool is_this_machines = false;
  bool is_static = false;  // no dynamic loader is asked for
  bool is_go = false;      // made by Go, whose programs make their system calls themselves
  bool is_musl = false;
  bool is_privileged = false;  // set-user-ID or set-group-ID of another one, or capabilities
  std::string privilege;       // which of the three, in words
};

// `path` may be /proc/PID/exe. `uid` and `gid` are those of its caller. Nothing: it can't be read,
// or is no ELF file.
std::optional<ProgramKind> LookAtProgram(const std::string& path, uid_t uid, gid_t gid);
// How the file gives its caller more rights, in words; empty: it does not.
std::string PrivilegeOf(const std::string& path, uid_t uid, gid_t gid);

// Why no library is preloaded into it, or why that is of no use: "is statically linked"; empty when
// there is no such reason. `short_reason`, if any: one word for scripts.
std::string WhyOutOfReach(const ProgramKind& kind, const char** short_reason = nullptr);

}  // namespace postern
