// SPDX-License-Identifier: Apache-2.0
// route_paths.h - where packets go, by the control plane's tables.
#pragma once
#include "stack/engine.h"

struct pstn_routes;

namespace postern::stack {

class RoutePaths final : public Paths {
 public:
  // `ask` has the kernel resolve a neighbour; it may be called often, and need not wait.
  using Ask = void (*)(uint32_t ifindex, const uint8_t ip[16]);
  RoutePaths(Area& area, Ask ask) : area_(area), ask_(ask) {}
  void SetTables(const pstn_routes* tables) { tables_ = tables; }

  bool IsFresh(const Path& path) override;
  PathStatus Find(const pstn_addr& local, const pstn_addr& peer, Path& path, int& error) override;

 private:
  Area& area_;
  const Ask ask_;
  const pstn_routes* tables_ = nullptr;
};

}  // namespace postern::stack
