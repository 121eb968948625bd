// SPDX-License-Identifier: Apache-2.0
// machine.h - what the files of lib/tcp tell each other; only they and their tests include it.
//
// One step of the machine is: an entry of tcp.h, which changes the Tcb by what came; then Send(),
// which says what may and must be said; then SetTimers(). Functions here do one part each and leave
// sending to Send(), so that an answer carries the acknowledgement.
#pragma once
#include <algorithm>
#include <cstdint>

#include "tcp/congestion/congestion.h"
#include "tcp/host.h"
#include "tcp/tcb.h"
#include "tcp/tcp.h"

namespace postern::tcp {

inline constexpr uint64_t kMs = 1'000'000, kSecond = 1'000'000'000;

// ---- constants that are Linux's
inline constexpr uint64_t kDelayedAckMinNs = 40 * kMs;
inline constexpr uint64_t kDelayedAckMaxNs = 200 * kMs;
inline constexpr uint32_t kQuickAcksMax = 16;
inline constexpr uint32_t kOrphanRetries = 8;  // tcp_orphan_retries = 0
inline constexpr uint32_t kMssMin = 48;        // TCP_MIN_SND_MSS
inline constexpr uint32_t kMssDefault = 536;   // RFC 9293, 3.7.1
inline constexpr uint64_t kTimeWaitNs = 60 * kSecond;
inline constexpr uint64_t kRetryNs = 10 * kMs;       // a TxSeg may be free again
inline constexpr uint64_t kTickNs = 4 * kMs;         // where HZ is 250
inline constexpr uint64_t kSynSoonNs = 2 * kTickNs;  // TCP_TIMEOUT_MIN
inline constexpr uint32_t kDupAcksAtOnce = 3;   // TCP_FASTRETRANS_THRESH: then SACKs are compressed
inline constexpr uint32_t kBlocksExpected = 2;  // TCP_SACK_BLOCKS_EXPECTED
inline constexpr uint32_t kThinSegments = 4, kThinRetries = 6;
inline constexpr uint32_t kSackWalkMax = 1024;  // steps in the chain for one acknowledgement
inline constexpr uint32_t kWindowMax = 1u << 30;
inline constexpr uint64_t kStampsNs = kTxSegsMax;  // how far sent_ns may be ahead of the clock
inline constexpr uint64_t kPaceSlackNs = 1 * kMs;  // so much may be sent at once

inline bool Has(const Tcb& t, uint64_t flag) { return (t.flags & flag) != 0; }
inline bool HasSetting(const Tcb& t, uint32_t flag) { return (t.settings.flags & flag) != 0; }
// Options of a SYN that both the host and the connection's settings allow.
inline bool UsesTimestamps(const Tcb& t, const Host& h) {
  return h.sysctls().tcp_timestamps != 0 && !HasSetting(t, kSetNoTimestamps);
}
// What a segment of the peer's carries at most, as Linux's advmss: options are taken off.
inline uint32_t AdvertisedMss(const Tcb& t) {
  uint32_t mss = t.mss_receive;
  if (t.settings.maxseg != 0) mss = std::min(mss, t.settings.maxseg);
  return mss - (Has(t, kTimestamps) ? std::min(mss, 12u) : 0);
}
inline bool UsesSack(const Tcb& t, const Host& h) {
  return h.sysctls().tcp_sack != 0 && !HasSetting(t, kSetNoSack);
}
inline bool UsesWindowScale(const Tcb& t, const Host& h) {
  return h.sysctls().tcp_window_scaling != 0 && !HasSetting(t, kSetNoWindowScale);
}
inline PaceRatios PaceRatiosOf(const Host& h) {
  return {h.sysctls().tcp_pacing_ss_ratio, h.sysctls().tcp_pacing_ca_ratio};
}
// What a window is at first, and may become, as Linux: half of the buffer, whose other half is for
// its bookkeeping.
inline uint32_t FirstLimit(const Host& h) { return h.sysctls().tcp_rmem_default / 2; }
inline uint32_t LimitMost(const Host& h) { return std::max(h.sysctls().tcp_rmem_max / 2, 1u); }
inline uint32_t InFlight(const Tcb& t) { return static_cast<uint32_t>(t.snd_nxt - t.snd_una); }
// RFC 7323, 5.4: a millisecond, as Linux. sent_ns may be ahead of the clock (emit.cc).
inline uint32_t TimestampNow(const Tcb& t, const Host& h) {
  return static_cast<uint32_t>(std::max(h.now_ns, t.sent_ns) / kMs) + t.ts_offset;
}
inline uint64_t SinceNs(uint64_t sent_ns, const Host& h) {
  return h.now_ns > sent_ns ? h.now_ns - sent_ns : 1;
}
inline uint32_t SequenceLength(const SegmentIn& s) {
  return s.bytes + ((s.flags & kSyn) != 0 ? 1 : 0) + ((s.flags & kFin) != 0 ? 1 : 0);
}
// ESTABLISHED and the states after it in which both sides know each other's sequence numbers.
inline bool IsSynchronized(const Tcb& t) {
  const State s = StateOf(t);
  return s != State::kClosed && s != State::kSynSent && s != State::kSynReceived;
}
// Whether the program's data may still be sent (and be sent again).
inline bool MaySend(const Tcb& t) {
  const State s = StateOf(t);
  return s == State::kEstablished || s == State::kCloseWait || s == State::kFinWait1 ||
         s == State::kClosing || s == State::kLastAck;
}

// What an acknowledgement has brought.
struct AckNews {
  Seq prior_una;
  uint32_t acked_bytes = 0;   // of the sequence space, cumulatively
  uint32_t sacked_bytes = 0;  // newly
  uint64_t rtt_ns = 0;        // 0: none; of the oldest of those that were sent once
  uint64_t sack_rtt_ns = 0;
  uint64_t sent_again_ns = 0;     // when the first of those that were sent again last was
  uint32_t stream_bytes = 0;      // of acked_bytes, those of the program's stream
  bool fin = false;               // ours is acknowledged
  bool retransmitted = false;     // one of those acknowledged cumulatively was sent more than once
  bool original_arrived = false;  // after the time-out: one that was never sent again
  bool dsack = false;
  SackBlock dsack_block;
  bool duplicate = false;  // RFC 5681, 2
  bool ece = false;
  uint32_t known_bytes = 0;  // of acked_bytes, those that had been SACKed before
};

// ---- state.cc: the table of RFC 9293, 3.3.2, and its end
void SetState(Tcb& t, State to);
void EnterClosed(Tcb& t, Host& h);      // gives all back, reports kClosed
void Fail(Tcb& t, int error, Host& h);  // kReset with `error`, then closed; nothing is sent
void SendReset(Tcb& t, Host& h);        // RST, ACK of a synchronized connection
void EnterTimeWait(Tcb& t, Host& h);
// Our FIN is acknowledged: FIN_WAIT_1, CLOSING and LAST_ACK go on. False: CLOSED.
bool FinAcked(Tcb& t, Host& h);
// The peer's FIN is in order.
void FinArrived(Tcb& t, Host& h);

// ---- handshake.cc
void InitTcb(Tcb& t, const OpenArgs& args, Host& h);
void SendSyn(Tcb& t, Host& h);  // or SYN-ACK
void SynTimeout(Tcb& t, Host& h);
void InputSynSent(Tcb& t, const SegmentIn& s, Host& h);
// An acceptable ACK in SYN_RECEIVED. False: it is to be dropped.
bool CompleteHandshake(Tcb& t, const SegmentIn& s, Host& h);
void BecomeEstablished(Tcb& t, Host& h);
void SetMss(Tcb& t, uint32_t mss_path);  // recomputes mss_bytes
// Names options of the peer's SYN that are in use from now on.
void TakeSynOptions(Tcb& t, const SegmentIn& s, const Host& h);

// ---- emit.cc: segments leave here
bool EmitData(Tcb& t, const TxSeg& seg, uint8_t flags, Ecn ecn, Host& h, uint32_t count = 1);
bool EmitAck(Tcb& t, Host& h);
bool EmitProbe(Tcb& t, Host& h);  // an old sequence number: the peer has to answer
void FillTimestamps(const Tcb& t, SegmentOut& out, const Host& h);  // if they were agreed
void AckSent(Tcb& t);  // an acknowledgement of all that came has left

// ---- output.cc
void Send(Tcb& t, Host& h);
void SendAckIfDue(Tcb& t, Host& h);
bool SendNewProbe(Tcb& t, Host& h);  // TLP: one segment of new data, beyond the window's limit
bool Retransmit(Tcb& t, uint32_t idx, Host& h);
// A byte or more of what does not fit into the window as a whole segment. False: there is none.
bool SendIntoWindow(Tcb& t, Host& h);
bool HasUnsent(Tcb& t, Host& h);
uint32_t SendNew(Tcb& t, Host& h);  // bytes
uint32_t SegmentMax(const Tcb& t);  // of the largest segment that may be made now
void Pace(Tcb& t, uint32_t bytes, Host& h);
void NoteLimit(Tcb& t, const Host& h);  // what Send() has left undone, and why

// ---- txqueue.cc: the chains of what is under way
void TxAppend(Tcb& t, uint32_t idx, Host& h);
void TxRemoveHead(Tcb& t, Host& h);
void TxTrimHead(Tcb& t, uint32_t bytes, Host& h);
bool TxSplit(Tcb& t, uint32_t idx, uint32_t bytes, Host& h);  // the first part keeps the index
// The one behind `idx` becomes a part of it: both wait to be sent again. False: it can't be.
bool TxMerge(Tcb& t, uint32_t idx, uint32_t bytes_max, Host& h);
void TxTouch(Tcb& t, uint32_t idx, Host& h);  // was sent just now: last in the chain of times
void TxMarkSacked(Tcb& t, uint32_t idx, Host& h);
void TxMarkLost(Tcb& t, uint32_t idx, Host& h);
void TxMarkAllLost(Tcb& t, Host& h);
void TxMarkRetransmitted(Tcb& t, uint32_t idx, Host& h);
void TxForgetSacks(Tcb& t, Host& h);
void TxForgetLosses(Tcb& t, Host& h);
void TxFreeAll(Tcb& t, Host& h);

// ---- ack.cc
enum class AckVerdict : uint8_t { kGoOn, kDrop };
AckVerdict TakeAck(Tcb& t, const SegmentIn& s, Host& h);
// PAWS (RFC 7323, 5.3). False: the segment is old.
bool TimestampOk(const Tcb& t, const SegmentIn& s, const Host& h);
void TakeTimestamp(Tcb& t, const SegmentIn& s, const Host& h);
void BeginTimestamps(Tcb& t, uint32_t ts_recent);  // of the peer's SYN
// Whether tcp_invalid_ratelimit has passed since the last answer of this kind; it begins anew then.
bool MayAnswerOld(Tcb& t, const Host& h);
// An ACK for a segment that is not acceptable; at most one in that time unless it brought data.
void AnswerUnacceptable(Tcb& t, const SegmentIn& s, Host& h);
// RFC 5961: the same, whatever it brought, and as often only as the Host allows to all.
void Challenge(Tcb& t, Host& h);

// ---- sack.cc
void TakeSack(Tcb& t, const SegmentIn& s, AckNews& news, Host& h);
void NewRenoDuplicate(Tcb& t);  // peers without SACK: one more segment has left the network

// ---- rack.cc
void RackArrived(Tcb& t, const TxSeg& seg, const SegmentIn& s, const Host& h);
void RackUpdateWindow(Tcb& t, const AckNews& news, const Host& h);
uint64_t RackDetectLoss(Tcb& t, Host& h);  // when to look again; 0: need not
bool TlpDeadline(const Tcb& t, Host& h, uint64_t& deadline_ns);
void TlpSend(Tcb& t, Host& h);
void TlpAck(Tcb& t, const SegmentIn& s, const AckNews& news);
void RackRecovered(Tcb& t);

// ---- recovery.cc
void Recover(Tcb& t, const SegmentIn& s, AckNews& news, Host& h);
void RtoTimeout(Tcb& t, Host& h);
void ReorderTimeout(Tcb& t, Host& h);

// ---- receive.cc, out_of_order.cc, window.cc
void TakeData(Tcb& t, const SegmentIn& s, Host& h);
void TakeUrgent(Tcb& t, const SegmentIn& s, Host& h);
void ScheduleAck(Tcb& t, const SegmentIn& s, Host& h);
void DelayAck(Tcb& t, const Host& h);  // it may ride on what the program writes
void AckEarly(Tcb& t, const Host& h);  // data beyond a hole: at once, or compressed
void RxInsert(Tcb& t, const SegmentIn& s, Seq seq, uint32_t off, uint32_t bytes, bool fin, Host& h);
// What has become in order is delivered. True: the peer's FIN is next.
bool RxDrain(Tcb& t, Host& h);
void RxFreeAll(Tcb& t, Host& h);
void NoteDuplicate(Tcb& t, Seq left, Seq right);  // DSACK
void FillSack(Tcb& t, SegmentOptions& o, uint32_t blocks_max);
void TrimSackOut(Tcb& t);               // rcv_nxt has moved
uint32_t OfferWindow(Tcb& t, Host& h);  // bytes, as the scale can express them
bool WindowHasOpened(Tcb& t, Host& h);  // the peer should be told
void TuneWindow(Tcb& t, Host& h);
void MeasureReceiver(Tcb& t, const SegmentIn& s, const Host& h);
uint32_t QuickAcks(const Tcb& t);

// ---- timers.cc
void SetTimers(Tcb& t, Host& h);
void RearmRto(Tcb& t, Host& h);  // after progress, and after sending when none was running
void ArmReorder(Tcb& t, uint64_t deadline_ns);
void StopRtx(Tcb& t);
void CountTimeout(Tcb& t, const Host& h);
void TimeoutsOver(Tcb& t, const Host& h);  // something new has arrived

// ---- pmtu.cc
void SuspectBlackHole(Tcb& t, Host& h);

}  // namespace postern::tcp
