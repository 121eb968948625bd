// hold_test.cc - bytes that are held back: not read before they are sent or their time has come.
// SPDX-License-Identifier: Apache-2.0
#include "smcd/hold.h"

#include <initializer_list>
#include <vector>

#include "../kit/catch.h"
#include "ring_pair.h"

namespace postern {
namespace {

constexpr size_t kMostHeld = 32768;
constexpr uint64_t kLater = uint64_t{1} << 62, kSeed = 5;

struct Holding {
  RingWorld world;
  ConnEnd tx = world.End(0), rx = world.End(1);
  uint64_t written = 0, sent = 0, read = 0;  // stream positions
  std::vector<uint8_t> buffer = std::vector<uint8_t>(1u << 17);

  // Writes what there is room for; `held`: as in ctl.held, 0: sent at once, with what is held back.
  size_t Write(size_t bytes, uint64_t held) {
    FillStream(buffer.data(), bytes, kSeed, written);
    iovec iov = {buffer.data(), bytes};
    IovCursor from(&iov, 1);
    from.held = held;
    const size_t n = RingWrite(tx, from, {}, Growth::kNow);
    written += n;
    if (held == 0 || n < bytes) Send();
    return n;
  }
  void Send() {
    (void)HoldRelease(tx);
    sent = written;
  }
  // The time comes, with no word from the writer.
  void Pass() {
    if (LoadRelaxed(tx.ctl().held) != 0) StoreRelaxed(tx.ctl().held, PSTN_HELD_OVER);
    sent = written;
  }
  size_t Read(size_t bytes) {
    iovec iov = {buffer.data(), bytes};
    IovCursor to(&iov, 1);
    const ReadResult r = RingRead(rx, &to, bytes, ReadMode::kTake);
    REQUIRE(r.status != ReadStatus::kViolation);
    REQUIRE(CheckStream(buffer.data(), r.bytes, kSeed, read) == r.bytes);
    read += r.bytes;
    REQUIRE(read <= sent);
    return r.bytes;
  }
  void ReadAll() {
    while (Read(buffer.size()) != 0) {
    }
    REQUIRE(read == sent);
  }
  size_t Held() const { return HeldBytes(tx); }
};

}  // namespace

TEST_CASE("hold: what is held back is not there for any look") {
  Holding s;
  s.Write(10, 0);
  s.Write(20, kLater);
  s.Write(30, kLater);
  CHECK(s.Held() == 50);
  CHECK(RingQueued(s.rx, 1000) == 10);
  s.ReadAll();
  CHECK_FALSE(RingReadable(s.rx));
  CHECK_FALSE(RingTell(s.rx));
  CHECK(PeersHoldEnds(s.rx) == kLater);
  s.Send();
  CHECK(s.Held() == 0);
  CHECK(RingQueued(s.rx, 1000) == 50);
  CHECK(PeersHoldEnds(s.rx) == UINT64_MAX);
  s.ReadAll();
  CHECK(s.read == 60);
}

TEST_CASE("hold: its time comes without the writer, which holds back anew behind it") {
  Holding s;
  s.Write(20, kLater);
  s.Pass();
  CHECK(RingReadable(s.rx));
  s.ReadAll();
  s.Send();  // the reader is past it
  s.Write(7, kLater);
  CHECK(s.Held() == 7);
  s.ReadAll();
  CHECK(s.read == 20);
  s.Send();
  s.ReadAll();
  CHECK(s.read == 27);
}

TEST_CASE("hold: after a reset it is never there") {
  Holding s;
  s.Write(10, 0);
  s.Write(20, kLater);
  HoldDrop(s.tx);
  CHECK(RingQueued(s.rx, 1000) == 10);
  CHECK(s.Held() == 0);
  CHECK(PeersHoldEnds(s.rx) == UINT64_MAX);
}

TEST_CASE("hold: the reader's own data end it, but for TCP_CORK") {
  for (const bool cork : {false, true}) {
    Holding s;
    uint64_t counters[PSTN_COUNTERS] = {};
    Bells bells = {-1, -1, counters};
    s.Write(20, kLater);
    if (cork) HoldByCork(s.tx);
    EndPeersHold(bells, s.rx);
    CHECK(RingReadable(s.rx) == !cork);
    CHECK(s.Held() == (cork ? 20u : 0u));
  }
}

TEST_CASE(
    "hold: any order of writes, sends, passed times and reads, over rings that wrap and grow") {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    CAPTURE(seed);
    Holding s;
    TestRandom r(seed);
    for (int step = 0; step < 400; step++) {
      switch (r.Below(8)) {
        case 0:
        case 1:
        case 2:
          if (s.Held() < kMostHeld) s.Write(r.Size(9000), kLater);
          break;
        case 3:
          s.Write(r.Size(40000), 0);
          break;
        case 4:
          s.Send();
          break;
        case 5:
          // As the program's calls: the writer comes by before it adds anything.
          s.Pass();
          if (r.Below(2) == 0) s.Read(r.Size(50000));
          s.Send();
          break;
        case 6:
          s.Read(r.Size(3000));
          break;
        default:
          s.ReadAll();
      }
      if (r.Below(16) == 0) (void)RingDetach(s.tx, Pages::kKeep);
    }
    s.Send();
    s.ReadAll();
  }
}

TEST_CASE(
    "hold: the reader passes in the middle of a write, which then overwrites no other record") {
  for (uint64_t seed = 1; seed <= 200; seed++) {
    CAPTURE(seed);
    Holding s;
    TestRandom r(seed);
    for (int step = 0; step < 300; step++) {
      s.Write(r.Size(2000), kLater);
      s.Pass();  // and the writer has not seen it yet
      s.ReadAll();
      for (size_t n = r.Below(4); n != 0; n--) {
        s.Write(r.Size(3000), kLater);
        s.sent = s.written;  // they may follow what is over
        s.Read(r.Size(5000));
      }
      s.Send();
      if (r.Below(2) == 0) s.ReadAll();
    }
    s.ReadAll();
  }
}

}  // namespace postern
