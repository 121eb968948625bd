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

Bridge::Bridge(int ring_fd, int kernel_fd) : ring_fd_(ring_fd), kernel_fd_(kernel_fd) {
  const int on = 1;  // what came in one piece is not held back here
  (void)setsockopt(kernel_fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  (void)setsockopt(kernel_fd_, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));  // the ring's has it
}

Bridge::~Bridge() {
  if (reset_) {
    const linger now{1, 0};
    (void)setsockopt(kernel_fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    const Call call(g_family, ring_fd_);
    if (pstn_ep* ep = call.ep())
      (void)SockSetOpt(g_family, ring_fd_, *ep, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  (void)SockClose(g_family, ring_fd_, FdEntry(g_family, ring_fd_));
  close(kernel_fd_);
}

long Bridge::Read(bool from_ring, void* to, size_t bytes) {
  if (!from_ring) {
    const ssize_t got = recv(kernel_fd_, to, bytes, MSG_DONTWAIT);
    return got >= 0 ? got : -errno;
  }
  Call call(g_family, ring_fd_);
  iovec iov{to, bytes};
  return call.ep() != nullptr ? StreamRecv(g_family, call, &iov, 1, MSG_DONTWAIT) : -EBADF;
}

long Bridge::Write(bool to_ring, const void* from, size_t bytes, int flags) {
  flags |= MSG_DONTWAIT | MSG_NOSIGNAL;
  if (!to_ring) {
    const ssize_t put = send(kernel_fd_, from, bytes, flags);
    return put >= 0 ? put : -errno;
  }
  Call call(g_family, ring_fd_);
  iovec iov{const_cast<void*>(from), bytes};
  return call.ep() != nullptr ? StreamSend(g_family, call, &iov, 1, flags) : -EBADF;
}

// The urgent byte comes next. A read stops before it.
bool Bridge::AtMark(bool ring) {
  int at = 0;
  if (!ring) return ioctl(kernel_fd_, SIOCATMARK, &at) == 0 && at != 0;
  const Call call(g_family, ring_fd_);
  pstn_ep* ep = call.ep();
  return ep != nullptr && SockIoctl(g_family, ring_fd_, *ep, SIOCATMARK, &at) == 0 && at != 0;
}

void Bridge::ShutWrite(bool ring) {
  if (!ring) {
    (void)shutdown(kernel_fd_, SHUT_WR);
  } else {
    const Call call(g_family, ring_fd_);
    if (pstn_ep* ep = call.ep()) (void)SockShutdown(g_family, ring_fd_, *ep, SHUT_WR);
  }
}

// False: nothing more to do until an event comes.
bool Bridge::Step(Flow& flow, bool from_ring, bool* busy) {
  if (flow.closed) return false;
  if (flow.at == flow.held.size() && !flow.ended) {
    flow.urgent = AtMark(from_ring);
    const long got = Read(from_ring, scratch, flow.urgent ? 1 : sizeof(scratch));
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
    const long put = Write(!from_ring, flow.held.data() + flow.at, flow.held.size() - flow.at,
                           flow.urgent ? MSG_OOB : 0);
    if (put == -EAGAIN || put == -EINTR) return false;
    if (put < 0) {  // the reader has closed: as TCP, which answers with a reset
      reset_ = true;
      return false;
    }
    flow.at += static_cast<size_t>(put);
  }
  if (flow.ended) {
    ShutWrite(!from_ring);
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
    Step(out_, true, &busy);
    if (!reset_) Step(in_, false, &busy);
  }
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
