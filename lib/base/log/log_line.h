// SPDX-License-Identifier: Apache-2.0
// log_line.h - a line of the log as it is put together, without a heap or a lock.
//
// Everything here may be called in a signal handler, in a child of fork or vfork, and by several
// threads: a line is a variable of its caller's.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace postern {

// Text in a fixed place; what does not fit is cut off, and there is always room for the line's end.
template <size_t kBytes>
class FixedText {
 public:
  FixedText& operator<<(const char* text) { return Add(text, strlen(text)); }
  FixedText& operator<<(uint64_t number) {
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = static_cast<char>('0' + number % 10);
    while ((number /= 10) != 0);
    return Add(digits + at, sizeof digits - at);
  }
  // `number` with leading zeros.
  FixedText& Digits(uint64_t number, size_t width) {
    char digits[20];
    for (size_t i = width; i-- > 0; number /= 10) digits[i] = static_cast<char>('0' + number % 10);
    return Add(digits, width);
  }
  FixedText& Add(const char* text, size_t bytes) {
    const size_t room = kBytes - 1 - size_;
    const size_t taken = bytes < room ? bytes : room;
    memcpy(text_ + size_, text, taken);
    size_ += taken;
    return *this;
  }
  void EndLine() { text_[size_++] = '\n'; }

  const char* data() const { return text_; }
  size_t size() const { return size_; }

 private:
  char text_[kBytes];
  size_t size_ = 0;
};

// A reason's text is the longest part.
inline constexpr size_t kLogLineBytes = 1024;
using LogLine = FixedText<kLogLineBytes>;

}  // namespace postern
