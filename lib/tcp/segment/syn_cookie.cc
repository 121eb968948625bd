// SPDX-License-Identifier: Apache-2.0
// syn_cookie.cc - makes and checks the sequence numbers of syn_cookie.h.
#include "tcp/segment/syn_cookie.h"

namespace postern::tcp {
namespace {

constexpr uint64_t kMinuteNs = 60'000'000'000;
constexpr uint32_t kMssShift = 29, kMinuteShift = 31;
constexpr uint32_t kHashMask = (1u << kMssShift) - 1;
constexpr uint16_t kMssDefault = 536, kMssDefault6 = 1220;  // RFC 9293, 3.7.1

// Linux's: the least that every host takes, tunnels, PPPoE or so, Ethernet (IPv6: jumbo frames).
constexpr uint16_t kMss4[] = {536, 1300, 1440, 1460};
constexpr uint16_t kMss6[] = {1220, 1420, 1440, 8940};

// The lowest bits of the timestamp. Linux's, too, but no other host reads them.
constexpr uint32_t kTsBits = 6, kTsMask = (1u << kTsBits) - 1;
constexpr uint32_t kTsNoScale = 0xf, kTsSack = 1u << 4, kTsEcn = 1u << 5;
constexpr uint32_t kScaleMax = 14;  // RFC 7323, 2.3

const uint16_t* Table(bool ipv6) { return ipv6 ? kMss6 : kMss4; }

// The largest that is not above; the first if all are: a peer that says less than 536 gets 536, as
// with Linux. Each host takes that (RFC 1122, 3.3.2), whatever it says.
uint32_t MssIndex(uint16_t mss, bool ipv6) {
  if (mss == 0) mss = ipv6 ? kMssDefault6 : kMssDefault;
  uint32_t index = 3;
  while (index > 0 && mss < Table(ipv6)[index]) index--;
  return index;
}

Seq Compose(const SipKey& secret, const ConnName& conn, Seq irs, uint64_t minute, uint32_t mss) {
  // 32 bits of the client's number, 2 of the MSS; the 30 left are 2000 years of minutes.
  const uint64_t more = minute << 34 | uint64_t{mss} << 32 | irs.value();
  const uint64_t hash = ConnHash(secret, HashUse::kCookie, conn, more);
  const auto parity = static_cast<uint32_t>(minute & 1);
  return Seq(parity << kMinuteShift | mss << kMssShift | (static_cast<uint32_t>(hash) & kHashMask));
}

}  // namespace

uint16_t CookieMss(uint16_t mss, bool ipv6) { return Table(ipv6)[MssIndex(mss, ipv6)]; }

Seq CookieMake(const SipKey& secret, const ConnName& conn, bool ipv6, const SegmentIn& syn,
               uint64_t clock_ns) {
  return Compose(secret, conn, syn.seq, clock_ns / kMinuteNs, MssIndex(syn.options.mss, ipv6));
}

uint32_t CookieTimestamp(const SipKey& secret, const ConnName& conn, const SegmentIn& syn, bool ecn,
                         uint32_t ts_ms) {
  const SegmentOptions& o = syn.options;
  uint32_t bits = kTsNoScale;
  if (o.has_window_scale) bits = o.window_scale < kScaleMax ? o.window_scale : kScaleMax;
  if (o.sack_permitted) bits |= kTsSack;
  if (ecn) bits |= kTsEcn;
  uint32_t ts = (ts_ms & ~kTsMask) | bits;
  // Not ahead of the clock: the connection's own timestamps must not go back.
  if (ts > ts_ms) ts -= kTsMask + 1;
  return ts + TimestampOffset(secret, conn);
}

bool CookieCheck(const SipKey& secret, const ConnName& conn, bool ipv6, const SegmentIn& ack,
                 uint64_t clock_ns, CookieState& out) {
  const Seq cookie = ack.ack - 1u, irs = ack.seq - 1u;
  // This minute or the last: so it is one to two minutes old at most.
  uint64_t minute = clock_ns / kMinuteNs;
  if ((minute & 1) != cookie.value() >> kMinuteShift) {
    if (minute == 0) return false;
    minute--;
  }
  const uint32_t mss = cookie.value() >> kMssShift & 3;
  if (Compose(secret, conn, irs, minute, mss) != cookie) return false;
  out = {};
  out.iss = cookie;
  out.irs = irs;
  out.mss = Table(ipv6)[mss];
  const SegmentOptions& o = ack.options;
  if (!o.has_timestamps) return true;
  const uint32_t bits = o.ts_echo - TimestampOffset(secret, conn);
  const auto scale = static_cast<uint8_t>(bits & kTsNoScale);
  out.has_timestamps = true;
  out.ts_recent = o.ts_value;
  out.has_window_scale = scale != kTsNoScale;
  out.window_scale = scale != kTsNoScale ? scale : 0;
  out.sack = (bits & kTsSack) != 0;
  out.ecn = (bits & kTsEcn) != 0;
  return true;
}

}  // namespace postern::tcp
