// SPDX-License-Identifier: Apache-2.0
// family_world.h - a family in memory whose processes die: a stack, one that dies, one that lives
// on, and the family's reaper.
//
// The one that dies is a child that is stepped through (single_step.h). The other two are this
// process, which takes one part after the other: they never run at the same time. Numbers of the
// survivor have no file behind them, so that it can close them again and again.
//
//   FamilyWorld w;
//   ... As(kDying) sets up what the operation needs, w.Hold() what the survivor has
//   const StepResult r = w.Step([&] { operation }, [&]() -> const char* { what lives on });
#pragma once
#include <sys/socket.h>

#include <initializer_list>
#include <utility>

#include "../kit/single_step.h"
#include "../smcd/ring_pair.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/refs.h"
#include "event/epoll_set.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/holder.h"
#include "life/process.h"
#include "life/reap.h"
#include "peer/close.h"
#include "sock/own_family.h"
#include "sock/rooms.h"
#include "state/stack_validate.h"

namespace postern {

class FamilyWorld {
 public:
  static constexpr uint32_t kDying = 1, kSurvivor = 0;
  static constexpr int kHeld = 5000;  // the survivor's first number

  FamilyWorld() {
    static Rooms rooms;
    rooms = {};
    fam_ = FamilyIn(rooms);
    fam_.view.s = &ring.stack();
    fam_.enabled = fam_.attached = true;
    fam_.opt = OptionsDefault();
    fam_.bells.counters = ring.stack().hdr.counters;
    for (uint32_t side = 0; side < 2; side++) {
      const auto idx = s().lgrs.IndexOf(ring.ref(side)).word();
      fam_.view.lgr[idx] = ring.lgr();
      fam_.view.lgr_id[idx] = s().lgrs.Own(LgrIndex(idx)).id;
    }
    for (const uint32_t slot : {kSurvivor, kDying}) {
      for (uint32_t& c : s().slots.Own(ProcIndex(slot)).chunk) c = PSTN_NONE;
      s().slots.Own(ProcIndex(slot)).pid = 100000 + slot;
      s().slots.Own(ProcIndex(slot)).pidns = OwnPidns(fam_);
      s().slots.Own(ProcIndex(slot)).state = PSTN_SL_LIVE;
    }
    s().hdr.slots_hw = 2;
    ask_ns_ = g_lock_ask_ns;
    g_lock_ask_ns = 0;  // nobody is alive behind a lock here
    UsesInit(fam_);
    As(kDying);
  }
  ~FamilyWorld() {
    if (fam_.uses->has_key) (void)pthread_key_delete(fam_.uses->thread_key);
    t_uses = nullptr;
    LeaveLocks(fam_);
    g_lock_ask_ns = ask_ns_;
  }
  FamilyWorld(const FamilyWorld&) = delete;
  FamilyWorld& operator=(const FamilyWorld&) = delete;

  StackMap& s() { return ring.stack(); }
  Family& fam() { return fam_; }
  // This process's part from now on.
  void As(uint32_t slot) {
    fam_.slot = slot;
    (void)UseLockSlot(fam_, slot);
    fam_.bells.told = &s().slots.Own(ProcIndex(slot)).told;
  }
  void AsReaper() {
    fam_.slot = PSTN_NONE;
    (void)UseReaperLocks(fam_);
    fam_.bells.told = nullptr;
  }
  // The survivor has what the dying one's number `fd` means, as kHeld + `nth`.
  void Hold(int fd, int nth = 0) {
    const uint32_t entry = FdEntry(fam_, fd);
    As(kSurvivor);
    SockDup(fam_, entry, kHeld + nth);
    As(kDying);
  }
  // What the survivor's number means; made anew at each look, since only memory is put back.
  uint32_t Held(int nth = 0) {
    const uint32_t entry = SharedEntry(fam_, kHeld + nth);
    MarkPrivate(fam_, kHeld + nth, entry);
    return entry;
  }
  void CloseHeld(int nth = 0) {
    const uint32_t entry = Held(nth);
    if (entry != 0) (void)SockClose(fam_, kHeld + nth, entry);
  }

  // All that operations, reaping and the survivor change.
  void SaveAll() {
    auto& hdr = s().hdr;
    const auto* const from = reinterpret_cast<uint8_t*>(&hdr.eps);
    saved_.Add(&hdr.eps, static_cast<size_t>(reinterpret_cast<uint8_t*>(&hdr.counters) - from));
    saved_.Add(&s().waiters.Own(WaiterIndex(0)), 8 * sizeof(pstn_waiter));
    saved_.Add(&s().epolls.Own(SetIndex(0)), 4 * sizeof(pstn_epoll));
    saved_.Add(&s().slots.Own(ProcIndex(0)), 4 * sizeof(pstn_slot));
    saved_.Add(&s().eps.Own(EpIndex(0)), 10 * sizeof(pstn_ep));
    saved_.Add(&s().items.Own(ItemIndex(0)), 8 * sizeof(pstn_item));
    saved_.Add(&s().fdchunks.Own(ChunkIndex(0)), 5 * sizeof(pstn_fdchunk));
    for (uint32_t side = 0; side < 2; side++) {
      pstn_lgr_ref& ref = ring.ref(side);
      saved_.Add(&ref, offsetof(pstn_lgr_ref, zombie_ring));
      saved_.Add(&ref.zombie_ring[0], 8 * sizeof(uint64_t));
      saved_.Add(&ref.zombie_old[0], 8 * sizeof(uint64_t));
      saved_.Add(&ref.zombies, sizeof ref.zombies);
      saved_.Add(&ref.conn_ep[0], 8 * sizeof(uint32_t));
      for (const uint32_t w : {0u, 1u, 2u, 3u, 4u, PSTN_EVMAP_ALL})
        saved_.Add(&LgrEvmap(ring.lgr(), side, w), sizeof(pstn_evmap));
    }
    saved_.Add(&LgrConn(ring.lgr(), 0), 8 * sizeof(pstn_conn));
    saved_.Add(ring.lgr(), 4096);
  }

  // Besides those.
  void Save(void* at, size_t bytes) { saved_.Add(at, bytes); }

  // Each process that is not the survivor is dead, and is reaped. The reaper has no queues.
  void Reap() {
    AsReaper();
    QueuesHere& queues = fam_.view.queues[kOwnQueues];
    const QueuesHere had = std::exchange(queues, {});
    for (uint32_t i = 0; i < s().slots.count(); i++) {
      if (i == kSurvivor || s().slots.Own(ProcIndex(i)).state == PSTN_SL_FREE) continue;
      (void)ClaimDead(fam_, i, s().slots.Own(ProcIndex(i)).pid);
      ReapListeners(fam_, i);
      ReapSlot(fam_, i);
    }
    queues = had;
  }
  // Null, or what is wrong after a death: reaped, the survivor's `live`, and when that has died.
  template <typename Live>
  const char* After(Live live) {
    Reap();
    for (uint32_t i = 0; i < s().slots.count(); i++) {
      if (i != kSurvivor && s().slots.Own(ProcIndex(i)).state != PSTN_SL_FREE)
        return "a slot is not given back";
    }
    // A process that has no slot yet has no mark: the next that wants this lock asks the kernel
    // whether the thread lives. Here it does.
    pstn_lock& slots = s().hdr.slot_lock;
    if ((LoadRelaxed(slots.word) >> PSTN_LOCK_SLOT_SHIFT & PSTN_LOCK_REAPER) == 0) slots.word = 0;
    if (const char* wrong = Validate(s()); wrong != nullptr) return wrong;
    As(kSurvivor);
    const char* wrong = live();
    if (wrong == nullptr) wrong = Validate(s());
    if (wrong != nullptr) return wrong;
    AsReaper();
    (void)ClaimDead(fam_, kSurvivor, s().slots.Own(ProcIndex(kSurvivor)).pid);
    ReapListeners(fam_, kSurvivor);
    ReapSlot(fam_, kSurvivor);
    return ValidateEmpty(s());
  }
  template <typename Operation, typename Live>
  StepResult Step(Operation operation, Live live) {
    SaveAll();
    return AtEachInstruction(
        saved_, [&] { operation(); },
        [&] {
          const char* const wrong = After(live);
          As(kDying);
          return wrong;
        },
        At::kChanges);
  }

  RingWorld ring;

 private:
  Family fam_;
  Saved saved_;
  uint64_t ask_ns_;
};

}  // namespace postern
