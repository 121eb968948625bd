// SPDX-License-Identifier: Apache-2.0
// poll_set.cc - see poll_set.h.
#include "event/poll_set.h"

#include "family/verbs.h"

namespace postern {

bool KernelSet::Fill(pollfd* all, size_t n) {
  bool listeners = false;
  count = 0;
  for (size_t i = 0; i < n; i++) {
    pstn_ep* const left = Left(i, all[i].fd);
    const int fd = left != nullptr ? calls.parked(i) : held != nullptr ? held->fd() : all[i].fd;
    const Call call(fam, fd);
    pstn_ep* ep = OursForPoll(*this, call, left);
    bool listens = ep != nullptr && LoadRelaxed(ep->state) == PSTN_EP_LISTEN;
    listeners = listeners || listens;
    if (listens && held == nullptr && (LoadRelaxed(ep->flags) & PSTN_EPF_POLLED) == 0)
      FetchOr(ep->flags, PSTN_EPF_POLLED);
    const bool datagrams = ep != nullptr && LoadRelaxed(ep->state) == PSTN_EP_KERNEL;
    if (datagrams) kVerbs.datagram_touch(fam, *ep);
    const bool hidden = left == nullptr && IsHidden(call);
    if (fd < 0 || (ep != nullptr && !listens && !datagrams) || hidden) continue;
    sets = sets || IsSetFd(fam, fd);
    fds[count] = {fd, all[i].events, 0};
    at[count++] = static_cast<uint32_t>(i);
  }
  return listeners;
}

}  // namespace postern
