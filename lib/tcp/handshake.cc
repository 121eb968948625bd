// SPDX-License-Identifier: Apache-2.0
// handshake.cc - how a connection begins: active, passive, both at once (RFC 9293, 3.5).
#include <cerrno>

#include "tcp/machine.h"
#include "tcp/segment/syn_cookie.h"

namespace postern::tcp {
namespace {

//= rfc7323#2.3
//# The maximum scale exponent is limited to 14 for a maximum permissible receive window size of 1
// GiB
uint16_t ChooseScale(uint32_t room_max) {
  uint16_t shift = 0;
  while (shift < 14 && (room_max >> shift) > 0xffff) shift++;
  return shift;
}

// What the SYN itself can say: it is never scaled (RFC 7323, 2.2).
// As Linux: half of the default buffer, which is what its bookkeeping takes the other half of, in
// whole segments.
uint32_t FirstWindow(Tcb& t, Host& h) {
  const uint32_t most = h.sysctls().tcp_workaround_signed_windows != 0 ? 0x7fffu : 0xffffu;
  uint32_t room = std::min(h.Room(t), FirstLimit(h));
  if (t.settings.window_clamp != 0) room = std::min(room, t.settings.window_clamp);
  const uint32_t mss = AdvertisedMss(t);
  if (mss != 0 && room > mss) room -= room % mss;
  return std::min(room, most);
}

//= rfc6298#5
//# (5.7) If the timer expires awaiting the ACK of a SYN segment [...]
void HandshakeRoundTrip(Tcb& t, const SegmentIn& s, Host& h) {
  if (t.sent_ns == 0) return;  // a cookie: the time is not known
  if (!Has(t, kSynAgain)) {
    RttSample(t.rtt, h.now_ns, h.now_ns - t.sent_ns, t.snd_una, t.snd_nxt);
  } else if (Has(t, kTimestamps) && s.options.has_timestamps && s.options.ts_echo != 0) {
    const uint32_t ms = TimestampNow(t, h) - s.options.ts_echo;
    if (ms < 0x80000000u) RttSample(t.rtt, h.now_ns, std::max(ms, 1u) * kMs, t.snd_una, t.snd_nxt);
  } else {
    RttNoHandshakeSample(t.rtt);
  }
}

}  // namespace

void InitTcb(Tcb& t, const OpenArgs& args, Host& h) {
  const Sysctls& host = h.sysctls();
  const Settings settings = t.settings;
  t = Tcb{};
  t.settings = settings;
  t.tx_head = t.tx_tail = t.tx_time_head = t.tx_time_tail = kNone;
  t.tx_lost_head = t.tx_lost_tail = kNone;
  t.rx_head = t.rx_tail = t.rx_last_idx = t.rx_lane_head = kNone;
  t.iss = t.snd_una = t.snd_nxt = t.snd_sml = t.snd_up = args.iss;
  t.recover = t.undo_marker = t.high_sacked = t.rack_fack = args.iss;
  t.mss_receive = args.mss_receive;
  t.mss_path = args.mss_max;
  t.mss_peer = kMssDefault;
  t.ts_offset = args.ts_offset;
  t.began_ns = t.received_ns = h.now_ns;
  t.rcv_limit = std::min(0xffffu, FirstLimit(h));
  t.ato_ns = 0;
  t.rack_reo_wnd_mult = 1;
  t.reordering = host.tcp_reordering;
  RttInit(t.rtt);
  RttSetBounds(t.rtt, host.tcp_rto_min_us * 1000ull, host.tcp_rto_max_ms * kMs);
  RttSetMinWindow(t.rtt, host.tcp_min_rtt_wlen * kSecond);
}

//= rfc9293#3.7.1
//# The maximum size of a segment that a TCP endpoint really sends, the "effective send MSS", MUST
// be # the smaller [...] of the send MSS [...] and the largest transmission size permitted by the
// IP # layer
// mss_path has the fixed headers off already; timestamps are in each segment (RFC 6691, 2).
void SetMss(Tcb& t, uint32_t mss_path) {
  t.mss_path = mss_path;
  uint32_t mss = std::min(mss_path, t.mss_peer);
  if (t.settings.maxseg != 0) mss = std::min(mss, t.settings.maxseg);
  if (Has(t, kTimestamps)) mss -= std::min(mss, 12u);
  t.mss_bytes = std::max(mss, kMssMin);
}

void TakeSynOptions(Tcb& t, const SegmentIn& s, const Host& h) {
  const SegmentOptions& o = s.options;
  //= rfc9293#3.7.1
  //# If an MSS Option is not received at connection setup, TCP implementations MUST assume a
  //# default send MSS of 536 (576 - 40) for IPv4
  t.mss_peer = o.mss != 0 ? o.mss : kMssDefault;
  t.flags &= ~(kTimestamps | kSackOk | kWindowScale);
  if (o.has_timestamps && UsesTimestamps(t, h)) {
    t.flags |= kTimestamps;
    BeginTimestamps(t, o.ts_value);
  }
  if (o.sack_permitted && UsesSack(t, h)) t.flags |= kSackOk;
  if (o.has_window_scale && UsesWindowScale(t, h)) {
    t.flags |= kWindowScale;
    //= rfc7323#2.3
    //# If a Window Scale option is received with a shift.cnt value larger than 14, the TCP SHOULD
    //# log the error but MUST use 14 instead of the specified value.
    t.snd_wscale = std::min<uint16_t>(o.window_scale, 14);
  } else {
    t.snd_wscale = t.rcv_wscale = 0;
  }
  t.irs = s.seq;
  const uint32_t window = static_cast<uint32_t>(t.rcv_adv - t.rcv_nxt);
  t.rcv_nxt = s.seq + 1;
  t.rcv_adv = t.rcv_nxt + window;
  t.rcv_up = t.rcv_space_seq = t.rcv_rtt_seq = t.last_ack_sent = t.rcv_nxt;
  SetMss(t, t.mss_path);
  // A guess until data come (Linux): small enough that the first segment counts as a full one.
  t.rcv_mss = std::clamp(std::min(t.mss_bytes, t.mss_receive), kMssMin, kMssDefault);
}

// SYN in SYN_SENT, SYN-ACK in SYN_RECEIVED.
void SendSyn(Tcb& t, Host& h) {
  const bool passive = StateOf(t) == State::kSynReceived;
  SegmentOut out;
  out.seq = t.iss;
  out.flags = kSyn;
  SegmentOptions& o = out.options;
  uint32_t mss = t.mss_receive;
  if (t.settings.maxseg != 0) mss = std::min(mss, t.settings.maxseg);
  o.mss = static_cast<uint16_t>(std::min(mss, 0xffffu));
  o.sack_permitted = passive ? Has(t, kSackOk) : UsesSack(t, h);
  o.has_window_scale = passive ? Has(t, kWindowScale) : UsesWindowScale(t, h);
  if (o.has_window_scale) o.window_scale = static_cast<uint8_t>(t.rcv_wscale);
  o.has_timestamps = passive ? Has(t, kTimestamps) : UsesTimestamps(t, h);
  if (o.has_timestamps) {
    o.ts_value = TimestampNow(t, h);
    o.ts_echo = t.ts_recent;
  }
  if (passive) {
    out.flags |= kAck;
    out.ack = t.rcv_nxt;
    if (Has(t, kEcnOk)) out.flags |= kEce;
  } else if (Has(t, kEcnAsked)) {
    out.flags |= kEce | kCwr;
  }
  const uint32_t window = static_cast<uint32_t>(t.rcv_adv - t.rcv_nxt);
  out.window = static_cast<uint16_t>(std::min(window, 0xffffu));
  if (!h.Transmit(t, out)) {
    t.flags |= kSynUnsent;
    return;
  }
  t.flags &= ~kSynUnsent;
  t.segments_out++;
  t.sent_ns = h.now_ns;
  if (passive) AckSent(t);
}

void Open(Tcb& t, const OpenArgs& args, Host& h) {
  InitTcb(t, args, h);
  SetState(t, State::kSynSent);
  if (args.ecn) t.flags |= kEcnAsked;
  t.rcv_wscale = UsesWindowScale(t, h) ? ChooseScale(h.RoomMax(t)) : 0;
  t.rcv_adv = t.rcv_nxt + FirstWindow(t, h);
  SetMss(t, t.mss_path);
  t.snd_nxt = t.iss + 1;
  SendSyn(t, h);
  SetTimers(t, h);
}

//= rfc9293#3.10.7.2
//# set RCV.NXT to SEG.SEQ+1, IRS is set to SEG.SEQ [...] ISS should be selected and a SYN segment
//# sent of the form: <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>
void OpenPassive(Tcb& t, const OpenArgs& args, const SegmentIn& syn, Host& h) {
  InitTcb(t, args, h);
  SetState(t, State::kSynReceived);
  t.flags |= kPassive;
  t.segments_in = 1;  // the SYN, as Linux
  t.rcv_wscale = ChooseScale(h.RoomMax(t));
  TakeSynOptions(t, syn, h);
  t.rcv_adv = t.rcv_nxt + FirstWindow(t, h);
  t.ts_recent_ns = h.now_ns;
  // RFC 3168, 6.1.1: an ECN-setup SYN has both flags.
  if (args.ecn && (syn.flags & (kEce | kCwr)) == (kEce | kCwr)) t.flags |= kEcnOk;
  t.snd_wnd = t.snd_wnd_max = syn.window;
  t.snd_wl1 = syn.seq;
  t.snd_nxt = t.iss + 1;
  SendSyn(t, h);
  SetTimers(t, h);
}

// Linux from 6.5 on repeats a SYN so often before the pauses grow (tcp_syn_linear_timeouts), and so
// much oftener in all; not SYN-ACKs.
void SynTimeout(Tcb& t, Host& h) {
  const bool active = StateOf(t) == State::kSynSent;
  const Sysctls& host = h.sysctls();
  const uint32_t linear = active ? host.tcp_syn_linear_timeouts : 0;
  uint32_t retries = active ? host.tcp_syn_retries : host.tcp_synack_retries;
  if (t.settings.syn_retries != 0) retries = t.settings.syn_retries;
  retries += linear;
  const uint64_t limit_ns = t.settings.user_timeout_ms * kMs;
  if (t.rto_count >= retries || (limit_ns != 0 && h.now_ns - t.began_ns >= limit_ns)) {
    Fail(t, t.soft_error != 0 ? static_cast<int>(t.soft_error) : ETIMEDOUT, h);
    return;
  }
  CountTimeout(t, h);
  t.flags |= kSynAgain;
  t.retransmits++;
  // RFC 3168, 6.1.1.1: no answer may mean that a router on the way does not like these flags.
  if (host.tcp_ecn_fallback != 0) t.flags &= ~kEcnAsked;
  if (t.rto_count > linear) RttBackOff(t.rtt);
  StopRtx(t);
  SendSyn(t, h);
}

void BecomeEstablished(Tcb& t, Host& h) {
  SetState(t, State::kEstablished);
  StopRtx(t);
  RttEndBackOff(t.rtt);
  CongestionInit(t.cc, static_cast<CongestionKind>(t.settings.congestion), t.mss_bytes);
  if (t.rto_count >= 2) CongestionHandshakeLost(t.cc);
  if (t.rto_count != 0) TimeoutsOver(t, h);
  t.delivered = 1;  // the SYN, as Linux counts
  t.stalled_ns = 0;
  t.soft_error = 0;
  t.life_deadline_ns = 0;
  t.flags &= ~kDeferred;
  t.snd_cursor = h.Begin(t);
  t.recover = t.iss;  // RFC 6582, 3.2, step 1
  t.rcv_space_ns = t.rcv_rtt_begin_ns = t.last_data_ns = h.now_ns;
  h.Report(t, Event::kConnected, 0);
}

// RFC 9293, 3.10.7.3.
void InputSynSent(Tcb& t, const SegmentIn& s, Host& h) {
  const bool has_ack = (s.flags & kAck) != 0;
  if (has_ack && (AtOrBefore(s.ack, t.iss) || After(s.ack, t.snd_nxt))) {
    SegmentOut reset;
    if (ResetFor(s, reset)) h.Transmit(t, reset);
    // The peer still has the last connection of these names, and our RST ends it: the SYN that it
    // took for one of that is sent again soon, once (Linux: tcp_rcv_synsent_state_process()).
    if (t.rto_count == 0) t.rtx_deadline_ns = h.now_ns + kSynSoonNs;
    return;
  }
  if ((s.flags & kRst) != 0) {
    if (has_ack) Fail(t, ECONNREFUSED, h);
    return;
  }
  if ((s.flags & kSyn) == 0) return;
  TakeSynOptions(t, s, h);
  t.ts_recent_ns = t.received_ns = h.now_ns;
  t.snd_wnd = t.snd_wnd_max = s.window;  // of a SYN: not scaled
  t.snd_wl1 = s.seq;
  if (!has_ack) {  // both at once: RFC 9293, 3.5, figure 7
    SetState(t, State::kSynReceived);
    t.flags &= ~kEcnAsked;
    StopRtx(t);
    SendSyn(t, h);
    return;
  }
  t.snd_una = t.snd_wl2 = s.ack;
  if (Has(t, kEcnAsked) && (s.flags & (kEce | kCwr)) == kEce) t.flags |= kEcnOk;
  HandshakeRoundTrip(t, s, h);
  t.flags |= kAckNow;
  BecomeEstablished(t, h);
  // What came with the SYN is not taken: the peer sends it again once it knows our window.
}

bool CompleteHandshake(Tcb& t, const SegmentIn& s, Host& h) {
  const bool bare = s.bytes == 0 && (s.flags & kFin) == 0;
  if (bare && Has(t, kPassive) && t.settings.defer_accept_s != 0) {
    const uint64_t until_ns = t.began_ns + t.settings.defer_accept_s * kSecond;
    if (h.now_ns < until_ns) {
      if (!Has(t, kDeferred)) HandshakeRoundTrip(t, s, h);
      t.flags |= kDeferred;
      t.life_deadline_ns = until_ns;
      StopRtx(t);
      return false;
    }
  }
  t.snd_una = s.ack;
  //= rfc9293#3.10.7.4
  //# SND.WND <- SEG.WND, SND.WL1 <- SEG.SEQ, SND.WL2 <- SEG.ACK
  t.snd_wnd = static_cast<uint32_t>(s.window) << t.snd_wscale;
  t.snd_wnd_max = std::max(t.snd_wnd_max, t.snd_wnd);
  t.snd_wl1 = s.seq;
  t.snd_wl2 = s.ack;
  // Of a deferred one: what the client took to write something is no round trip.
  if (!Has(t, kDeferred)) HandshakeRoundTrip(t, s, h);
  BecomeEstablished(t, h);
  return true;
}

void OpenFromCookie(Tcb& t, const OpenArgs& args, const CookieState& cookie, const SegmentIn& ack,
                    Host& h) {
  InitTcb(t, args, h);
  SetState(t, State::kSynReceived);
  t.flags |= kPassive | kSynAgain;  // when the SYN-ACK was sent is not known
  t.rcv_wscale = ChooseScale(h.RoomMax(t));
  t.segments_in = 1;
  SegmentIn syn;  // as it must have been
  syn.seq = cookie.irs;
  syn.options.mss = cookie.mss;
  syn.options.has_timestamps = cookie.has_timestamps;
  syn.options.ts_value = cookie.ts_recent;
  syn.options.sack_permitted = cookie.sack;
  syn.options.has_window_scale = cookie.has_window_scale;
  syn.options.window_scale = cookie.window_scale;
  t.iss = t.snd_una = t.snd_sml = t.snd_up = t.recover = t.rack_fack = cookie.iss;
  t.snd_nxt = t.iss + 1;
  TakeSynOptions(t, syn, h);
  t.rcv_adv = t.rcv_nxt + FirstWindow(t, h);
  t.ts_recent_ns = h.now_ns;
  if (cookie.ecn) t.flags |= kEcnOk;
  // Ours must not go back behind what the SYN-ACK said; the handshake's round trip is lost.
  if (Has(t, kTimestamps)) t.ts_offset += ack.options.ts_echo - TimestampNow(t, h);
  Input(t, ack, h);
}

}  // namespace postern::tcp
