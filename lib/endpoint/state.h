// SPDX-License-Identifier: Apache-2.0
// state.h - the states of an endpoint (PSTN_EP_*), and which of them may follow which.
#pragma once
#include "abi/postern_abi.h"
#include "base/atomic.h"
#include "base/check.h"
#include "family/family.h"

namespace postern {

constexpr uint32_t EpBit(uint32_t state) { return 1u << state; }

// By state: those that may come next. FREE may from any; what a reaper finds is anybody's.
inline constexpr uint32_t kEpEdges[] = {
    /* FREE */ EpBit(PSTN_EP_NEW),
    /* NEW */ EpBit(PSTN_EP_LISTEN) | EpBit(PSTN_EP_EMBRYO) | EpBit(PSTN_EP_ESTABLISHED) |
        EpBit(PSTN_EP_KERNEL) | EpBit(PSTN_EP_CONNECTING),
    /* LISTEN: again with another backlog; NEW after shutdown() */ EpBit(PSTN_EP_LISTEN) |
        EpBit(PSTN_EP_NEW) | EpBit(PSTN_EP_KERNEL) | EpBit(PSTN_EP_CLOSED),
    /* EMBRYO */ EpBit(PSTN_EP_ESTABLISHED) | EpBit(PSTN_EP_CLOSED),
    /* ESTABLISHED: NEW after connect() to AF_UNSPEC */ EpBit(PSTN_EP_NEW) | EpBit(PSTN_EP_KERNEL) |
        EpBit(PSTN_EP_CLOSED),
    /* KERNEL: for good */ EpBit(PSTN_EP_KERNEL),
    /* CLOSED */ 0,
    /* CONNECTING */ EpBit(PSTN_EP_NEW) | EpBit(PSTN_EP_ESTABLISHED) | EpBit(PSTN_EP_CLOSED),
};
constexpr bool MayFollow(uint32_t from, uint32_t to) {
  return to == PSTN_EP_FREE ||
         (from < sizeof kEpEdges / sizeof kEpEdges[0] && (kEpEdges[from] & EpBit(to)) != 0);
}

// [E1] store-release: a thread that sees the state sees what was written to the endpoint before it.
// An edge that is not there is an error of ours, of the place that takes it (base/check.h).
inline void SetState(pstn_ep& ep, uint32_t to, const char* file = __builtin_FILE(),
                     uint32_t line = __builtin_LINE()) {
  if (!MayFollow(LoadRelaxed(ep.state), to)) [[unlikely]]
    (void)CheckFailed(file, line, "an endpoint's state that may not follow the last one");
  StoreRelease(ep.state, to);  // [E1]
}

}  // namespace postern
