// SPDX-License-Identifier: Apache-2.0
// acceptor.cc - see acceptor.h.
#include "control/acceptor.h"

#include <cerrno>

#include "control/posternd.h"
#include "endpoint/endpoint.h"
#include "endpoint/posts.h"

namespace postern {

void BecomeAcceptor(Family& fam, int fd, pstn_ep& ep) {
  uint32_t nobody = 0;
  if (!fam.attached || !CompareExchange(ep.acceptor, nobody, fam.slot + 1)) return;
  FullFence();  // [F1] against posternd, which stores `unlisted` before it looks at `acceptor`
  const uint32_t flags = LoadRelaxed(ep.flags);
  const bool is_listed = (flags & PSTN_EPF_PUBLISHED) != 0 && LoadRelaxed(ep.unlisted) == 0;
  const bool may = (flags & (PSTN_EPF_PUBLISHED | PSTN_EPF_BROUGHT)) != 0;
  if (is_listed || !may || LoadAcquire(ep.state) != PSTN_EP_LISTEN) return;  // [E1]
  const int r = CtlListen(fam, ep, fd);
  if (r == 0) FetchOr(ep.flags, PSTN_EPF_PUBLISHED);
  if (r == -ENOTCONN) StoreRelaxed(ep.acceptor, 0u);  // the next wait asks again
}

void LeaveAcceptor(Family& fam, uint32_t slot, pstn_ep& ep) {
  uint32_t own = slot + 1;
  if (LoadAcquire(ep.state) != PSTN_EP_LISTEN || !CompareExchange(ep.acceptor, own, 0u))  // [E1]
    return;
  StackMap& s = Stack(fam);
  for (pstn_epoll& set : s.epolls.Before(LoadRelaxed(s.hdr.epolls.hw)))
    StoreRelaxed(set.unclaimed, 1u);
  PostEp(fam, ep);
}

void LeaveAcceptors(Family& fam, uint32_t slot) {
  StackMap& s = Stack(fam);
  for (pstn_ep& ep : s.eps.Before(LoadRelaxed(s.hdr.eps.hw))) {
    if (LoadRelaxed(ep.state) == PSTN_EP_LISTEN && LoadRelaxed(ep.acceptor) == slot + 1)
      LeaveAcceptor(fam, slot, ep);
  }
}

}  // namespace postern
