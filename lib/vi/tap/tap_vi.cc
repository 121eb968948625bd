// SPDX-License-Identifier: Apache-2.0
// tap_vi.cc - see tap_vi.h.
#include "vi/tap/tap_vi.h"

#include <linux/if.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "base/sys.h"
#include "wire/packet/virtio_net.h"

namespace postern {
namespace {

constexpr size_t kBellBytes = 4096;  // a map's page
constexpr uint32_t kMissesMax = 64;  // some 20 us of looking
// Where a packet's bytes begin in each of its frames: the engine writes in front of them.
constexpr uint32_t kHead = 64;
constexpr uint32_t kRoom = kFrameBytes - kHead;
// What the largest packet takes: IP's length field, and what is before IP.
constexpr uint32_t kPacketFrames = (65535 + wire::kEthernetBytesMax + kRoom - 1) / kRoom;
static_assert(kPacketFrames <= kViBatchMax);

}  // namespace

// Free frames of one call of Receive(): what a packet does not need the next one gets.
struct TapVi::Frames {
  uint32_t at[kPacketFrames];
  uint32_t count = 0;
  void Fill(Area& area) { count += area.Take(at + count, kPacketFrames - count); }
};

int TapVi::Attach(Area& area, uint32_t vi, int tap_fd, int bell_fd) {
  pstn_vi* const shared = area.ViAt(vi);
  if (shared == nullptr) return -EINVAL;
  const long at = sys::Call(SYS_mmap, 0L, kBellBytes, static_cast<long>(PROT_READ),
                            static_cast<long>(MAP_SHARED), bell_fd, 0L);
  if (at < 0 && at > -4096) return static_cast<int>(at);
  area_ = &area;
  shared_ = shared;
  bell_ = reinterpret_cast<const uint64_t*>(at);
  tap_fd_ = tap_fd;
  bell_fd_ = bell_fd;
  return 0;
}

void TapVi::Detach() {
  if (bell_ != nullptr) sys::Unmap(const_cast<uint64_t*>(bell_), kBellBytes);
  if (tap_fd_ >= 0) sys::Close(tap_fd_);
  if (bell_fd_ >= 0) sys::Close(bell_fd_);
  bell_ = nullptr;
  tap_fd_ = bell_fd_ = -1;
}

// ---- towards the engine ------------------------------------------------------------------------

bool TapVi::Pending() {
  return static_cast<uint32_t>(LoadRelaxed(*bell_)) != LoadRelaxed(shared_->taken);
}

// How far we are, after `packets` were read; `bell` is from before.
void TapVi::Settle(uint32_t bell, uint32_t packets) {
  const uint32_t taken = LoadRelaxed(shared_->taken) + packets;
  const bool is_missed = packets == 0 && taken != bell;
  const uint32_t misses = is_missed ? LoadRelaxed(shared_->misses) + 1 : 0;
  StoreRelaxed(shared_->taken, misses < kMissesMax ? taken : bell);
  StoreRelaxed(shared_->misses, misses % kMissesMax);
}

// How many of the frames it took; 0: there is none.
uint32_t TapVi::ReadOne(const Frames& frames, ViRx* rx) {
  wire::VnetHeader header;
  iovec to[1 + kPacketFrames];
  to[0] = {&header, sizeof header};
  for (uint32_t i = 0; i < frames.count; i++)
    to[1 + i] = {area_->At(frames.at[frames.count - 1 - i], kHead), kRoom};
  long left = sys::Call(SYS_readv, tap_fd_, to, static_cast<long>(1 + frames.count));
  if (left < 0 && left != -EAGAIN) NoteError(left);
  left -= static_cast<long>(sizeof header);
  if (left <= 0) return 0;
  uint32_t used = 0;
  for (; left > 0; used++, left -= kRoom) {
    const uint32_t bytes = left < kRoom ? static_cast<uint32_t>(left) : kRoom;
    const uint16_t more = left > kRoom ? kRxMore : uint16_t{0};
    const uint32_t frame = frames.at[frames.count - 1 - used];
    area_->SetOwner(frame, kFrameRx, 0);
    rx[used] = {frame, kHead, static_cast<uint16_t>(bytes), more, 0};
    shared_->counters.rx_bytes += bytes;
  }
  wire::VnetIn about;
  const auto* const packet = static_cast<const uint8_t*>(to[1].iov_base);
  if (!wire::ReadVnet(header, packet, rx[0].bytes, about)) {
    shared_->queue[0].bad_descriptors++;
    rx[0].bytes = 0;  // refused by the engine, which gives the frames back
  }
  if (about.is_checksum_good) rx[0].flags |= kRxChecksumGood;
  rx[0].segment = about.segment_bytes;
  return used;
}

uint32_t TapVi::Receive(ViRx* rx, uint32_t max) {
  if (!Pending() && LoadRelaxed(shared_->look) == 0) {
    shared_->counters.received_empty++;
    return 0;
  }
  StoreRelaxed(shared_->look, 0u);
  const auto bell = static_cast<uint32_t>(LoadRelaxed(*bell_));
  Frames frames;
  uint32_t got = 0, packets = 0;
  for (bool is_empty = false; !is_empty && max - got >= kPacketFrames;) {
    frames.Fill(*area_);
    const uint32_t used = frames.count != 0 ? ReadOne(frames, rx + got) : 0;
    frames.count -= used;
    got += used;
    packets += used != 0 ? 1 : 0;
    is_empty = used == 0;
  }
  area_->Give(frames.at, frames.count);
  Settle(bell, packets);
  shared_->counters.rx_frames += got;
  return got;
}

// ---- towards the kernel ------------------------------------------------------------------------

bool TapVi::IsSendable(const ViTx& tx) const {
  return area_->OwnerOf(tx.frame) == kFrameTx && tx.off < kFrameBytes &&
         tx.bytes <= kFrameBytes - tx.off && tx.bytes != 0;
}

// A packet of so many frames. False: the TAP has no room. What the kernel refuses is lost.
bool TapVi::WriteOne(const ViTx* tx, uint32_t count) {
  const uint8_t* const frame = area_->At(tx->frame, tx->off);
  const uint32_t l4_off = (tx->flags & kTxChecksum) != 0 ? tx->l4_off : 0;
  wire::VnetHeader header = wire::VnetFor(frame, l4_off, tx->segment);
  iovec from[1 + kViBatchMax];
  from[0] = {&header, sizeof header};
  for (uint32_t i = 0; i < count; i++)
    from[1 + i] = {area_->At(tx[i].frame, tx[i].off), tx[i].bytes};
  const long r = sys::Call(SYS_writev, tap_fd_, from, static_cast<long>(1 + count));
  shared_->counters.kicks++;
  if (r == -EAGAIN) return false;
  NoteError(r);
  return true;
}

uint32_t TapVi::Send(const ViTx* tx, uint32_t count) {
  uint32_t done = 0;
  for (uint32_t end = 0; end < count && IsSendable(tx[end]);) {
    if ((tx[end++].flags & kTxMore) != 0) continue;
    if (!WriteOne(tx + done, end - done)) {
      shared_->counters.tx_full++;
      break;
    }
    for (; done < end; done++) {
      shared_->counters.tx_bytes += tx[done].bytes;
      area_->Give(tx[done].frame);
    }
  }
  shared_->counters.tx_frames += done;
  return done;
}

// What the kernel has answered, kept for all to see. EBADFD: the TAP was taken away; EIO: it is
// down.
void TapVi::NoteError(long error) {
  const uint32_t was = LoadRelaxed(shared_->state);
  if (error < 0) shared_->counters.kick_errors++;
  if (error == -EBADFD) {
    shared_->error = ENETDOWN;
    StoreRelease(shared_->state, kViLost);  // [I5]
  } else if (was != kViLost && (was == kViDown) != (error == -EIO)) {
    StoreRelease(shared_->state, error == -EIO ? kViDown : kViUp);  // [I5]
  }
}

ViStatus TapVi::Kick() {
  const uint32_t state = LoadRelaxed(shared_->state);
  return state == kViLost ? ViStatus::kLost : state == kViDown ? ViStatus::kDown : ViStatus::kOk;
}

ViStatus TapVi::Check() {
  ifreq about{};
  const long r = sys::Call(SYS_ioctl, tap_fd_, static_cast<long>(TUNGETIFF), &about);
  if (r == -EBADFD) NoteError(r);
  return Kick();
}

void TapVi::Arm() { StoreRelaxed(shared_->look, 1u); }

}  // namespace postern
