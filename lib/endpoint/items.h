// SPDX-License-Identifier: Apache-2.0
// items.h - registrations of endpoints in event sets, and the list of those that may be ready.
//
// An item is in two lists: its endpoint's (under ep.item_lock) and its set's (under set.lock). Both
// locks are held, the endpoint's first, when it joins or leaves. The ready list is the set's alone.
#pragma once
#include "base/lock.h"
#include "base/tsan.h"
#include "state/bits.h"
#include "state/view.h"

namespace postern {

// set.lock for the time of a block. What an owner that died with it has left half done is mended
// first.
class SetGuard {
 public:
  SetGuard(StackMap& s, pstn_epoll& set);
  ~SetGuard() {
    TsanLeave(&s_.hdr.items);
    Unlock(set_.lock);
  }
  SetGuard(const SetGuard&) = delete;
  SetGuard& operator=(const SetGuard&) = delete;

 private:
  StackMap& s_;
  pstn_epoll& set_;
};

// Under set.lock. An item that is on the list, or whose one shot was fired, is not put there.
void PushReady(StackMap& s, pstn_epoll& set, uint32_t idx);
uint32_t PopReady(StackMap& s, pstn_epoll& set);  // PSTN_NONE: the list is empty

// Under both locks: makes `idx`, which is filled in, a member.
void LinkItem(StackMap& s, pstn_ep& ep, pstn_epoll& set, uint32_t idx);
// The item of (set, endpoint, fd), under item_lock; `prev` its predecessor in the endpoint's list.
uint32_t FindItem(StackMap& s, const pstn_ep& ep, uint32_t set_idx, int fd, uint32_t* prev);
// Takes an item out of both lists, under both locks, and frees it.
void RemoveItem(StackMap& s, pstn_ep& ep, pstn_epoll& set, uint32_t idx, uint32_t prev);
// The same for one that its endpoint's list does not have: its process died between the two.
void RemoveOrphan(StackMap& s, pstn_epoll& set, uint32_t idx);

// Under set.lock: whether a registration stays with us when its endpoint becomes the kernel's. One
// that has fired its one shot does, until it is armed again: the kernel's epoll_ctl can't add one
// that is silent, it would tell of a hang-up.
inline bool StaysHere(const pstn_item& item) {
  return (item.flags & (PSTN_IT_DISABLED | PSTN_IT_KERNEL)) == PSTN_IT_DISABLED;
}

// Bits that peers have set for this set's waiter: their items become ready. Takes the locks itself.
void TakePosts(const StackView& v, pstn_epoll& set, uint32_t set_idx);

}  // namespace postern
