// SPDX-License-Identifier: Apache-2.0
// siphash_test.cc - SipHash-2-4 against the paper's vector, and others that OpenSSL agrees with.
#include "base/siphash.h"

#include <cstring>
#include <vector>

#include "../kit/catch.h"

namespace postern {
namespace {

// The paper, appendix A: key 00 01 .. 0f, message 00 01 .. 0e.
constexpr SipKey kKey = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};

std::vector<uint8_t> Count(size_t n) {
  std::vector<uint8_t> bytes(n);
  for (size_t i = 0; i < n; i++) bytes[i] = static_cast<uint8_t>(i);
  return bytes;
}

TEST_CASE("siphash: the paper's vector") {
  CHECK(SipHash24(kKey, Count(15)) == 0xa129ca6149be45e5u);
}

TEST_CASE("siphash: messages of 0 to 16 bytes, as the authors' implementation") {
  constexpr uint64_t kExpected[] = {0x726fdb47dd0e0e31u, 0x74f839c593dc67fdu, 0x0d6c8009d9a94f5au,
                                    0x85676696d7fb7e2du, 0xcf2794e0277187b7u, 0x18765564cd99a68du,
                                    0xcbc9466e58fee3ceu, 0xab0200f58b01d137u, 0x93f5f5799a932462u,
                                    0x9e0082df0ba9e4b0u, 0x7a5dbbc594ddb9f3u, 0xf4b32f46226bada7u,
                                    0x751e8fbc860ee5fbu, 0x14ea5627c0843d90u, 0xf723ca908e7af2eeu,
                                    0xa129ca6149be45e5u, 0x3f2acc7f57c29bdbu};
  for (size_t n = 0; n <= 16; n++) CHECK(SipHash24(kKey, Count(n)) == kExpected[n]);
}

TEST_CASE("siphash: at compile time, too") {
  static_assert(SipHash24(kKey, std::span<const uint8_t>()) == 0x726fdb47dd0e0e31u);
}

TEST_CASE("siphash: each bit of key and message changes half of the result") {
  const std::vector<uint8_t> message = Count(40);
  const uint64_t hash = SipHash24(kKey, message);
  int changed = 0, tries = 0;
  for (size_t bit = 0; bit < message.size() * 8; bit++, tries++) {
    std::vector<uint8_t> other = message;
    other[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    changed += std::popcount(SipHash24(kKey, other) ^ hash);
  }
  for (int bit = 0; bit < 128; bit++, tries++) {
    SipKey key = kKey;
    (bit < 64 ? key.k0 : key.k1) ^= uint64_t{1} << bit % 64;
    changed += std::popcount(SipHash24(key, message) ^ hash);
  }
  CHECK(changed > tries * 31);
  CHECK(changed < tries * 33);
}

}  // namespace
}  // namespace postern
