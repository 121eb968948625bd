// SPDX-License-Identifier: Apache-2.0
// wire_settings.cc - the host's TCP settings that the wire follows: its sysctls.
//
// They are the stack's, so that its processes agree: read when it makes its wire, and anew by a
// process that connects or accepts, if a second has passed since. (So the first client of a
// listener after a change still meets what was before.) Reading them costs system calls, some
// microseconds each. A file that is not there (another kernel, another mount) leaves Linux's
// default.
#include <fcntl.h>

#include <cstring>

#include "base/sys.h"
#include "offhost/wire.h"

namespace postern {
namespace {

constexpr char kDir[] = "/proc/sys/net/ipv4/";

// How many bytes of it there are; 0: it can't be read.
size_t ReadText(const char* name, char (&text)[16]) {
  char path[64];
  const size_t dir = sizeof kDir - 1, length = strlen(name);
  if (dir + length >= sizeof path) return 0;
  memcpy(path, kDir, dir);
  memcpy(path + dir, name, length + 1);
  const int fd = static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), &path[0],
                                            static_cast<long>(O_RDONLY | O_CLOEXEC)));
  if (fd < 0) return 0;
  const long n = sys::Call(SYS_read, fd, &text[0], sizeof text);
  sys::Close(fd);
  return n > 0 ? static_cast<size_t>(n) : 0;
}

void Read(const char* name, uint32_t& value) {
  char text[16];
  const size_t n = ReadText(name, text);
  if (n == 0 || text[0] < '0' || text[0] > '9') return;
  uint64_t number = 0;
  for (size_t i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++)
    number = number * 10 + static_cast<uint64_t>(text[i] - '0');
  value = number < UINT32_MAX ? static_cast<uint32_t>(number) : UINT32_MAX;
}

// One that the wire does not have leaves Linux's default, which it has.
void ReadCongestion(uint32_t& kind) {
  char text[16];
  size_t n = ReadText("tcp_congestion_control", text);
  if (n != 0 && text[n - 1] == '\n') n--;
  tcp::CongestionKind known{};
  if (tcp::CongestionByName(text, static_cast<uint32_t>(n), known))
    kind = static_cast<uint32_t>(known);
}

}  // namespace

void WireReadSettings(stack::WireSettings& s) {
  Read("tcp_syncookies", s.tcp_syncookies);
  Read("tcp_challenge_ack_limit", s.tcp_challenge_ack_limit);
  Read("tcp_ecn", s.tcp_ecn);
  ReadCongestion(s.tcp_congestion);
  for (const tcp::NamedSysctl& known : tcp::kNamedSysctls) Read(known.name, s.tcp.*known.value);
}

void WireFollowSettings(stack::Engine& engine, uint64_t now) {
  constexpr uint64_t kPauseNs = 1'000'000'000;
  stack::WireState& w = engine.state();
  const uint64_t read_ns = LoadRelaxed(w.settings_ns);
  if (now < read_ns + kPauseNs || Exchange(w.settings_ns, now) != read_ns) return;
  StoreRelaxed(w.settings_used, 0u);
  engine.Acquire();
  stack::WireSettings s = w.settings;
  engine.Release();
  WireReadSettings(s);
  engine.Acquire();
  w.settings.tcp_syncookies = s.tcp_syncookies;
  w.settings.tcp_challenge_ack_limit = s.tcp_challenge_ack_limit;
  w.settings.tcp_ecn = s.tcp_ecn;
  StoreRelaxed(w.settings.tcp_congestion, s.tcp_congestion);  // read without the lock, too
  w.settings.tcp = s.tcp;
  engine.Release();
}

}  // namespace postern
