// SPDX-License-Identifier: Apache-2.0
// stack_map.h - a process's private map of a stack: where each table lies, and how long it is.
//
//   segment   | header | waiters | sets | slots | link groups | endpoints | items | chunks |
//               counts     each table begins at a page of its own
//
// The header says how many entries each table has; where it lies follows from that. A process reads
// the counts once, when it maps the stack, and checks them there: each within its range
// (limits.h), and all of them together against the segment's size, which its seals keep. After
// that, no process reads counts from shared memory: a writer over them fools processes that come
// later, and those refuse the stack.
#pragma once
#include <type_traits>

#include "state/limits.h"
#include "state/table.h"

namespace postern {

// Byte offsets in the segment.
struct StackLayout {
  uint64_t waiters, epolls, slots, lgrs, eps, items, fdchunks;
  uint64_t bytes;  // of the segment
};
// False: there is no such stack.
[[nodiscard]] bool LayOut(const pstn_stack_counts& counts, StackLayout& layout);

// `kLook`: of a mapping that can't be written. Made by MapStack() and LookAtStack() (area.h).
template <bool kLook>
class StackMapOf {
  template <typename T>
  using As = std::conditional_t<kLook, const T, T>;
  using Byte = As<uint8_t>;

 public:
  // Of memory of `layout.bytes`, as LayOut() has them.
  StackMapOf(Byte* base, const pstn_stack_counts& c, const StackLayout& l)
      : hdr(*reinterpret_cast<As<pstn_stack_hdr>*>(base)),
        waiters(In<pstn_waiter>(base, l.waiters), c.waiters),
        epolls(In<pstn_epoll>(base, l.epolls), c.epolls),
        slots(In<pstn_slot>(base, l.slots), c.slots),
        lgrs(In<pstn_lgr_ref>(base, l.lgrs), c.lgrs),
        eps(In<pstn_ep>(base, l.eps), c.eps),
        items(In<pstn_item>(base, l.items), c.items),
        fdchunks(In<pstn_fdchunk>(base, l.fdchunks), c.fdchunks),
        layout(l) {}
  StackMapOf(const StackMapOf&) = delete;
  StackMapOf& operator=(const StackMapOf&) = delete;

  As<pstn_stack_hdr>& hdr;
  const Table<As<pstn_waiter>, WaiterIndex> waiters;
  const Table<As<pstn_epoll>, SetIndex> epolls;
  const Table<As<pstn_slot>, ProcIndex> slots;
  const Table<As<pstn_lgr_ref>, LgrIndex> lgrs;
  const Table<As<pstn_ep>, EpIndex> eps;
  const Table<As<pstn_item>, ItemIndex> items;
  const Table<As<pstn_fdchunk>, ChunkIndex> fdchunks;
  const StackLayout layout;

  // Where `at` lies in the segment; not below layout.bytes if it does not.
  [[nodiscard]] uint64_t OffOf(const void* at) const {
    return reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(&hdr);
  }

 private:
  template <typename T>
  static As<T>* In(Byte* base, uint64_t off) {
    return reinterpret_cast<As<T>*>(base + off);
  }
};

class StackMap : public StackMapOf<false> {
 public:
  using StackMapOf::StackMapOf;
};
class StackLook : public StackMapOf<true> {
 public:
  using StackMapOf::StackMapOf;
};

}  // namespace postern
