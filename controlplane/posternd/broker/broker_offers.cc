// broker_offers.cc - whose listeners the members know.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "../directory/listener_check.h"
#include "../kit/log.h"
#include "../kit/proc.h"
#include "broker.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kPatienceMs = 50;
constexpr int kListsRest = 20;  // of the time that a look at the list takes

}  // namespace

Broker::OfferKey Broker::KeyOf(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen) {
  return {stack.hi, stack.lo, ep_idx, ep_gen};
}

// Addresses and ports mean something in their own network namespace only.
bool Broker::MayShow(const Member& owner, const Member& to, const Offered& listener) const {
  return &owner != &to && to.joined && owner.who.netns == to.who.netns &&
         to.Wants(listener.local.port) && MayReach(to, listener);
}

bool Broker::MayReach(const Member& from, const Offered& listener) const {
  const auto may = [&](const Who& who) {
    return policy_.Allows(who, listener.by, listener.local.port);
  };
  return may(from.who) || std::any_of(from.guests.begin(), from.guests.end(), [&](const auto& one) {
           Who guest = from.who;
           std::tie(guest.uid, guest.gid) = one;
           return may(guest);
         });
}

// What the socket says of itself; or, of one that was offered to the broker before this one, what
// the kernel's table says, which we can read in our own network namespace.
int Broker::Check(const Member& member, const ctl::Msg& message, const UniqueFd& fd,
                  Listener& listener) {
  if (message.a >= kSockets.most) return -EINVAL;
  if (fd.ok())
    return CheckListener(fd.get(), member.who.pid, WhoIs(member, message).uid, member.who.netns,
                         listener);
  if (message.cookie == 0) return -EINVAL;
  if (member.who.netns != OwnNetnsIno()) return -EXDEV;
  listener = ListenerIn(message);
  listener.netns_ino = member.who.netns;
  // A guest's may be one that root has bound.
  const uid_t guest = WhoIs(member, message).uid;
  const auto find = [&](int (*in)(const Listener&, uid_t)) {
    const int error = in(listener, member.who.uid);
    return error == -ENOENT && guest != member.who.uid ? in(listener, guest) : error;
  };
  const int error = find(FindListener);
  if (error != -ENOENT) return error;
  // It may share its port. Others wait while the list is read: a user who has had it read shows the
  // socket next time, as one of another network namespace does.
  const auto begin = std::chrono::steady_clock::now();
  std::erase_if(rests_, [begin](const auto& one) { return one.second <= begin; });
  if (rests_.count(member.who.uid) != 0) return -EXDEV;
  const int listed = find(FindInList);
  const auto end = std::chrono::steady_clock::now();
  rests_[member.who.uid] = end + kListsRest * (end - begin);
  return listed;
}

void Broker::Offer(Client& client, const ctl::Msg& message, UniqueFd fd) {
  Member& member = *MemberOf(client);
  Listener listener;
  int error = Check(member, message, fd, listener);
  const Stack* const stack = error == 0 ? Claim(client, message, message.uuid) : nullptr;
  if (error == 0 && stack == nullptr) error = -EPERM;
  const OfferKey key = KeyOf(message.uuid, message.a, message.b);
  Quota::Held held;
  if (error == 0 && member.offers.count(key) == 0) {
    held = quota_.offers.Take(stack->who.uid, policy_.listeners_max);
    if (!held.ok()) error = -ENOSPC;
  }
  if (error != 0) {
    fd.Reset();
    Warn("daemon %d may not offer a listener: %s", member.who.pid, strerror(-error));
    return client.Reply(message, -error);
  }
  listener.stack = message.uuid;
  listener.ep_idx = message.a;
  listener.ep_gen = message.b;
  listener.backlog = message.c;
  Offered& offer = member.offers[key];
  Unindex(key, offer);
  static_cast<Listener&>(offer) = listener;
  offer.by = stack->who;
  Index(key, offer);
  if (held.ok()) offer.held = std::move(held);
  offered_[key] = &client;
  std::set<Client*> hear = told_all_;
  if (const auto its = seekers_.find(offer.local.port); its != seekers_.end())
    hear.insert(its->second.begin(), its->second.end());
  for (Client* const other : hear) {
    Member& to = *MemberOf(*other);
    if (MayShow(member, to, offer)) NewFor(to, key, offer.by.uid);
  }
  if (listener.netns_ino == OwnNetnsIno()) {
    listening_.Add(listener);
    listening_.Hear(listener, fd.get());
  }
  fd.Reset();  // a copy kept here would keep the port taken
  client.Reply(message, 0);
}

void Broker::Index(const OfferKey& key, const Offered& offer) {
  cookies_.insert({offer.cookie, key});
  at_port_[{offer.netns_ino, offer.local.port}].insert(key);
}

void Broker::Unindex(const OfferKey& key, const Offered& offer) {
  cookies_.erase({offer.cookie, key});
  const auto next = cookies_.lower_bound({offer.cookie, KeyOf(offer.stack, 0, 0)});
  const bool has_another = next != cookies_.end() && next->first == offer.cookie &&
                           std::get<0>(next->second) == offer.stack.hi &&
                           std::get<1>(next->second) == offer.stack.lo;
  if (!has_another) (void)listening_.Forget(offer);
  const auto there = at_port_.find({offer.netns_ino, offer.local.port});
  if (there == at_port_.end()) return;
  there->second.erase(key);
  if (there->second.empty()) at_port_.erase(there);
}

void Broker::Unoffer(Client& client, const ctl::Msg& message, UniqueFd) {
  const OfferKey key = KeyOf(message.uuid, message.a, message.b);
  const auto& offers = MemberOf(client)->offers;
  const auto offer = offers.find(key);
  if (offer == offers.end()) return client.Reply(message, ENOENT);
  DropOffer(key);
  ForgetIfDead(message.uuid);
  Withdraw(key, [this, line = &client, message] {
    if (members_.count(line) != 0) line->Reply(message, 0);
  });
}

void Broker::DropOffer(const OfferKey& key) {
  const auto by = offered_.find(key);
  if (by == offered_.end()) return;
  auto& offers = MemberOf(*by->second)->offers;
  Unindex(key, offers.at(key));
  offers.erase(key);
  offered_.erase(by);
}

void Broker::OfferEnded(uint64_t cookie) {
  std::vector<OfferKey> gone;
  for (auto it = cookies_.lower_bound({cookie, {}}); it != cookies_.end() && it->first == cookie;
       ++it)
    gone.push_back(it->second);
  for (const OfferKey& key : gone) DropOffer(key);
  for (const OfferKey& key : gone) {
    ForgetIfDead({std::get<0>(key), std::get<1>(key)});
    Withdraw(key, [] {});
  }
}

void Broker::Withdraw(const OfferKey& key, std::function<void()> done) {
  // Called by the last of them.
  const std::shared_ptr<void> last(nullptr, [done = std::move(done)](void*) { done(); });
  const auto knowers = knowers_.find(key);
  if (knowers == knowers_.end()) return;
  for (Client* const line : std::set<Client*>(knowers->second)) {
    Member& member = *MemberOf(*line);
    Told& told = member.told;
    if (!IsSlow(member.who.uid)) {
      const auto now = std::chrono::steady_clock::now();
      if (told.awaited.empty()) told.awaited_since = now;
      told.awaited.try_emplace(key, Told::Awaited{{}, now}).first->second.by.push_back(last);
      if (!patience_.pending()) patience_.AddMs(kPatienceMs);
    }
    Changed(member, key);
  }
}

}  // namespace postern::daemon
