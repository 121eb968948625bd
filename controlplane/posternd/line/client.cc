// client.cc - reading and writing packets with descriptors.
// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../kit/log.h"
#include "ctl/msg_packet.h"

namespace postern::daemon {
namespace {

// Such a socket has a port, or a peer, that others wait for: it is closed at once (kTcpSocket).
bool IsTcpOrUdp(int fd) {
  int domain = 0, protocol = 0;
  socklen_t size = sizeof(int);
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
         getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
         (domain == AF_INET || domain == AF_INET6) &&
         (protocol == IPPROTO_TCP || protocol == IPPROTO_UDP);
}

uint64_t clients_ever = 0;
constexpr uint32_t kLaterMs = 2;  // until there may be room to close what it sends
constexpr uint32_t kAgainMs = 10, kAgainMostMs = 1000;

}  // namespace

UniqueFd AcceptLine(const UniqueFd& listener) {
  UniqueFd line(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (line.ok() && getsockopt(line.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0)
    line.CameFrom(peer.uid);
  return line;
}

Client::Client(event_base* base, UniqueFd socket, const ucred& peer, OnMessage on_message,
               OnGone on_gone)
    : socket_(std::move(socket)),
      peer_(peer),
      id_(++clients_ever),
      on_message_(std::move(on_message)),
      on_gone_(std::move(on_gone)),
      readable_(base, socket_.get(), static_cast<short>(EV_READ | EV_PERSIST),
                [this] { Readable(); }),
      writable_(base, socket_.get(), EV_WRITE, [this] { FlushLater(); }),
      again_(base, -1, 0, [this] { Again(); }),
      gone_(base, -1, 0, [this] { on_gone_(*this); }),
      later_(base, -1, 0, [this] { readable_.Add(); }) {
  socket_.CameFrom(peer.uid);
  readable_.Add();
}

Client::~Client() {
  if (turns_ != nullptr) turns_->Leave(*this);
}

void Client::ServeInTurns(Turns& turns, Quota& fds, uint32_t fds_max) {
  turns_ = &turns;
  fds_ = &fds;
  fds_max_ = fds_max;
}

void Client::Break() {
  if (broken_) return;
  broken_ = true;
  if (turns_ != nullptr) turns_->Leave(*this);
  again_.Del();
  readable_.Del();
  writable_.Del();
  later_.Del();
  queue_.clear();
  fds_queued_ = 0;
  gone_.AddMs(0);
}

bool Client::IsFull() const {
  return turns_ != nullptr && (queue_.size() + passed_on_ >= kUnansweredMax ||
                               fds_queued_ + passed_on_ >= kUnansweredFdsMax);
}

void Client::PassedBack() {
  --passed_on_;
  if (!broken_) Flush();
}

bool Client::TakeTurn() {
  full_ = IsFull();
  if (broken_ || full_ || !MayRead()) return false;
  const int result = ReadOne();
  if (result < 0) Break();
  if (result == 0 && !broken_) readable_.Add();
  return result > 0 && !broken_;
}

void Client::Readable() {
  if (turns_ != nullptr) {
    readable_.Del();
    return turns_->Enter(*this);
  }
  for (int i = 0; i < kMessagesPerTurn && !broken_; ++i) {
    if (!MayRead()) return;
    const int result = ReadOne();
    if (result < 0) Break();
    if (result <= 0) return;
  }
}

bool Client::MayRead() {
  if (RoomToClose(uid()) != CloserRoom::kLater) return true;
  readable_.Del();
  later_.AddMs(kLaterMs);
  return false;
}

int Client::ReadOne() {
  ctl::Msg message;
  ctl::Packet packet(message);
  const ssize_t got = recvmsg(socket_.get(), &packet.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  UniqueFd fd(packet.TakeFd([this](int extra) { CloseElsewhere(extra, uid()); }), uid());
  if (fd.ok() && IsTcpOrUdp(fd.get())) fd.CameFrom(kTcpSocket);
  if (got == 0) return -1;
  if (got != sizeof(message) || (packet.header.msg_flags & MSG_TRUNC) != 0) {
    Warn("pid %d sent a malformed packet", peer_.pid);
    return -1;
  }
  if (message.version != ctl::kProtoVersion) {
    Warn("pid %d speaks protocol version %u, not %u", peer_.pid, message.version,
         ctl::kProtoVersion);
    Reply(message, EPROTONOSUPPORT);
    return -1;
  }
  lost_fd_ = packet.LostFd();
  if (lost_fd_) {
    Warn("a descriptor of pid %d is lost: no more can be open here", peer_.pid);
    if (message.status == 0) message.status = EMFILE;
    fd.Reset();
  }
  if (fd.ok() && RoomToClose(uid()) == CloserRoom::kNone) {
    Reply(message, EBUSY);
  } else {
    on_message_(*this, message, std::move(fd));
  }
  return 1;
}

void Client::Reply(const ctl::Msg& request, int status) {
  ctl::Msg reply;
  reply.type = request.type;
  reply.seq = request.seq;
  reply.status = status;
  Send(reply);
}

void Client::Send(const ctl::Msg& message, SharedFd fd) {
  if (broken_) return;
  if (queue_.size() >= kOutQueueMax) {
    Warn("pid %d does not read its messages: cut off", peer_.pid);
    return Break();
  }
  if (fd != nullptr) ++fds_queued_;
  queue_.push_back({message, std::move(fd)});
  if (queue_.size() == 1) Flush();
}

void Client::SendOnce(const ctl::Msg& message) {
  const bool waits = std::any_of(queue_.begin(), queue_.end(), [&](const Outgoing& out) {
    return out.message.seq == message.seq && out.message.type == message.type &&
           out.message.a == message.a && out.message.b == message.b;
  });
  if (!waits) Send(message);
}

void Client::FlushLater() {
  const bool waited = !queue_.empty();
  Flush();
  if (waited && queue_.empty() && !broken_ && on_drained) on_drained();
}

void Client::Flush() {
  while (!queue_.empty()) {
    const int error = WriteOne(queue_.front());
    if (error == -EAGAIN) return writable_.Add();
    if (error == -EBUSY) return Later();
    if (error != 0) return Break();
    if (queue_.front().fd != nullptr) --fds_queued_;
    queue_.pop_front();
  }
  if (!under_way_.empty()) Later();
  if (!full_ || IsFull()) return;
  full_ = false;
  readable_.Add();
}

// What the socket does not tell: that the descriptors were taken, or that the kernel would take
// more of them.
void Client::Later() {
  if (again_.pending()) return;
  again_ms_ = std::clamp(again_ms_ * 2, kAgainMs, kAgainMostMs);
  again_.AddMs(again_ms_);
}

void Client::Again() {
  int unread = 0;
  if (ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread == 0) {
    under_way_.clear();
    again_ms_ = 0;
  }
  FlushLater();
}

bool Client::MayPassFd() {
  if (fds_ == nullptr) return true;
  int unread = 0;
  if (!under_way_.empty() && ioctl(socket_.get(), SIOCOUTQ, &unread) == 0 && unread == 0)
    under_way_.clear();
  if (under_way_.size() >= kFdsUnderWayMax) return false;
  Quota::Held one = fds_->Take(peer_.uid, fds_max_);
  if (!one.ok()) return false;
  under_way_.push_back(std::move(one));
  return true;
}

// -EAGAIN: until the socket is writable. -EBUSY: it may be so already.
int Client::WriteOne(const Outgoing& out) {
  const bool with_fd = out.fd != nullptr;
  if (with_fd && !MayPassFd()) return -EBUSY;
  ctl::Packet packet(out.message, with_fd ? out.fd->get() : -1);
  const ssize_t sent = sendmsg(socket_.get(), &packet.header, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return 0;
  if (with_fd && !under_way_.empty()) under_way_.pop_back();
  if (errno == EAGAIN || errno == EINTR) return -EAGAIN;
  // ETOOMANYREFS: more descriptors under way than our limit of open files.
  return errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS ? -EBUSY : -errno;
}

}  // namespace postern::daemon
