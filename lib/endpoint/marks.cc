// SPDX-License-Identifier: Apache-2.0
// marks.cc - the place of an urgent byte in the stream, as its reader sees it.
#include "endpoint/marks.h"

#include "endpoint/endpoint.h"

namespace postern {

uint8_t NoticeMark(const ConnEnd& e) {
  pstn_rx& rx = e.ep->rx;
  AssertHeld(rx.lock);
  const uint64_t word = LoadAcquire(e.peer_ctl().urgent);  // [R4] once: position and byte agree
  const Mark mark = Mark::Of(word, rx.bytes);
  if (word == 0 || mark.end == rx.urgent_end) return mark.byte;
  // The reader stands before the old byte: a newer mark makes it an ordinary one, but it stays out.
  // So do those in between, if that was the next to come each time.
  if (!MarkIsInline(*e.ep)) {
    if (rx.bytes + 1 == rx.urgent_end) (void)RingRead(e, nullptr, 1, ReadMode::kDiscard);
    const uint64_t between = mark.end - 1 - rx.bytes;
    if (rx.bytes >= rx.urgent_end && between != 0 && between <= mark.row)
      (void)RingRead(e, nullptr, between, ReadMode::kDiscard);
  }
  rx.urgent_end = mark.end;
  FetchAnd(rx.gate, ~PSTN_RXG_URGENT_TAKEN);
  return mark.byte;
}

MarkState LookAtMark(const ConnEnd& e) {
  if (LoadRelaxed(e.peer_ctl().urgent) == 0) return {};
  Guard g(e.ep->rx.lock);
  if (!StillHere(e)) return {};
  NoticeMark(e);
  const pstn_rx& rx = e.ep->rx;
  AssertHeld(rx.lock);
  if (!MarkIsAhead(rx)) return {};
  MarkState mark;
  mark.before = rx.urgent_end - 1 - rx.bytes;
  mark.at = mark.before == 0;
  mark.hides = !MarkIsInline(*e.ep);
  mark.ready = (LoadRelaxed(rx.gate) & PSTN_RXG_URGENT_TAKEN) == 0;
  return mark;
}

}  // namespace postern
