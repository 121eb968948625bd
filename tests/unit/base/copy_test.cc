// SPDX-License-Identifier: Apache-2.0
// copy_test.cc - copies past the cache, and the choice between the two ways.
#include "base/copy.h"

#include <cstring>
#include <initializer_list>
#include <vector>

#include "../kit/catch.h"
#include "base/iov.h"

namespace postern {
namespace {

// Runs `phases` phases of a machine on which the two ways take the given times. Returns the share
// of phases, in percent, that went past the cache.
int SharePastCache(CopyChooser& chooser, uint64_t cached_ns, uint64_t past_ns, int phases) {
  CopyWay way = chooser.Next(0);
  int past = 0;
  for (int i = 0; i < phases; i++) {
    if (way == CopyWay::kPastCache) past++;
    way = chooser.Judge(way == CopyWay::kCached ? cached_ns : past_ns);
  }
  return past * 100 / phases;
}

}  // namespace

TEST_CASE("copy: past the cache, any length and source alignment", "[copy]") {
  std::vector<uint8_t> from(9000);
  for (size_t i = 0; i < from.size(); i++) from[i] = static_cast<uint8_t>(i * 7);
  alignas(64) static uint8_t to[9000];
  for (size_t bytes : {0u, 1u, 63u, 64u, 65u, 4096u, 8191u}) {
    for (size_t shift : {0u, 1u, 13u}) {
      memset(to, 0xee, sizeof to);
      CopyPastCache(to, from.data() + shift, bytes);
      CHECK(memcmp(to, from.data() + shift, bytes) == 0);
      CHECK(to[bytes] == 0xee);
    }
  }
}

TEST_CASE("copy: an iovec whose pieces end in the middle of lines", "[copy]") {
  std::vector<uint8_t> from(8000);
  for (size_t i = 0; i < from.size(); i++) from[i] = static_cast<uint8_t>(i * 11);
  iovec iov[] = {{from.data(), 100},
                 {from.data() + 100, 4096},
                 {from.data() + 4196, 0},
                 {from.data() + 4196, 3804}};
  alignas(64) static uint8_t to[8000];
  IovCursor cursor(iov, 4);
  CHECK(cursor.StreamOut(to, 5000) == 5000);
  CHECK(cursor.StreamOut(to + 5000, 3000) == 3000);
  CHECK(memcmp(to, from.data(), 8000) == 0);
}

TEST_CASE("copy: the faster way is found, kept and left again", "[copy]") {
  CopyChooser chooser;
  CHECK(SharePastCache(chooser, 400, 100, 2000) > 95);  // far apart
  CHECK(SharePastCache(chooser, 60, 100, 2000) < 15);   // the threads were moved together
  CHECK(SharePastCache(chooser, 100, 100, 2000) < 5);   // no difference: as it is
  CHECK(SharePastCache(chooser, 400, 100, 2000) > 85);
}

}  // namespace postern
