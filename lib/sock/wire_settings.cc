// SPDX-License-Identifier: Apache-2.0
// wire_settings.cc - the host's TCP settings that the wire follows: its sysctls.
//
// Read once, when a stack makes its wire: reading them costs system calls, and the processes of a
// stack should agree. A file that is not there (another kernel, another mount) leaves Linux's
// default.
#include <fcntl.h>

#include <cstring>

#include "base/sys.h"
#include "sock/wire.h"

namespace postern {
namespace {

constexpr char kDir[] = "/proc/sys/net/ipv4/";

void Read(const char* name, uint32_t& value) {
  char path[64];
  const size_t dir = sizeof kDir - 1, length = strlen(name);
  if (dir + length >= sizeof path) return;
  memcpy(path, kDir, dir);
  memcpy(path + dir, name, length + 1);
  const int fd = static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), &path[0],
                                            static_cast<long>(O_RDONLY | O_CLOEXEC)));
  if (fd < 0) return;
  char text[16];
  const long n = sys::Call(SYS_read, fd, &text[0], sizeof text);
  sys::Close(fd);
  if (n <= 0 || text[0] < '0' || text[0] > '9') return;
  uint64_t number = 0;
  for (long i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++)
    number = number * 10 + static_cast<uint64_t>(text[i] - '0');
  value = number < UINT32_MAX ? static_cast<uint32_t>(number) : UINT32_MAX;
}

}  // namespace

void WireReadSettings(stack::WireSettings& s) {
  Read("tcp_syncookies", s.tcp_syncookies);
  Read("tcp_challenge_ack_limit", s.tcp_challenge_ack_limit);
  Read("tcp_ecn", s.tcp_ecn);
}

}  // namespace postern
