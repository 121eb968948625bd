// SPDX-License-Identifier: Apache-2.0
// soft.cc - see soft.h.
#include "vi/soft/soft.h"

#include <cerrno>
#include <cstring>

#include "base/sys.h"

namespace postern {

bool SoftVi::View(Area& area, uint32_t vi, SoftRings& rings, int bell) {
  if (!Bind(area, vi) || queue_count_ != 1) return false;
  soft_ = &rings;
  rings_[0] = ViewSoftRings(rings);
  bell_ = bell;
  return true;
}

int SoftVi::Attach(Area& area, uint32_t vi, int rings_fd, int bell) {
  SoftRings* const rings = MapSoftRings(rings_fd);
  if (rings == nullptr) return -EINVAL;
  if (!View(area, vi, *rings, bell)) {
    UnmapSoftRings(rings);
    return -EINVAL;
  }
  rings_fd_ = rings_fd;
  return 0;
}

void SoftVi::Detach() {
  UnmapSoftRings(soft_);
  if (rings_fd_ >= 0) sys::Close(rings_fd_);
  soft_ = nullptr;
  rings_fd_ = bell_ = -1;
  queue_count_ = 0;
}

ViStatus SoftVi::Kick() {
  const Ring<xdp_desc>& tx = rings_[0].tx;
  // [F2]
  FullFence();  // with SoftDriver::SetAsleep(): it sees what is in the ring, or we that it sleeps
  if ((LoadRelaxed(*tx.flags) & XDP_RING_NEED_WAKEUP) == 0) return ViStatus::kOk;
  if (LoadRelaxed(*tx.producer) == LoadRelaxed(*tx.consumer)) return ViStatus::kOk;
  const uint8_t ring = 0;
  const long r = sys::Call(SYS_sendto, bell_, &ring, 1L,
                           static_cast<long>(MSG_DONTWAIT | MSG_NOSIGNAL), nullptr, 0L);
  shared_->counters.kicks++;
  // No room: it has been rung often enough. No driver there: see Check().
  if (r < 0) shared_->counters.kick_errors++;
  return ViStatus::kOk;
}

ViStatus SoftVi::Check() {
  uint8_t byte;
  const long r = sys::Call(SYS_recvfrom, bell_, &byte, 1L,
                           static_cast<long>(MSG_DONTWAIT | MSG_PEEK), nullptr, nullptr);
  if (r == 0) {
    shared_->error = ENETDOWN;
    StoreRelease(shared_->state, kViLost);  // [I5]
    return ViStatus::kLost;
  }
  const bool down = LoadRelaxed(soft_->state) == kViDown;
  // [I5]
  if (LoadRelaxed(shared_->state) != kViLost) StoreRelease(shared_->state, down ? kViDown : kViUp);
  return down ? ViStatus::kDown : ViStatus::kOk;
}

void SoftVi::Arm() {
  if (bell_ < 0) return;
  uint8_t rung[64];
  long r;
  do {
    r = sys::Call(SYS_recvfrom, bell_, rung, sizeof rung, static_cast<long>(MSG_DONTWAIT), nullptr,
                  nullptr);
  } while (r > 0);
  if (r == 0) {  // readable for ever: nothing to sleep on any more
    (void)Check();
    bell_ = -1;
    return;
  }
  StoreRelaxed(soft_->watched, 1u);
  FullFence();  // [F2] with SoftDriver::Publish()
}

}  // namespace postern
