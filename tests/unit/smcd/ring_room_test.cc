// ring_room_test.cc - room that was made in a ring is there: what is promised is written whole.
// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>
#include <random>
#include <vector>

#include "../kit/catch.h"
#include "ring_pair.h"
#include "smcd/ring.h"

namespace postern {
namespace {

constexpr size_t kMost = 1u << 20;

struct Promised {
  RingWorld world;
  ConnEnd tx = world.End(0), rx = world.End(1);
  std::vector<uint8_t> buffer = std::vector<uint8_t>(kMost);
  RingLimits limits;

  size_t Write(size_t bytes, bool promised) {
    iovec iov = {buffer.data(), bytes};
    IovCursor from(&iov, 1);
    from.promised = promised;
    return RingWrite(tx, from, limits);
  }
  size_t Read(size_t bytes) {
    iovec iov = {buffer.data(), bytes};
    IovCursor to(&iov, 1);
    return RingRead(rx, &to, bytes, ReadMode::kTake).bytes;
  }
};

}  // namespace

TEST_CASE("ring room: what it says is taken, in one record or two, whatever was before") {
  const uint32_t largest = GENERATE(0u, 1u, 2u);
  const uint32_t budget = GENERATE(0u, 1u, 3000u, 100000u);
  CAPTURE(largest, budget);
  Promised s;
  s.limits = {0, largest};
  if (budget != 0) {
    StoreRelaxed(s.tx.ep->tx.budget, RingLines(budget));
    StoreRelaxed(s.rx.ctl().rcv_room, budget);
  }
  std::mt19937 random(largest * 7 + budget);
  const auto any = [&random](size_t most) { return random() % (most + 1); };
  size_t unread = 0, promises = 0;
  for (int round = 0; round < 60000; ++round) {
    const size_t scale = size_t{1} << any(17);
    if (any(2) == 0) unread += s.Write(any(scale), false);
    if (any(1) == 0) unread -= s.Read(1 + any(scale));
    if (any(5) == 0) unread -= s.Read(kMost);
    const size_t room = RingMakeRoom(s.tx, s.limits, 1 + any(scale));
    // A writer that waits until the ring is writable does not find it full.
    if (room == 0) REQUIRE(!RingWritable(s.tx));
    if (room == 0) continue;
    const size_t first = any(room);
    size_t took = first != 0 ? s.Write(first, true) : 0;
    if (first != room) took += s.Write(room - first, true);
    REQUIRE(took == room);
    unread += took;
    ++promises;
  }
  CHECK(promises > 10000);
  for (size_t n = 1; n != 0; unread -= n) n = s.Read(kMost);
  CHECK(unread == 0);
}

TEST_CASE("ring room: none is made by a reader's word alone") {
  Promised s;
  s.limits = {0, 0};
  for (const size_t ahead : {size_t{900}, size_t{0}}) {  // it has begun to read this ring
    while (s.Write(300, false) != 0) {
    }
    if (ahead != 0) CHECK(s.Read(ahead) == ahead);
  }
  CHECK(RingMakeRoom(s.tx, s.limits, 100) == 0);
  const uint64_t honest = LoadRelaxed(s.rx.pos().read);
  StoreRelaxed(s.rx.pos().read, honest | 63);  // no line
  CHECK(RingMakeRoom(s.tx, s.limits, 100) == 0);
  // What it takes back afterwards stays the writer's.
  StoreRelaxed(s.rx.pos().read, honest + 2048);
  const size_t room = RingMakeRoom(s.tx, s.limits, 400);
  CHECK(room == 400);
  StoreRelaxed(s.rx.pos().read, honest);
  CHECK(s.Write(room, true) == room);
}

}  // namespace postern
