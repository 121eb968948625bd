// SPDX-License-Identifier: Apache-2.0
// stack_reach_test.cc - the tables of a stack are mapped when they are used, and no more of them.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "../kit/catch.h"
#include "base/sanitized.h"
#include "base/space/room.h"
#include "base/space/spare.h"
#include "base/sys.h"
#include "state/view.h"

namespace postern {
namespace {

constexpr uint64_t kStackMiB = 1u << 20;

// Address space that this process has of stacks.
uint64_t StackBytesMapped() {
  std::ifstream maps("/proc/self/maps");
  uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("postern-stack") == std::string::npos) continue;
    size_t dash = 0;
    const uint64_t begin = std::stoull(line, &dash, 16);
    bytes += std::stoull(line.substr(dash + 1), nullptr, 16) - begin;
  }
  return bytes;
}

struct UsualStack {
  UsualStack() : fd(CreateStack(NewUuid())), map(MapStack(fd)) { REQUIRE(map != nullptr); }
  ~UsualStack() {
    UnmapStack(map);
    close(fd);
  }
  UsualStack(const UsualStack&) = delete;
  UsualStack& operator=(const UsualStack&) = delete;

  StackMap& s() { return *map; }
  // By the descriptor: what an endpoint's `next` is.
  void MarkEp(uint32_t i) {
    const uint32_t mark = i * 3 + 7;
    const uint64_t off = map->layout.eps + i * sizeof(pstn_ep) + offsetof(pstn_ep, next);
    REQUIRE(pwrite(fd, &mark, sizeof mark, static_cast<off_t>(off)) == sizeof mark);
  }
  [[nodiscard]] bool IsMarked(uint32_t i) const {
    const pstn_ep* const ep = map->eps.At(EpIndex(i));
    return ep != nullptr && LoadRelaxed(ep->next) == i * 3 + 7;
  }

  const int fd;
  StackMap* const map;
};

// The first endpoint that is not mapped yet.
uint32_t FirstBeyond(const StackMap& s) {
  return static_cast<uint32_t>(s.Part(2).bytes / sizeof(pstn_ep));
}
uint8_t* Behind(const StackMap& s) {
  return reinterpret_cast<uint8_t*>(s.eps.At(EpIndex(0))) + s.Part(2).bytes;
}

template <typename Fn>
int InChild(Fn fn) {
  const pid_t pid = fork();
  if (pid == 0) _exit(fn());
  int status = -1;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

bool SetRoom(uint64_t room) {
  rlimit now = {kUnbounded, kUnbounded};
  now.rlim_cur = (kUnbounded >> 1) - AddressesIn(kUnbounded >> 1).room + room;
  return setrlimit(RLIMIT_AS, &now) == 0;
}

TEST_CASE("stack reach: a stack is 4 MiB of address space until it is used") {
  if (kSanitized) return;  // it is mapped whole, elsewhere
  const uint64_t before = StackBytesMapped();
  {
    UsualStack stack;
    StackMap& s = stack.s();
    CHECK(StackBytesMapped() - before < 4 * kStackMiB);
    for (int i = 0; i < 500; i++) {  // endpoints with a registration each, of one process
      REQUIRE(TakeEp(s) != PSTN_NONE);
      REQUIRE(TakeItem(s) != PSTN_NONE);
    }
    REQUIRE(TakeFdChunk(s) != PSTN_NONE);
    REQUIRE(AddLgrRef(s, 0, NewUuid(), NewUuid()) != PSTN_NONE);
    CHECK(StackBytesMapped() - before < 4 * kStackMiB);
    for (const uint32_t i : {5000u, 90000u, s.eps.count() - 1}) REQUIRE(s.eps.At(EpIndex(i)));
    for (const uint32_t i : {5000u, s.items.count() - 1}) REQUIRE(s.items.At(ItemIndex(i)));
    for (const uint32_t i : {100u, s.lgrs.count() - 1}) REQUIRE(s.lgrs.At(LgrIndex(i)));
    for (const uint32_t i : {99u, s.fdchunks.count() - 1}) REQUIRE(s.fdchunks.At(ChunkIndex(i)));
    CHECK(StackBytesMapped() - before == s.layout.bytes);
  }
  CHECK(StackBytesMapped() == before);
}

TEST_CASE("stack reach: each entry is what the segment has there, and none moves") {
  UsualStack stack;
  StackMap& s = stack.s();
  const pstn_ep* const first = s.eps.At(EpIndex(0));
  const std::vector<uint32_t> some = {0, 681, 682, 683, 5000, 4999, 100000, 131071, 70000};
  for (const uint32_t i : some) stack.MarkEp(i);
  for (const uint32_t i : some) {
    CHECK(stack.IsMarked(i));
    CHECK(s.eps.At(EpIndex(i)) == first + i);
    CHECK(s.eps.IndexOf(s.eps.Own(EpIndex(i))).word() == i);
  }
  CHECK(s.eps.At(EpIndex(0)) == first);
  for (const uint32_t beyond : {s.eps.count(), 0x80000000u, PSTN_NONE})
    CHECK(s.eps.At(EpIndex(beyond)) == nullptr);
}

TEST_CASE("stack reach: threads that come at once have the same entries") {
  for (int round = 0; round < 20; round++) {
    UsualStack stack;
    StackMap& s = stack.s();
    for (uint32_t i = 100; i < s.eps.count(); i += 1000) stack.MarkEp(i);
    std::atomic<int> ready{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
      threads.emplace_back([&] {
        ready++;
        while (ready.load() < 4) {
        }
        for (uint32_t i = 100; i < s.eps.count(); i += 1000) wrong += stack.IsMarked(i) ? 0 : 1;
      });
    for (std::thread& t : threads) t.join();
    CHECK(wrong.load() == 0);
  }
}

TEST_CASE(
    "stack reach: a child of fork maps more by itself, and so does one of a thread's middle") {
  UsualStack stack;
  StackMap& s = stack.s();
  for (const uint32_t i : {5u, 3000u, 50000u}) stack.MarkEp(i);
  REQUIRE(s.eps.At(EpIndex(2000)) != nullptr);
  // What another thread had mapped and not yet said when the child was made.
  const bool unsaid = GENERATE(false, true);
  if (unsaid && !kSanitized) {
    const uint64_t have = s.Part(2).bytes;
    uint8_t* const eps = reinterpret_cast<uint8_t*>(s.eps.At(EpIndex(0)));
    REQUIRE(mremap(eps, have, have + (1u << 20), 0) == eps);
  }
  CHECK(InChild([&] {
          for (const uint32_t i : {5u, 3000u, 50000u})
            if (!stack.IsMarked(i)) return 1;
          StoreRelaxed(s.eps.Own(EpIndex(60000)).gen, 77u);
          return 0;
        }) == 0);
  for (const uint32_t i : {5u, 3000u, 50000u}) CHECK(stack.IsMarked(i));
  CHECK(LoadRelaxed(s.eps.Own(EpIndex(60000)).gen) == 77);  // the same memory
}

TEST_CASE("stack reach: what lies where a table would go on is left alone") {
  if (kSanitized) return;
  UsualStack stack;
  StackMap& s = stack.s();
  const uint32_t beyond = FirstBeyond(s);
  auto* const there =
      static_cast<uint8_t*>(mmap(Behind(s), 4096, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
  REQUIRE(there == Behind(s));
  there[5] = 99;
  for (const uint32_t i : {beyond, beyond + 1, 50000u}) CHECK(s.eps.At(EpIndex(i)) == nullptr);
  uint32_t taken = 0;
  while (TakeEp(s) != PSTN_NONE) taken++;  // as a table that is full
  CHECK(taken == beyond);
  CHECK(there[5] == 99);
  REQUIRE(munmap(there, 4096) == 0);
  CHECK(s.eps.At(EpIndex(50000)) != nullptr);
  CHECK(TakeEp(s) == beyond);
}

TEST_CASE(
    "stack reach: at the limit entries are refused, those of before stay, spare room serves") {
  if (kSanitized) return;
  UsualStack stack;
  StackMap& s = stack.s();
  for (uint32_t i = 0; i < s.eps.count(); i += 100) stack.MarkEp(i);
  const bool spare = GENERATE(false, true);
  CHECK(InChild([&] {
          if (!SetRoom(40 * kStackMiB)) return 99;
          if (spare) MakeSpare();
          void* taken = nullptr;  // by the program, to the last page
          for (size_t bytes = 64 * kStackMiB; bytes >= 4096; bytes /= 2)
            while ((taken = sys::MapPrivate(bytes)) != nullptr) {
            }
          uint32_t reached = 0;
          while (reached < s.eps.count() && stack.IsMarked(reached)) reached += 100;
          const uint64_t bytes = uint64_t{reached} * sizeof(pstn_ep);
          if (spare != (bytes > 20 * kStackMiB) || (!spare && bytes > kStackMiB)) return 1;
          if (TakeEp(s) != 0) return 2;
          for (uint32_t i = 100; i < reached; i += 100)
            if (!stack.IsMarked(i)) return 3;
          uint32_t seen = 0;
          for (const pstn_ep& ep : s.eps.All()) seen += LoadRelaxed(ep.state) == 0 ? 1u : 0u;
          return seen >= reached - 100 && seen < s.eps.count() ? 0 : 4;
        }) == 0);
}

}  // namespace
}  // namespace postern
