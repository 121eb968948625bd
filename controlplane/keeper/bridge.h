// SPDX-License-Identifier: Apache-2.0
// bridge.h - carries bytes between a ring and a kernel socket, or between two rings, both ways,
// until both directions end.
//
// Non-blocking and edge-triggered: the thread that is told of an event calls Pump(). An end is
// passed on as it came: FIN as shutdown, a reset as a reset; an urgent byte is an urgent byte on
// the other side. What one side does not take yet is kept here, and until it has been taken, no
// more is read from the other side: back-pressure goes through.
#pragma once
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace postern::keeper {

class Bridge {
 public:
  struct End {
    int fd;
    bool is_ring;  // an accelerated endpoint of this process
  };
  // Takes both descriptors.
  Bridge(End first, End second);
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
  bool Step(Flow& flow, End from, End to, bool* busy);
  static long Read(End from, void* to, size_t bytes);
  static long Write(End to, const void* from, size_t bytes, int flags);
  static bool AtMark(End end);
  static bool IsReset(End end);
  static void ShutWrite(End end);
  static void SetOption(End end, int level, int name, const void* value, socklen_t len);

  End first_, second_;
  Flow out_, in_;  // first -> second, second -> first
  bool reset_ = false;
};

}  // namespace postern::keeper
