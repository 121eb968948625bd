// SPDX-License-Identifier: Apache-2.0
// refs.cc - references to endpoints and event sets, one for each number that means them.
#include "endpoint/refs.h"
#include "endpoint/items.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/verbs.h"
#include "state/in_hands.h"

namespace postern {

namespace {

void Set(uint64_t& word, const Refs& refs) {
  DeathFence();                     // [Z1]
  StoreRelease(word, refs.word());  // [E3]
  DeathFence();                     // [Z1]
}

// One less; the last one leaves the object in the hands of the process with that mark.
bool Less(uint64_t& word, uint32_t count, uint32_t mark) {
  if (!PSTN_CHECK(count != 0)) {  // the object is another reference's, or none's: it stays
    Set(word, Refs(0, 0, 0));
    return false;
  }
  Set(word, Refs(count - 1, count == 1 ? mark : 0, PSTN_REFS_ALONE));
  return count == 1;
}

// Under the lock: the process whose move this is died in the middle. What it was about to share, it
// does not; what it was about to give up, is given up.
void MendMove(StackMap& s, uint64_t& word, uint32_t entry) {
  const Refs refs(LoadAcquire(word));  // [E3]
  if (!refs.moving()) return;
  uint32_t there = entry;
  uint32_t* const at = EntryAt(s, refs.place());
  if (at != nullptr) (void)CompareExchange(*at, there, 0u);
  if (refs.gives_up())
    (void)Less(word, refs.count(), refs.mark());
  else
    Set(word, Refs(refs.count(), 0, 0));
}

// fn(word, mark of this process) under the lock of what an entry names; false if it names nothing.
template <typename Fn>
bool Counting(Family& fam, uint32_t entry, Fn fn) {
  StackMap& s = Stack(fam);
  const uint32_t idx = entry & PSTN_FD_IDX, kind = entry & PSTN_FD_KIND;
  if (pstn_ep* const ep = kind == PSTN_FD_EP ? EpAt(s, idx) : nullptr; ep != nullptr) {
    const Guard g(ep->item_lock);
    MendMove(s, ep->refs, entry);
    return fn(ep->refs, HandsMark(ep->item_lock));
  }
  pstn_epoll* const set = kind == PSTN_FD_EPOLL ? s.epolls.At(SetIndex(idx)) : nullptr;
  if (set == nullptr) return false;
  const SetGuard g(s, *set);
  MendMove(s, set->refs, entry);
  return fn(set->refs, HandsMark(set->lock));
}

}  // namespace

bool ShareRef(Family& fam, uint32_t entry, uint32_t place) {
  return Counting(fam, entry, [&](uint64_t& word, uint32_t mark) {
    const Refs refs(LoadRelaxed(word));
    const uint32_t count = refs.count();
    if (count == 0 || count == PSTN_REFS_COUNT || refs.alone()) return false;
    if ((entry & PSTN_FD_KIND) == PSTN_FD_EP)
      FetchOr(EpAt(Stack(fam), entry & PSTN_FD_IDX)->flags, PSTN_EPF_DUPPED);
    uint32_t* const at = EntryAt(Stack(fam), place);
    if (at != nullptr) {
      if (mark != 0) Set(word, Refs(count, mark, place));
      StoreRelease(*at, entry);  // [P4]
    }
    Set(word, Refs(count + 1, 0, 0));
    return true;
  });
}

bool GiveUpRef(Family& fam, uint32_t entry, uint32_t place, GiveUp when) {
  return Counting(fam, entry, [&](uint64_t& word, uint32_t mark) {
    const uint32_t count = Refs(LoadRelaxed(word)).count();
    uint32_t* const at = EntryAt(Stack(fam), place);
    if (at != nullptr) {
      if (LoadAcquire(*at) == entry) {  // [P4]
        if (mark != 0) Set(word, Refs(count, mark, place, PSTN_REFS_GIVES_UP));
        StoreRelease(*at, 0u);  // [P4]
      } else if (when == GiveUp::kIfThere) {
        return false;
      }
    }
    return Less(word, count, mark);
  });
}

void MendRef(Family& fam, uint32_t entry) {
  (void)Counting(fam, entry, [](uint64_t&, uint32_t) { return true; });
}

void DropFdRef(Family& fam, uint32_t entry) {
  if (GiveUpRef(fam, entry, PSTN_NONE)) kVerbs.last_reference(fam, entry);
}

void DropNumber(Family& fam, int fd, uint32_t entry) {
  if (GiveUpRef(fam, entry, PlaceOf(fam, fd, false))) kVerbs.last_reference(fam, entry);
}

void SockDup(Family& fam, uint32_t entry, int to) {
  const bool shares = ShareRef(fam, entry, PlaceOf(fam, to, true));
  MarkPrivate(fam, to, shares ? entry : 0);
}

// A set's number under the set's lock: registrations may be on their way into it (HandOver).
long CloseNumberOf(Family& fam, int fd, uint32_t entry) {
  StackMap& s = Stack(fam);
  const bool is_set = (entry & PSTN_FD_KIND) == PSTN_FD_EPOLL;
  pstn_epoll* const set = is_set ? s.epolls.At(SetIndex(entry & PSTN_FD_IDX)) : nullptr;
  const bool last = GiveUpRef(fam, entry, PlaceOf(fam, fd, false));
  long r = 0;
  if (set == nullptr) {
    r = CloseClaimed(fam, fd);
  } else {
    const SetGuard h(s, *set);
    r = CloseClaimed(fam, fd);
  }
  if (last) kVerbs.last_reference(fam, entry);
  return r;
}

}  // namespace postern
