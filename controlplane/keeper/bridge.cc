// bridge.cc - see bridge.h.
// SPDX-License-Identifier: Apache-2.0
#include "bridge.h"
#include "endpoint/call.h"
#include "family/fdtab.h"
#include "option/socket_options.h"
#include "peer/close.h"
#include "sock/own_family.h"
#include "sock/socket.h"
#include "stream/stream.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

namespace postern::keeper {
namespace {

constexpr size_t kChunk = 65536;
constexpr int kChunksPerTurn = 16;  // of each direction, then other bridges get their turn
uint8_t scratch[kChunk];

}  // namespace

void Bridge::SetOption(End end, int level, int name, const void* value, socklen_t len) {
  if (!end.is_ring) return (void)setsockopt(end.fd, level, name, value, len);
  const Call call(g_family, end.fd);
  if (pstn_ep* ep = call.ep()) (void)SockSetOpt(g_family, end.fd, *ep, level, name, value, len);
}

Bridge::Bridge(End first, End second) : first_(first), second_(second) {
  const int on = 1;
  for (const End end : {first, second}) {
    if (end.is_ring) continue;
    SetOption(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // what came in one piece goes so
    SetOption(end, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));  // a ring's has it
  }
}

Bridge::~Bridge() {
  const linger now{1, 0};
  for (const End end : {second_, first_}) {
    if (reset_) SetOption(end, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  for (const End end : {first_, second_}) {
    if (end.is_ring) {
      (void)SockClose(g_family, end.fd, FdEntry(g_family, end.fd));
    } else {
      close(end.fd);
    }
  }
}

long Bridge::Read(End from, void* to, size_t bytes) {
  if (!from.is_ring) {
    const ssize_t got = recv(from.fd, to, bytes, MSG_DONTWAIT);
    return got >= 0 ? got : -errno;
  }
  Call call(g_family, from.fd);
  iovec iov{to, bytes};
  return call.ep() != nullptr ? StreamRecv(g_family, call, &iov, 1, MSG_DONTWAIT) : -EBADF;
}

long Bridge::Write(End to, const void* from, size_t bytes, int flags) {
  flags |= MSG_DONTWAIT | MSG_NOSIGNAL;
  if (!to.is_ring) {
    const ssize_t put = send(to.fd, from, bytes, flags);
    return put >= 0 ? put : -errno;
  }
  Call call(g_family, to.fd);
  pstn_ep* const ep = call.ep();
  if (ep == nullptr) return -EBADF;
  iovec iov{const_cast<void*>(from), bytes};
  const long put = StreamSend(g_family, call, &iov, 1, flags);
  // The peer has closed: like the first write to such a TCP connection, this one went nowhere, and
  // what answers it is a reset. The program may not write again.
  return put > 0 && (LoadRelaxed(ep->flags) & PSTN_EPF_HUNG) != 0 ? -EPIPE : put;
}

// The urgent byte comes next. A read stops before it.
bool Bridge::AtMark(End end) {
  int at = 0;
  if (!end.is_ring) return ioctl(end.fd, SIOCATMARK, &at) == 0 && at != 0;
  const Call call(g_family, end.fd);
  pstn_ep* ep = call.ep();
  return ep != nullptr && SockIoctl(g_family, end.fd, *ep, SIOCATMARK, &at) == 0 && at != 0;
}

void Bridge::ShutWrite(End end) {
  if (!end.is_ring) return (void)shutdown(end.fd, SHUT_WR);
  const Call call(g_family, end.fd);
  if (pstn_ep* ep = call.ep()) (void)SockShutdown(g_family, end.fd, *ep, SHUT_WR);
}

// What was written to a peer that has closed its end comes back as a reset, and behind the end no
// read is left to tell of it.
bool Bridge::IsReset(End end) {
  int error = 0;
  socklen_t len = sizeof error;
  if (!end.is_ring)
    return getsockopt(end.fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error != 0;
  const Call call(g_family, end.fd);  // before it was bridged, too; the program has not been told
  pstn_ep* const ep = call.ep();
  return ep != nullptr &&
         SockGetOpt(g_family, end.fd, *ep, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error != 0;
}

// False: nothing more to do until an event comes.
bool Bridge::Step(Flow& flow, End from, End to, bool* busy) {
  if (flow.closed) return false;
  if (flow.at == flow.held.size() && !flow.ended) {
    flow.urgent = AtMark(from);
    const long got = Read(from, scratch, flow.urgent ? 1 : sizeof(scratch));
    if (got == -EAGAIN || got == -EINTR) return false;
    if (got < 0) {
      reset_ = true;
      return false;
    }
    flow.ended = got == 0;
    flow.held.assign(scratch, scratch + got);
    flow.at = 0;
  }
  while (flow.at < flow.held.size()) {
    const long put = Write(to, flow.held.data() + flow.at, flow.held.size() - flow.at,
                           flow.urgent ? MSG_OOB : 0);
    if (put == -EAGAIN || put == -EINTR) return false;
    if (put < 0) {  // the reader has closed: as TCP, which answers with a reset
      reset_ = true;
      return false;
    }
    flow.at += static_cast<size_t>(put);
  }
  if (flow.ended) {
    ShutWrite(to);
    flow.closed = true;
    std::vector<uint8_t>().swap(flow.held);
    flow.at = 0;
    return false;
  }
  *busy = true;
  return true;
}

Bridge::State Bridge::Pump() {
  bool busy = true;
  for (int i = 0; i < kChunksPerTurn && busy && !reset_; ++i) {
    busy = false;
    Step(out_, first_, second_, &busy);
    if (!reset_) Step(in_, second_, first_, &busy);
  }
  reset_ = reset_ || (in_.closed && IsReset(second_)) || (out_.closed && IsReset(first_));
  if (reset_ || (out_.closed && in_.closed)) return State::kDone;
  if (!busy) {  // idle bridges are many: they keep no buffer
    for (Flow* flow : {&out_, &in_}) {
      if (flow->at != flow->held.size()) continue;
      std::vector<uint8_t>().swap(flow->held);
      flow->at = 0;
    }
  }
  return busy ? State::kBusy : State::kWaiting;
}

}  // namespace postern::keeper
