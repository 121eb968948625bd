// SPDX-License-Identifier: Apache-2.0
// iov.h - walks an iovec array as one run of bytes.
#pragma once
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/copy.h"
#include "base/user_memory.h"

namespace postern {

// No program's, whatever is mapped: the kernel says so before it looks at anything else.
inline bool IsBeyond(const void* p) {
#if defined(__x86_64__)
  constexpr int kBits = 56;  // with five levels of page tables
#else
  constexpr int kBits = 63;
#endif
  return reinterpret_cast<uintptr_t>(p) >> kBits != 0;
}

// The same of all bytes of a buffer. The kernel looks at both ends, and takes a pointer behind the
// last one for one beyond.
inline bool IsBeyond(const void* p, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  return at + bytes < at || IsBeyond(reinterpret_cast<const void*>(at + bytes));
}

// An address that no program can own: the first page, or beyond its half. Other bad addresses are
// found when they are used (user_memory.h).
inline bool BadPointer(const void* p) {
  constexpr uintptr_t kLowest = 4096;
  return reinterpret_cast<uintptr_t>(p) < kLowest || IsBeyond(p);
}

class IovCursor {
 public:
  IovCursor(const iovec* iov, size_t count)
      : iov_(iov), count_(count), left_(count == 1 ? iov->iov_len : SumOf(iov, count)) {}
  size_t left() const { return left_ - aside_; }
  // The last `bytes` are not to be copied yet, and don't count as left.
  void SetAside(size_t bytes) { aside_ = bytes; }
  // A copy has met memory that is not there. It counts as not made, and there is none after it.
  bool fault() const { return fault_; }
  void TakeFault(const IovCursor& from) { fault_ = fault_ || from.fault_; }
  // Copies up to `bytes` between the program's buffers and `at`. 0: a fault.
  size_t CopyOut(uint8_t* at, size_t bytes) {
    return Walk(bytes, [&](void* user, size_t n) {
      const bool done = CopyUser(at, user, n);
      at += n;
      return done;
    });
  }
  // The same past the cache, to a 64-byte aligned place. Pieces that do not end on a line go the
  // other way.
  size_t StreamOut(uint8_t* at, size_t bytes) {
    return Walk(bytes, [&](void* user, size_t n) {
      const bool done = reinterpret_cast<uintptr_t>(at) % 64 == 0
                            ? CopyLargePastCache(at, static_cast<const uint8_t*>(user), n)
                            : CopyUser(at, user, n);
      at += n;
      return done;
    });
  }
  size_t CopyIn(const uint8_t* at, size_t bytes) {
    return Walk(bytes, [&](void* user, size_t n) {
      const bool done = CopyUser(user, at, n);
      at += n;
      return done;
    });
  }
  // What is left, in at most `max` pieces; returns how many.
  size_t Rest(iovec* out, size_t max) const {
    size_t n = 0;
    for (size_t i = 0; i < count_ && n < max; i++) {
      size_t skip = i == 0 ? used_ : 0;
      out[n++] = {static_cast<uint8_t*>(iov_[i].iov_base) + skip, iov_[i].iov_len - skip};
    }
    return n;
  }
  void Skip(size_t bytes) {
    Walk(bytes, [](void*, size_t) { return true; });
  }

 private:
  static size_t SumOf(const iovec* iov, size_t count) {
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += iov[i].iov_len;
    return sum;
  }
  // Most calls name one piece, and most copies stay within one.
  template <typename Fn>
  [[gnu::always_inline]] size_t Walk(size_t bytes, Fn fn) {
    if (count_ == 0 || bytes > iov_->iov_len - used_) return WalkOver(bytes, fn);
    if (bytes != 0 && !fn(static_cast<uint8_t*>(iov_->iov_base) + used_, bytes)) [[unlikely]] {
      fault_ = true;
      return 0;
    }
    used_ += bytes;
    left_ -= bytes;
    if (used_ == iov_->iov_len) NextPiece();
    return bytes;
  }
  void NextPiece() {
    iov_++;
    count_--;
    used_ = 0;
  }
  template <typename Fn>
  size_t WalkOver(size_t bytes, Fn fn) {
    size_t done = 0;
    while (done < bytes && count_ > 0) {
      size_t n = iov_->iov_len - used_;
      if (n > bytes - done) n = bytes - done;
      if (n != 0 && !fn(static_cast<uint8_t*>(iov_->iov_base) + used_, n)) [[unlikely]] {
        fault_ = true;
        return 0;
      }
      done += n;
      used_ += n;
      if (used_ == iov_->iov_len) NextPiece();
    }
    left_ -= done;
    return done;
  }

  const iovec* iov_;
  size_t count_;
  size_t left_;

 public:
  // What the caller will send behind this, as far as it knows: room is made for that, too.
  size_t ahead = 0;
  // What is copied out is not to be read yet (smcd/hold.h): PSTN_HELD_* and the time; 0: it is.
  uint64_t held = 0;

 private:
  size_t used_ = 0;
  size_t aside_ = 0;
  bool fault_ = false;

 public:
  // Room was made for all of it (RingMakeRoom).
  bool promised = false;
};

}  // namespace postern
