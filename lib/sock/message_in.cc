// SPDX-License-Identifier: Apache-2.0
// message_in.cc - receiving, by kind of socket.
#include <cerrno>
#include <cstddef>

#include "base/clock.h"
#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "family/family.h"
#include "offhost/datagram_calls.h"
#include "option/socket_options.h"
#include "option/tcp_info.h"
#include "sock/message.h"
#include "sock/vector.h"
#include "stream/stream.h"
#include "stream/zerocopy.h"

namespace postern {
namespace {

long ReceiveVector(Family& fam, Call& call, const iovec* iov, size_t count, int flags) {
  const long r = StreamRecv(fam, call, iov, count, flags);
  if (!IsUdp(r, call)) [[likely]]
    return r;
  msghdr m = {};
  m.msg_iov = const_cast<iovec*>(iov);
  m.msg_iovlen = count;
  return DatagramRecv(fam, call, m, flags);
}

}  // namespace

long SockRead(Family& fam, Call& call, void* buf, size_t n) {
  if (IsBeyond(buf, n)) return -EFAULT;
  if (n == 0) return 0;  // nothing is read at once
  const iovec iov = {buf, Bounded(n)};
  return ReceiveVector(fam, call, &iov, 1, 0);
}

// Unlike recv(), read() and readv() of nothing do not wait.
long SockReadv(Family& fam, Call& call, const iovec* iov, int count) {
  const long bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0) return bad;
  return HasBytes(iov, count) ? ReceiveVector(fam, call, iov, static_cast<size_t>(count), 0) : 0;
}

long SockPreadv2(Family& fam, Call& call, const iovec* iov, int count, off_t offset, int flags) {
  long bad = BadPosition(*call.ep(), offset, flags);
  if (bad == 0) bad = BadVector(iov, static_cast<size_t>(count), -EINVAL);
  if (bad != 0 || !HasBytes(iov, count)) return bad;
  const int receive = (flags & kPositionedNowait) != 0 ? MSG_DONTWAIT : 0;
  return ReceiveVector(fam, call, iov, static_cast<size_t>(count), receive);
}

// Of a stream there is no name to tell.
long SockRecvfrom(Family& fam, Call& call, void* buf, size_t n, int flags, sockaddr* sa,
                  socklen_t* len) {
  n = Bounded(n);
  if (IsBeyond(buf, n)) return -EFAULT;
  iovec iov = {buf, n};
  const long r = StreamRecv(fam, call, &iov, 1, flags);
  const bool named = sa != nullptr;
  socklen_t room = 0;
  if (!IsUdp(r, call)) [[likely]] {
    if (r < 0 || !named) return r;
    if (!GetUser(room, len)) return -EFAULT;
    if (static_cast<int>(room) < 0) return -EINVAL;
    return PutUser(len, socklen_t{0}) ? r : -EFAULT;
  }
  if (named && (!GetUser(room, len) || static_cast<int>(room) < 0)) return kPass;
  msghdr m = {};
  m.msg_name = sa;
  m.msg_namelen = room;
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  const long got = DatagramRecv(fam, call, m, flags);
  return got < 0 || !named || PutUser(len, m.msg_namelen) ? got : -EFAULT;
}

namespace {

// What a receive has filled in, to where the program has it. What was received is gone, whether or
// not that can be written.
long Describe(long r, msghdr* to, const msghdr& m) {
  constexpr size_t kFrom = offsetof(msghdr, msg_controllen);
  static_assert(offsetof(msghdr, msg_flags) == kFrom + sizeof m.msg_controllen);
  const bool told =
      (m.msg_name == nullptr || PutUser(&to->msg_namelen, m.msg_namelen)) &&
      CopyUser(&to->msg_controllen, &m.msg_controllen, sizeof m.msg_controllen + sizeof(int));
  return told ? r : -EFAULT;
}

}  // namespace

// A stream socket fills in no name and no control data.
long SockRecvmsg(Family& fam, Call& call, msghdr* to, int flags) {
  pstn_ep& ep = *call.ep();
  if (IsKernels(ep) && !IsDatagram(ep)) return kPass;
  msghdr m;
  if (!GetUser(m, to)) return -EFAULT;
  if (m.msg_name != nullptr && static_cast<int>(m.msg_namelen) < 0) return -EINVAL;
  const long bad = BadVector(m.msg_iov, m.msg_iovlen, -EMSGSIZE);
  if (bad != 0) return bad;
  if ((flags & MSG_ERRQUEUE) != 0) {
    const long r = RecvErrorQueue(ep, &m);
    return r < 0 ? r : Describe(r, to, m);
  }
  long r = StreamRecv(fam, call, m.msg_iov, m.msg_iovlen, flags);
  if (IsUdp(r, call)) [[unlikely]] {
    r = DatagramRecv(fam, call, m, flags);
    return r < 0 ? r : Describe(r, to, m);
  }
  if (r < 0) return r;  // kPass, too
  const size_t room = m.msg_controllen;
  m.msg_namelen = 0;
  m.msg_controllen = 0;
  m.msg_flags = (flags & MSG_OOB) != 0 ? MSG_OOB : 0;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_INQ) != 0) [[unlikely]]
    PutInq(fam, ep, m, room);
  return Describe(r, to, m);
}

long SockRecvmmsg(Family& fam, Call& call, mmsghdr* v, unsigned n, int flags, timespec* timeout) {
  pstn_ep& ep = *call.ep();
  if (IsKernels(ep)) return kPass;
  timespec most = {};
  if (timeout != nullptr && !GetUser(most, timeout)) return -EFAULT;
  if (most.tv_sec < 0 || most.tv_nsec < 0 || most.tv_nsec >= 1000000000) return -EINVAL;
  const Deadline until = timeout == nullptr
                             ? Deadline::Never()
                             : Deadline::AfterNs(static_cast<uint64_t>(most.tv_sec) * 1000000000u +
                                                 static_cast<uint64_t>(most.tv_nsec));
  // An error comes before what was received, unlike with recv().
  int error = 0;
  socklen_t len = sizeof error;
  if (SockGetOpt(fam, call.fd(), ep, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error != 0)
    return -error;
  long done = 0, r = 0;
  while (done < n) {
    int f = flags & ~MSG_WAITFORONE;
    if (done != 0 && (flags & MSG_WAITFORONE) != 0) f |= MSG_DONTWAIT;
    r = SockRecvmsg(fam, call, &v[done].msg_hdr, f);
    if (r >= 0 && !PutUser(&v[done].msg_len, static_cast<unsigned>(r))) r = -EFAULT;
    if (r < 0) break;
    done++;
    if (until.left_ns() == 0) break;  // the kernel, too, looks at the time only here
    if ((v[done - 1].msg_hdr.msg_flags & MSG_OOB) != 0) break;
  }
  if (done != 0 && r < 0 && r != kPass && r != -EAGAIN && r != -EINTR)
    StoreRelaxed(ep.error, static_cast<uint32_t>(-r));
  if (done != 0 && timeout != nullptr && !PutUser(timeout, until.LeftTimespec(UINT64_MAX)))
    return -EFAULT;
  return done != 0 ? done : r;
}

}  // namespace postern
