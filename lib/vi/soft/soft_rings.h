// SPDX-License-Identifier: Apache-2.0
// soft_rings.h - the rings of a soft VI as they lie in shared memory, between a program and the
// process that has the network card.
//
// Four rings as AF_XDP has them (rings.h), one memfd for each VI, beside the stack's packet area.
// The program's half is SoftVi (soft.h), the driver's is SoftDriver (soft_driver.h). All sizes are
// constants, so that neither half has to believe the other's.
//
// The driver is a process too, and may die. What it takes out of the fill ring it puts into the rx
// ring, each frame in its turn and none left out; and what it takes out of the tx ring, into the
// completion ring. So of the two positions that it has in each pair the one that shows its work is
// the truth, and the other one follows:
//
//   rx.producer         = fill.consumer      but between two stores of the driver
//   completion.producer = tx.consumer        likewise
//
// The VI's next driver begins at rx.producer and completion.producer. A packet of which the
// first half was done is sent twice, or received once more into the same frame; no frame is lost,
// and none is in two places.
//
// Doorbells, both ways, are bytes in a socket pair and not eventfds: the flags of an eventfd belong
// to both sides, and a program that made it blocking could stop the driver. Its end tells, too:
// when all of the program's copies are closed, the VI is over.
#pragma once
#include <linux/if_xdp.h>

#include <cstdint>

#include "vi/rings.h"

namespace postern {

inline constexpr uint32_t kSoftMagic = 0x74666f73u;  // "soft"
inline constexpr uint32_t kSoftVersion = 1;
inline constexpr uint32_t kSoftSlots = 2048;  // of each ring
// In front of a received packet, in its frame.
inline constexpr uint32_t kSoftHeadroom = 64;
inline constexpr uint32_t kSoftBytesMax = kFrameBytes - kSoftHeadroom;

struct SoftRing {
  alignas(64) uint32_t producer;
  alignas(64) uint32_t consumer;
  alignas(64) uint32_t flags;  // XDP_RING_NEED_WAKEUP, of tx: the driver sleeps
};

struct SoftRings {
  uint32_t magic, version;  // (c)
  uint32_t state;           // kViUp, kViDown: as the driver has seen the link last
  uint32_t zero[13];
  alignas(64) uint32_t watched;  // (a) a process of the program sleeps, and wants to be rung
  SoftRing fill, rx, tx, completion;
  uint64_t fill_slots[kSoftSlots];
  uint64_t completion_slots[kSoftSlots];
  xdp_desc rx_slots[kSoftSlots];
  xdp_desc tx_slots[kSoftSlots];
};
static_assert(sizeof(SoftRings) == 128 + 4 * 192 + kSoftSlots * (8 + 8 + 16 + 16));

// A new memfd (close-on-exec, sealed) with empty rings, or -errno.
int CreateSoftRings();
// Null: it is none.
SoftRings* MapSoftRings(int fd);
void UnmapSoftRings(SoftRings* rings);

// Empty rings in any memory.
void FormatSoftRings(SoftRings& rings);
// One end's view of them.
QueueRings ViewSoftRings(SoftRings& rings);

}  // namespace postern
