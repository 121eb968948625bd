// routes_tables.h - writes the tables of abi/routes_abi.h: snapshots, and neighbours one by one.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../kit/fd.h"
#include "abi/routes_abi.h"
#include "routes_model.h"

namespace postern::daemon {

class RouteTables {
 public:
  RouteTables() = default;
  ~RouteTables();
  RouteTables(const RouteTables&) = delete;
  RouteTables& operator=(const RouteTables&) = delete;

  // 0 or -errno.
  int Create(uint64_t netns_ino);
  // To be handed out; no process can write through it.
  SharedFd fd() const { return fd_; }
  const pstn_routes* map() const { return map_; }

  // A snapshot, which is current when this returns. Sorts links and addresses of the model.
  void Publish(RouteModel& model);
  void CountSync(bool after_overrun);

  bool Find(uint32_t ifindex, const uint8_t ip[16], NeighEntry& out) const;

  // Before and after changes of neighbours. Readers look again meanwhile: only for a moment.
  class NeighChange {
   public:
    explicit NeighChange(RouteTables& tables);
    ~NeighChange();
    NeighChange(const NeighChange&) = delete;
    NeighChange& operator=(const NeighChange&) = delete;
    void Clear();
    void Take(const NeighEntry& entry);

   private:
    RouteTables& tables_;
  };

 private:
  class Writer;  // of one copy
  void EraseNeigh(uint32_t at);
  uint32_t PlaceOf(const pstn_rt_neigh& n) const;

  SharedFd fd_;
  pstn_routes* map_ = nullptr;
};

}  // namespace postern::daemon
