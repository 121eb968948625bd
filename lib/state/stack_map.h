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
//
// The last four tables are long and seldom used to their end. A process maps their beginnings, at
// the places that they would have if all of the segment were mapped, and more of a table when it
// meets an index that lies beyond (Table::At). That needs the addresses behind to be free, without
// their being reserved, since what is reserved counts for RLIMIT_AS:
//
//   mapped    | header | waiters | sets | slots | link g..|      | endp..|      | it..|   | ch..|
//                                                   grows ->
//
// So a stack lies far from where the kernel puts what it is asked to map, at a random place. More
// is mapped by mremap() in place, which needs no descriptor, and never takes an address that is
// not free. Where a stack can't have such a place, all of it is mapped.
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

// Entries of each table that a process has mapped. Its own, and the only part of a stack's map that
// changes.
struct StackReach {
  uint32_t waiters, epolls, slots, lgrs, eps, items, fdchunks;  // (a)
};
// What is mapped of a stack: all before the link groups, and of each table from there on the
// beginning.
inline constexpr uint32_t kStackParts = 5;
struct StackPart {
  uint64_t off;
  size_t bytes;
};
[[nodiscard]] StackPart PartOfStack(const pstn_stack_counts& counts, const StackLayout& layout,
                                    const StackReach& reach, uint32_t part);
// Maps the stack's segment `fd`, to be written or (posternd) not, and says how much of it; null: no
// memory.
uint8_t* MapStackTables(int fd, int prot, const pstn_stack_counts& counts,
                        const StackLayout& layout, StackReach& reach);

// `kLook`: of a mapping that can't be written. Made by MapStack() and LookAtStack() (area.h).
template <bool kLook>
class StackMapOf {
  template <typename T>
  using As = std::conditional_t<kLook, const T, T>;
  using Byte = As<uint8_t>;

 public:
  // Of memory as LayOut() has it, of which `r` is mapped.
  StackMapOf(Byte* base, const pstn_stack_counts& c, const StackLayout& l, StackReach& r)
      : hdr(*reinterpret_cast<As<pstn_stack_hdr>*>(base)),
        waiters(In<pstn_waiter>(base, l.waiters), c.waiters, &r.waiters),
        epolls(In<pstn_epoll>(base, l.epolls), c.epolls, &r.epolls),
        slots(In<pstn_slot>(base, l.slots), c.slots, &r.slots),
        lgrs(In<pstn_lgr_ref>(base, l.lgrs), c.lgrs, &r.lgrs),
        eps(In<pstn_ep>(base, l.eps), c.eps, &r.eps),
        items(In<pstn_item>(base, l.items), c.items, &r.items),
        fdchunks(In<pstn_fdchunk>(base, l.fdchunks), c.fdchunks, &r.fdchunks),
        layout(l),
        counts_(c),
        reach_(r) {}
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

  // Part `part` of kStackParts, as far as it is mapped by now.
  [[nodiscard]] StackPart Part(uint32_t part) const {
    return PartOfStack(counts_, layout, reach_, part);
  }
  // Where `at` lies in the segment; not below layout.bytes if it does not.
  [[nodiscard]] uint64_t OffOf(const void* at) const {
    return reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(&hdr);
  }

 private:
  template <typename T>
  static As<T>* In(Byte* base, uint64_t off) {
    return reinterpret_cast<As<T>*>(base + off);
  }

  const pstn_stack_counts counts_;
  StackReach& reach_;
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
