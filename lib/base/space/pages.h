// SPDX-License-Identifier: Apache-2.0
// pages.h - memory for as long as a function runs, where its thread's stack may be small.
//
// A thread may have a stack of 16 KiB, of which the library uses no more than 4 (docs/style.md).
#pragma once
#include <cstddef>

#include "base/sys.h"

namespace postern {

class OwnPages {
 public:
  explicit OwnPages(size_t bytes)
      : bytes_(bytes), at_(bytes != 0 ? sys::MapPrivate(bytes) : nullptr) {}
  ~OwnPages() {
    if (at_ != nullptr) sys::Unmap(at_, bytes_);
  }
  OwnPages(const OwnPages&) = delete;
  OwnPages& operator=(const OwnPages&) = delete;
  // Zeroed; null: there is no memory, or none was asked for.
  template <typename T>
  T* As() const {
    return static_cast<T*>(at_);
  }

 private:
  const size_t bytes_;
  void* const at_;
};

}  // namespace postern
