// SPDX-License-Identifier: Apache-2.0
// leaving.cc - see leaving.h. What happens to the sockets themselves is in lib/peer/export.cc.
#include "leaving.h"
#include "base/space/pages.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/call.h"
#include "event/epoll.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/telling.h"
#include "peer/export.h"
#include "real.h"
#include "sock/own_family.h"

#include <elf.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace postern {

long ExportPassed(int by, const msghdr* from) {
  msghdr m;
  // Of what can't be read the kernel says so.
  if (!g_faults_watched || !GetUser(m, from) || m.msg_controllen == 0 ||
      !UserReadable(m.msg_control, m.msg_controllen))
    return 0;
  int domain = 0;
  socklen_t len = sizeof domain;
  // Nothing is passed by what is no such socket: the call fails, and nothing has happened.
  if (by != kAnySocket && (sys::Call(SYS_getsockopt, by, static_cast<long>(SOL_SOCKET),
                                     static_cast<long>(SO_DOMAIN), &domain, &len) != 0 ||
                           domain != AF_UNIX))
    return 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
      continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      if (IsHidden(FdMeans(g_family, fd))) return -EBADF;
      if (SockExport(g_family, fd) != 0) return -ETOOMANYREFS;
    }
  }
  return 0;
}

namespace {

constexpr int kScriptDepth = 4;  // the kernel's limit of interpreters of interpreters
#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#endif

// A read-only file by plain system calls: this runs in children of fork.
class File {
 public:
  explicit File(const char* path)
      : fd_(static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), path,
                                       static_cast<long>(O_RDONLY | O_CLOEXEC)))) {}
  ~File() {
    if (fd_ >= 0) sys::Close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool ok() const { return fd_ >= 0; }
  size_t Read(void* to, size_t bytes, uint64_t at) const {
    long n = sys::Call(SYS_pread64, fd_, to, bytes, static_cast<long>(at));
    return n > 0 ? static_cast<size_t>(n) : 0;
  }

 private:
  int fd_;
};

// The loader ignores LD_PRELOAD where the image runs with rights that its caller does not have.
bool RaisesRights(const char* path) {
  struct stat st;
  if (PSTN_REAL(stat)(path, &st) != 0) return false;
  if ((st.st_mode & S_ISUID) != 0 && st.st_uid != getuid()) return true;
  if ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getgid())
    return true;
  return getuid() != 0 && getxattr(path, "security.capability", nullptr, 0) > 0;
}

bool IsGoNote(const File& file, const Elf64_Phdr& h) {
  struct {
    Elf64_Nhdr note;
    char name[4];
  } first;
  return file.Read(&first, sizeof first, h.p_offset) == sizeof first && first.note.n_namesz == 4 &&
         memcmp(&first.name[0], "Go\0", 4) == 0;
}

// musl's loader, whose programs the library is not for.
bool IsMuslName(const File& file, const Elf64_Phdr& h) {
  char name[64] = {};
  (void)file.Read(&name[0], sizeof name - 1, h.p_offset);
  return strstr(&name[0], "/ld-musl-") != nullptr;
}

bool ElfLosesLibrary(const File& file, const Elf64_Ehdr& e) {
  if (e.e_ident[EI_CLASS] != ELFCLASS64 || e.e_machine != kMachine) return true;
  bool dynamic = false;
  for (uint32_t i = 0; i < e.e_phnum; i++) {
    Elf64_Phdr h;
    if (file.Read(&h, sizeof h, e.e_phoff + uint64_t{i} * e.e_phentsize) != sizeof h) return false;
    dynamic = dynamic || h.p_type == PT_INTERP;
    if (h.p_type == PT_INTERP && IsMuslName(file, h)) return true;
    if (h.p_type == PT_NOTE && IsGoNote(file, h)) return true;
  }
  return !dynamic;
}

bool FileLosesLibrary(const char* path, int depth) {
  if (RaisesRights(path)) return true;
  File file(path);
  union {
    char text[256];
    Elf64_Ehdr elf;
  } head = {};
  size_t n = file.ok() ? file.Read(&head, sizeof head - 1, 0) : 0;
  if (n < 4) return false;  // nothing that can be run, or that we may look into
  if (memcmp(head.text, ELFMAG, SELFMAG) == 0)
    return n >= sizeof head.elf && ElfLosesLibrary(file, head.elf);
  if (head.text[0] != '#' || head.text[1] != '!' || depth == 0) return false;
  char* at = head.text + 2;
  at += strspn(at, " \t");
  at[strcspn(at, " \t\n")] = 0;
  return FileLosesLibrary(at, depth - 1);
}

}  // namespace

bool LosesLibrary(const char* path, bool search) {
  if (path == nullptr) return false;
  const char* dirs = search && strchr(path, '/') == nullptr ? getenv("PATH") : nullptr;
  if (dirs == nullptr) return FileLosesLibrary(path, kScriptDepth);
  constexpr size_t kPathBytes = 4096;
  const OwnPages room(kPathBytes);
  char* const full = room.As<char>();
  while (full != nullptr && *dirs != 0) {
    size_t n = strcspn(dirs, ":");
    int len = snprintf(full, kPathBytes, "%.*s/%s", static_cast<int>(n), dirs, path);
    if (len > 0 && static_cast<size_t>(len) < kPathBytes &&
        access(n != 0 ? full : path, X_OK) == 0) {
      return FileLosesLibrary(n != 0 ? full : path, kScriptDepth);
    }
    dirs += n + (dirs[n] != 0);
  }
  return false;
}

namespace {

uint64_t action_sources[kFdMax / 64];  // numbers that NoteMoved was given

}  // namespace

void NoteMoved(int fd) {
  if (static_cast<uint32_t>(fd) < kFdMax)
    FetchOr(action_sources[fd / 64], uint64_t{1} << (fd % 64));
}

bool OutlivesExec(int fd, bool spawn) {
  const int flags = sys::Fcntl(fd, F_GETFD, 0);
  const auto n = static_cast<uint32_t>(fd);
  return flags >= 0 && ((flags & FD_CLOEXEC) == 0 ||
                        (spawn && (LoadRelaxed(action_sources[n / 64]) >> (n % 64) & 1u) != 0));
}

void ExportInherited(bool spawn) {
  const uint32_t hw = LoadAcquire(g_family.fd_hw);  // [T1]
  for (uint32_t n = 0; n < hw && n < kFdMax; n++) {
    const int fd = static_cast<int>(n);
    if ((FdMeans(g_family, fd) & PSTN_FD_KIND) != PSTN_FD_EP || !OutlivesExec(fd, spawn)) continue;
    const long r = SockExport(g_family, fd);
    if (r == 0) continue;
    char why[64];
    snprintf(why, sizeof why, "descriptor %d (errno %ld)", fd, -r);
    LogText(g_family, LogLevel::kWarn,
            "starts a program without the library, which can't use its connection: ", why);
  }
}

void StepAside(Reason why) {
  // After this it is silent. A ring has been counted.
  if (why == kReasonSandbox) NoteFallback(g_family, why, -1);
  StoreRelaxed(g_family.aside, why);
  if (!g_family.attached) return;
  uint32_t hw = LoadAcquire(g_family.fd_hw);  // [T1]
  for (uint32_t n = 0; n < hw && n < kFdMax; n++)
    (void)ExportFor(g_family, static_cast<int>(n), why);
  for (uint32_t n = 0; n < hw && n < kFdMax; n++) GiveSetToKernel(g_family, static_cast<int>(n));
}

int Aside(int fd) {
  if (LoadRelaxed(g_family.aside) != 0) [[unlikely]]
    (void)ExportFor(g_family, fd, static_cast<Reason>(LoadRelaxed(g_family.aside)));
  return fd;
}

void ExportConfined() {
  if (g_family.bells.confined) return;
  g_family.bells.confined = true;
  g_family.opt.spin_yield = 0;  // its filter may not let it
  FenceWithoutKernel(g_family);
  StepAside(kReasonSandbox);
  g_family.bells.mute = true;
}

}  // namespace postern

using namespace postern;

PSTN_EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int from,
                                                 int to) noexcept {
  NoteMoved(from);
  return PSTN_REAL(posix_spawn_file_actions_adddup2)(actions, from, to);
}

// The descriptor of another process: of our family, it means here what it means there.
extern "C" int pidfd_getfd(int pidfd, int target, unsigned flags) noexcept;
PSTN_EXPORT int pidfd_getfd(int pidfd, int target, unsigned flags) noexcept {
  if (InVfork())
    return Ret<int>(sys::Call(SYS_pidfd_getfd, pidfd, target, static_cast<long>(flags)));
  TableChange change(g_family);  // what it means is entered before another thread's dup2()
  const Fresh fresh;
  long r = sys::Call(SYS_pidfd_getfd, pidfd, target, static_cast<long>(flags));
  if (r < 0) return Ret<int>(r);
  int fd = fresh.Fd(static_cast<int>(r));
  SockAdopt(g_family, fd, pidfd, target);
  return fd;
}
