// SPDX-License-Identifier: Apache-2.0
// marks.h - the place of an urgent byte in the stream, as its reader sees it (stream/urgent.cc).
#pragma once

#include "family/family.h"
#include "smcd/ring.h"

namespace postern {

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
