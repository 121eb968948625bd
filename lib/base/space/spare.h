// SPDX-License-Identifier: Apache-2.0
// spare.h - address space that a process whose limit is low keeps for what it must map later.
//
// Others decide when a process has to map more of a link group: a peer that connects, a relative
// whose ring it goes on to read. By then the program may have taken what its limit (RLIMIT_AS)
// left. So some of it is set aside, mapped and not accessible, and given up for such a mapping.
// Another thread may be quicker to take what is given up: then more of it is.
#pragma once
#include <cstddef>
#include <cstdint>

namespace postern {

// Two link groups with a chunk of each class, or twenty chunks.
inline constexpr size_t kSpareBytes = 24u << 20;

// Sets it aside, once in a process's life; a child of fork has its parent's.
void MakeSpare();
// So much of it may be mapped now; false: there is none, or not enough is left.
bool GiveUpSpare(size_t bytes);

}  // namespace postern
