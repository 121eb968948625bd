// SPDX-License-Identifier: Apache-2.0
// marks.h - the place of an urgent byte in the stream, as its reader sees it (stream/urgent.cc).
#pragma once

#include "family/family.h"
#include "smcd/ring.h"

namespace postern {

// pstn_conn_ctl::urgent is one word, so that all of it is of one mark. What is before the mark is
// told as well: a reader that has heard of none of a row of urgent bytes, and stands before the
// first, leaves out all of them, as it would have when each came.
struct Mark {
  static constexpr unsigned kEndShift = 16, kRowShift = 8;
  static constexpr uint64_t kEndMask = ~uint64_t{0} >> kEndShift, kRowMax = 0xff;

  uint64_t end;  // stream position behind the byte
  uint64_t row;  // how many bytes right before it were urgent ones, too
  uint8_t byte;

  // Of which the upper bits are those of a position near `at`: the reader's.
  static Mark Of(uint64_t word, uint64_t at) {
    const uint64_t ahead = ((word >> kEndShift) - at) << kEndShift;
    return {at + static_cast<uint64_t>(static_cast<int64_t>(ahead) >> kEndShift),
            word >> kRowShift & kRowMax, static_cast<uint8_t>(word)};
  }
  // The one behind `before`, which is the writer's own word.
  static uint64_t After(uint64_t before, uint64_t end, uint8_t byte) {
    uint64_t row = 0;
    if (before != 0 && (((before >> kEndShift) + 1) & kEndMask) == (end & kEndMask)) {
      row = (before >> kRowShift & kRowMax) + 1;
      if (row > kRowMax) row = kRowMax;
    }
    return end << kEndShift | row << kRowShift | byte;
  }
};

struct MarkState {
  bool at = false;      // the urgent byte comes next
  bool ready = false;   // and can be had with MSG_OOB
  bool hides = false;   // it is not part of what is read (no SO_OOBINLINE)
  uint64_t before = 0;  // bytes before it
};
// As without a mark where the endpoint has another connection by now, or none.
MarkState LookAtMark(const ConnEnd& e);
inline bool MarkIsInline(const pstn_ep& ep) {
  return (LoadRelaxed(ep.flags) & PSTN_EPF_OOBINLINE) != 0;
}
// The position behind the urgent byte, from which on it is history.
inline bool MarkIsAhead(const pstn_rx& rx) PSTN_REQUIRES(rx.lock) {
  return rx.bytes < rx.urgent_end;
}
// Takes notice of a mark that has come since. Under rx.lock. Returns the last one's byte.
uint8_t NoticeMark(const ConnEnd& e) PSTN_REQUIRES(e.ep->rx.lock);

}  // namespace postern
