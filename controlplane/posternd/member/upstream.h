// upstream.h - a user's posternd as a member of the broker (broker.h), if the host has one.
// SPDX-License-Identifier: Apache-2.0
//
// While there is none, or it has gone, everything here is a no-op that succeeds: what others offer
// is withdrawn, link groups that are there go on.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "../directory/directory.h"
#include "../directory/reached.h"
#include "../kit/event.h"
#include "../line/asks.h"
#include "../line/client.h"
#include "../registry/registry.h"
#include "teller.h"

namespace postern::daemon {

class Upstream {
 public:
  Upstream(event_base* base, std::string socket_path, Directory& directory, Registry& registry);

  bool joined() const { return joined_; }
  // Whether it is known what the broker has to offer, or that there is none.
  bool settled() const { return settled_; }
  std::function<void()> on_settled;
  // Of our processes, link groups and listeners.
  Teller& teller() { return teller_; }
  // Others' listeners on that port are in the directory, as far as there is a broker that knows
  // any; `done` may be called at once.
  void Seek(uint16_t port, std::function<void()> done);
  // A process does not seek: all have to be there.
  void SeekAll();
  // To the daemon of the server's stack; its status, a positive errno.
  void Link(const LinkGroup& link, std::function<void(int)> done);
  // What the broker's device is asked (ctl/proto.h). `done` may be called at once, with ENOTCONN,
  // or EAGAIN: too much waits for the broker already. A filter that is removed waits, too.
  void Ask(const ctl::Msg& message, Asks::Done done, SharedFd with = {});
  // Of a token. It arrives, or the broker has forgotten the token with the line.
  void Release(uint64_t token);
  // How many messages wait to be taken by the broker.
  size_t queued() const { return line_ != nullptr ? line_->queued() + kept_.size() : 0; }
  // What has no answer, and may be lost: a hint.
  void Send(const ctl::Msg& message);
  // A guest's stack is not our user's: the broker is told whose it is.
  void SayWhose(ctl::Msg& message, const pstn_uuid& stack) const;
  // A process has reached a listener (the answer to kAttach), at `where`: it may be learnt.
  void NoteReached(const ctl::Msg& listener, const pstn_addr& where);
  // The addresses of our network namespace are others now.
  void TellAddresses();

  std::function<void()> on_vi_free;
  std::function<void()> on_join;  // the processes' listeners are unknown to this broker
  std::function<void(const pstn_host&)> on_host;  // zero: there is no broker any more

 private:
  void Connect();
  void Join(bool seeks);
  void OnMessage(const ctl::Msg& message, UniqueFd fd);
  void OnGone();
  int TakeListener(const ctl::Msg& message);
  void TakeHost(const UniqueFd& fd);
  void ForgetLearnt();
  void TellAgain();
  void Sought(uint16_t port, int status, bool all);
  bool IsLong() const;
  void Keep(const ctl::Msg& message, Asks::Done done);
  void SayKept();
  void Settle();

  event_base* base_;
  const std::string path_;
  Directory& directory_;
  Registry& registry_;
  std::unique_ptr<Client> line_;
  bool joined_ = false, settled_ = false;
  bool seeks_all_ = false;
  // What has to arrive, and waits until the broker takes more. Without `done` it has no answer.
  struct Kept {
    ctl::Msg message;
    Asks::Done done;
  };
  std::deque<Kept> kept_;
  std::map<uint16_t, std::vector<std::function<void()>>> seeking_;
  Asks asks_;
  Teller teller_;
  std::map<ListenerKey, Clock::time_point> learnt_;  // until then
  Reached reached_;
  Event retry_, forget_, again_;
};

}  // namespace postern::daemon
