// ring_look_test.cc - looks at a ring without its lock, while another thread reads.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "../kit/single_step.h"
#include "ring_pair.h"
#include "smcd/ring.h"

namespace postern {
namespace {

constexpr RingLimits kMayGrow = {0, 1};
constexpr uint64_t kLookSeed = 5;
// The first ring is filled, so that what follows is in the second.
constexpr size_t kOfFirst = 3 * PSTN_RING0_BYTES / 4, kWritten = 3 * PSTN_RING0_BYTES;

class MovingRing {
 public:
  MovingRing() : buffer_(kWritten) {
    FillStream(buffer_.data(), kWritten, kLookSeed, 0);
    Write(kOfFirst);
    Write(kWritten - kOfFirst);
  }
  void Write(size_t bytes) {
    const iovec iov = {buffer_.data() + written_, bytes};
    IovCursor from(&iov, 1);
    written_ += RingWrite(world.End(0), from, kMayGrow, Growth::kNow);
    REQUIRE(from.left() == 0);
  }
  void Read(size_t bytes) {
    const iovec iov = {buffer_.data(), bytes};
    IovCursor to(&iov, 1);
    REQUIRE(RingRead(world.End(1), &to, bytes, ReadMode::kTake).bytes == bytes);
  }
  RingWorld world;

 private:
  std::vector<uint8_t> buffer_;
  size_t written_ = 0;
};

struct Answer {
  uint32_t readable;
  size_t queued;
};

// At each instruction of a look, the reader goes over to the next ring, and leaves one byte there.
TEST_CASE("ring: a look without the lock finds what is left when the reader goes to another ring") {
  bool skipped = false;
  uint32_t steps = 0;
  for (bool ended = false; !ended; steps += StepsApart(7)) {
    MovingRing ring;
    SharedPage<Answer> answer;
    const ConnEnd end = ring.world.End(1);
    ended = !BetweenInstructions(
        steps,
        [&] {
          answer->readable = RingReadable(end) ? 1 : 0;
          answer->queued = RingQueued(end, 1);
        },
        [&] { ring.Read(kWritten - 1); }, skipped);
    if (skipped) {
      WARN("skipped: a child can't be stepped through here");
      return;
    }
    INFO("the reader has read after " << steps << " instructions of the look");
    if (answer->readable != 1 || answer->queued < 1) {
      FAIL("nothing found: readable " << answer->readable << ", queued " << answer->queued);
    }
  }
  CHECK(steps > 100);
}

// A small record each time, so that the reader wraps early and comes to the same place again.
class SmallRecords {
 public:
  void Write() {
    const iovec iov = {byte_, 1};
    IovCursor from(&iov, 1);
    const ConnEnd e = world.End(0);
    Guard g(e.ep->tx.lock);
    REQUIRE(RingWrite(e, from, kMayGrow) == 1);
  }
  size_t Read(ReadMode mode = ReadMode::kTake) {
    const iovec iov = {byte_, 1};
    IovCursor to(&iov, 1);
    const ConnEnd e = world.End(1);
    Guard g(e.ep->rx.lock);
    return RingRead(e, &to, 1, mode).bytes;
  }
  bool Tell() { return RingTell(world.End(1)); }
  bool TakenBack() {
    const ConnEnd e = world.End(1);
    Guard g(e.ep->rx.lock);
    return RingTakenBack(e);
  }
  RingWorld world;

 private:
  uint8_t byte_[1] = {'x'};
};

TEST_CASE("ring: an honest writer takes nothing back that a look has found") {
  SmallRecords ring;
  CHECK_FALSE(ring.Tell());
  CHECK_FALSE(ring.TakenBack());
  for (int i = 0; i < 1000; i++) {
    ring.Write();
    CHECK(ring.Tell());
    CHECK(ring.Read(ReadMode::kPeek) == 1);
    CHECK_FALSE(ring.TakenBack());
    CHECK(ring.Read() == 1);
    CHECK_FALSE(ring.TakenBack());
    CHECK_FALSE(ring.Tell());
    CHECK_FALSE(ring.TakenBack());
  }
}

TEST_CASE("ring: a record that a look has found and that is gone without a read is taken back") {
  SmallRecords ring;
  ring.Write();
  REQUIRE(ring.Read() == 1);
  ring.Write();
  REQUIRE(ring.Tell());
  const ConnEnd e = ring.world.End(0);
  memset(RingAt(ring.world.lgr(), 0, LoadRelaxed(e.ctl().ring)).base, 0, PSTN_RING0_BYTES);
  CHECK(ring.TakenBack());
}

}  // namespace
}  // namespace postern
