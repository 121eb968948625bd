// SPDX-License-Identifier: Apache-2.0
// call_death_test.cc - a process dies between any two instructions of a call whose number is closed
// meanwhile: what the call held goes with it.
#include "../kit/catch.h"
#include "family_world.h"
#include "sock/socket.h"

namespace postern {
namespace {

TEST_CASE("call death: a number is closed under a call, which ends what it meant") {
  const bool shared = GENERATE(false, true), pins = GENERATE(false, true);
  FamilyWorld w;
  const int fd = static_cast<int>(SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0));
  REQUIRE(fd >= 0);
  const uint32_t entry = FdEntry(w.fam(), fd), idx = entry & PSTN_FD_IDX;
  if (shared) w.Hold(fd);
  const StepResult r = w.Step(
      [&] {
        Call call(w.fam(), fd);
        if (pins) (void)call.Pin();
        (void)SockClose(w.fam(), fd, entry);
        const Call again(w.fam(), call.fd(), call);
        if (!call.moved() || call.ep() == nullptr) _exit(1);
      },
      [&]() -> const char* {
        if (!shared) return nullptr;
        pstn_ep& ep = w.s().eps.Own(EpIndex(idx));
        if (w.Held() != entry || ep.state != PSTN_EP_NEW || RefsOf(ep).count() != 1)
          return "the survivor's socket is gone";
        w.CloseHeld();
        return ep.state == PSTN_EP_FREE ? nullptr : "the last close did not close";
      });
  CheckSteps(r, 1000, 20);
}

}  // namespace
}  // namespace postern
