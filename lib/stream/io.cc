// SPDX-License-Identifier: Apache-2.0
// io.cc - send and receive on an accelerated connection.
//
// A send: copy into the ring, announce (a bit, and a doorbell only if the peer sleeps). A receive:
// copy out, return space when a good part of the ring has been taken. Neither makes a system call
// while both sides are awake. How they block is in block.h; the order of stores and looks in
// smcd/notify.h.
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"
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
#include "peer/kernel_half.h"
#include "stream/stream.h"
#include "stream/urgent.h"
#include "stream/zerocopy.h"

namespace postern {
namespace {

constexpr uint64_t kNoRingNs = 1'000'000;
constexpr size_t kRestMax = 64;  // pieces of a call that is continued in the kernel

// ---------------------------------------------------------------- receive

// A peek has stepped over the urgent byte, and nothing is behind it.
bool OnlyUrgentByte(const ConnEnd& e) {
  const MarkState mark = LookAtMark(e);
  if (!mark.at || !mark.hides) return false;
  Guard g(e.ep->rx.lock);
  return RingQueued(e, 2) <= 1;
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

// The peer wrote something that no honest peer writes: the connection ends, and says so.
long Violation(Family& fam, const ConnEnd& e) {
  Count(Stack(fam).hdr, kCounterPeerViolations);
  FetchOr(e.ep->rx.gate, PSTN_RXG_BROKEN);
  FetchOr(e.ctl().flags, PSTN_CF_RST);
  FetchOr(e.ep->flags, PSTN_EPF_HUNG | PSTN_EPF_SHUT_RD);
  AnnounceData(fam.bells, e);
  return -ECONNRESET;
}

// What a call comes to where that is not so: kPass if the kernel serves it.
long NotHere(const ConnEnd& e) {
  if (Which(*e.ep) != e.which) return -EBADF;
  return LoadAcquire(e.ep->state) == PSTN_EP_KERNEL ? kPass : -ECONNABORTED;  // [E1]
}

// A peer that has closed leaves no more unread than its rings hold. More of it is a circle of
// records, which would never end. Under rx.lock.
bool TooMuchAfterEnd(pstn_rx& rx, size_t bytes) PSTN_REQUIRES(rx.lock) {
  rx.after_end += bytes;
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
  Unlock(e.ep->rx.lock);
  if (r.status == ReadStatus::kViolation) return Violation(fam, e);
  return r.bytes != 0 || r.status == ReadStatus::kOk ? static_cast<long>(r.bytes) : -EAGAIN;
}

bool TooMuch(const iovec* iov, size_t count) {
  if (count > 1024) return true;
  size_t sum = 0;
  for (size_t i = 0; i < count; i++) {
    if (iov[i].iov_len > static_cast<size_t>(INT64_MAX) - sum) return true;
    sum += iov[i].iov_len;
  }
  return false;
}

bool BadBuffer(const iovec* iov, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (iov[i].iov_len != 0 && BadPointer(iov[i].iov_base)) return true;
  }
  return false;
}

// The kernel's TCP: 0 after shutdown(SHUT_RD), which works unconnected.
// As in the kernel: a blocking call waits for the end of the handshake first. kAgain: look again.
constexpr long kAgain = kPass - 1;
long AwaitConnected(Family& fam, pstn_ep& ep) {
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0) return -EAGAIN;
  const long r = kVerbs.wire_await_connected(fam, ep, Interrupts());
  return r == 0 ? kAgain : r == -EINPROGRESS ? -EAGAIN : r;
}

long RecvUnconnected(Family& fam, pstn_ep& ep, uint32_t state) {
  if (state == PSTN_EP_KERNEL) return kPass;
  if (state == PSTN_EP_CONNECTING) return AwaitConnected(fam, ep);
  if (LoadRelaxed(ep.error) != 0) return -static_cast<long>(Exchange(ep.error, 0u));
  return state == PSTN_EP_NEW && (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_RD) != 0 ? 0 : -ENOTCONN;
}

// recv() of no bytes waits for data all the same, and takes none. (read() of none does not come
// here.)
long RecvNothing(const Call& call, const ConnEnd& e, bool nonblock) {
  Deadline until = Deadline::AfterTimeout(LoadRelaxed(e.ep->rcvtimeo_ns));
  for (;;) {
    if (RingReadable(e)) return 0;
    long end = WhenEmpty(e);
    if (!Here(*e.ep)) return NotHere(e);
    if (end != -EAGAIN || nonblock) return end;
    Wait w = WaitFor(
        call, e.ctl().rx_wait, 1, [&] { return ReadableOrEnded(e); }, until, Restart::kIfAsked);
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
  if (!Resolve(fam, ep, e)) return -ECONNRESET;
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
  if (want == 0) return RecvNothing(call, e, nonblock);
  if (target != nullptr && BadBuffer(iov, count)) {
    long r =
        RecvNothing(call, e, nonblock);  // the kernel looks at the buffer when there is data for it
    return r == 0 && RingReadable(e) ? -EFAULT : r;
  }
  size_t least = (flags & MSG_WAITALL) != 0 ? want : 1;
  const size_t lowat = LoadRelaxed(ep.rcvlowat);
  if (lowat > least) least = lowat < want ? lowat : want;
  Deadline until = Deadline::Never();
  bool timed = false;
  size_t done = 0;
  for (;;) {
    if (peek) to = IovCursor(iov, count), done = 0;
    long r = RecvOnce(fam, e, target, want - done, done == 0, mode);
    if (r == 0) return static_cast<long>(done);
    if (r > 0) done += static_cast<size_t>(r);
    if (peek && r > 0 && LookAtMark(e).before == done) return static_cast<long>(done);
    if (r == kPass && done != 0 && !peek) return RecvRest(call, to, done, mode);
    if (done >= least || (r < 0 && r != -EAGAIN)) return done != 0 ? static_cast<long>(done) : r;
    long end = WhenEmpty(e);
    if (!Here(ep)) continue;
    if (end != -EAGAIN) {
      if (done != 0 && end < 0)
        StoreRelaxed(ep.error, static_cast<uint32_t>(-end));  // for the next call
      return done != 0 ? static_cast<long>(done) : end;
    }
    if (nonblock) return done != 0 ? static_cast<long>(done) : -EAGAIN;
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
    Wait w = WaitFor(call, e.ctl().rx_wait, 1, ready, until,
                     done == 0 ? Restart::kIfAsked : Restart::kNever);
    if (w == Wait::kReady || !Here(ep)) continue;
    if (done != 0) return static_cast<long>(done);
    return WaitFailed(w);
  }
}

// ---------------------------------------------------------------- send
namespace {

// 0: go on; else what the call returns. `swallow` is set when the data would go nowhere.
long CheckSend(Family& fam, const ConnEnd& e, size_t want, bool& swallow) {
  uint32_t own = LoadRelaxed(e.ep->flags);
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
  if ((own & (PSTN_EPF_SHUT_WR | PSTN_EPF_HUNG)) != 0 || (peer & PSTN_CF_RST) != 0) {
    int error = TakeError(e, peer);
    return error != 0 ? -error : -EPIPE;
  }
  // The peer reads no more. With TCP the first write goes out and is answered by a RST, which ends
  // a peer that is still there, too.
  if ((peer & (PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) != 0 && want != 0) {
    swallow = !BeforeShutPeer(fam, e, peer);
    StoreRelaxed(e.ep->error, swallow ? static_cast<uint32_t>(EPIPE) : 0u);
    FetchOr(e.ep->flags, PSTN_EPF_HUNG);
    FetchOr(e.ep->rx.gate, PSTN_RXG_RESET);  // a RST that still comes finds nothing to end
    if ((peer & PSTN_CF_CLOSED) == 0) {
      FetchOr(e.ctl().flags, PSTN_CF_RST);
      AnnounceData(fam.bells, e);
      AnnounceSpace(fam.bells, e);
    }
    AnnounceLocal(fam.bells, e);
    if (!swallow) return -EPIPE;
  }
  return 0;
}

// A send took a ring, another ring, or none because none was free.
void NoteRing(Family& fam, const ConnEnd& e, uint64_t before, uint64_t after) {
  Count(Stack(fam).hdr, after == 0    ? kCounterRingExhausted
                        : before == 0 ? kCounterRingAttached
                                      : kCounterRingGrown);
  if (before == 0) GiveBackSome(fam, e);
}

// What is sent with MSG_OOB: its last byte is the urgent one.
struct Urgent {
  const iovec* iov;  // null: nothing is urgent
  size_t bytes;
};

// Nothing was sent: the endpoint is not connected here any more, or another thread has shut it down
// for writing.
constexpr size_t kMoved = ~size_t{0}, kShut = ~size_t{1};

size_t SendOnce(Family& fam, const ConnEnd& e, IovCursor& from, Growth growth,
                const Urgent& urgent) {
  Lock(e.ep->tx.lock);
  if (!StillHere(e)) {  // as in RecvOnce
    Unlock(e.ep->tx.lock);
    return kMoved;
  }
  // shutdown() sets it under this lock, with the FIN: what was written behind that would be lost.
  if ((LoadRelaxed(e.ep->flags) & PSTN_EPF_SHUT_WR) != 0) [[unlikely]] {
    Unlock(e.ep->tx.lock);
    return kShut;
  }
  uint64_t before = e.ep->tx.ring;
  uint64_t mark_before = 0;
  if (urgent.iov != nullptr) [[unlikely]] {  // first the mark, or the byte is read as any other
    mark_before = LoadRelaxed(e.ctl().urgent);
    MarkUrgent(e, urgent.iov, urgent.bytes - from.left(), from.left());
  }
  size_t n = growth == Growth::kNow ? RingWrite(e, from, LimitsOf(fam, *e.ep), growth)
                                    : RingWrite(e, from, fam.limits);
  if (urgent.iov != nullptr && from.left() != 0) [[unlikely]] {  // no more may follow
    if (from.left() == urgent.bytes) {
      StoreRelease(e.ctl().urgent, mark_before);  // [R4]
    } else {
      MarkUrgent(e, urgent.iov, urgent.bytes - from.left(), 0);
    }
  }
  uint64_t after = e.ep->tx.ring;
  Unlock(e.ep->tx.lock);
  // The peer that has asked to be told may be the engine: what can be sent goes out at once.
  if (n != 0 && AnnounceUnlocked(fam.bells, e)) WireWrote(fam);
  if (before != after || after == 0) [[unlikely]]
    NoteRing(fam, e, before, after);
  return n;
}

// A send() that has begun here goes on in the kernel.
long SendRest(const Call& call, IovCursor& from, size_t done, int flags) {
  iovec rest[kRestMax];
  msghdr m = {};
  m.msg_iov = rest;
  m.msg_iovlen = from.Rest(rest, kRestMax);
  const ByNumber asks(call);
  long r = sys::Call(SYS_sendmsg, call.fd(), &m, static_cast<long>(flags | MSG_NOSIGNAL));
  return static_cast<long>(done) + (r > 0 ? r : 0);
}

}  // namespace

long StreamSend(Family& fam, Call& call, const iovec* iov, size_t count, int flags, size_t ahead) {
  pstn_ep& ep = *call.ep();
  if ((flags & MSG_ZEROCOPY) != 0) [[unlikely]]
    return SendZerocopy(fam, call, iov, count, flags);
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  if (state != PSTN_EP_ESTABLISHED) {
    if (state == PSTN_EP_NEW && (flags & MSG_FASTOPEN) != 0)
      // [E1]
      (void)LeaveUnconnected(fam, call.fd(), ep, kReasonFastOpen), state = LoadAcquire(ep.state);
    if (state == PSTN_EP_KERNEL) return kPass;
    if (state == PSTN_EP_CONNECTING) {
      const long r = (flags & MSG_DONTWAIT) != 0 ? -EAGAIN : AwaitConnected(fam, ep);
      return r == kAgain ? StreamSend(fam, call, iov, count, flags, ahead) : r;
    }
    return LoadRelaxed(ep.error) != 0 ? -static_cast<long>(Exchange(ep.error, 0u)) : -EPIPE;
  }
  ConnEnd e;
  if (!Resolve(fam, ep, e)) return -ECONNRESET;
  if ((flags & MSG_FASTOPEN) != 0) [[unlikely]]
    return -EISCONN;
  if (TooMuch(iov, count)) return -EINVAL;
  IovCursor from(iov, count);
  from.ahead = ahead;
  NoteNews(fam.bells);
  const size_t want = from.left();
  const bool bad = want != 0 && BadBuffer(iov, count);
  const Urgent urgent = {(flags & MSG_OOB) != 0 ? iov : nullptr, want};
  const bool nonblock =
      (flags & MSG_DONTWAIT) != 0 || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0;
  Deadline until = Deadline::Never();
  bool timed = false;
  for (;;) {
    bool swallow = false;
    long stop = CheckSend(fam, e, bad ? 0 : want, swallow);
    if (!Here(ep)) stop = 0, swallow = false;  // what it saw may not have been ours
    if (swallow) {
      if (urgent.iov != nullptr) {  // the mark outruns the reset
        Guard g(e.ep->tx.lock);
        MarkUrgent(e, iov, 0, want);
      }
      return static_cast<long>(want);
    }
    size_t done = want - from.left();
    if (stop != 0 && done != 0) {
      if (stop != -EPIPE) StoreRelaxed(ep.error, static_cast<uint32_t>(-stop));  // the next call's
      return static_cast<long>(done);
    }
    if (stop != 0) return stop;
    if (want == 0) return 0;
    if (bad) return -EFAULT;
    size_t sent = SendOnce(fam, e, from, Growth::kWhenUseful, urgent);
    if (sent == kMoved) {
      if (LoadAcquire(ep.state) != PSTN_EP_KERNEL)  // [E1]
        return done != 0 ? static_cast<long>(done) : -EPIPE;
      return done != 0 ? SendRest(call, from, done, flags) : kPass;
    }
    if (sent == kShut) continue;  // CheckSend says so
    done = want - from.left();
    if (from.left() == 0) return static_cast<long>(want);
    if (nonblock) {
      FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
      FullFence();  // [F1] against ReturnSpace
      if (SendOnce(fam, e, from, Growth::kNow, urgent) == 0)
        return done != 0 ? static_cast<long>(done) : -EAGAIN;
      continue;
    }
    if (!timed) until = Deadline::AfterTimeout(LoadRelaxed(ep.sndtimeo_ns));
    timed = true;
    Wait w = WaitFor(
        call, e.ctl().tx_wait, PSTN_TXW_FUTEX, [&] { return WritableOrEnded(e); }, until,
        done == 0 ? Restart::kIfAsked : Restart::kNever,
        [&] { return SendOnce(fam, e, from, Growth::kNow, urgent) != 0; });
    if (LoadRelaxed(ep.tx.ring) == 0)
      sys::Nap(kNoRingNs);  // none is free: all are in use by others
    if (w == Wait::kReady) continue;
    done = want - from.left();
    if (done != 0) return static_cast<long>(done);
    return WaitFailed(w);
  }
}

}  // namespace postern
