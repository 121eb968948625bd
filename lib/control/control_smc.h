// SPDX-License-Identifier: Apache-2.0
// control_smc.h - what posternd is asked for the sake of peers in other network namespaces.
#pragma once
#include "base/cut_short.h"
#include "family/family.h"

namespace postern {

// A listener as the handshake has named it.
struct Offered {
  pstn_uuid stack = {};
  uint32_t ep_idx = 0, ep_gen = 0, backlog = 0;
};
// tcp: the connection by which the token came; posternd asks the kernel where it leads. 0 or
// -errno; -ETIMEDOUT: no answer before `limit`.
int CtlAttach(Family& fam, uint64_t token, int tcp, Offered& to, CutShort& limit);
int CtlRegister(Family& fam, uint32_t lgr_idx, uint32_t conn, uint32_t conn_gen, CutShort& limit,
                uint64_t* token);
void CtlRelease(Family& fam, uint64_t token);
int CtlNegotiate(Family& fam, const pstn_ep& listener, int fd);
int CtlTakeHeld(Family& fam, const pstn_ep& listener);  // an fd, or -errno
int CtlBell(Family& fam, const BellName& name);         // an fd, or -errno

}  // namespace postern
