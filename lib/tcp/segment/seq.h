// SPDX-License-Identifier: Apache-2.0
// seq.h - sequence numbers: 32 bits, and an order only between those that are near (RFC 9293, 3.4).
#pragma once
#include <cstdint>

namespace postern::tcp {

class Seq {
 public:
  constexpr Seq() = default;
  constexpr explicit Seq(uint32_t value) : value_(value) {}
  constexpr uint32_t value() const { return value_; }

  constexpr Seq operator+(uint32_t bytes) const { return Seq(value_ + bytes); }
  constexpr Seq operator-(uint32_t bytes) const { return Seq(value_ - bytes); }
  constexpr Seq& operator+=(uint32_t bytes) {
    value_ += bytes;
    return *this;
  }
  // How far this one is behind (positive) or before `from`.
  constexpr int32_t operator-(Seq from) const { return static_cast<int32_t>(value_ - from.value_); }
  constexpr bool operator==(const Seq&) const = default;

 private:
  uint32_t value_ = 0;
};

constexpr bool Before(Seq a, Seq b) { return a - b < 0; }
constexpr bool After(Seq a, Seq b) { return a - b > 0; }
constexpr bool AtOrBefore(Seq a, Seq b) { return a - b <= 0; }
constexpr bool AtOrAfter(Seq a, Seq b) { return a - b >= 0; }
// Whether `s` lies in `bytes` from `start` on.
constexpr bool InWindow(Seq s, Seq start, uint32_t bytes) {
  return static_cast<uint32_t>(s - start) < bytes;
}
constexpr Seq Earlier(Seq a, Seq b) { return Before(a, b) ? a : b; }
constexpr Seq Later(Seq a, Seq b) { return After(a, b) ? a : b; }

static_assert(sizeof(Seq) == 4);

}  // namespace postern::tcp
