// broker_links.cc - link groups between stacks of different members.
// SPDX-License-Identifier: Apache-2.0
//
// The client's daemon makes the memory, the broker carries it to the server's daemon, and no other
// process gets it. The broker remembers which daemons have the two ends, so that either hears of
// the other's.
#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>
#include <vector>

#include "../directory/listener_check.h"
#include "../kit/log.h"
#include "../kit/proc.h"
#include "broker.h"
#include "state/area.h"

namespace postern::daemon {
namespace {

// In which a daemon that lost us, or a process that lost its daemon, comes back.
constexpr uint32_t kLinkGraceMs = 3000;
// Of one member, at once, whoever wants to be linked with it.
constexpr size_t kAsksMax = 256;

}  // namespace

uint32_t Broker::LinksBetween(const pstn_uuid& client, const pstn_uuid& server) const {
  const auto its = links_of_.find(client);
  if (its == links_of_.end()) return 0;
  return static_cast<uint32_t>(
      std::count_if(its->second.begin(), its->second.end(), [&](const pstn_uuid& id) {
        const Link& link = links_.at(id);
        return Same(link.stack[0], client) && Same(link.stack[1], server);
      }));
}

// False: there is one of that id.
bool Broker::AddLink(const pstn_uuid& id, const pstn_uuid& client, const pstn_uuid& server,
                     Quota::Held held) {
  const auto [it, fresh] = links_.try_emplace(id);
  if (!fresh) return false;
  it->second.stack[0] = client;
  it->second.stack[1] = server;
  it->second.held = std::move(held);
  links_of_[client].insert(id);
  links_of_[server].insert(id);
  return true;
}

void Broker::DropLink(const pstn_uuid& id) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  for (const pstn_uuid& stack : it->second.stack) {
    const auto its = links_of_.find(stack);
    if (its == links_of_.end()) continue;
    its->second.erase(id);
    if (its->second.empty()) links_of_.erase(its);
  }
  links_.erase(it);
}

// A daemon that was shown a listener of that stack may be linked with the stack, if the policy
// still has it so, and it still listens. (In another network namespace that one's daemons know.)
bool Broker::MayLink(const Member& from, const Who& client, const Member& to,
                     const pstn_uuid& server) {
  std::vector<uint64_t> gone;
  bool may = false;
  const bool ours = to.who.netns == OwnNetnsIno();
  for (auto it = to.offers.lower_bound(KeyOf(server, 0, 0));
       !may && it != to.offers.end() && Same(it->second.stack, server); ++it) {
    const Offered& l = it->second;
    if (!from.told.shown.Has(it->first) || !policy_.Allows(client, l.by, l.local.port)) continue;
    may = !ours || StillListens(l) != -ENOENT;
    if (!may) gone.push_back(l.cookie);
  }
  for (const uint64_t cookie : gone) OfferEnded(cookie);
  return may;
}

void Broker::MakeLink(Client& client, const ctl::Msg& message, UniqueFd fd) {
  const Member& member = *MemberOf(client);
  const auto server = stacks_.find(message.uuid);
  const Stack* const own = fd.ok() ? Claim(client, message, message.peer) : nullptr;
  if (own == nullptr) return client.Reply(message, EINVAL);
  const Who who = own->who;
  if (server == stacks_.end() || server->second.member == nullptr)
    return client.Reply(message, ENOENT);
  Client& to = *server->second.member;
  if (&to == &client || !MayLink(member, who, *MemberOf(to), message.uuid))
    return client.Reply(message, EPERM);
  Quota::Held held = quota_.links.Take(who.uid, policy_.links_max);
  if (!held.ok()) {
    Warn("user %u has %u link groups, as many as the policy allows", who.uid, policy_.links_max);
    return client.Reply(message, ENOSPC);
  }
  if (LinksBetween(message.peer, message.uuid) >= PSTN_PAIR_LGRS)
    return client.Reply(message, ENOSPC);
  if (SegmentBytes(fd.get()) != PSTN_LGR_BYTES) return client.Reply(message, EINVAL);
  if (!AddLink(message.id, message.peer, message.uuid, std::move(held)))
    return client.Reply(message, EEXIST);
  ctl::Msg passed_on = message;
  ctl::SetWhose(passed_on, who.uid, who.gid);
  passed_on.d = member.who.netns != MemberOf(to)->who.netns ? 1 : 0;
  if (asks_.open(to) >= kAsksMax) {
    DropLink(message.id);
    return client.Reply(message, EAGAIN);
  }
  asks_.Ask(to, passed_on, Share(std::move(fd)),
            [this, line = &client, message](int status, const ctl::Msg&, UniqueFd) {
              if (status != 0) DropLink(message.id);
              if (members_.count(line) != 0) line->Reply(message, status);
            });
}

// After a restart of the broker, or of a daemon.
void Broker::HaveLink(Client& client, const ctl::Msg& message, UniqueFd) {
  const uint32_t side = message.a;
  const Stack* const own = side <= 1 ? Claim(client, message, message.uuid) : nullptr;
  if (own == nullptr) return client.Reply(message, EPERM);
  auto it = links_.find(message.id);
  const bool fresh = it == links_.end();
  if (fresh) {
    Quota::Held held = quota_.links.Take(own->who.uid, policy_.links_max);
    if (!held.ok()) return client.Reply(message, ENOSPC);
    const pstn_uuid ends[2] = {message.uuid, message.peer};
    (void)AddLink(message.id, ends[side], ends[1 - side], std::move(held));
    it = links_.find(message.id);
    it->second.known[1 - side] = false;
  }
  Link& link = it->second;
  if (!Same(link.stack[side], message.uuid) || !Same(link.stack[1 - side], message.peer))
    return client.Reply(message, EEXIST);
  link.known[side] = true;
  client.Reply(message, 0);
  if (!link.known[1 - side] && !grace_.pending()) grace_.AddMs(kLinkGraceMs);
}

// Ends what no daemon has come back for, a round after the one in which it was missed first.
void Broker::GraceEnds() {
  std::vector<std::pair<pstn_uuid, uint32_t>> ends;
  bool wait = false;
  for (auto& [id, link] : links_) {
    for (uint32_t side = 0; side < 2; ++side) {
      if (link.known[side]) continue;
      if (link.missed) ends.emplace_back(id, side);
      link.missed = wait = true;
    }
  }
  for (const auto& [id, side] : ends) EndSide(id, side);
  if (wait) grace_.AddMs(kLinkGraceMs);
}

void Broker::LinkEnd(Client& client, const ctl::Msg& message, UniqueFd) {
  const auto it = links_.find(message.id);
  if (it == links_.end() || message.a > 1) return;
  const auto stack = stacks_.find(it->second.stack[message.a]);
  if (stack == stacks_.end() || stack->second.member != &client) return;
  EndSide(message.id, message.a);
}

void Broker::EndSide(const pstn_uuid& id, uint32_t side) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  const pstn_uuid ended = it->second.stack[side], survivor = it->second.stack[1 - side];
  // A link group that only the one side says to have is nothing to the other.
  const bool was_known = it->second.known[1 - side];
  DropLink(id);
  const auto other = stacks_.find(survivor);
  if (was_known && other != stacks_.end() && other->second.member != nullptr) {
    Member& member = *MemberOf(*other->second.member);
    member.ended.emplace(id, side);
    TellNews(member);
  }
  ForgetIfDead(ended);
  ForgetIfDead(survivor);
}

// What has no answer, and is as much as there were link groups.
void Broker::TellNews(Member& to) {
  const auto has_room = [&to] { return to.client->queued() == 0 && !to.client->broken(); };
  ctl::Msg message;
  while (!to.ended.empty() && has_room()) {
    message.type = ctl::Type::kLinkEnd;
    std::tie(message.id, message.a) = *to.ended.begin();
    to.ended.erase(to.ended.begin());
    to.client->Send(message);
  }
  if (!to.vi_free || !has_room()) return;
  to.vi_free = false;
  message = {};
  message.type = ctl::Type::kVi;
  to.client->Send(message);
}

}  // namespace postern::daemon
