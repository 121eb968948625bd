// driver.cc - see driver.h.
// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <cap-ng.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "call_filter.h"

namespace postern::daemon {
namespace {

// DPDK: memory is locked and links are set up while it runs, XDP programs are taken out at its end.
// Verbs: each rule of the card asks for NET_RAW; packets reach the kernel by a run of a program.
constexpr unsigned kDpdk[] = {CAP_NET_ADMIN, CAP_NET_RAW, CAP_IPC_LOCK};
constexpr unsigned kVerbs[] = {CAP_NET_RAW, CAP_BPF};

template <size_t kCount>
bool KeepCapabilities(const unsigned (&capabilities)[kCount]) {
  capng_clear(CAPNG_SELECT_BOTH);
  for (const unsigned capability : capabilities) {
    constexpr auto kSets = static_cast<capng_type_t>(CAPNG_EFFECTIVE | CAPNG_PERMITTED);
    if (capng_update(CAPNG_ADD, kSets, capability) != 0) return false;
  }
  return capng_apply(CAPNG_SELECT_BOTH) == 0;
}

}  // namespace

bool ConfineDriver(Card card) {
  // Threads of a card's library keep their capabilities; the filter is for all.
  const bool dropped = card == Card::kDpdk ? KeepCapabilities(kDpdk) : KeepCapabilities(kVerbs);
  if (dropped && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      FilterCalls({false, true, false, false, false}))
    return true;
  fprintf(stderr, "%s: cannot give up rights: %s\n", program_invocation_short_name,
          strerror(errno));
  return false;
}

}  // namespace postern::daemon
