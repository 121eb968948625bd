// SPDX-License-Identifier: Apache-2.0
// window.cc - the window that we offer: how far it opens, when the peer is told, and how it grows.
//
//   the Host's ring:   | unread |            Room            |
//                      |<------------- RoomMax ------------->|
//   sequence space:             ^rcv_nxt       ^rcv_adv   what we have offered: never less again
//
// Out-of-order data are in their packets, not in the ring, so Room shrinks by deliveries only, and
// a window of at most Room is one that can be kept to.
#include <initializer_list>

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

// How much the program may leave unread before the window shrinks.
uint32_t Limit(const Tcb& t, uint32_t room_max) {
  return std::min({room_max, t.rcv_limit, 0xffffu << t.rcv_wscale});
}

// TCP_WINDOW_CLAMP bounds what is offered, whatever is unread beside it (as Linux): what was read
// last may not have been given back to the ring yet, and would count.
uint32_t Clamp(const Tcb& t) {
  return t.settings.window_clamp != 0 ? t.settings.window_clamp : UINT32_MAX;
}

//= rfc9293#3.8.6.2.2
//# The suggested SWS avoidance algorithm for the receiver is to keep RCV.NXT+RCV.WND fixed until
// the # reduction satisfies: RCV.BUFF - RCV.USER - RCV.WND >= min( Fr * RCV.BUFF, Eff.snd.MSS )
uint32_t Wanted(Tcb& t, Host& h) {
  const uint32_t room_max = h.RoomMax(t);
  const uint32_t room = std::min(h.Room(t), room_max);
  const uint32_t limit = Limit(t, room_max);
  const uint32_t unread = room_max - room;
  // The scale rounds what is offered up at times: that much is kept back.
  const uint32_t slack = (1u << t.rcv_wscale) - 1;
  uint32_t free = limit > unread ? limit - unread : 0;
  free = std::min({free, room > slack ? room - slack : 0, Clamp(t)});
  const uint32_t most = std::min(limit, Clamp(t));
  const uint32_t least = std::min(t.rcv_mss, most / 2);
  if (free < most / 16 || free < least) return 0;
  // Without a scale, whole segments, as long as that is no less (Linux).
  if (t.rcv_wscale == 0 && t.rcv_mss != 0 && free > t.rcv_mss && free < 0xffff)
    return free - free % t.rcv_mss;
  return free >> t.rcv_wscale << t.rcv_wscale;
}

uint32_t Offered(const Tcb& t) {
  const int32_t left = t.rcv_adv - t.rcv_nxt;
  return left > 0 ? static_cast<uint32_t>(left) : 0;
}

}  // namespace

//= rfc9293#3.8.6
//# A TCP receiver SHOULD NOT shrink the window
uint32_t OfferWindow(Tcb& t, Host& h) {
  const uint32_t unit = (1u << t.rcv_wscale) - 1;
  uint32_t window = Wanted(t, h);
  const uint32_t offered = Offered(t);
  if (window < offered) window = (offered + unit) & ~unit;
  const bool is_signed = t.rcv_wscale == 0 && h.sysctls().tcp_workaround_signed_windows != 0;
  return std::min(window, is_signed ? 0x7fffu : 0xffffu << t.rcv_wscale);
}

// As Linux: when it has doubled at least, and only where it had become small.
bool WindowHasOpened(Tcb& t, Host& h) {
  if (Has(t, kFinReceived)) return false;
  const uint32_t offered = Offered(t);
  if (offered > t.rcv_limit / 2) return false;
  const uint32_t limit = std::min(Limit(t, h.RoomMax(t)), Clamp(t));
  if (offered > limit / 2) return false;
  const uint32_t wanted = Wanted(t, h);
  return wanted != 0 && wanted >= 2 * offered && wanted > offered;
}

// How long a round trip takes as the receiver sees it: by the echo of our timestamps, or by the
// time in which a whole window comes.
void MeasureReceiver(Tcb& t, const SegmentIn& s, const Host& h) {
  if (Has(t, kTimestamps) && s.options.has_timestamps && s.options.ts_echo != 0) {
    if (s.bytes < t.rcv_mss) return;
    const uint32_t ms = TimestampNow(t, h) - s.options.ts_echo;
    if (ms >= 0x7fffffffu / 1000) return;
    const uint64_t rtt_ns = std::max(ms, 1u) * kMs;
    t.rcv_rtt_ns = t.rcv_rtt_ns == 0 ? rtt_ns : std::min(t.rcv_rtt_ns, rtt_ns);
    return;
  }
  if (Before(t.rcv_nxt, t.rcv_rtt_seq)) return;
  const uint64_t rtt_ns = std::max<uint64_t>(h.now_ns - t.rcv_rtt_begin_ns, 1);
  t.rcv_rtt_ns = t.rcv_rtt_ns == 0 ? rtt_ns : std::min(t.rcv_rtt_ns, rtt_ns);
  t.rcv_rtt_seq = t.rcv_adv;
  t.rcv_rtt_begin_ns = h.now_ns;
}

// Dynamic right-sizing, as Linux: twice what the program has read in a round trip, and more while
// that grows; never less again. The Host's RoomMax bounds it.
void TuneWindow(Tcb& t, Host& h) {
  uint64_t rtt_ns = t.rcv_rtt_ns;
  const uint64_t srtt_ns = Srtt(t.rtt);
  if (rtt_ns == 0 || (srtt_ns != 0 && srtt_ns < rtt_ns)) rtt_ns = srtt_ns;
  if (rtt_ns == 0 || h.now_ns - t.rcv_space_ns < rtt_ns) return;
  if (h.sysctls().tcp_moderate_rcvbuf == 0) return;
  const uint32_t room_max = h.RoomMax(t);
  const uint32_t unread = room_max - std::min(h.Room(t), room_max);
  const Seq read = t.rcv_nxt - unread;
  const int32_t taken = read - t.rcv_space_seq;
  t.rcv_space_ns = h.now_ns;
  t.rcv_space_seq = read;
  if (taken <= 0 || static_cast<uint32_t>(taken) <= t.rcv_space_bytes) return;
  const uint64_t bytes = static_cast<uint32_t>(taken), last = t.rcv_space_bytes;
  uint64_t window = 2 * bytes + 16ull * t.rcv_mss;
  if (last != 0) window += 2 * (window * (bytes - last) / last);
  t.rcv_space_bytes = static_cast<uint32_t>(taken);
  const auto limit = static_cast<uint32_t>(std::min<uint64_t>({window, kWindowMax, LimitMost(h)}));
  t.rcv_limit = std::max(t.rcv_limit, limit);
}

}  // namespace postern::tcp
