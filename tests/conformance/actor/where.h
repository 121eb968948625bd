// SPDX-License-Identifier: Apache-2.0
// where.h - memory that is not there, or not as a call wants it.
//
// null, low (the first page), nowhere (nothing is mapped), wild (no address at all), kernel (its
// half), none (mapped, with no rights), file (a file that is too short now: SIGBUS), readonly
// (whole, but not to be written), end (its second half is not there), last (its last byte is not),
// endfile (its second half was a file's), or fine.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "conform.h"

namespace conform {

constexpr size_t kPage = 4096;

// Pages of which a file has only the first, `after` of them.
inline uint8_t* OfFile(size_t before, size_t after) {
  const int file = memfd_create("conform", 0);
  const auto bytes = static_cast<off_t>(before + after);
  if (ftruncate(file, bytes) != 0) _exit(9);
  void* at = mmap(nullptr, before + after, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  memset(at, 'f', before + after);
  if (ftruncate(file, static_cast<off_t>(before)) != 0) _exit(9);
  close(file);
  return static_cast<uint8_t*>(at);
}

// `bytes` of `what`, as far as they can lie there.
class Memory {
 public:
  Memory(const std::string& where, const void* what, size_t bytes) : where_(where) {
    uint8_t* edge;  // behind what is there
    if (where == "file" || where == "endfile") {
      base_ = OfFile(kBefore, kPage);
    } else {
      base_ = static_cast<uint8_t*>(mmap(nullptr, kBefore + kPage, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
    edge = base_ + kBefore;
    at_ = base_;
    size_t there = bytes;
    if (where == "file") at_ = edge, there = 0;
    if (where == "end" || where == "endfile") at_ = edge - bytes / 2;
    if (where == "last") at_ = edge - (bytes - 1);
    if (where == "endfile") there = bytes / 2;
    memcpy(at_, what, there);
    if (where == "end" || where == "last") mprotect(edge, kPage, PROT_NONE);
    if (where == "none") mprotect(base_, kBefore + kPage, PROT_NONE);
    if (where == "readonly") mprotect(base_, kBefore + kPage, PROT_READ);
    if (where == "nowhere") munmap(base_, kBefore + kPage);
    if (where == "null") at_ = nullptr;
    if (where == "low") at_ = static_cast<uint8_t*>(Nowhere());
    if (where == "wild") at_ = reinterpret_cast<uint8_t*>(0x4141414141414140);
    if (where == "kernel") at_ = reinterpret_cast<uint8_t*>(0xffff800000001000);
  }
  template <typename T>
  Memory(const std::string& where, const T& what) : Memory(where, &what, sizeof what) {}
  ~Memory() {
    if (where_ != "nowhere") munmap(base_, kBefore + kPage);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(at_);
  }

 private:
  static constexpr size_t kBefore = 2 * kPage;
  const std::string where_;
  uint8_t *base_, *at_;
};

// `good` bytes "0123456789...", with pages behind them that are not there (nowhere, none, file), can
// only be read (readonly), or are there (fine).
class Halves {
 public:
  Halves(const std::string& where, size_t good) : before_((good + kPage) / kPage * kPage) {
    base_ = where == "file"
                ? OfFile(before_, kAfter)
                : static_cast<uint8_t*>(mmap(nullptr, before_ + kAfter, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    at_ = reinterpret_cast<char*>(base_ + before_ - good);
    for (size_t i = 0; i < good; ++i) at_[i] = static_cast<char>('0' + i % 10);
    if (where == "none") mprotect(base_ + before_, kAfter, PROT_NONE);
    if (where == "readonly") mprotect(base_ + before_, kAfter, PROT_READ);
    if (where == "nowhere") munmap(base_ + before_, kAfter);
  }
  ~Halves() { munmap(base_, before_ + kAfter); }
  Halves(const Halves&) = delete;
  Halves& operator=(const Halves&) = delete;
  char* at() const { return at_; }

 private:
  static constexpr size_t kAfter = 8 * kPage;
  const size_t before_;
  uint8_t* base_;
  char* at_;
};

}  // namespace conform
