// SPDX-License-Identifier: Apache-2.0
// rings.cc - see rings.h.
#include "vi/rings.h"

#include <algorithm>

namespace postern {
namespace {

uint32_t FrameOf(uint64_t addr) {
  return addr >> kFrameShift < kFramesMax ? static_cast<uint32_t>(addr >> kFrameShift) : kFramesMax;
}
uint64_t AddrOf(uint32_t frame, uint32_t off) { return (uint64_t{frame} << kFrameShift) + off; }

// What follows is not moved before it: what a death leaves behind is in program order.
void ProgramOrder() { std::atomic_signal_fence(std::memory_order_seq_cst); }

void Announce(pstn_vi_intent& intent, uint32_t pos, uint32_t count) {
  StoreRelaxed(intent.pos, pos);
  StoreRelease(intent.count, count);  // [I2]
  ProgramOrder();
}

void Add(uint64_t& counter, uint64_t n) { counter += n; }

}  // namespace

bool RingVi::Bind(Area& area, uint32_t vi) {
  pstn_vi* const shared = area.ViAt(vi);
  if (shared == nullptr) return false;
  const uint32_t queues = LoadRelaxed(shared->queue_count);
  if (queues == 0 || queues > kViQueues) return false;
  area_ = &area;
  shared_ = shared;
  vi_ = vi;
  queue_count_ = queues;
  return true;
}

// ---- towards the engine ------------------------------------------------------------------------

// How many of `count` slots hold whole packets. A packet that no call could return is none: its
// parts are returned, and the engine drops them.
uint32_t RingVi::Whole(const Ring<xdp_desc>& ring, uint32_t at, uint32_t count) {
  uint32_t whole = count;
  while (whole != 0 && (LoadRelaxed(ring.At(at + whole - 1).options) & kDescMore) != 0) whole--;
  return whole == 0 && count == kViBatchMax ? count : whole;
}

uint32_t RingVi::ReceiveFrom(uint32_t queue, ViRx* rx, uint32_t max) {
  const Ring<xdp_desc>& ring = rings_[queue].rx;
  const uint32_t at = LoadRelaxed(*ring.consumer);
  const uint32_t count = Whole(ring, at, std::min(ring.Filled(), max));
  if (count == 0) return 0;
  uint32_t good = 0;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; i++) {
    const xdp_desc d = ring.At(at + i);
    const uint32_t frame = FrameOf(d.addr), off = d.addr & (kFrameBytes - 1);
    if (area_->OwnerOf(frame) != FrameOwner(kFrameFill, vi_) || d.len > kFrameBytes - off) {
      Add(shared_->queue[queue].bad_descriptors, 1);
      continue;
    }
    area_->SetOwner(frame, kFrameRx, 0);
    const uint16_t more = (d.options & kDescMore) != 0 ? kRxMore : uint16_t{0};
    rx[good++] = {
        frame, static_cast<uint16_t>(off),   static_cast<uint16_t>(d.len),
        more,  static_cast<uint16_t>(queue), static_cast<uint16_t>(d.options >> kDescSegmentShift)};
    bytes += d.len;
  }
  StoreRelease(*ring.consumer, at + count);  // [I1]: the driver may use the slots again
  Add(shared_->counters.rx_frames, good);
  Add(shared_->counters.rx_bytes, bytes);
  return good;
}

uint32_t RingVi::Receive(ViRx* rx, uint32_t max) {
  max = std::min(max, kViBatchMax);
  const uint32_t first = LoadRelaxed(shared_->next_queue);
  uint32_t got = 0;
  for (uint32_t i = 0; i < queue_count_ && got < max; i++)
    got += ReceiveFrom((first + i) % queue_count_, rx + got, max - got);
  if (queue_count_ > 1) StoreRelaxed(shared_->next_queue, (first + 1) % queue_count_);
  if (got == 0) Add(shared_->counters.received_empty, 1);
  return got;
}

uint32_t RingVi::CompletedOn(uint32_t queue, uint32_t* frames, uint32_t max) {
  const Ring<uint64_t>& ring = rings_[queue].completion;
  const uint32_t count = std::min(ring.Filled(), max);
  if (count == 0) return 0;
  const uint32_t at = LoadRelaxed(*ring.consumer);
  uint32_t good = 0;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t frame = FrameOf(ring.At(at + i));
    if (area_->OwnerOf(frame) != FrameOwner(kFrameSending, vi_)) {
      Add(shared_->queue[queue].bad_descriptors, 1);
      continue;
    }
    area_->SetOwner(frame, kFrameTx, 0);
    frames[good++] = frame;
  }
  StoreRelease(*ring.consumer, at + count);  // [I1]
  return good;
}

uint32_t RingVi::Completed(uint32_t* frames, uint32_t max) {
  uint32_t got = 0;
  for (uint32_t q = 0; q < queue_count_ && got < max; q++)
    got += CompletedOn(q, frames + got, max - got);
  return got;
}

bool RingVi::Pending() {
  for (uint32_t q = 0; q < queue_count_; q++) {
    const QueueRings& r = rings_[q];
    if (LoadRelaxed(*r.rx.producer) != LoadRelaxed(*r.rx.consumer) ||
        LoadRelaxed(*r.completion.producer) != LoadRelaxed(*r.completion.consumer))
      return true;
  }
  return false;
}

// ---- towards the driver ------------------------------------------------------------------------

uint32_t RingVi::RefillRoom() {
  uint32_t room = 0;
  for (uint32_t q = 0; q < queue_count_; q++) room += rings_[q].fill.Room();
  return room;
}

uint32_t RingVi::RefillOne(uint32_t queue, const uint32_t* frames, uint32_t count) {
  const Ring<uint64_t>& ring = rings_[queue].fill;
  pstn_vi_intent& intent = shared_->queue[queue].fill;
  count = std::min(ring.Room(), count);
  const uint32_t at = LoadRelaxed(*ring.producer);
  uint32_t valid = 0;
  while (valid < count && area_->OwnerOf(frames[valid]) == kFrameTx) {
    ring.At(at + valid) = AddrOf(frames[valid], 0);
    valid++;
  }
  if (valid == 0) return 0;
  Announce(intent, at, valid);
  for (uint32_t i = 0; i < valid; i++) area_->SetOwner(frames[i], kFrameFill, vi_);
  StoreRelease(*ring.producer, at + valid);  // [I1]
  StoreRelease(intent.count, 0u);            // [I2]
  return valid;
}

uint32_t RingVi::Refill(const uint32_t* frames, uint32_t count) {
  uint32_t done = 0;
  // Where frames are scarce each queue gets its share; what one has no room for, the next one gets.
  for (uint32_t q = 0; q < queue_count_ && done < count; q++) {
    const uint32_t queues_left = queue_count_ - q;
    const uint32_t share = (count - done + queues_left - 1) / queues_left;
    done += RefillOne(q, frames + done, share);
  }
  for (uint32_t q = 0; q < queue_count_ && done < count; q++)
    done += RefillOne(q, frames + done, count - done);
  return done;
}

uint32_t RingVi::SendRoom(uint32_t queue) { return rings_[queue % queue_count_].tx.Room(); }

bool RingVi::Sendable(const ViTx& tx) const {
  return area_->OwnerOf(tx.frame) == kFrameTx && tx.off < kFrameBytes &&
         tx.bytes <= kFrameBytes - tx.off && tx.bytes != 0;
}

uint32_t RingVi::SendOn(uint32_t queue, const ViTx* tx, uint32_t count) {
  const Ring<xdp_desc>& ring = rings_[queue].tx;
  pstn_vi_intent& intent = shared_->queue[queue].tx;
  count = std::min(ring.Room(), count);
  uint32_t valid = 0;
  while (valid < count && Sendable(tx[valid])) valid++;
  while (valid != 0 && (tx[valid - 1].flags & kTxMore) != 0) valid--;
  if (valid == 0) return 0;
  const uint32_t at = LoadRelaxed(*ring.producer);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < valid; i++) {
    const uint32_t more = (tx[i].flags & kTxMore) != 0 ? kDescMore : 0;
    const uint32_t segment = uint32_t{tx[i].segment} << kDescSegmentShift;
    ring.At(at + i) = {AddrOf(tx[i].frame, tx[i].off), tx[i].bytes, more | segment};
    bytes += tx[i].bytes;
  }
  Announce(intent, at, valid);
  for (uint32_t i = 0; i < valid; i++) area_->SetOwner(tx[i].frame, kFrameSending, vi_);
  StoreRelease(*ring.producer, at + valid);  // [I1]
  StoreRelease(intent.count, 0u);            // [I2]
  Add(shared_->counters.tx_frames, valid);
  Add(shared_->counters.tx_bytes, bytes);
  return valid;
}

uint32_t RingVi::Send(const ViTx* tx, uint32_t count) {
  uint32_t done = 0;
  while (done < count) {
    const uint32_t queue = tx[done].queue % queue_count_;
    uint32_t run = 1;
    while (done + run < count && tx[done + run].queue % queue_count_ == queue) run++;
    const uint32_t took = SendOn(queue, tx + done, run);
    done += took;
    if (took == run) continue;
    Add(shared_->counters.tx_full, 1);
    break;
  }
  return done;
}

// ---- after a death -----------------------------------------------------------------------------

void RingVi::Recover() {
  for (uint32_t q = 0; q < queue_count_; q++) {
    const QueueRings& r = rings_[q];
    pstn_vi_queue& shared = shared_->queue[q];
    const auto settle = [this](const auto& ring, pstn_vi_intent& intent, FrameUse published,
                               auto frame_at) {
      const uint32_t count = LoadRelaxed(intent.count), pos = LoadRelaxed(intent.pos);
      if (count == 0 || count > ring.size()) return StoreRelease(intent.count, 0u);  // [I2]
      const bool is_out = LoadRelaxed(*ring.producer) != pos;
      for (uint32_t i = 0; i < count; i++)
        area_->SetOwner(frame_at(ring, pos + i), is_out ? published : kFrameTx, is_out ? vi_ : 0);
      StoreRelease(intent.count, 0u);  // [I2]
    };
    settle(r.fill, shared.fill, kFrameFill,
           [](const auto& ring, uint32_t pos) { return FrameOf(ring.At(pos)); });
    settle(r.tx, shared.tx, kFrameSending,
           [](const auto& ring, uint32_t pos) { return FrameOf(ring.At(pos).addr); });
    // The driver may add to these while we look: those frames are the VI's by owner[] already.
    const uint32_t rx_count = r.rx.Filled(), completion_count = r.completion.Filled();
    for (uint32_t i = 0; i < rx_count; i++)
      area_->SetOwner(FrameOf(r.rx.At(*r.rx.consumer + i).addr), kFrameFill, vi_);
    for (uint32_t i = 0; i < completion_count; i++)
      area_->SetOwner(FrameOf(r.completion.At(*r.completion.consumer + i)), kFrameSending, vi_);
  }
}

bool RingVi::ValidateOne(const QueueRings& r, uint8_t* seen) const {
  const auto check = [this, seen](uint64_t addr, FrameUse use) {
    const uint32_t frame = FrameOf(addr);
    return area_->OwnerOf(frame) == FrameOwner(use, vi_) && seen[frame]++ == 0;
  };
  bool good = true;
  for (uint32_t p = LoadRelaxed(*r.fill.consumer); p != LoadRelaxed(*r.fill.producer); p++)
    good &= check(r.fill.At(p), kFrameFill);
  for (uint32_t p = LoadRelaxed(*r.rx.consumer); p != LoadRelaxed(*r.rx.producer); p++)
    good &= check(r.rx.At(p).addr, kFrameFill);
  for (uint32_t p = LoadRelaxed(*r.tx.consumer); p != LoadRelaxed(*r.tx.producer); p++)
    good &= check(r.tx.At(p).addr, kFrameSending);
  for (uint32_t p = LoadRelaxed(*r.completion.consumer); p != LoadRelaxed(*r.completion.producer);
       p++)
    good &= check(r.completion.At(p), kFrameSending);
  return good;
}

bool RingVi::Validate(uint8_t* seen) {
  for (uint32_t q = 0; q < queue_count_; q++) {
    const QueueRings& r = rings_[q];
    const auto sane = [](const auto& ring) {
      return LoadRelaxed(*ring.producer) - LoadRelaxed(*ring.consumer) <= ring.size();
    };
    if (!sane(r.fill) || !sane(r.rx) || !sane(r.tx) || !sane(r.completion)) return false;
    if (LoadRelaxed(shared_->queue[q].fill.count) != 0) return false;
    if (LoadRelaxed(shared_->queue[q].tx.count) != 0) return false;
    if (!ValidateOne(r, seen)) return false;
  }
  return true;
}

}  // namespace postern
