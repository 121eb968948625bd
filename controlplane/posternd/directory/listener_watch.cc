// listener_watch.cc - see listener_watch.h.
// SPDX-License-Identifier: Apache-2.0
#include "listener_watch.h"

#include <linux/filter.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "../kit/log.h"
#include "listener_check.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kLookMs = 1000;
constexpr uint32_t kLooksMax = 64;  // each takes some microseconds
constexpr int kGuestsRest = 20;     // of the time that a look for them takes

// Sockets with a peer are no listeners. They are by far the most, and do not wake us.
bool TakeNoConnections(int fd) {
  constexpr uint32_t kPeersPort =
      NLMSG_HDRLEN + offsetof(inet_diag_msg, id) + offsetof(inet_diag_sockid, idiag_dport);
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_H | BPF_ABS, kPeersPort),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, UINT32_MAX), BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog filter{static_cast<uint16_t>(std::size(program)), program};
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0;
}

bool Watches(Netlink& line) {
  return line.ok() && TakeNoConnections(line.fd()) && line.Join(SKNLGRP_INET_TCP_DESTROY) == 0 &&
         line.Join(SKNLGRP_INET6_TCP_DESTROY) == 0;
}

}  // namespace

ListenerWatch::ListenerWatch(event_base* base, std::function<void(uint64_t)> ended)
    : base_(base),
      ended_(std::move(ended)),
      closes_(
          base, [this](uint64_t cookie) { Ended(cookie); }, [this] { LookAtAll(); }),
      now_and_then_(base, -1, 0, [this] { LookAround(); }) {}

void ListenerWatch::Add(const Listener& listener) {
  all_.try_emplace(PlaceOf(listener), listener);
  if (!now_and_then_.pending()) now_and_then_.AddMs(kLookMs);
}

bool ListenerWatch::Forget(const Listener& listener) { return all_.erase(PlaceOf(listener)) != 0; }

ListenerWatch::Place ListenerWatch::PlaceOf(const Listener& listener) {
  return {listener.cookie, listener.stack.hi, listener.stack.lo};
}

void ListenerWatch::Hear(const Listener& listener, int socket) {
  if (socket >= 0 && closes_.Add(socket, listener.cookie)) return;
  unwatched_.insert(listener.cookie);
  if (deaths_ != nullptr) return;
  deaths_ = std::make_unique<Netlink>(NETLINK_SOCK_DIAG);
  readable_ = std::make_unique<Event>(
      base_, deaths_->fd(), static_cast<short>(EV_READ | EV_PERSIST), [this] { Drain(); });
  if (Watches(*deaths_)) readable_->Add();
  // It may have ended before.
  if (StillListens(listener) == -ENOENT) Ended(listener.cookie);
}

void ListenerWatch::Ended(uint64_t cookie) {
  if (unwatched_.erase(cookie) != 0 && unwatched_.empty()) {
    readable_.reset();
    deaths_.reset();
  }
  const auto first = all_.lower_bound({cookie, 0, 0});
  const auto last = all_.upper_bound({cookie, UINT64_MAX, UINT64_MAX});
  if (first == last) return;
  Note("what listened on port %u has ended", first->second.local.port);
  all_.erase(first, last);
  ended_(cookie);
}

void ListenerWatch::LookAtAll() {
  std::vector<Listener> all;
  for (const auto& [place, l] : all_) all.push_back(l);
  for (const uint64_t cookie : LookWhichListen(all).ended) Ended(cookie);
}

void ListenerWatch::LookAt(const pstn_uuid& stack) {
  std::vector<Listener> its;
  for (const auto& [place, l] : all_) {
    if (l.stack.hi == stack.hi && l.stack.lo == stack.lo) its.push_back(l);
  }
  for (const uint64_t cookie : LookWhichListen(its).ended) Ended(cookie);
}

void ListenerWatch::LookForGuest(const pstn_uuid& stack) {
  const auto begin = std::chrono::steady_clock::now();
  const auto rest = rests_.find(stack);
  if (rest != rests_.end() && begin < rest->second) return;
  LookAt(stack);
  const auto end = std::chrono::steady_clock::now();
  std::erase_if(rests_, [end](const auto& one) { return one.second <= end; });
  rests_[stack] = end + kGuestsRest * (end - begin);
}

// What was lost by an overrun is seen by those that ask.
void ListenerWatch::Drain() {
  std::set<uint64_t> gone;
  (void)deaths_->Drain([&gone](const nlmsghdr* message) {
    if (mnl_nlmsg_get_payload_len(message) < sizeof(inet_diag_msg)) return;
    const auto& of = *static_cast<const inet_diag_msg*>(mnl_nlmsg_get_payload(message));
    gone.insert(of.id.idiag_cookie[0] | static_cast<uint64_t>(of.id.idiag_cookie[1]) << 32);
  });
  for (const uint64_t cookie : gone) Ended(cookie);
}

void ListenerWatch::LookAround() {
  std::vector<Listener> some;
  for (uint32_t i = 0; i < kLooksMax && i < all_.size(); ++i) {
    auto it = all_.upper_bound({seen_, UINT64_MAX, UINT64_MAX});
    if (it == all_.end()) it = all_.begin();
    seen_ = it->second.cookie;
    some.push_back(it->second);
  }
  for (const uint64_t cookie : LookWhichListen(some).ended) Ended(cookie);
  if (!all_.empty()) now_and_then_.AddMs(kLookMs);
}

}  // namespace postern::daemon
