// client.cc - reading and writing packets with descriptors.
// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <cerrno>
#include <cstring>

#include "../kit/log.h"
#include "ctl/msg_packet.h"

namespace postern::daemon {
namespace {

uint64_t clients_ever = 0;

}  // namespace

Client::Client(event_base* base, UniqueFd socket, const ucred& peer, OnMessage on_message,
               OnGone on_gone)
    : socket_(std::move(socket)),
      peer_(peer),
      id_(++clients_ever),
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
  ctl::Packet packet(message);
  const ssize_t got = recvmsg(socket_.get(), &packet.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  UniqueFd fd(packet.TakeFd(close));
  if (got == 0) return -1;
  if (got != sizeof(message) || (packet.header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
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
  ctl::Packet packet(out.message, out.fd != nullptr ? out.fd->get() : -1);
  const ssize_t sent = sendmsg(socket_.get(), &packet.header, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return 0;
  // ETOOMANYREFS: more descriptors under way than our limit of open files; they will be taken.
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ETOOMANYREFS)
    return -EAGAIN;
  return -errno;
}

}  // namespace postern::daemon
