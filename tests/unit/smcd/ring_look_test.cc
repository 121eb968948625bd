// ring_look_test.cc - looks at a ring without its lock, while another thread reads.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "ring_pair.h"
#include "../kit/single_step.h"
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

}  // namespace
}  // namespace postern
