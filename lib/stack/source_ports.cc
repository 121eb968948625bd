// SPDX-License-Identifier: Apache-2.0
// source_ports.cc - see source_ports.h.
#include "stack/source_ports.h"

#include "base/atomic.h"
#include "stack/engine.h"
#include "stack/names.h"

namespace postern::stack {
namespace {

// A peer with which all of these are taken gets a new port, or one that is bound for it alone.
constexpr uint32_t kLooks = 64;

}  // namespace

bool TakeSourcePort(Engine& engine, uint32_t vi, pstn_addr& from, const pstn_addr& to,
                    PortWish wish, uint64_t now) {
  SourcePorts& ports = engine.state().sources;
  const uint32_t hw = ports.hw < kSourcePorts ? ports.hw : kSourcePorts;
  if (hw == 0) return false;
  const uint32_t first = static_cast<uint32_t>(engine.Random() % hw);
  SourcePort* tired = nullptr;
  uint32_t looks = 0;
  for (uint32_t i = 0; i < hw && looks < kLooks; i++) {
    SourcePort& p = ports.at[(first + i) % hw];
    if (LoadRelaxed(p.filter) == 0 || p.vi != vi || !SameIp(p.local, from)) continue;
    looks++;
    const bool rested = now >= p.used_ns + kPortRestNs;
    if (!rested && tired != nullptr) continue;
    from.port = p.local.port;
    if (engine.IsTaken(from, to)) continue;
    if (!rested) {
      tired = &p;
      continue;
    }
    StoreRelaxed(p.used_ns, now);
    return true;
  }
  if (tired == nullptr || (wish == PortWish::kRested && looks < kLooks)) return false;
  from.port = tired->local.port;
  StoreRelaxed(tired->used_ns, now);
  return true;
}

bool AddSourcePort(WireState& w, const SourcePort& p) {
  SourcePorts& ports = w.sources;
  for (uint32_t i = 0; i < kSourcePorts; i++) {
    SourcePort& at = ports.at[i];
    if (i < ports.hw && LoadRelaxed(at.filter) != 0) continue;
    at.local = p.local;
    at.vi = p.vi;
    StoreRelaxed(at.used_ns, p.used_ns);
    StoreRelaxed(at.epoch, p.epoch);
    StoreRelease(at.filter, p.filter);  // [G1] last: who dies before has added nothing
    if (i >= ports.hw) StoreRelease(ports.hw, i + 1);  // [G2]
    return true;
  }
  return false;
}

namespace {

template <typename Fn>
void EachUsedPort(const WireState& w, TimeWait time_wait, Fn fn) {
  for (uint32_t i = 0; i < LoadRelaxed(w.conn_hw) && i < kConns; i++) {
    const Conn& c = w.conns[i];
    if (LoadRelaxed(c.use) == kConnUsed &&
        (time_wait == TimeWait::kCounts || tcp::StateOf(c.tcb) != tcp::State::kTimeWait))
      fn(c.local.port);
  }
}

}  // namespace

bool IsPortUsed(const WireState& w, uint16_t port, TimeWait time_wait) {
  bool found = false;
  EachUsedPort(w, time_wait, [&](uint16_t used) { found = found || used == port; });
  return found;
}

void FindUsedPorts(const WireState& w, TimeWait time_wait, UsedPorts& used) {
  used = {};
  EachUsedPort(w, time_wait, [&](uint16_t port) { used.bits[port / 64] |= 1ull << (port % 64); });
}

bool RemoveSourcePort(WireState& w, uint32_t idx, uint64_t used_ns, SourcePort& was) {
  if (idx >= kSourcePorts) return false;
  SourcePort& p = w.sources.at[idx];
  was = p;
  if (was.filter == 0 || was.used_ns != used_ns) return false;
  StoreRelaxed(p.filter, 0u);
  return true;
}

}  // namespace postern::stack
