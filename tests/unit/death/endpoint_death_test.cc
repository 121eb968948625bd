// SPDX-License-Identifier: Apache-2.0
// endpoint_death_test.cc - a process dies between any two instructions of a socket's life: what it
// shared lives on for the others, all else is free.
#include "../kit/catch.h"
#include "family_world.h"
#include "peer/kernel_half.h"
#include "sock/socket.h"

namespace postern {
namespace {

int Socket(FamilyWorld& w) {
  const long fd = SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0);
  REQUIRE(fd >= 0);
  return static_cast<int>(fd);
}

TEST_CASE("endpoint death: a socket is made and closed") {
  FamilyWorld w;
  const StepResult r = w.Step(
      [&] {
        const int fd = static_cast<int>(SockSocket(w.fam(), AF_INET, SOCK_STREAM, 0));
        (void)SockClose(w.fam(), fd, FdEntry(w.fam(), fd));
      },
      [] { return nullptr; });
  CheckSteps(r, 500, 10);
}

TEST_CASE("endpoint death: numbers that share a socket, with the survivor and without") {
  const bool shared = GENERATE(false, true);
  FamilyWorld w;
  const int fd = Socket(w);
  const uint32_t entry = FdEntry(w.fam(), fd), idx = entry & PSTN_FD_IDX;
  if (shared) w.Hold(fd);
  constexpr int kFirst = 3000, kSecond = 3001;
  const StepResult r = w.Step(
      [&] {
        SockDup(w.fam(), entry, kFirst);
        (void)SockClose(w.fam(), fd, entry);
        SockDup(w.fam(), entry, kSecond);
        (void)SockClose(w.fam(), kFirst, entry);
        (void)SockClose(w.fam(), kSecond, entry);
      },
      [&]() -> const char* {
        if (!shared) return nullptr;
        if (w.Held() != entry) return "the survivor's number means nothing";
        pstn_ep& ep = w.s().eps.Own(EpIndex(idx));
        if (ep.state != PSTN_EP_NEW || RefsOf(ep).count() != 1)
          return "the survivor's socket is gone";
        w.CloseHeld();
        return ep.state == PSTN_EP_FREE ? nullptr : "the last close did not close";
      });
  CheckSteps(r, 1000, 10);
}

TEST_CASE("endpoint death: a listener stops, and goes") {
  FamilyWorld w;
  const int fd = Socket(w);
  const uint32_t entry = FdEntry(w.fam(), fd);
  const StepResult r = w.Step(
      [&] {
        (void)SockListen(w.fam(), fd, w.s().eps.Own(EpIndex(entry & PSTN_FD_IDX)), 5);
        (void)SockClose(w.fam(), fd, entry);
      },
      [] { return nullptr; });
  CheckSteps(r, 500, 10);
}

TEST_CASE("endpoint death: a socket becomes the kernel's") {
  FamilyWorld w;
  const int fd = Socket(w);
  w.Hold(fd);
  const uint32_t entry = FdEntry(w.fam(), fd);
  const StepResult r = w.Step(
      [&] {
        FallBack(w.fam(), fd, w.s().eps.Own(EpIndex(entry & PSTN_FD_IDX)), kReasonExported);
        (void)SockClose(w.fam(), fd, entry);
      },
      [&]() -> const char* {
        w.CloseHeld();
        return nullptr;
      });
  CheckSteps(r, 300, 10);
}

}  // namespace
}  // namespace postern
