// SPDX-License-Identifier: Apache-2.0
// tcp.h - the transmission control protocol of one connection (RFC 9293), without I/O.
//
// Every entry takes the Tcb, which lives in memory that processes share, and the Host. After each
// of them NextDeadline() says when Timer() wants to be called. None allocates, blocks or keeps a
// pointer. docs/protocols/tcp.md lists what is done of which RFC.
#pragma once
#include "tcp/host.h"
#include "tcp/tcb.h"

namespace postern::tcp {

// What the socket's options say (tcb.settings); changed between calls, followed by Output().
// See tcb.h.

struct OpenArgs {
  uint32_t mss_max;        // that the path allows us to send, headers taken off
  uint32_t mss_receive;    // what we announce
  Seq iss;                 // RFC 6528: made by the caller (isn.h)
  bool ecn;                // ask for it, or agree to it
  uint32_t ts_offset = 0;  // of our timestamps (isn.h)
};

// ---- opening
void Open(Tcb& tcb, const OpenArgs& args, Host& host);  // active: SYN_SENT
// A SYN for a listener: the Tcb becomes SYN_RECEIVED and answers.
void OpenPassive(Tcb& tcb, const OpenArgs& args, const SegmentIn& syn, Host& host);
// The third segment of a handshake of which nothing was kept (syn_cookie.h has decoded it).
struct CookieState;
void OpenFromCookie(Tcb& tcb, const OpenArgs& args, const CookieState& cookie, const SegmentIn& ack,
                    Host& host);

// ---- running
void Input(Tcb& tcb, const SegmentIn& segment, Host& host);
// Whether `segment` may be the first one of a run: it is what comes next, brings data and nothing
// else that has to be seen by itself.
bool MayRun(const Tcb& tcb, const SegmentIn& segment);
// Whether `segment`, of the same connection, may come behind a run whose first one has `size`
// bytes, and all together `run.bytes`. It is the last one if it is smaller, or has PSH.
bool Follows(const SegmentIn& run, uint32_t size, const SegmentIn& segment);
// The program has written, ended, read (the window may open), changed an option; or the wire has
// room again.
void Output(Tcb& tcb, Host& host);
void Timer(Tcb& tcb, Host& host);
// TCP_NODELAY was set, be it once more: what a cork holds goes out with the next Output().
void Flush(Tcb& tcb);
// MSG_OOB: the urgent byte is the last of the `bytes` that Begin() starts (RFC 6093).
void Urgent(Tcb& tcb, uint32_t bytes, Host& host);
// The same from within Host::Available(), which has found it.
void MarkUrgent(Tcb& tcb, uint32_t bytes);
// MSG_EOR: what is written behind the `bytes` that Begin() starts goes out in segments of its own.
// From within Host::Available(), or before Output().
void MarkRecord(Tcb& tcb, uint32_t bytes);
// TCP_QUICKACK, which Linux forgets again as soon as the program answers.
enum class AckMode : uint8_t { kDelayed, kQuick };
void SetAckMode(Tcb& tcb, AckMode mode, Host& host);
uint64_t NextDeadline(const Tcb& tcb);                 // UINT64_MAX: never
void PathMtu(Tcb& tcb, uint32_t mss_max, Host& host);  // ICMP has said so, and was checked
// An ICMP error about a segment of ours that began at `seq` (RFC 5927: only if it is under way).
void SoftError(Tcb& tcb, Seq seq, int error, bool hard, Host& host);

// ---- ending
void Closed(Tcb& tcb, Host& host);  // the program reads no more; what comes gets a RST
void Abort(Tcb& tcb, Host& host);   // RST, at once; reports kClosed

// A SYN for a connection in TIME_WAIT: whether a listener may have it (RFC 6191). The Tcb is then
// given up without a word (Forget), and the new connection's ISS has to be `iss` or later.
bool MayReuse(const Tcb& tcb, const SegmentIn& syn, Seq& iss);
// Gives back all that the connection holds of the Host's tables. CLOSED, nothing is sent or
// reported.
void Forget(Tcb& tcb, Host& host);
// A Tcb that may be half written, and whose chains name nothing any more. Of it remains what asks
// the peer for an answer at once, and again after one second and two; then it is CLOSED. No
// segment is for it any more, so an answer gets a RST that the peer believes. CLOSED at once if
// the peer knows of no connection.
void Strip(Tcb& tcb, uint64_t now_ns);

// What a listener makes of a segment that belongs to no connection.
enum class ForListener : uint8_t {
  kOpens,  // a SYN: OpenPassive()
  kReset,  // ResetFor(), if its ACK is no cookie
  kDrop,
};
ForListener AtListener(const SegmentIn& segment);

// The answer to a segment that belongs to no connection (RFC 9293, 3.10.7.1). False: none is due.
bool ResetFor(const SegmentIn& segment, SegmentOut& out);

}  // namespace postern::tcp
