// client.cc - reading and writing packets with descriptors.
// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <cerrno>
#include <cstring>

#include "log.h"

namespace postern::daemon {
namespace {

// Takes every descriptor of the packet; those that the protocol has no place for are closed.
UniqueFd TakeFd(msghdr& header) {
  UniqueFd first;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (!first.ok()) first = std::move(owned);
    }
  }
  return first;
}

}  // namespace

Client::Client(event_base* base, UniqueFd socket, const ucred& peer, OnMessage on_message,
               OnGone on_gone)
    : socket_(std::move(socket)),
      peer_(peer),
      on_message_(std::move(on_message)),
      on_gone_(std::move(on_gone)),
      readable_(base, socket_.get(), static_cast<short>(EV_READ | EV_PERSIST),
                [this] { Readable(); }),
      writable_(base, socket_.get(), EV_WRITE, [this] { Flush(); }),
      gone_(base, -1, 0, [this] { on_gone_(*this); }) {
  readable_.Add();
}

void Client::Break() {
  if (broken_) return;
  broken_ = true;
  readable_.Del();
  writable_.Del();
  queue_.clear();
  gone_.AddMs(0);
}

void Client::Readable() {
  for (int i = 0; i < kMessagesPerTurn && !broken_; ++i) {
    const int result = ReadOne();
    if (result < 0) Break();
    if (result <= 0) return;
  }
}

int Client::ReadOne() {
  ctl::Msg message;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec iov{&message, sizeof(message)};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  UniqueFd fd = TakeFd(header);
  if (got == 0) return -1;
  if (got != sizeof(message) || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    Warn("pid %d sent a malformed packet", peer_.pid);
    return -1;
  }
  if (message.version != ctl::kProtoVersion) {
    Warn("pid %d speaks protocol version %u, not %u", peer_.pid, message.version,
         ctl::kProtoVersion);
    Reply(message, EPROTONOSUPPORT);
    return -1;
  }
  on_message_(*this, message, std::move(fd));
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
  queue_.push_back({message, std::move(fd)});
  if (queue_.size() == 1) Flush();
}

void Client::Flush() {
  while (!queue_.empty()) {
    const int error = WriteOne(queue_.front());
    if (error == -EAGAIN) return writable_.Add();
    if (error != 0) return Break();
    queue_.pop_front();
  }
}

int Client::WriteOne(const Outgoing& out) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec iov{const_cast<ctl::Msg*>(&out.message), sizeof(out.message)};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  if (out.fd != nullptr) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = out.fd->get();
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  }
  const ssize_t sent = sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return 0;
  // ETOOMANYREFS: more descriptors under way than our limit of open files; they will be taken.
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ETOOMANYREFS)
    return -EAGAIN;
  return -errno;
}

}  // namespace postern::daemon
