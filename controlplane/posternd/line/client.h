// client.h - one connection to posternd: whole messages in, a bounded queue of messages out.
// SPDX-License-Identifier: Apache-2.0
//
// Nothing here waits. A client that does not read its messages fills its queue and is cut off; it
// can connect again, say hello and ask for what it missed. The end of the connection says nothing
// about the process: exec and closefrom() close it too (see registry.h).
//
// What comes from a client is closed elsewhere (guard/closer.h), and so is its line, with the
// messages that were not read. While that takes too long, its messages are not read, or refused if
// they carry descriptors.
#pragma once
#include <sys/socket.h>

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "../kit/event.h"
#include "../kit/fd.h"
#include "ctl/proto.h"
#include "quota.h"
#include "turns.h"

namespace postern::daemon {

struct Process;

inline constexpr size_t kOutQueueMax = 1024;  // messages; a stack has at most kGroups.most links
inline constexpr int kMessagesPerTurn = 64;   // then the other clients get theirs
// Of a line that has turns: with that much to be answered it is read no further.
inline constexpr size_t kUnansweredMax = 64, kUnansweredFdsMax = 8;
// Descriptors that were sent to one line and are not known to have been taken.
inline constexpr size_t kFdsUnderWayMax = 16;

// The next connection of a listening socket, or not ok() with errno set. What its maker has sent
// already is closed with it.
UniqueFd AcceptLine(const UniqueFd& listener);

class Client {
 public:
  using OnMessage = std::function<void(Client&, const ctl::Msg&, UniqueFd)>;
  using OnGone = std::function<void(Client&)>;

  Client(event_base* base, UniqueFd socket, const ucred& peer, OnMessage on_message,
         OnGone on_gone);
  ~Client();
  // From now on: a message at a time, when it is its turn; none while its answers are not taken;
  // and no more descriptors under way than `fds` has for its user. (The kernel counts those of all
  // lines against one limit of ours.)
  void ServeInTurns(Turns& turns, Quota& fds, uint32_t fds_max);
  // Takes a message, if there is one. False: it is to Enter() again by itself.
  bool TakeTurn();
  // How much waits to be taken.
  size_t queued() const { return queue_.size(); }

  pid_t pid() const { return peer_.pid; }
  uid_t uid() const { return peer_.uid; }
  uint64_t id() const { return id_; }  // no other client has or had it
  // Sends now or later; the order is kept.
  void Send(const ctl::Msg& message, SharedFd fd = {});
  // Unless the same waits to be taken already.
  void SendOnce(const ctl::Msg& message);
  // Called from the event loop when all that waited has been taken.
  std::function<void()> on_drained;
  // Of a line that has turns: a question of its is another daemon's to answer, and was answered. It
  // is read no further while many are.
  void PassedOn() { ++passed_on_; }
  void PassedBack();
  // Answers `request`: its type and seq, this status (a positive errno).
  void Reply(const ctl::Msg& request, int status);
  // on_gone will be called from the event loop, never from inside another call.
  void Break();
  bool broken() const { return broken_; }
  // In a call of on_message: the message's descriptor is lost, since no more can be open here. Its
  // status says so: that of an answer is read, a question gets it for an answer.
  bool lost_fd() const { return lost_fd_; }

  Process* process = nullptr;  // after hello
  bool stranger = false;       // of another user, and has not said hello yet
  SharedFd handed;             // a connection that it has not said to have got (kTakeHeld)

 private:
  struct Outgoing {
    ctl::Msg message;
    SharedFd fd;
  };
  void Readable();
  bool MayRead();
  void Flush();
  void FlushLater();
  bool IsFull() const;
  void Again();
  void Later();
  // Whether one more descriptor may be sent now.
  bool MayPassFd();
  // 1: a message was handled; 0: none there; -1: broken.
  int ReadOne();
  // 0, -EAGAIN, -EBUSY, or another -errno.
  int WriteOne(const Outgoing& out);

  UniqueFd socket_;
  ucred peer_;
  const uint64_t id_;
  OnMessage on_message_;
  OnGone on_gone_;
  std::deque<Outgoing> queue_;
  bool broken_ = false;
  bool lost_fd_ = false;
  Turns* turns_ = nullptr;
  Quota* fds_ = nullptr;
  uint32_t fds_max_ = 0;
  std::vector<Quota::Held> under_way_;
  size_t fds_queued_ = 0;
  size_t passed_on_ = 0;
  bool full_ = false;      // not read until it takes its answers
  uint32_t again_ms_ = 0;  // how long to wait before the next try, if it fails
  Event readable_, writable_, again_, gone_, later_;
};

}  // namespace postern::daemon
