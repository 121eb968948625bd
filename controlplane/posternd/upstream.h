// upstream.h - a user's posternd as a member of the broker (broker.h), if the host has one.
// SPDX-License-Identifier: Apache-2.0
//
// While there is none, or it has gone, everything here is a no-op that succeeds: what others offer
// is withdrawn, link groups that are there go on.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "asks.h"
#include "client.h"
#include "directory.h"
#include "event.h"
#include "registry.h"

namespace postern::daemon {

class Upstream {
 public:
  Upstream(event_base* base, std::string socket_path, Directory& directory, Registry& registry);

  bool joined() const { return joined_; }
  bool withdrawing() const { return unoffers_ != 0; }
  // Without its socket: it was offered to the broker that was there before.
  void Offer(const Listener& listener, UniqueFd socket);
  // `done` when nobody else knows it any more.
  void Unoffer(const Listener& listener, std::function<void()> done);
  // To the daemon of the server's stack; its status, a positive errno.
  void Link(const LinkGroup& link, std::function<void(int)> done);
  void HaveLink(const LinkGroup& link, uint32_t side);
  void LinkEnd(const LinkGroup& link, uint32_t side);
  void Alive(const pstn_uuid& stack, pid_t pid, int pidfd);

 private:
  void Connect();
  void Join();
  void OnMessage(const ctl::Msg& message, UniqueFd fd);
  void OnGone();
  int TakeListener(const ctl::Msg& message);

  event_base* base_;
  const std::string path_;
  Directory& directory_;
  Registry& registry_;
  std::unique_ptr<Client> line_;
  bool joined_ = false;
  uint32_t unoffers_ = 0;  // not answered yet
  Asks asks_;
  Event retry_;
};

}  // namespace postern::daemon
