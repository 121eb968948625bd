// SPDX-License-Identifier: Apache-2.0
// area.h - creates and maps the shared segments: sealed memfds of a fixed size.
//
// A segment is mapped only when its seals forbid shrinking: a peer that truncates memory which we
// have mapped would otherwise kill us with SIGBUS.
#pragma once
#include <cstddef>
#include <cstdint>

#include "abi/postern_abi.h"
#include "abi/routes_abi.h"
#include "state/chunks.h"
#include "state/stack_map.h"

namespace postern {

// The size of a descriptor's memory, if that can be mapped without fear: ordinary pages, sealed.
// Anything else, of whatever kind, is 0.
size_t SegmentBytes(int fd);

pstn_uuid NewUuid();
inline bool SameUuid(const pstn_uuid& a, const pstn_uuid& b) {
  return a.hi == b.hi && a.lo == b.lo;
}

// A new memfd (close-on-exec) or -errno. The stack's tables are initialised; no slot is taken.
int CreateStack(const pstn_uuid& id, const StackSizes& sizes = {});
int CreateLgr(const pstn_uuid& id, const pstn_uuid& client, const pstn_uuid& server);
int CreateQueues();

// Null if the fd is not such a segment, of this version, with its seals. `expected_id` may be null.
StackMap* MapStack(int fd);
const StackLook* LookAtStack(int fd);  // the same, to be read only

// The tables of a link group; chunks.h maps its rings, and unmaps all of it.
uint8_t* MapLgr(int fd, const pstn_uuid* expected_id);
// Whatever its header says by now: posternd has said that it is one (controlplane/reaper).
uint8_t* MapKnownLgr(int fd);
// The stacks of a link group, which is not mapped for that. False: it is no such segment, or not
// every process that gets this descriptor can map it to write, now and later.
bool OwnersOfLgr(int fd, const pstn_uuid& id, pstn_uuid (&owner)[2]);
uint32_t ConnsOfLgr(int fd);  // hdr.conns_hw
const pstn_dir* MapDir(int fd);
pstn_queues* MapQueues(int fd);
const pstn_routes* MapRoutes(int fd);

void UnmapStack(const StackMap* stack);
void UnmapStack(const StackLook* stack);
void UnmapDir(const pstn_dir* dir);
void UnmapQueues(pstn_queues* queues);
void UnmapRoutes(const pstn_routes* routes);

}  // namespace postern
