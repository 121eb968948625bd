// teller.h - what the broker is to hear of a daemon's processes, link groups and listeners.
// SPDX-License-Identifier: Apache-2.0
//
// It is told as fast as it takes it: kTellsAtOnce questions are under way at a time, and none waits
// in the line's queue. What waits is not copied. A daemon that joins has a place in each of its own
// tables, up to which it has told them. What changes meanwhile is known by its key, and is told as
// it is when its turn comes.
//
//   processes, link groups   the walk; one that comes while there is no room has it begin again
//   link groups that ended   a set of their ends
//   listeners withdrawn      a map of their keys, with those that wait for it
//   listeners that are new   a map of their keys, with their sockets; others by the walk
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "../directory/directory.h"
#include "../kit/event.h"
#include "../line/asks.h"
#include "../line/client.h"
#include "../registry/registry.h"

namespace postern::daemon {

// Few, since each of a thousand daemons that come to a new broker has so many.
inline constexpr size_t kTellsAtOnce = 32;

class Teller {
 public:
  Teller(event_base* base, const Directory& directory, Registry& registry, Asks& asks);

  // The broker has taken us, and knows nothing; the line has ended.
  void Begin(Client& line);
  void End();
  // There may be room again.
  void Pump();

  void Alive(const Process& process);
  void AliveAgain();  // all of them
  void HaveLink(const LinkGroup& link, uint32_t side);
  void LinkEnd(const LinkGroup& link, uint32_t side);
  void Offer(const Listener& listener, UniqueFd socket);
  // `done` when no other daemon knows it any more.
  void Unoffer(const Listener& listener, std::function<void()> done);
  bool withdrawing() const { return !gone_.empty() || unoffers_ != 0; }
  // The broker has taken a listener that shares its port.
  std::function<void(uint16_t port)> on_shared;
  // A listener is wanted again with its socket, which was not kept.
  std::function<void()> on_unsaid;

  // Offers that the broker has refused, one by one.
  uint64_t refused() const { return refused_; }

  // A guest's stack is not our user's: the broker is told whose it is.
  static void SayWhose(Registry& registry, ctl::Msg& message, const pstn_uuid& stack);

 private:
  using Dones = std::vector<std::function<void()>>;
  using ProcessAt = std::pair<pstn_uuid, uint32_t>;  // stack, slot
  bool HasRoom() const;
  bool TellNext();
  bool NextProcess();
  bool NextLink();
  bool NextListener();
  void SayAlive(const Process& process);
  void SayLink(const LinkGroup& link, uint32_t side);
  void SayLinkEnd(const pstn_uuid& id, uint32_t side);
  // news: it was not told to this broker before; else only what the kernel's table says is asked.
  void SayOffer(const Listener& listener, UniqueFd socket, bool news);
  void SayGone(const ListenerKey& key, Dones done);
  void Ask(const ctl::Msg& message, SharedFd fd, std::function<void(int)> done);

  const Directory& directory_;
  Registry& registry_;
  Asks& asks_;
  Client* line_ = nullptr;
  size_t under_way_ = 0, unoffers_ = 0;
  uint64_t refused_ = 0;
  bool pumping_ = false;
  // How far the tables are told. Nothing: all of it.
  std::optional<ProcessAt> processes_;  // the next one
  std::optional<pstn_uuid> links_;      // the last one
  std::optional<uint32_t> listeners_;   // the next one, by its entry
  std::set<ListenerKey> offered_;       // that this broker has taken
  std::map<ListenerKey, UniqueFd> fresh_;
  std::map<ListenerKey, Dones> gone_;
  std::set<std::tuple<uint64_t, uint64_t, uint32_t>> ended_;  // link group, side
  Event unsaid_;
};

}  // namespace postern::daemon
