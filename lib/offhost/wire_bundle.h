// SPDX-License-Identifier: Apache-2.0
// wire_bundle.h - the descriptors that a stack's wire is made of, and how they wait for an image.
//
// All of them are in one message in a Unix socket, the *bundle*: the area, the wire segment, the
// line of each VI, and the lines that a later posternd has given for them, which only have to be
// kept. A process that has the socket looks at the message (MSG_PEEK) and gets copies.
#pragma once
#include "ctl/vi_grant.h"
#include "family/family.h"
#include "stack/wire_state.h"

namespace postern {

inline constexpr uint32_t kBundleFdsMax = 2 + 2 * kAreaVis;

// The wire segment, empty: fd or -errno.
int NewWireState(Family& fam);
// Null: it is none of this version.
stack::WireState* MapWireState(int fd);

int SendBundle(int to, const int* fds, uint32_t vis, uint32_t count);  // 0 or -errno
// How many descriptors there are; 0: it is no bundle.
uint32_t PeekBundle(int from, int (&fds)[kBundleFdsMax], uint32_t& vis);

// The grant and its sockets, out of the VI's line, where they stay for the next. 0 or -errno.
int PeekGrant(int line, ctl::ViGrant& grant, int (&fds)[ctl::kGrantFdsMax], uint32_t& count);

}  // namespace postern
