// SPDX-License-Identifier: Apache-2.0
// host.h - what TCP needs of the world: a stream to send, a place for what it received, a wire.
//
// TCP itself does no I/O and knows no clock: simulator, packet scripts and engine are hosts.
// All calls happen under the lock of the connection's owner, from within a call to tcp.h.
#pragma once
#include <cstdint>

#include "tcp/segment/segment.h"
#include "tcp/sysctls.h"

namespace postern::tcp {

struct Tcb;
struct TxSeg;
struct RxSeg;

// GCC takes a scoped name for one that hides the flag of the header.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
enum class Event : uint8_t {
  kConnected,  // handshake is over, active or passive
  kFin,        // the peer will send no more: all it sent has been delivered
  kReset,      // the connection is gone for the reason `error` (ECONNRESET, ETIMEDOUT, ...)
  kSoftError,  // ICMP, not fatal: `error` is reported if the connection fails later
  kAllAcked,   // nothing is under way any more, our FIN included, if there was one
  kUrgent,     // tcb.rcv_up has moved
  kClosed,     // CLOSED: the Host may free the Tcb after the call returns; always the last one
};
#pragma GCC diagnostic pop

inline constexpr uint32_t kRowMax = 64;  // segments of a row (SegmentOut)

class Host {
 public:
  uint64_t now_ns = 0;  // CLOCK_MONOTONIC, one value for the whole of a call

  virtual uint64_t Random() = 0;
  // The host's settings; not virtual, as they are looked at for each segment.
  const Sysctls& sysctls() const { return *settings_; }
  // Of all connections together: whether one more challenge ACK may be sent (challenge.h).
  virtual bool MayChallenge() { return true; }

  // ---- the wire. False: no room now; TCP keeps what it wanted to say, and says it in the Output()
  // that the Host makes once there is room again. Nothing is counted as sent.
  // A row goes as a whole or not at all, and has at most row_max() segments.
  virtual bool Transmit(Tcb& tcb, const SegmentOut& segment) = 0;
  uint32_t row_max() const { return row_max_; }

  // ---- the program's stream, from its first byte that is not acknowledged on. Cursors stay valid
  // until what they point to has been released.
  virtual Cursor Begin(Tcb& tcb) = 0;  // the first byte not released
  // Bytes from `at` on that are there, counted up to `limit`.
  virtual uint32_t Available(Tcb& tcb, const Cursor& at, uint32_t limit) = 0;
  virtual Cursor Skip(Tcb& tcb, const Cursor& at, uint32_t bytes) = 0;
  virtual void Release(Tcb& tcb, uint32_t bytes) = 0;  // acknowledged
  // Whether the byte `ahead` bytes behind the first one not released is the last of a write that is
  // to go out with the next one (MSG_MORE). Asked only while the Host has kMoreOut in Tcb::flags.
  virtual bool MoreFollows(Tcb&, uint32_t /*ahead*/) { return false; }
  // The program will write no more: what Available() tells is all there will be.
  virtual bool Ended(Tcb& tcb) = 0;

  // ---- what was received, in order
  virtual uint32_t Room(Tcb& tcb) = 0;     // bytes that Deliver() would take; the window
  virtual uint32_t RoomMax(Tcb& tcb) = 0;  // the same if the program had read all
  // How many were taken. The first one's number is tcb.rcv_nxt, which moves afterwards.
  virtual uint32_t Deliver(Tcb& tcb, const uint8_t* data, uint32_t bytes) = 0;
  // The same of `bytes` of a run, `skip` behind its first one.
  virtual uint32_t DeliverRun(Tcb& tcb, const SegmentIn& run, uint32_t skip, uint32_t bytes) {
    return EachPart(run, skip, bytes,
                    [&](const uint8_t* data, uint32_t n) { return Deliver(tcb, data, n); });
  }
  virtual void Report(Tcb& tcb, Event event, int error) = 0;

  // ---- packets that wait for a hole to be filled. False: not to be kept (memory), it is dropped.
  virtual bool Keep(uint32_t packet) = 0;
  virtual void Drop(uint32_t packet) = 0;
  // `off` counts from what SegmentIn::data was.
  virtual const uint8_t* PacketAt(uint32_t packet, uint32_t off) = 0;

  // ---- tables of the segments under way. Indices; PSTN_NONE (~0) when there are none left.
  virtual uint32_t TakeTxSeg() = 0;
  virtual void GiveTxSeg(uint32_t idx) = 0;
  virtual TxSeg& TxSegAt(uint32_t idx) = 0;
  virtual uint32_t TakeRxSeg() = 0;
  virtual void GiveRxSeg(uint32_t idx) = 0;
  virtual RxSeg& RxSegAt(uint32_t idx) = 0;

 protected:
  ~Host() = default;
  const Sysctls* settings_ = &kSysctlsDefault;
  uint32_t row_max_ = 1;  // at most kRowMax
};

}  // namespace postern::tcp
