// SPDX-License-Identifier: Apache-2.0
// index.h - the kinds of index that shared memory holds: each a word there, and here a type.
//
// A word of shared memory says nothing of what it counts. The reader that takes it out says so:
// EpIndex(LoadRelaxed(item.ep_idx)). From there on it can be neither mixed up with another kind,
// nor used as a subscript: its table alone makes a pointer of it (table.h).
#pragma once
#include <type_traits>

#include "abi/postern_abi.h"

namespace postern {

template <typename Tag>
class Index {
 public:
  constexpr Index() = default;  // PSTN_NONE: no entry
  constexpr explicit Index(uint32_t word) : word_(word) {}
  // As shared memory holds it.
  [[nodiscard]] constexpr uint32_t word() const { return word_; }
  friend constexpr bool operator==(Index, Index) = default;

 private:
  uint32_t word_ = PSTN_NONE;
};

using EpIndex = Index<struct EpTag>;          // of an endpoint
using LgrIndex = Index<struct LgrTag>;        // of a link group, as its stack keeps it
using SetIndex = Index<struct SetTag>;        // of an event set
using ItemIndex = Index<struct ItemTag>;      // of a registration in a set
using WaiterIndex = Index<struct WaiterTag>;  // of a waiter, and of its event maps
using ProcIndex = Index<struct ProcTag>;      // of a process's slot
using ChunkIndex = Index<struct ChunkTag>;    // of a part of a process's table of descriptors

static_assert(sizeof(EpIndex) == sizeof(uint32_t) && std::is_trivially_copyable_v<EpIndex>);

}  // namespace postern
