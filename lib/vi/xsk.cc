// SPDX-License-Identifier: Apache-2.0
// xsk.cc - see xsk.h.
#include "vi/xsk.h"

#include <cerrno>
#include <cstring>

#include "base/sys.h"

namespace postern {
namespace {

constexpr int kSolXdp = 283;

bool IsSlotCount(uint32_t n) { return n != 0 && (n & (n - 1)) == 0 && n <= 1u << 16; }

}  // namespace

int TakeGrant(int line, ctl::ViGrant& grant, int (&fds)[ctl::kGrantFdsMax]) {
  ctl::GrantPacket packet(grant);
  const long got = sys::Call(SYS_recvmsg, line, &packet.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const uint32_t count = got >= 0 ? packet.TakeFds(fds) : 0;
  const bool whole = got == static_cast<long>(sizeof grant) && grant.magic == ctl::kGrantMagic &&
                     grant.queue_count <= kViQueues && count == ctl::FdsOf(grant);
  if (whole) return 0;
  for (uint32_t i = 0; i < count; i++) sys::Close(fds[i]);
  return got < 0 ? static_cast<int>(got) : -EPROTO;
}

void EnterGrant(const ctl::ViGrant& grant, pstn_vi& vi) {
  vi.ifindex = grant.ifindex;
  vi.queue_count = grant.queue_count;
  vi.fill_slots = grant.fill_slots;
  vi.rx_slots = grant.rx_slots;
  vi.tx_slots = grant.tx_slots;
  vi.completion_slots = grant.completion_slots;
  vi.caps = grant.caps;
  memcpy(vi.mac, grant.mac, sizeof vi.mac);
  vi.mtu = grant.mtu;
  vi.error = 0;
  StoreRelease(vi.state, kViUp);  // [I5]
}

template <typename Slot>
int XskVi::MapRing(int fd, const xdp_ring_offset& off, uint64_t page_off, uint32_t slots,
                   Mapping& keep, Ring<Slot>& ring) {
  if (!IsSlotCount(slots)) return -EINVAL;
  const size_t bytes = off.desc + slots * sizeof(Slot);
  const long at = sys::Call(SYS_mmap, 0L, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                            fd, page_off);
  if (at < 0 && at > -4096) return static_cast<int>(at);
  auto* const base = reinterpret_cast<uint8_t*>(at);
  keep = {base, bytes};
  ring.producer = reinterpret_cast<uint32_t*>(base + off.producer);
  ring.consumer = reinterpret_cast<uint32_t*>(base + off.consumer);
  ring.flags = reinterpret_cast<uint32_t*>(base + off.flags);
  ring.slots = reinterpret_cast<Slot*>(base + off.desc);
  ring.mask = slots - 1;
  return 0;
}

int XskVi::MapQueue(uint32_t queue, int fd) {
  xdp_mmap_offsets off{};
  uint32_t size = sizeof off;
  const long r = sys::Call(SYS_getsockopt, fd, kSolXdp, XDP_MMAP_OFFSETS, &off, &size);
  if (r < 0) return static_cast<int>(r);
  if (size != sizeof off) return -EINVAL;  // before Linux 5.4: no flags
  Mapping* const m = mappings_[queue];
  QueueRings& q = rings_[queue];
  int error = MapRing(fd, off.rx, XDP_PGOFF_RX_RING, shared_->rx_slots, m[0], q.rx);
  if (error == 0) error = MapRing(fd, off.tx, XDP_PGOFF_TX_RING, shared_->tx_slots, m[1], q.tx);
  if (error == 0)
    error = MapRing(fd, off.fr, XDP_UMEM_PGOFF_FILL_RING, shared_->fill_slots, m[2], q.fill);
  if (error == 0)
    error = MapRing(fd, off.cr, XDP_UMEM_PGOFF_COMPLETION_RING, shared_->completion_slots, m[3],
                    q.completion);
  return error;
}

int XskVi::Attach(Area& area, uint32_t vi, const int* fds, uint32_t count) {
  if (!Bind(area, vi) || queue_count_ != count) return -EINVAL;
  int error = 0;
  for (uint32_t q = 0; q < count && error == 0; q++) error = MapQueue(q, fds[q]);
  int sleep_fd = fds[0];
  if (error == 0 && count > 1) {
    sleep_fd = static_cast<int>(sys::Call(SYS_epoll_create1, EPOLL_CLOEXEC));
    if (sleep_fd < 0) error = sleep_fd;
    for (uint32_t q = 0; q < count && error == 0; q++) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u32 = q;
      error = static_cast<int>(sys::Call(SYS_epoll_ctl, sleep_fd, EPOLL_CTL_ADD, fds[q], &event));
    }
    if (error != 0 && sleep_fd >= 0) sys::Close(sleep_fd);
  }
  if (error != 0) {
    UnmapAll();
    queue_count_ = 0;
    return error;
  }
  memcpy(fds_, fds, count * sizeof(int));
  sleep_fd_ = sleep_fd;
  return 0;
}

void XskVi::UnmapAll() {
  for (auto& queue : mappings_) {
    for (Mapping& m : queue) {
      if (m.at != nullptr) sys::Unmap(m.at, m.bytes);
      m = {};
    }
  }
}

void XskVi::Detach() {
  UnmapAll();
  if (queue_count_ > 1) sys::Close(sleep_fd_);
  for (uint32_t q = 0; q < queue_count_; q++) sys::Close(fds_[q]);
  queue_count_ = 0;
  sleep_fd_ = -1;
}

// What the kernel has answered, kept for all to see.
ViStatus XskVi::Enter(long error) {
  const uint32_t was = LoadRelaxed(shared_->state);
  if (error == -ENXIO) {
    shared_->error = ENETDOWN;
    StoreRelease(shared_->state, kViLost);  // [I5]
    return ViStatus::kLost;
  }
  const bool down = error == -ENETDOWN;
  if (was != kViLost && (was == kViDown) != down)
    StoreRelease(shared_->state, down ? kViDown : kViUp);  // [I5]
  if (down) return ViStatus::kDown;
  return error >= 0 ? ViStatus::kOk : ViStatus::kBusy;
}

// In copy mode one call sends a part of the ring (32 frames) and says EAGAIN if there is more. The
// same answer without progress means that the device, or our completion ring, is full.
ViStatus XskVi::KickTx(uint32_t queue) {
  const Ring<xdp_desc>& tx = rings_[queue].tx;
  for (;;) {
    const uint32_t before = LoadAcquire(*tx.consumer);  // [I1]
    if (LoadRelaxed(*tx.producer) == before) return ViStatus::kOk;
    if ((LoadRelaxed(*tx.flags) & XDP_RING_NEED_WAKEUP) == 0) return ViStatus::kOk;
    const long r = sys::Call(SYS_sendto, fds_[queue], nullptr, 0L, MSG_DONTWAIT, nullptr, 0L);
    shared_->counters.kicks++;
    if (r < 0) shared_->counters.kick_errors++;
    if (r != -EAGAIN || LoadAcquire(*tx.consumer) == before) return Enter(r);  // [I1]
  }
}

ViStatus XskVi::Kick() {
  ViStatus worst = ViStatus::kOk;
  // What is in the rings comes before the look at the flags: the driver sets a flag, then looks at
  // the ring once more, and one of the two sees the other.
  FullFence();  // [F2]
  for (uint32_t q = 0; q < queue_count_; q++) {
    if (const ViStatus s = KickTx(q); s > worst) worst = s;
    if ((LoadRelaxed(*rings_[q].fill.flags) & XDP_RING_NEED_WAKEUP) != 0) {
      (void)sys::Call(SYS_recvfrom, fds_[q], nullptr, 0L, MSG_DONTWAIT, nullptr, nullptr);
      shared_->counters.kicks++;
    }
  }
  return worst;
}

// An empty send: what would be wrong with a doorbell.
ViStatus XskVi::Check() {
  ViStatus worst = ViStatus::kOk;
  for (uint32_t q = 0; q < queue_count_; q++) {
    const long r = sys::Call(SYS_sendto, fds_[q], nullptr, 0L, MSG_DONTWAIT, nullptr, 0L);
    if (const ViStatus s = Enter(r); s > worst) worst = s;
  }
  return worst;
}

bool XskVi::Statistics(uint32_t queue, xdp_statistics& out) const {
  uint32_t size = sizeof out;
  out = {};
  return queue < queue_count_ &&
         sys::Call(SYS_getsockopt, fds_[queue], kSolXdp, XDP_STATISTICS, &out, &size) >= 0;
}

}  // namespace postern
