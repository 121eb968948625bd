// SPDX-License-Identifier: Apache-2.0
// isn.h - initial sequence numbers (RFC 6528) and timestamp offsets (RFC 7323, 5.4).
//
// Both are a clock plus a keyed hash of the connection's four names: for the same four they only
// grow, so that a connection can follow its predecessor; for others they say nothing. The secret is
// the host's, drawn once; all stacks of a host need the same, or a tuple that moves from one to the
// other would not grow.
#pragma once
#include <cstdint>

#include "base/siphash.h"
#include "tcp/segment/seq.h"

namespace postern::tcp {

// As one of the two ends names the connection. IPv4 as ::ffff:a.b.c.d.
struct ConnName {
  uint8_t local[16], remote[16];
  uint16_t local_port, remote_port;
  uint32_t scope;  // network namespace, or interface of a link-local address; 0: there is but one
};
static_assert(sizeof(ConnName) == 40, "hashed as bytes: no padding");

// `clock_ns`: CLOCK_REALTIME or anything else that never goes back, not even over a restart of the
// program (CLOCK_MONOTONIC of one boot will do).
Seq InitialSeq(const SipKey& secret, const ConnName& conn, uint64_t clock_ns);

// To be added to a clock of milliseconds: what is sent as TSval.
uint32_t TimestampOffset(const SipKey& secret, const ConnName& conn);

// A hash of `conn` for one of several uses; the same key serves for all of them.
enum class HashUse : uint32_t { kIsn = 1, kTimestamp = 2, kCookie = 3 };
uint64_t ConnHash(const SipKey& secret, HashUse use, const ConnName& conn, uint64_t more);

}  // namespace postern::tcp
