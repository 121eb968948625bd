// SPDX-License-Identifier: Apache-2.0
// emit.cc - segments as they leave: acknowledgement, window, options, urgent pointer, ECN.
//
// Nothing is changed in the Tcb when the wire has no room (Transmit says no).
//
// A step has one time, and may send many segments: old ones after new ones, if it takes many
// acknowledgements at once. RACK has to know which went first (RFC 8985, 6.1 goes by the sequence
// number where times are equal, which is right only for those that are sent once). So the stamp of
// a segment is a nanosecond more than that of the one before, at least, and its TSval is of that.
#include "tcp/machine.h"

namespace postern::tcp {
namespace {

//= rfc7323#3.2
//# Once TSopt has been successfully negotiated, that is both <SYN> and <SYN,ACK> contain TSopt, the
//# TSopt MUST be sent in every non-<RST> segment for the duration of the connection
void Options(Tcb& t, SegmentOut& out, const Host& h) {
  FillTimestamps(t, out, h);
  if (Has(t, kDsackOut) && h.sysctls().tcp_dsack == 0) t.flags &= ~kDsackOut;
  if (!Has(t, kSackOk) || (t.sack_out_count == 0 && !Has(t, kDsackOut))) return;
  // Blocks take room of the payload's: a segment with data has as many as fit beside it.
  uint32_t blocks = Has(t, kTimestamps) ? 3 : 4;
  const uint32_t free_bytes = t.mss_bytes - std::min(out.bytes, t.mss_bytes);
  while (out.bytes != 0 && blocks != 0 && 4 + 8 * blocks > free_bytes) blocks--;
  FillSack(t, out.options, blocks);
}

// RFC 9293, 3.8.5 and RFC 6093: the pointer names the byte behind the urgent one, as Linux does by
// default. As long as it is ahead, each segment says so.
void UrgentPointer(const Tcb& t, SegmentOut& out) {
  if (!Has(t, kUrgentOut) || !Before(out.seq, t.snd_up)) return;
  const uint32_t ahead = static_cast<uint32_t>(t.snd_up - out.seq);
  out.flags |= kUrg;
  out.urgent = static_cast<uint16_t>(std::min(ahead, 0xffffu));
}

bool Emit(Tcb& t, SegmentOut& out, Host& h, uint32_t segments = 1) {
  const uint32_t window = OfferWindow(t, h);
  out.ack = t.rcv_nxt;
  out.window = static_cast<uint16_t>(window >> t.rcv_wscale);
  out.flags |= kAck;
  // RFC 3168, 6.1.3: in each, until a CWR comes.
  if (Has(t, kEcnEcho)) out.flags |= kEce;
  Options(t, out, h);
  UrgentPointer(t, out);
  if (!h.Transmit(t, out)) return false;
  t.rcv_adv = t.rcv_nxt + window;
  t.segments_out += segments;
  if (out.options.sack_count != 0) t.flags &= ~kDsackOut;  // else there was no room for it
  AckSent(t);
  return true;
}

}  // namespace

void FillTimestamps(const Tcb& t, SegmentOut& out, const Host& h) {
  if (!Has(t, kTimestamps)) return;
  out.options.has_timestamps = true;
  out.options.ts_value = TimestampNow(t, h);
  out.options.ts_echo = t.ts_recent;
}

void AckSent(Tcb& t) {
  t.flags &= ~(kAckNow | kAckDelayed | kAckHeld);
  t.last_ack_sent = t.rcv_nxt;
  t.ack_deadline_ns = 0;
  t.unacked_bytes = 0;
  if (t.quick_acks != 0 && --t.quick_acks == 0) t.ato_ns = kDelayedAckMinNs;
}

// `flags`: CWR, PSH. What has to be said of `seg` itself is added here. `count`: of a row, whose
// first one `seg` is.
bool EmitData(Tcb& t, const TxSeg& seg, uint8_t flags, Ecn ecn, Host& h, uint32_t count) {
  SegmentOut out;
  out.seq = seg.seq;
  out.from = seg.from;
  out.bytes = seg.bytes * count;
  out.size = count > 1 ? seg.bytes : 0;
  out.flags = flags;
  out.ecn = ecn;
  if ((seg.flags & kTxFin) != 0) out.flags |= kFin;
  if ((seg.flags & kTxPsh) != 0) out.flags |= kPsh;
  const uint64_t before_ns = t.sent_ns;
  t.sent_ns = std::max(h.now_ns, before_ns + 1);
  if (!Emit(t, out, h, count)) {
    t.sent_ns = before_ns;
    return false;
  }
  t.sent_ns += count - 1;
  t.data_segments_out += count;
  t.bytes_sent += out.bytes;
  return true;
}

bool EmitAck(Tcb& t, Host& h) {
  SegmentOut out;
  out.seq = t.snd_nxt;
  return Emit(t, out, h);
}

//= rfc9293#3.8.4
//# Such a segment generally contains SEG.SEQ = SND.NXT-1
bool EmitProbe(Tcb& t, Host& h) {
  SegmentOut out;
  out.seq = t.snd_una - 1;
  return Emit(t, out, h);
}

}  // namespace postern::tcp
