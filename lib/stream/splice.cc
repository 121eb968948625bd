// SPDX-License-Identifier: Apache-2.0
// splice.cc - sendfile and splice: between a file or a pipe and a connection.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <climits>

#include "base/clock.h"
#include "base/sys.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/marks.h"
#include "endpoint/places/places.h"
#include "event/block.h"
#include "event/spin.h"
#include "family/family.h"
#include "stream/bounces.h"
#include "stream/io_checks.h"
#include "stream/now_pipe.h"
#include "stream/stream.h"

namespace postern {
namespace {

constexpr size_t kSmallBounce = 2048;
constexpr size_t kMostAhead = 1u << 20;  // no ring is larger
// The kernel hands TCP so many pages of a pipe or of a file at a time. TCP takes them whole before
// it hears that the peer is gone, and the next call says so.
constexpr size_t kTogether = size_t{16} * 4096;

// What a file is read into on its way to a ring: one of a few in memory of this process, as a
// thread's stack may be small; if calls under way have them all, `small`, which is on the stack.
// One whose call was jumped out of stays taken.
class Bounce {
 public:
  Bounce(Family& fam, uint8_t (&small)[kSmallBounce]) : data_(small), bytes_(kSmallBounce) {
    for (uint32_t i = 0; i < kBounces && taken_ == nullptr; i++) {
      uint32_t& at = fam.bounces->owners[i];
      uint32_t owner = LoadRelaxed(at);
      // Another process's than ours: our parent's calls had it when we were forked.
      if (owner == fam.pid || !CompareExchange(at, owner, fam.pid)) continue;  // [B1]
      taken_ = &at;
      data_ = fam.bounces->buffers[i];
      bytes_ = kBounce;
    }
  }
  ~Bounce() {
    if (taken_ != nullptr) StoreRelease(*taken_, 0u);  // [B1]
  }
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_;
  size_t bytes_;
  uint32_t* taken_ = nullptr;
};

// Sends all of `bytes` or, if the socket would block or fails, as much as went.
long SendAll(Family& fam, Call& call, const uint8_t* data, size_t bytes, size_t ahead) {
  iovec iov = {const_cast<uint8_t*>(data), bytes};
  return StreamSend(fam, call, &iov, 1, MSG_NOSIGNAL, ahead);
}

// Whether `error` tells of a peer that has gone, and not of a thread that has shut our end down.
bool IsGone(const pstn_ep& ep, long error) {
  return (error == -EPIPE || error == -ECONNRESET) &&
         (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_WR) == 0;
}

// The same, after the first `done` bytes of a call, among what the kernel's TCP takes together.
bool GoneWithin(const pstn_ep& ep, long error, size_t done) {
  return done % kTogether != 0 && IsGone(ep, error);
}

}  // namespace

long StreamSendFile(Family& fam, Call& call, int in_fd, off_t* offset, size_t count) {
  pstn_ep& ep = *call.ep();
  const uint32_t state = StateNow(fam, ep);
  if (state == PSTN_EP_KERNEL) return kPass;
  off_t from = 0;
  if (offset != nullptr && !GetUser(from, offset)) return -EFAULT;
  if (count == 0) return 0;
  if (state == PSTN_EP_CONNECTING) {
    const long r = AwaitConnected(fam, ep);
    return r == kAgain ? StreamSendFile(fam, call, in_fd, offset, count) : r;
  }
  if (state != PSTN_EP_ESTABLISHED) return SendUnconnected(ep);
  uint8_t small[kSmallBounce];
  const Bounce bounce(fam, small);
  // Read at an explicit position: what the socket does not take has then not been consumed.
  long at = offset != nullptr ? static_cast<long>(from)
                              : sys::Call(SYS_lseek, in_fd, 0L, static_cast<long>(SEEK_CUR));
  if (at < 0) return offset != nullptr || at == -ESPIPE ? -EINVAL : at;
  size_t done = 0;
  long error = 0, gone = 0;
  while (done < count) {
    size_t want = count - done < bounce.bytes() ? count - done : bounce.bytes();
    long got = sys::Call(SYS_pread64, in_fd, bounce.data(), want, at + static_cast<long>(done));
    if (got <= 0) {
      error = got;
      break;
    }
    // A file may be shorter than what was asked for.
    size_t rest = count - done - static_cast<size_t>(got);
    long sent = SendAll(fam, call, bounce.data(), static_cast<size_t>(got),
                        rest < kMostAhead ? rest : kMostAhead);
    if (GoneWithin(ep, sent, done)) {
      if (gone == 0) gone = sent;
      sent = got;
    }
    if (sent < 0) {
      error = sent;
      break;
    }
    done += static_cast<size_t>(sent);
    if (sent < got) break;
  }
  if (gone != 0) StoreRelaxed(ep.error, static_cast<uint32_t>(-gone));  // for the next call
  if (offset != nullptr) {
    from += static_cast<off_t>(done);
    if (!PutUser(offset, from)) return -EFAULT;
  } else if (done != 0) {
    (void)sys::Call(SYS_lseek, in_fd, at + static_cast<long>(done), static_cast<long>(SEEK_SET));
  }
  return done != 0 ? static_cast<long>(done) : error;
}

namespace {

// The kernel's splice() does not step over the urgent byte: where that is next it returns 0, as at
// an end (`ended`). 0: go on.
long StopAtMark(Family& fam, const Call& call, bool nonblock, bool* ended) {
  pstn_ep& ep = *call.ep();
  ConnEnd e;
  // [E1]
  if (LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED || !Resolve(fam, ep, e) || !LookAtMark(e).at)
    return 0;
  const uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
  if ((peer & PSTN_CF_RST) == 0 &&
      ((peer & PSTN_CF_FIN) != 0 || (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_RD) != 0)) {
    *ended = true;  // nothing comes that would push it on
    return 0;
  }
  if (nonblock || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0) return -EAGAIN;
  // The mark is there before the byte.
  auto past = [&] { return RingReadable(e) || PeerEnded(e) || !Here(ep) || !LookAtMark(e).at; };
  Wait w = WaitFor(call, ForData(e), past, Deadline::Never(), t_interrupts, Restart::kIfAsked);
  *ended = Here(ep) && LookAtMark(e).at;
  return w == Wait::kInterrupted || w == Wait::kRestarts ? WaitFailed(w) : 0;
}

// Socket to pipe. `wait`: for data, unless the socket is non-blocking; SPLICE_F_NONBLOCK
// (`nonblock`) is the pipe's.
[[gnu::noinline]] long SpliceOut(Family& fam, Call& call, NowPipe& pipe, size_t len, bool wait,
                                 bool nonblock) {
  uint8_t small[kSmallBounce];
  for (;;) {
    bool ended = false;
    const long stop = StopAtMark(fam, call, !wait, &ended);
    if (stop != 0 || ended) return stop;
    iovec iov = {small, size_t{1}};
    const long there = StreamRecv(fam, call, &iov, 1, MSG_PEEK | (wait ? 0 : MSG_DONTWAIT));
    if (there <= 0) return there;
    const long room = pipe.Await(POLLOUT, !nonblock);
    if (room < 0) return room;
    if (room == 0) return -EAGAIN;
    const Bounce bounce(fam, small);
    // A write of up to PIPE_BUF to a pipe that is ready is not cut short.
    const size_t most = bounce.bytes() < PIPE_BUF ? bounce.bytes() : PIPE_BUF;
    const long went = StreamMove(fam, call, bounce.data(), len < most ? len : most, pipe);
    // Another thread has taken what was there, or the room.
    if ((went == kNothingThere && wait) || (went == -EAGAIN && !nonblock)) continue;
    return went == kNothingThere ? -EAGAIN : went;
  }
}

// Not inlined, as the next one: their bounces together are more of the caller's stack than is ours.
[[gnu::noinline]] size_t DiscardPipe(NowPipe& pipe, size_t len, size_t most) {
  uint8_t bounce[kSmallBounce];
  size_t done = 0;
  if (len > most) len = most;
  while (done < len) {
    const long got = pipe.Read(bounce, len - done < sizeof bounce ? len - done : sizeof bounce);
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

// A peer that has gone takes all that the kernel would hand to TCP.
[[gnu::noinline]] long SpliceNowhere(Family& fam, NowPipe& pipe, Call& call, size_t len,
                                     int flags) {
  pstn_ep& ep = *call.ep();
  uint8_t bounce[kSmallBounce];
  const long got = pipe.Read(bounce, len < sizeof bounce ? len : sizeof bounce);
  if (got <= 0) return got;
  iovec iov = {bounce, static_cast<size_t>(got)};
  long r = StreamSend(fam, call, &iov, 1, MSG_NOSIGNAL | MSG_DONTWAIT | flags);
  if (r == kPass)
    r = sys::Call(SYS_sendto, call.fd(), iov.iov_base, iov.iov_len,
                  static_cast<long>(MSG_NOSIGNAL | flags), 0L, 0L);
  const auto done = static_cast<size_t>(got);
  if (r == got) return static_cast<long>(done + DiscardPipe(pipe, len - done, kTogether - done));
  // What was read is taken: there is no way back into a pipe. A peer that has gone and comes back,
  // to have no room, is no honest one.
  const bool gone = IsGone(ep, r), lies = r >= 0 || r == -EAGAIN || r == -EINTR;
  if (!gone && !lies) return r;
  StoreRelaxed(ep.error, gone ? static_cast<uint32_t>(-r) : uint32_t{EPIPE});  // for what follows
  return got;
}

// Until the socket may have room: 0.
long AwaitRoom(const Call& call, const ConnEnd& e) {
  const Wait w = WaitFor(
      call, ForSpace(e), [&] { return WritableOrEnded(e); },
      Deadline::AfterTimeout(LoadRelaxed(e.ep->sndtimeo_ns)), t_interrupts, Restart::kIfAsked);
  if (LoadRelaxed(e.ep->tx.ring) == 0) sys::Nap(kNoRingNs);  // all are in use by others
  return w == Wait::kReady ? 0 : WaitFailed(w);
}

// Pipe to socket.
[[gnu::noinline]] long SpliceIn(Family& fam, NowPipe& pipe, Call& call, size_t len, bool nonblock,
                                int more) {
  pstn_ep& ep = *call.ep();
  ConnEnd e;
  uint8_t small[kSmallBounce];
  for (;;) {
    const uint32_t state = StateNow(fam, ep);
    if (state == PSTN_EP_CONNECTING) {
      const long r = nonblock ? -EAGAIN : AwaitConnected(fam, ep);
      if (r == kAgain) continue;
      return r;
    }
    if (state != PSTN_EP_ESTABLISHED)  // exported, perhaps, since this call began
      return state == PSTN_EP_KERNEL ? kPass : SendUnconnected(ep);
    if (!Resolve(fam, ep, e)) return -ECONNRESET;
    iovec none = {nullptr, 0};
    // An error leaves the pipe as it was.
    if (const long stop = StreamSend(fam, call, &none, 1, MSG_NOSIGNAL); stop < 0) return stop;
    if (const long there = pipe.Await(POLLIN, false); there <= 0) {
      if (there < 0 || nonblock) return there < 0 ? there : -EAGAIN;
      if (const long came = pipe.Await(POLLIN, true); came < 0) return came;
      continue;
    }
    // [C2]
    if ((LoadAcquire(e.peer_ctl().flags) & (PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) != 0) {
      const long r = SpliceNowhere(fam, pipe, call, len, more);
      if (r == -EAGAIN && !nonblock) continue;
      return r;
    }
    const Bounce bounce(fam, small);
    const size_t most = len < bounce.bytes() ? len : bounce.bytes();
    long r = StreamFill(fam, call, bounce.data(), most, pipe, more);
    const bool full = r == kNothingThere;
    if (full && (nonblock || (LoadRelaxed(ep.flags) & PSTN_EPF_NONBLOCK) != 0)) {
      FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
      FullFence();  // [F1]
      r = StreamFill(fam, call, bounce.data(), most, pipe, more);
      if (r == kNothingThere) {  // or shut meanwhile
        const long stop = StreamSend(fam, call, &none, 1, MSG_NOSIGNAL);
        return stop < 0 ? stop : -EAGAIN;
      }
    } else if (full) {
      if (const long failed = AwaitRoom(call, e); failed != 0) return failed;
      continue;
    }
    if (r != -EAGAIN || nonblock) return r;  // else another thread has read what was there
  }
}

// The other end has to be a pipe, and not its `wrong` end.
long CheckPipe(int fd, int wrong) {
  int fl = sys::Fcntl(fd, F_GETFL, 0);
  if (fl < 0) return fl;
  if ((fl & O_ACCMODE) == wrong) return -EBADF;
  return sys::Fcntl(fd, F_GETPIPE_SZ, 0) < 0 ? -EINVAL : 0;
}

}  // namespace

long StreamSplice(Family& fam, Call& call_in, Call& call_out, int fd_in, int fd_out, size_t len,
                  unsigned flags) {
  pstn_ep *in = call_in.ep(), *out = call_out.ep();
  if (in != nullptr && LoadAcquire(in->state) == PSTN_EP_KERNEL) in = nullptr;     // [E1]
  if (out != nullptr && LoadAcquire(out->state) == PSTN_EP_KERNEL) out = nullptr;  // [E1]
  if (in == nullptr && out == nullptr) return kPass;
  if (len == 0) return 0;
  constexpr unsigned kKnown = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
  if ((flags & ~kKnown) != 0) return -EINVAL;
  if (in != nullptr && out != nullptr) return -EINVAL;  // one end must be a pipe
  bool nonblock = (flags & SPLICE_F_NONBLOCK) != 0;
  long other = in != nullptr ? CheckPipe(fd_out, O_RDONLY) : CheckPipe(fd_in, O_WRONLY);
  if (other != 0) return other;
  size_t done = 0;
  NowPipe pipe(in != nullptr ? fd_out : fd_in);
  while (done < len) {
    long r = in != nullptr
                 ? SpliceOut(fam, call_in, pipe, len - done, done == 0, nonblock || done != 0)
                 : SpliceIn(fam, pipe, call_out, len - done, nonblock || done != 0,
                            (flags & SPLICE_F_MORE) != 0 ? MSG_MORE : 0);
    if (r < 0 && r != -EAGAIN && r != -EINTR && r != kRestart && done != 0 && in != nullptr)
      StoreRelaxed(in->error, static_cast<uint32_t>(-r));  // for the next call
    if (out != nullptr && GoneWithin(*out, r, done)) {
      StoreRelaxed(out->error, static_cast<uint32_t>(-r));  // the same
      done += DiscardPipe(pipe, len - done, kTogether - done % kTogether);
    }
    if (r <= 0) return done != 0 ? static_cast<long>(done) : r;
    done += static_cast<size_t>(r);
  }
  return static_cast<long>(done);
}

}  // namespace postern
