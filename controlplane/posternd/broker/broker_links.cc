// broker_links.cc - link groups between stacks of different members.
// SPDX-License-Identifier: Apache-2.0
//
// The client's daemon makes the memory, the broker carries it to the server's daemon, and no other
// process gets it. The broker remembers which daemons have the two ends, so that either hears of
// the other's.
#include <algorithm>
#include <cerrno>
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
  return static_cast<uint32_t>(std::count_if(links_.begin(), links_.end(), [&](const auto& link) {
    return Same(link.second.stack[0], client) && Same(link.second.stack[1], server);
  }));
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
  if (!links_.emplace(message.id, Link{{message.peer, message.uuid}, std::move(held)}).second)
    return client.Reply(message, EEXIST);
  ctl::Msg passed_on = message;
  ctl::SetWhose(passed_on, who.uid, who.gid);
  passed_on.d = member.who.netns != MemberOf(to)->who.netns ? 1 : 0;
  if (asks_.open(to) >= kAsksMax) {
    links_.erase(message.id);
    return client.Reply(message, EAGAIN);
  }
  asks_.Ask(to, passed_on, Share(std::move(fd)),
            [this, line = &client, message](int status, const ctl::Msg&, UniqueFd) {
              if (status != 0) links_.erase(message.id);
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
    it = links_.try_emplace(message.id).first;
    it->second.held = std::move(held);
  }
  Link& link = it->second;
  if (fresh) {
    link.stack[side] = message.uuid;
    link.stack[1 - side] = message.peer;
    link.known[1 - side] = false;
  }
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
  links_.erase(it);
  const auto other = stacks_.find(survivor);
  if (was_known && other != stacks_.end() && other->second.member != nullptr) {
    ctl::Msg message;
    message.type = ctl::Type::kLinkEnd;
    message.id = id;
    message.a = side;
    other->second.member->Send(message);
  }
  ForgetIfDead(ended);
  ForgetIfDead(survivor);
}

}  // namespace postern::daemon
