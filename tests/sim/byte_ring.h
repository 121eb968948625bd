// SPDX-License-Identifier: Apache-2.0
// byte_ring.h - a bounded queue of bytes whose positions are those of a stream, never wrapped.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace postern::sim {

class ByteRing {
 public:
  void Reset(size_t capacity) {
    bytes_.assign(capacity, 0);
    begin_ = end_ = 0;
  }
  void Free() { std::vector<uint8_t>().swap(bytes_); }
  // What is there is kept; a ring never gets smaller than that.
  void Resize(size_t capacity) {
    std::vector<uint8_t> larger(std::max(capacity, static_cast<size_t>(size())));
    ByteRing ring;
    ring.bytes_.swap(larger);
    ring.begin_ = ring.end_ = begin_;
    std::vector<uint8_t> kept(size());
    Peek(begin_, kept.data(), kept.size());
    ring.Put(kept.data(), kept.size());
    *this = std::move(ring);
  }

  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  uint64_t size() const { return end_ - begin_; }
  uint64_t room() const { return bytes_.size() - std::min<uint64_t>(bytes_.size(), size()); }
  uint64_t capacity() const { return bytes_.size(); }

  size_t Put(const uint8_t* data, size_t count) {
    count = std::min<size_t>(count, room());
    for (size_t done = 0; done < count;) {
      const size_t at = end_ % bytes_.size(), chunk = std::min(count - done, bytes_.size() - at);
      memcpy(&bytes_[at], data + done, chunk);
      done += chunk;
      end_ += chunk;
    }
    return count;
  }
  // The caller has checked that [pos, pos + count) is there.
  void Peek(uint64_t pos, uint8_t* out, size_t count) const {
    for (size_t done = 0; done < count;) {
      const size_t at = (pos + done) % bytes_.size();
      const size_t chunk = std::min(count - done, bytes_.size() - at);
      memcpy(out + done, &bytes_[at], chunk);
      done += chunk;
    }
  }
  void Drop(uint64_t count) { begin_ += std::min(count, size()); }

 private:
  std::vector<uint8_t> bytes_;
  uint64_t begin_ = 0, end_ = 0;
};

}  // namespace postern::sim
