// SPDX-License-Identifier: Apache-2.0
// packet_area.cc - see packet_area.h.
#include "vi/packet_area.h"

#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "state/area.h"

namespace postern {
namespace {

constexpr unsigned kAreaSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr uint64_t kPage = 4096;

constexpr uint64_t Align(uint64_t v, uint64_t to) { return (v + to - 1) & ~(to - 1); }

AreaShape ShapeFor(uint32_t frame_count) {
  AreaShape s{};
  s.frame_count = frame_count;
  s.owner_off = sizeof(pstn_area);
  s.free_off = static_cast<uint32_t>(Align(uint64_t{s.owner_off} + frame_count, 64));
  s.frames_off = static_cast<uint32_t>(Align(s.free_off + 4ull * frame_count, kPage));
  s.size_bytes = s.frames_off + (uint64_t{frame_count} << kFrameShift);
  return s;
}

bool IsFrameCount(uint32_t n) { return n != 0 && n % 2 == 0 && n <= kFramesMax; }

void Initialise(pstn_area& h, const AreaShape& s, uint32_t* free) {
  h.version = kAreaVersion;
  h.size_bytes = s.size_bytes;
  h.frame_count = s.frame_count;
  h.owner_off = s.owner_off;
  h.free_off = s.free_off;
  h.frames_off = s.frames_off;
  // The lowest number on top.
  for (uint32_t i = 0; i < s.frame_count; i++) free[i] = s.frame_count - 1 - i;
  h.free_count = s.frame_count;
  StoreRelease(h.magic, kAreaMagic);  // [I4]
}

}  // namespace

int CreateArea(const pstn_uuid& stack, uint32_t frame_count) {
  if (!IsFrameCount(frame_count)) return -EINVAL;
  const long made = sys::Call(SYS_memfd_create, "postern-area",
                              static_cast<long>(MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (made < 0) return static_cast<int>(made);
  const int fd = static_cast<int>(made);
  const AreaShape s = ShapeFor(frame_count);
  long r = sys::Call(SYS_ftruncate, fd, s.size_bytes);
  if (r == 0) r = sys::Fcntl(fd, F_ADD_SEALS, kAreaSeals);
  if (r == 0) {
    auto* base = static_cast<uint8_t*>(sys::MapShared(fd, s.frames_off, PROT_READ | PROT_WRITE));
    if (base != nullptr) {
      auto& h = *reinterpret_cast<pstn_area*>(base);
      h.stack = stack;
      Initialise(h, s, reinterpret_cast<uint32_t*>(base + s.free_off));
      sys::Unmap(base, s.frames_off);
      return fd;
    }
    r = -ENOMEM;
  }
  sys::Close(fd);
  return static_cast<int>(r);
}

int ReadAreaShape(int fd, AreaShape& shape) {
  const size_t size = SegmentBytes(fd);
  if (size == 0) return -EBADF;
  // As pstn_area begins; the whole of it is too much for a small stack.
  struct {
    uint32_t magic, version;
    uint64_t size_bytes;
    pstn_uuid stack;
    uint32_t frame_count;
  } h;
  static_assert(offsetof(decltype(h), frame_count) == offsetof(pstn_area, frame_count));
  const long got = sys::Call(SYS_pread64, fd, &h, sizeof h, 0L);
  if (got != static_cast<long>(sizeof h) || h.magic != kAreaMagic) return -EINVAL;
  if (h.version != kAreaVersion) return -EPROTO;
  if (!IsFrameCount(h.frame_count)) return -EINVAL;
  // There is one layout for each number of frames, so nothing else needs to be believed.
  shape = ShapeFor(h.frame_count);
  return size == shape.size_bytes ? 0 : -EINVAL;
}

int Area::Map(int fd) {
  AreaShape s;
  if (const int error = ReadAreaShape(fd, s); error != 0) return error;
  auto* base = static_cast<uint8_t*>(sys::MapShared(fd, s.size_bytes, PROT_READ | PROT_WRITE));
  if (base == nullptr) return -ENOMEM;
  header_ = reinterpret_cast<pstn_area*>(base);
  owner_ = base + s.owner_off;
  free_ = reinterpret_cast<uint32_t*>(base + s.free_off);
  frames_ = base + s.frames_off;
  frame_count_ = s.frame_count;
  size_bytes_ = s.size_bytes;
  return 0;
}

void Area::Unmap() {
  if (header_ != nullptr && size_bytes_ != 0) sys::Unmap(header_, size_bytes_);
  *this = Area();
}

size_t Area::BytesFor(uint32_t frame_count) { return ShapeFor(frame_count).size_bytes; }

void Area::Format(void* memory, uint32_t frame_count) {
  const AreaShape s = ShapeFor(frame_count);
  auto* base = static_cast<uint8_t*>(memory);
  memset(base, 0, s.free_off);
  Initialise(*reinterpret_cast<pstn_area*>(base), s,
             reinterpret_cast<uint32_t*>(base + s.free_off));
  View(memory, frame_count);
}

void Area::View(void* memory, uint32_t frame_count) {
  const AreaShape s = ShapeFor(frame_count);
  auto* base = static_cast<uint8_t*>(memory);
  header_ = reinterpret_cast<pstn_area*>(base);
  owner_ = base + s.owner_off;
  free_ = reinterpret_cast<uint32_t*>(base + s.free_off);
  frames_ = base + s.frames_off;
  frame_count_ = frame_count;
  size_bytes_ = 0;
}

uint32_t Area::FreeCount() const {
  const uint32_t n = LoadRelaxed(header_->free_count);
  return n <= frame_count_ ? n : frame_count_;
}

uint32_t Area::Take(uint32_t* frames, uint32_t count) {
  uint32_t left = FreeCount(), taken = 0;
  while (taken < count && left != 0) {
    const uint32_t frame = free_[--left];
    if (OwnerOf(frame) != kFrameFree) continue;  // not ours to give: dropped from the list
    SetOwner(frame, kFrameTx, 0);
    frames[taken++] = frame;
  }
  // A death before this leaves frames in the list that owner[] gives to none: Rebuild() sees it.
  StoreRelease(header_->free_count, left);  // [I3]
  return taken;
}

void Area::Give(const uint32_t* frames, uint32_t count) {
  uint32_t n = FreeCount();
  for (uint32_t i = 0; i < count && n < frame_count_; i++) {
    const uint8_t owner = OwnerOf(frames[i]);
    if (owner != kFrameRx && owner != kFrameKept && owner != kFrameTx) continue;
    free_[n++] = frames[i];
    SetOwner(frames[i], kFrameFree, 0);
  }
  StoreRelease(header_->free_count, n);  // [I3]
}

bool Area::Keep(uint32_t frame) {
  if (OwnerOf(frame) != kFrameRx) return false;
  SetOwner(frame, kFrameKept, 0);
  return true;
}

void Area::ReclaimBegin() {
  for (uint32_t f = 0; f < frame_count_; f++) {
    if (OwnerOf(f) == kFrameKept) SetOwner(f, kFrameRx, 0);
  }
}

bool Area::Claim(uint32_t frame) { return Keep(frame); }

uint32_t Area::ReclaimEnd() {
  uint32_t lost = 0;
  for (uint32_t f = 0; f < frame_count_; f++) {
    if (const uint8_t owner = OwnerOf(f); owner == kFrameRx || owner == kFrameTx) {
      SetOwner(f, kFrameFree, 0);
      lost++;
    }
  }
  Rebuild();
  return lost;
}

uint32_t Area::Abandon(uint32_t vi) {
  uint32_t lost = 0;
  for (uint32_t f = 0; f < frame_count_; f++) {
    const uint8_t owner = OwnerOf(f);
    if ((UseOf(owner) == kFrameFill || UseOf(owner) == kFrameSending) && ViOf(owner) == vi) {
      SetOwner(f, kFrameFree, 0);
      lost++;
    }
  }
  Rebuild();
  return lost;
}

void Area::Rebuild() {
  StoreRelease(header_->free_count, 0u);  // [I3] a death in here: the next one rebuilds
  uint32_t n = 0;
  for (uint32_t f = frame_count_; f-- != 0;) {
    if (OwnerOf(f) == kFrameFree) free_[n++] = f;
  }
  StoreRelease(header_->free_count, n);  // [I3]
}

bool Area::Validate(uint8_t* seen) {
  const uint32_t n = LoadRelaxed(header_->free_count);
  if (n > frame_count_) return false;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t f = free_[i];
    if (f >= frame_count_ || OwnerOf(f) != kFrameFree || seen[f]++ != 0) return false;
  }
  for (uint32_t f = 0; f < frame_count_; f++) {
    const uint8_t owner = OwnerOf(f);
    if (UseOf(owner) > kFrameSending || (owner == kFrameFree && seen[f] != 1)) return false;
  }
  return true;
}

}  // namespace postern
