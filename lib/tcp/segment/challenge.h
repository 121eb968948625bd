// SPDX-License-Identifier: Apache-2.0
// challenge.h - how many ACKs segments that can't be meant may cause (RFC 5961, 5 and 10).
//
// A blind attacker makes us answer (challenge ACKs), and two peers that take each other's segments
// for old ones could do so for ever. So a connection answers once in 500 ms, and a host as often as
// ChallengeLimit allows. That one is shared by all connections, which makes it a way to see from
// outside what others cause (CVE-2016-5696: is the port pair right? Then one ACK less is left in
// this second): hence the number of each second is random, and large.
//
// Plain memory of fixed size; the lock is its owner's.
#pragma once
#include <cstdint>

namespace postern::tcp {

inline constexpr uint32_t kChallengeAcksDefault = 1000;     // a second, on average
inline constexpr uint64_t kOutOfWindowAckNs = 500'000'000;  // Linux's tcp_invalid_ratelimit

// Of a host, or of a stack: zero is a good start.
struct ChallengeLimit {
  uint64_t second;
  uint32_t left;  // in this second
  uint32_t pad;
};

// Whether one may be sent now. From half of `per_second` to one and a half of it are allowed in
// each second; 0: none, ~0: any. `random`: from Host::Random().
inline bool ChallengeAllowed(ChallengeLimit& limit, uint64_t now_ns, uint32_t per_second,
                             uint64_t random) {
  if (per_second == ~0u) return true;
  const uint64_t second = now_ns / 1'000'000'000 + 1;  // never 0, the empty value
  if (limit.second != second) {
    limit.second = second;
    const uint32_t spread = per_second == 0 ? 0 : static_cast<uint32_t>(random % per_second);
    limit.left = per_second - per_second / 2 + spread;
  }
  if (limit.left == 0 || per_second == 0) return false;
  limit.left--;
  return true;
}

// Of a connection: ACKs for segments outside the window.
struct OutOfWindowLimit {
  uint64_t last_ns;  // 0: none yet
};

inline bool OutOfWindowAckAllowed(OutOfWindowLimit& limit, uint64_t now_ns) {
  if (limit.last_ns != 0 && now_ns - limit.last_ns < kOutOfWindowAckNs) return false;
  limit.last_ns = now_ns != 0 ? now_ns : 1;
  return true;
}

}  // namespace postern::tcp
