// SPDX-License-Identifier: Apache-2.0
// room.cc - see room.h.
#include "base/space/room.h"

#include "base/sys.h"

namespace postern {

constinit uint32_t sys::AboveLimit::busy_ = 0;

namespace {

uint64_t SoftLimit(long which) {
  rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
  (void)sys::Call(SYS_prlimit64, 0L, which, nullptr, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? kUnbounded : limit.rlim_cur;
}

// What it has mapped by now; kUnbounded: not known.
uint64_t Mapped() {
  constexpr uint64_t kPage = 4096;
  char text[128];
  const int fd =
      static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), "/proc/self/statm",
                                 static_cast<long>(O_RDONLY | O_CLOEXEC)));
  if (fd < 0) return kUnbounded;
  const long n = sys::Call(SYS_read, fd, &text[0], sizeof text);
  sys::Close(fd);
  uint64_t pages = 0;
  for (long i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++)
    pages = pages * 10 + static_cast<uint64_t>(text[i] - '0');
  return n > 0 ? pages * kPage : kUnbounded;
}

}  // namespace

Addresses AddressesIn(uint64_t limit) {
  if (limit == kUnbounded) return {kUnbounded, kUnbounded};
  const uint64_t mapped = Mapped();
  return {mapped < limit ? limit - mapped : 0, limit};
}

Addresses AddressesLeft() { return AddressesIn(SoftLimit(RLIMIT_AS)); }
uint64_t AddressRoom() { return AddressesLeft().room; }

uint64_t FileRoom() { return SoftLimit(RLIMIT_FSIZE); }

}  // namespace postern
