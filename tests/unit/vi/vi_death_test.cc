// vi_death_test.cc - a process dies between any two instructions while it has the VI: no frame is
// lost, none is in two places, and a process that takes over can go on.
// SPDX-License-Identifier: Apache-2.0
//
// A child works on a shared test wire and is executed one instruction at a time (ptrace). At each
// of them its memory is what it would leave behind if it died there: a copy is recovered and
// checked. Only the driver's half (Kick()) is left out, since that one is the kernel, and does not
// die. (Between two system calls of a copying driver a frame is in no ring.)
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../kit/catch.h"
#include "base/atomic.h"
#include "vi_world.h"

namespace postern {
namespace {

constexpr uint32_t kKeptMax = 4;

// Beside the wire: a queue of the engine's that names frames.
struct Engine {
  uint32_t in_driver;
  uint32_t kept_count;
  uint32_t kept[kKeptMax];
};

void Drive(ViWorld& w, Engine& e, int side) {
  StoreRelease(e.in_driver, 1u);
  w.vi[side]->Kick();
  StoreRelease(e.in_driver, 0u);
}

// One turn of an engine: receives, keeps one, sends, gives back, refills.
void Turn(ViWorld& w, Engine& e) {
  Area& area = w.area[0];
  ViRx rx[8];
  const uint32_t n = w.vi[0]->Receive(rx, 8);
  for (uint32_t i = 0; i < n; i++) {
    if (i == 0 && e.kept_count < kKeptMax && area.Keep(rx[i].frame)) {
      StoreRelaxed(e.kept[e.kept_count], rx[i].frame);
      StoreRelease(e.kept_count, e.kept_count + 1);
    } else {
      area.Give(rx[i].frame);
    }
  }
  if (e.kept_count == kKeptMax) {
    const uint32_t frame = e.kept[kKeptMax - 1];
    StoreRelease(e.kept_count, kKeptMax - 1);
    area.Give(frame);
  }
  uint32_t frames[8];
  const uint32_t taken = area.Take(frames, 3);
  ViTx tx[3];
  for (uint32_t i = 0; i < taken; i++)
    tx[i] = {frames[i], 0, 60, i == 0 ? kTxMore : uint16_t{0}, 0};
  const uint32_t sent = w.vi[0]->Send(tx, taken);
  area.Give(frames + sent, taken - sent);
  Drive(w, e, 0);
  const uint32_t done = w.vi[0]->Completed(frames, 8);
  area.Give(frames, done);
  const uint32_t food = area.Take(frames, 5);
  const uint32_t eaten = w.vi[0]->Refill(frames, food);
  area.Give(frames + eaten, food - eaten);
}

// What the peer does is done by the driver, as far as the child is concerned.
void Peer(ViWorld& w, Engine& e) {
  StoreRelease(e.in_driver, 1u);
  (void)w.Drain(1);
  for (int i = 0; i < 4; i++) (void)w.Send(1, std::string(100, 'x'));
  w.vi[1]->Kick();
  w.Collect(1);
  w.Feed(1, 8);
  StoreRelease(e.in_driver, 0u);
}

// Null, or what is wrong after somebody has taken over.
const char* TakeOver(ViWorld& w, Engine& e) {
  Area& area = w.area[0];
  w.vi[0]->Recover();
  area.ReclaimBegin();
  uint32_t kept = 0;
  for (uint32_t i = 0; i < e.kept_count; i++) {
    if (area.Claim(e.kept[i])) e.kept[kept++] = e.kept[i];
  }
  e.kept_count = kept;
  area.ReclaimEnd();
  if (const char* wrong = w.Wrong(0); wrong != nullptr) return wrong;
  uint32_t held = 0;
  for (uint32_t f = 0; f < area.frame_count(); f++) {
    if (const FrameUse use = area.UseAt(f); use == kFrameRx || use == kFrameTx) return "in hands";
    held += area.UseAt(f) == kFrameKept ? 1u : 0u;
  }
  return held == kept ? nullptr : "kept by nobody";
}

struct Shared {
  Shared()
      : at(static_cast<Engine*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Shared() { munmap(at, 4096); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  Engine* const at;
};

#if defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kDeathStride = 67;  // they make ten instructions of one
#else
constexpr uint32_t kDeathStride = 1;
#endif

// ThreadSanitizer's runtime takes the traps for signals, and has nothing to find: there is one
// thread.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("vi: who takes over after a death at any instruction finds every frame") {
  ViWorld w(32);
  const Shared shared;
  Engine& engine = *shared.at;
  w.Feed(0, 8);
  w.Feed(1, 8);
  ViWorld copy(w);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
    raise(SIGSTOP);
    for (int i = 0; i < 6; i++) {
      Peer(w, engine);
      Turn(w, engine);
    }
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) {
    WARN("skipped: a child can't be traced here");
    return;
  }
  uint32_t steps = 0, checked = 0;
  const char* wrong = nullptr;
  while (wrong == nullptr) {
    const bool skip = LoadAcquire(engine.in_driver) != 0;
    if (!skip && steps++ % kDeathStride == 0) {
      Engine then = engine;
      copy.CopyFrom(w);
      wrong = TakeOver(copy, then);
      checked++;
      if (wrong != nullptr) break;
      // It can go on: another turn, and another death.
      Turn(copy, then);
      if (wrong = TakeOver(copy, then); wrong != nullptr) break;
    }
    REQUIRE(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0);
    REQUIRE(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) break;
    if (WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP) FAIL("stopped by a signal");
  }
  INFO("after " << steps << " instructions");
  if (wrong != nullptr) kill(child, SIGKILL);
  CHECK(wrong == nullptr);
  CHECK(WIFEXITED(status));
  CHECK(checked > 500);
}

#endif

TEST_CASE("vi: a death while taking over costs nothing") {
  ViWorld w(32);
  Engine engine{};
  w.Feed(0, 8);
  w.Feed(1, 8);
  for (int i = 0; i < 3; i++) {
    Peer(w, engine);
    Turn(w, engine);
  }
  REQUIRE(engine.kept_count == 3);
  w.vi[0]->Recover();
  w.area[0].ReclaimBegin();
  CHECK(w.area[0].Claim(engine.kept[0]));
  CHECK_FALSE(w.area[0].Claim(engine.kept[0]));  // twice: the second one has to forget it
  // Dies here: the next one begins again.
  CHECK(TakeOver(w, engine) == nullptr);
  CHECK(engine.kept_count == 3);
}

}  // namespace
}  // namespace postern
