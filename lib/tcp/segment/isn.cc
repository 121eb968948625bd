// SPDX-License-Identifier: Apache-2.0
// isn.cc - initial sequence numbers and timestamp offsets: a clock and a keyed hash (RFC 6528).
#include "tcp/segment/isn.h"

#include <cstring>

namespace postern::tcp {
namespace {

// RFC 6528 has 4 us, a tick for each byte at 2 Mbit/s. Linux's 64 ns is 125 Mbit/s, and the number
// comes round in 275 s, more than an MSL (120 s): a new connection of the same four names is ahead
// of the old one's numbers unless that was faster for all of its life. (TIME_WAIT, which remembers
// them, knows better.)
constexpr uint64_t kTickNs = 64;

}  // namespace

uint64_t ConnHash(const SipKey& secret, HashUse use, const ConnName& conn, uint64_t more) {
  struct {
    ConnName conn;
    uint64_t more;
    uint64_t use;
  } message = {conn, more, static_cast<uint64_t>(use)};
  static_assert(sizeof message == 56);
  uint8_t bytes[sizeof message];
  memcpy(bytes, &message, sizeof bytes);
  return SipHash24(secret, bytes);
}

//= rfc6528#3
//# ISN = M + F(localip, localport, remoteip, remoteport, secretkey)
Seq InitialSeq(const SipKey& secret, const ConnName& conn, uint64_t clock_ns) {
  const uint64_t hash = ConnHash(secret, HashUse::kIsn, conn, 0);
  return Seq(static_cast<uint32_t>(hash)) + static_cast<uint32_t>(clock_ns / kTickNs);
}

// RFC 7323, 5.4 wants no information about the host in it; equal for the same four names, so that
// PAWS and the reuse of TIME_WAIT (RFC 6191) see timestamps that grow.
uint32_t TimestampOffset(const SipKey& secret, const ConnName& conn) {
  return static_cast<uint32_t>(ConnHash(secret, HashUse::kTimestamp, conn, 0));
}

}  // namespace postern::tcp
