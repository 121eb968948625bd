// SPDX-License-Identifier: Apache-2.0
// limits.h - how many of everything: what is chosen when a stack is made, and what is the same for
// all.
//
// The sizes of a stack's tables are options of its maker (stack.* in options.def); its
// header holds them (pstn_stack_counts), and they never change. What two stacks share, a link
// group, is laid out by the constants of abi/postern_abi.h (PSTN_CONNS, PSTN_WAITERS, the rings):
// docs/adr/0018-the-sizes-of-a-stack-are-options.md says why.
#pragma once
#include "abi/postern_abi.h"

namespace postern {

struct SizeRange {
  uint32_t least, most, usual;
  [[nodiscard]] constexpr bool Has(uint32_t n) const { return n >= least && n <= most; }
};
// Of options.def; a unit test compares the two.
inline constexpr SizeRange kProcesses = {8, 510, 256};              // stack.processes
inline constexpr SizeRange kSockets = {16, 1048576, 131072};        // stack.sockets
inline constexpr SizeRange kGroups = {4, 1024, 256};                // stack.groups
inline constexpr SizeRange kSets = {8, 2048, 2048};                 // stack.sets
inline constexpr SizeRange kRegistrations = {16, 4194304, 131072};  // stack.registrations
static_assert(kProcesses.most < PSTN_LOCK_REAPER, "a lock's word has room for each slot + 1");
static_assert(kSets.most <= PSTN_WAITERS, "each set may need a waiter");
static_assert(kSockets.most <= PSTN_FD_IDX, "a descriptor's entry has room for each endpoint");

struct StackSizes {
  uint32_t processes = kProcesses.usual;
  uint32_t sockets = kSockets.usual;
  uint32_t groups = kGroups.usual;
  uint32_t sets = kSets.usual;
  uint32_t registrations = kRegistrations.usual;
  friend constexpr bool operator==(const StackSizes&, const StackSizes&) = default;
};

// What programs leave of each table to the stack's two keepers: one that carries the connections
// that have left the family, each with a registration in its set, and one that follows it.
inline constexpr uint32_t kKeeperSlots = 2, kKeeperSets = 2, kKeeperWaiters = 2;
constexpr uint32_t KeeperItems(uint32_t eps) { return eps; }
constexpr uint32_t KeeperChunks(uint32_t eps) {
  return 2 * ((eps + PSTN_FDCHUNK_FDS - 1) / PSTN_FDCHUNK_FDS);
}

// Entries of each table. Descriptors: for each process 16 parts of 1024, and at least enough for
// all sockets in several processes at once.
constexpr pstn_stack_counts CountsOf(const StackSizes& sizes) {
  pstn_stack_counts c{};
  c.slots = sizes.processes;
  c.eps = sizes.sockets;
  c.lgrs = sizes.groups;
  c.epolls = sizes.sets;
  c.items = sizes.registrations + KeeperItems(sizes.sockets);
  c.waiters = PSTN_WAITERS;
  const uint32_t by_process = 16 * sizes.processes, by_socket = 8 * KeeperChunks(sizes.sockets);
  c.fdchunks = by_process > by_socket ? by_process : by_socket;
  return c;
}
// Whether a stack can have been made with these: then, with which sizes.
constexpr bool SizesOf(const pstn_stack_counts& c, StackSizes& sizes) {
  if (!kProcesses.Has(c.slots) || !kSockets.Has(c.eps) || !kGroups.Has(c.lgrs) ||
      !kSets.Has(c.epolls) || c.items < KeeperItems(c.eps) ||
      !kRegistrations.Has(c.items - KeeperItems(c.eps)))
    return false;
  sizes = {c.slots, c.eps, c.lgrs, c.epolls, c.items - KeeperItems(c.eps)};
  const pstn_stack_counts fit = CountsOf(sizes);
  return c.waiters == fit.waiters && c.fdchunks == fit.fdchunks && c.zero == 0;
}

// Of a process, whatever its stack's sizes.
inline constexpr uint32_t kBeds = 256;         // doorbells that are kept for the next sleep
inline constexpr uint32_t kNestedMax = 64;     // sets that are members of another set
inline constexpr uint32_t kParkedMax = 32768;  // references that calls have taken over
inline constexpr uint32_t kAllLooks = 1024;    // looks at bits of new connections, to see them all

}  // namespace postern
