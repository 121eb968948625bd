// tap_open.h - makes the TAP of a VI, beside its interface.
// SPDX-License-Identifier: Apache-2.0
//
// It has no address and takes part in nothing of the kernel's: it is where packets change hands
// between the kernel and one stack. In the interface's network namespace, with CAP_NET_ADMIN there.
#pragma once
#include <cstdint>

#include "../kit/fd.h"
#include "ctl/vi_grant.h"
#include "xsk_open.h"

namespace postern::daemon {

// A new one, which is down, and goes with the last copy of its descriptor. `ifindex`: its own. 0 or
// -errno, after Warn().
int OpenTap(const NetInterface& interface, UniqueFd& tap, uint32_t& ifindex);
// As large packets as its interface takes, and none of the kernel's own. 0 or -errno.
int RaiseTap(uint32_t ifindex, uint32_t mtu);
// If it is there yet.
void RemoveTap(uint32_t ifindex);
// Fills the grant but for its id.
void DescribeTap(const NetInterface& interface, ctl::ViGrant& grant);

}  // namespace postern::daemon
