// SPDX-License-Identifier: Apache-2.0
// reap.cc - see reap.h.

#include "life/reap.h"
#include "base/sys.h"
#include "control/acceptor.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "endpoint/posts.h"
#include "endpoint/refs.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/holder.h"
#include "life/hands.h"
#include "peer/connect.h"

namespace postern {
namespace {

void DropEntry(Family& fam, uint32_t entry, uint32_t chunk, uint32_t i) {
  if (GiveUpRef(fam, entry, chunk * PSTN_FDCHUNK_FDS + i, GiveUp::kIfThere))
    kVerbs.last_reference(fam, entry);
}

void DropListeners(Family& fam, StackMap& s, pstn_slot& slot) {
  for (const uint32_t& place : slot.chunk) {
    const uint32_t idx = LoadAcquire(place);  // [P3]
    const pstn_fdchunk* const chunk = s.fdchunks.At(ChunkIndex(idx));
    if (chunk == nullptr) continue;
    for (uint32_t i = 0; i < PSTN_FDCHUNK_FDS; i++) {
      const uint32_t entry = LoadRelaxed(chunk->fd[i]);
      pstn_ep* ep = (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(s, entry & PSTN_FD_IDX) : nullptr;
      if (ep == nullptr || LoadAcquire(ep->state) != PSTN_EP_LISTEN) continue;  // [E1]
      DropEntry(fam, entry, idx, i);
    }
  }
}

// The link groups of the connections that a dead process held.
class Touched {
 public:
  explicit Touched(Family& fam) : fam_(fam) {}
  void Add(pstn_ep& ep) {
    ConnEnd e;
    if (LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED || !Resolve(fam_, ep, e)) return;  // [E1]
    const auto idx = Stack(fam_).lgrs.IndexOf(*e.ref).word();
    PostTaken(fam_.bells, e);
    lgrs_[idx / 64] |= 1ull << (idx % 64);
    any_ = true;
  }
  // After all else has been posted: the thread that is rung sees it.
  void Ring(StackMap& s) const {
    for (uint32_t i = 0; i < s.lgrs.count() && any_; i++) {
      uint8_t* lgr = (lgrs_[i / 64] >> (i % 64) & 1u) != 0 ? LgrBase(fam_.view, i) : nullptr;
      if (lgr == nullptr) continue;
      RingTaken(fam_.bells, lgr, 0);
      RingTaken(fam_.bells, lgr, 1);
    }
    if (any_) RingTakenInside(fam_.bells, s);
  }

 private:
  Family& fam_;
  uint64_t lgrs_[kGroups.most / 64] = {};
  bool any_ = false;
};

void DropTable(Family& fam, StackMap& s, pstn_slot& slot, Touched& touched) {
  const bool told = LoadAcquire(slot.told) != 0;  // [P7]
  for (uint32_t c = 0; c < PSTN_SLOT_CHUNKS; c++) {
    uint32_t chunk = LoadAcquire(slot.chunk[c]);  // [P3]
    pstn_fdchunk* const entries = s.fdchunks.At(ChunkIndex(chunk));
    if (entries == nullptr) continue;
    for (uint32_t i = 0; i < PSTN_FDCHUNK_FDS; i++) {
      const uint32_t entry = LoadAcquire(entries->fd[i]);  // [P4]
      pstn_ep* ep = (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(s, entry & PSTN_FD_IDX) : nullptr;
      if (ep != nullptr && RefsOf(*ep).count() == 1) Count(s.hdr, kCounterEndpointsReaped);
      if (ep != nullptr && told) touched.Add(*ep);
      if (entry != 0) DropEntry(fam, entry, chunk, i);
    }
    TakeInHands(*entries, s.hdr.fdchunks.lock);
    if (Exchange(slot.chunk[c], PSTN_NONE) == chunk) GiveFdChunk(s, chunk);
  }
}

// Ends every connection of a side that no process will end any more.
void EndSide(Family& fam, uint8_t* lgr, uint32_t side) {
  uint32_t hw =
      LoadRelaxed(LgrHdr(lgr).conns_hw);  // a look at the others would allocate their pages
  for (uint32_t i = 0; i < hw && i < PSTN_CONNS; i++) {
    pstn_conn& c = LgrConn(lgr, i);
    uint32_t state = LoadAcquire(c.setup.state);  // [C1]
    uint32_t own_gone = GoneState(side, state);
    bool peer_gone = side == 0 ? state == PSTN_CS_SERVER_GONE
                               : state == PSTN_CS_CLIENT_GONE || state == PSTN_CS_SYN_GONE;
    if (state == PSTN_CS_FREE || state == own_gone) continue;
    uint32_t flags = LoadRelaxed(c.ctl[side].flags);
    if ((flags & PSTN_CF_CLOSED) == 0) FetchOr(c.ctl[side].flags, PSTN_CF_CLOSED | PSTN_CF_RST);
    CompareExchange(c.setup.state, state, peer_gone ? uint32_t{PSTN_CS_FREE} : own_gone);
    pstn_ep none = {};
    none.conn_idx = i;
    ConnEnd e = {&none, nullptr, lgr, &c, side};
    AnnounceData(fam.bells, e);
    AnnounceSpace(fam.bells, e);
  }
}

// The same for the side that survives: the dead one may have left anything in the link group.
void EndOurs(Family& fam, StackMap& s, pstn_lgr_ref& ref, uint8_t* lgr) {
  const uint32_t side = ref.side & 1u;
  for (uint32_t i = 0; i < PSTN_CONNS; i++) {
    const uint32_t idx = LoadAcquire(ref.conn_ep[i]);  // [E4]
    if (idx == 0 || EpAt(s, idx - 1) == nullptr) continue;
    pstn_ep none = {};
    none.conn_idx = i;
    const ConnEnd e = {&none, &ref, lgr, &LgrConn(lgr, i), side};
    uint32_t& flags = e.peer_ctl().flags;
    if ((LoadRelaxed(flags) & PSTN_CF_CLOSED) == 0) FetchOr(flags, PSTN_CF_CLOSED | PSTN_CF_RST);
    PostEnded(fam.bells, s, e);
  }
  RingInside(fam.bells, s);
}

}  // namespace

void TakeOverLocksOf(Family& fam, uint32_t slot_idx) {
  StackMap& s = Stack(fam);
  // And those of a reaper that died at its work, if this is the next one.
  auto left = [&](const pstn_lock& lock) {
    const uint32_t mark = LoadRelaxed(lock.word) >> PSTN_LOCK_SLOT_SHIFT & PSTN_LOCK_REAPER;
    return mark == slot_idx + 1 || (fam.slot == PSTN_NONE && mark == PSTN_LOCK_REAPER);
  };
  auto take = [&](pstn_lock& lock) {
    if (left(lock)) Guard g(lock);
  };
  take(s.hdr.slot_lock);
  for (pstn_pool* pool : PoolsOf(s)) take(pool->lock);
  for (pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) take(ref.lock);
  for (pstn_epoll& set : s.epolls.Before(LoadRelaxed(s.hdr.epolls.hw))) {
    if (left(set.lock)) SetGuard g(s, set);
  }
  for (pstn_ep& ep : s.eps.Before(LoadRelaxed(s.hdr.eps.hw))) {
    take(ep.tx.lock);
    take(ep.rx.lock);
    take(ep.item_lock);
    take(ep.setup_lock);
    if (left(ep.accept_lock)) MendQueue(fam, ep);
  }
}

bool ReapWouldWait(const StackMap& s, uint32_t slot_idx, bool (*stays)(const pstn_lock&)) {
  auto held = [&](const pstn_lock& lock) { return LoadRelaxed(lock.word) != 0 && stays(lock); };
  const pstn_slot* const slot = s.slots.At(ProcIndex(slot_idx));
  if (slot == nullptr) return true;
  for (const pstn_pool* pool : PoolsOf(s)) {
    if (held(pool->lock)) return true;
  }
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    if (LoadRelaxed(ref.state) != 0 && held(ref.lock)) return true;
  }
  for (const pstn_epoll& set : s.epolls.Before(LoadRelaxed(s.hdr.epolls.hw))) {
    if (held(set.lock)) return true;
  }
  for (const uint32_t& place : slot->chunk) {
    const pstn_fdchunk* const chunk = s.fdchunks.At(ChunkIndex(LoadAcquire(place)));  // [P3]
    if (chunk == nullptr) continue;
    for (const uint32_t& e : chunk->fd) {
      const uint32_t entry = LoadRelaxed(e);
      const bool is_ep = (entry & PSTN_FD_KIND) == PSTN_FD_EP;
      const pstn_ep* const ep = is_ep ? EpAt(s, entry & PSTN_FD_IDX) : nullptr;
      if (ep == nullptr) continue;
      if (held(ep->tx.lock) || held(ep->rx.lock) || held(ep->item_lock) || held(ep->accept_lock))
        return true;
    }
  }
  return false;
}

bool ClaimDead(Family& fam, uint32_t slot_idx, uint32_t pid) {
  pstn_slot* const place = Stack(fam).slots.At(ProcIndex(slot_idx));
  if (place == nullptr) return false;
  pstn_slot& slot = *place;
  if (LoadAcquire(slot.pid) != pid) return false;  // [P2]
  uint32_t state = LoadAcquire(slot.state);        // [P1]
  while (state != PSTN_SL_FREE && state != PSTN_SL_DEAD) {
    if (CompareExchange(slot.state, state, uint32_t{PSTN_SL_DEAD})) return true;
  }
  return state == PSTN_SL_DEAD;
}

void ReapListeners(Family& fam, uint32_t slot_idx) {
  StackMap& s = Stack(fam);
  pstn_slot* const slot = s.slots.At(ProcIndex(slot_idx));
  if (slot == nullptr) return;
  Guard reaps(s.hdr.reap_lock);
  if (LoadAcquire(slot->state) == PSTN_SL_DEAD) DropListeners(fam, s, *slot);  // [P1]
}

void ReapSlot(Family& fam, uint32_t slot_idx) {
  StackMap& s = Stack(fam);
  pstn_slot* const place = s.slots.At(ProcIndex(slot_idx));
  if (place == nullptr) return;
  pstn_slot& slot = *place;
  // One at a time: what is marked must not be ended twice, nor a slot that has its next process, or
  // is kept for the next child.
  Guard reaps(s.hdr.reap_lock);
  if (LoadAcquire(slot.state) != PSTN_SL_DEAD) return;  // [P1]
  // Before its entries are looked at: what it was in the middle of is mended by the next holder.
  TakeOverLocksOf(fam, slot_idx);
  Touched touched(fam);
  const Hands hands(fam, slot_idx);
  hands.Mend();
  LeaveAcceptors(fam, slot_idx);
  DropTable(fam, s, slot, touched);
  RecoverConns(fam, slot_idx);
  ReleaseWaitersOf(fam, slot_idx);
  hands.End();
  SpreadPosts(fam);                                     // it may have been rung for all
  if (LoadAcquire(slot.told) != 0) RespreadPosts(fam);  // [P7]
  touched.Ring(s);
  Count(s.hdr, kCounterSlotsReaped);
  StoreRelease(slot.pid, 0u);    // [P2]
  uint32_t dead = PSTN_SL_DEAD;  // another one that reaps may have been quicker
  (void)CompareExchange(slot.state, dead, uint32_t{PSTN_SL_FREE});
}

void EndEmbryo(Family& fam, uint32_t slot_idx) {
  uint32_t embryo = PSTN_SL_EMBRYO;
  if (CompareExchange(Stack(fam).slots.Own(ProcIndex(slot_idx)).state, embryo,
                      uint32_t{PSTN_SL_DEAD}))
    ReapSlot(fam, slot_idx);
}

bool EndStack(Family& fam) {
  StackMap& s = Stack(fam);
  for (const pstn_slot& slot : s.slots.Before(LoadAcquire(s.hdr.slots_hw))) {  // [P5]
    const uint32_t state = LoadAcquire(slot.state);                            // [P1]
    if (state == PSTN_SL_LIVE || state == PSTN_SL_EMBRYO) return false;
    if (state != PSTN_SL_FREE) ReapSlot(fam, s.slots.IndexOf(slot).word());
  }
  for (const pstn_lgr_ref& ref : s.lgrs.All()) {
    if (LoadRelaxed(ref.state) == 0) continue;
    uint8_t* lgr = LgrAt(fam.view, s.lgrs.IndexOf(ref)).base;
    if (lgr == nullptr) continue;
    uint32_t side = LoadRelaxed(ref.side) & 1u;
    StoreRelease(LgrHdr(lgr).side_dead[side], 1u);  // [L3]
    EndSide(fam, lgr, side);
    AnnounceAll(fam.bells, lgr, side ^ 1u);
    RingTaken(fam.bells, lgr, side ^ 1u);
  }
  return true;
}

void MarkPeerDead(Family& fam, uint32_t idx) {
  StackMap& s = Stack(fam);
  pstn_lgr_ref* const ref = s.lgrs.At(LgrIndex(idx));
  if (ref == nullptr || LoadAcquire(ref->state) == 0) return;  // [L1]
  StoreRelease(ref->state, 2u);                                // [L1]
  uint8_t* lgr = LgrBase(fam.view, idx);
  if (lgr == nullptr) return;
  uint32_t side = LoadRelaxed(ref->side) & 1u;
  // Clients that connected, perhaps wrote, and died before anyone came by: they are accepted all
  // the same.
  if (side == 1) AdmitSyns(fam, kAllLooks);
  StoreRelease(LgrHdr(lgr).side_dead[side ^ 1u], 1u);  // [L3]
  EndSide(fam, lgr, side ^ 1u);
  EndOurs(fam, s, *ref, lgr);
}

bool LgrIdle(const pstn_lgr_ref& ref) {
  for (const uint32_t& ep : ref.conn_ep) {
    if (LoadRelaxed(ep) != 0) return false;
  }
  return true;
}

}  // namespace postern
