// SPDX-License-Identifier: Apache-2.0
// tcb.h - the state of one connection (RFC 9293, 3.3.1), of a segment under way, and of one that
// came too early.
//
// All of it lives in memory that several processes map: fixed width, no pointers, no enums, and all
// bytes zero is a closed connection with default settings. Written under the lock of the Host that
// owns it, read by anyone (racy on purpose, for `ss`). Grouped so that a request and its response
// touch the first four lines, the first two of `cc`, and one TxSeg; names are those of the RFCs.
//
// Sequence space, what is under way (one TxSeg for each segment, chained in order of seq):
//
//        released | TxSeg TxSeg TxSeg TxSeg | not sent yet, in the Host's stream
//                 ^snd_una                  ^snd_nxt == snd_cursor
//
// and what came (one RxSeg for each segment beyond a hole):
//
//       delivered | hole | RxSeg RxSeg | hole | RxSeg |          |
//                 ^rcv_nxt                                       ^rcv_adv: promised to the peer
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tcp/congestion/congestion.h"
#include "tcp/congestion/rtt.h"
#include "tcp/segment/segment.h"
#include "tcp/segment/seq.h"

namespace postern::tcp {

inline constexpr uint32_t kNone = 0xffffffffu;  // no index; PSTN_NONE

// RFC 9293, 3.3.2. Numbers as in tcp_info, but for CLOSED, which is 7 there.
enum class State : uint32_t {
  kClosed = 0,
  kEstablished = 1,
  kSynSent = 2,
  kSynReceived = 3,
  kFinWait1 = 4,
  kFinWait2 = 5,
  kTimeWait = 6,
  kCloseWait = 8,
  kLastAck = 9,
  kClosing = 11,
};

// What congestion recovery is about (Linux's CA states; `TcpInfo` shows them by number).
enum class Recovery : uint32_t {
  kOpen = 0,      // nothing is amiss
  kDisorder = 1,  // something was selectively acknowledged: limited transmit
  kEcn = 2,       // the window is being reduced for ECN
  kFast = 3,      // fast recovery
  kLoss = 4,      // after a retransmission time-out
};

// Which of the timers that exclude each other `rtx_deadline_ns` is.
enum class Rtx : uint32_t { kIdle = 0, kRto = 1, kTlp = 2, kReorder = 3, kPersist = 4 };

// Why no more was sent.
enum class Blocked : uint32_t {
  kNothing = 0,  // all that there is has been sent
  kWindow = 1,   // the peer's
  kCwnd = 2,
  kNagle = 3,  // a partial segment waits for an acknowledgement
  kCork = 4,   // ... for the program
  kPace = 5,
  kStarved = 6,  // no TxSeg
  kWire = 7,     // Transmit() said no
};

// What has held the program's data back (tcp_info's busy_time and rwnd_limited).
enum class HeldBy : uint32_t { kIdle = 0, kBusy = 1, kWindow = 2 };

// What the program asks for by setsockopt. 0: the default, which is Linux's.
struct Settings {
  uint32_t flags;                 // kSet...
  uint32_t congestion;            // CongestionKind
  uint32_t keepalive_idle_s;      // 7200
  uint32_t keepalive_interval_s;  // 75
  uint32_t keepalive_probes;      // 9
  uint32_t user_timeout_ms;       // none: tcp_retries2's time
  uint32_t maxseg;                // TCP_MAXSEG: upper bound of both directions' MSS
  uint32_t syn_retries;           // 6, or 5 for SYN-ACKs
  uint32_t fin_wait2_s;           // TCP_LINGER2: 60; kNoFinWait2: none at all
  uint32_t defer_accept_s;        // a passive connection waits so long for its first data
  uint32_t window_clamp;          // TCP_WINDOW_CLAMP: upper bound of the window offered
  uint32_t notsent_lowat;         // the Host's: for writability
  uint64_t max_pacing_rate;       // bytes in a second
};
inline constexpr uint32_t kNoFinWait2 = 0xffffffffu;
inline constexpr uint32_t kSetNoDelay = 1u << 0, kSetCork = 1u << 1, kSetKeepalive = 1u << 2,
                          kSetNoTimestamps = 1u << 3, kSetNoSack = 1u << 4,
                          kSetNoWindowScale = 1u << 5,
                          kSetPacing = 1u << 6;  // at the congestion window's rate

// Tcb::flags
inline constexpr uint64_t kTimestamps = 1u << 0, kSackOk = 1u << 1, kWindowScale = 1u << 2,
                          kPassive = 1u << 3;    // came from a SYN of the peer's
inline constexpr uint64_t kFinSent = 1u << 4,    // our FIN lies before snd_nxt
    kFinReceived = 1u << 5,                      // the peer's lies before rcv_nxt
    kNoReader = 1u << 6;                         // Closed(): what comes is answered by a RST
inline constexpr uint64_t kSynUnsent = 1u << 7,  // the wire had no room for our SYN
    kSynAgain = 1u << 8,  // it was sent more than once: no round trip, a window of one segment
    kDeferred = 1u << 9;  // SYN_RECEIVED has its ACK, and waits for data (TCP_DEFER_ACCEPT)
inline constexpr uint64_t kAckNow = 1u << 10,  // an acknowledgement is due with the next Output
    kAckDelayed = 1u << 11,                    // ... or at ack_deadline_ns at the latest
    kPingPong = 1u << 12,                      // answers carry our acknowledgements: no quick ones
    kDsackOut = 1u << 13;  // `dsack` is to be reported with the next acknowledgement
inline constexpr uint64_t kUrgentIn = 1u << 14,  // rcv_up is ahead of rcv_nxt
    kUrgentOut = 1u << 15;                       // snd_up is ahead of snd_una
inline constexpr uint64_t kEcnAsked = 1u << 16,  // by our SYN
    kEcnOk = 1u << 17,
                          kEcnEcho = 1u << 18,  // we owe ECE until a CWR comes (RFC 3168, 6.1.3)
    kEcnCwr = 1u << 19;                         // the next new data carry CWR
inline constexpr uint64_t kMoreOut = 1u << 31,  // the program has written with MSG_MORE
    kIncoming = 1ull << 34;                     // this step is a segment's: MSG_MORE holds nothing
inline constexpr uint64_t kFlush = 1u << 20;    // a cork, or Nagle, holds nothing that is there
inline constexpr uint64_t kAckHeld = 1ull << 35,  // SACK compression: due at ack_deadline_ns
    kRecordOut = 1ull << 36;                      // record_end has some
inline constexpr uint64_t kFrto = 1u << 21,     // the time-out may have been for nothing (RFC 5682)
    kFrtoNew = 1u << 22,                        // ... and is tested with new data
    kUndo = 1u << 23,                           // undo_marker is valid
    kRetransStamp = 1u << 24,                   // retrans_stamp is valid
    kTlpOut = 1u << 25,                         // tlp_high_seq is valid
    kTlpRetransmit = 1u << 26,                  // the loss probe was old data
    kReordering = 1u << 27,                     // the network has reordered (RFC 8985, 6.2)
    kRackDsack = 1u << 28;                      // rack_dsack_round is valid
inline constexpr uint64_t kStarved = 1u << 29,  // no TxSeg was left: retry_deadline_ns
    kPaceWait = 1u << 30,                       // pace_next_ns holds data back
    kBackedOffMss = 1ull << 32,  // the MSS was lowered since segments vanish (RFC 4821)
    kRenegeWait = 1ull << 33;    // the time-out is for data that were SACKed and dropped

inline constexpr uint32_t kRxRangesMax = 4;     // of the scoreboards both ways
inline constexpr uint32_t kTxSegsMax = 4096;    // under way on one connection
inline constexpr uint32_t kRxSegsMax = 4096;    // kept out of order on one connection
inline constexpr uint32_t kRecordEndsMax = 16;  // of MSG_EOR, not sent yet

// A block that a SACK reported, and the TxSeg that its last byte lies in: where to go on looking.
struct SackMemory {
  Seq left, right;
  uint32_t tx_idx;
  uint32_t used;  // 0: nothing is remembered here
};

struct alignas(64) Tcb {
  // ---- line 0: each segment, either way
  uint64_t flags;
  uint32_t state;  // State
  Seq snd_una, snd_nxt;
  uint32_t snd_wnd;  // offered by the peer, from snd_una on
  Seq snd_wl1, snd_wl2;
  Seq rcv_nxt;
  Seq rcv_adv;        // right edge of the window that we have offered: never taken back
  Seq last_ack_sent;  // RFC 7323, 4.3
  uint32_t ts_recent;
  uint32_t ts_offset;         // added to the clock in TSval, new for each connection
  uint32_t mss_bytes;         // payload of a full segment: options are taken off
  uint32_t tx_head, tx_tail;  // TxSeg under way, in order of seq

  // ---- line 1: each segment with data
  Cursor snd_cursor;                    // where snd_nxt lies in the program's stream
  uint32_t tx_time_head, tx_time_tail;  // those neither SACKed nor lost, in order of sent_ns
  uint32_t recovery;                    // Recovery
  uint32_t tx_count;
  uint32_t sacked_bytes;            // selectively acknowledged
  uint32_t lost_bytes;              // taken for lost, not acknowledged
  uint32_t retrans_bytes;           // sent again, not acknowledged (RFC 6675's HighRxt, as a sum)
  Seq snd_sml;                      // behind our last segment that was not full (Nagle, Minshall)
  uint16_t snd_wscale, rcv_wscale;  // shifts: of what the peer offers, of what we offer
  uint32_t unacked_bytes;           // received since our last acknowledgement
  uint32_t rcv_mss;                 // size of the peer's segments, as far as can be guessed
  uint32_t quick_acks;              // so many may still be sent at once (Linux's quick-ack mode)

  // ---- line 2: timers; 0: not running
  uint64_t rtx_deadline_ns;    // one of Rtx
  uint64_t ack_deadline_ns;    // delayed acknowledgement
  uint64_t life_deadline_ns;   // keepalive; FIN_WAIT_2; TIME_WAIT; deferred accept
  uint64_t pace_next_ns;       // nothing new may be sent before; a deadline if kPaceWait
  uint64_t retry_deadline_ns;  // kStarved
  uint64_t received_ns;        // last segment of the peer's
  uint64_t sent_ns;            // our last data
  uint32_t rtx_kind;           // Rtx
  uint32_t ato_ns;             // how long an acknowledgement may wait

  // ---- line 3
  uint64_t ts_recent_ns;      // when ts_recent was taken (RFC 7323, 5.5)
  uint64_t last_data_ns;      // last data received: for delayed acknowledgements
  uint32_t rx_head, rx_tail;  // RxSeg, in order of seq
  uint32_t rx_count, rx_bytes;
  Seq rcv_up, snd_up;  // behind the urgent byte, either way (RFC 6093, as Linux)
  Seq iss, irs;
  uint32_t snd_wnd_max;  // RFC 9293, 3.8.6.2.1: Max(SND.WND)
  uint32_t mss_path;     // that the path takes, as PathMtu() and OpenArgs say; base header off
  uint32_t mss_peer;     // from the peer's SYN
  uint32_t mss_receive;  // in ours

  // ---- lines 4 and on: estimators and recovery
  Congestion cc;
  RttEstimator rtt;

  Seq recover;                  // RFC 6582, 6675: recovery ends when this is acknowledged
  Seq undo_marker;              // snd_una when the window was reduced; kUndo
  uint32_t undo_retrans_bytes;  // sent again since then, and no DSACK says for nothing
  uint32_t retrans_stamp;  // TSval of the first retransmission (Eifel, RFC 3522); kRetransStamp
  uint32_t tx_lost_head, tx_lost_tail;  // TxSeg to be sent again, chained like those of time
  uint32_t sacked_count;                // segments that sacked_bytes are
  uint32_t dup_acks;                    // in a row, for peers without SACK
  Seq high_sacked;        // behind the last byte that was SACKed; valid if sacked_bytes != 0
  uint32_t rx_lane_head;  // RxSeg, some of them, in order of seq
  SackMemory sack_memory[kRxRangesMax];

  // ---- RACK-TLP (RFC 8985); times of the clock are 0 when there is none
  uint64_t rack_sent_ns;  // RACK.xmit_ts
  uint64_t rack_rtt_ns;   // RACK.rtt
  Seq rack_end_seq;       // RACK.end_seq
  Seq rack_fack;          // RACK.fack
  Seq rack_dsack_round;   // RACK.dsack_round; kRackDsack
  uint32_t rack_reo_wnd_mult;
  uint32_t rack_reo_wnd_persist;
  Seq tlp_high_seq;  // TLP.end_seq; kTlpOut

  // ---- time-outs
  uint32_t backoff;           // doublings of the persist timer (those of the RTO: rtt.backoff)
  uint32_t rto_count;         // time-outs in a row without progress
  uint32_t probes_out;        // zero-window or keepalive probes without an answer
  uint64_t stalled_ns;        // since when retransmissions (or probes) have brought nothing; 0
  uint32_t soft_error;        // an ICMP error that explains a later time-out; 0
  uint64_t cork_deadline_ns;  // a partial segment is held back no longer than this; 0

  // ---- receiving
  uint32_t rcv_limit;        // the window is not opened further than this (autotuning)
  Seq rcv_space_seq;         // rcv_nxt when the present round of autotuning began
  uint32_t rcv_space_bytes;  // taken by the program in a round, the most so far
  uint32_t ts_floor;         // what is stamped before is old, not late (ack.cc)
  uint64_t rcv_space_ns;
  uint64_t rcv_rtt_ns;  // as the receiver sees it
  Seq rcv_rtt_seq;
  uint32_t rx_last_idx;    // RxSeg stored last: its block is reported first (RFC 2018, 4)
  uint32_t ts_floor_next;  // ts_recent when rcv_nxt was ts_floor_seq: the next ts_floor
  Seq ts_floor_seq;
  uint64_t rcv_rtt_begin_ns;
  SackBlock sack_out[kRxRangesMax];  // blocks that we report, the most recent first
  SackBlock dsack;
  uint32_t sack_out_count;
  uint32_t blocked;  // Blocked
  // SACK compression (out_of_order.cc): duplicates answered at once since rcv_nxt was so, then
  // acknowledgements held.
  Seq ack_dups_at;
  uint32_t ack_dups, acks_held;
  uint32_t answers;       // segments of ours that were answers, up to tcp_pingpong_thresh
  uint64_t challenge_ns;  // last answer to a segment out of the window (RFC 5961, 7)

  // ---- what TCP_INFO and the counters show
  uint64_t bytes_acked, bytes_received, bytes_sent, bytes_retrans;
  uint32_t segments_in, segments_out, data_segments_in, data_segments_out;
  uint32_t retransmits, dsack_dups, reorder_seen, out_of_order;
  uint64_t began_ns;
  uint64_t limit_ns[3];  // spent in each HeldBy; the present one up to limit_since_ns
  uint64_t limit_since_ns;
  uint32_t limit;       // HeldBy
  uint32_t reordering;  // segments that one was late by at most, and 3 at least
  uint32_t delivered;   // segments that have arrived, one way or the other
  uint32_t timeouts, timeout_runs;

  // ---- MSG_EOR: no segment goes on beyond one of these
  Seq record_end[kRecordEndsMax];
  uint32_t record_ends;
  uint64_t timeout_run_ns;   // when the present run of time-outs began
  uint64_t timeout_runs_ns;  // how long those before it have taken

  Settings settings;
};

// A segment that was sent and is not acknowledged.
struct TxSeg {
  Cursor from;        // its first byte in the program's stream
  uint64_t sent_ns;   // last transmission
  uint64_t first_ns;  // first one
  Seq seq;
  uint32_t bytes;  // payload; a FIN (kTxFin) takes one number more
  uint32_t flags;
  uint32_t tries;  // transmissions after the first
  uint32_t next, prev;
  uint32_t time_next, time_prev;  // kTxTimed, kTxToSend
};
inline constexpr uint32_t kTxFin = 1u << 0, kTxSacked = 1u << 1, kTxLost = 1u << 2,
                          kTxRetrans = 1u << 3,  // sent again since it was marked lost
    kTxEverRetrans = 1u << 4,                    // Karn
    kTxTimed = 1u << 5,                          // in the chain of times
    kTxToSend = 1u << 6,                         // in the chain of what is to be sent again
    kTxPsh = 1u << 7,                            // the program had written no more
    kTxPart = 1u << 8,                           // only its first mss_bytes were sent again
    kTxRecord = 1u << 9;                         // ends where a record does (MSG_EOR)
inline Seq EndOf(const TxSeg& s) { return s.seq + (s.bytes + ((s.flags & kTxFin) != 0 ? 1 : 0)); }

// A segment beyond a hole. The Host keeps the packet that it came in.
struct RxSeg {
  uint32_t packet;  // kNone: nothing but a FIN
  uint32_t off;     // of the first byte that counts, in the packet's payload as SegmentIn gave it
  Seq seq;
  uint32_t bytes;
  uint32_t flags;  // kRxFin, kRxLane
  uint32_t next, prev;
  uint32_t lane;  // the next one with kRxLane
};
inline constexpr uint32_t kRxFin = 1u << 0, kRxLane = 1u << 1;
inline Seq EndOf(const RxSeg& s) { return s.seq + (s.bytes + ((s.flags & kRxFin) != 0 ? 1 : 0)); }

static_assert(sizeof(TxSeg) == 64 && sizeof(RxSeg) == 32);
static_assert(offsetof(Tcb, snd_cursor) == 64 && offsetof(Tcb, rtx_deadline_ns) == 128 &&
              offsetof(Tcb, ts_recent_ns) == 192);
static_assert(std::is_standard_layout_v<Tcb> && std::is_trivially_copyable_v<Tcb>);

inline State StateOf(const Tcb& t) { return static_cast<State>(t.state); }
// Bytes under way, as RFC 6675 estimates them: what is neither known to have arrived nor lost, and
// what was sent again.
inline uint32_t PipeBytes(const Tcb& t) {
  return static_cast<uint32_t>(t.snd_nxt - t.snd_una) - t.sacked_bytes - t.lost_bytes +
         t.retrans_bytes;
}

}  // namespace postern::tcp
