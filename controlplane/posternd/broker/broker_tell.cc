// broker_tell.cc - how the members hear of each other's listeners, and of the host.
// SPDX-License-Identifier: Apache-2.0
//
// What a member is to be told is not a queue of news, which one user could make another's grow, but
// the offers of which it does not know the present state: however often one changes, it is told
// once, when it has taken what it was told before. A member that joins a host with many listeners
// hears of all of them, some at a time.
//
// It hears of what it asks for: of the listeners on the ports that its programs connect to (kSeek),
// from then on. Else a thousand members with a hundred listeners each would be told a hundred
// million times. One that does not know how to ask, or that has asked for very many ports, is told
// of all that it has places for (told_all_).
//
// Others wait for it where a listener is withdrawn, so that no client of it is led to a listener
// that is gone. They wait for a moment only, or, while it answers, for some: what it is to hear
// before may be its own user's making, and never end. One that is later than that is not waited for
// in the next seconds, nor are other members of its user.
#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "broker.h"

namespace postern::daemon {
namespace {

constexpr size_t kToldAtOnce = 32;
constexpr size_t kSoughtMost = 1024;  // ports of one member, each an entry of ours
constexpr int kLookedAtOnce = 256;
constexpr uint32_t kWaitMs = 50;
constexpr uint32_t kRefillMs = 10000;
constexpr auto kWaitMost = std::chrono::milliseconds(100);      // for an answer
constexpr auto kWaitLongest = std::chrono::milliseconds(1000);  // for the one that is wanted
constexpr auto kSlowFor = std::chrono::seconds(10);

}  // namespace

void Broker::Changed(Member& to, const OfferKey& key) {
  to.told.stale.insert(key);
  Tell(to);
}

// Of what a member has no room for, nothing is kept; nor of more than it could hold, while it does
// not take what it was told before.
void Broker::NewFor(Member& to, const OfferKey& key, uid_t owner) {
  Told& told = to.told;
  const bool late = told.stale.size() >= kForeignMost;
  if (told.shown.Has(key) || (!late && told.shown.HasRoom(owner))) return Changed(to, key);
  told.left_out = true;
  if (late && !refill_.pending()) refill_.AddMs(kRefillMs);
}

void Broker::Tell(Member& to) {
  if (!to.joined) return;
  LookFurther(to);
  Told& told = to.told;
  for (auto it = told.stale.begin(); it != told.stale.end() && told.asked.size() < kToldAtOnce;) {
    const OfferKey key = *it;
    if (told.asked.count(key) != 0) {
      ++it;
      continue;
    }
    it = told.stale.erase(it);
    TellOf(to, key);
  }
  if (!told.has_seen_all && told.stale.size() < kToldAtOnce && !tell_further_.pending())
    tell_further_.AddMs(0);
}

void Broker::TellOf(Member& to, const OfferKey& key) {
  SayHowItIs(to, key);
  const auto done = to.told.before.extract(key);
}

// Offered, or gone.
void Broker::SayHowItIs(Member& to, const OfferKey& key) {
  Told& told = to.told;
  const auto owner = offered_.find(key);
  const Member* const by = owner != offered_.end() ? MemberOf(*owner->second) : nullptr;
  const bool may = by != nullptr && MayShow(*by, to, by->offers.at(key));
  const bool room = may && (told.shown.Has(key) || told.shown.HasRoom(by->offers.at(key).by.uid));
  const bool show = may && room;
  told.left_out = told.left_out || (may && !room);
  if (!show && !Hide(to, key)) {
    told.awaited.erase(key);
    return;
  }
  if (!show && told.left_out && !refill_.pending()) refill_.AddMs(kRefillMs);
  ctl::Msg message;
  if (show) {
    message = MessageOf(ctl::Type::kListener, by->offers.at(key));
    Show(to, key, by->offers.at(key).by.uid);
  } else {
    message.type = ctl::Type::kGone;
    message.uuid = {std::get<0>(key), std::get<1>(key)};
    message.a = std::get<2>(key);
    message.b = std::get<3>(key);
  }
  told.asked.insert(key);
  knowers_[key].insert(to.client.get());
  asks_.Ask(
      *to.client, message, {},
      [this, line = to.client.get(), key](int, const ctl::Msg&, UniqueFd) { Answered(line, key); });
}

void Broker::Answered(Client* line, const OfferKey& key) {
  const auto it = members_.find(line);
  if (it == members_.end()) return;
  Told& told = it->second->told;
  told.asked.erase(key);
  ForgetKnower(*it->second, key);
  // Unless it was told before this one changed.
  if (told.stale.count(key) == 0) told.awaited.erase(key);
  told.awaited_since = std::chrono::steady_clock::now();
  Tell(*it->second);
}

// Not all at once: a host may have very many, and others wait meanwhile.
void Broker::LookFurther(Member& to) {
  Told& told = to.told;
  if (told.has_seen_all) return;
  auto it = offered_.lower_bound(told.next);
  for (int i = 0; i < kLookedAtOnce && it != offered_.end() && told.stale.size() < kToldAtOnce;
       ++i, ++it) {
    const Member& by = *MemberOf(*it->second);
    if (!told.shown.Has(it->first) && MayShow(by, to, by.offers.at(it->first)))
      told.stale.insert(it->first);
  }
  if (it != offered_.end()) told.next = it->first;
  told.has_seen_all = it == offered_.end();
}

void Broker::Show(Member& to, const OfferKey& key, uid_t owner) {
  to.told.shown.Add(key, owner);
  knowers_[key].insert(to.client.get());
}

bool Broker::Hide(Member& to, const OfferKey& key) {
  const bool knew = to.told.shown.Drop(key);
  ForgetKnower(to, key);
  return knew;
}

void Broker::ForgetKnower(const Member& member, const OfferKey& key) {
  if (member.told.shown.Has(key) || member.told.asked.count(key) != 0) return;
  const auto it = knowers_.find(key);
  if (it == knowers_.end()) return;
  it->second.erase(member.client.get());
  if (it->second.empty()) knowers_.erase(it);
}

// The answer goes behind the news of what is there. Once for each port: to look for what is there
// takes time, and each answer that waits takes room for each listener. What a member was told of
// all, or has asked for before, it hears of by itself.
void Broker::Seek(Client& client, const ctl::Msg& message, UniqueFd) {
  Member& member = *MemberOf(client);
  if (message.a > UINT16_MAX) return client.Reply(message, EINVAL);
  const auto port = static_cast<uint16_t>(message.a);
  if (member.sought.count(port) != 0) return client.Reply(message, EALREADY);
  const bool is_told_all = !member.seeks;
  if (member.seeks && (port == 0 || member.sought.size() >= kSoughtMost)) SeekAll(member);
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  reply.a = member.seeks ? port : 0;
  const std::shared_ptr<void> last(nullptr, [this, line = &client, reply](void*) {
    if (members_.count(line) != 0) line->Send(reply);
  });
  if (port == 0 || is_told_all) return;
  if (member.seeks && member.sought.insert(port).second) seekers_[port].insert(&client);
  const auto there = at_port_.find({member.who.netns, port});
  if (there == at_port_.end()) return;
  Told& told = member.told;
  for (const OfferKey& key : std::set<OfferKey>(there->second)) {
    const Member& by = *MemberOf(*offered_.at(key));
    const Offered& offer = by.offers.at(key);
    if (!MayShow(by, member, offer)) continue;
    if (!told.shown.Has(key)) NewFor(member, key, offer.by.uid);
    if (told.stale.count(key) != 0) told.before[key].push_back(last);
  }
}

void Broker::ForgetSought(Member& member) {
  for (const uint16_t port : std::exchange(member.sought, {})) {
    const auto it = seekers_.find(port);
    it->second.erase(member.client.get());
    if (it->second.empty()) seekers_.erase(it);
  }
}

void Broker::SeekAll(Member& member) {
  ForgetSought(member);
  member.seeks = false;
  told_all_.insert(member.client.get());
  LookAgain(member);
}

void Broker::ForgetTold(Member& gone) {
  ForgetSought(gone);
  told_all_.erase(gone.client.get());
  std::set<OfferKey> known = std::exchange(gone.told.asked, {});
  gone.told.shown.AddTo(known);
  gone.told.shown = {};
  for (const OfferKey& key : known) ForgetKnower(gone, key);
}

// From the beginning, of all that it is to be told of.
void Broker::LookAgain(Member& to) {
  Told& told = to.told;
  if (!to.seeks) {
    told.next = {};
    told.has_seen_all = false;
  }
  for (const uint16_t port : to.sought) {
    const auto there = at_port_.find({to.who.netns, port});
    if (there == at_port_.end()) continue;
    for (const OfferKey& key : there->second) {
      const Member& by = *MemberOf(*offered_.at(key));
      const Offered& offer = by.offers.at(key);
      if (!told.shown.Has(key) && MayShow(by, to, offer)) NewFor(to, key, offer.by.uid);
    }
  }
  Tell(to);
}

void Broker::Shown::Add(const OfferKey& key, uid_t uid) {
  if (of_.emplace(key, uid).second) count_[uid]++;
}

bool Broker::Shown::Drop(const OfferKey& key) {
  const auto it = of_.find(key);
  if (it == of_.end()) return false;
  if (--count_[it->second] == 0) count_.erase(it->second);
  of_.erase(it);
  return true;
}

bool Broker::Shown::HasRoom(uid_t uid) const {
  const auto it = count_.find(uid);
  const size_t has = it != count_.end() ? it->second : 0;
  return of_.size() < kForeignMost && (has == 0 || (has + 1) * 2 <= kForeignMost - of_.size());
}

void Broker::Shown::AddTo(std::set<OfferKey>& keys) const {
  for (const auto& [key, uid] : of_) keys.insert(key);
}

// There is room again in members that were not told of all: they hear of what they can hold.
void Broker::Refill() {
  for (const auto& [line, member] : members_) {
    if (std::exchange(member->told.left_out, false)) LookAgain(*member);
  }
}

// Others are told on by their answers.
void Broker::TellAll() {
  for (Client* const line : told_all_) Tell(*MemberOf(*line));
}

bool Broker::IsSlow(uid_t uid) {
  const auto it = slow_until_.find(uid);
  if (it == slow_until_.end()) return false;
  if (std::chrono::steady_clock::now() < it->second) return true;
  slow_until_.erase(it);
  return false;
}

void Broker::DoNotWait() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<void>> no_more;  // what they call may change all this
  bool wait = false;
  const auto is_late = [now](const auto& one) { return now - one.second.since >= kWaitLongest; };
  for (const auto& [line, member] : members_) {
    Told& told = member->told;
    if (told.awaited.empty()) continue;
    if (now - told.awaited_since < kWaitMost &&
        std::none_of(told.awaited.begin(), told.awaited.end(), is_late)) {
      wait = true;
      continue;
    }
    slow_until_[member->who.uid] = now + kSlowFor;
    for (auto& [key, one] : told.awaited)
      no_more.insert(no_more.end(), std::make_move_iterator(one.by.begin()),
                     std::make_move_iterator(one.by.end()));
    told.awaited.clear();
  }
  if (wait) patience_.AddMs(kWaitMs);
}

}  // namespace postern::daemon
