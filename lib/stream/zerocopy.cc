// SPDX-License-Identifier: Apache-2.0
// zerocopy.cc - MSG_ZEROCOPY: what is sent is copied, and the program is told so.
//
// A program that has set SO_ZEROCOPY looks for completions in the socket's error queue before it
// uses a buffer again. Here a buffer is free when send() returns. Each send gets its number, and
// its completion says SO_EE_CODE_ZEROCOPY_COPIED, as the kernel's does over loopback
// (msg_zerocopy.rst). The queue is two counters: numbers that follow each
// other are one message.
#include <netinet/in.h>
#include <time.h>

#include <cerrno>
#include <cstring>

#include "endpoint/call.h"
#include "endpoint/posts.h"
#include "family/family.h"
#include "stream/stream.h"
#include "stream/zerocopy.h"

#include <linux/errqueue.h>  // needs time.h before it

namespace postern {
// As the kernel's put_cmsg: what does not fit is cut off, and said to be.
void PutControl(msghdr& m, int level, int type, const void* data, size_t bytes) {
  const size_t room = m.msg_controllen;
  m.msg_controllen = 0;
  if (m.msg_control == nullptr || room < sizeof(cmsghdr)) {
    m.msg_flags |= MSG_CTRUNC;
    return;
  }
  cmsghdr header = {};
  header.cmsg_level = level;
  header.cmsg_type = type;
  header.cmsg_len = CMSG_LEN(bytes);
  if (room < header.cmsg_len) {
    m.msg_flags |= MSG_CTRUNC;
    header.cmsg_len = room;
  }
  auto* at = static_cast<uint8_t*>(m.msg_control);
  // As in the kernel, where it can't be written it is left out.
  if (!CopyUser(at, &header, sizeof header) ||
      !CopyUser(at + CMSG_LEN(0), data, header.cmsg_len - CMSG_LEN(0)))
    return;
  m.msg_controllen = room < CMSG_SPACE(bytes) ? room : CMSG_SPACE(bytes);
}

long SendZerocopy(Family& fam, Call& call, const iovec* iov, size_t count, int flags) {
  pstn_ep& ep = *call.ep();
  long r = StreamSend(fam, call, iov, count, flags & ~MSG_ZEROCOPY);
  if (r <= 0 || (LoadRelaxed(ep.flags) & PSTN_EPF_ZEROCOPY) == 0) return r;
  FetchAdd(ep.zerocopy_sent, 1u);  // [E11]
  PostEp(fam, ep);
  return r;
}

long RecvErrorQueue(pstn_ep& ep, msghdr* m) {
  if (LoadAcquire(ep.state) == PSTN_EP_KERNEL) return kPass;    // [E1]
  if (LoadAcquire(ep.state) == PSTN_EP_LISTEN) return -EAGAIN;  // [E1] it has other words there
  uint32_t from = LoadRelaxed(ep.zerocopy_told), to;
  do {
    to = LoadAcquire(ep.zerocopy_sent);  // [E11]
    if (from == to) return -EAGAIN;
  } while (!CompareExchange(ep.zerocopy_told, from, to));
  if (m == nullptr) return 0;
  sock_extended_err error = {};
  error.ee_origin = SO_EE_ORIGIN_ZEROCOPY;
  error.ee_code = SO_EE_CODE_ZEROCOPY_COPIED;
  error.ee_info = from;
  error.ee_data = to - 1;
  m->msg_namelen = 0;
  m->msg_flags = MSG_ERRQUEUE;
  uint8_t data[sizeof error + sizeof(sockaddr_in6)] = {};  // the offender's address: none
  memcpy(data, &error, sizeof error);
  if (ep.family == AF_INET6) {
    PutControl(*m, IPPROTO_IPV6, IPV6_RECVERR, data, sizeof data);
  } else {
    PutControl(*m, IPPROTO_IP, IP_RECVERR, data, sizeof error + sizeof(sockaddr_in));
  }
  return 0;
}

}  // namespace postern
