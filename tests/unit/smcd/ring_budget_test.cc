// ring_budget_test.cc - a writer whose program lets less be unread than a ring holds.
// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>
#include <vector>

#include "../kit/catch.h"
#include "ring_pair.h"
#include "smcd/ring.h"

namespace postern {
namespace {

constexpr size_t kMost = 1u << 20;

struct Budgeted {
  RingWorld world;
  ConnEnd tx = world.End(0), rx = world.End(1);
  std::vector<uint8_t> buffer = std::vector<uint8_t>(kMost);
  size_t unread = 0;

  Budgeted(uint32_t budget_bytes, uint32_t rcv_room_bytes) {
    StoreRelaxed(tx.ep->tx.budget, RingLines(budget_bytes));
    StoreRelaxed(rx.ctl().rcv_room, rcv_room_bytes);
  }
  size_t Write(size_t bytes, const RingLimits& limits = {}) {
    iovec iov = {buffer.data(), bytes};
    IovCursor from(&iov, 1);
    size_t n = RingWrite(tx, from, limits);
    if (n == 0) n = RingWrite(tx, from, limits, Growth::kNow);  // before it waits
    unread += n;
    return n;
  }
  size_t Fill(size_t piece, const RingLimits& limits = {}) {
    const size_t before = unread;
    while (Write(piece, limits) != 0) {
    }
    return unread - before;
  }
  size_t Read(size_t bytes) {
    iovec iov = {buffer.data(), bytes};
    IovCursor to(&iov, 1);
    const size_t n = RingRead(rx, &to, bytes, ReadMode::kTake).bytes;
    unread -= n;
    return n;
  }
};

}  // namespace

TEST_CASE("ring budget: no more is unread than both buffers hold, whatever is written at a time") {
  for (const uint32_t budget : {4608u, 20000u, 70000u, 200000u}) {
    for (const size_t piece : {size_t{1000}, size_t{16384}, size_t{300000}}) {
      CAPTURE(budget, piece);
      Budgeted s(budget, 65536);
      const size_t allowed = budget + 65536;
      const size_t least = allowed < 131072 ? 65536 - 1024 : allowed - allowed / 10;
      const RingLimits limits = {0, budget <= 65536 ? 1u : 2u};
      s.Fill(piece, limits);
      CHECK(s.unread <= allowed + 64);
      CHECK(s.unread >= least - piece * (piece == 1000));
      CHECK_FALSE(RingWritable(s.tx));
      CHECK_FALSE(RingGrowable(s.tx, limits));
    }
  }
}

TEST_CASE("ring budget: it follows the reader, over many rounds of the ring") {
  for (const size_t piece : {size_t{100}, size_t{1000}, size_t{5000}}) {
    CAPTURE(piece);
    Budgeted s(9000, 3000);
    s.Fill(piece, {0, 1});
    for (int round = 0; round < 2000; round++) {
      REQUIRE(s.unread <= 12000 + 64);
      const size_t read = s.Read(piece * 2);
      REQUIRE(read != 0);
      s.Fill(piece, {0, 1});
    }
    while (s.unread != 0) s.Read(kMost);
    CHECK(RingWritable(s.tx));
    CHECK(s.Fill(piece, {0, 1}) > 8000);
  }
}

// ReturnSpace tells a writer that waits when a sixteenth of the ring has come back.
TEST_CASE("ring budget: a reader that takes what blocks the writer returns enough to tell it") {
  for (const size_t piece : {size_t{1}, size_t{100}, size_t{3000}, size_t{7000}}) {
    CAPTURE(piece);
    Budgeted s(64, 64);  // the least: an eighth of the ring
    const RingLimits limits = {1, 1};
    for (int round = 0; round < 200; round++) {
      s.Fill(piece, limits);
      REQUIRE_FALSE(RingWritable(s.tx));
      s.rx.ep->rx.unreturned = 0;
      while (s.unread != 0) s.Read(kMost);
      REQUIRE(s.rx.ep->rx.unreturned >= PSTN_RING1_BYTES / 16);
      REQUIRE(RingWritable(s.tx));
    }
  }
}

TEST_CASE("ring budget: what is left in the ring before counts as well") {
  Budgeted s(100000, 65536);
  s.Fill(600, {1, 1});  // a ring of 64 KiB is full
  REQUIRE(s.unread > 50000);
  s.Fill(5000);
  CHECK(RingClass(s.tx.ep->tx.ring) == 2);
  CHECK(s.unread <= 165536);
  CHECK(s.unread >= 140000);
  s.Read(30000);
  CHECK(s.Fill(5000) <= 35000);
}

TEST_CASE("ring budget: it may be set, raised and taken away while data is under way") {
  Budgeted s(64, 64);
  StoreRelaxed(s.tx.ep->tx.budget, uint16_t{0});
  s.Fill(5000);
  REQUIRE(s.unread > 900000);
  StoreRelaxed(s.tx.ep->tx.budget, RingLines(200000));
  CHECK(s.Write(1) == 0);
  while (s.unread > 100000) s.Read(5000);
  CHECK(s.Write(1000) == 1000);
  s.Fill(1000);
  CHECK(s.unread < 210000);
  CHECK_FALSE(RingWritable(s.tx));
  StoreRelaxed(s.tx.ep->tx.budget, RingLines(500000));
  CHECK(RingWritable(s.tx));
  StoreRelaxed(s.tx.ep->tx.budget, uint16_t{0});
  CHECK(s.Fill(5000) > 500000);
}

}  // namespace postern
