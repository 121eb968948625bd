// send_race_test.cc - a send() in one thread, shutdown() in another.
// SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>

#include <cerrno>

#include "endpoint/call.h"
#include "family/family.h"
#include "ring_pair.h"
#include "../kit/single_step.h"
#include "sock/own_family.h"
#include "sock/socket.h"
#include "stream/stream.h"

namespace postern {
namespace {

constexpr uint32_t kInstructions = 100;  // a send() has more

// The stack of RingWorld as this process's family.
class FamilyOfRings {
 public:
  FamilyOfRings() : before_(g_family.view) {
    g_family.view = {};
    g_family.view.s = &world.stack();
    for (uint32_t side = 0; side < 2; side++) {
      const uint32_t idx = world.stack().lgrs.IndexOf(world.ref(side)).word();
      g_family.view.lgr[idx] = world.lgr();
      g_family.view.lgr_id[idx] = world.ref(side).id;
    }
  }
  ~FamilyOfRings() { g_family.view = before_; }
  FamilyOfRings(const FamilyOfRings&) = delete;
  FamilyOfRings& operator=(const FamilyOfRings&) = delete;
  RingWorld world;

 private:
  const StackView before_;
};

// What the peer has got when it finds the end of the stream.
size_t ReadToEnd(const ConnEnd& end) {
  uint8_t bytes[64];
  const iovec iov = {bytes, sizeof bytes};
  IovCursor to(&iov, 1);
  return RingRead(end, &to, sizeof bytes, ReadMode::kTake).bytes;
}

TEST_CASE("send: nothing follows the FIN of another thread's shutdown()") {
  bool skipped = false;
  uint32_t steps = 0, ends = 0;
  for (bool ended = false; !ended; steps += StepsApart(11)) {
    FamilyOfRings family;
    SharedPage<long> sent;
    *sent = 0;
    pstn_ep& ep = *family.world.End(0).ep;
    const ConnEnd peer = family.world.End(1);
    size_t got = 0;
    bool shut = false;
    ended = !BetweenInstructions(
        steps,
        [&] {
          Call call(g_family, ep);
          char byte = 'x';
          const iovec iov = {&byte, 1};
          *sent = StreamSend(g_family, call, &iov, 1, MSG_DONTWAIT, 0);
        },
        [&] {
          if (ep.tx.lock.word != 0) return;  // shutdown() would wait
          shut = SockShutdown(g_family, -1, ep, SHUT_WR) == 0;
          got = ReadToEnd(peer);
        },
        skipped);
    if (skipped) {
      WARN("skipped: a child can't be stepped through here");
      return;
    }
    if (ended || !shut) continue;
    ends++;
    INFO("shut down after " << steps << " instructions of the send");
    if (RingReadable(peer)) FAIL("bytes behind the end of the stream");
    if (*sent != (got != 0 ? 1 : -EPIPE)) FAIL("send() returned " << *sent << ", got " << got);
  }
  CHECK(ends > kInstructions / StepsApart(11));
}

}  // namespace
}  // namespace postern
