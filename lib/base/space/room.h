// SPDX-License-Identifier: Apache-2.0
// room.h - what this process's limits leave it.
#pragma once
#include <cstdint>

namespace postern {

inline constexpr uint64_t kUnbounded = ~uint64_t{0};

// What a process that may have `limit` bytes of address space (RLIMIT_AS) keeps for the program:
// three eighths of it, up to 256 MiB. The library takes no more link groups when no more than this
// is left. A program that uses 60 to 100 MiB of 256 has 96 more then.
constexpr uint64_t RoomKept(uint64_t limit) {
  constexpr uint64_t kMost = uint64_t{256} << 20;
  const uint64_t kept = limit / 8 * 3;
  return kept < kMost ? kept : kMost;
}
// What it must have left for a stack: besides, what that is at first (3 MiB), what is set aside
// (spare.h), and two link groups with streams that write much.
constexpr uint64_t AddressesNeeded(uint64_t limit) {
  return RoomKept(limit) + (uint64_t{48} << 20);
}

// Bytes of address space that it may map yet, and the limit.
struct Addresses {
  uint64_t room, limit;
  [[nodiscard]] constexpr bool HoldAStack() const { return room >= AddressesNeeded(limit); }
  [[nodiscard]] constexpr bool HoldALink() const { return room >= RoomKept(limit); }
};
Addresses AddressesIn(uint64_t limit);  // if it were `limit`
Addresses AddressesLeft();              // as it is
uint64_t AddressRoom();                 // kUnbounded: there is no limit
// Bytes that a file of its making may have (RLIMIT_FSIZE); kUnbounded: any number. A longer one is
// a signal (SIGXFSZ).
uint64_t FileRoom();

}  // namespace postern
