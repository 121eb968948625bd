// client.h - one connection to posternd: whole messages in, a bounded queue of messages out.
// SPDX-License-Identifier: Apache-2.0
//
// Nothing here waits. A client that does not read its messages fills its queue and is cut off; it
// can connect again, say hello and ask for what it missed. The end of the connection says nothing
// about the process: exec and closefrom() close it too (see registry.h).
#pragma once
#include <sys/socket.h>

#include <deque>
#include <functional>
#include <memory>

#include "../kit/event.h"
#include "../kit/fd.h"
#include "ctl/proto.h"

namespace postern::daemon {

struct Process;

inline constexpr size_t kOutQueueMax = 1024;  // messages; a stack has at most kGroups.most links
inline constexpr int kMessagesPerTurn = 64;   // then the other clients get theirs

class Client {
 public:
  using OnMessage = std::function<void(Client&, const ctl::Msg&, UniqueFd)>;
  using OnGone = std::function<void(Client&)>;

  Client(event_base* base, UniqueFd socket, const ucred& peer, OnMessage on_message,
         OnGone on_gone);

  pid_t pid() const { return peer_.pid; }
  uid_t uid() const { return peer_.uid; }
  uint64_t id() const { return id_; }  // no other client has or had it
  // Sends now or later; the order is kept.
  void Send(const ctl::Msg& message, SharedFd fd = {});
  // Answers `request`: its type and seq, this status (a positive errno).
  void Reply(const ctl::Msg& request, int status);
  // on_gone will be called from the event loop, never from inside another call.
  void Break();
  bool broken() const { return broken_; }

  Process* process = nullptr;  // after hello
  bool stranger = false;       // of another user, and has not said hello yet

 private:
  struct Outgoing {
    ctl::Msg message;
    SharedFd fd;
  };
  void Readable();
  void Flush();
  // 1: a message was handled; 0: none there; -1: broken.
  int ReadOne();
  // 0, -EAGAIN, or another -errno.
  int WriteOne(const Outgoing& out);

  UniqueFd socket_;
  ucred peer_;
  const uint64_t id_;
  OnMessage on_message_;
  OnGone on_gone_;
  std::deque<Outgoing> queue_;
  bool broken_ = false;
  Event readable_, writable_, gone_;
};

}  // namespace postern::daemon
