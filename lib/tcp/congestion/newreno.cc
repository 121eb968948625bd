// SPDX-License-Identifier: Apache-2.0
// newreno.cc - one segment more for each window, half the window after a loss (RFC 5681, 6582).
#include <algorithm>

#include "tcp/congestion/congestion_parts.h"

namespace postern::tcp {

// RFC 3465, 2.1: a segment more whenever a window's worth of bytes has been acknowledged, however
// many acknowledgements that took. One of several windows (a hole was filled) counts for each.
void NewRenoAvoid(Congestion& cc, uint32_t bytes) {
  const uint64_t acked = uint64_t{cc.bytes_acked} + bytes;
  const uint64_t windows = acked / cc.cwnd_bytes;
  cc.bytes_acked = static_cast<uint32_t>(acked % cc.cwnd_bytes);
  const uint64_t cwnd = cc.cwnd_bytes + windows * cc.mss_bytes;
  cc.cwnd_bytes = static_cast<uint32_t>(std::min<uint64_t>(cwnd, kCwndMax));
}

//= rfc5681#3.1
//# ssthresh = max (FlightSize / 2, 2*SMSS)
// cwnd in place of FlightSize, as Linux: congestion.cc takes back what the program has not used.
uint32_t NewRenoReduced(const Congestion& cc) {
  return std::max(cc.cwnd_bytes / 2, 2 * cc.mss_bytes);
}

}  // namespace postern::tcp
