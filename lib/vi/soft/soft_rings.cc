// SPDX-License-Identifier: Apache-2.0
// soft_rings.cc - see soft_rings.h.
#include "vi/soft/soft_rings.h"

#include <cstring>

#include "base/sys.h"
#include "state/area.h"

namespace postern {
namespace {

constexpr long kRingSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

template <typename Slot>
Ring<Slot> View(SoftRing& ring, Slot* slots) {
  return {&ring.producer, &ring.consumer, &ring.flags, slots, kSoftSlots - 1};
}

}  // namespace

void FormatSoftRings(SoftRings& rings) {
  memset(static_cast<void*>(&rings), 0, sizeof rings);
  rings.version = kSoftVersion;
  rings.state = kViUp;
  StoreRelease(rings.magic, kSoftMagic);  // [I6]
}

QueueRings ViewSoftRings(SoftRings& rings) {
  QueueRings q;
  q.fill = View(rings.fill, rings.fill_slots);
  q.completion = View(rings.completion, rings.completion_slots);
  q.rx = View(rings.rx, rings.rx_slots);
  q.tx = View(rings.tx, rings.tx_slots);
  return q;
}

int CreateSoftRings() {
  const long made =
      sys::Call(SYS_memfd_create, "postern-vi", static_cast<long>(MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (made < 0) return static_cast<int>(made);
  const int fd = static_cast<int>(made);
  long r = sys::Call(SYS_ftruncate, fd, static_cast<long>(sizeof(SoftRings)));
  if (r == 0) r = sys::Fcntl(fd, F_ADD_SEALS, kRingSeals);
  if (r == 0) {
    auto* const rings =
        static_cast<SoftRings*>(sys::MapShared(fd, sizeof(SoftRings), PROT_READ | PROT_WRITE));
    if (rings != nullptr) {
      FormatSoftRings(*rings);
      UnmapSoftRings(rings);
      return fd;
    }
    r = -12;  // ENOMEM
  }
  sys::Close(fd);
  return static_cast<int>(r);
}

SoftRings* MapSoftRings(int fd) {
  if (SegmentBytes(fd) != sizeof(SoftRings)) return nullptr;
  auto* const rings =
      static_cast<SoftRings*>(sys::MapShared(fd, sizeof(SoftRings), PROT_READ | PROT_WRITE));
  if (rings == nullptr) return nullptr;
  // [I6]
  if (LoadAcquire(rings->magic) == kSoftMagic && rings->version == kSoftVersion) return rings;
  UnmapSoftRings(rings);
  return nullptr;
}

void UnmapSoftRings(SoftRings* rings) {
  if (rings != nullptr) sys::Unmap(rings, sizeof *rings);
}

}  // namespace postern
