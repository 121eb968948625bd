// SPDX-License-Identifier: Apache-2.0
// user_memory_test.cc - copies of every size, before, at and over the end of what is there.
#include "base/user_memory.h"

#include <signal.h>
#include <sys/mman.h>

#include <cstring>
#include <initializer_list>
#include <vector>

#include "../kit/catch.h"
#include "base/iov.h"

namespace postern {
namespace {

// No copy of these tests reaches over what is not there: libc's may store its last bytes first.
constexpr size_t kPages = 4, kMissingPages = 3, kBytesOfPage = 4096;
constexpr size_t kAllPages = kPages + kMissingPages;

void Recover(int, siginfo_t*, void* context) {
  if (!RecoverFault(context)) abort();
}

// Pages that are there, with some behind them that are not; and the handler meanwhile.
class Edge {
 public:
  Edge() {
    struct sigaction act = {};
    act.sa_sigaction = Recover;
    act.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &act, &before_);
    base_ = static_cast<uint8_t*>(mmap(nullptr, kAllPages * kBytesOfPage, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(end(), kMissingPages * kBytesOfPage, PROT_NONE);
    for (uint8_t* at = base_; at < end(); at++) *at = static_cast<uint8_t>((at - base_) * 13);
  }
  ~Edge() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(base_, kAllPages * kBytesOfPage);
  }
  Edge(const Edge&) = delete;
  Edge& operator=(const Edge&) = delete;
  uint8_t* end() const { return base_ + kPages * kBytesOfPage; }
  void ReadOnly() const { mprotect(base_, kPages * kBytesOfPage, PROT_READ); }

 private:
  uint8_t* base_;
  struct sigaction before_;
};

bool CanFault() {
  if (kSanitized) WARN("not tested: a sanitizer's runtime has the faults");
  return !kSanitized;
}

// What the CPU has, or only what each has.
class Width {
 public:
  explicit Width(bool may_be_wide) {
#if defined(__x86_64__)
    if (!may_be_wide) pstn_user_wide = 0;
#else
    (void)may_be_wide;
#endif
  }
  ~Width() {
#if defined(__x86_64__)
    pstn_user_wide = before_;
#endif
  }
  Width(const Width&) = delete;
  Width& operator=(const Width&) = delete;

 private:
#if defined(__x86_64__)
  const uint8_t before_ = pstn_user_wide;
#endif
};

}  // namespace

TEST_CASE("user memory: any length, any alignment", "[user_memory]") {
  const Width width(GENERATE(true, false));
  std::vector<uint8_t> from(400), to(400);
  for (size_t i = 0; i < from.size(); i++) from[i] = static_cast<uint8_t>(i * 7 + 1);
  for (size_t bytes = 0; bytes <= 300; bytes++) {
    for (size_t shift : {0u, 1u, 7u, 16u}) {
      memset(to.data(), 0xee, to.size());
      REQUIRE(CopyUser(to.data() + 1, from.data() + shift, bytes));
      REQUIRE(memcmp(to.data() + 1, from.data() + shift, bytes) == 0);
      REQUIRE(to[0] == 0xee);
      REQUIRE(to[1 + bytes] == 0xee);
    }
  }
}

TEST_CASE("user memory: a copy that begins where something is, and ends where nothing is",
          "[user_memory]") {
  if (!CanFault()) return;
  const Width width(GENERATE(true, false));
  const Edge edge;
  alignas(64) static uint8_t other[kPages * kBytesOfPage];
  for (size_t bytes : {1u,  2u,  3u,  4u,  7u,   8u,   15u,  16u,   17u,   31u,  32u,
                       33u, 63u, 64u, 65u, 127u, 128u, 129u, 1000u, 4096u, 9000u}) {
    for (size_t missing : {size_t{1}, bytes / 2 + 1, bytes}) {
      if (missing > bytes) continue;
      INFO("bytes " << bytes << " missing " << missing);
      uint8_t* const at = edge.end() - bytes + missing;
      CHECK_FALSE(CopyUser(other, at, bytes));
      CHECK_FALSE(CopyUser(at, other, bytes));
      CHECK_FALSE(CopyLargePastCache(other, at, bytes));
      CHECK_FALSE(UserReadable(at, bytes));
      CHECK_FALSE(UserWritable(at, bytes));
      CHECK(CopyUser(other, at - missing, bytes));
      CHECK(memcmp(other, at - missing, bytes) == 0);
      CHECK(CopyUser(at - missing, other, bytes));
      CHECK(UserReadable(at - missing, bytes));
      CHECK(UserWritable(at - missing, bytes));
    }
  }
}

TEST_CASE("user memory: no address at all, and memory that can be read only", "[user_memory]") {
  if (!CanFault()) return;
  const Edge edge;
  uint8_t byte = 0;
  for (const uintptr_t at : {uintptr_t{0}, uintptr_t{8}, uintptr_t{0x4141414141414141},
                             uintptr_t{0xffff800000000000}, ~uintptr_t{0}}) {
    auto* const nowhere = reinterpret_cast<void*>(at);
    CHECK_FALSE(GetUser(byte, nowhere));
    CHECK_FALSE(PutUser(nowhere, byte));
    CHECK_FALSE(UserReadable(nowhere, 1));
    CHECK_FALSE(UserWritable(nowhere, 1));
    CHECK_FALSE(UserReadable(nowhere, ~size_t{0}));
    CHECK(UserReadable(nowhere, 0));
  }
  edge.ReadOnly();
  CHECK(GetUser(byte, edge.end() - 1));
  CHECK_FALSE(PutUser(edge.end() - 1, byte));
  CHECK(UserReadable(edge.end() - kPages * kBytesOfPage, kPages * kBytesOfPage));
  CHECK_FALSE(UserWritable(edge.end() - 1, 1));
}

TEST_CASE("user memory: a cursor that meets a fault has not moved", "[user_memory]") {
  if (!CanFault()) return;
  const Edge edge;
  uint8_t good[100];
  memset(good, 5, sizeof good);
  alignas(64) static uint8_t ring[40000];
  for (size_t hole : {50u, 5000u}) {
    const iovec iov[] = {{good, sizeof good}, {edge.end() - 20, hole}};
    IovCursor cursor(iov, 2);
    CHECK(cursor.CopyOut(ring, 60) == 60);
    CHECK_FALSE(cursor.fault());
    CHECK(cursor.left() == 40 + hole);
    CHECK(cursor.CopyOut(ring, 40 + hole) == 0);
    CHECK(cursor.fault());
    CHECK(cursor.left() == 40 + hole);
    IovCursor streamed(iov, 2);
    CHECK(streamed.StreamOut(ring, 100 + hole) == 0);
    CHECK(streamed.fault());
    IovCursor in(iov, 2);
    CHECK(in.CopyIn(ring, 100 + hole) == 0);
    CHECK(in.fault());
  }
}

}  // namespace postern
