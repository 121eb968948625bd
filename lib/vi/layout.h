// SPDX-License-Identifier: Apache-2.0
// layout.h - the packet area of a stack as it lies in shared memory: frames, their owners, its VIs.
//
// One memfd for each stack that has a VI, mapped by every process of the family and by the keeper:
//
//   0          header    pstn_area, with a pstn_vi for each interface
//   owner_off  uint8_t   owner[frame_count]
//   free_off   uint32_t  free[frame_count]    a stack of numbers; the first free_count count
//   frames_off frames    frame_count of PSTN_FRAME_BYTES, from a page boundary on
//
// The frames are the UMEM of the stack's AF_XDP sockets; nothing before them is, so the kernel is
// never told of memory that is not a packet's. All is written under the engine's lock, but for
// what a driver writes into frames that are its own. A process may die at any instruction: what
// the next holder of the lock can't see in a ring, the owner table and the intents tell it
// (packet_area.h, Reclaim).
#pragma once
#include <cstdint>

#include "abi/postern_abi.h"

namespace postern {

inline constexpr uint32_t kAreaMagic = 0x61726561u;  // "area"
inline constexpr uint32_t kAreaVersion = 1;
inline constexpr uint32_t kFrameBytes = 2048;
inline constexpr uint32_t kFrameShift = 11;
inline constexpr uint32_t kAreaVis = 8;           // interfaces of one stack
inline constexpr uint32_t kViQueues = 32;         // queues of one interface
inline constexpr uint32_t kFramesMax = 1u << 20;  // 2 GiB

// owner[]: the low half says what the frame is used for, the high half which VI has it (only for
// the kernel's).
enum FrameUse : uint8_t {
  kFrameFree = 0,     // in free[]
  kFrameRx = 1,       // received; the engine looks at it within the call
  kFrameKept = 2,     // received; the engine has entered it somewhere (out of order)
  kFrameTx = 3,       // taken to be written
  kFrameFill = 4,     // the VI's: to be received into, or received and not fetched
  kFrameSending = 5,  // the VI's: to be sent, or sent and not fetched
};
inline constexpr uint8_t FrameOwner(FrameUse use, uint32_t vi) {
  return static_cast<uint8_t>(use | vi << 4);
}
inline constexpr FrameUse UseOf(uint8_t owner) { return static_cast<FrameUse>(owner & 15u); }
inline constexpr uint32_t ViOf(uint8_t owner) { return owner >> 4; }

// What is about to be published in a ring: its slots from `pos` on name the frames already. `count`
// is 0 outside of the call. (o)
struct pstn_vi_intent {
  uint32_t pos;
  uint32_t count;
};

// One line for each queue. (o)
struct alignas(64) pstn_vi_queue {
  pstn_vi_intent fill;
  pstn_vi_intent tx;
  uint64_t bad_descriptors;  // named no frame of ours; dropped
  uint64_t zero[5];
};
static_assert(sizeof(pstn_vi_queue) == 64);

struct pstn_vi_counters {
  uint64_t rx_frames, rx_bytes;
  uint64_t tx_frames, tx_bytes;
  uint64_t tx_full;  // Send() took less than it was given
  uint64_t kicks;    // system calls for the doorbell
  uint64_t kick_errors;
  uint64_t received_empty;  // Receive() found nothing
};
static_assert(sizeof(pstn_vi_counters) == 64);

inline constexpr uint32_t kViUnused = 0, kViUp = 1, kViDown = 2, kViLost = 3;

struct alignas(64) pstn_vi {
  uint32_t state;    // kVi*; (o)
  uint32_t ifindex;  // (c), like all up to mtu
  uint32_t queue_count;
  uint32_t fill_slots;  // a power of two, like the next three; for each queue
  uint32_t rx_slots;
  uint32_t tx_slots;
  uint32_t completion_slots;
  uint32_t caps;  // kCap*, vi.h
  uint8_t mac[6];
  uint8_t zero_mac[2];
  uint32_t mtu;               // of the interface, without its link-layer header; (o)
  uint32_t next_queue;        // whose turn it is in Receive(); (o)
  int32_t error;              // errno with which it was lost; (o)
  uint32_t taken;             // of a TAP (tap/tap_vi.h): how far we are behind its bell; (o)
  uint32_t misses;            // ... looks in a row that found nothing where the bell had rung; (o)
  uint32_t look;              // (a) ... 1: Receive() looks, whatever the bell says
  pstn_vi_counters counters;  // (o)
  pstn_vi_queue queue[kViQueues];
};
static_assert(sizeof(pstn_vi) == 64 + 64 + 64 * kViQueues);

struct alignas(64) pstn_area {
  uint32_t magic, version;  // (c), like all up to frames_off
  uint64_t size_bytes;
  pstn_uuid stack;
  uint32_t frame_count;
  uint32_t owner_off, free_off, frames_off;
  uint32_t free_count;  // (o)
  uint32_t zero[3];
  pstn_vi vi[kAreaVis];
};
static_assert(sizeof(pstn_area) == 64 + sizeof(pstn_vi) * kAreaVis);

}  // namespace postern
