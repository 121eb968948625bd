// SPDX-License-Identifier: Apache-2.0
// endpoint.h - what an endpoint is, and what poll() would say of it.
#pragma once
#include <sys/epoll.h>

#include "base/atomic.h"
#include "base/schema/reasons.h"
#include "family/family.h"
#include "smcd/ring.h"

namespace postern {

// The connection of an endpoint, if it has one and this process can reach it.
inline uint64_t Which(const pstn_ep& ep) {
  return static_cast<uint64_t>(LoadAcquire(ep.gen)) << 32 | LoadRelaxed(ep.conn_gen);  // [E2]
}
// The place of its connection. A look without a lock (Resolve) may get words of the last one and of
// this one: StillHere tells.
inline void SetPlace(pstn_ep& ep, uint32_t lgr_idx, uint32_t conn, uint32_t gen, uint32_t side) {
  StoreRelaxed(ep.lgr_idx, lgr_idx);
  StoreRelaxed(ep.conn_idx, conn);
  StoreRelaxed(ep.conn_gen, gen);
  StoreRelaxed(ep.side, side);
}
// Without asking posternd for a link group that is not mapped: for a thread with a lock that others
// wait for.
[[gnu::always_inline]] inline bool ResolveMapped(Family& fam, pstn_ep& ep, ConnEnd& e) {
  uint64_t which = Which(ep);
  const LgrHere at = LgrAt(fam.view, LgrIndex(LoadRelaxed(ep.lgr_idx)));
  if (at.base == nullptr || !HasRings(at.base)) return false;
  e = {
      &ep,  at.ref, at.base, &LgrConn(at.base, LoadRelaxed(ep.conn_idx)), LoadRelaxed(ep.side) & 1u,
      which};
  return true;
}
bool ResolveUnmapped(Family& fam, pstn_ep& ep, ConnEnd& e);
inline bool Resolve(Family& fam, pstn_ep& ep, ConnEnd& e) {
  return ResolveMapped(fam, ep, e) || ResolveUnmapped(fam, ep, e);
}
// [E1]
inline bool Here(const pstn_ep& ep) { return LoadAcquire(ep.state) == PSTN_EP_ESTABLISHED; }
// The same under tx.lock or rx.lock, under which no thread takes the connection away (export.cc,
// close.cc): and it is the connection that the call began with, not one that got the endpoint after
// that. A user of the rings asks this first: they may be another connection's.
inline bool StillHere(const ConnEnd& e) { return Here(*e.ep) && Which(*e.ep) == e.which; }
// Comes after all that has been done with the endpoint under its locks and counts. The thread that
// gave it back did, perhaps in another process, which ThreadSanitizer does not see.
void FollowUsers(const pstn_ep& ep);
uint32_t NewEp(Family& fam,
               uint32_t family);  // state NEW, one reference; PSTN_NONE when the stack is full
bool PortExcluded(Family& fam, uint16_t port);
// How large this end's ring may become.
RingLimits LimitsOf(Family& fam, const ConnEnd& e);
// Sends with MSG_ZEROCOPY whose end the program has not been told of.
inline bool HasCompletions(const pstn_ep& ep) {
  return (LoadRelaxed(ep.flags) & PSTN_EPF_ZEROCOPY) != 0 &&
         LoadRelaxed(ep.zerocopy_sent) != LoadRelaxed(ep.zerocopy_told);
}
// Whether a send that does not block would take something.
bool Writable(Family& fam, const ConnEnd& e);
// A peer that has shut down both directions, and no room before it: what is under way meets its
// RST.
bool BeforeShutPeer(Family& fam, const ConnEnd& e, uint32_t peer);
// The end of what we send is under way. PSTN_EPF_SHUT_WR alone does not say so: a shutdown() before
// connect() leaves it, and yet the connection's stream goes on, with nothing in it.
inline bool HasEnded(const ConnEnd& e) { return (LoadRelaxed(e.ctl().flags) & PSTN_CF_FIN) != 0; }
// Both directions are at their end: for TCP the connection is closed.
inline bool BothEnded(const ConnEnd& e, uint32_t peer_flags) {
  return HasEnded(e) && (peer_flags & (PSTN_CF_FIN | PSTN_CF_CLOSED)) != 0;
}
// The connection's error, which the call that reports it takes away; 0: none. A RST behind a FIN is
// EPIPE, as the kernel has it in CLOSE_WAIT.
int TakeError(const ConnEnd& e, uint32_t peer_flags);
// What poll() would say of the endpoint: EPOLLIN, EPOLLOUT, ... Asks no process: kNotMapped if its
// link group is not mapped here; a caller without a lock maps it and asks again. What has no link
// group any more has failed.
inline constexpr uint32_t kNotMapped = 1u << 16;
inline constexpr uint32_t kConnectionLost = EPOLLERR | EPOLLHUP | EPOLLIN | EPOLLOUT | EPOLLRDHUP;
uint32_t Readiness(Family& fam, pstn_ep& ep);
// UDP sockets that the wire serves beside the kernel (offhost/datagram.h). For all else they are
// the kernel's.
inline bool IsDatagram(const pstn_ep& ep) {
  return (LoadRelaxed(ep.flags) & PSTN_EPF_DATAGRAM) != 0;
}
// The kernel serves it, and no other.
inline bool IsKernels(const pstn_ep& ep) {
  return LoadAcquire(ep.state) == PSTN_EP_KERNEL && !IsDatagram(ep);  // [E1]
}

}  // namespace postern
