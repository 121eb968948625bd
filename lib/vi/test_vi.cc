// SPDX-License-Identifier: Apache-2.0
// test_vi.cc - see test_vi.h.
#include "vi/test_vi.h"

#include <cstring>

namespace postern {
namespace {

// Where a NIC of AF_XDP puts a frame's first byte: XDP's head room.
constexpr uint32_t kHeadroom = 256;
constexpr uint32_t kMtu = 1500;

template <typename Slot>
Ring<Slot> View(TestRing& ring, Slot* slots) {
  return {&ring.producer, &ring.consumer, &ring.flags, slots, kTestSlots - 1};
}

}  // namespace

void TestWire::Format(uint32_t queues, Packets packets) {
  memset(static_cast<void*>(this), 0, sizeof(*this));
  queue_count = queues;
  large = packets == Packets::kLarge ? 1 : 0;
}

TestVi::TestVi(TestWire& wire, uint32_t side, Area& area, uint32_t vi) : wire_(wire), side_(side) {
  pstn_vi* const s = area.ViAt(vi);
  if (s == nullptr) return;
  if (LoadRelaxed(s->state) == kViUnused) {
    s->ifindex = 1000 + side;
    s->queue_count = wire.queue_count;
    s->fill_slots = s->rx_slots = s->tx_slots = s->completion_slots = kTestSlots;
    s->caps = kCapMultiBuffer;
    if (wire.large != 0) s->caps |= kCapLarge | kCapTxChecksum | kCapRxPartial;
    const uint8_t mac[6] = {0x02, 0x50, 0x53, 0x54, 0x4e, static_cast<uint8_t>(side)};
    memcpy(s->mac, mac, sizeof mac);
    s->mtu = kMtu;
    StoreRelease(s->state, kViUp);  // [I5]
  }
  if (!Bind(area, vi)) return;
  for (uint32_t q = 0; q < queue_count_; q++) {
    TestQueue& t = wire.end[side].queue[q];
    rings_[q].fill = View(t.fill, t.fill_slots);
    rings_[q].completion = View(t.completion, t.completion_slots);
    rings_[q].rx = View(t.rx, t.rx_slots);
    rings_[q].tx = View(t.tx, t.tx_slots);
  }
}

bool TestVi::HasRoom(uint32_t queue, uint32_t frames) const {
  const QueueRings& r = peer_->rings_[queue % peer_->queue_count_];
  return r.fill.Filled() >= frames && r.rx.Room() >= frames;
}

// One frame into as many of the other end's as it takes: what has room with us may have none behind
// XDP's head room.
void TestVi::Deliver(uint32_t queue, const uint8_t* data, const xdp_desc& d) {
  const QueueRings& r = peer_->rings_[queue % peer_->queue_count_];
  constexpr uint32_t kRoom = kFrameBytes - kHeadroom;
  for (uint32_t done = 0; done < d.len;) {
    const uint32_t at = LoadRelaxed(*r.fill.consumer), put = LoadRelaxed(*r.rx.producer);
    const uint64_t base = r.fill.At(at) & ~uint64_t{kFrameBytes - 1};
    uint8_t* const into = peer_->area_->At(static_cast<uint32_t>(base >> kFrameShift), kHeadroom);
    if (into == nullptr) return;
    const uint32_t n = d.len - done < kRoom ? d.len - done : kRoom;
    memcpy(into, data + done, n);
    const uint32_t segment = done == 0 ? d.options & ~kDescMore : 0;
    done += n;
    r.rx.At(put) = {base + kHeadroom, n,
                    segment | (done < d.len ? kDescMore : d.options & kDescMore)};
    StoreRelease(*r.fill.consumer, at + 1);  // [I1]
    StoreRelease(*r.rx.producer, put + 1);   // [I1]
  }
}

void TestVi::Drive(uint32_t queue) {
  const QueueRings& r = rings_[queue];
  uint32_t count = r.tx.Filled();
  if (const uint32_t room = r.completion.Room(); count > room) count = room;
  const uint32_t at = LoadRelaxed(*r.tx.consumer), put = LoadRelaxed(*r.completion.producer);
  bool begins = true, is_lost = false;
  for (uint32_t i = 0; i < count; i++) {
    const xdp_desc d = r.tx.At(at + i);
    const uint32_t off = d.addr & (kFrameBytes - 1);
    const uint8_t* const data = area_->At(static_cast<uint32_t>(d.addr >> kFrameShift), off);
    const bool fits = wire_.large != 0 || d.len <= kFrameBytes - kHeadroom;
    if (begins) {
      uint32_t parts = 1;
      while (i + parts < count && (r.tx.At(at + i + parts - 1).options & kDescMore) != 0) parts++;
      is_lost = !HasRoom(queue, wire_.large != 0 ? 2 * parts : parts);
    }
    begins = (d.options & kDescMore) == 0;
    if (data == nullptr || d.len > kFrameBytes - off) {
      // nothing is read outside of the area
    } else if (is_lost || !fits) {
      wire_.end[side_ ^ 1u].lost++;
    } else {
      Deliver(queue, data, d);
    }
    r.completion.At(put + i) = d.addr;
  }
  StoreRelease(*r.tx.consumer, at + count);           // [I1]
  StoreRelease(*r.completion.producer, put + count);  // [I1]
}

ViStatus TestVi::Kick() {
  if (wire_.cut != 0 || peer_ == nullptr) return ViStatus::kDown;
  for (uint32_t q = 0; q < queue_count_; q++) Drive(q);
  return ViStatus::kOk;
}

}  // namespace postern
