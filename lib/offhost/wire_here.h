// SPDX-License-Identifier: Apache-2.0
// wire_here.h - the wire as this process has it: VIs, the engine, and what it remembers of both.
#pragma once
#include "offhost/wire.h"
#include "stack/engine.h"
#include "stack/route_paths.h"
#include "stack/source_ports.h"
#include "state/area.h"
#include "vi/soft/soft.h"
#include "vi/tap/tap_vi.h"
#include "vi/xsk.h"

namespace postern {

// Of the family `of`. Under the engine's lock: an errand (wire_attach.cc).
void AskNeighbour(void* of, uint32_t ifindex, const uint8_t ip[16]);

// A VI of any kind: what its grant says.
struct AnyVi {
  XskVi xsk;
  SoftVi soft;
  TapVi tap;
  uint32_t kind = ctl::kGrantXsk;

  Vi& vi() {
    if (kind == ctl::kGrantTap) return tap;
    return kind == ctl::kGrantSoft ? static_cast<Vi&>(soft) : xsk;
  }
  // What a new posternd knows it by.
  int token() const {
    if (kind == ctl::kGrantTap) return tap.bell_fd();
    return kind == ctl::kGrantSoft ? soft.rings_fd() : xsk.FdOf(0);
  }
  // The last descriptor stays the caller's, the others are the VI's; unless it fails.
  int Attach(Area& area, uint32_t idx, const ctl::ViGrant& grant, const int* fds) {
    kind = grant.kind;
    if (kind == ctl::kGrantXsk) return xsk.Attach(area, idx, fds, grant.queue_count);
    if (grant.queue_count != 1) return -EPROTO;
    if (kind == ctl::kGrantTap) return tap.Attach(area, idx, fds[0], fds[1]);
    return kind == ctl::kGrantSoft ? soft.Attach(area, idx, fds[0], fds[1]) : -EPROTO;
  }
  void Detach() {
    if (kind == ctl::kGrantTap)
      tap.Detach();
    else if (kind == ctl::kGrantSoft)
      soft.Detach();
    else
      xsk.Detach();
  }
};

// All of it is made once and stays: other threads may be in it.
struct WireHere {
  explicit WireHere(Family& fam) : streams(fam), paths(area, AskNeighbour, &fam) {}
  Area area;
  RingStreams streams;
  stack::RoutePaths paths;
  AnyVi vis[kAreaVis];
  stack::WireState* state = nullptr;
  const pstn_routes* tables = nullptr;
  int links[kAreaVis] = {-1, -1, -1, -1, -1, -1, -1, -1};
  int bundle = -1;
};
static_assert(kAreaVis == 8, "links is -1 for each");

struct Wire {
  pstn_lock lock;
  bool never_waits;  // for posternd because of a filter
  // Changed under `lock`, until the family has an engine; null: there is none.
  WireHere* here;
  uint64_t not_before_ns PSTN_GUARDED_BY(lock);  // the next attempt, after a failure
  // Under the engine's lock.
  uint64_t links_asked_ns;
  struct Asked {
    uint8_t ip[16];
    uint32_t ifindex;
    uint64_t at_ns;
  } asked[16];  // neighbours
  uint32_t asked_next;
  // wire_ports.cc
  uint64_t port_not_before_ns, sweep_not_before_ns;
  stack::UsedPorts used;  // of a sweep: the keeper has one thread
  alignas(64) unsigned char here_at[sizeof(WireHere)];
  alignas(64) unsigned char engine_at[sizeof(stack::Engine)];
};

}  // namespace postern
