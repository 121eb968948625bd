// SPDX-License-Identifier: Apache-2.0
// refs.cc - references to endpoints and event sets, one for each number that means them.
#include "endpoint/refs.h"
#include "endpoint/items.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/verbs.h"

namespace postern {

void DropFdRef(Family& fam, uint32_t entry) {
  const uint32_t idx = entry & PSTN_FD_IDX, kind = entry & PSTN_FD_KIND;
  uint32_t* refs = nullptr;
  pstn_ep* ep = kind == PSTN_FD_EP ? EpAt(Stack(fam), idx) : nullptr;
  if (ep != nullptr) refs = &ep->refs;
  pstn_epoll* set = kind == PSTN_FD_EPOLL ? Stack(fam).epolls.At(SetIndex(idx)) : nullptr;
  if (set != nullptr) refs = &set->refs;
  if (refs == nullptr) return;
  const uint32_t before = FetchSub(*refs, 1u);  // [E3]
  if (!PSTN_CHECK(before != 0)) {  // the object is somebody else's, or nobody's: it stays
    FetchAdd(*refs, 1u);
    return;
  }
  if (before == 1) kVerbs.last_reference(fam, entry);
}

bool RefEntry(Family& fam, uint32_t entry) {
  const uint32_t idx = entry & PSTN_FD_IDX;
  uint32_t* refs = nullptr;
  pstn_ep* ep = (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(Stack(fam), idx) : nullptr;
  if (ep != nullptr) refs = &ep->refs;
  const bool is_set = (entry & PSTN_FD_KIND) == PSTN_FD_EPOLL;
  pstn_epoll* set = is_set ? Stack(fam).epolls.At(SetIndex(idx)) : nullptr;
  if (set != nullptr) refs = &set->refs;
  if (refs == nullptr) return false;
  uint32_t seen = LoadAcquire(*refs);  // [E3]
  do {
    if (seen == 0) return false;
  } while (!CompareExchange(*refs, seen, seen + 1));
  if (ep != nullptr) FetchOr(ep->flags, PSTN_EPF_DUPPED);
  return true;
}

void SockDup(Family& fam, uint32_t entry, int to) {
  uint32_t idx = entry & PSTN_FD_IDX;
  const uint32_t kind = entry & PSTN_FD_KIND;
  pstn_ep* const ep = kind == PSTN_FD_EP ? EpAt(Stack(fam), idx) : nullptr;
  pstn_epoll* const set = kind == PSTN_FD_EPOLL ? Stack(fam).epolls.At(SetIndex(idx)) : nullptr;
  if (ep != nullptr) {
    FetchAdd(ep->refs, 1u);
    FetchOr(ep->flags, PSTN_EPF_DUPPED);
  } else if (set != nullptr) {
    FetchAdd(set->refs, 1u);
  }
  SetFd(fam, to, entry);
}

// A set's number under the set's lock: registrations may be on their way into it (HandOver).
long CloseNumberOf(Family& fam, int fd, uint32_t entry) {
  StackMap& s = Stack(fam);
  const uint32_t idx = entry & PSTN_FD_IDX;
  const bool is_set = (entry & PSTN_FD_KIND) == PSTN_FD_EPOLL;
  pstn_epoll* const set = is_set ? s.epolls.At(SetIndex(idx)) : nullptr;
  if (set == nullptr) return CloseClaimed(fam, fd);
  SetGuard h(s, *set);
  return CloseClaimed(fam, fd);
}

}  // namespace postern
