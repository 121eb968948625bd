// SPDX-License-Identifier: Apache-2.0
// checksum.h - the Internet checksum (RFC 1071, 1624), alone or while the bytes are copied.
//
// A *sum* is the ones' complement sum, in 32 bits, of 16-bit words as this machine loads them: the
// order of bytes comes out right at the end (RFC 1071, 2(B)), so nothing is swapped on the way. It
// is 0 only if all that was summed is 0, so that 0 and 0xffff stay apart.
//
// `sum` arguments chain pieces, each but the last of even length: behind an odd one all that
// follows would stand in the other half of its word. Checksummer takes pieces of any length.
//
// Cost with SSE2 (the baseline of x86-64), in L1: 1448 bytes in 32 ns, 40 ns with the copy.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace postern::wire {

// Of less than 4 GiB. An odd last byte is the first half of a word whose second half is 0.
uint32_t Sum(const uint8_t* from, size_t bytes, uint32_t sum);
// The same of what it copies; the two do not overlap.
uint32_t CopySum(uint8_t* to, const uint8_t* from, size_t bytes, uint32_t sum);

// End-around carry (RFC 1071, 1).
constexpr uint32_t AddSums(uint32_t a, uint32_t b) {
  const uint32_t sum = a + b;
  return sum + (sum < a ? 1 : 0);
}
constexpr uint16_t FoldSum(uint32_t sum) {
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum + (sum >> 16));
}

// Between a 16-bit word's value and what this machine loads for it.
constexpr uint16_t SwapToBig(uint16_t value) {
  return std::endian::native == std::endian::big ? value : __builtin_bswap16(value);
}
constexpr uint32_t WordSum(uint16_t value) { return SwapToBig(value); }

// The value of a checksum field (Be16), of the sum over everything with that field 0.
constexpr uint16_t ChecksumOf(uint32_t sum) {
  return SwapToBig(static_cast<uint16_t>(~FoldSum(sum)));
}
// Whether the sum over everything, the field included, says that it is right.
constexpr bool IsChecksumGood(uint32_t sum) { return FoldSum(sum) == 0xffff; }

// The field's new value after one word under it has changed (RFC 1624, equation 3).
constexpr uint16_t ChecksumUpdate(uint16_t checksum, uint16_t old_word, uint16_t new_word) {
  const auto inverse = [](uint16_t x) { return static_cast<uint32_t>(static_cast<uint16_t>(~x)); };
  return static_cast<uint16_t>(~FoldSum(inverse(checksum) + inverse(old_word) + new_word));
}

// Pseudo headers. `bytes`: header and data of the upper layer.
// RFC 9293, 3.1 (IPv4): addresses of 4 bytes.
inline uint32_t PseudoSum4(const uint8_t* source, const uint8_t* destination, uint8_t protocol,
                           uint32_t bytes) {
  uint32_t from, to;
  memcpy(&from, source, sizeof from);
  memcpy(&to, destination, sizeof to);
  return AddSums(AddSums(from, to), WordSum(protocol) + WordSum(static_cast<uint16_t>(bytes)));
}
// RFC 8200, 8.1: addresses of 16 bytes, and of the final destination.
inline uint32_t PseudoSum6(const uint8_t* source, const uint8_t* destination, uint8_t protocol,
                           uint32_t bytes) {
  uint32_t sum = WordSum(protocol) + WordSum(static_cast<uint16_t>(bytes >> 16)) +
                 WordSum(static_cast<uint16_t>(bytes));
  for (uint32_t i = 0; i < 16; i += 4) {
    uint32_t from, to;
    memcpy(&from, source + i, sizeof from);
    memcpy(&to, destination + i, sizeof to);
    sum = AddSums(sum, AddSums(from, to));
  }
  return sum;
}

// Pieces in a row, of whatever lengths.
class Checksummer {
 public:
  explicit Checksummer(uint32_t sum = 0) : sum_(sum) {}  // of what is before the first piece

  void Add(const uint8_t* from, size_t bytes) { Join(Sum(from, bytes, 0), bytes); }
  void Copy(uint8_t* to, const uint8_t* from, size_t bytes) {
    Join(CopySum(to, from, bytes, 0), bytes);
  }
  // `sum` is that of a piece of so many bytes, summed for itself.
  void Join(uint32_t sum, size_t bytes) {
    // One byte further on is 256 times as much, modulo 2^32 - 1 and so modulo 2^16 - 1.
    sum_ = AddSums(sum_, is_odd_ != 0 ? std::rotl(sum, 8) : sum);
    is_odd_ ^= static_cast<uint32_t>(bytes & 1);
  }
  uint32_t sum() const { return sum_; }

 private:
  uint32_t sum_;
  uint32_t is_odd_ = 0;
};

}  // namespace postern::wire
