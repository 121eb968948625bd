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
constexpr uint32_t kTurnBits = 8, kTurns = 1u << kTurnBits;  // of a client's `backlog`

}  // namespace

uint32_t QueuesBehind(Family& fam, const pstn_lgr_ref& ref) {
  const StackMap& s = Stack(fam);
  return ref.side == 1 || SameUuid(ref.peer, s.hdr.id) ? kOwnQueues : s.lgrs.IndexOf(ref).word();
}

uint32_t* TakenAt(Family& fam, const pstn_lgr_ref& ref, uint8_t* lgr, uint32_t idx) {
  if (!IsQueued(ref)) return &LgrHdr(lgr).pending[idx % PSTN_PENDING];
  return TakenIn(fam.view, QueuesBehind(fam, ref), idx);
}

// Others may change a count all the time.
constexpr int kTries = 64;

bool TakePlace(uint32_t& taken, uint32_t backlog) {
  uint32_t had = LoadRelaxed(taken);
  for (int i = 0; i < kTries && had <= backlog; i++)
    if (CompareExchange(taken, had, had + 1)) return true;
  return false;
}

void AddPlace(uint32_t* taken) {
  if (taken != nullptr) FetchAdd(*taken, 1u);
}

// A client that has lied is not taken for less than nothing: its like would be let in without end.
void GivePlace(uint32_t* taken) {
  uint32_t had = taken != nullptr ? LoadRelaxed(*taken) : 0;
  for (int i = 0; i < kTries && had != 0; i++)
    if (CompareExchange(*taken, had, had - 1)) return;
}

void RaisePlaces(uint32_t* taken, uint32_t least) {
  uint32_t had = taken != nullptr ? LoadRelaxed(*taken) : least;
  for (int i = 0; i < kTries && had < least; i++)
    if (CompareExchange(*taken, had, least)) return;
}

void BeginPlaces(Family& fam, pstn_ep& listener) {
  uint32_t* const taken = TakenIn(fam.view, kOwnQueues, EpIdx(Stack(fam), listener));
  const uint32_t there = LoadRelaxed(listener.accept_count);
  if ((LoadRelaxed(listener.flags) & PSTN_EPF_PUBLISHED) != 0 || taken == nullptr)
    return RaisePlaces(taken, there);
  StoreRelaxed(*taken, there);
}

void BeginWait(Family& fam, const ConnEnd& e, uint32_t backlog) {
  StoreRelaxed(e.ep->backlog, backlog << kTurnBits);
  StoreRelease(e.conn->setup.state, PSTN_CS_WAITS);  // [C1]
  AnnounceSyn(fam.bells, e.lgr, e.ep->conn_idx);
}

bool TakeForWaiting(Family& fam, const ConnEnd& e) {
  const uint32_t listener = LoadRelaxed(e.conn->setup.listener_idx);
  uint32_t* const taken = TakenAt(fam, *e.ref, e.lgr, listener);
  if (taken == nullptr || !TakePlace(*taken, LoadRelaxed(e.ep->backlog) >> kTurnBits)) return false;
  uint32_t waits = PSTN_CS_WAITS;
  if (CompareExchange(e.conn->setup.state, waits, PSTN_CS_SYN)) return true;
  GivePlace(taken);  // the server has taken one for it
  return false;
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
    const auto turn = static_cast<uint32_t>(took / kSynNs) % kTurns;
    const bool dead = LoadRelaxed(LgrHdr(e.lgr).side_dead[1]) != 0;
    const bool over = (dead || took >= kSynsNs) &&
                      CompareExchange(e.conn->setup.state, state, PSTN_CS_SERVER_GONE);
    late = over && !dead;
    uint32_t had = LoadRelaxed(ep.backlog);
    if (!over && turn > had % kTurns &&
        CompareExchange(ep.backlog, had, had - had % kTurns + turn)) {
      if (TakeForWaiting(fam, e)) state = PSTN_CS_SYN;
      AnnounceSyn(fam.bells, e.lgr, ep.conn_idx);
    }
    if (!over && state == PSTN_CS_WAITS) return PSTN_EP_CONNECTING;
  }
  if (late) FetchOr(e.peer_ctl().flags, PSTN_CF_RST | PSTN_CF_CLOSED);
  const bool refused = (LoadAcquire(e.peer_ctl().flags) & PSTN_CF_REFUSED) != 0 ||  // [C2]
                       LoadRelaxed(LgrHdr(e.lgr).side_dead[1]) != 0;
  End(e, late ? ETIMEDOUT : refused ? ECONNREFUSED : 0);
  return LoadAcquire(ep.state);  // [E1]
}

bool GiveUpWait(Family& fam, pstn_ep& ep) {
  ConnEnd e;
  if (!WaitsFor(fam, ep, e)) return false;
  uint32_t state = PSTN_CS_WAITS;
  const bool waited = CompareExchange(e.conn->setup.state, state, PSTN_CS_SERVER_GONE);
  End(e, 0);
  return waited;
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
