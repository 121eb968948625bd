// SPDX-License-Identifier: Apache-2.0
// room.h - what this process's limits leave it.
#pragma once
#include <cstdint>

namespace postern {

inline constexpr uint64_t kUnbounded = ~uint64_t{0};

// A program that has this much address space left does not come to its limit for the sake of a
// stack and some ten link groups.
inline constexpr uint64_t kAddressesNeeded = uint64_t{512} << 20;
// Of that, the library takes no more link groups when no more than this is left.
inline constexpr uint64_t kRoomKept = uint64_t{256} << 20;

// Bytes of address space that it may map yet, if RLIMIT_AS were `limit`.
uint64_t AddressRoomIn(uint64_t limit);
uint64_t AddressRoom();  // as the limit is; kUnbounded: there is none
// Bytes that a file of its making may have (RLIMIT_FSIZE); kUnbounded: any number. A longer one is
// a signal (SIGXFSZ).
uint64_t FileRoom();

}  // namespace postern
