// SPDX-License-Identifier: Apache-2.0
// ring_window_test.cc - what a receiver may promise of a ring: it is taken, it is hardly more than
// the reader's program has asked for, and the reader tells when it opens again.
#include "smcd/ring_ahead.h"

#include <algorithm>
#include <initializer_list>
#include <random>
#include <vector>

#include "../kit/catch.h"
#include "ring_pair.h"
#include "smcd/notify.h"

namespace postern {
namespace {

constexpr uint32_t kPiece = 1448;

struct Window {
  RingWorld world;
  ConnEnd tx = world.End(0), rx = world.End(1);
  std::vector<uint8_t> buffer = std::vector<uint8_t>(1u << 20);
  Bells bells;
  size_t unread = 0;

  RingLimits Limits() const { return RingLimitsFor(tx, RingLimits{}); }
  uint32_t Room() {
    Lock(tx.ep->tx.lock);
    const uint32_t room = RingRoom(tx, Limits(), kPiece);
    Unlock(tx.ep->tx.lock);
    return room;
  }
  // As segments come: `bytes` in pieces.
  size_t Write(size_t bytes) {
    size_t took = 0;
    while (took < bytes) {
      iovec iov = {buffer.data(), std::min<size_t>(bytes - took, kPiece)};
      IovCursor from(&iov, 1);
      Lock(tx.ep->tx.lock);
      const size_t n = RingWrite(tx, from, Limits(), Growth::kNow);
      Unlock(tx.ep->tx.lock);
      if (n == 0) break;
      took += n;
    }
    unread += took;
    return took;
  }
  // Whether the writer was told of the space.
  bool Read(size_t most) {
    FetchOr(tx.ctl().tx_wait, PSTN_TXW_POST);
    iovec iov = {buffer.data(), most};
    IovCursor to(&iov, 1);
    Lock(rx.ep->rx.lock);
    unread -= RingRead(rx, &to, most, ReadMode::kTake).bytes;
    ReturnSpace(bells, rx);
    Unlock(rx.ep->rx.lock);
    return LoadRelaxed(tx.ctl().tx_wait) == 0;
  }
};

}  // namespace

TEST_CASE("ring window: what is promised is taken, and hardly more than its program wants") {
  const uint32_t rcvbuf = GENERATE(0u, 2304u, 9000u, 40000u, 120000u, 400000u);
  CAPTURE(rcvbuf);
  Window s;
  StoreRelaxed(s.rx.ctl().rcv_room, rcvbuf);
  const uint32_t most = RingRoomMax(s.tx, s.Limits(), kPiece);
  if (rcvbuf != 0) {
    CHECK(most <= std::max(RingPayloadFor(rcvbuf), 8192u) * 2);
    CHECK(most >= std::min(RingPayloadFor(rcvbuf), 1u << 18) / 2);
  }
  std::mt19937 random(rcvbuf);
  size_t largest = 0;
  for (int round = 0; round < 20000; ++round) {
    const uint32_t room = s.Room();
    REQUIRE(room <= most);
    const size_t wanted = random() % 3 == 0 ? room : random() % (room + 1);
    REQUIRE(s.Write(wanted) == wanted);
    largest = std::max(largest, s.unread);
    if (random() % 2 == 0) (void)s.Read(1 + random() % (s.unread + 1));
    if (random() % 8 == 0) (void)s.Read(s.buffer.size());
  }
  // A ring that is left for a larger one is not counted.
  if (rcvbuf != 0) CHECK(largest <= most + PSTN_RING1_BYTES);
  CHECK(largest >= most / 2);
}

TEST_CASE("ring window: a reader that has taken a whole window tells of it, and it is open again") {
  const uint32_t rcvbuf = GENERATE(1u, 2304u, 9000u, 40000u, 400000u);
  CAPTURE(rcvbuf);
  Window s;
  StoreRelaxed(s.rx.ctl().rcv_room, rcvbuf);
  for (int round = 0; round < 2000; ++round) {
    const uint32_t room = s.Room();
    CAPTURE(round, room);
    REQUIRE(room >= kPiece);
    REQUIRE(s.Write(room) == room);
    REQUIRE(s.Room() < kPiece + PSTN_RING0_BYTES);  // what lies in a ring before is not counted
    bool told = false;
    while (s.unread != 0) told = s.Read(1000) || told;
    REQUIRE(told);
    REQUIRE(s.Room() >= RingRoomMax(s.tx, s.Limits(), kPiece) / 2);
  }
}

}  // namespace postern
