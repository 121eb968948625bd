// SPDX-License-Identifier: Apache-2.0
// apps.h - the programs of the simulator: one kind of end, whose settings make all of them.
//
// Every byte is known from its position and the direction's seed, so a reader checks each one and
// nobody has to remember what was sent. What an end may write is gated by what it has read:
//
//   kFree       writes all it has (bulk)
//   kEcho       as much as it has read
//   kRequest    a request, then the next one when the answer is complete
//   kAnswer     an answer for each complete request
//   kAfterFin   nothing before the peer has ended (half close)
#pragma once
#include <array>

#include "world.h"

namespace postern::sim {

enum class Gate { kFree, kEcho, kRequest, kAnswer, kAfterFin };

struct AppSettings {
  Gate gate = Gate::kFree;
  uint64_t write_total = 0;
  uint64_t read_total = 0;                       // has to be met exactly
  uint32_t ask_bytes = 1, answer_bytes = 1;      // kRequest, kAnswer: sizes of the two
  uint32_t write_max = 65536, read_max = 65536;  // each call is of a random size up to this
  uint64_t read_pause_ns = 0;                    // after each read: a random time up to this
  uint64_t read_begin_ns = 0;   // nothing is read before so long after the connection was made
  uint64_t write_pause_ns = 0;  // after each write
  uint64_t seed = 0;       // of what it writes; what it reads has seed + 1, and the peer's reverse
  bool is_second = false;  // writes with seed + 1
  bool resets = false;     // reads no more than read_total, then Close(), whatever is still to come
  bool keeps_open = false;  // never ends
  bool may_fail = false;    // an error is no failure
  bool unchecked = false;   // zeros, that nobody looks at: for measurements
};

class StreamApp final : public App {
 public:
  StreamApp(const AppSettings& settings, uint64_t seed) : s_(settings), random_(seed) {}
  void Run(SimHost& host, SimConn& conn) override;
  std::string Missing(const SimConn& conn) const override;

  uint64_t read_bytes() const { return read_; }
  uint64_t done_ns() const { return done_ns_; }  // all was read; 0: not yet
  uint64_t connected_ns() const { return connected_ns_; }

 private:
  void ReadSome(SimHost& host, SimConn& conn);
  void WriteSome(SimHost& host, SimConn& conn);
  uint64_t Allowed(const SimConn& conn) const;

  AppSettings s_;
  TestRandom random_;
  uint64_t read_ = 0, written_ = 0;
  uint64_t read_not_before_ns_ = 0, write_not_before_ns_ = 0;
  uint64_t connected_ns_ = 0, done_ns_ = 0;
  bool ended_ = false, closed_ = false;
  std::string wrong_;
};

}  // namespace postern::sim
