// wire_checksum_test.cc - sums against RFC 1071's own words, for all lengths, addresses and cuts.
// SPDX-License-Identifier: Apache-2.0
#include "wire/checksum.h"

#include <initializer_list>

#include "../kit/catch.h"
#include "wire_frames.h"

namespace postern::wire {
namespace {

using wire_test::Bytes;
using wire_test::NaiveSum;

// A sum as a folded value in network order, as NaiveSum() gives it.
uint16_t Value(uint32_t sum) { return static_cast<uint16_t>(~ChecksumOf(sum)); }

Bytes Noise(size_t bytes, uint32_t seed) {
  wire_test::Random random(seed);
  Bytes out(bytes);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

TEST_CASE("checksum: the example of RFC 1071, 3") {
  const Bytes bytes = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
  CHECK(Value(Sum(bytes.data(), bytes.size(), 0)) == 0xddf2);
  CHECK(ChecksumOf(Sum(bytes.data(), bytes.size(), 0)) == 0x220d);
}

TEST_CASE("checksum: every length at every alignment, alone and while copied") {
  const Bytes noise = Noise(400, 1);
  size_t wrong = 0;
  for (size_t align = 0; align < 16; align++) {
    for (size_t bytes = 0; bytes <= 300; bytes++) {
      const uint8_t* from = noise.data() + align;
      Bytes to(bytes + 2, 0xa5);
      const uint16_t naive = NaiveSum({from, bytes});
      wrong += Value(Sum(from, bytes, 0)) != naive;
      wrong += Value(CopySum(to.data() + 1, from, bytes, 0)) != naive;
      wrong += memcmp(to.data() + 1, from, bytes) != 0;
      wrong += to[0] != 0xa5 || to[bytes + 1] != 0xa5;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("checksum: all ones stay all ones, 0 stays 0") {
  for (size_t bytes : {2u, 20u, 64u, 1448u, 65534u}) {
    const Bytes ones(bytes, 0xff), zeroes(bytes, 0);
    CHECK(FoldSum(Sum(ones.data(), bytes, 0)) == 0xffff);
    CHECK(FoldSum(Sum(ones.data(), bytes, 0xffffffff)) == 0xffff);
    CHECK(Sum(zeroes.data(), bytes, 0) == 0);
    CHECK(IsChecksumGood(Sum(zeroes.data(), bytes, 0xffff)));
  }
}

TEST_CASE("checksum: a large area of the largest words") {
  const Bytes bytes = Noise(1 << 20, 2);
  CHECK(Value(Sum(bytes.data(), bytes.size(), 0)) == NaiveSum(bytes));
  const Bytes ones((1 << 20) + 1, 0xff);
  CHECK(Value(Sum(ones.data(), ones.size(), 0)) == NaiveSum(ones));
}

TEST_CASE("checksum: pieces of any lengths are one") {
  wire_test::Random random(3);
  const Bytes noise = Noise(3000, 4);
  for (int round = 0; round < 2000; round++) {
    const size_t bytes = random() % noise.size(), before = random();
    Checksummer sums(static_cast<uint32_t>(before)), copies(static_cast<uint32_t>(before));
    Bytes to(bytes);
    for (size_t at = 0; at < bytes;) {
      const size_t most = 1 + random() % 200;
      const size_t n = bytes - at < most ? bytes - at : most;
      sums.Add(noise.data() + at, n);
      copies.Copy(to.data() + at, noise.data() + at, n);
      at += n;
    }
    const uint32_t whole = Sum(noise.data(), bytes, static_cast<uint32_t>(before));
    REQUIRE(FoldSum(sums.sum()) == FoldSum(whole));
    REQUIRE(FoldSum(copies.sum()) == FoldSum(whole));
    REQUIRE(memcmp(to.data(), noise.data(), bytes) == 0);
  }
}

TEST_CASE("checksum: an update of one word is what computing it anew gives") {
  wire_test::Random random(5);
  for (int round = 0; round < 5000; round++) {
    Bytes bytes = Noise(20, random());
    const uint32_t seldom = random() % 8;
    if (seldom == 0) bytes.assign(20, 0);
    if (seldom == 1) bytes.assign(20, 0xff);
    bytes[0] = 0x45;  // not all 0: there the two zeroes differ (RFC 1624, 3)
    const size_t off = 2 + random() % 9 * 2;
    const auto old_word = static_cast<uint16_t>(wire_test::Get16(bytes, off));
    const auto new_word = static_cast<uint16_t>(seldom == 2 ? 0 : random());
    const uint16_t before = ChecksumOf(Sum(bytes.data(), bytes.size(), 0));
    wire_test::Set16(bytes, off, new_word);
    REQUIRE(ChecksumUpdate(before, old_word, new_word) ==
            ChecksumOf(Sum(bytes.data(), bytes.size(), 0)));
  }
  // The example of RFC 1624, 4.
  CHECK(ChecksumUpdate(0xdd2f, 0x5555, 0x3285) == 0x0000);
}

TEST_CASE("checksum: pseudo headers") {
  for (bool is6 : {false, true}) {
    wire_test::FrameSpec s;
    s.is6 = is6;
    s.protocol = 17;
    const Bytes from = wire_test::SourceOf(s), to = wire_test::DestinationOf(s);
    for (uint32_t bytes : {0u, 8u, 1480u, 65535u}) {
      const uint32_t sum = is6 ? PseudoSum6(from.data(), to.data(), 17, bytes)
                               : PseudoSum4(from.data(), to.data(), 17, bytes);
      CHECK(Value(sum) == wire_test::NaivePseudo(s, bytes));
    }
  }
}

}  // namespace
}  // namespace postern::wire
