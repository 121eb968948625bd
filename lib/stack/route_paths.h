// SPDX-License-Identifier: Apache-2.0
// route_paths.h - where packets go, by the control plane's tables.
#pragma once
#include "stack/engine.h"

struct pstn_routes;

namespace postern::stack {

class RoutePaths final : public Paths {
 public:
  // `ask` has the kernel resolve a neighbour; it may be called often, and need not wait.
  using Ask = void (*)(void* of, uint32_t ifindex, const uint8_t ip[16]);
  RoutePaths(Area& area, Ask ask, void* of) : area_(area), ask_(ask), of_(of) {}
  void SetTables(const pstn_routes* tables) { tables_ = tables; }

  bool IsFresh(const Path& path) override;
  PathStatus Find(const pstn_addr& local, const pstn_addr& peer, Path& path, int& error) override;
  PathStatus FindDatagram(pstn_addr& local, const pstn_addr& peer, Path& path, int& error) override;

 private:
  PathStatus LookUp(const pstn_addr& local, const pstn_addr& peer, uint8_t protocol, Path& path,
                    int& error, uint8_t (&source)[16]);

  Area& area_;
  const Ask ask_;
  void* const of_;
  const pstn_routes* tables_ = nullptr;
};

}  // namespace postern::stack
