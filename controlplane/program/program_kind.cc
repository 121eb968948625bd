// program_kind.cc - reads the ELF header, the program headers, and the note that Go leaves.
// SPDX-License-Identifier: Apache-2.0
#include "program_kind.h"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cstring>
#include <fstream>
#include <vector>

namespace postern {
namespace {

constexpr uint64_t kPathMax = 4096, kNotesMax = 65536;
constexpr char kGo[] = "Go";  // the owner of Go's notes, with the NUL that ends it
#if defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
constexpr uint16_t kMachine = EM_X86_64;
#endif

// Empty: not so many bytes are there.
std::string BytesAt(std::ifstream& file, uint64_t at, uint64_t count) {
  std::string bytes(count, '\0');
  file.clear();
  file.seekg(static_cast<std::streamoff>(at));
  file.read(bytes.data(), static_cast<std::streamsize>(count));
  return file ? bytes : "";
}

uint64_t Aligned(uint64_t bytes) { return (bytes + 3) & ~uint64_t{3}; }

bool HasGosNote(const std::string& notes) {
  uint64_t at = 0;
  while (at + sizeof(Elf64_Nhdr) <= notes.size()) {
    Elf64_Nhdr note;
    memcpy(&note, notes.data() + at, sizeof note);
    const uint64_t name = at + sizeof note;
    if (note.n_namesz == sizeof kGo + 1 && name + sizeof kGo <= notes.size() &&
        memcmp(notes.data() + name, kGo, sizeof kGo) == 0)
      return true;
    at = name + Aligned(note.n_namesz) + Aligned(note.n_descsz);
  }
  return false;
}

void LookAtSegments(std::ifstream& file, const Elf64_Ehdr& header, ProgramKind& kind) {
  kind.is_static = true;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    const std::string bytes =
        BytesAt(file, header.e_phoff + uint64_t{i} * header.e_phentsize, sizeof segment);
    if (bytes.empty()) return;
    memcpy(&segment, bytes.data(), sizeof segment);
    if (segment.p_type == PT_INTERP) {
      kind.is_static = false;
      if (segment.p_filesz <= kPathMax)
        kind.is_musl =
            BytesAt(file, segment.p_offset, segment.p_filesz).find("/ld-musl") != std::string::npos;
    } else if (segment.p_type == PT_NOTE && segment.p_filesz <= kNotesMax) {
      kind.is_go = kind.is_go || HasGosNote(BytesAt(file, segment.p_offset, segment.p_filesz));
    }
  }
}

}  // namespace

std::string PrivilegeOf(const std::string& path, uid_t uid, gid_t gid) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return "";
  const bool is_setuid = (status.st_mode & S_ISUID) != 0 && status.st_uid != uid;
  const bool is_setgid = (status.st_mode & S_ISGID) != 0 && status.st_gid != gid;
  if (is_setuid || is_setgid) return "is set-user-ID or set-group-ID";
  const bool has_capabilities = getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
  return has_capabilities && uid != 0 ? "has file capabilities" : "";
}

std::optional<ProgramKind> LookAtProgram(const std::string& path, uid_t uid, gid_t gid) {
  std::ifstream file(path, std::ios::binary);
  const std::string start = BytesAt(file, 0, EI_NIDENT);
  if (start.compare(0, SELFMAG, ELFMAG) != 0) return std::nullopt;
  ProgramKind kind;
  kind.privilege = PrivilegeOf(path, uid, gid);
  kind.is_privileged = !kind.privilege.empty();
  kind.is_64_bit = start[EI_CLASS] == ELFCLASS64;
  Elf64_Ehdr header;
  const std::string bytes = kind.is_64_bit ? BytesAt(file, 0, sizeof header) : "";
  if (bytes.empty()) return kind;
  memcpy(&header, bytes.data(), sizeof header);
  kind.is_this_machines = header.e_machine == kMachine;
  LookAtSegments(file, header, kind);
  return kind;
}

std::string WhyOutOfReach(const ProgramKind& kind, const char** short_reason) {
  const auto say = [short_reason](const char* word, std::string text) {
    if (short_reason != nullptr) *short_reason = word;
    return text;
  };
  if (kind.is_privileged) return say("privileged", kind.privilege);
  if (!kind.is_64_bit) return say("32-bit", "is not a 64-bit program");
  if (!kind.is_this_machines) return say("machine", "is a program of another kind of processor");
  if (kind.is_go)
    return say("go", kind.is_static ? "is statically linked, by Go"
                                    : "is a Go program, which makes its system calls itself");
  if (kind.is_static) return say("static", "is statically linked");
  if (kind.is_musl) return say("musl", "has musl as its C library, and Postern's is for glibc");
  return say("", "");
}

}  // namespace postern
