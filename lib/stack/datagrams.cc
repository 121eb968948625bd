// SPDX-License-Identifier: Apache-2.0
// datagrams.cc - UDP sockets of the wire segment: their life, their tables, and what is left of
// them after a death.
#include "stack/datagrams.h"

#include <cerrno>
#include <cstring>

#include "stack/engine.h"

namespace postern::stack {
DatagramTables& Datagrams::Tables() { return engine_.w_.datagrams; }

DatagramSocket& Datagrams::At(uint32_t idx) { return Tables().at[idx % kDatagramSockets]; }

// ---------------------------------------------------------------- the life of a socket

uint32_t Datagrams::Open(const pstn_addr& local, uint32_t family, uint32_t flags, uint32_t owner,
                         uint32_t owner_gen) {
  DatagramTables& t = Tables();
  uint32_t idx;
  if (t.free != 0 && t.free <= kDatagramSockets) {
    idx = t.free - 1;
    t.free = t.at[idx].next;
  } else if (t.hw < kDatagramSockets) {
    idx = t.hw++;
  } else {
    return PSTN_NONE;
  }
  DatagramSocket& s = t.at[idx];
  memset(static_cast<void*>(&s), 0, sizeof s);
  udp::Open(s.e, static_cast<uint16_t>(family), 0);
  s.e.flags |= flags;
  s.owner = owner;
  s.owner_gen = owner_gen;
  s.use = 1;
  if (udp::Bind(t.ports, idx, IpOf(local), local.port, *this) != 0) {
    Close(idx);
    return PSTN_NONE;
  }
  return idx;
}

void Datagrams::Close(uint32_t idx) {
  DatagramTables& t = Tables();
  if (idx >= kDatagramSockets || t.at[idx].use == 0) return;
  udp::Close(t.ports, idx, *this);
  t.at[idx].use = 0;
  t.at[idx].next = t.free;
  t.free = idx + 1;
}

// The kernel has chosen; its names are the ones that the program sees.
int Datagrams::Disconnect(uint32_t idx, const pstn_addr& local) {
  DatagramSocket& s = At(idx);
  if (s.e.local_port != local.port) return -EINVAL;
  udp::Disconnect(Tables().ports, idx, *this);
  s.e.local = IpOf(local);
  if (s.e.local.IsAny()) s.e.local = {};
  s.path = {};
  return 0;
}

int Datagrams::Connect(uint32_t idx, const pstn_addr& local, const pstn_addr& peer) {
  DatagramSocket& s = At(idx);
  if (const int error = Disconnect(idx, local); error != 0) return error;
  sending_ = &s;
  s.path_from = local;
  const int r = udp::Connect(Tables().ports, idx, IpOf(peer), peer.port, *this);
  s.path = {};
  sending_ = nullptr;
  return r;
}

void Datagrams::Leave(uint32_t idx) {
  DatagramSocket& s = At(idx);
  if (s.use == 0 || s.is_left != 0) return;
  StoreRelaxed(s.is_left, 1u);
  Tables().counters.left++;
  engine_.streams_.DatagramsLeave(s);
}

void Datagrams::Wake(uint32_t endpoint, udp::Event) { engine_.streams_.DatagramCame(At(endpoint)); }

// ---------------------------------------------------------------- packets and entries

// What is not read must not take the frames that connections need: half of them stay.
bool Datagrams::Keep(uint32_t packet) {
  Area& area = engine_.area_;
  return area.FreeCount() > area.frame_count() / 2 && area.Keep(packet);
}

void Datagrams::Drop(uint32_t packet) { engine_.area_.Give(packet); }

const uint8_t* Datagrams::PacketAt(uint32_t packet, uint32_t off) {
  return engine_.area_.At(packet, off);
}

udp::Received& Datagrams::ReceivedAt(uint32_t idx) {
  return Tables().received[idx % kDatagramsWaiting];
}

uint32_t Datagrams::TakeReceived() {
  DatagramTables& t = Tables();
  uint32_t idx;
  if (t.received_free != 0 && t.received_free <= kDatagramsWaiting) {
    idx = t.received_free - 1;
    t.received_free = t.received[idx].next;
  } else if (t.received_hw < kDatagramsWaiting) {
    idx = t.received_hw++;
  } else {
    return udp::kNone;
  }
  return idx;
}

void Datagrams::GiveReceived(uint32_t idx) {
  if (idx >= kDatagramsWaiting) return;
  Tables().received[idx].next = Tables().received_free;
  Tables().received_free = idx + 1;
}

// ---------------------------------------------------------------- after a death

// The queue as far as it is sound: each entry in one queue only, with a frame of its own. The rest
// is lost, as on the way.
void Datagrams::ClaimQueue(uint32_t idx) {
  DatagramTables& t = Tables();
  uint32_t* link = &t.at[idx].e.rx_head;
  while (*link != udp::kNone) {
    const uint32_t i = *link;
    const bool sound = i < t.received_hw && (t.named[i / 64] >> (i % 64) & 1) == 0 &&
                       t.received[i].off <= kFrameBytes &&
                       t.received[i].bytes <= kFrameBytes - t.received[i].off &&
                       engine_.area_.Claim(t.received[i].packet);
    if (!sound) {
      *link = udp::kNone;
      break;
    }
    t.named[i / 64] |= 1ull << (i % 64);
    link = &t.received[i].next;
  }
  udp::Mend(idx, kDatagramsWaiting, *this);
}

void Datagrams::Recover() {
  DatagramTables& t = Tables();
  if (t.hw > kDatagramSockets) t.hw = kDatagramSockets;
  if (t.received_hw > kDatagramsWaiting) t.received_hw = kDatagramsWaiting;
  memset(t.named, 0, sizeof t.named);
  udp::InitPorts(t.ports, t.ports.secret);
  t.free = t.received_free = 0;
  sending_ = nullptr;
  for (uint32_t i = 0; i < t.hw; i++) {
    DatagramSocket& s = t.at[i];
    if (s.use == 0) {
      s.next = t.free;
      t.free = i + 1;
      continue;
    }
    s.path = {};
    s.e.err_head = s.e.member_head = udp::kNone;
    udp::Rechain(t.ports, i, *this);
    ClaimQueue(i);
    engine_.streams_.DatagramCame(s);
  }
  for (uint32_t i = 0; i < t.received_hw; i++)
    if ((t.named[i / 64] >> (i % 64) & 1) == 0) GiveReceived(i);
}

}  // namespace postern::stack
