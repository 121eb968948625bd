// SPDX-License-Identifier: Apache-2.0
// notify.h - tells the other side (or another process of ours) that something changed.
//
// Two ways to sleep, so two ways to wake:
//  - a thread blocked on one connection sleeps on a futex in its own ctl line (rx_wait, tx_wait);
//  - an event set or poll() sleeps in the kernel on its fds and its doorbell; it is told by a bit
//    in its evmap and, only when `sleeping` says so, by a datagram to the doorbell.
//
// No lost wake-up: the sleeper stores its flag, full fence, looks again, sleeps. The waker stores
// its news, full fence (or the locked instruction that sets the bit), loads the flag. One of the
// two sees the other's store [F1]. No system call while the other side is awake.
#pragma once
#include "smcd/ring.h"

namespace postern {

// The doorbell of a waiter: an abstract datagram socket, named by stack, index and a random number.
// Nothing has to pass it on, it needs no file, works after chroot and setuid, and is gone with its
// owner; a ring by a stranger is a spurious wake-up. Names are everybody's to take: the number
// keeps strangers from taking the next one first.
struct BellName {
  pstn_uuid stack;
  uint32_t waiter;
  uint64_t nonce;
};
inline BellName BellOf(const StackMap& s, uint32_t waiter) {
  const pstn_waiter* const w = s.waiters.At(WaiterIndex(waiter));
  return {s.hdr.id, waiter, w != nullptr ? LoadRelaxed(w->nonce) : 0};
}
// A non-blocking fd, or -errno. Descriptors can't be sent to it (DrainBell), before Linux 6.16 they
// can.
int OpenBell(const BellName& name);
// What posting needs of its process.
struct Bells {
  int sender = -1;                // fd for RingBell, opened on first use
  int wide_sender = -1;           // one in the bells' network namespace, if there is such (bells.h)
  uint64_t* counters = nullptr;   // of the poster's stack
  uint32_t* told = nullptr;       // of the poster's slot
  uint32_t noted = 0;             // 1: *told is 1
  bool confined = false;          // a seccomp filter may forbid socket()
  bool mute = false;              // it may end the process for ringing, too
  uint32_t rights = 0;            // (a) PassRights: whether descriptors may come with a ring
  uint32_t owed = 0;              // (a) 1: a sleeper could not be rung, see RingOwed
  uint64_t no_wait_until_ns = 0;  // (a) no ring waits for room before that
  int module = -1;                // (a) the kernel module's descriptor of the stack; -1: none
};
enum class PassRights : uint32_t { kUnknown = 0, kNever = 1, kPerhaps = 2 };
// Takes what has come, but no more than a few: the one who rings may be faster. Any process can
// ring, and may send descriptors along. Whoever takes such a message closes them, which takes as
// long as their sender likes: a socket with SO_LINGER and unsent data sleeps for as long as that
// says. So none is taken. False: one lies in front, for ever. The owner leaves such a bell open and
// does without it (SpoiltBell in event/wait.h).
bool DrainBell(Bells& b, int fd);
int BellSender(Bells& b);
// True if a process holds that bell, in the one network namespace or the other.
bool RingBell(Bells& b, const BellName& name);
// What the sender has under way counts until it is taken: a hostile peer's bells, which no thread
// answers, fill it for all others. A sleeper that could not be rung says again that it sleeps, and
// `owed` has the process get another sender (PayRings in event/wait.cc) and ring it then.
void RingOwed(Bells& b, uint8_t* lgr, uint32_t side);
void RingOwedInside(Bells& b, StackMap& s);

// Before anything is written that others are to be told of. A process that never got here, as most
// children between fork and exec, can die without a look at sleepers that it may have left.
inline void NoteNews(Bells& b) {
  if (LoadRelaxed(b.noted) != 0) [[likely]]
    return;
  if (b.told != nullptr) StoreRelease(*b.told, 1u);  // [P7]
  StoreRelaxed(b.noted, 1u);
}

// Sleepers that a post rings which is for all, or for all waiters of a listener. More would be rung
// by these: see SpreadPosts and AdmitSyns.
inline constexpr uint32_t kRingsPerPost = 8;

// Where the kernel module has an end of a connection (PSTN_CF_MODULE), what sleeps there, and the
// threads of the other end that sleep for it, are woken by it (abi/kmod_abi.h). `what`:
// PSTN_RING_*.
void WakeInModule(const Bells& b, const ConnEnd& e, uint32_t what);
inline bool PeerIsModules(const ConnEnd& e) {
  return (LoadRelaxed(e.peer_ctl().flags) & PSTN_CF_MODULE) != 0;
}
// A futex wait for our own rx_wait or tx_wait, of which the module can wake us.
long SleepInModule(const Bells& b, const ConnEnd& e, uint32_t what, uint32_t value,
                   const timespec* left);

// Sets the bit of `conn` in evmap `waiter` of `side` and wakes its owner if it sleeps.
void PostBit(Bells& b, uint8_t* lgr, uint32_t side, uint32_t waiter, uint32_t conn);
// Tells the peer that data or flags have come: bit, doorbell and futex as it asked for.
void AnnounceData(Bells& b, const ConnEnd& e);
// Whether the peer is the stack's engine. A thread that is about to take the engine's turn only
// leaves word of the data (PostEngine); if the turn does not come, it has the keeper take it.
inline bool PeerIsEngine(const ConnEnd& e) {
  return LoadRelaxed(e.peer_ctl().rx_notify) == PSTN_EVMAP_WIRE + 1;
}
// Or this end of it: its names are those of another host's socket.
inline bool IsEngines(const ConnEnd& e) {
  return LoadRelaxed(e.ctl().rx_notify) == PSTN_EVMAP_WIRE + 1;
}
void PostEngine(Bells& b, const ConnEnd& e);
void RingEngine(Bells& b, const ConnEnd& e);
// The same after Unlock() of the lock under which the data was written: its locked instruction is
// the fence of [F1], so that a send to a peer that is awake and listens nowhere costs two loads.
// Whether the peer had asked to be told.
inline bool AnnounceUnlocked(Bells& b, const ConnEnd& e) {
  FenceAfterLocked();  // [F1]
  const pstn_conn_ctl& peer = e.peer_ctl();
  if ((LoadRelaxed(peer.rx_notify) | LoadRelaxed(peer.rx_wait)) == 0) return false;
  AnnounceData(b, e);
  return true;
}
// Tells those of the peer's threads that sleep and wait for data until when some is held back: they
// look once, and sleep no longer than that (event/held.h). An event is none of it.
void AnnounceHold(Bells& b, const ConnEnd& e);
// The time has come: `side` hears of it, whose process this is, as if the peer had sent it now.
void PostHeldOver(Bells& b, uint8_t* lgr, uint32_t side, uint32_t conn);
// Tells the peer that ring space was returned, if it waits for that.
void AnnounceSpace(Bells& b, const ConnEnd& e);
// After a read, under rx.lock: AnnounceSpace when a sixteenth of the ring has come back since it
// was last considered. RingRead has counted what came back.
void ReturnSpace(Bells& b, const ConnEnd& e) PSTN_REQUIRES(e.ep->rx.lock);
// AnnounceData and AnnounceSpace towards our own side: for threads of ours that wait on `e`
// (shutdown, close, death).
void AnnounceLocal(Bells& b, const ConnEnd& e);
// Of these, those that sleep on the connection's own words, and nothing else: there is no news.
void WakeOwnThreads(Bells& b, const ConnEnd& e);
// A new connection: bit in the server's SYN map, and its waiters that want such news.
void AnnounceSyn(Bells& b, uint8_t* lgr, uint32_t conn);
// Wakes every waiter of `side` (death of the other).
void AnnounceAll(Bells& b, uint8_t* lgr, uint32_t side);

// For posternd. A waker first takes the sleeper's word for its sleep, then wakes it; a waker that
// dies in between leaves a sleeper that no other process wakes. So, after a death: PostTaken for
// each connection that the dead process held, both sides' bits and futexes; then RingTaken for each
// link group of these, which rings waiters that do not say that they sleep. Awake, these look once
// in vain.
void PostTaken(Bells& b, const ConnEnd& e);
void RingTaken(Bells& b, uint8_t* lgr, uint32_t side);
void RingTakenInside(Bells& b, StackMap& s);
// The peer of `e` is dead, and may have left anything in the link group, waiters and sleepers
// included: what the stack knows itself says where news goes. After the last connection,
// RingInside rings every waiter of the stack.
void PostEnded(Bells& b, StackMap& s, const ConnEnd& e);
void RingInside(Bells& b, StackMap& s);

// Wakes a waiter from inside its own stack.
void PostWaiter(Bells& b, StackMap& s, uint32_t waiter);

}  // namespace postern
