// single_step.h - a process dies between any two instructions of an operation: what does it leave?
// SPDX-License-Identifier: Apache-2.0
//
// The operation runs in a child on shared memory, one instruction at a time (ptrace). At each of
// them that memory is what the child would leave behind if it died there: the test saves it, lets
// somebody take over, checks, and puts it back for the next instruction. So the cost is one
// recovery for each instruction, not one run.
//
//   Saved saved;
//   saved.Add(&object, sizeof object);                // all that operation and recovery change
//   const StepResult r = AtEachInstruction(saved, [&] { Operation(); }, [&]() -> const char* {
//     Recover(); return IsWhole() ? nullptr : "what is wrong"; });
//   CheckSteps(r, 100);
//
// What the memory is that the child changes must be shared (MAP_SHARED): SharedPage() for small
// things of the test's own. Locks that the child holds bear its id, and it is alive: the recovery
// clears their words, as if the lock had been taken over (lib/base/lock.h). Under a sanitizer an
// instruction becomes ten, and only some of them are looked at; under ThreadSanitizer, whose
// run time takes the traps for signals, none.
#pragma once
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "catch.h"
#include "one_cpu.h"

namespace postern {

#if defined(__SANITIZE_THREAD__)
inline constexpr uint32_t kStepStride = 0;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr uint32_t kStepStride = 101;
#else
inline constexpr uint32_t kStepStride = 1;
#endif

// A page that a child of fork shares, with one object in it.
template <typename T>
class SharedPage {
 public:
  SharedPage()
      : at_(static_cast<T*>(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedPage() { munmap(at_, sizeof(T)); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  T* operator->() const { return at_; }
  T& operator*() const { return *at_; }

 private:
  T* at_;
};

// Memory as it is at one moment.
class Saved {
 public:
  void Add(void* at, size_t bytes) { pieces_.push_back({at, std::vector<uint8_t>(bytes)}); }
  void Save() {
    for (Piece& p : pieces_) memcpy(p.copy.data(), p.at, p.copy.size());
  }
  void Restore() const {
    for (const Piece& p : pieces_) memcpy(p.at, p.copy.data(), p.copy.size());
  }
  [[nodiscard]] bool Changed() const {
    for (const Piece& p : pieces_) {
      if (memcmp(p.at, p.copy.data(), p.copy.size()) != 0) return true;
    }
    return false;
  }

 private:
  struct Piece {
    void* at;
    std::vector<uint8_t> copy;
  };
  std::vector<Piece> pieces_;
};

struct StepResult {
  uint32_t steps = 0, checked = 0;
  const char* wrong = nullptr;  // what was wrong after `steps` instructions
  bool skipped = false;         // no child can be traced here
  bool ended = false;           // the operation came to its end, as if nobody had looked
};

// A child that will run `operation`, and has stopped before it; it has ended if it can't be traced.
template <typename Operation>
pid_t StoppedChild(Operation operation, int& status) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
    raise(SIGSTOP);
    operation();
    _exit(0);
  }
  REQUIRE(waitpid(child, &status, 0) == child);
  return child;
}

// kChanges: at each instruction that changes something of `saved`. A death behind any other one
// leaves what the last one left, if `saved` has all that `died` looks at.
enum class At : uint8_t { kAll, kChanges };

// Those of whole families (kChanges) are too long for a sanitizer's code, ten instructions for one.
constexpr bool CanStep(At at) { return kStepStride == 1 || (kStepStride != 0 && at == At::kAll); }

// Runs `operation` in a child, and `died` at its instructions: null, or what is wrong. What `died`
// has changed of `saved` is put back; it may change nothing else that the child sees.
template <typename Operation, typename Died>
StepResult AtEachInstruction(Saved& saved, Operation operation, Died died, At at = At::kAll) {
  StepResult r;
  constexpr uint32_t kStride = kStepStride != 0 ? kStepStride : 1;
  if (!CanStep(at)) {
    r.skipped = true;
    return r;
  }
  const OneCpu pinned;
  int status = 0;
  const pid_t child = StoppedChild(operation, status);
  if (WIFEXITED(status)) {
    r.skipped = true;
    return r;
  }
  for (;;) {
    if (r.steps % kStride == 0 && (at == At::kAll || r.checked == 0 || saved.Changed())) {
      saved.Save();
      r.wrong = died();
      saved.Restore();
      r.checked++;
    }
    if (r.wrong != nullptr) {
      kill(child, SIGKILL);
      REQUIRE(waitpid(child, &status, 0) == child);
      return r;
    }
    REQUIRE(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0);
    REQUIRE(waitpid(child, &status, 0) == child);
    if (!WIFSTOPPED(status)) break;
    REQUIRE(WSTOPSIG(status) == SIGTRAP);
    r.steps++;
  }
  r.ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return r;
}

// Each try of BetweenInstructions begins anew, so their cost grows with the square of their number:
// under a sanitizer there are a few tries.
constexpr uint32_t StepsApart(uint32_t least) { return kStepStride > 1 ? 50 * kStepStride : least; }

// Runs `operation`, in a child, up to its `n`th instruction; `between` here; then the rest of it.
// False: it has fewer instructions, or there is no child to be traced (`skipped`).
template <typename Operation, typename Between>
bool BetweenInstructions(uint32_t n, Operation operation, Between between, bool& skipped) {
  skipped = kStepStride == 0;
  if (skipped) return false;
  const OneCpu pinned;
  int status = 0;
  const pid_t child = StoppedChild(operation, status);
  skipped = WIFEXITED(status);
  for (uint32_t i = 0; i < n && WIFSTOPPED(status); i++) {
    REQUIRE(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0);
    REQUIRE(waitpid(child, &status, 0) == child);
  }
  if (!WIFSTOPPED(status)) return false;
  between();
  REQUIRE(ptrace(PTRACE_CONT, child, nullptr, nullptr) == 0);
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  return true;
}

// `least`: instructions that the operation surely has, so that a test that looks at nothing fails.
// `looks`: at so many of them.
inline void CheckSteps(const StepResult& r, uint32_t least, uint32_t looks) {
  if (r.skipped) {
    WARN("skipped: a child can't be stepped through here");
    return;
  }
  INFO("after " << r.steps
                << " instructions: " << (r.wrong != nullptr ? r.wrong : "nothing wrong"));
  CHECK(r.wrong == nullptr);
  CHECK((r.ended || r.wrong != nullptr));
  CHECK(r.steps >= least);
  CHECK(r.checked >= looks / (kStepStride != 0 ? kStepStride : 1));
}
inline void CheckSteps(const StepResult& r, uint32_t least) { CheckSteps(r, least, least); }

}  // namespace postern
