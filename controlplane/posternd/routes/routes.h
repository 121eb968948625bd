// routes.h - keeps the shared tables of routes and neighbours like the kernel's.
// SPDX-License-Identifier: Apache-2.0
//
// Notifications of neighbours are taken as they come. Any other one only says that something has
// changed: it leads to a complete new reading, since the kernel doesn't tell of all that follows (a
// route that goes with its interface, an order among equals). A reading during which something
// changed is no picture of one moment, and is not published but repeated; after kStaleMs without a
// clean one the last is taken as it is, which is what the kernel itself goes through meanwhile.
//
// The next reading waits until four times as long has passed as the last one took, so that a table
// of many routes that change all the time costs at most a fifth of a core, and is late instead.
//
// Nothing is done, and no memory taken, before a process asks for the tables.
#pragma once
#include <chrono>
#include <memory>
#include <unordered_set>

#include "../kit/event.h"
#include "../kit/fd.h"
#include "../kit/netlink.h"
#include "routes_filters.h"
#include "routes_model.h"
#include "routes_tables.h"

namespace postern::daemon {

class Routes {
 public:
  // receive_buffer: of the notifications, in bytes; 0: large.
  Routes(event_base* base, uint32_t receive_buffer) : base_(base), buffer_(receive_buffer) {}

  // The tables, read at the first request; null: not to be had.
  SharedFd Tables();
  // A process wants to send there and has no address, or an old one.
  void Resolve(uint32_t ifindex, const uint8_t ip[16]);

 private:
  using Clock = std::chrono::steady_clock;
  bool Start();
  void Readable();
  void TakeNotification(const nlmsghdr* message, RouteTables::NeighChange& change);
  void FiltersMayHaveChanged();
  void Plan();
  void Sync();
  bool ReadClean(RouteModel& model, int& error);
  void ReadNeighboursAgain();
  void Publish(RouteModel model);
  void PlanExpiry(const RouteModel& model);
  void FailedNow(const NeighEntry& entry);
  void MarkDirty();

  event_base* base_;
  uint32_t buffer_;
  std::unique_ptr<Netlink> news_, requests_;
  std::unique_ptr<Event> readable_, again_, expiry_;
  std::unique_ptr<FilterWatch> filters_;
  RouteTables tables_;
  RouteModel model_;                        // as published
  std::unordered_set<uint32_t> gateways6_;  // NeighHash() of each
  std::unordered_set<uint32_t> failed6_;    // of these and others, those that don't answer
  Filters filters_now_;
  bool started_ = false, lost_ = false, gateway_changed_ = false, may_ask_ = true;
  bool dirty_ = false;   // something was told since the last reading began
  bool behind_ = false;  // since `behind_since_` the tables are not what the kernel has
  Clock::time_point behind_since_{}, next_{};
};

}  // namespace postern::daemon
