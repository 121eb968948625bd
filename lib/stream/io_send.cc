// SPDX-License-Identifier: Apache-2.0
// io_send.cc - send on an accelerated connection.
//
// Copy into the ring, announce (a bit, and a doorbell only if the peer sleeps). No system call
// while both sides are awake. How it blocks is in block.h; the order of stores and looks in
// smcd/notify.h.
#include <cerrno>

#include "base/check.h"
#include "base/log/trace.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/marks.h"
#include "endpoint/places/places.h"
#include "event/block.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/interrupts.h"
#include "family/turn.h"
#include "family/verbs.h"
#include "peer/kernel_half.h"
#include "stream/corked.h"
#include "stream/io_checks.h"
#include "stream/now_pipe.h"
#include "stream/stream.h"
#include "stream/urgent.h"
#include "stream/zerocopy.h"

namespace postern {
namespace {

// Of what goes nowhere, as much as the kernel queues before it looks at the answer: whole segments,
// of which each is that much of its send buffer, until that is full, but 16 at most.
constexpr size_t kSegment = 32768, kOfSendBuffer = 33600, kSegmentsMost = 16;
size_t Swallowed(const pstn_ep& ep, size_t want) {
  const size_t budget = size_t{LoadRelaxed(ep.tx.budget)} * PSTN_REC_ALIGN;
  const size_t segments = budget / kOfSendBuffer + 1;
  const bool all = budget == 0 || segments > kSegmentsMost;
  const size_t most = (all ? kSegmentsMost : segments) * kSegment;
  return want < most ? want : most;
}

// The kernel takes these bytes over before it sends them nowhere.
bool FirstReadable(const iovec* iov, size_t count, size_t bytes) {
  for (size_t i = 0; i < count && bytes != 0; i++) {
    const size_t n = iov[i].iov_len < bytes ? iov[i].iov_len : bytes;
    if (n != 0 && !UserReadable(iov[i].iov_base, n)) return false;
    bytes -= n;
  }
  return true;
}

// What a call is to send.
struct Sending {
  const iovec* iov;
  size_t count, bytes;  // 0 bytes: nothing that could be sent
};

// 0: go on; else what the call returns. `swallow` is set when the data would go nowhere.
long CheckSend(Family& fam, const ConnEnd& e, const Sending& what, bool& swallow) {
  uint32_t own = LoadRelaxed(e.ep->flags);
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
  if ((own & (PSTN_EPF_SHUT_WR | PSTN_EPF_HUNG)) != 0 || (peer & PSTN_CF_RST) != 0) {
    int error = TakeError(e, peer);
    return error != 0 ? -error : -EPIPE;
  }
  // The peer reads no more. With TCP the first write goes out and is answered by a RST, which ends
  // a peer that is still there, too.
  if ((peer & (PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) != 0 && what.bytes != 0) {
    if (!FirstReadable(what.iov, what.count, Swallowed(*e.ep, what.bytes))) return -EFAULT;
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
  PSTN_TRACE3(ring, e.ep, before, after);
  Count(Stack(fam).hdr, after == 0    ? kCounterRingExhausted
                        : before == 0 ? kCounterRingAttached
                                      : kCounterRingGrown);
  if (before == 0) GiveBackSome(fam, e);
}

// What is sent with MSG_OOB: its last byte is the urgent one. Or with MSG_MORE, or MSG_EOR.
struct Marks {
  const iovec* iov;  // null: nothing is urgent
  size_t bytes;
  bool more, record;
  Corked corked;
};

// After Unlock() of what was written. If the peer is the engine, what can be sent goes out at once;
// the keeper does it where this thread has other events at hand.
void AnnounceSent(Family& fam, const ConnEnd& e) {
  if (LoadRelaxed(fam.wire_on) == 0 || !PeerIsEngine(e)) [[likely]] {
    (void)AnnounceUnlocked(fam.bells, e);
    if (LoadRelaxed(e.peer_ctl().held) != 0) [[unlikely]]
      EndPeersHold(fam.bells, e);
    return;
  }
  PostEngine(fam.bells, e);
  if (!WireWrote(fam)) RingEngine(fam.bells, e);
}

// Nothing was sent: the endpoint is not connected here any more, or another thread has shut it down
// for writing.
constexpr size_t kMoved = ~size_t{0}, kShut = ~size_t{1};

// Where the bytes come from that are to be sent: of a pipe are read no more than the ring takes.
struct FromPipe {
  NowPipe& pipe;
  iovec bounce;
  long got = kNothingThere;
};

// False: there is nothing to be sent (`got` says why).
bool Fetch(Family& fam, const ConnEnd& e, FromPipe& source, IovCursor& to)
    PSTN_REQUIRES(e.ep->tx.lock) {
  AssertHeld(e.ep->tx.lock);
  const size_t room = RingMakeRoom(e, LimitsOf(fam, e), source.bounce.iov_len);
  if (room != 0) source.got = source.pipe.Read(source.bounce.iov_base, room);
  if (source.got <= 0) return false;
  source.bounce.iov_len = static_cast<size_t>(source.got);
  to = IovCursor(&source.bounce, 1);
  to.promised = true;
  return true;
}

// Inlined for the first try of each send().
[[gnu::always_inline]] inline size_t SendHere(Family& fam, const ConnEnd& e, IovCursor& from,
                                              Growth growth, const Marks& marks, FromPipe* source) {
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
  if (source != nullptr && !Fetch(fam, e, *source, from)) {
    const uint64_t after = e.ep->tx.ring;
    Unlock(e.ep->tx.lock);
    if (before != after || after == 0) NoteRing(fam, e, before, after);
    return 0;
  }
  uint64_t mark_before = 0, more_before = 0;
  if (marks.iov != nullptr) [[unlikely]] {  // first the mark, or the byte is read as any other
    mark_before = LoadRelaxed(e.ctl().urgent);
    MarkUrgent(e, mark_before, marks.iov, marks.bytes - from.left(), from.left());
  }
  const bool corks = (marks.corked != Corked::kNo || e.ep->tx.holds != 0) && !PeerIsEngine(e);
  const bool ends = (marks.more || marks.record) && PeerIsEngine(e);
  uint32_t told = Told::kData;
  if (ends) [[unlikely]] {  // as the other mark: before its bytes
    more_before = LoadRelaxed(e.ctl().more);
    StoreRelaxed(e.ctl().more, (e.ep->tx.bytes + from.left()) << 1 | (marks.more ? 0u : 1u));
  }
  size_t n;
  if (corks) [[unlikely]] {
    n = WriteCorked(e, from, {LimitsOf(fam, e), growth, marks.corked, marks.record}, told);
  } else {
    n = growth == Growth::kNow || LoadRelaxed(e.ep->tx.budget) != 0
            ? RingWrite(e, from, LimitsOf(fam, e), growth)
            : RingWrite(e, from, fam.limits);
  }
  if (marks.iov != nullptr && from.left() != 0) [[unlikely]] {  // no more may follow
    if (from.left() == marks.bytes) {
      StoreRelease(e.ctl().urgent, mark_before);  // [R4]
    } else {
      MarkUrgent(e, mark_before, marks.iov, marks.bytes - from.left(), 0);
    }
  }
  if (ends && from.fault()) [[unlikely]]  // what it was to stand behind is not sent
    StoreRelaxed(e.ctl().more, n != 0 && marks.more ? e.ep->tx.bytes << 1 : more_before);
  if (ends && marks.record && from.left() != 0)
      [[unlikely]]  // as Linux: only behind the whole of it
    StoreRelaxed(e.ctl().more, more_before);
  uint64_t after = e.ep->tx.ring;
  Unlock(e.ep->tx.lock);
  PSTN_TRACE2(sent, e.ep, n);
  if (told == Told::kData ? n != 0 : (told & Told::kSent) != 0) AnnounceSent(fam, e);
  if ((told & Told::kHold) != 0) [[unlikely]]
    AnnounceHold(fam.bells, e);
  if (before != after || after == 0) [[unlikely]]
    NoteRing(fam, e, before, after);
  return n;
}

size_t SendOnce(Family& fam, const ConnEnd& e, IovCursor& from, Growth growth, const Marks& marks,
                FromPipe* source = nullptr) {
  return SendHere(fam, e, from, growth, marks, source);
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

long StreamFill(Family& fam, const Call& call, uint8_t* bounce, size_t bytes, NowPipe& pipe,
                int flags) {
  pstn_ep& ep = *call.ep();
  ConnEnd e;
  if (!Resolve(fam, ep, e)) return -ECONNRESET;
  NoteNews(fam.bells);
  IovCursor from(nullptr, 0);
  FromPipe source = {pipe, {bounce, bytes}};
  const Marks marks = {nullptr, 0, (flags & MSG_MORE) != 0, false, CorkedBy(ep, flags)};
  if (SendOnce(fam, e, from, Growth::kNow, marks, &source) == kMoved)
    return LoadAcquire(ep.state) == PSTN_EP_KERNEL ? kPass : -EPIPE;  // [E1]
  // Room that was made under the lock is there. There is no way back into the pipe.
  if (!PSTN_CHECK(from.left() == 0)) {
    FetchOr(ep.flags, PSTN_EPF_HUNG | PSTN_EPF_SHUT_WR);
    FetchOr(e.ctl().flags, PSTN_CF_RST);
    AnnounceData(fam.bells, e);
  }
  return source.got;
}

namespace {

// A send() of a call that is connected here.
struct SendCall {
  Family& fam;
  Call& call;
  const ConnEnd& e;
  const iovec* iov;
  size_t count, bytes;
  int flags;
  uint32_t interrupts;
  bool bad;  // a piece lies where no program's memory is

  Marks marks() const {
    return {(flags & MSG_OOB) != 0 ? iov : nullptr, bytes, (flags & MSG_MORE) != 0,
            (flags & MSG_EOR) != 0, CorkedBy(*e.ep, flags)};
  }
};

// Whether CheckSend has nothing to say.
bool MayJustSend(const SendCall& s) {
  return s.bytes != 0 && !s.bad &&
         (LoadRelaxed(s.e.ep->flags) & (PSTN_EPF_SHUT_WR | PSTN_EPF_HUNG)) == 0 &&
         // [C2]
         (LoadAcquire(s.e.peer_ctl().flags) & (PSTN_CF_RST | PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) ==
             0;
}

constexpr size_t kNotTried = ~size_t{2};

// Until all of it has been sent, or what else ends the call. `sent`: what the first try came to.
[[gnu::noinline]] long SendOn(const SendCall& s, IovCursor& from, size_t sent) {
  Family& fam = s.fam;
  const ConnEnd& e = s.e;
  pstn_ep& ep = *e.ep;
  const bool nonblock =
      (s.flags & MSG_DONTWAIT) != 0 || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0;
  const Marks marks = s.marks();
  Deadline until = Deadline::Never();
  bool timed = false;
  for (;; sent = kNotTried) {
    size_t done = s.bytes - from.left();
    if (sent == kNotTried) {
      bool swallow = false;
      long stop = CheckSend(fam, e, {s.iov, s.count, s.bad ? 0 : s.bytes}, swallow);
      if (!Here(ep)) stop = 0, swallow = false;  // what it saw may not have been ours
      if (swallow) {
        if (marks.iov != nullptr) {  // the mark outruns the reset
          Guard g(e.ep->tx.lock);
          if (StillHere(e)) MarkUrgent(e, LoadRelaxed(e.ctl().urgent), s.iov, 0, s.bytes);
        }
        return static_cast<long>(Swallowed(ep, s.bytes));
      }
      if (stop != 0 && done != 0) {
        if (stop != -EPIPE && stop != -EFAULT)
          StoreRelaxed(ep.error, static_cast<uint32_t>(-stop));  // the next call's
        return static_cast<long>(done);
      }
      if (stop != 0) return stop;
      if (s.bytes == 0) return 0;
      if (s.bad) return -EFAULT;
      if (from.fault()) return done != 0 ? static_cast<long>(done) : -EFAULT;
      sent = SendOnce(fam, e, from, Growth::kWhenUseful, marks);
    }
    if (sent == kMoved) {
      if (LoadAcquire(ep.state) != PSTN_EP_KERNEL)  // [E1]
        return done != 0 ? static_cast<long>(done) : -EPIPE;
      return done != 0 ? SendRest(s.call, from, done, s.flags) : kPass;
    }
    if (sent == kShut) continue;  // CheckSend says so
    done = s.bytes - from.left();
    if (from.left() == 0) return static_cast<long>(s.bytes);
    if (from.fault()) continue;
    if (nonblock) {
      FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
      FullFence();  // [F1] against ReturnSpace
      if (SendOnce(fam, e, from, Growth::kNow, marks) == 0 && !from.fault())
        return done != 0 ? static_cast<long>(done) : -EAGAIN;
      continue;
    }
    if (!timed) until = Deadline::AfterTimeout(LoadRelaxed(ep.sndtimeo_ns));
    timed = true;
    Wait w = WaitFor(
        s.call, ForSpace(e), [&] { return WritableOrEnded(e); }, until, s.interrupts,
        done == 0 ? Restart::kIfAsked : Restart::kNever,
        [&] { return SendOnce(fam, e, from, Growth::kNow, marks) != 0 || from.fault(); });
    if (LoadRelaxed(ep.tx.ring) == 0)
      sys::Nap(kNoRingNs);  // none is free: all are in use by others
    if (w == Wait::kReady) continue;
    done = s.bytes - from.left();
    if (done != 0) return static_cast<long>(done);
    return WaitFailed(w);
  }
}

// What a connection that is not here, or not yet, makes of a send().
[[gnu::noinline]] long SendElsewhere(Family& fam, Call& call, const iovec* iov, size_t count,
                                     int flags, size_t ahead) {
  pstn_ep& ep = *call.ep();
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  if (state == PSTN_EP_NEW && (flags & MSG_FASTOPEN) != 0)
    // [E1]
    (void)LeaveUnconnected(fam, call.fd(), ep, kReasonFastOpen), state = LoadAcquire(ep.state);
  if (state == PSTN_EP_KERNEL) return kPass;
  if (state == PSTN_EP_ESTABLISHED) return StreamSend(fam, call, iov, count, flags, ahead);
  if (state != PSTN_EP_CONNECTING) return SendUnconnected(ep);
  const bool waits = StateNow(fam, ep) == PSTN_EP_CONNECTING;
  const long r = !waits ? kAgain : (flags & MSG_DONTWAIT) != 0 ? -EAGAIN : AwaitConnected(fam, ep);
  return r == kAgain ? StreamSend(fam, call, iov, count, flags, ahead) : r;
}

}  // namespace

long StreamSend(Family& fam, Call& call, const iovec* iov, size_t count, int flags, size_t ahead) {
  pstn_ep& ep = *call.ep();
  if ((flags & MSG_ZEROCOPY) != 0) [[unlikely]]
    return SendZerocopy(fam, call, iov, count, flags);
  if (LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED) [[unlikely]]  // [E1]
    return SendElsewhere(fam, call, iov, count, flags, ahead);
  ConnEnd e;
  if (!ResolveMapped(fam, ep, e) && !ResolveUnmapped(fam, ep, e)) return -ECONNRESET;
  if ((flags & MSG_FASTOPEN) != 0) [[unlikely]]
    return -EISCONN;
  if (TooMuch(iov, count)) return -EINVAL;
  IovCursor from(iov, count);
  from.ahead = ahead;
  NoteNews(fam.bells);
  const size_t want = from.left();
  const SendCall s = {
      fam, call, e, iov, count, want, flags, t_interrupts, want != 0 && BadBuffer(iov, count)};
  size_t sent = kNotTried;
  if (MayJustSend(s)) [[likely]] {
    sent = SendHere(fam, e, from, Growth::kWhenUseful, s.marks(), nullptr);
    if (from.left() == 0) [[likely]]
      return static_cast<long>(want);
  }
  return SendOn(s, from, sent);
}

}  // namespace postern
