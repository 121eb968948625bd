// SPDX-License-Identifier: Apache-2.0
// places.cc - see places.h.
#include "endpoint/places/places.h"

#include <cerrno>

#include "base/clock.h"
#include "endpoint/posts.h"
#include "smcd/notify.h"

namespace postern {
namespace {

constexpr uint64_t kSynNs = 1'000'000'000;
// tcp_syn_retries, after which Linux gives up.
constexpr uint64_t kSynsNs = 135 * kSynNs;

}  // namespace

uint32_t& TakenAt(const Family& fam, const pstn_lgr_ref& ref, uint8_t* lgr, uint32_t idx,
                  uint32_t entry) {
  pstn_places* const places =
      LoadRelaxed(ref.remote) == PSTN_LGR_SAME_USER ? PlacesAt(fam, entry) : nullptr;
  return places != nullptr ? places->taken : LgrHdr(lgr).pending[idx % PSTN_PENDING];
}

bool TakePlace(uint32_t& taken, uint32_t backlog) {
  constexpr int kTries = 64;  // others may change it all the time
  uint32_t had = LoadRelaxed(taken);
  for (int i = 0; i < kTries && had <= backlog; i++)
    if (CompareExchange(taken, had, had + 1)) return true;
  return false;
}

// A client that has lied is not taken for less than nothing: its like would be let in without end.
void GivePlace(uint32_t& taken) {
  constexpr int kTries = 64;
  uint32_t had = LoadRelaxed(taken);
  for (int i = 0; i < kTries && had != 0; i++)
    if (CompareExchange(taken, had, had - 1)) return;
}

void LearnPlaces(Family& fam, pstn_ep& listener) {
  const pstn_dir* const d = LoadAcquire(fam.dir);  // [T4]
  if (d == nullptr) return;
  uint32_t next = LoadRelaxed(d->port_head[listener.local.port]), found = 0;
  for (uint32_t steps = 0; next != 0 && next <= PSTN_DIR_LISTENERS && steps < PSTN_DIR_LISTENERS;
       steps++) {
    const pstn_dir_listener& l = d->listeners[next - 1];
    if (SameUuid(l.stack, Stack(fam).hdr.id) &&
        LoadRelaxed(l.ep_idx) == EpIdx(Stack(fam), listener) &&
        LoadRelaxed(l.ep_gen) == LoadRelaxed(listener.gen) && LoadRelaxed(l.used) != 0)
      found = next;
    next = LoadRelaxed(l.next);
  }
  StoreRelaxed(listener.places, found);
}

void BeginWait(Family& fam, const ConnEnd& e, pstn_places& places) {
  StoreRelaxed(e.ep->backlog, 0u);                   // how often it has come again
  StoreRelease(e.conn->setup.state, PSTN_CS_WAITS);  // [C1]
  (void)Exchange(places.waits, 1u);  // before the look that follows: the server gives, then looks
  FenceAfterLocked();                // [F1] against AdmitWaiting
  AnnounceSyn(fam.bells, e.lgr, e.ep->conn_idx);
}

namespace {

// Whether the endpoint's connect() is of this kind, and not one that the engine sees to.
bool WaitsFor(Family& fam, pstn_ep& ep, ConnEnd& e) {
  return LoadAcquire(ep.state) == PSTN_EP_CONNECTING && ResolveMapped(fam, ep, e) &&  // [E1]
         e.side == 0 && !PeerIsEngine(e);
}

void End(const ConnEnd& e, int error) {
  if (error != 0) StoreRelaxed(e.ep->error, static_cast<uint32_t>(error));
  uint32_t connecting = PSTN_EP_CONNECTING;
  (void)CompareExchange(e.ep->state, connecting, PSTN_EP_ESTABLISHED);
}

}  // namespace

uint32_t Waited(Family& fam, pstn_ep& ep) {
  ConnEnd e;
  if (!WaitsFor(fam, ep, e)) return LoadAcquire(ep.state);  // [E1]
  uint32_t state = LoadAcquire(e.conn->setup.state);        // [C1]
  bool late = false;
  if (state == PSTN_CS_WAITS) {
    const uint64_t began = LoadRelaxed(e.conn->ctl[0].syn_ns), now = MonotonicNs();
    const uint64_t took = now > began ? now - began : 0;
    const auto turn = static_cast<uint32_t>(took / kSynNs);
    late = took >= kSynsNs && CompareExchange(e.conn->setup.state, state, PSTN_CS_SERVER_GONE);
    uint32_t had = LoadRelaxed(ep.backlog);
    if (!late && turn > had && CompareExchange(ep.backlog, had, turn))
      AnnounceSyn(fam.bells, e.lgr, ep.conn_idx);
    if (!late && state == PSTN_CS_WAITS) return PSTN_EP_CONNECTING;
  }
  if (late) FetchOr(e.peer_ctl().flags, PSTN_CF_RST | PSTN_CF_CLOSED);
  const bool refused = (LoadAcquire(e.peer_ctl().flags) & PSTN_CF_REFUSED) != 0 ||  // [C2]
                       LoadRelaxed(LgrHdr(e.lgr).side_dead[1]) != 0;
  End(e, late ? ETIMEDOUT : refused ? ECONNREFUSED : 0);
  return LoadAcquire(ep.state);  // [E1]
}

void GiveUpWait(Family& fam, pstn_ep& ep) {
  ConnEnd e;
  if (!WaitsFor(fam, ep, e)) return;
  uint32_t state = PSTN_CS_WAITS;
  (void)CompareExchange(e.conn->setup.state, state, PSTN_CS_SERVER_GONE);
  End(e, 0);
}

bool LookAtWaits(Family& fam) {
  StackMap& s = Stack(fam);
  bool any = false;
  for (pstn_ep& ep : s.eps.Before(LoadRelaxed(s.hdr.eps.hw))) {
    ConnEnd e;
    if (!WaitsFor(fam, ep, e)) continue;
    if (Waited(fam, ep) == PSTN_EP_CONNECTING) {
      any = true;
    } else {
      PostEp(fam, ep);
    }
  }
  return any;
}

}  // namespace postern
