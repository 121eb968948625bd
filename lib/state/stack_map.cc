// SPDX-License-Identifier: Apache-2.0
// stack_map.cc - see stack_map.h.
#include "state/stack_map.h"

#include <sys/mman.h>

#include "base/sanitized.h"
#include "base/space/spare.h"
#include "base/sys.h"
#include "state/area.h"

namespace postern {
namespace {

constexpr uint64_t kPage = 4096;

// Of a table, so much is mapped at first; more is mapped in such steps, up to its end.
constexpr uint64_t kStep = 256u << 10;
static_assert(sizeof(pstn_lgr_ref) <= kStep);
// A table that grows gets at least as much as it has, but no more than this at a time.
constexpr uint64_t kStepMost = 4u << 20;
// A smaller stack is mapped whole.
constexpr uint64_t kWhole = 4u << 20;

// Where stacks lie: between 2^45 and 2^45 + 10 TiB, where neither the kernel nor the allocators
// that choose addresses by themselves (mimalloc, Go, V8's and Java's heaps) come to.
constexpr uint64_t kSitesFirst = uint64_t{1} << 45, kSiteBytes = 2u << 20;
constexpr uint64_t kSitesEnd = kSitesFirst + (uint64_t{10} << 40);
constexpr int kSiteTries = 4;
// posternd looks at many stacks: each has a site of its own, so that it can grow to its end.
constexpr uint64_t kLookSiteBytes = uint64_t{1} << 32;
constexpr int kLookSiteTries = 16;

// Where the next table begins; `at` becomes its end.
template <typename T>
constexpr uint64_t Place(uint64_t& at, uint32_t count) {
  static_assert(kPage % alignof(T) == 0 && sizeof(T) % alignof(T) == 0);
  const uint64_t begin = PSTN_ALIGN_UP(at, kPage);
  at = begin + sizeof(T) * uint64_t{count};
  return begin;
}

constexpr StackLayout Places(const pstn_stack_counts& c) {
  StackLayout l{};
  uint64_t at = sizeof(pstn_stack_hdr);
  l.waiters = Place<pstn_waiter>(at, c.waiters);
  l.epolls = Place<pstn_epoll>(at, c.epolls);
  l.slots = Place<pstn_slot>(at, c.slots);
  l.lgrs = Place<pstn_lgr_ref>(at, c.lgrs);
  l.eps = Place<pstn_ep>(at, c.eps);
  l.items = Place<pstn_item>(at, c.items);
  l.fdchunks = Place<pstn_fdchunk>(at, c.fdchunks);
  l.bytes = PSTN_ALIGN_UP(at, kPage);
  return l;
}
// Within the ranges nothing overflows: the largest stack there can be is no larger than this.
static_assert(Places(CountsOf({kProcesses.most, kSockets.most, kGroups.most, kSets.most,
                               kRegistrations.most}))
                  .bytes < uint64_t{1} << 32);

uint64_t BytesOf(const TableSpan& table) {
  return PSTN_ALIGN_UP(uint64_t{table.entry_bytes} * table.count, kPage);
}
// The bytes that have to be mapped for the first `entries`.
uint64_t BytesFor(const TableSpan& table, uint32_t entries) {
  const uint64_t bytes = PSTN_ALIGN_UP(uint64_t{table.entry_bytes} * entries, kStep);
  const uint64_t all = BytesOf(table);
  return entries == table.count || bytes > all ? all : bytes;
}
// The entries that lie in the first `bytes`.
uint32_t EntriesIn(const TableSpan& table, uint64_t bytes) {
  const uint64_t entries = bytes / table.entry_bytes;
  return entries < table.count ? static_cast<uint32_t>(entries) : table.count;
}

bool Grow(uint8_t* base, uint64_t from_bytes, uint64_t to_bytes) {
  const long r = sys::Call(SYS_mremap, base, from_bytes, to_bytes, 0L);
  return r > 0 || r <= -4096;
}

// Whether the mapping that begins at `base`, or goes on there, has `bytes` and more. The kernel
// says EFAULT of one that is shorter before it looks whether there is room for the new length, and
// there never is: behind these places, no process has so many addresses.
bool Covers(uint8_t* base, uint64_t bytes) {
  constexpr uint64_t kTooMuch = uint64_t{0x70} << 40;
  const long r = sys::Call(SYS_mremap, base, bytes, kTooMuch, 0L);
  return r == -12 || r == -11;  // ENOMEM; EAGAIN where memory is locked
}

void Raise(uint32_t& mapped, uint32_t entries) {
  uint32_t was = LoadRelaxed(mapped);
  while (was < entries && !CompareExchange(mapped, was, entries)) {  // [V5]
  }
}

// What has been mapped without its being said yet: by a thread that is about to, or that was when
// this process was forked.
uint64_t Unsaid(const TableSpan& table, uint64_t have) {
  const uint64_t all = BytesOf(table);
  while (have < all) {
    const uint64_t next = all - have > kStep ? have + kStep : all;
    if (!Covers(table.base, next)) break;
    have = next;
  }
  return have;
}

// The tables that grow, in their order; of their places nothing.
void Growing(const pstn_stack_counts& c, TableSpan (&tables)[kStackParts - 1]) {
  tables[0] = {nullptr, sizeof(pstn_lgr_ref), c.lgrs};
  tables[1] = {nullptr, sizeof(pstn_ep), c.eps};
  tables[2] = {nullptr, sizeof(pstn_item), c.items};
  tables[3] = {nullptr, sizeof(pstn_fdchunk), c.fdchunks};
}

StackReach FirstReach(const pstn_stack_counts& c) {
  TableSpan tables[kStackParts - 1];
  Growing(c, tables);
  const auto first = [&tables](uint32_t i) {
    const uint64_t all = BytesOf(tables[i]);
    return EntriesIn(tables[i], all < kStep ? all : kStep);
  };
  return {c.waiters, c.epolls, c.slots, first(0), first(1), first(2), first(3)};
}

// All parts, at `base` and behind it; false: something is there, or there is no memory.
bool MapPartsAt(int fd, long prot, uint8_t* base, const pstn_stack_counts& c, const StackLayout& l,
                const StackReach& reach) {
  constexpr long kWhere = MAP_SHARED | MAP_FIXED_NOREPLACE;
  for (uint32_t i = 0; i < kStackParts; i++) {
    const StackPart part = PartOfStack(c, l, reach, i);
    uint8_t* const at = base + part.off;
    const long r = sys::Call(SYS_mmap, at, part.bytes, prot, kWhere, fd, part.off);
    if (r == sys::Word(at)) continue;
    // An old kernel takes the place for a wish.
    if (r > 0 || r <= -4096) sys::Unmap(reinterpret_cast<void*>(r), part.bytes);
    while (i-- > 0) {
      const StackPart mapped = PartOfStack(c, l, reach, i);
      sys::Unmap(base + mapped.off, mapped.bytes);
    }
    return false;
  }
  return true;
}

}  // namespace

StackPart PartOfStack(const pstn_stack_counts& c, const StackLayout& l, const StackReach& reach,
                      uint32_t part) {
  if (part == 0) return {0, l.lgrs};
  TableSpan tables[kStackParts - 1];
  Growing(c, tables);
  const uint64_t offs[] = {l.lgrs, l.eps, l.items, l.fdchunks};
  const uint32_t* const mapped[] = {&reach.lgrs, &reach.eps, &reach.items, &reach.fdchunks};
  const uint32_t entries = LoadAcquire(*mapped[part - 1]);  // [V5]
  return {offs[part - 1], BytesFor(tables[part - 1], entries)};
}

uint8_t* MapStackTables(int fd, int prot, const pstn_stack_counts& counts,
                        const StackLayout& layout, StackReach& reach) {
  const bool looks = (prot & PROT_WRITE) == 0;
  const uint64_t apart = looks ? kLookSiteBytes : kSiteBytes;
  if (!kSanitized && layout.bytes > kWhole) {
    reach = FirstReach(counts);
    for (int i = 0; i < (looks ? kLookSiteTries : kSiteTries); i++) {
      const uint64_t site =
          kSitesFirst + NewUuid().lo % ((kSitesEnd - kSitesFirst) / apart) * apart;
      auto* const base = reinterpret_cast<uint8_t*>(site);
      if (MapPartsAt(fd, prot, base, counts, layout, reach)) return base;
    }
  }
  reach = {counts.waiters, counts.epolls, counts.slots,   counts.lgrs,
           counts.eps,     counts.items,  counts.fdchunks};
  return static_cast<uint8_t*>(sys::MapShared(fd, layout.bytes, prot));
}

bool MapEntry(const TableSpan& table, uint32_t& mapped, uint32_t i) {
  const uint64_t all = BytesOf(table), need = BytesFor(table, i + 1);
  for (;;) {
    const uint32_t entries = LoadAcquire(mapped);  // [V5]
    if (i < entries) return true;
    const uint64_t have = BytesFor(table, entries);
    const uint64_t twice = have + (have < kStepMost ? have : kStepMost);
    uint64_t to = twice > need ? twice : need;
    if (to > all) to = all;
    bool grown = Grow(table.base, have, to);
    if (!grown) {
      to = Unsaid(table, have);
      grown = to > have;
    }
    if (!grown) {
      to = need;
      do {
        grown = Grow(table.base, have, to);
      } while (!grown && GiveUpSpare(to - have));
    }
    if (!grown) return i < LoadAcquire(mapped);  // [V5]
    Raise(mapped, EntriesIn(table, to));
  }
}

bool LayOut(const pstn_stack_counts& counts, StackLayout& layout) {
  StackSizes sizes;
  if (!SizesOf(counts, sizes)) return false;
  layout = Places(counts);
  // A link group's memory is posternd's, which those at both its ends can write: by its size it is
  // no stack of posternd's user.
  return layout.bytes != PSTN_LGR_BYTES;
}

}  // namespace postern
