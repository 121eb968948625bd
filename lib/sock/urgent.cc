// SPDX-License-Identifier: Apache-2.0
// urgent.cc - the urgent byte of TCP (MSG_OOB), as the kernel's sockets show it.
//
// The byte travels in the ring like any other. Beside it the writer says, in its ctl line and
// before the byte is there, at which position of the stream it lies and what it is. The reader's
// side of that line is the one it looks at for each record anyway. A read stops at the mark; the
// one that begins there leaves the byte out, unless SO_OOBINLINE is set. As with TCP there is one
// mark at a time: a newer one makes the byte of the older one an ordinary byte.
#include <cerrno>

#include "sock/sock.h"

namespace postern {
namespace {

constexpr size_t kPiecesMax = 64;  // of a peek that begins at the mark

bool Inline(const pstn_ep& ep) { return (LoadRelaxed(ep.flags) & PSTN_EPF_OOBINLINE) != 0; }

// The position behind the urgent byte, from which on it is history.
bool IsAhead(const pstn_rx& rx) { return rx.bytes < rx.urgent_end; }

// Takes notice of a mark that has come since. Under rx.lock. Returns the last one's byte.
uint8_t Notice(const ConnEnd& e) {
  pstn_rx& rx = e.ep->rx;
  const uint64_t mark = LoadAcquire(e.peer_ctl().urgent);  // [A4] once: position and byte agree
  const uint8_t byte = static_cast<uint8_t>(mark);
  const uint64_t end = mark >> 8;
  if (end == rx.urgent_end) return byte;
  // The reader stands before the old byte: a newer mark makes it an ordinary one, but it stays out.
  if (IsAhead(rx) && rx.bytes + 1 == rx.urgent_end && !Inline(*e.ep))
    (void)RingRead(e, nullptr, 1, ReadMode::kDiscard);
  rx.urgent_end = end;
  FetchAnd(rx.gate, ~PSTN_RXG_URGENT_TAKEN);
  return byte;
}

}  // namespace

ReadResult ReadToMark(const ConnEnd& e, IovCursor* to, size_t want, bool first, ReadMode mode) {
  pstn_rx& rx = e.ep->rx;
  Notice(e);
  if (!IsAhead(rx)) return RingRead(e, to, want, mode);
  uint64_t before = rx.urgent_end - 1 - rx.bytes;
  if (before != 0) return RingRead(e, to, before < want ? before : want, mode);
  if (!first) return {0, ReadStatus::kOk};
  if (Inline(*e.ep)) return RingRead(e, to, want, mode);
  if (mode == ReadMode::kPeek) {  // over the byte, which stays
    uint8_t skipped;
    iovec pieces[kPiecesMax] = {{&skipped, 1}};
    IovCursor rest(pieces, 1 + to->Rest(pieces + 1, kPiecesMax - 1));
    ReadResult r = RingRead(e, &rest, want + 1, mode);
    return r.bytes > 1 ? ReadResult{r.bytes - 1, r.status} : ReadResult{0, ReadStatus::kEmpty};
  }
  ReadResult skip = RingRead(e, nullptr, 1, ReadMode::kDiscard);
  return skip.bytes != 0 ? RingRead(e, to, want, mode) : skip;  // it may not be there yet
}

MarkState LookAtMark(const ConnEnd& e) {
  if (LoadRelaxed(e.peer_ctl().urgent) == 0) return {};
  Guard g(e.ep->rx.lock);
  Notice(e);
  const pstn_rx& rx = e.ep->rx;
  if (!IsAhead(rx)) return {};
  MarkState mark;
  mark.before = rx.urgent_end - 1 - rx.bytes;
  mark.at = mark.before == 0;
  mark.hides = !Inline(*e.ep);
  mark.ready = (LoadRelaxed(rx.gate) & PSTN_RXG_URGENT_TAKEN) == 0;
  return mark;
}

long RecvUrgent(const ConnEnd& e, const iovec* iov, size_t count, int flags) {
  if (LoadRelaxed(e.peer_ctl().urgent) == 0) return -EINVAL;
  Guard g(e.ep->rx.lock);
  const uint8_t byte = Notice(e);
  pstn_rx& rx = e.ep->rx;
  bool taken = (LoadRelaxed(rx.gate) & PSTN_RXG_URGENT_TAKEN) != 0;
  if (Inline(*e.ep) || !IsAhead(rx) || taken) return -EINVAL;
  // The byte is still there, and can't be had any more: Linux, unless the stream had ended before.
  constexpr uint32_t kEnds = PSTN_CF_RST | PSTN_CF_FIN;
  if ((LoadAcquire(e.peer_ctl().flags) & kEnds) == PSTN_CF_RST) return -ENOTCONN;
  if ((flags & MSG_PEEK) == 0) FetchOr(rx.gate, PSTN_RXG_URGENT_TAKEN);
  for (size_t i = 0; i < count; i++) {
    if (iov[i].iov_len == 0) continue;
    if ((flags & MSG_TRUNC) == 0) *static_cast<uint8_t*>(iov[i].iov_base) = byte;
    return 1;
  }
  return 0;
}

void MarkUrgent(const ConnEnd& e, const iovec* iov, size_t sent, size_t more) {
  size_t at = sent + more;
  if (at == 0) return;
  at--;
  while (at >= iov->iov_len) at -= iov++->iov_len;
  uint64_t byte = static_cast<const uint8_t*>(iov->iov_base)[at];
  StoreRelease(e.ctl().urgent, (e.ep->tx.bytes + more) << 8 | byte);  // pairs with [A4]
}

}  // namespace postern
