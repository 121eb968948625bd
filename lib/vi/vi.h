// SPDX-License-Identifier: Apache-2.0
// vi.h - a virtual interface: frames in and out, without a system call in between.
//
// A VI is a pair of rings and two more that bring the frames back, over the frames of an Area:
//
//          Refill()                                      Receive()
//   free ------------> fill ring --> driver --> rx ring ------------> engine --> Area::Give()
//
//          Area::Take()        Send()                                     Completed()
//   free -------------> engine -------> tx ring --> driver --> completion ----------> Area::Give()
//
// The processes of a family use one VI by turns, under the engine's lock; each has an object of its
// own, which holds addresses and descriptors and nothing else: where the rings stand is read from
// the rings, and what has to be kept is in pstn_vi (layout.h). So the next holder goes on where the
// last holder left off, or died; after a death Recover() comes first, for each VI, then
// Area::ReclaimBegin() (packet_area.h). Pending() and Fd() need no lock.
//
// Every call is one look at a ring for as many frames as there are: give it a batch. docs/vi.md
// says how to add a back end.
#pragma once
#include "vi/layout.h"

namespace postern {

// ViRx::flags
inline constexpr uint16_t kRxMore = 1;          // the packet goes on in the next one
inline constexpr uint16_t kRxChecksumGood = 2;  // the driver has verified TCP's or UDP's

struct ViRx {
  uint32_t frame;
  uint16_t off;    // of the Ethernet header in the frame
  uint16_t bytes;  // without FCS
  uint16_t flags;
  uint16_t queue;  // it came by
  // In the first frame of a large packet of TCP, which stands for several that came in a row
  // (kCapLarge): how many bytes of payload each has but the last one, which has the rest. 0: it is
  // one. Flags and checksum are those of all together.
  uint16_t segment = 0;
};
static_assert(sizeof(ViRx) == 16);

// ViTx::flags
inline constexpr uint16_t kTxMore = 1;      // the packet goes on in the next one (kCapMultiBuffer)
inline constexpr uint16_t kTxChecksum = 2;  // only with kCapTxChecksum: TCP's or UDP's checksum
                                            // field holds the pseudo header's sum
struct ViTx {
  uint32_t frame;
  uint16_t off;
  uint16_t bytes;  // without FCS; what is shorter than Ethernet wants is filled up by the driver
  uint16_t flags;
  uint16_t queue;        // to go out by; modulo queue_count
  uint16_t segment = 0;  // as in ViRx: the driver, or its device, makes segments of it (kCapLarge)
  uint16_t l4_off = 0;   // with kTxChecksum: where TCP's or UDP's header begins, from `off` on
};
static_assert(sizeof(ViTx) == 16);

// pstn_vi::caps
inline constexpr uint32_t kCapRxChecksum = 1;  // packets come with kRxChecksumGood
// A sender of the same host may have left the checksum to a NIC that isn't there (veth, TAP): the
// field then holds the folded sum of the pseudo header, not inverted. Such a packet never was on a
// wire and is to be taken as good.
inline constexpr uint32_t kCapRxPartial = 2;
inline constexpr uint32_t kCapTxChecksum = 4;
inline constexpr uint32_t kCapMultiBuffer = 8;  // packets of more than one frame, both ways
inline constexpr uint32_t kCapZeroCopy = 16;    // for people to see
inline constexpr uint32_t kCapLarge = 32;       // large packets of TCP, of up to 64 KiB, both ways

enum class ViStatus : uint8_t {
  kOk,
  kBusy,  // the driver has no room now: what is in the tx ring goes out with a later Kick()
  kDown,  // the interface is down; the VI comes back with it
  kLost,  // the interface is gone, for good
};

inline constexpr uint32_t kViBatchMax = 64;  // what one call moves at most

class Vi {
 public:
  // MTU, MAC, ifindex, capabilities, state, counters: shared by all its users.
  virtual pstn_vi& shared() = 0;
  const pstn_vi& info() { return shared(); }

  // Up to `max` frames that have come (at most kViBatchMax); they are kFrameRx now, and go back by
  // Area::Give() or are kept by Area::Keep(). All parts of a packet or none.
  virtual uint32_t Receive(ViRx* rx, uint32_t max) = 0;
  // How many frames Refill() would take. It gets hungry only by Receive().
  virtual uint32_t RefillRoom() = 0;
  // Free frames out of Area::Take(), to be received into. Returns how many were taken, from the
  // first on.
  virtual uint32_t Refill(const uint32_t* frames, uint32_t count) = 0;

  // How many frames Send() would take on that queue, before Completed() at least.
  virtual uint32_t SendRoom(uint32_t queue) = 0;
  // Frames out of Area::Take(). Returns how many were taken, from the first on; they go out with
  // the next Kick(). All parts of a packet or none.
  virtual uint32_t Send(const ViTx* tx, uint32_t count) = 0;
  // Frames that have been sent; they are kFrameTx again, and go back by Area::Give() or into the
  // next Send().
  virtual uint32_t Completed(uint32_t* frames, uint32_t max) = 0;
  // The doorbell, after a batch of Send() and Refill(). Makes a system call only if the driver asks
  // to be woken.
  virtual ViStatus Kick() = 0;
  // The same as an answer to the question how it is: a system call, for when nothing has come for
  // long. (A VI whose interface is gone is silent.)
  virtual ViStatus Check() = 0;

  // Whether Receive() or Completed() would find something: a moment's answer, without the lock.
  virtual bool Pending() = 0;
  // Readable (poll, epoll) when Pending() has become true by a packet. -1: nothing to sleep on.
  virtual int Fd() = 0;
  // Before each sleep on Fd(), without the lock; then comes a last look at Pending(). What has made
  // Fd() readable before is forgotten. Fd() may be -1 afterwards: it is of no use any more.
  virtual void Arm() {}

  // After the lock came from a dead holder: settles what that one was about to publish.
  virtual void Recover() = 0;
  // Whether each frame in the rings is the VI's by the owner table, and in no place twice. For
  // tests, while the driver stands still. `seen`: see Area::Validate().
  virtual bool Validate(uint8_t* seen) = 0;

 protected:
  ~Vi() = default;
};

}  // namespace postern
