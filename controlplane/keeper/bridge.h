// SPDX-License-Identifier: Apache-2.0
// bridge.h - carries bytes between a ring and a kernel socket, both ways, until both directions
// end.
//
// Non-blocking and edge-triggered: the thread that is told of an event calls Pump(). An end is
// passed on as it came: FIN as shutdown, a reset as a reset; an urgent byte is an urgent byte on
// the other side. What one side does not take yet is kept here, and until it has been taken, no
// more is read from the other side: back-pressure goes through.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace postern::keeper {

class Bridge {
 public:
  // Takes both descriptors; ring_fd is an accelerated endpoint of this process.
  Bridge(int ring_fd, int kernel_fd);
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  enum class State : uint8_t {
    kWaiting,  // until the next event
    kBusy,     // there may be more to do at once; others get their turn first
    kDone      // both directions have ended
  };
  State Pump();

 private:
  // One direction: what has been read and not been written, and how far its end has come.
  struct Flow {
    std::vector<uint8_t> held;
    size_t at = 0;        // held bytes before here are written
    bool urgent = false;  // what is held is the urgent byte
    bool ended = false;   // no more will be read
    bool closed = false;  // ... and the other side has been told
  };
  bool Step(Flow& flow, bool from_ring, bool* busy);
  long Read(bool from_ring, void* to, size_t bytes);
  long Write(bool to_ring, const void* from, size_t bytes, int flags);
  bool AtMark(bool ring);
  void ShutWrite(bool ring);

  int ring_fd_, kernel_fd_;
  Flow out_, in_;  // ring -> kernel, kernel -> ring
  bool reset_ = false;
};

}  // namespace postern::keeper
