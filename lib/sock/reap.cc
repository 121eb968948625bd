// SPDX-License-Identifier: Apache-2.0
// reap.cc - see reap.h.
#include "sock/reap.h"

#include "base/sys.h"
#include "sock/sock.h"

namespace postern {
namespace {

// The socket code works on the process's own view: lend it the one that is being reaped. A program
// that takes back a slot of its own (a fork that failed) has it already, and other threads may be
// changing it.
class Borrow {
 public:
  explicit Borrow(StackView& v) : v_(v), other_(&v != &g_proc.view) {
    if (!other_) return;
    own_ = g_proc.view;
    g_proc.view = v;
    g_proc.bells.counters = v.s->hdr.counters;
  }
  ~Borrow() {
    if (!other_) return;
    v_ = g_proc.view;
    g_proc.view = own_;
  }
  Borrow(const Borrow&) = delete;
  Borrow& operator=(const Borrow&) = delete;

 private:
  StackView& v_;
  const bool other_;
  StackView own_;
};

void DropListeners(pstn_stack& s, pstn_slot& slot) {
  for (uint32_t chunk : slot.chunk) {
    if (chunk >= PSTN_FDCHUNKS) continue;
    for (uint32_t& e : s.fdchunks[chunk].fd) {
      uint32_t entry = LoadRelaxed(e);
      pstn_ep* ep = (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(s, entry & PSTN_FD_IDX) : nullptr;
      if (ep == nullptr || LoadAcquire(ep->state) != PSTN_EP_LISTEN) continue;
      if (CompareExchange(e, entry, 0u)) DropFdRef(entry);
    }
  }
}

// The link groups of the connections that a dead process held.
class Touched {
 public:
  void Add(pstn_ep& ep) {
    ConnEnd e;
    if (LoadAcquire(ep.state) != PSTN_EP_ESTABLISHED || !Resolve(ep, e)) return;
    PostTaken(g_proc.bells, e);
    lgrs_[ep.lgr_idx % PSTN_LGRS / 64] |= 1ull << (ep.lgr_idx % 64);
    any_ = true;
  }
  // After all else has been posted: who is rung sees it.
  void Ring(pstn_stack& s) const {
    for (uint32_t i = 0; i < PSTN_LGRS && any_; i++) {
      uint8_t* lgr = (lgrs_[i / 64] >> (i % 64) & 1u) != 0 ? LgrBase(g_proc.view, i) : nullptr;
      if (lgr == nullptr) continue;
      RingTaken(g_proc.bells, lgr, 0);
      RingTaken(g_proc.bells, lgr, 1);
    }
    if (any_) RingTakenInside(g_proc.bells, s);
  }

 private:
  uint64_t lgrs_[PSTN_LGRS / 64] = {};
  bool any_ = false;
};

void DropTable(pstn_stack& s, pstn_slot& slot, Touched& touched) {
  const bool told = LoadAcquire(slot.told) != 0;
  for (uint32_t c = 0; c < PSTN_SLOT_CHUNKS; c++) {
    uint32_t chunk = Exchange(slot.chunk[c], PSTN_NONE);
    if (chunk >= PSTN_FDCHUNKS) continue;
    for (uint32_t& e : s.fdchunks[chunk].fd) {
      uint32_t entry = Exchange(e, 0u);
      pstn_ep* ep = (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(s, entry & PSTN_FD_IDX) : nullptr;
      if (ep != nullptr && LoadRelaxed(ep->refs) == 1) Count(s.hdr, kCounterEndpointsReaped);
      if (ep != nullptr && told) touched.Add(*ep);
      if (entry != 0) DropFdRef(entry);
    }
    GiveFdChunk(s, chunk);
  }
}

// Ends every connection of a side that no process will end any more.
void EndSide(uint8_t* lgr, uint32_t side) {
  uint32_t hw =
      LoadRelaxed(LgrHdr(lgr).conns_hw);  // a look at the others would allocate their pages
  for (uint32_t i = 0; i < hw && i < PSTN_CONNS; i++) {
    pstn_conn& c = LgrConn(lgr, i);
    uint32_t state = LoadAcquire(c.setup.state);
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
    AnnounceData(g_proc.bells, e);
    AnnounceSpace(g_proc.bells, e);
  }
}

// The same for the side that survives: the dead one may have left anything in the link group.
void EndOurs(pstn_stack& s, pstn_lgr_ref& ref, uint8_t* lgr) {
  const uint32_t side = ref.side & 1u;
  for (uint32_t i = 0; i < PSTN_CONNS; i++) {
    const uint32_t idx = LoadAcquire(ref.conn_ep[i]);
    if (idx == 0 || idx > PSTN_EPS) continue;
    pstn_ep none = {};
    none.conn_idx = i;
    const ConnEnd e = {&none, &ref, lgr, &LgrConn(lgr, i), side};
    uint32_t& flags = e.peer_ctl().flags;
    if ((LoadRelaxed(flags) & PSTN_CF_CLOSED) == 0) FetchOr(flags, PSTN_CF_CLOSED | PSTN_CF_RST);
    PostEnded(g_proc.bells, s, e);
  }
  RingInside(g_proc.bells, s);
}

}  // namespace

bool ReapWouldWait(const pstn_stack& s, uint32_t slot_idx, bool (*stopped)(uint32_t tid)) {
  auto held = [&](const pstn_lock& lock) {
    uint32_t owner = LoadRelaxed(lock.word) & ~kLockSleepers;
    return owner != 0 && stopped(owner);
  };
  if (slot_idx >= PSTN_SLOTS || held(s.hdr.slot_lock) || held(s.hdr.lgr_lock)) return true;
  for (uint32_t i = 0; i < LoadRelaxed(s.hdr.lgrs_hw) && i < PSTN_LGRS; i++) {
    if (LoadRelaxed(s.lgrs[i].state) != 0 && held(s.lgrs[i].lock)) return true;
  }
  for (uint32_t i = 0; i < LoadRelaxed(s.hdr.epolls.hw) && i < PSTN_EPOLLS; i++) {
    if (held(s.epolls[i].lock)) return true;
  }
  for (const uint32_t& place : s.slots[slot_idx].chunk) {
    uint32_t chunk = LoadAcquire(place);
    if (chunk >= PSTN_FDCHUNKS) continue;
    for (const uint32_t& e : s.fdchunks[chunk].fd) {
      uint32_t entry = LoadRelaxed(e), idx = entry & PSTN_FD_IDX;
      if ((entry & PSTN_FD_KIND) != PSTN_FD_EP || idx >= PSTN_EPS) continue;
      const pstn_ep& ep = s.eps[idx];
      if (held(ep.tx.lock) || held(ep.rx.lock) || held(ep.item_lock) || held(ep.accept_lock))
        return true;
    }
  }
  return false;
}

void ReapListeners(StackView& v, uint32_t slot_idx) {
  if (slot_idx >= PSTN_SLOTS) return;
  Borrow b(v);
  DropListeners(*v.s, v.s->slots[slot_idx]);
}

void ReapSlot(StackView& v, uint32_t slot_idx) {
  if (slot_idx >= PSTN_SLOTS) return;
  Borrow b(v);
  pstn_stack& s = *v.s;
  pstn_slot& slot = s.slots[slot_idx];
  if (LoadAcquire(slot.state) == PSTN_SL_FREE) return;
  StoreRelease(slot.state, PSTN_SL_DEAD);
  Touched touched;
  DropTable(s, slot, touched);
  RecoverConns(slot_idx);
  ReleaseWaitersOf(slot_idx);
  SpreadPosts();  // it may have been rung for all
  if (LoadAcquire(slot.told) != 0) RespreadPosts();
  touched.Ring(s);
  Count(s.hdr, kCounterSlotsReaped);
  StoreRelease(slot.pid, 0u);
  StoreRelease(slot.state, PSTN_SL_FREE);
}

void ReapStack(StackView& v) {
  for (uint32_t i = 0; i < PSTN_SLOTS; i++) ReapSlot(v, i);
  Borrow b(v);
  pstn_stack& s = *v.s;
  for (uint32_t i = 0; i < PSTN_LGRS; i++) {
    if (LoadRelaxed(s.lgrs[i].state) == 0) continue;
    uint8_t* lgr = LgrBase(g_proc.view, i);
    if (lgr == nullptr) continue;
    uint32_t side = s.lgrs[i].side & 1u;
    StoreRelease(LgrHdr(lgr).side_dead[side], 1u);
    EndSide(lgr, side);
    AnnounceAll(g_proc.bells, lgr, side ^ 1u);
    RingTaken(g_proc.bells, lgr, side ^ 1u);
  }
}

void MarkPeerDead(StackView& survivor, uint32_t idx) {
  if (idx >= PSTN_LGRS || LoadAcquire(survivor.s->lgrs[idx].state) == 0) return;
  Borrow b(survivor);
  StoreRelease(survivor.s->lgrs[idx].state, 2u);
  uint8_t* lgr = LgrBase(g_proc.view, idx);
  if (lgr == nullptr) return;
  uint32_t side = survivor.s->lgrs[idx].side & 1u;
  // Clients that connected, perhaps wrote, and died before anyone came by: they are accepted all
  // the same.
  if (side == 1) AdmitSyns(kAllLooks);
  StoreRelease(LgrHdr(lgr).side_dead[side ^ 1u], 1u);
  EndSide(lgr, side ^ 1u);
  EndOurs(*survivor.s, survivor.s->lgrs[idx], lgr);
}

bool LgrIdle(const pstn_stack& s, uint32_t idx) {
  if (idx >= PSTN_LGRS) return true;
  for (const uint32_t& ep : s.lgrs[idx].conn_ep) {
    if (LoadRelaxed(ep) != 0) return false;
  }
  return true;
}

}  // namespace postern
