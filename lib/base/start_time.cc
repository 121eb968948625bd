// SPDX-License-Identifier: Apache-2.0
// start_time.cc - see start_time.h.
#include "base/start_time.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>

#include "base/sys.h"

namespace postern {
namespace {

constexpr uint64_t kFirstTimens = 0xeffffffa;  // PROC_TIME_INIT_INO of the kernel

bool InFirstTimens() {
  struct stat st;
  const long r =
      sys::Call(SYS_newfstatat, static_cast<long>(AT_FDCWD), "/proc/self/ns/time", &st, 0L);
  return r == -2 || (r == 0 && st.st_ino == kFirstTimens);  // ENOENT: a kernel without any
}

uint64_t NumberAt(const char* p) {
  uint64_t n = 0;
  for (; *p >= '0' && *p <= '9'; p++) n = n * 10 + static_cast<uint64_t>(*p - '0');
  return n;
}

// Numbers in /proc are those of our PID namespace.
bool IsProcOurs() {
  char text[32];
  const long n = sys::Call(SYS_readlinkat, static_cast<long>(AT_FDCWD), "/proc/self", &text[0],
                           sizeof text - 1);
  if (n <= 0) return false;
  text[n] = 0;
  return NumberAt(&text[0]) == static_cast<uint64_t>(sys::Pid());
}

}  // namespace

uint64_t StartTimeOf(uint32_t tid) {
  if (!IsProcOurs() || !InFirstTimens()) return 0;
  char text[1024];
  // Not the process's own stat, which sums up what its threads have used.
  snprintf(text, sizeof text, "/proc/%u/task/%u/stat", tid, tid);
  const int fd = static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), &text[0],
                                            static_cast<long>(O_RDONLY | O_CLOEXEC)));
  if (fd < 0) return 0;
  const long n = sys::Call(SYS_read, fd, &text[0], sizeof text - 1);
  sys::Close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  const char* p = strrchr(text, ')');  // the name may hold anything, so count from its end
  for (int field = 2; p != nullptr && field < 22; field++) p = strchr(p + 1, ' ');
  return p != nullptr ? NumberAt(p + 1) : 0;
}

}  // namespace postern
