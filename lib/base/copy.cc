// SPDX-License-Identifier: Apache-2.0
// copy.cc - see copy.h.
#include "base/copy.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <cstring>

#include "base/clock.h"

namespace postern {

constinit thread_local CopyChooser t_copy_chooser __attribute__((tls_model("initial-exec")));

void CopyPastCache(uint8_t* to, const uint8_t* from, size_t bytes) {
#if defined(__x86_64__)
  for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
    const auto* s = reinterpret_cast<const __m128i*>(from);
    auto* d = reinterpret_cast<__m128i*>(to);
    __m128i a = _mm_loadu_si128(s), b = _mm_loadu_si128(s + 1), c = _mm_loadu_si128(s + 2),
            e = _mm_loadu_si128(s + 3);
    _mm_stream_si128(d, a);
    _mm_stream_si128(d + 1, b);
    _mm_stream_si128(d + 2, c);
    _mm_stream_si128(d + 3, e);
  }
  _mm_sfence();  // such stores are ordered by nothing else, not by a release either
#endif
  if (bytes != 0) memcpy(to, from, bytes);
}

CopyWay CopyChooser::EndPhase() {
  uint64_t now = MonotonicNs();
  uint64_t took = now - began_ns_;
  began_ns_ = now;
  left_ = kPhaseBytes;
  return Judge(took);
}

CopyWay CopyChooser::Judge(uint64_t took_ns) {
  phase_++;
  if (phase_ < kPhases) {
    // The first phase after a change still has lines of the other kind in the ring.
    if (phase_ > 1 && (usual_ns_ == 0 || took_ns < usual_ns_)) usual_ns_ = took_ns;
  } else if (phase_ < kPhases + 2) {
    way_ = phase_ == kPhases ? Other() : way_;  // a trial, two phases long: the second one counts
  } else {
    if (took_ns >= usual_ns_ - usual_ns_ / 16) way_ = Other();  // no better: back
    phase_ = 0;
    usual_ns_ = 0;
  }
  return way_;
}

}  // namespace postern
