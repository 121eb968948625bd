// SPDX-License-Identifier: Apache-2.0
// urgent.cc - the urgent byte of TCP (MSG_OOB), as the kernel's sockets show it.
//
// The byte travels in the ring like any other. Beside it the writer says, in its ctl line and
// before the byte is there, at which position of the stream it lies and what it is. The reader's
// side of that line is the one it looks at for each record anyway. A read stops at the mark; the
// one that begins there leaves the byte out, unless SO_OOBINLINE is set. As with TCP there is one
// mark at a time: a newer one makes the byte of the older one an ordinary byte.
#include <cerrno>

#include "endpoint/endpoint.h"
#include "endpoint/marks.h"
#include "stream/io_checks.h"
#include "stream/urgent.h"

namespace postern {
namespace {

constexpr size_t kPiecesMax = 64;  // of a peek that begins at the mark

}  // namespace

ReadResult ReadToMark(const ConnEnd& e, IovCursor* to, size_t want, bool first, ReadMode mode) {
  pstn_rx& rx = e.ep->rx;
  AssertHeld(rx.lock);
  NoticeMark(e);
  if (!MarkIsAhead(rx)) return RingRead(e, to, want, mode);
  uint64_t before = rx.urgent_end - 1 - rx.bytes;
  if (before != 0) return RingRead(e, to, before < want ? before : want, mode);
  if (!first) return {0, ReadStatus::kOk};
  if (MarkIsInline(*e.ep)) return RingRead(e, to, want, mode);
  if (mode == ReadMode::kPeek) {  // over the byte, which stays
    uint8_t skipped;
    iovec pieces[kPiecesMax] = {{&skipped, 1}};
    IovCursor rest(pieces, 1 + to->Rest(pieces + 1, kPiecesMax - 1));
    ReadResult r = RingRead(e, &rest, want + 1, mode);
    to->TakeFault(rest);
    return r.bytes > 1 ? ReadResult{r.bytes - 1, r.status} : ReadResult{0, ReadStatus::kEmpty};
  }
  ReadResult skip = RingRead(e, nullptr, 1, ReadMode::kDiscard);
  return skip.bytes != 0 ? RingRead(e, to, want, mode) : skip;  // it may not be there yet
}

long RecvUrgent(const ConnEnd& e, const iovec* iov, size_t count, int flags) {
  if (LoadRelaxed(e.peer_ctl().urgent) == 0) return -EINVAL;
  Guard g(e.ep->rx.lock);
  if (!StillHere(e)) return NotHere(e);
  const uint8_t byte = NoticeMark(e);
  pstn_rx& rx = e.ep->rx;
  AssertHeld(rx.lock);
  bool taken = (LoadRelaxed(rx.gate) & PSTN_RXG_URGENT_TAKEN) != 0;
  if (MarkIsInline(*e.ep) || !MarkIsAhead(rx) || taken) return -EINVAL;
  // The byte is still there, and can't be had any more: Linux, unless the stream had ended before.
  constexpr uint32_t kEnds = PSTN_CF_RST | PSTN_CF_FIN;
  if ((LoadAcquire(e.peer_ctl().flags) & kEnds) == PSTN_CF_RST) return -ENOTCONN;  // [C2]
  if ((flags & MSG_PEEK) == 0) FetchOr(rx.gate, PSTN_RXG_URGENT_TAKEN);
  for (size_t i = 0; i < count; i++) {
    if (iov[i].iov_len == 0) continue;
    return (flags & MSG_TRUNC) != 0 || PutUser(iov[i].iov_base, byte) ? 1 : -EFAULT;
  }
  return 0;
}

void MarkUrgent(const ConnEnd& e, uint64_t before, const iovec* iov, size_t sent, size_t more) {
  size_t at = sent + more;
  if (at == 0) return;
  at--;
  while (at >= iov->iov_len) at -= iov++->iov_len;
  uint8_t byte = 0;  // if there is none, it is not sent either
  (void)GetUser(byte, static_cast<const uint8_t*>(iov->iov_base) + at);
  StoreRelease(e.ctl().urgent, Mark::After(before, e.ep->tx.bytes + more, byte));  // [R4]
}

}  // namespace postern
