// SPDX-License-Identifier: Apache-2.0
// wire_settings.cc - the host's TCP settings that the wire follows: its sysctls.
//
// They are the stack's, so that its processes agree: read when it makes its wire, and anew by a
// process that connects or accepts, each that was not read for a second. (So the first client of a
// listener after a change still meets what was before.) Reading them costs system calls, some
// microseconds each. A file that is not there (another kernel, another mount) leaves Linux's
// default.
#include <fcntl.h>

#include <cstring>
#include <iterator>

#include "base/sys.h"
#include "offhost/wire.h"

namespace postern {
namespace {

constexpr char kDir[] = "/proc/sys/net/ipv4/";

// How many bytes of it there are; 0: it can't be read.
size_t ReadText(const char* name, char (&text)[64]) {
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

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The `word`th number of a file that has several, with a tab between each two.
void Read(const char* name, uint32_t& value, uint32_t word = 0) {
  char text[64];
  const size_t n = ReadText(name, text);
  size_t at = 0;
  for (; word != 0; word--) {
    while (at < n && IsDigit(text[at])) at++;
    while (at < n && !IsDigit(text[at])) at++;
  }
  if (at >= n || !IsDigit(text[at])) return;
  uint64_t number = 0;
  for (; at < n && IsDigit(text[at]); at++) {
    number = number * 10 + static_cast<uint64_t>(text[at] - '0');
    if (number > UINT32_MAX) number = UINT32_MAX;
  }
  value = static_cast<uint32_t>(number);
}

// One that the wire does not have leaves Linux's default, which it has.
void ReadCongestion(uint32_t& kind) {
  char text[64];
  size_t n = ReadText("tcp_congestion_control", text);
  if (n != 0 && text[n - 1] == '\n') n--;
  tcp::CongestionKind known{};
  if (tcp::CongestionByName(text, static_cast<uint32_t>(n), known))
    kind = static_cast<uint32_t>(known);
}

// They are read in parts, so that no connect() has to wait for all of them.
constexpr uint64_t kParts = 4, kPartNs = 1'000'000'000 / kParts;

void ReadPart(stack::WireSettings& s, uint64_t part) {
  if (part == 0) {
    Read("tcp_syncookies", s.tcp_syncookies);
    Read("tcp_challenge_ack_limit", s.tcp_challenge_ack_limit);
    Read("tcp_ecn", s.tcp_ecn);
    ReadCongestion(s.tcp_congestion);
  }
  for (uint64_t i = part; i < std::size(tcp::kNamedSysctls); i += kParts) {
    const tcp::NamedSysctl& known = tcp::kNamedSysctls[i];
    Read(known.name, s.tcp.*known.value, known.word);
  }
}

}  // namespace

void WireReadSettings(stack::WireSettings& s) {
  for (uint64_t part = 0; part < kParts; part++) ReadPart(s, part);
}

uint32_t WireFastOpen() {
  uint32_t bits = 0;
  Read("tcp_fastopen", bits);
  return bits;
}

void WireFollowSettings(stack::Engine& engine, uint64_t now) {
  stack::WireState& w = engine.state();
  const uint64_t read_ns = LoadRelaxed(w.settings_ns);
  const uint64_t before = read_ns / kPartNs, turn = now / kPartNs;
  if (turn <= before || Exchange(w.settings_ns, now) != read_ns) return;
  StoreRelaxed(w.settings_used, 0u);
  engine.Acquire();
  stack::WireSettings s = w.settings;
  engine.Release();
  for (uint64_t i = 0; i < kParts && i < turn - before; i++) ReadPart(s, (turn - i) % kParts);
  engine.Acquire();
  w.settings.tcp_syncookies = s.tcp_syncookies;
  w.settings.tcp_challenge_ack_limit = s.tcp_challenge_ack_limit;
  w.settings.tcp_ecn = s.tcp_ecn;
  StoreRelaxed(w.settings.tcp_congestion, s.tcp_congestion);  // read without the lock, too
  w.settings.tcp = s.tcp;
  engine.Release();
}

}  // namespace postern
