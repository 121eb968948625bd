// SPDX-License-Identifier: Apache-2.0
// newdata.cc - what may be sent for the first time: the peer's window, congestion window, Nagle,
// cork, pacing, and how the stream is cut into segments.
#include <initializer_list>

#include "tcp/machine.h"

namespace postern::tcp {
namespace {

// PSH, be there more or not.
enum class Push : uint8_t {
  kIfLast,
  kNow,    // not if it is sent again
  kAlways  // ... and then, too
};

// The next segment as the program's stream would have it, whatever forbids to send it.
struct Piece {
  uint32_t bytes = 0;
  bool last = false;    // the program has written no more
  bool fin = false;     // ... and will not
  bool record = false;  // a record ends with it (MSG_EOR)
  Push push = Push::kIfLast;
  bool empty() const { return bytes == 0 && !fin; }
};

// What a record ends in goes out by itself, and, as with Linux, need not wait if there is more.
Piece EndAtRecord(const Tcb& t, Piece p) {
  const uint32_t bytes = static_cast<uint32_t>(t.record_end[0] - t.snd_nxt);
  if (bytes > p.bytes) return p;
  if (bytes < p.bytes) p.last = p.fin = false;
  p.bytes = bytes;
  p.record = true;
  p.push = Push::kAlways;
  return p;
}

void RecordSent(Tcb& t) {
  t.record_ends--;
  for (uint32_t i = 0; i < t.record_ends; i++) t.record_end[i] = t.record_end[i + 1];
  if (t.record_ends == 0) t.flags &= ~kRecordOut;
}

Piece NextPiece(Tcb& t, uint32_t mss, Host& h) {
  Piece p;
  const State s = StateOf(t);
  if (s != State::kEstablished && s != State::kCloseWait) return p;
  uint32_t there = h.Available(t, t.snd_cursor, mss + 1);
  p.last = there <= mss;
  if (p.last && h.Ended(t)) {
    // The program writes while we look: what there is counts after it has said that it is all.
    there = h.Available(t, t.snd_cursor, mss + 1);
    p.last = there <= mss;
    p.fin = p.last;
  }
  p.bytes = std::min(there, mss);
  if (Has(t, kRecordOut)) [[unlikely]]
    return EndAtRecord(t, p);
  return p;
}

uint32_t WindowRoom(const Tcb& t) {
  const int32_t room = t.snd_una + t.snd_wnd - t.snd_nxt;
  return room > 0 ? static_cast<uint32_t>(room) : 0;
}

//= rfc9293#3.7.4
//# If there is unacknowledged data (i.e., SND.NXT > SND.UNA), then the sending TCP endpoint buffers
//# all user data [...] until the outstanding data has been acknowledged or until the TCP endpoint
//# can send a full-sized segment
// Minshall's variant, as Linux: only a small segment under way holds the next small one back.
// MSG_MORE is a cork for as long as the peer has not said anything since (Linux: tcp_push()).
Blocked Hold(Tcb& t, const Piece& p, Host& h) {
  if (Has(t, kUrgentOut) || Has(t, kFlush)) return Blocked::kNothing;
  if (HasSetting(t, kSetCork)) return Blocked::kCork;
  if (Has(t, kMoreOut) && !Has(t, kIncoming) && h.MoreFollows(t, InFlight(t) + p.bytes))
      [[unlikely]]
    return Blocked::kCork;
  if (HasSetting(t, kSetNoDelay) || InFlight(t) == 0) return Blocked::kNothing;
  const bool small_under_way = After(t.snd_sml, t.snd_una) && AtOrBefore(t.snd_sml, t.snd_nxt);
  return small_under_way ? Blocked::kNagle : Blocked::kNothing;
}

Blocked MaySendPiece(Tcb& t, Piece& p, uint32_t mss, Host& h) {
  const uint32_t room = WindowRoom(t);
  if (p.bytes > room || (p.bytes == 0 && room == 0)) return Blocked::kWindow;
  if (p.fin && p.bytes == room) p.fin = false;  // it follows when there is room for its number
  if (p.bytes < mss && !p.fin && (!p.record || p.last)) {
    const Blocked hold = Hold(t, p, h);
    if (hold != Blocked::kNothing) return hold;
  }
  const uint32_t pipe = PipeBytes(t);
  const bool fin_alone = p.fin && p.bytes == 0;  // Linux is not strict about the last FIN
  if (pipe != 0 && !fin_alone && CongestionRoom(t.cc, pipe) < p.bytes) return Blocked::kCwnd;
  if (p.bytes != 0 && t.pace_next_ns > h.now_ns + kPaceSlackNs) return Blocked::kPace;
  return Blocked::kNothing;
}

// Linux's ping-pong mode: a program that answers carries our acknowledgements.
void NoteAnswers(Tcb& t, uint32_t segments, const Host& h) {
  if (Has(t, kPingPong) || t.bytes_received == 0 || h.now_ns - t.last_data_ns >= t.ato_ns) return;
  t.answers += segments;
  if (t.answers >= h.sysctls().tcp_pingpong_thresh) t.flags |= kPingPong;
}

Blocked SendPiece(Tcb& t, const Piece& p, uint32_t mss, Host& h) {
  const uint32_t idx = t.tx_count < kTxSegsMax ? h.TakeTxSeg() : kNone;
  if (idx == kNone) return Blocked::kStarved;
  TxSeg& seg = h.TxSegAt(idx);
  seg = TxSeg{};
  seg.from = t.snd_cursor;
  seg.seq = t.snd_nxt;
  seg.bytes = p.bytes;
  if (p.fin) seg.flags |= kTxFin;
  //= rfc9293#3.9.1.2
  //# it MUST set the PSH bit in the last buffered segment (i.e., when there is no more queued data
  //# to be sent)
  // Not of what was written with MSG_MORE (Linux: tcp_push()).
  const bool more = Has(t, kMoreOut) && h.MoreFollows(t, InFlight(t) + p.bytes);
  if ((p.last && p.bytes != 0 && !more) || p.push == Push::kAlways) seg.flags |= kTxPsh;
  if (p.record) seg.flags |= kTxRecord;
  uint8_t flags = p.push != Push::kIfLast ? kPsh : 0;
  //= rfc3168#6.1.2
  //# the TCP sender sets the CWR flag in the TCP header of the first new data packet sent after the
  //# window reduction
  if (Has(t, kEcnCwr) && p.bytes != 0) flags |= kCwr;
  const Ecn ecn = Has(t, kEcnOk) && p.bytes != 0 ? Ecn::kEct0 : Ecn::kNotEct;
  if (!EmitData(t, seg, flags, ecn, h)) {
    h.GiveTxSeg(idx);
    return Blocked::kWire;
  }
  if ((flags & kCwr) != 0) t.flags &= ~kEcnCwr;
  seg.sent_ns = seg.first_ns = t.sent_ns;
  if (t.tx_head == kNone) t.stalled_ns = 0;  // what went before was about something else
  TxAppend(t, idx, h);
  t.snd_nxt = EndOf(seg);
  if (p.bytes != 0) t.snd_cursor = h.Skip(t, t.snd_cursor, p.bytes);
  if (p.record) RecordSent(t);
  if (p.bytes < mss) t.snd_sml = t.snd_nxt;
  t.cork_deadline_ns = 0;
  if (p.fin) {
    t.record_ends = 0;  // of what the program has marked, and then not written
    t.flags = (t.flags & ~kRecordOut) | kFinSent;
    SetState(t, StateOf(t) == State::kCloseWait ? State::kLastAck : State::kFinWait1);
  }
  if (p.bytes != 0) NoteAnswers(t, 1, h);
  return Blocked::kNothing;
}

// Linux hands several segments to its card in one packet, and sets PSH on the last one of each, so
// that a receiver that gathers segments passes them on (__tcp_transmit_skb()). A packet is about a
// millisecond of the flow, or more where a round trip is short (tcp_tso_autosize()), but half of
// the congestion window at most.
struct Burst {
  uint32_t segments = 0, left_bytes = 0;
};
constexpr uint32_t kBurstMax = 65536 - 100;  // GSO_LEGACY_MAX_SIZE less headers
constexpr uint32_t kBurstLeast = 2;          // tcp_min_tso_segs

void BeginBurst(const Tcb& t, uint32_t mss, Burst& burst, const Host& h) {
  uint64_t bytes = CongestionPacingRate(t.cc, Srtt(t.rtt), PaceRatiosOf(h)) >> 10;
  const uint64_t min_ns = MinRtt(t.rtt, h.now_ns);
  const uint64_t steps = min_ns / 512'000;  // tcp_tso_rtt_log
  if (steps < 32) bytes += kBurstMax >> steps;
  bytes = std::max<uint64_t>(std::min<uint64_t>(bytes, kBurstMax), kBurstLeast * mss);
  burst.left_bytes =
      static_cast<uint32_t>(std::min<uint64_t>(bytes, std::max(t.cc.cwnd_bytes / 2, mss)));
  burst.segments = 0;
}

// Whether no full segment more can go with the `bytes` that are about to.
bool EndsBurst(const Tcb& t, uint32_t bytes, uint32_t mss, const Burst& burst) {
  return burst.left_bytes < mss || WindowRoom(t) < bytes + mss ||
         CongestionRoom(t.cc, PipeBytes(t) + bytes) < mss;
}

// `p` may go, and there is more behind it. Whether it is the last one of several.
void PushBurst(const Tcb& t, Piece& p, uint32_t mss, Burst& burst, const Host& h) {
  if (burst.left_bytes < mss) BeginBurst(t, mss, burst, h);
  burst.segments++;
  burst.left_bytes -= std::min(burst.left_bytes, p.bytes);
  const bool last = EndsBurst(t, p.bytes, mss, burst);
  if (last && burst.segments > 1 && p.push == Push::kIfLast) p.push = Push::kNow;
}

// What a segment of a row can't say by itself: where it ends, and that only it says so.
bool MaySendRow(const Tcb& t) {
  constexpr uint64_t kAlone = kUrgentOut | kMoreOut | kRecordOut | kEcnCwr | kDsackOut;
  return !Has(t, kAlone) && t.sack_out_count == 0 && t.settings.max_pacing_rate == 0 &&
         !HasSetting(t, kSetPacing) && static_cast<Recovery>(t.recovery) == Recovery::kOpen;
}

// How many full segments may go at once of which `p` is the first: as if each had been asked for
// (MaySendPiece), up to the end of the burst. There is something behind each of them.
uint32_t RowLength(Tcb& t, const Piece& p, uint32_t mss, const Burst& burst, Host& h) {
  if (h.row_max() <= 1 || p.bytes != mss || p.push != Push::kIfLast || !MaySendRow(t)) return 1;
  const uint32_t spare = kTxSegsMax - std::min(t.tx_count, kTxSegsMax);
  uint32_t most = std::min({h.row_max(), burst.left_bytes / mss + 1, WindowRoom(t) / mss, spare});
  most = std::min(most, std::max(CongestionRoom(t.cc, PipeBytes(t)) / mss, 1u));
  if (most <= 1) return 1;
  const uint32_t there = h.Available(t, t.snd_cursor, most * mss + 1);
  if (!MaySendRow(t)) return 1;  // a mark, which has come with what is behind `p`
  return there > mss ? (there - 1) / mss : 1;
}

// In one step of the Host's; PushBurst() has counted the first one. False: it is not possible now,
// and nothing has happened.
bool SendRow(Tcb& t, uint32_t count, uint32_t mss, Burst& burst, Host& h) {
  const Burst rest = {burst.segments + count - 1, burst.left_bytes - (count - 1) * mss};
  const uint8_t flags = EndsBurst(t, count * mss, mss, rest) ? kPsh : 0;
  uint32_t idx[kRowMax];
  for (uint32_t i = 0; i < count; i++) {
    idx[i] = h.TakeTxSeg();
    if (idx[i] != kNone) continue;
    while (i != 0) h.GiveTxSeg(idx[--i]);
    return false;
  }
  TxSeg one = {};
  one.from = t.snd_cursor;
  one.seq = t.snd_nxt;
  one.bytes = mss;
  if (!EmitData(t, one, flags, Has(t, kEcnOk) ? Ecn::kEct0 : Ecn::kNotEct, h, count)) {
    for (uint32_t i = 0; i < count; i++) h.GiveTxSeg(idx[i]);
    return false;
  }
  if (t.tx_head == kNone) t.stalled_ns = 0;
  for (uint32_t i = 0; i < count; i++) {
    one.sent_ns = one.first_ns = t.sent_ns - (count - 1 - i);
    h.TxSegAt(idx[i]) = one;
    TxAppend(t, idx[i], h);
    one.from = h.Skip(t, one.from, mss);
    one.seq += mss;
  }
  t.snd_nxt = one.seq;
  t.snd_cursor = one.from;
  t.cork_deadline_ns = 0;
  NoteAnswers(t, count, h);
  burst = rest;
  return true;
}

void NoteBlocked(Tcb& t, Blocked why, Host& h) {
  t.blocked = static_cast<uint32_t>(why);
  if (why == Blocked::kPace) {
    t.flags |= kPaceWait;
  } else if (why == Blocked::kStarved) {
    t.flags |= kStarved;
    t.retry_deadline_ns = h.now_ns + kRetryNs;
  } else if (why == Blocked::kCork && t.cork_deadline_ns == 0 && t.tx_head == kNone) {
    t.cork_deadline_ns = h.now_ns + std::max(t.rtt.rto_ns, kRtoMinNs);  // as Linux
  }
}

}  // namespace

// RFC 9293, 3.8.6.2.1. A peer whose window was never large gets segments of half of it (Linux), so
// that Fs * Max(SND.WND) of the third condition is always reached by a full segment.
uint32_t SegmentMax(const Tcb& t) {
  const uint32_t window = t.snd_wnd_max;
  const uint32_t bound = window > kMssDefault ? window / 2 : window;
  return bound != 0 && t.mss_bytes > bound ? std::max(bound, kMssMin) : t.mss_bytes;
}

void Pace(Tcb& t, uint32_t bytes, Host& h) {
  const uint64_t limit = t.settings.max_pacing_rate;
  if (limit == 0 && !HasSetting(t, kSetPacing)) return;
  uint64_t rate =
      HasSetting(t, kSetPacing) ? CongestionPacingRate(t.cc, Srtt(t.rtt), PaceRatiosOf(h)) : 0;
  if (limit != 0 && (rate == 0 || limit < rate)) rate = limit;
  if (rate == 0) return;
  t.pace_next_ns = std::max(t.pace_next_ns, h.now_ns) + bytes * kSecond / rate;
}

uint32_t SendNew(Tcb& t, Host& h) {
  const uint32_t mss = SegmentMax(t);
  uint32_t sent = 0;
  Burst burst;
  Blocked why = Blocked::kNothing;
  for (;;) {
    Piece p = NextPiece(t, mss, h);
    if (p.empty()) break;
    const bool ends = p.fin;
    // RFC 5681, 4.1: the window is not valid any more after a pause.
    if (sent == 0 && t.tx_head == kNone && t.sent_ns != 0) {
      const uint64_t idle_ns = SinceNs(t.sent_ns, h);
      const bool keeps = idle_ns > t.rtt.rto_ns && h.sysctls().tcp_slow_start_after_idle == 0;
      CongestionOnIdle(t.cc, idle_ns, keeps ? UINT64_MAX : t.rtt.rto_ns);
    }
    why = MaySendPiece(t, p, mss, h);
    if (why != Blocked::kNothing) break;
    if (!p.last) [[unlikely]] {
      PushBurst(t, p, mss, burst, h);
      const uint32_t count = RowLength(t, p, mss, burst, h);
      if (count > 1 && SendRow(t, count, mss, burst, h)) {
        sent += count * mss;
        continue;
      }
    }
    why = SendPiece(t, p, mss, h);
    if (why != Blocked::kNothing) break;
    Pace(t, p.bytes, h);
    sent += p.bytes;
    if (p.last && p.fin == ends) break;  // what is written now calls Output()
  }
  if (why == Blocked::kNothing) t.flags &= ~kFlush;
  NoteBlocked(t, why, h);
  return sent;
}

bool SendNewProbe(Tcb& t, Host& h) {
  const uint32_t mss = SegmentMax(t);
  Piece p = NextPiece(t, mss, h);
  const uint32_t room = WindowRoom(t);
  if (p.empty() || p.bytes > room || room == 0) return false;
  if (p.bytes == room) p.fin = false;
  return SendPiece(t, p, mss, h) == Blocked::kNothing;
}

//= rfc9293#3.8.6.2.1
//# (4) or if the override timeout occurs.
bool SendIntoWindow(Tcb& t, Host& h) {
  const uint32_t mss = SegmentMax(t);
  const uint32_t room = WindowRoom(t);
  Piece p = NextPiece(t, mss, h);
  if (room == 0 || p.empty()) return false;
  if (p.bytes >= room) {
    p.last = p.last && p.bytes == room;
    p.record = p.record && p.bytes == room;
    p.bytes = room;
    p.fin = false;
  }
  if (p.bytes != 0) p.push = Push::kAlways;  // as Linux: tcp_write_wakeup()
  return SendPiece(t, p, mss, h) == Blocked::kNothing;
}

// The window counts only where that of congestion control would have let more out, as in Linux.
void NoteLimit(Tcb& t, const Host& h) {
  const Blocked why = static_cast<Blocked>(t.blocked);
  HeldBy now = HeldBy::kIdle;
  if (MaySend(t) && (t.tx_head != kNone || why != Blocked::kNothing)) {
    const bool shut = why == Blocked::kWindow && CongestionRoom(t.cc, PipeBytes(t)) != 0;
    now = shut ? HeldBy::kWindow : HeldBy::kBusy;
  }
  if (static_cast<uint32_t>(now) == t.limit) return;
  if (t.limit < std::size(t.limit_ns)) t.limit_ns[t.limit] += h.now_ns - t.limit_since_ns;
  t.limit = static_cast<uint32_t>(now);
  t.limit_since_ns = h.now_ns;
}

bool HasUnsent(Tcb& t, Host& h) { return !NextPiece(t, 1, h).empty(); }

}  // namespace postern::tcp
