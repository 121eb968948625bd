// SPDX-License-Identifier: Apache-2.0
// wire_ports.cc - the ports that the stack makes its connections from: asked of posternd once, and
// given back.
//
// posternd reserves a port at the kernel and steers it to us (docs/vi.md). All of that lasts as
// long as the VI does, and longer than posternd: when it has died the interface's program goes on,
// and the next posternd reserves the same ports again, if no program has taken them.
#include <cerrno>

#include "base/clock.h"
#include "base/sys.h"
#include "control/control.h"
#include "family/verbs.h"
#include "offhost/wire.h"
#include "offhost/wire_here.h"

namespace postern {
namespace {

using stack::SourcePort;

constexpr uint64_t kIdleNs = 60'000'000'000;  // as long as TIME_WAIT
constexpr uint64_t kSweepNs = 5'000'000'000;
constexpr uint32_t kGivenAtOnce = 64;
constexpr uint64_t kRefusedNs = 1'000'000'000;

// Port 0: any.
int Ask(Family& fam, LineAsk ask, uint32_t vi, pstn_addr& local, uint32_t& number) {
  ctl::Msg m;
  m.type = ctl::Type::kFilter;
  m.cookie = fam.engine->state().grant[vi % kAreaVis];
  m.a = ctl::kFilterAdd;
  m.b = ctl::kFilterFragments | ctl::kFilterOutgoing;
  m.addr = local;
  const int r = ask(fam, m, -1, nullptr);
  if (r != 0) return r;
  local.port = static_cast<uint16_t>(m.a);
  number = m.d;
  return local.port == 0 || number == 0 ? -EPROTO : 0;
}

// Takes it out if no connection has had it since it was found unused.
bool Give(Family& fam, stack::WireState& w, uint32_t idx, uint64_t used_ns) {
  SourcePort was;
  fam.engine->Acquire();
  const bool out = stack::RemoveSourcePort(w, idx, used_ns, was);
  fam.engine->Release();
  if (out) WireUnfilter(fam, was.vi, was.filter, Unfilter::kNow);
  return out;
}

}  // namespace

bool WireNewPort(Family& fam, uint32_t vi, const pstn_addr& at) {
  const uint64_t now = MonotonicNs();
  stack::WireState& w = fam.engine->state();
  if (now < LoadRelaxed(fam.wire->port_not_before_ns)) return false;
  SourcePort p = {};
  p.vi = vi;
  p.local = at;
  p.local.port = 0;
  p.epoch = static_cast<uint32_t>(w.grant[0]);
  p.used_ns = now - stack::kPortRestNs;
  bool added = false;
  if (Ask(fam, AskNow, vi, p.local, p.filter) == 0) {
    fam.engine->Acquire();
    added = stack::AddSourcePort(w, p);
    fam.engine->Release();
    if (!added) WireUnfilter(fam, vi, p.filter, Unfilter::kNow);
  }
  if (!added) StoreRelaxed(fam.wire->port_not_before_ns, now + kRefusedNs);
  return added;
}

bool WireGivePort(Family& fam, uint16_t port) {
  if (LoadAcquire(fam.engine) == nullptr || port == 0) return false;  // [T3]
  stack::WireState& w = fam.engine->state();
  bool given = false;
  for (uint32_t i = 0; i < LoadAcquire(w.sources.hw) && i < stack::kSourcePorts; i++) {  // [G2]
    const SourcePort& p = w.sources.at[i];
    const uint64_t used_ns = LoadRelaxed(p.used_ns);
    if (LoadAcquire(p.filter) != 0 && p.local.port == port &&  // [G1]
        !stack::IsPortUsed(w, port, stack::TimeWait::kDoesNot))
      given = Give(fam, w, i, used_ns) || given;
  }
  return given;
}

void WireSweepPorts(Family& fam) {
  stack::WireState& w = fam.engine->state();
  const uint64_t now = MonotonicNs();
  const uint32_t hw = LoadAcquire(w.sources.hw);  // [G2]
  if (hw == 0 || now < fam.wire->sweep_not_before_ns) return;
  fam.wire->sweep_not_before_ns = now + kSweepNs;
  stack::UsedPorts& used = fam.wire->used;
  stack::FindUsedPorts(w, stack::TimeWait::kCounts, used);
  for (uint32_t i = 0, given = 0; i < hw && i < stack::kSourcePorts; i++) {
    const SourcePort& p = w.sources.at[i];
    const uint64_t used_ns = LoadRelaxed(p.used_ns);
    // [G1]
    if (LoadAcquire(p.filter) == 0 || now < used_ns + kIdleNs || used.Has(p.local.port)) continue;
    if (Give(fam, w, i, used_ns) && ++given == kGivenAtOnce) return;
  }
}

void WireKeepPorts(Family& fam, LineAsk ask) {
  stack::WireState& w = fam.engine->state();
  const uint32_t epoch = static_cast<uint32_t>(w.grant[0]);
  for (uint32_t i = 0; i < LoadAcquire(w.sources.hw) && i < stack::kSourcePorts; i++) {  // [G2]
    SourcePort& p = w.sources.at[i];
    if (LoadAcquire(p.filter) == 0 || Exchange(p.epoch, epoch) == epoch) continue;  // [G1]
    pstn_addr local = p.local;
    uint32_t number = 0;
    // Refused: another stack has it by now. Connections that are under way keep it as long as the
    // interface's program remembers.
    // [G1]
    StoreRelease(p.filter, Ask(fam, ask, p.vi, local, number) == 0 ? number : 0u);
  }
}

}  // namespace postern
