// SPDX-License-Identifier: Apache-2.0
// copy.h - large copies into memory that another core will read.
//
// Two ways. Ordinary stores take each line from the core that read it last, and leave it in our
// cache, where the reader has to fetch it. Stores past the cache go to memory, from where the
// reader's prefetcher gets them. Which is faster depends on how far apart the two cores are. Seen
// in one virtual machine within minutes (its cores seem to be moved), ring of 256 KiB to 4 MiB:
//   round trip of a line 0.1 us: ordinary 12-14 GB/s (1 MiB) to 43 (4 MiB), past the cache 14-17
//   round trip of a line 0.4 us: ordinary 2.3 GB/s,                         past the cache 14-17
// Nothing tells a program which it is, so it is measured: of kPhases phases, two are copied the
// other way, and the faster way is kept.
#pragma once
#include <cstddef>
#include <cstdint>

namespace postern {

inline constexpr size_t kLargeCopy = 4096;

// To `to`, which is 64-byte aligned. A reader that acquires sees what follows in program order
// after it.
void CopyPastCache(uint8_t* to, const uint8_t* from, size_t bytes);

// Which way the calling thread's next large copy of `bytes` goes. The time that matters is that of
// the stream, not of the copy: it is the reader that waits for lines. So phases are timed from end
// to end.
enum class CopyWay : uint8_t { kCached, kPastCache };
class CopyChooser {
 public:
  CopyWay Next(size_t bytes) {
    if (left_ > bytes) [[likely]] {
      left_ -= bytes;
      return way_;
    }
    return EndPhase();
  }

  // `took_ns` ends a phase: what the next one does. Apart from the clock, for tests.
  CopyWay Judge(uint64_t took_ns);

 private:
  static constexpr size_t kPhaseBytes = 1 << 20;  // a lap of the largest ring: what is in it counts
  static constexpr uint32_t kPhases = 128;

  CopyWay EndPhase();
  CopyWay Other() const {
    return way_ == CopyWay::kCached ? CopyWay::kPastCache : CopyWay::kCached;
  }

  size_t left_ = kPhaseBytes;
  uint64_t began_ns_ = 0;
  uint64_t usual_ns_ = 0;  // the fastest phase since the last trial
  uint32_t phase_ = kPhases - 8;
  CopyWay way_ = CopyWay::kCached;
};

extern constinit thread_local CopyChooser t_copy_chooser __attribute__((tls_model("initial-exec")));

}  // namespace postern
