// teller.cc - see teller.h.
// SPDX-License-Identifier: Apache-2.0
#include "teller.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "../kit/log.h"
#include "../registry/slot_copy.h"

namespace postern::daemon {
namespace {

// New listeners that wait with their sockets. Of more, the broker is told what the kernel's table
// has of them; or, in another network namespace than its own, their processes are asked again.
constexpr size_t kFreshMost = 256;
constexpr uint32_t kUnsaidMs = 1000;

}  // namespace

Teller::Teller(event_base* base, const Directory& directory, Registry& registry, Asks& asks)
    : directory_(directory), registry_(registry), asks_(asks), unsaid_(base, -1, 0, [this] {
        if (on_unsaid) on_unsaid();
      }) {}

void Teller::Begin(Client& line) {
  line_ = &line;
  processes_.emplace();
  links_.emplace();
  listeners_.emplace();
  Pump();
}

// What is under way is answered by the line's end (Asks::OnGone).
void Teller::End() {
  line_ = nullptr;
  processes_.reset();
  links_.reset();
  listeners_.reset();
  offered_.clear();
  fresh_.clear();
  ended_.clear();
  const auto gone = std::exchange(gone_, {});
  for (const auto& [key, dones] : gone) {
    for (const auto& done : dones) done();
  }
  if (!gone.empty() && !withdrawing()) registry_.Withdrawn();
}

bool Teller::HasRoom() const {
  return line_ != nullptr && !line_->broken() && line_->queued() == 0 && under_way_ < kTellsAtOnce;
}

void Teller::Pump() {
  if (std::exchange(pumping_, true)) return;
  while (HasRoom() && TellNext()) {
  }
  pumping_ = false;
}

// False: all is told.
bool Teller::TellNext() {
  if (NextProcess() || NextLink()) return true;
  if (!ended_.empty()) {
    const auto [hi, lo, side] = *ended_.begin();
    ended_.erase(ended_.begin());
    SayLinkEnd({hi, lo}, side);
    return true;
  }
  // One that is gone and here again is told in this order.
  if (!gone_.empty()) {
    auto first = gone_.extract(gone_.begin());
    SayGone(first.key(), std::move(first.mapped()));
    return true;
  }
  if (fresh_.empty()) return NextListener();
  auto first = fresh_.extract(fresh_.begin());
  const auto& [hi, lo, ep_idx, ep_gen] = first.key();
  const Listener* const listener = directory_.Find({hi, lo}, ep_idx, ep_gen);
  if (listener != nullptr) SayOffer(*listener, std::move(first.mapped()), true);
  return true;
}

bool Teller::NextProcess() {
  if (!processes_) return false;
  const auto& stacks = registry_.stacks();
  const auto [stack, slot] = *processes_;
  for (auto it = stacks.lower_bound(stack); it != stacks.end(); ++it) {
    const auto& of_stack = it->second->processes;
    const auto process = of_stack.lower_bound(Same(it->first, stack) ? slot : 0);
    if (process == of_stack.end()) continue;
    *processes_ = {it->first, process->first + 1};
    SayAlive(*process->second);
    return true;
  }
  processes_.reset();
  return false;
}

bool Teller::NextLink() {
  if (!links_) return false;
  const auto& links = registry_.links();
  for (auto it = links.upper_bound(*links_); it != links.end(); ++it) {
    const LinkGroup& link = *it->second;
    *links_ = it->first;
    for (uint32_t side = 0; side < 2; ++side) {
      if (!link.remote[1 - side] || link.end[side].stack == nullptr || link.dead) continue;
      SayLink(link, side);
      return true;  // one of its ends is another daemon's
    }
  }
  links_.reset();
  return false;
}

bool Teller::NextListener() {
  if (!listeners_) return false;
  const auto& all = directory_.listeners();
  for (auto it = all.lower_bound(*listeners_); it != all.end(); ++it) {
    *listeners_ = it->first + 1;
    if (it->second.foreign || offered_.count(ListenerKeyOf(it->second)) != 0) continue;
    SayOffer(it->second, {}, false);
    return true;
  }
  listeners_.reset();
  return false;
}

void Teller::Alive(const Process& process) {
  if (HasRoom()) return SayAlive(process);
  AliveAgain();
}

void Teller::AliveAgain() {
  processes_.emplace();
  Pump();
}

void Teller::HaveLink(const LinkGroup& link, uint32_t side) {
  if (HasRoom()) return SayLink(link, side);
  links_.emplace();
}

void Teller::LinkEnd(const LinkGroup& link, uint32_t side) {
  if (line_ == nullptr) return;
  if (HasRoom()) return SayLinkEnd(link.id, side);
  ended_.emplace(link.id.hi, link.id.lo, side);
}

void Teller::Offer(const Listener& listener, UniqueFd socket) {
  if (line_ == nullptr) return;
  if (HasRoom()) return SayOffer(listener, std::move(socket), true);
  // One that the broker knows does not keep others from being known.
  const bool keep = fresh_.size() < kFreshMost && offered_.count(ListenerKeyOf(listener)) == 0;
  fresh_[ListenerKeyOf(listener)] = keep ? std::move(socket) : UniqueFd();
}

void Teller::Unoffer(const Listener& listener, std::function<void()> done) {
  if (line_ == nullptr) return done();
  const ListenerKey key = ListenerKeyOf(listener);
  offered_.erase(key);
  fresh_.erase(key);
  gone_[key].push_back(std::move(done));
  Pump();
}

void Teller::Ask(const ctl::Msg& message, SharedFd fd, std::function<void(int)> done) {
  ++under_way_;
  asks_.Ask(*line_, message, std::move(fd),
            [this, done = std::move(done)](int status, const ctl::Msg&, UniqueFd) {
              --under_way_;
              done(status);
              Pump();
            });
}

void Teller::SayWhose(Registry& registry, ctl::Msg& message, const pstn_uuid& stack) {
  const Stack* const of = registry.Find(stack);
  if (of != nullptr && IsGuests(*of)) ctl::SetWhose(message, of->uid, of->gid);
}

void Teller::SayAlive(const Process& process) {
  UniqueFd copy(fcntl(process.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.ok()) return;
  ctl::Msg message;
  message.type = ctl::Type::kAlive;
  message.uuid = process.stack->id;
  message.a = static_cast<uint32_t>(process.pid);
  SayWhose(registry_, message, message.uuid);
  line_->Send(message, Share(std::move(copy)));
}

void Teller::SayLink(const LinkGroup& link, uint32_t side) {
  ctl::Msg message;
  message.type = ctl::Type::kHaveLink;
  message.uuid = link.owner[side];
  message.peer = link.owner[1 - side];
  message.id = link.id;
  message.a = side;
  SayWhose(registry_, message, message.uuid);
  Ask(message, {}, [this, id = link.id, side](int status) {
    if (status != 0 && status != EPIPE) registry_.RemoteEnded(id, 1 - side);
  });
}

void Teller::SayLinkEnd(const pstn_uuid& id, uint32_t side) {
  ctl::Msg message;
  message.type = ctl::Type::kLinkEnd;
  message.id = id;
  message.a = side;
  line_->Send(message);
}

void Teller::SayOffer(const Listener& listener, UniqueFd socket, bool news) {
  const bool shown = socket.ok();
  ctl::Msg message = MessageOf(ctl::Type::kOffer, listener);
  SayWhose(registry_, message, listener.stack);
  Ask(message, shown ? Share(std::move(socket)) : nullptr,
      [this, key = ListenerKeyOf(listener), shown, news](int status) {
        const auto& [hi, lo, ep_idx, ep_gen] = key;
        const Listener* const here = directory_.Find({hi, lo}, ep_idx, ep_gen);
        if (status == EPIPE || here == nullptr) return;
        if (status == 0) {
          offered_.insert(key);
          if (here->shares_port) on_shared(here->local.port);
          return;
        }
        // Its process shows the socket when it is asked: of all when we have joined, else now.
        if (status == EXDEV && !shown) {
          if (news && offered_.count(key) == 0 && !unsaid_.pending()) unsaid_.AddMs(kUnsaidMs);
          return;
        }
        ++refused_;
        Warn("a listener is known to this user only: %s", strerror(status));
      });
}

void Teller::SayGone(const ListenerKey& key, Dones dones) {
  ctl::Msg message;
  message.type = ctl::Type::kUnoffer;
  std::tie(message.uuid.hi, message.uuid.lo, message.a, message.b) = key;
  ++unoffers_;
  Ask(message, {}, [this, dones = std::move(dones)](int) {
    for (const auto& done : dones) done();
    --unoffers_;
    if (!withdrawing()) registry_.Withdrawn();
  });
}

}  // namespace postern::daemon
