// SPDX-License-Identifier: Apache-2.0
// io.cc - send and receive on an accelerated connection.
//
// A send: copy into the ring, announce (a bit, and a doorbell only if the peer sleeps). A receive:
// copy out, return space when a good part of the ring has been taken. Neither makes a system call
// while both sides are awake. What must block spins first, then sleeps on a futex in its own ctl
// line; the order of stores and looks is in smcd/notify.h.
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/sys.h"
#include "sock/cancel.h"
#include "sock/sock.h"

namespace postern {
namespace {

constexpr uint64_t kNoRingNs = 1'000'000;
constexpr size_t kRestMax = 64;  // pieces of a call that is continued in the kernel

enum class Wait : uint8_t { kReady, kTimeout, kInterrupted };

bool PeerEnded(const ConnEnd& e) {
  return (LoadAcquire(e.peer_ctl().flags) & (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)) != 0;
}
bool ReadableOrEnded(const ConnEnd& e) {
  return RingReadable(e) || PeerEnded(e) || (LoadRelaxed(e.ep->flags) & PSTN_EPF_SHUT_RD) != 0 ||
         LoadRelaxed(e.ep->state) != PSTN_EP_ESTABLISHED;
}
bool WritableOrEnded(const ConnEnd& e) {
  return RingWritable(e) ||
         (LoadAcquire(e.peer_ctl().flags) & (PSTN_CF_RST | PSTN_CF_CLOSED)) != 0 ||
         (LoadRelaxed(e.ep->flags) & PSTN_EPF_SHUT_WR) != 0 ||
         LoadRelaxed(e.ep->state) != PSTN_EP_ESTABLISHED;
}

// A handler that runs between the last look at t_interrupts and the sleep finds the word here, and
// changes it, so that the kernel does not let us sleep.
class SleepWord {
 public:
  explicit SleepWord(uint32_t& word) { t_sleep_word = &word; }
  ~SleepWord() { t_sleep_word = nullptr; }
  SleepWord(const SleepWord&) = delete;
  SleepWord& operator=(const SleepWord&) = delete;
};

// A handler that asks for it (SA_RESTART) lets a call go on that has not moved a byte yet.
enum class Restart : uint8_t { kIfAsked, kNever };

// Sleeps on `word`, a futex of our ctl line, into which `bit` is put. `ready` is looked at once
// more after that [F1].
template <typename Ready>
Wait SleepOn(Hold& hold, uint32_t& word, uint32_t bit, Ready ready, const Deadline& until,
             uint32_t interrupts, Restart restart) {
  SleepWord on(word);
  Count(Stack().hdr, kCounterSleeps);
  for (;;) {
    uint32_t value = FetchOr(word, bit) | bit;
    FullFence();
    if (ready()) return Wait::kReady;
    if (t_interrupts != interrupts) return Wait::kInterrupted;
    timespec left = until.LeftTimespec(UINT64_MAX);
    // The kernel restarts a wait that has no end.
    bool endless = until.never() && restart == Restart::kIfAsked;
    long r = Cancellable([&] { return sys::FutexWait(&word, value, endless ? nullptr : &left); },
                         [&] { hold.Off(); });
    if (ready()) return Wait::kReady;
    if (r == -EINTR) return Wait::kInterrupted;
    if (until.left_ns() == 0) return Wait::kTimeout;
  }
}

bool NothingElse() { return false; }

// `hold` is on `ep` from the first sleep on. `otherwise`, before it, may do what makes the sleep
// needless.
template <typename Ready, typename Otherwise = bool (*)()>
Wait WaitFor(Hold& hold, pstn_ep& ep, uint32_t& word, uint32_t bit, Ready ready,
             const Deadline& until, Restart restart, Otherwise otherwise = NothingElse) {
  uint32_t interrupts = t_interrupts;
  if (Spin(ready, until)) return Wait::kReady;
  if (t_interrupts != interrupts) return Wait::kInterrupted;
  if (until.left_ns() == 0) return Wait::kTimeout;
  if (otherwise()) return Wait::kReady;
  hold.On(ep);
  return SleepOn(hold, word, bit, ready, until, interrupts, restart);
}

// ---------------------------------------------------------------- receive

// A peek has stepped over the urgent byte, and nothing is behind it.
bool OnlyUrgentByte(const ConnEnd& e) {
  const MarkState mark = LookAtMark(e);
  if (!mark.at || !mark.hides) return false;
  Guard g(e.ep->rx.lock);
  return RingQueued(e, 2) <= 1;
}

// What an empty ring means: -EAGAIN (just empty), 0 (end of stream) or the connection's error.
long WhenEmpty(const ConnEnd& e) {
  uint32_t flags = LoadAcquire(e.peer_ctl().flags);
  if ((flags & (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)) != 0) {
    if (RingReadable(e) && !OnlyUrgentByte(e)) return -EAGAIN;  // it came just before the end
    // Behind a FIN the kernel's recv() reports no error: that is left to write() and SO_ERROR.
    return (flags & PSTN_CF_FIN) != 0 ? 0 : -TakeError(e, flags);
  }
  if ((LoadRelaxed(e.ep->flags) & (PSTN_EPF_SHUT_RD | PSTN_EPF_HUNG)) != 0) return 0;
  return -EAGAIN;
}

// The peer wrote something that no honest peer writes: the connection ends, and says so.
long Violation(const ConnEnd& e) {
  Count(Stack().hdr, kCounterPeerViolations);
  FetchOr(e.ctl().flags, PSTN_CF_RST);
  FetchOr(e.ep->flags, PSTN_EPF_HUNG | PSTN_EPF_SHUT_RD);
  AnnounceData(g_proc.bells, e);
  return -ECONNRESET;
}

bool Here(const pstn_ep& ep) { return LoadAcquire(ep.state) == PSTN_EP_ESTABLISHED; }
// The same under one of its locks, from where the connection can't be taken away (export.cc,
// close.cc): and it is the connection that the call began with, not one that got the endpoint after
// a close().
bool StillHere(const ConnEnd& e) { return Here(*e.ep) && Which(*e.ep) == e.which; }
// What a call comes to where that is not so: kPass if the kernel serves it.
long NotHere(const ConnEnd& e) {
  if (Which(*e.ep) != e.which) return -EBADF;
  return LoadAcquire(e.ep->state) == PSTN_EP_KERNEL ? kPass : -ECONNABORTED;
}

// 0: the urgent mark ends a read that has begun (`first` is false).
long RecvOnce(const ConnEnd& e, IovCursor* to, size_t want, bool first, ReadMode mode) {
  Lock(e.ep->rx.lock);
  if (!StillHere(e)) {
    Unlock(e.ep->rx.lock);
    return NotHere(e);
  }
  ReadResult r = LoadRelaxed(e.peer_ctl().urgent) == 0 ? RingRead(e, to, want, mode)
                                                       : ReadToMark(e, to, want, first, mode);
  if (r.bytes != 0 && mode != ReadMode::kPeek) ReturnSpace(g_proc.bells, e);
  Unlock(e.ep->rx.lock);
  if (r.status == ReadStatus::kViolation) return Violation(e);
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
long RecvUnconnected(const pstn_ep& ep, uint32_t state) {
  if (state == PSTN_EP_KERNEL) return kPass;
  return state == PSTN_EP_NEW && (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_RD) != 0 ? 0 : -ENOTCONN;
}

// recv() of no bytes waits for data all the same, and takes none. (read() of none does not come
// here.)
long RecvNothing(const ConnEnd& e, bool nonblock) {
  Hold hold;
  Deadline until =
      e.ep->rcvtimeo_ns != 0 ? Deadline::AfterNs(e.ep->rcvtimeo_ns) : Deadline::Never();
  for (;;) {
    if (RingReadable(e)) return 0;
    long end = WhenEmpty(e);
    if (!Here(*e.ep)) return NotHere(e);
    if (end != -EAGAIN || nonblock) return end;
    Wait w = WaitFor(
        hold, *e.ep, e.ctl().rx_wait, 1, [&] { return ReadableOrEnded(e); }, until,
        Restart::kIfAsked);
    if (!Here(*e.ep)) return NotHere(e);
    if (w != Wait::kReady) return w == Wait::kTimeout ? -EAGAIN : -EINTR;
  }
}

// A recv() that waits for more (MSG_WAITALL) goes on in the kernel: the endpoint has changed hands.
long RecvRest(int fd, IovCursor& to, size_t done, ReadMode mode) {
  iovec rest[kRestMax];
  msghdr m = {};
  m.msg_iov = rest;
  m.msg_iovlen = to.Rest(rest, kRestMax);
  if (mode == ReadMode::kDiscard) return static_cast<long>(done);
  long r = sys::Call(SYS_recvmsg, fd, &m, static_cast<long>(MSG_WAITALL));
  return static_cast<long>(done) + (r > 0 ? r : 0);
}

}  // namespace

long SockRecv(int fd, pstn_ep& ep, const iovec* iov, size_t count, int flags) {
  uint32_t state = LoadAcquire(ep.state);
  if ((flags & MSG_ERRQUEUE) != 0) [[unlikely]]
    return RecvErrorQueue(ep, nullptr);
  if (state != PSTN_EP_ESTABLISHED) {
    long r = RecvUnconnected(ep, state);
    return r != kPass && (flags & MSG_OOB) != 0 && state == PSTN_EP_NEW ? -EINVAL : r;
  }
  ConnEnd e;
  if (!Resolve(ep, e)) return -ECONNRESET;
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
  IovCursor* target = mode == ReadMode::kDiscard ? nullptr : &to;
  const bool nonblock =
      (flags & MSG_DONTWAIT) != 0 || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0;
  if (want == 0) return RecvNothing(e, nonblock);
  if (target != nullptr && BadBuffer(iov, count)) {
    long r = RecvNothing(e, nonblock);  // the kernel looks at the buffer when there is data for it
    return r == 0 && RingReadable(e) ? -EFAULT : r;
  }
  size_t least = (flags & MSG_WAITALL) != 0 ? want : 1;
  if (ep.rcvlowat > least) least = ep.rcvlowat < want ? ep.rcvlowat : want;
  Deadline until = Deadline::Never();
  bool timed = false;
  size_t done = 0;
  Hold hold;
  for (;;) {
    if (peek) to = IovCursor(iov, count), done = 0;
    long r = RecvOnce(e, target, want - done, done == 0, mode);
    if (r == 0) return static_cast<long>(done);
    if (r > 0) done += static_cast<size_t>(r);
    if (peek && r > 0 && LookAtMark(e).before == done) return static_cast<long>(done);
    if (r == kPass && done != 0 && !peek) return RecvRest(fd, to, done, mode);
    if (done >= least || (r < 0 && r != -EAGAIN)) return done != 0 ? static_cast<long>(done) : r;
    long end = WhenEmpty(e);
    if (!Here(ep)) continue;
    if (end != -EAGAIN) {
      if (done != 0 && end < 0)
        StoreRelaxed(ep.error, static_cast<uint32_t>(-end));  // for the next call
      return done != 0 ? static_cast<long>(done) : end;
    }
    if (nonblock) return done != 0 ? static_cast<long>(done) : -EAGAIN;
    if (!timed && ep.rcvtimeo_ns != 0) until = Deadline::AfterNs(ep.rcvtimeo_ns);
    timed = true;
    const MarkState mark = peek ? LookAtMark(e) : MarkState{};
    // What a peek has seen, or steps over: it waits for more than that.
    size_t have = done + (mark.at && mark.hides ? 1 : 0);
    auto ready = [&] {
      if (have == 0 || !peek) return ReadableOrEnded(e);
      return PeerEnded(e) || !Here(ep) || RingQueued(e, have + 1) > have;
    };
    Wait w = WaitFor(hold, ep, e.ctl().rx_wait, 1, ready, until,
                     done == 0 ? Restart::kIfAsked : Restart::kNever);
    if (w == Wait::kReady || !Here(ep)) continue;
    if (done != 0) return static_cast<long>(done);
    return w == Wait::kTimeout ? -EAGAIN : -EINTR;
  }
}

// ---------------------------------------------------------------- send
namespace {

// 0: go on; else what the call returns. `swallow` is set when the data would go nowhere.
long CheckSend(const ConnEnd& e, size_t want, bool& swallow) {
  uint32_t own = LoadRelaxed(e.ep->flags);
  uint32_t peer = LoadAcquire(e.peer_ctl().flags);
  if ((own & (PSTN_EPF_SHUT_WR | PSTN_EPF_HUNG)) != 0 || (peer & PSTN_CF_RST) != 0) {
    int error = TakeError(e, peer);
    return error != 0 ? -error : -EPIPE;
  }
  // The peer reads no more. With TCP the first write goes out and is answered by a RST, which ends
  // a peer that is still there, too.
  if ((peer & (PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) != 0 && want != 0) {
    StoreRelaxed(e.ep->error, static_cast<uint32_t>(EPIPE));
    FetchOr(e.ep->flags, PSTN_EPF_HUNG);
    FetchOr(e.ep->rx.gate, PSTN_RXG_RESET);  // a RST that still comes finds nothing to end
    swallow = true;
    if ((peer & PSTN_CF_CLOSED) == 0) {
      FetchOr(e.ctl().flags, PSTN_CF_RST);
      AnnounceData(g_proc.bells, e);
      AnnounceSpace(g_proc.bells, e);
    }
    AnnounceLocal(g_proc.bells, e);
  }
  return 0;
}

// A send took a ring, another ring, or none because none was free.
void NoteRing(const ConnEnd& e, uint64_t before, uint64_t after) {
  Count(Stack().hdr, after == 0    ? kCounterRingExhausted
                     : before == 0 ? kCounterRingAttached
                                   : kCounterRingGrown);
  if (before == 0) GiveBackSome(e);
}

// What is sent with MSG_OOB: its last byte is the urgent one.
struct Urgent {
  const iovec* iov;  // null: nothing is urgent
  size_t bytes;
};

constexpr size_t kMoved =
    ~size_t{0};  // nothing was sent: the endpoint is not connected here any more

size_t SendOnce(const ConnEnd& e, IovCursor& from, Growth growth, const Urgent& urgent) {
  Lock(e.ep->tx.lock);
  if (!StillHere(e)) {  // as in RecvOnce
    Unlock(e.ep->tx.lock);
    return kMoved;
  }
  uint64_t before = e.ep->tx.ring;
  uint64_t mark_before = 0;
  if (urgent.iov != nullptr) [[unlikely]] {  // first the mark, or the byte is read as any other
    mark_before = LoadRelaxed(e.ctl().urgent);
    MarkUrgent(e, urgent.iov, urgent.bytes - from.left(), from.left());
  }
  size_t n = growth == Growth::kNow ? RingWrite(e, from, LimitsOf(*e.ep), growth)
                                    : RingWrite(e, from, g_proc.limits);
  if (urgent.iov != nullptr && from.left() != 0) [[unlikely]] {  // no more may follow
    if (from.left() == urgent.bytes) {
      StoreRelease(e.ctl().urgent, mark_before);
    } else {
      MarkUrgent(e, urgent.iov, urgent.bytes - from.left(), 0);
    }
  }
  uint64_t after = e.ep->tx.ring;
  Unlock(e.ep->tx.lock);
  if (n != 0) AnnounceUnlocked(g_proc.bells, e);
  if (before != after || after == 0) [[unlikely]]
    NoteRing(e, before, after);
  return n;
}

// A send() that has begun here goes on in the kernel.
long SendRest(int fd, IovCursor& from, size_t done, int flags) {
  iovec rest[kRestMax];
  msghdr m = {};
  m.msg_iov = rest;
  m.msg_iovlen = from.Rest(rest, kRestMax);
  long r = sys::Call(SYS_sendmsg, fd, &m, static_cast<long>(flags | MSG_NOSIGNAL));
  return static_cast<long>(done) + (r > 0 ? r : 0);
}

}  // namespace

long SockSend(int fd, pstn_ep& ep, const iovec* iov, size_t count, int flags) {
  if ((flags & MSG_ZEROCOPY) != 0) [[unlikely]]
    return SendZerocopy(fd, ep, iov, count, flags);
  uint32_t state = LoadAcquire(ep.state);
  if (state != PSTN_EP_ESTABLISHED) {
    if (state == PSTN_EP_NEW && (flags & MSG_FASTOPEN) != 0)
      FallBack(fd, ep, kReasonFastOpen), state = PSTN_EP_KERNEL;
    return state == PSTN_EP_KERNEL ? kPass : -EPIPE;
  }
  ConnEnd e;
  if (!Resolve(ep, e)) return -ECONNRESET;
  if ((flags & MSG_FASTOPEN) != 0) [[unlikely]]
    return -EISCONN;
  if (TooMuch(iov, count)) return -EINVAL;
  IovCursor from(iov, count);
  const size_t want = from.left();
  const bool bad = want != 0 && BadBuffer(iov, count);
  const Urgent urgent = {(flags & MSG_OOB) != 0 ? iov : nullptr, want};
  const bool nonblock =
      (flags & MSG_DONTWAIT) != 0 || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0;
  Deadline until = Deadline::Never();
  bool timed = false;
  Hold hold;
  for (;;) {
    bool swallow = false;
    long stop = CheckSend(e, bad ? 0 : want, swallow);
    if (!Here(ep)) stop = 0, swallow = false;  // what it saw may not have been ours
    if (swallow) {
      if (urgent.iov != nullptr) {  // the mark outruns the reset
        Guard g(ep.tx.lock);
        MarkUrgent(e, iov, 0, want);
      }
      return static_cast<long>(want);
    }
    size_t done = want - from.left();
    if (stop != 0) return done != 0 ? static_cast<long>(done) : stop;
    if (want == 0) return 0;
    if (bad) return -EFAULT;
    size_t sent = SendOnce(e, from, Growth::kWhenUseful, urgent);
    if (sent == kMoved) {
      if (LoadAcquire(ep.state) != PSTN_EP_KERNEL)
        return done != 0 ? static_cast<long>(done) : -EPIPE;
      return done != 0 ? SendRest(fd, from, done, flags) : kPass;
    }
    done = want - from.left();
    if (from.left() == 0) return static_cast<long>(want);
    if (nonblock) {
      FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
      FullFence();  // [F1] against ReturnSpace
      if (SendOnce(e, from, Growth::kNow, urgent) == 0)
        return done != 0 ? static_cast<long>(done) : -EAGAIN;
      continue;
    }
    if (!timed && ep.sndtimeo_ns != 0) until = Deadline::AfterNs(ep.sndtimeo_ns);
    timed = true;
    Wait w = WaitFor(
        hold, ep, e.ctl().tx_wait, PSTN_TXW_FUTEX, [&] { return WritableOrEnded(e); }, until,
        done == 0 ? Restart::kIfAsked : Restart::kNever,
        [&] { return SendOnce(e, from, Growth::kNow, urgent) != 0; });
    if (LoadRelaxed(ep.tx.ring) == 0)
      sys::Nap(kNoRingNs);  // none is free: all are in use by others
    if (w == Wait::kReady) continue;
    done = want - from.left();
    if (done != 0) return static_cast<long>(done);
    return w == Wait::kTimeout ? -EAGAIN : -EINTR;
  }
}

// ---------------------------------------------------------------- sendfile, splice
namespace {

constexpr size_t kBounce = 32768;

// Sends all of `bytes` or, if the socket would block or fails, as much as went.
long SendAll(int fd, pstn_ep& ep, const uint8_t* data, size_t bytes, int flags) {
  iovec iov = {const_cast<uint8_t*>(data), bytes};
  return SockSend(fd, ep, &iov, 1, flags | MSG_NOSIGNAL);
}

}  // namespace

long SockSendFile(int fd, pstn_ep& ep, int in_fd, off_t* offset, size_t count) {
  uint32_t state = LoadAcquire(ep.state);
  if (state == PSTN_EP_KERNEL) return kPass;
  if (count == 0) return 0;
  if (state != PSTN_EP_ESTABLISHED) return -EPIPE;
  alignas(64) uint8_t bounce[kBounce];
  // Read at an explicit position: what the socket does not take has then not been consumed.
  long at = offset != nullptr ? static_cast<long>(*offset)
                              : sys::Call(SYS_lseek, in_fd, 0L, static_cast<long>(SEEK_CUR));
  if (at < 0) return offset != nullptr ? -EINVAL : at;
  size_t done = 0;
  long error = 0;
  while (done < count) {
    size_t want = count - done < kBounce ? count - done : kBounce;
    long got = sys::Call(SYS_pread64, in_fd, static_cast<uint8_t*>(bounce), want,
                         at + static_cast<long>(done));
    if (got <= 0) {
      error = got;
      break;
    }
    long sent = SendAll(fd, ep, bounce, static_cast<size_t>(got), 0);
    if (sent < 0) {
      error = sent;
      break;
    }
    done += static_cast<size_t>(sent);
    if (sent < got) break;
  }
  if (offset != nullptr) {
    *offset += static_cast<off_t>(done);
  } else if (done != 0) {
    (void)sys::Call(SYS_lseek, in_fd, at + static_cast<long>(done), static_cast<long>(SEEK_SET));
  }
  return done != 0 ? static_cast<long>(done) : error;
}

namespace {

// The kernel's splice() does not step over the urgent byte: it waits there. 0: go on.
long StopAtMark(pstn_ep& ep, bool nonblock, bool* ended) {
  ConnEnd e;
  if (LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED || !Resolve(ep, e) || !LookAtMark(e).at)
    return 0;
  if (nonblock || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0) return -EAGAIN;
  auto past = [&] { return PeerEnded(e) || !Here(ep) || !LookAtMark(e).at; };
  Hold hold;
  Wait w = WaitFor(hold, ep, e.ctl().rx_wait, 1, past, Deadline::Never(), Restart::kIfAsked);
  *ended = Here(ep) && LookAtMark(e).at;
  return w == Wait::kInterrupted ? -EINTR : 0;
}

// Socket to pipe: what the pipe takes is taken from the ring, so nothing is lost in between.
long SpliceOut(int fd, pstn_ep& ep, int pipe, size_t len, bool nonblock) {
  bool ended = false;
  long stop = StopAtMark(ep, nonblock, &ended);
  if (stop != 0 || ended) return stop;
  alignas(64) uint8_t bounce[kBounce];
  iovec iov = {bounce, len < kBounce ? len : kBounce};
  long got = SockRecv(fd, ep, &iov, 1, MSG_PEEK | (nonblock ? MSG_DONTWAIT : 0));
  if (got <= 0) return got;
  pollfd p = {pipe, POLLOUT, 0};
  long room = sys::Call(SYS_poll, &p, 1L, nonblock ? 0L : -1L);
  if (room < 0) return room;
  if (room == 0) return -EAGAIN;
  // A write of up to PIPE_BUF to a pipe that is ready does not block and is not cut short.
  size_t n = static_cast<size_t>(got) < 4096 ? static_cast<size_t>(got) : 4096;
  long wrote = sys::Call(SYS_write, pipe, static_cast<uint8_t*>(bounce), n);
  if (wrote <= 0) return wrote;
  iov.iov_len = static_cast<size_t>(wrote);
  long taken = SockRecv(fd, ep, &iov, 1, MSG_DONTWAIT);
  if (taken != kPass) return taken;
  return sys::Call(SYS_recvfrom, fd, iov.iov_base, iov.iov_len, static_cast<long>(MSG_WAITALL), 0L,
                   0L);  // it is on its way there
}

// Pipe to socket: only as much as the ring surely takes, decided before the pipe is read.
long SpliceIn(int pipe, int fd, pstn_ep& ep, size_t len, bool nonblock) {
  ConnEnd e;
  if (LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED) return -EPIPE;
  if (!Resolve(ep, e)) return -ECONNRESET;
  Hold hold;
  auto takes = [&] { return WritableOrEnded(e) || Writable(e); };  // it may grow
  if (!takes()) {
    if (nonblock || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0) {
      FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
      FullFence();
      if (!takes()) return -EAGAIN;
    } else if (WaitFor(hold, ep, e.ctl().tx_wait, PSTN_TXW_FUTEX, takes, Deadline::Never(),
                       Restart::kIfAsked) == Wait::kInterrupted) {
      return -EINTR;
    }
  }
  // A writable ring has an eighth free, 512 bytes at the least; a peer that is gone takes it all.
  constexpr size_t kSurelyTaken = 448;
  alignas(64) uint8_t bounce[kBounce];
  const bool gone = (LoadAcquire(e.peer_ctl().flags) & (PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) != 0;
  const size_t most = gone ? kBounce : kSurelyTaken;
  pollfd p = {pipe, POLLIN, 0};
  long there = sys::Call(SYS_poll, &p, 1L, nonblock ? 0L : -1L);
  if (there < 0) return there;
  if (there == 0) return -EAGAIN;
  long got = sys::Call(SYS_read, pipe, static_cast<uint8_t*>(bounce), len < most ? len : most);
  if (got <= 0) return got;
  size_t done = 0;
  while (done < static_cast<size_t>(got)) {
    iovec iov = {bounce + done, static_cast<size_t>(got) - done};
    long r = SockSend(fd, ep, &iov, 1, MSG_NOSIGNAL);
    if (r == kPass)
      r = sys::Call(SYS_sendto, fd, iov.iov_base, iov.iov_len, static_cast<long>(MSG_NOSIGNAL), 0L,
                    0L);
    if (r > 0) done += static_cast<size_t>(r);
    if (r < 0 && r != -EAGAIN && r != -EINTR) return done != 0 ? static_cast<long>(done) : r;
    if (r == -EAGAIN) (void)Spin([&] { return WritableOrEnded(e); }, Deadline::AfterMs(1));
  }
  return static_cast<long>(done);
}

}  // namespace

long SockSplice(int fd_in, int fd_out, pstn_ep* in, pstn_ep* out, size_t len, unsigned flags) {
  if (in != nullptr && LoadAcquire(in->state) == PSTN_EP_KERNEL) in = nullptr;
  if (out != nullptr && LoadAcquire(out->state) == PSTN_EP_KERNEL) out = nullptr;
  if (in == nullptr && out == nullptr) return kPass;
  if (in != nullptr && out != nullptr) return -EINVAL;  // one end must be a pipe
  bool nonblock = (flags & 2u) != 0;                    // SPLICE_F_NONBLOCK
  size_t done = 0;
  while (done < len) {
    bool wait = done == 0 && !nonblock;
    long r = in != nullptr ? SpliceOut(fd_in, *in, fd_out, len - done, !wait)
                           : SpliceIn(fd_in, fd_out, *out, len - done, !wait);
    if (r < 0 && r != -EAGAIN && r != -EINTR && done != 0 && in != nullptr)
      StoreRelaxed(in->error, static_cast<uint32_t>(-r));  // for the next call
    if (r <= 0) return done != 0 ? static_cast<long>(done) : r;
    done += static_cast<size_t>(r);
  }
  return static_cast<long>(done);
}

}  // namespace postern
