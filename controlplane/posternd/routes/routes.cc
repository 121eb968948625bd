// routes.cc - when to read, and what to publish.
// SPDX-License-Identifier: Apache-2.0
#include "routes.h"

#include <linux/neighbour.h>
#include <linux/rtnetlink.h>

#include <algorithm>
#include <cerrno>

#include "../kit/log.h"
#include "../kit/proc.h"
#include "routes_parse.h"
#include "routes_read.h"
#include "stack/route/route_key.h"

namespace postern::daemon {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStaleMs{1000};
constexpr milliseconds kPauseMin{1}, kPauseMax{2000};
constexpr int kPauseFactor = 4;
constexpr uint32_t kRoutesRetryMs = 1000;  // after an error

uint32_t HashOf(const pstn_rt_neigh& n) { return NeighHash(n.ifindex, KeyOf(n.ip)); }

}  // namespace

SharedFd Routes::Tables() {
  if (!started_ && !Start()) return {};
  return tables_.fd();
}

bool Routes::Start() {
  news_ = std::make_unique<Netlink>(NETLINK_ROUTE);
  requests_ = std::make_unique<Netlink>(NETLINK_ROUTE);
  if (!news_->ok() || !requests_->ok()) {
    Warn("routes: no netlink: %s", strerror(errno));
    return false;
  }
  news_->SetReceiveBuffer(buffer_);
  requests_->SetStrict();
  for (const int group : kRouteGroups) {
    const int error = news_->Join(group);
    if (error != 0 && group != RTNLGRP_NEXTHOP) {
      Warn("routes: changes can't be heard of: %s", strerror(-error));
      return false;
    }
  }
  if (const int error = tables_.Create(OwnNetnsIno()); error != 0) {
    Warn("routes: %s", strerror(-error));
    return false;
  }
  started_ = true;
  readable_ = std::make_unique<Event>(base_, news_->fd(), static_cast<short>(EV_READ | EV_PERSIST),
                                      [this] { Readable(); });
  again_ = std::make_unique<Event>(base_, -1, 0, [this] { Sync(); });
  expiry_ = std::make_unique<Event>(base_, -1, 0, [this] {
    MarkDirty();
    Plan();
  });
  filters_now_ = ReadFilters();
  filters_ = std::make_unique<FilterWatch>(base_, [this] { FiltersMayHaveChanged(); });
  readable_->Add();
  lost_ = true;
  MarkDirty();
  Sync();
  return true;
}

// ---- what the kernel tells ---------------------------------------------------------------------

void Routes::MarkDirty() {
  dirty_ = true;
  if (!behind_) behind_since_ = Clock::now();
  behind_ = true;
}

void Routes::FailedNow(const NeighEntry& entry) {
  if (IpAt(entry.neigh.ip).IsV4()) return;
  const uint32_t hash = HashOf(entry.neigh);
  const bool failed = !entry.gone && entry.neigh.state == NUD_FAILED;
  const bool changed = failed ? failed6_.insert(hash).second : failed6_.erase(hash) != 0;
  if (changed && gateways6_.count(hash) != 0) gateway_changed_ = true;
}

void Routes::TakeNotification(const nlmsghdr* message, RouteTables::NeighChange& change) {
  NeighEntry entry;
  if (message->nlmsg_type == RTM_NEWNEIGH || message->nlmsg_type == RTM_DELNEIGH) {
    if (!ParseNeigh(message, entry)) return;
    change.Take(entry);
    FailedNow(entry);
    return;
  }
  if (message->nlmsg_type < NLMSG_MIN_TYPE) return;
  MarkDirty();
}

void Routes::Readable() {
  {
    RouteTables::NeighChange change(tables_);
    const int error =
        news_->Drain([&](const nlmsghdr* message) { TakeNotification(message, change); });
    if (error != 0) {
      Note("routes: notifications were lost (%s): all is read anew", strerror(-error));
      lost_ = true;
      MarkDirty();
    }
  }
  if (gateway_changed_ && !dirty_) Publish(model_);
  Plan();
}

void Routes::FiltersMayHaveChanged() {
  const Filters now = ReadFilters();
  if (now == filters_now_) return;
  filters_now_ = now;
  if (tables_.map()->seq == 0) return;
  RouteModel model = model_;
  model.netfilter = now.netfilter;
  model.xfrm = now.xfrm;
  Publish(std::move(model));
}

// ---- reading -----------------------------------------------------------------------------------

void Routes::Plan() {
  if (!dirty_ || again_->pending()) return;
  const auto now = Clock::now();
  if (now >= next_) return Sync();
  const auto wait = std::chrono::duration_cast<milliseconds>(next_ - now).count() + 1;
  again_->AddMs(static_cast<uint32_t>(wait));
}

// A picture of one moment: nothing was told meanwhile.
bool Routes::ReadClean(RouteModel& model, int& error) {
  for (int i = 0; i < kReadTries; i++) {
    dirty_ = false;
    model = {};
    error = ReadRoutes(*requests_, model);
    model.netfilter = filters_now_.netfilter;
    model.xfrm = filters_now_.xfrm;
    RouteTables::NeighChange change(tables_);
    if (news_->Drain([&](const nlmsghdr* message) { TakeNotification(message, change); }) != 0) {
      lost_ = true;
      MarkDirty();
    }
    if (error == 0 && !dirty_) return true;
    if (error != 0 && error != -EINTR) break;
  }
  MarkDirty();
  return false;
}

void Routes::ReadNeighboursAgain() {
  std::vector<NeighEntry> all;
  int error = -EINTR;
  for (int i = 0; i < kReadTries && error == -EINTR; i++) {
    all.clear();
    error = ReadNeighbours(*requests_, all);
  }
  if (error != 0 && error != -EINTR) return;  // lost_ stays
  RouteTables::NeighChange change(tables_);
  change.Clear();
  failed6_.clear();
  for (const NeighEntry& entry : all) {
    change.Take(entry);
    FailedNow(entry);
  }
  gateway_changed_ = true;
  lost_ = error != 0;
}

void Routes::Sync() {
  const auto started = Clock::now();
  const bool after_loss = lost_;
  if (lost_) ReadNeighboursAgain();
  RouteModel model;
  int error = 0;
  const bool clean = ReadClean(model, error);
  const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - started);
  next_ = Clock::now() + std::clamp(took * kPauseFactor, kPauseMin, kPauseMax);
  tables_.CountSync(after_loss);
  if (error != 0 && error != -EINTR) {
    Warn("routes: can't be read: %s", strerror(-error));
    model = {};
    model.unsynced = true;
    Publish(std::move(model));
    return again_->AddMs(kRoutesRetryMs);
  }
  if (clean || started - behind_since_ > kStaleMs) Publish(std::move(model));
  if (clean) behind_ = false;
  if (!dirty_ && !lost_) return;
  MarkDirty();
  Plan();
}

// What has an end is gone then without a word: it is read again.
void Routes::PlanExpiry(const RouteModel& model) {
  uint32_t first = 0;
  for (const RouteEntry& route : model.routes) {
    if (route.expires_ms != 0 && (first == 0 || route.expires_ms < first)) first = route.expires_ms;
  }
  if (first != 0) expiry_->AddMs(first);
}

void Routes::Publish(RouteModel model) {
  PlanExpiry(model);
  if (tables_.map()->seq != 0 && !gateway_changed_ && model == model_) return;
  model_ = std::move(model);
  gateway_changed_ = false;
  gateways6_.clear();
  const auto note = [this](const pstn_rt_hop& hop) {
    if (hop.via == 6) gateways6_.insert(NeighHash(hop.ifindex, KeyOf(hop.gateway)));
  };
  for (const RouteEntry& route : model_.routes) {
    for (const pstn_rt_hop& hop : route.hops) note(hop);
  }
  for (const auto& [id, nexthop] : model_.nexthops) note(nexthop.hop);
  tables_.Publish(model_);
}

// ---- neighbours --------------------------------------------------------------------------------

void Routes::Resolve(uint32_t ifindex, const uint8_t ip[16]) {
  if (!started_ || ifindex == 0) return;
  int error = may_ask_ ? AskForNeighbour(*requests_, ifindex, ip) : -EPERM;
  if (error == -EPERM) {
    may_ask_ = false;
    error = SendForNeighbour(ifindex, ip);
  }
  if (error != 0) return Note("routes: no neighbour asked for: %s", strerror(-error));
  // Of one that had failed the kernel asks again, and doesn't tell before it knows.
  NeighEntry entry;
  if (!tables_.Find(ifindex, ip, entry) || entry.neigh.state != NUD_FAILED) return;
  entry.neigh.state = NUD_INCOMPLETE;
  {
    RouteTables::NeighChange change(tables_);
    change.Take(entry);
  }
  FailedNow(entry);
  if (gateway_changed_ && !dirty_) Publish(model_);
}

}  // namespace postern::daemon
