// SPDX-License-Identifier: Apache-2.0
// stack_map_test.cc - the sizes of a stack: what is chosen, what is refused, where tables end.
#include "state/stack_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "../kit/catch.h"
#include "base/schema/options.h"
#include "state/view.h"

namespace postern {
namespace {

constexpr StackSizes kLeast = {kProcesses.least, kSockets.least, kGroups.least, kSets.least,
                               kRegistrations.least};
constexpr StackSizes kLargest = {kProcesses.most, kSockets.most, kGroups.most, kSets.most,
                                 kRegistrations.most};

struct Made {
  explicit Made(const StackSizes& sizes) : fd(CreateStack(NewUuid(), sizes)), map(MapStack(fd)) {
    REQUIRE(map != nullptr);
  }
  ~Made() {
    UnmapStack(map);
    close(fd);
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  const int fd;
  StackMap* const map;
};

// Byte ranges of all that a stack consists of.
template <typename Map>
std::vector<std::pair<uint64_t, uint64_t>> Parts(const Map& m) {
  std::vector<std::pair<uint64_t, uint64_t>> parts = {{0, sizeof m.hdr}};
  const auto add = [&](const auto& table) {
    const auto range = table.All();
    const auto* const base = reinterpret_cast<const char*>(&m.hdr);
    parts.emplace_back(reinterpret_cast<const char*>(range.begin()) - base,
                       reinterpret_cast<const char*>(range.end()) - base);
  };
  add(m.waiters);
  add(m.epolls);
  add(m.slots);
  add(m.lgrs);
  add(m.eps);
  add(m.items);
  add(m.fdchunks);
  return parts;
}

// A stack whose header was written by somebody else. A count that moves no table, since there is
// room behind its last entry, is as good as another: `same` says so.
bool Refused(off_t bytes, const pstn_stack_hdr& hdr, const StackLayout* same = nullptr) {
  const int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(fd, bytes) == 0);
  REQUIRE(pwrite(fd, &hdr, sizeof hdr, 0) == sizeof hdr);
  REQUIRE(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  StackMap* const map = MapStack(fd);
  const StackLook* const look = LookAtStack(fd);
  REQUIRE((map == nullptr) == (look == nullptr));
  const bool refused =
      map == nullptr || (same != nullptr && memcmp(same, &map->layout, sizeof *same) == 0);
  if (map != nullptr) {
    CHECK(Parts(*map).back().second <= static_cast<uint64_t>(bytes));
    UnmapStack(map);
    UnmapStack(look);
  }
  close(fd);
  return refused;
}

TEST_CASE("stack map: tables lie one behind the other, within the segment", "[state]") {
  for (const StackSizes& sizes : {StackSizes{}, kLeast, kLargest}) {
    const Made made(sizes);
    const StackMap& m = *made.map;
    CHECK(m.slots.count() == sizes.processes);
    CHECK(m.eps.count() == sizes.sockets);
    CHECK(m.lgrs.count() == sizes.groups);
    CHECK(m.epolls.count() == sizes.sets);
    CHECK(m.items.count() == sizes.registrations + sizes.sockets);
    CHECK(m.waiters.count() == PSTN_WAITERS);
    uint64_t end = 0;
    for (const auto& [from, to] : Parts(m)) {
      CHECK(from >= end);
      CHECK(from % 64 == 0);
      CHECK(to > from);
      end = to;
    }
    struct stat st;
    REQUIRE(fstat(made.fd, &st) == 0);
    CHECK(end <= static_cast<uint64_t>(st.st_size));
    CHECK(m.layout.bytes == static_cast<uint64_t>(st.st_size));
  }
}

TEST_CASE("stack map: what a table gives is in it, or null", "[state]") {
  const Made made(kLeast);
  const auto look = [](const auto& table, auto none) {
    using I = decltype(none);
    CHECK(table.At(none) == nullptr);
    for (const uint32_t beyond : {table.count(), table.count() + 1, 0x7fffffffu, 0x80000000u, ~0u})
      CHECK(table.At(I(beyond)) == nullptr);
    CHECK(table.At(I(0)) == table.All().begin());
    CHECK(table.At(I(table.count() - 1)) + 1 == table.All().end());
    CHECK(table.IndexOf(*table.At(I(table.count() - 1))) == I(table.count() - 1));
    CHECK(table.IndexAt(table.All().end()) == none);
    CHECK(table.IndexAt(reinterpret_cast<const char*>(table.All().begin()) - 1) == none);
    CHECK(table.IndexAt(reinterpret_cast<const char*>(table.At(I(1))) + 1) == I(1));
    CHECK(table.Before(~0u).end() == table.All().end());
    CHECK(table.Before(1).end() == table.At(I(1)));
    CHECK(table.Before(0).begin() == table.Before(0).end());
  };
  look(made.map->waiters, WaiterIndex());
  look(made.map->epolls, SetIndex());
  look(made.map->slots, ProcIndex());
  look(made.map->lgrs, LgrIndex());
  look(made.map->eps, EpIndex());
  look(made.map->items, ItemIndex());
  look(made.map->fdchunks, ChunkIndex());
}

TEST_CASE("stack map: pools of small tables are full where they end", "[state]") {
  const Made made(kLeast);
  StackMap& s = *made.map;
  const auto drain = [](auto take) {
    std::set<uint32_t> taken;
    for (uint32_t idx = take(); idx != PSTN_NONE; idx = take()) REQUIRE(taken.insert(idx).second);
    return taken.size();
  };
  CHECK(drain([&] { return TakeEp(s); }) == kSockets.least);
  CHECK(drain([&] { return TakeEpoll(s); }) == kSets.least - kKeeperSets);
  CHECK(drain([&] { return TakeEpoll(s, For::kKeeper); }) == kKeeperSets);
  CHECK(drain([&] { return TakeItem(s); }) == kRegistrations.least);
  CHECK(drain([&] { return TakeItem(s, For::kKeeper); }) == kSockets.least);
  CHECK(drain([&] { return TakeFdChunk(s); }) > 0);
  CHECK(drain([&] { return TakeFdChunk(s, For::kKeeper); }) == KeeperChunks(kSockets.least));
  CHECK(drain([&] { return AddLgrRef(s, 0, NewUuid(), NewUuid()); }) == kGroups.least);
  GiveEp(s, kSockets.least);  // none of ours
  CHECK(TakeEp(s) == PSTN_NONE);
}

TEST_CASE("stack map: a header that says anything else is refused", "[state]") {
  const Made made(kLeast);
  const pstn_stack_hdr good = made.map->hdr;
  const auto bytes = static_cast<off_t>(made.map->layout.bytes);
  REQUIRE_FALSE(Refused(bytes, good));
  CHECK(Refused(bytes + 4096, good));
  CHECK(Refused(bytes - 4096, good));
  CHECK(Refused(static_cast<off_t>(sizeof good), good));
  const size_t words[] = {offsetof(pstn_stack_hdr, magic), offsetof(pstn_stack_hdr, abi_version),
                          offsetof(pstn_stack_hdr, size_bytes),
                          offsetof(pstn_stack_hdr, size_bytes) + 4};
  const auto each_value = [&](size_t at) {
    uint32_t was;
    memcpy(&was, reinterpret_cast<const char*>(&good) + at, sizeof was);
    for (const uint32_t value :
         {0u, 1u, was - 1, was + 1, was * 2, was ^ 0x80000000u, 0x7fffffffu, 0x55555556u, ~0u}) {
      if (value == was) continue;
      pstn_stack_hdr bad = good;
      memcpy(reinterpret_cast<char*>(&bad) + at, &value, sizeof value);
      INFO("word at " << at << ": " << value << " for " << was);
      CHECK(Refused(bytes, bad, &made.map->layout));
    }
  };
  for (const size_t at : words) each_value(at);
  for (size_t at = 0; at < sizeof good.counts; at += 4)
    each_value(offsetof(pstn_stack_hdr, counts) + at);
}

TEST_CASE("stack map: counts that fit each other are refused beyond the ranges", "[state]") {
  const auto refused = [](const StackSizes& sizes) {
    StackLayout layout;
    return !LayOut(CountsOf(sizes), layout) && CreateStack(NewUuid(), sizes) < 0;
  };
  for (uint32_t StackSizes::*field :
       {&StackSizes::processes, &StackSizes::sockets, &StackSizes::groups, &StackSizes::sets,
        &StackSizes::registrations}) {
    StackSizes few = kLeast, many = kLargest;
    few.*field -= 1;
    many.*field += 1;
    CHECK(refused(few));
    CHECK(refused(many));
    StackSizes none = {}, all = {};
    none.*field = 0;
    all.*field = ~0u;
    CHECK(refused(none));
    CHECK(refused(all));
  }
}

TEST_CASE("stack map: who writes over the counts changes nothing for those who have it mapped",
          "[state]") {
  const Made made(kLeast);
  StackMap& s = *made.map;
  pstn_ep* const last = s.eps.At(EpIndex(kSockets.least - 1));
  memset(static_cast<void*>(&s.hdr.counts), 0xff, sizeof s.hdr.counts);
  s.hdr.size_bytes = ~0ull;
  CHECK(s.eps.count() == kSockets.least);
  CHECK(s.eps.At(EpIndex(kSockets.least)) == nullptr);
  CHECK(s.eps.At(EpIndex(kSockets.least - 1)) == last);
  CHECK(MapStack(made.fd) == nullptr);
}

TEST_CASE("stack map: the options have the ranges of the tables", "[state]") {
  const std::pair<const char*, SizeRange> options[] = {{"stack.processes", kProcesses},
                                                       {"stack.sockets", kSockets},
                                                       {"stack.groups", kGroups},
                                                       {"stack.sets", kSets},
                                                       {"stack.registrations", kRegistrations}};
  for (const auto& [key, range] : options) {
    INFO(key);
    const OptionDesc* const desc = OptionFind(key);
    REQUIRE(desc != nullptr);
    CHECK(desc->min == range.least);
    CHECK(desc->max == range.most);
    CHECK(desc->default_text == std::to_string(range.usual));
    Options opt = OptionsDefault();
    char message[kOptionMessageBytes] = "";
    CHECK(OptionSet(opt, key, std::to_string(range.most + 1).c_str(), message, sizeof message) ==
          OptionErr::kRange);
    CHECK(std::string(message).find(std::to_string(range.least) + ".." +
                                    std::to_string(range.most)) != std::string::npos);
  }
}

}  // namespace
}  // namespace postern
