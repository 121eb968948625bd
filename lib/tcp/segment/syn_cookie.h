// SPDX-License-Identifier: Apache-2.0
// syn_cookie.h - a SYN-ACK whose number says all that has to be remembered (RFC 4987, 3.6).
//
// When the SYN queue is full nothing is kept of a SYN; the acknowledgement of the SYN-ACK brings
// back its number (plus one), and this file finds in it whether it is one that we gave to this
// peer within the last two minutes, and which MSS it had:
//
//    31        30 29      28                                    0
//   +---------+----------+---------------------------------------+
//   | minute  |  MSS:    | keyed hash of: the four names, the    |
//   | lowest  |  one of  | client's number, the minute, the MSS  |
//   | bit     |  four    |                                       |
//   +---------+----------+---------------------------------------+
//
// A guess is right once in 2^29 (Linux: 8 in 2^32). Unlike Linux's, the hash covers the MSS, so
// that no bit can be changed. The number does not grow with time as RFC 6528's: what it would be
// good for (segments of the predecessor) TIME_WAIT sees to, for which no cookie is made.
//
// Window scale, SACK and ECN fit only into the timestamp of the SYN-ACK, where the peer has
// timestamps: its lowest 6 bits, as Linux. They are not authenticated; a peer that lies about them
// lies about itself.
#pragma once
#include <cstdint>

#include "tcp/segment/isn.h"
#include "tcp/segment/segment.h"

namespace postern::tcp {

// What a handshake leaves behind: of the SYN, or out of a cookie.
struct CookieState {
  Seq iss, irs;      // ours (the cookie), the peer's
  uint16_t mss = 0;  // the peer's, rounded down to one of the table
  bool has_timestamps = false;
  bool has_window_scale = false;
  uint8_t window_scale = 0;  // the peer's
  bool sack = false;
  bool ecn = false;
  uint32_t ts_recent = 0;  // the peer's TSval, to be echoed
};

// What of the peer's MSS (as in its SYN; 0: none, RFC 9293's default) a cookie keeps.
uint16_t CookieMss(uint16_t mss, bool ipv6);

// The number of the SYN-ACK for `syn`. `clock_ns` as for InitialSeq(); used in minutes.
Seq CookieMake(const SipKey& secret, const ConnName& conn, bool ipv6, const SegmentIn& syn,
               uint64_t clock_ns);
// Its TSval, where the SYN has timestamps. `ts_ms`: the clock of milliseconds, without the offset.
// `ecn`: the SYN asked for it, and we agree.
uint32_t CookieTimestamp(const SipKey& secret, const ConnName& conn, const SegmentIn& syn, bool ecn,
                         uint32_t ts_ms);
// Whether `ack`, a segment with ACK and without SYN and RST for which there is no connection,
// answers one of them.
bool CookieCheck(const SipKey& secret, const ConnName& conn, bool ipv6, const SegmentIn& ack,
                 uint64_t clock_ns, CookieState& out);

// Cookies are looked at only while some may be out there, so that in peace no peer may even try.
// One for each listener.
struct CookieGate {
  uint64_t made_ns;  // when the last one was made; 0: never
};
inline constexpr uint64_t kCookieLifeNs = 120'000'000'000;
inline void CookieMade(CookieGate& gate, uint64_t clock_ns) { gate.made_ns = clock_ns; }
inline bool CookieExpected(const CookieGate& gate, uint64_t clock_ns) {
  return gate.made_ns != 0 && clock_ns - gate.made_ns < kCookieLifeNs;
}

}  // namespace postern::tcp
