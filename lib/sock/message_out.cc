// SPDX-License-Identifier: Apache-2.0
// message_out.cc - sending, by kind of socket.
#include <sys/epoll.h>

#include <cerrno>
#include <csignal>

#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "family/family.h"
#include "offhost/datagram_calls.h"
#include "sock/message.h"
#include "sock/vector.h"
#include "stream/stream.h"

namespace postern {
namespace {

// What a stream's send has come to.
long Sent(long r, int flags) {
  if (r == -EPIPE && (flags & MSG_NOSIGNAL) == 0) [[unlikely]]
    (void)sys::Call(SYS_tgkill, sys::Pid(), sys::Tid(), static_cast<long>(SIGPIPE));
  return r;
}

long TransmitVector(Family& fam, Call& call, const iovec* iov, size_t count, int flags) {
  const long r = StreamSend(fam, call, iov, count, flags);
  if (!IsUdp(r, call)) [[likely]]
    return Sent(r, flags);
  msghdr m = {};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = count;
  return DatagramSend(fam, call, m, flags);
}

// Control messages that a TCP socket does not know. Others mean nothing to it. They were readable a
// moment ago; what is not any more ends the look.
bool BadControl(const msghdr& m) {
  auto* at = static_cast<const uint8_t*>(m.msg_control);
  for (size_t left = m.msg_controllen; left >= sizeof(cmsghdr);) {
    cmsghdr c;
    if (!GetUser(c, at)) return true;
    if (c.cmsg_len < sizeof c || c.cmsg_len > left) return true;
    bool known = c.cmsg_type == SCM_RIGHTS || c.cmsg_type == SCM_CREDENTIALS ||
                 c.cmsg_type == SO_TIMESTAMPING || c.cmsg_type == SO_MARK;
    if (c.cmsg_level == SOL_SOCKET && !known) return true;
    size_t step = CMSG_ALIGN(c.cmsg_len);
    if (step >= left) break;
    at += step;
    left -= step;
  }
  return false;
}

}  // namespace

long SockWrite(Family& fam, Call& call, const void* buf, size_t n) {
  if (IsBeyond(buf, n)) return -EFAULT;
  const iovec iov = {const_cast<void*>(buf), Bounded(n)};
  return TransmitVector(fam, call, &iov, 1, 0);
}

// Unlike write(), writev() of nothing does not look at the socket.
long SockWritev(Family& fam, Call& call, const iovec* iov, int count) {
  const long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0) return bad;
  return HasBytes(iov, count) ? TransmitVector(fam, call, iov, static_cast<size_t>(count), 0) : 0;
}

long SockPwritev2(Family& fam, Call& call, const iovec* iov, int count, off_t offset, int flags) {
  long bad = BadPosition(*call.ep(), offset, flags);
  if (bad == 0) bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0 || !HasBytes(iov, count)) return bad;
  const int send = (flags & kPositionedNowait) != 0 ? MSG_DONTWAIT : 0;
  return TransmitVector(fam, call, iov, static_cast<size_t>(count), send);
}

// A stream has its peer.
long SockSendto(Family& fam, Call& call, const void* buf, size_t n, int flags, const sockaddr* sa,
                socklen_t len) {
  n = Bounded(n);
  if (IsBeyond(buf, n)) return -EFAULT;
  iovec iov = {const_cast<void*>(buf), n};
  if (sa != nullptr && !IsKernels(*call.ep())) [[unlikely]] {
    const long bad = BadAddress(sa, len);
    if (bad != 0) return bad;
  }
  const long r = StreamSend(fam, call, &iov, 1, flags);
  if (!IsUdp(r, call)) [[likely]]
    return Sent(r, flags);
  msghdr m = {};
  m.msg_name = const_cast<sockaddr*>(sa);
  m.msg_namelen = len;
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  return DatagramSend(fam, call, m, flags);
}

long SockSendmsg(Family& fam, Call& call, const msghdr* from, int flags) {
  const pstn_ep& ep = *call.ep();
  if (IsKernels(ep) && !IsDatagram(ep)) return kPass;
  msghdr m;
  if (!GetUser(m, from)) return -EFAULT;
  if (m.msg_name != nullptr && static_cast<int>(m.msg_namelen) < 0) return -EINVAL;
  constexpr socklen_t kLongest = sizeof(sockaddr_storage);  // of more the kernel looks at so much
  long bad = BadAddress(static_cast<const sockaddr*>(m.msg_name),
                        m.msg_namelen < kLongest ? m.msg_namelen : kLongest);
  if (bad == 0) bad = BadVector(m.msg_iov, m.msg_iovlen, -EMSGSIZE);
  if (bad != 0) return bad;
  if (m.msg_controllen != 0) {
    if (m.msg_controllen > INT32_MAX) return -ENOBUFS;
    if (!UserReadable(m.msg_control, m.msg_controllen)) return -EFAULT;
    // [E1]
    if (LoadAcquire(ep.state) == PSTN_EP_ESTABLISHED && BadControl(m) &&
        (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_WR) == 0 &&
        (Readiness(fam, *call.ep()) & EPOLLHUP) == 0)  // else it is over, and says so first
      return -EINVAL;
  }
  const long r = StreamSend(fam, call, m.msg_iov, m.msg_iovlen, flags);
  return IsUdp(r, call) ? DatagramSend(fam, call, m, flags) : Sent(r, flags);
}

long SockSendmmsg(Family& fam, Call& call, mmsghdr* v, unsigned n, int flags) {
  if (IsKernels(*call.ep())) return kPass;
  if (n > kMaxPieces) n = kMaxPieces;
  long done = 0, r = 0;
  while (done < n) {
    r = SockSendmsg(fam, call, &v[done].msg_hdr, flags);
    if (r >= 0 && !PutUser(&v[done].msg_len, static_cast<unsigned>(r))) r = -EFAULT;
    if (r < 0) break;
    done++;
    // Nothing goes behind a part.
    if (LengthOf(v[done - 1].msg_hdr) != static_cast<size_t>(r)) break;
  }
  return done != 0 ? done : r;
}

long SockSendfile(Family& fam, Call& call, int in, off_t* offset, size_t count) {
  return Sent(StreamSendFile(fam, call, in, offset, count), 0);
}

long SockSplice(Family& fam, Call& in, const off64_t* off_in, Call& out, const off64_t* off_out,
                int fd_in, int fd_out, size_t len, unsigned flags) {
  const pstn_ep *a = in.ep(), *b = out.ep();
  if (a == nullptr && b == nullptr) return kPass;
  if (len == 0) return 0;
  // No socket and no pipe has an offset, and the kernel says so before it moves anything.
  if (off_in != nullptr || off_out != nullptr) return kPass;
  return Sent(StreamSplice(fam, in, out, fd_in, fd_out, len, flags), 0);
}

}  // namespace postern
