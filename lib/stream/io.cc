// SPDX-License-Identifier: Apache-2.0
// io.cc - receive on an accelerated connection; io_send.cc is the other direction.
//
// A receive: copy out, return space when a good part of the ring has been taken. It makes no system
// call while both sides are awake. How it blocks is in block.h; the order of stores and looks in
// smcd/notify.h.
#include <cerrno>

#include "base/clock.h"
#include "base/log/trace.h"
#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/marks.h"
#include "event/block.h"
#include "event/spin.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/interrupts.h"
#include "family/turn.h"
#include "family/verbs.h"
#include "stream/io_checks.h"
#include "stream/now_pipe.h"
#include "stream/stream.h"
#include "stream/urgent.h"
#include "stream/zerocopy.h"

namespace postern {
namespace {

// A peek has stepped over the urgent byte, and nothing is behind it.
bool OnlyUrgentByte(const ConnEnd& e) {
  const MarkState mark = LookAtMark(e);
  if (!mark.at || !mark.hides) return false;
  Guard g(e.ep->rx.lock);
  return StillHere(e) && RingQueued(e, 2) <= 1;
}

// Another thread may be reading at the same time, or have had the connection end.
bool HasMoreThan(const ConnEnd& e, size_t bytes) {
  Guard g(e.ep->rx.lock);
  return StillHere(e) && RingQueued(e, bytes + 1) > bytes;
}

// What an empty ring means: -EAGAIN (just empty), 0 (end of stream) or the connection's error.
long WhenEmpty(const ConnEnd& e) {
  uint32_t flags = LoadAcquire(e.peer_ctl().flags);  // [C2]
  if ((flags & (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)) != 0) {
    if (RingReadable(e) && !OnlyUrgentByte(e)) return -EAGAIN;  // it came just before the end
    // Behind a FIN the kernel's recv() reports no error: that is left to write() and SO_ERROR.
    return (flags & PSTN_CF_FIN) != 0 ? 0 : -TakeError(e, flags);
  }
  if ((LoadRelaxed(e.ep->flags) & (PSTN_EPF_SHUT_RD | PSTN_EPF_HUNG)) != 0) return 0;
  return -EAGAIN;
}

// What the peer wrote can't be read: the connection ends, and says so.
long Break(Family& fam, const ConnEnd& e, Counter why) {
  Count(Stack(fam).hdr, why);
  FetchOr(e.ep->rx.gate, PSTN_RXG_BROKEN);
  FetchOr(e.ctl().flags, PSTN_CF_RST);
  FetchOr(e.ep->flags, PSTN_EPF_HUNG | PSTN_EPF_SHUT_RD);
  AnnounceData(fam.bells, e);
  return -ECONNRESET;
}

// The peer wrote something that no honest peer writes.
long Violation(Family& fam, const ConnEnd& e) { return Break(fam, e, kCounterPeerViolations); }

// The peer's ring can't be mapped: the limit of this process is the reason, and not the peer.
long NoMemory(Family& fam, const ConnEnd& e) {
  StoreRelaxed(e.ep->reason, kReasonNoMemory);
  return Break(fam, e, kCounterRingsUnmapped);
}

// A peer takes back data or an end of which a program has been told: a recv() that waits for them
// would wait for ever.
bool TakenBack(const ConnEnd& e) {
  const pstn_rx& rx = e.ep->rx;
  if ((LoadRelaxed(rx.gate) & PSTN_RXG_ENDED) == 0 && LoadRelaxed(rx.told) == 0) return false;
  Guard g(e.ep->rx.lock);
  if (!StillHere(e)) return false;
  return RingTakenBack(e) || ((LoadRelaxed(rx.gate) & PSTN_RXG_ENDED) != 0 && !PeerEnded(e));
}

// A peer that has closed leaves no more unread than its rings hold. More of it is a circle of
// records, which would never end. Under rx.lock.
bool TooMuchAfterEnd(pstn_rx& rx, size_t bytes) PSTN_REQUIRES(rx.lock) {
  rx.after_end += static_cast<uint32_t>(bytes);  // of a ring, and the next is past the limit
  return rx.after_end > uint64_t{2} * PSTN_RING2_BYTES;
}

// A reader that is as fast as its writer waits for each message where it will be written, and each
// then costs both of them the way of that line from core to core. So a dense stream, of several
// messages between two looks that find nothing, is let get ahead for as long as it stays dense:
// then each is busy with lines of its own. One that is sparse, or waits for answers, is not.
constexpr uint32_t kPauseMinNs = 256, kPauseMaxNs = 4096;
constexpr uint64_t kDenseNs = 128;  // from one message to the next, at most
constexpr uint32_t kDenseRun = 3;

void FoundEmpty(pstn_rx& rx) PSTN_REQUIRES(rx.lock) {
  const uint32_t run = rx.run, was = rx.pause_ns;
  rx.run = 0;
  const bool dense = run >= kDenseRun && run * kDenseNs >= was;
  uint32_t pause = !dense ? was / 2 : was == 0 ? kPauseMinNs : was * 2;
  if (pause < kPauseMinNs) pause = 0;
  StoreRelaxed(rx.pause_ns, pause < kPauseMaxNs ? pause : kPauseMaxNs);
}

void LetFill(Family& fam, const pstn_ep& ep) {
  const uint32_t pause = LoadRelaxed(ep.rx.pause_ns);
  if (pause == 0 || !SpinAllowed(fam)) return;
  for (const uint64_t start = MonotonicNs(); MonotonicNs() - start < pause;) CpuRelax();
}

// `to` null: counted only.
[[gnu::always_inline]] inline ReadResult ReadHere(Family& fam, const ConnEnd& e, IovCursor* to,
                                                  size_t want, bool first, ReadMode mode)
    PSTN_REQUIRES(e.ep->rx.lock) {
  AssertHeld(e.ep->rx.lock);
  const bool closed = (LoadAcquire(e.peer_ctl().flags) & PSTN_CF_CLOSED) != 0;  // [C2]
  ReadResult r;
  if (to == nullptr && mode == ReadMode::kPeek) {
    r = {RingQueued(e, want), ReadStatus::kOk};
    if (r.bytes > want) r.bytes = want;
    if (r.bytes == 0) r.status = ReadStatus::kEmpty;
  } else {
    r = LoadRelaxed(e.peer_ctl().urgent) == 0 ? RingRead(e, to, want, mode)
                                              : ReadToMark(e, to, want, first, mode);
  }
  if (r.status == ReadStatus::kEmpty) FoundEmpty(e.ep->rx);
  if (r.bytes != 0 && mode != ReadMode::kPeek) {
    e.ep->rx.run++;
    ReturnSpace(fam.bells, e);
    if (closed && TooMuchAfterEnd(e.ep->rx, r.bytes)) r.status = ReadStatus::kViolation;
  }
  return r;
}

// 0: go on.
long ReadFailed(Family& fam, const ConnEnd& e, ReadStatus status) {
  if (status == ReadStatus::kViolation) return Violation(fam, e);
  return status == ReadStatus::kNoMemory ? NoMemory(fam, e) : 0;
}

// 0: the urgent mark ends a read that has begun (`first` is false), or the peer has lied before.
long RecvOnce(Family& fam, const ConnEnd& e, IovCursor* to, size_t want, bool first,
              ReadMode mode) {
  NoteNews(fam.bells);
  Lock(e.ep->rx.lock);
  if (!StillHere(e)) {
    Unlock(e.ep->rx.lock);
    return NotHere(e);
  }
  if ((LoadRelaxed(e.ep->rx.gate) & PSTN_RXG_BROKEN) != 0) [[unlikely]] {
    Unlock(e.ep->rx.lock);
    return 0;
  }
  const ReadResult r = ReadHere(fam, e, to, want, first, mode);
  Unlock(e.ep->rx.lock);
  PSTN_TRACE2(received, e.ep, r.bytes);
  if (const long failed = ReadFailed(fam, e, r.status); failed != 0) return failed;
  if (r.bytes == 0 && to != nullptr && to->fault()) return -EFAULT;
  return r.bytes != 0 || r.status == ReadStatus::kOk ? static_cast<long>(r.bytes) : -EAGAIN;
}

// The kernel's TCP: 0 after shutdown(SHUT_RD), which works unconnected.
long RecvUnconnected(Family& fam, pstn_ep& ep, uint32_t state) {
  if (state == PSTN_EP_KERNEL) return kPass;
  if (state == PSTN_EP_CONNECTING) return AwaitConnected(fam, ep);
  if (state == PSTN_EP_LISTEN) return -ENOTCONN;  // an error stays for who asks for it
  if (LoadRelaxed(ep.error) != 0) return -static_cast<long>(Exchange(ep.error, 0u));
  return state == PSTN_EP_NEW && (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_RD) != 0 ? 0 : -ENOTCONN;
}

// recv() of no bytes waits for data all the same, and takes none. (read() of none does not come
// here.)
long RecvNothing(Family& fam, const Call& call, const ConnEnd& e, bool nonblock) {
  Deadline until = Deadline::AfterTimeout(LoadRelaxed(e.ep->rcvtimeo_ns));
  const uint32_t interrupts = t_interrupts;
  for (;;) {
    if (RingReadable(e)) return 0;
    long end = WhenEmpty(e);
    if (!Here(*e.ep)) return NotHere(e);
    if (end != -EAGAIN || nonblock) return end;
    if (TakenBack(e)) return Violation(fam, e);
    Wait w = WaitFor(
        call, ForData(e), [&] { return ReadableOrEnded(e); }, until, interrupts, Restart::kIfAsked);
    if (!Here(*e.ep)) return NotHere(e);
    if (w != Wait::kReady) return WaitFailed(w);
  }
}

// A recv() that waits for more (MSG_WAITALL) goes on in the kernel: the endpoint has changed hands.
long RecvRest(const Call& call, IovCursor& to, size_t done, ReadMode mode) {
  iovec rest[kRestMax];
  msghdr m = {};
  m.msg_iov = rest;
  m.msg_iovlen = to.Rest(rest, kRestMax);
  if (mode == ReadMode::kDiscard) return static_cast<long>(done);
  const ByNumber asks(call);
  long r = sys::Call(SYS_recvmsg, call.fd(), &m, static_cast<long>(MSG_WAITALL));
  return static_cast<long>(done) + (r > 0 ? r : 0);
}

}  // namespace

long StreamMove(Family& fam, const Call& call, uint8_t* bounce, size_t bytes, NowPipe& pipe) {
  ConnEnd e;
  if (!Resolve(fam, *call.ep(), e)) return -ECONNRESET;
  iovec iov = {bounce, bytes};
  IovCursor to(&iov, 1);
  NoteNews(fam.bells);
  ReadResult r = {0, ReadStatus::kEmpty};
  long wrote = 0;
  {
    Guard g(e.ep->rx.lock);
    if (!StillHere(e)) return NotHere(e);
    if ((LoadRelaxed(e.ep->rx.gate) & PSTN_RXG_BROKEN) != 0) return 0;
    if (!LookAtMark(e).at) r = ReadHere(fam, e, &to, bytes, true, ReadMode::kPeek);
    if (r.bytes != 0) wrote = pipe.Write(bounce, r.bytes);
    if (wrote > 0)
      r = ReadHere(fam, e, nullptr, static_cast<size_t>(wrote), true, ReadMode::kDiscard);
    // No honest peer changes what it has written.
    if (wrote > 0 && r.bytes != static_cast<size_t>(wrote)) r.status = ReadStatus::kViolation;
  }
  PSTN_TRACE2(received, e.ep, r.bytes);
  const long failed = ReadFailed(fam, e, r.status);
  if (wrote != 0) return wrote;
  return failed != 0 ? failed : kNothingThere;
}

long StreamRecv(Family& fam, Call& call, const iovec* iov, size_t count, int flags) {
  pstn_ep& ep = *call.ep();
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  if ((flags & MSG_ERRQUEUE) != 0) [[unlikely]]
    return RecvErrorQueue(ep, nullptr);
  if (state != PSTN_EP_ESTABLISHED) {
    long r = RecvUnconnected(fam, ep, state);
    if (r == kAgain) return StreamRecv(fam, call, iov, count, flags);
    return r != kPass && (flags & MSG_OOB) != 0 && state == PSTN_EP_NEW ? -EINVAL : r;
  }
  ConnEnd e;
  if (!ResolveMapped(fam, ep, e) && !ResolveUnmapped(fam, ep, e)) return -ECONNRESET;
  if ((flags & MSG_OOB) != 0) {
    if (!BadBuffer(iov, count)) return RecvUrgent(e, iov, count, flags);
    return LookAtMark(e).ready ? -EFAULT : -EINVAL;
  }
  if (TooMuch(iov, count)) return -EINVAL;
  IovCursor to(iov, count);
  const size_t want = to.left();
  const bool peek = (flags & MSG_PEEK) != 0;
  const ReadMode mode = peek                       ? ReadMode::kPeek
                        : (flags & MSG_TRUNC) != 0 ? ReadMode::kDiscard
                                                   : ReadMode::kTake;
  IovCursor* target = (flags & MSG_TRUNC) != 0 ? nullptr : &to;  // counted only
  const bool nonblock =
      (flags & MSG_DONTWAIT) != 0 || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0;
  if (want == 0) return RecvNothing(fam, call, e, nonblock);
  if (target != nullptr && BadStart(iov, count)) {
    long r = RecvNothing(fam, call, e,
                         nonblock);  // the kernel looks at the buffer when there is data for it
    return r == 0 && RingReadable(e) ? -EFAULT : r;
  }
  size_t least = (flags & MSG_WAITALL) != 0 ? want : 1;
  const size_t lowat = LoadRelaxed(ep.rcvlowat);
  if (lowat > least) least = lowat < want ? lowat : want;
  Deadline until = Deadline::Never();
  bool timed = false;
  const uint32_t interrupts = t_interrupts;
  size_t done = 0;
  for (;;) {
    if (peek) to = IovCursor(iov, count), done = 0;
    long r = RecvOnce(fam, e, target, want - done, done == 0, mode);
    if (r == 0) return static_cast<long>(done);
    if (r > 0) done += static_cast<size_t>(r);
    if (peek && r > 0 && LookAtMark(e).before == done) return static_cast<long>(done);
    if (r == kPass && done != 0 && !peek) return RecvRest(call, to, done, mode);
    if (done >= least || (r < 0 && r != -EAGAIN) || to.fault())
      return done != 0 ? static_cast<long>(done) : r;
    long end = WhenEmpty(e);
    if (!Here(ep)) continue;
    if (end != -EAGAIN) {
      if (done != 0 && end < 0)
        StoreRelaxed(ep.error, static_cast<uint32_t>(-end));  // for the next call
      return done != 0 ? static_cast<long>(done) : end;
    }
    if (nonblock) return done != 0 ? static_cast<long>(done) : -EAGAIN;
    if (TakenBack(e)) return done != 0 && !peek ? static_cast<long>(done) : Violation(fam, e);
    if (!timed) until = Deadline::AfterTimeout(LoadRelaxed(ep.rcvtimeo_ns));
    timed = true;
    const MarkState mark = peek ? LookAtMark(e) : MarkState{};
    // What a peek has seen, or steps over: it waits for more than that.
    size_t have = done + (mark.at && mark.hides ? 1 : 0);
    // Nothing follows what it has seen. (What it has seen is still there: WhenEmpty sees no end.)
    if (peek && done != 0 && PeerEnded(e) && !HasMoreThan(e, have)) return static_cast<long>(done);
    auto ready = [&] {
      if (have == 0 || !peek) return ReadableOrEnded(e);
      return PeerEnded(e) || !Here(ep) || HasMoreThan(e, have);
    };
    LetFill(fam, ep);
    Wait w = WaitFor(call, ForData(e), ready, until, interrupts,
                     done == 0 ? Restart::kIfAsked : Restart::kNever);
    if (w == Wait::kReady || !Here(ep)) continue;
    if (done != 0) return static_cast<long>(done);
    return WaitFailed(w);
  }
}

}  // namespace postern
