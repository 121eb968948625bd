// SPDX-License-Identifier: Apache-2.0
// notify.cc - see notify.h.
#include "smcd/notify.h"

#include <sys/un.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include "abi/kmod_abi.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/log/trace.h"
#include "base/no_descriptors.h"
#include "base/schema/counters.h"
#include "base/sys.h"

namespace postern {
namespace {

constexpr uint32_t kAll = 0x7fffffffu;
constexpr uint32_t kTriesPerPost = 4 * kRingsPerPost;
// Threads of the peer's that a post wakes on a connection's word; these wake the others (Arm,
// event/block.h). Ten thousand would take the waker some 40 ms.
constexpr uint32_t kWakesPerPost = 8;
// Of rings that come faster than they are taken, the next sleep takes the rest. Most kernels keep
// 10 for a bell, or 512 (net.unix.max_dgram_qlen).
constexpr uint32_t kRingsPerDrain = 64;

void PutHex(char*& p, uint64_t v) {
  for (int shift = 60; shift >= 0; shift -= 4) *p++ = "0123456789abcdef"[v >> shift & 0xfu];
}

// Length of the address, which is abstract: first byte 0.
socklen_t Address(sockaddr_un& a, const BellName& name) {
  memset(&a, 0, sizeof a);
  a.sun_family = AF_UNIX;
  char* p = a.sun_path + 1;
  for (const char c : std::string_view("postern/")) *p++ = c;
  PutHex(p, name.stack.hi);
  PutHex(p, name.stack.lo);
  *p++ = '/';
  PutHex(p, name.waiter);
  *p++ = '/';
  PutHex(p, name.nonce);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                static_cast<size_t>(p - a.sun_path));
}

void Count(Bells& b, Counter c) {
  if (b.counters != nullptr) StoreRelaxed(b.counters[c], LoadRelaxed(b.counters[c]) + 1);
}

// The bell of evmap `waiter` of `side`, as its owner has written it there.
BellName BellIn(uint8_t* lgr, uint32_t side, uint32_t waiter) {
  return {LgrHdr(lgr).stack[side], waiter, LoadRelaxed(LgrEvmap(lgr, side, waiter).nonce)};
}

void WakeFutex(Bells& b, uint32_t& word) {
  Count(b, kCounterFutexWakes);
  PSTN_TRACE2(wakes_call, &word, kWakesPerPost);
  (void)sys::FutexWake(&word, kWakesPerPost);
}

// What of the peer waits for data on the connection's own word.
void WakeReaders(Bells& b, const ConnEnd& e) {
  uint32_t& word = e.peer_ctl().rx_wait;
  if (LoadRelaxed(word) == 0) return;
  const uint32_t how = Exchange(word, 0u);
  if ((how & PSTN_RXW_MODULE) != 0) [[unlikely]]
    WakeInModule(b, e, PSTN_RING_DATA);
  if ((how & ~PSTN_RXW_MODULE) != 0) WakeFutex(b, word);
}

void SetBits(pstn_evmap& map, uint32_t conn) {
  conn %= PSTN_CONNS;
  FetchOr(map.leaf[conn / 64], 1ull << (conn % 64));
  FenceAfterLocked();  // [F1] against TakeBits: the owner finds the bit, or we find its word taken
  uint64_t word = 1ull << (conn / 64);
  if ((LoadRelaxed(map.summary) & word) == 0) FetchOr(map.summary, word);
  FenceAfterLocked();  // [F1] against AnnounceSleep, and against a release of the engine's lock
}

uint32_t WaitersHw(uint8_t* lgr, uint32_t side) {
  uint32_t hw = LoadRelaxed(LgrHdr(lgr).waiters_hw[side]);
  return hw < PSTN_WAITERS ? hw : PSTN_WAITERS;
}

int BellSocket() {
  return static_cast<int>(sys::MakeOurs(
      [] { return long{sys::Socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)}; }));
}

}  // namespace

void WakeInModule(const Bells& b, const ConnEnd& e, uint32_t what) {
  const int module = LoadRelaxed(b.module);
  if (module < 0 || b.mute) return;
  const pstn_ioc_wake arg = {LoadRelaxed(e.ep->lgr_idx), LoadRelaxed(e.ep->conn_idx), what, 0};
  (void)sys::Call(SYS_ioctl, module, PSTN_IOC_WAKE, &arg);
}

long SleepInModule(const Bells& b, const ConnEnd& e, uint32_t what, uint32_t value,
                   const timespec* left) {
  constexpr uint64_t kNsPerSec = 1'000'000'000;
  pstn_ioc_wait arg = {};
  arg.lgr_idx = LoadRelaxed(e.ep->lgr_idx);
  arg.conn_idx = LoadRelaxed(e.ep->conn_idx);
  arg.what = what;
  arg.value = value;
  arg.timeout_ns = left == nullptr ? PSTN_WAIT_FOREVER
                                   : static_cast<uint64_t>(left->tv_sec) * kNsPerSec +
                                         static_cast<uint64_t>(left->tv_nsec);
  return sys::Call(SYS_ioctl, LoadRelaxed(b.module), PSTN_IOC_WAIT, &arg);
}

int OpenBell(const BellName& name) {
  sockaddr_un a;
  socklen_t len = Address(a, name);
  int fd = BellSocket();
  if (fd < 0) return fd;
  (void)RefuseDescriptors(fd);  // before it has a name, by which any process can send to it
  long r = sys::Call(SYS_bind, fd, &a, len);
  if (r == 0) return fd;
  sys::Close(fd);
  return static_cast<int>(r);
}

namespace {

// The same for all bells of a process: it is the kernel that can keep them from it, or can't.
bool MayPassRights(Bells& b, int fd) {
  auto rights = static_cast<PassRights>(LoadRelaxed(b.rights));
  if (rights == PassRights::kUnknown) {
    rights = RefusesDescriptors(fd) ? PassRights::kNever : PassRights::kPerhaps;
    StoreRelaxed(b.rights, static_cast<uint32_t>(rights));
  }
  return rights == PassRights::kPerhaps;
}

// Whether the message in front has descriptors. The kernel says so to a reader that has no room for
// them; they stay in the message.
bool HasRights(int fd) {
  msghdr m = {};
  const long r =
      sys::Call(SYS_recvmsg, fd, &m, static_cast<long>(MSG_DONTWAIT | MSG_PEEK | MSG_CMSG_CLOEXEC));
  return r >= 0 && (m.msg_flags & MSG_CTRUNC) != 0;
}

}  // namespace

bool DrainBell(Bells& b, int fd) {
  char byte[8];
  const bool looks = MayPassRights(b, fd);
  for (uint32_t i = 0; i < kRingsPerDrain; i++) {
    if (looks && HasRights(fd)) return false;
    if (sys::Call(SYS_recvfrom, fd, static_cast<char*>(byte), sizeof byte,
                  static_cast<long>(MSG_DONTWAIT), 0L, 0L) < 0)
      break;
  }
  return true;
}

namespace {

long SendRing(int sender, sockaddr_un& a, socklen_t len) {
  return sys::Call(SYS_sendto, sender, "!", 1L, static_cast<long>(MSG_DONTWAIT | MSG_NOSIGNAL), &a,
                   len);
}

// Whether less is under way from `sender` than it may have under way; waits for that so long.
bool HasRoom(int sender, long wait_ms) {
  pollfd one = {sender, POLLOUT, 0};
  return sys::Call(SYS_poll, &one, 1L, wait_ms) == 1;
}

// kYes: it rings, or has rung since its owner last looked. kNoRoom: not yet (Bells::owed).
enum class Rung : uint8_t { kYes, kNobody, kNoRoom };
Rung RungBy(long r) { return r == 1 || r == -EAGAIN ? Rung::kYes : Rung::kNobody; }

// After a wait in vain none waits for ten seconds: bells that no thread answers, as those of a
// hostile peer, would have each ring wait.
constexpr uint64_t kNoWaitNs = 10'000'000'000;
bool WaitForRoom(Bells& b, int sender, long wait_ms) {
  if (MonotonicCoarseNs() < LoadRelaxed(b.no_wait_until_ns)) return false;
  if (HasRoom(sender, wait_ms)) return true;
  StoreRelaxed(b.no_wait_until_ns, MonotonicCoarseNs() + kNoWaitNs);
  return false;
}

// A full queue is either that of the bell, which has rung then, or all that the sender may have
// under way: to some three hundred bells whose owners have not got up yet, or are stopped, or never
// will. Another sender has room.
Rung RingFrom(Bells& b, int sender, sockaddr_un& a, socklen_t len) {
  constexpr long kWaitMs = 100;
  constexpr int kTries = 10;
  long r = SendRing(sender, a, len);
  if (r != -EAGAIN || HasRoom(sender, 0)) return RungBy(r);
  const int another = b.confined ? -EPERM : BellSocket();
  if (another >= 0) {
    r = SendRing(another, a, len);
    sys::Close(another);
    if (RungBy(r) == Rung::kYes) return Rung::kYes;
    if (sender != LoadRelaxed(b.wide_sender)) return Rung::kNobody;
  }
  // The bell is in another network namespace, which `another` is not in: posternd has one more.
  if (sender == LoadRelaxed(b.wide_sender)) return Rung::kNoRoom;
  for (int i = 0; i < kTries && WaitForRoom(b, sender, kWaitMs); i++) {  // out of descriptors
    r = SendRing(sender, a, len);
    if (r != -EAGAIN || HasRoom(sender, 0)) return RungBy(r);
  }
  return Rung::kNoRoom;
}

Rung RingNamed(Bells& b, const BellName& name) {
  if (b.mute) return Rung::kNobody;
  sockaddr_un a;
  socklen_t len = Address(a, name);
  const int wide = LoadRelaxed(b.wide_sender);
  const Rung rung = wide >= 0 ? RingFrom(b, wide, a, len) : Rung::kNobody;
  return rung != Rung::kNobody ? rung : RingFrom(b, BellSender(b), a, len);
}

}  // namespace

bool RingBell(Bells& b, const BellName& name) {
  const Rung rung = RingNamed(b, name);
  if (rung == Rung::kNoRoom) [[unlikely]]
    StoreRelaxed(b.owed, 1u);
  return rung != Rung::kNobody;
}

namespace {

// Rings the owner of evmap `waiter` if it has announced its sleep. The load follows a fence of the
// caller [F1]: SetBits() ends with one.
// True: the owner is rung.
bool RingIfAsleep(Bells& b, uint8_t* lgr, uint32_t side, uint32_t waiter) {
  pstn_evmap& map = LgrEvmap(lgr, side, waiter);
  if (b.mute) return false;  // the next process that posts, or posternd after our end, rings
  // [S9]
  if (LoadRelaxed(map.sleeping) == 0 || Exchange(map.sleeping, 0u) == 0) return false;
  Count(b, kCounterDoorbells);
  PSTN_TRACE2(rings_bell, waiter, side);
  const Rung rung = RingNamed(b, BellIn(lgr, side, waiter));
  if (rung == Rung::kNoRoom) [[unlikely]] {
    (void)Exchange(map.sleeping, 1u);  // it sleeps on, or has got up by itself and looks in vain
    StoreRelaxed(b.owed, 1u);
  }
  return rung == Rung::kYes;
}

// Rings the first few sleepers that have one of `flags`; the one that gets up tells the others. A
// peer that claims to have hundreds of sleepers would have us do nothing else.
void RingSome(Bells& b, uint8_t* lgr, uint32_t side, uint32_t flags) {
  uint32_t hw = WaitersHw(lgr, side), rung = 0, tries = 0;
  for (uint32_t w = 1; w < hw && rung < kRingsPerPost && tries < kTriesPerPost; w++) {
    const pstn_evmap& map = LgrEvmap(lgr, side, w);
    if ((LoadRelaxed(map.in_use) & flags) == 0 || LoadRelaxed(map.sleeping) == 0) continue;
    rung += RingIfAsleep(b, lgr, side, w) ? 1u : 0u;  // a thread that died asleep stays so
    tries++;
  }
}

// Posts to the waiter in `notify`, a word of `side`: the owner's word, so any value is survived.
void PostTo(Bells& b, uint8_t* lgr, uint32_t side, uint32_t notify, uint32_t conn) {
  if (notify == 0) return;
  if (notify == PSTN_NOTIFY_SYN && side == 1) return AnnounceSyn(b, lgr, conn);
  if (notify != PSTN_NOTIFY_ALL) {
    PostBit(b, lgr, side, notify - 1, conn);
    return;
  }
  SetBits(LgrEvmap(lgr, side, PSTN_EVMAP_ALL), conn);
  RingSome(b, lgr, side, ~0u);
}

}  // namespace

void RingOwed(Bells& b, uint8_t* lgr, uint32_t side) {
  constexpr uint32_t kOwedRings = 2;  // a hostile peer's, too, which does not answer them
  const uint32_t hw = WaitersHw(lgr, side);
  const auto has_news = [&](uint32_t w) {
    return LoadRelaxed(LgrEvmap(lgr, side, w).summary) != 0;
  };
  const bool all = has_news(PSTN_EVMAP_ALL), syns = side == 1 && has_news(PSTN_EVMAP_SYN);
  uint32_t rung = 0;
  for (uint32_t w = 1; w < hw && rung < kOwedRings; w++) {
    const pstn_evmap& map = LgrEvmap(lgr, side, w);
    const uint32_t in_use = LoadRelaxed(map.in_use);
    if (in_use == 0 || LoadRelaxed(map.sleeping) == 0) continue;
    if (!all && !has_news(w) && !(syns && (in_use & PSTN_EV_SYN) != 0)) continue;
    (void)RingIfAsleep(b, lgr, side, w);
    rung++;
  }
}

int BellSender(Bells& b) {
  if (b.sender < 0) {
    int fd = BellSocket();
    if (fd < 0) return fd;
    int high = sys::DupHigh(fd);
    if (high >= 0) {
      sys::Close(fd);
      fd = high;
    }
    int none = -1;
    if (!CompareExchange(b.sender, none, fd)) sys::Close(fd);
  }
  return b.sender;
}

void PostBit(Bells& b, uint8_t* lgr, uint32_t side, uint32_t waiter, uint32_t conn) {
  SetBits(LgrEvmap(lgr, side, waiter), conn);
  (void)RingIfAsleep(b, lgr, side, waiter % PSTN_WAITERS);
}

void AnnounceData(Bells& b, const ConnEnd& e) {
  NoteNews(b);
  FenceAfterLocked();  // [F1] between the caller's FetchOr or Unlock and the look at rx_notify
  uint32_t notify = LoadRelaxed(e.peer_ctl().rx_notify);
  if (notify != 0) {
    PostTo(b, e.lgr, e.side ^ 1u, notify, e.ep->conn_idx);
  } else {
    FullFence();  // [F1] between the record's header and the look at rx_wait
  }
  WakeReaders(b, e);
}

void AnnounceHold(Bells& b, const ConnEnd& e) {
  NoteNews(b);
  const uint32_t side = e.side ^ 1u;
  SetBits(LgrEvmap(e.lgr, side, PSTN_EVMAP_HELD), e.ep->conn_idx);  // with the fence [F1]
  const uint32_t notify = LoadRelaxed(e.peer_ctl().rx_notify);
  if (notify == PSTN_NOTIFY_SYN && side == 1) {
    RingSome(b, e.lgr, side, PSTN_EV_SYN);
  } else if (notify == PSTN_NOTIFY_ALL) {
    RingSome(b, e.lgr, side, ~0u);
  } else if (notify != 0) {
    (void)RingIfAsleep(b, e.lgr, side, (notify - 1) % PSTN_WAITERS);
  }
  WakeReaders(b, e);
}

void PostHeldOver(Bells& b, uint8_t* lgr, uint32_t side, uint32_t conn) {
  NoteNews(b);
  FullFence();  // [F1]
  pstn_conn_ctl& own = LgrConn(lgr, conn).ctl[side & 1u];
  PostTo(b, lgr, side, LoadRelaxed(own.rx_notify), conn);
  // What sleeps in the module has a clock of its own.
  if ((LoadRelaxed(own.rx_wait) & ~PSTN_RXW_MODULE) != 0 &&
      (FetchAnd(own.rx_wait, PSTN_RXW_MODULE) & ~PSTN_RXW_MODULE) != 0)
    WakeFutex(b, own.rx_wait);
}

void PostEngine(Bells& b, const ConnEnd& e) {
  NoteNews(b);
  SetBits(LgrEvmap(e.lgr, e.side ^ 1u, PSTN_EVMAP_WIRE), e.ep->conn_idx);
}

void RingEngine(Bells& b, const ConnEnd& e) {
  (void)RingIfAsleep(b, e.lgr, e.side ^ 1u, PSTN_EVMAP_WIRE);
}

void AnnounceSpace(Bells& b, const ConnEnd& e) {
  FullFence();  // [F1] between pos.read and the look at tx_wait
  pstn_conn_ctl& peer = e.peer_ctl();
  if (LoadRelaxed(peer.tx_wait) == 0) return;
  NoteNews(b);
  uint32_t how = Exchange(peer.tx_wait, 0u);
  if ((how & PSTN_TXW_FUTEX) != 0) {
    Count(b, kCounterFutexWakes);
    (void)sys::FutexWake(&peer.tx_wait, kWakesPerPost);
  }
  if ((how & PSTN_TXW_MODULE) != 0) [[unlikely]]
    WakeInModule(b, e, PSTN_RING_SPACE);
  if ((how & PSTN_TXW_POST) != 0)
    PostTo(b, e.lgr, e.side ^ 1u, LoadRelaxed(peer.rx_notify), e.ep->conn_idx);
}

// A blocked writer has at least an eighth unread before it (ring.cc), so a sixteenth comes back
// before the ring is drained. But RingRead publishes in the middle, and a ring that is seen to be
// drained can be taken away before it returns: then there is no ring to measure by, and nothing
// more to come.
void ReturnSpace(Bells& b, const ConnEnd& e) {
  pstn_rx& rx = e.ep->rx;
  AssertHeld(rx.lock);
  const bool taken_away = (rx.ring & PSTN_RING_PLACE) == 0;
  if (rx.unreturned < PSTN_RING0_BYTES / 16 && !taken_away) [[likely]]
    return;
  const uint32_t enough = taken_away ? 1 : RingBytes(RingClass(rx.ring) % PSTN_SLAB_CLASSES) / 16;
  if (rx.unreturned < enough) return;
  rx.unreturned = 0;
  AnnounceSpace(b, e);
}

void AnnounceLocal(Bells& b, const ConnEnd& e) {
  NoteNews(b);
  FullFence();  // [F1]
  pstn_conn_ctl& own = e.ctl();
  PostTo(b, e.lgr, e.side, LoadRelaxed(own.rx_notify), e.ep->conn_idx);
  WakeOwnThreads(b, e);
}

void WakeOwnThreads(Bells& b, const ConnEnd& e) {
  if (LoadRelaxed(e.ep->sleepers) == 0) return;
  pstn_conn_ctl& own = e.ctl();
  for (uint32_t* word : {&own.rx_wait, &own.tx_wait}) {
    if (Exchange(*word, 0u) != 0) Count(b, kCounterFutexWakes);
    (void)sys::FutexWake(word, kAll);  // whatever it says: the peer may have changed it
  }
  if (PeerIsModules(e)) WakeInModule(b, e, PSTN_RING_OWN | PSTN_RING_DATA | PSTN_RING_SPACE);
}

void AnnounceSyn(Bells& b, uint8_t* lgr, uint32_t conn) {
  NoteNews(b);
  SetBits(LgrEvmap(lgr, 1, PSTN_EVMAP_SYN), conn);
  RingSome(b, lgr, 1, PSTN_EV_SYN);
}

void AnnounceAll(Bells& b, uint8_t* lgr, uint32_t side) {
  NoteNews(b);
  FullFence();  // [F1]
  uint32_t hw = WaitersHw(lgr, side);
  for (uint32_t w = 1; w < hw; w++) {
    if (LoadRelaxed(LgrEvmap(lgr, side, w).in_use) != 0) (void)RingIfAsleep(b, lgr, side, w);
  }
}

void PostTaken(Bells& b, const ConnEnd& e) {
  const ConnEnd peer = {e.ep, e.ref, e.lgr, e.conn, e.side ^ 1u};
  for (const ConnEnd& end : {e, peer}) {
    pstn_conn_ctl& ctl = end.ctl();
    PostTo(b, e.lgr, end.side, LoadRelaxed(ctl.rx_notify), e.ep->conn_idx);
    (void)sys::FutexWake(&ctl.rx_wait, kAll);
    (void)sys::FutexWake(&ctl.tx_wait, kAll);
  }
  WakeInModule(b, e, PSTN_RING_DATA | PSTN_RING_SPACE);
  WakeInModule(b, e, PSTN_RING_OWN | PSTN_RING_DATA | PSTN_RING_SPACE);
}

void RingTaken(Bells& b, uint8_t* lgr, uint32_t side) {
  FullFence();  // [F1]
  uint32_t hw = WaitersHw(lgr, side);
  for (uint32_t w = 1; w < hw; w++) {
    pstn_evmap& map = LgrEvmap(lgr, side, w);
    if (LoadRelaxed(map.in_use) == 0 || LoadRelaxed(map.sleeping) != 0) continue;
    (void)RingBell(b, BellIn(lgr, side, w));
  }
}

void RingTakenInside(Bells& b, StackMap& s) {
  for (const pstn_waiter& w : s.waiters.Before(LoadRelaxed(s.hdr.waiters.hw))) {
    if (LoadRelaxed(w.state) == 0 || LoadRelaxed(w.sleeping) != 0) continue;
    (void)RingBell(b, BellOf(s, s.waiters.IndexOf(w).word()));
  }
}

namespace {

template <typename Fn>
void EachWaiter(StackMap& s, Fn fn) {
  for (pstn_waiter& w : s.waiters.Before(LoadRelaxed(s.hdr.waiters.hw))) {
    if (LoadRelaxed(w.state) != 0) fn(w, s.waiters.IndexOf(w).word());
  }
}

}  // namespace

void PostEnded(Bells& b, StackMap& s, const ConnEnd& e) {
  NoteNews(b);
  EachWaiter(s, [&](const pstn_waiter&, uint32_t w) {
    SetBits(LgrEvmap(e.lgr, e.side, w), e.ep->conn_idx);
  });
  pstn_conn_ctl& own = e.ctl();
  for (uint32_t* word : {&own.rx_wait, &own.tx_wait}) {
    StoreRelease(*word, 0u);  // [R5]
    (void)sys::FutexWake(word, kAll);
  }
  WakeInModule(b, e, PSTN_RING_OWN | PSTN_RING_DATA | PSTN_RING_SPACE);
}

void RingInside(Bells& b, StackMap& s) {
  NoteNews(b);
  FullFence();  // [F1]
  EachWaiter(s, [&](pstn_waiter& w, uint32_t idx) {
    StoreRelaxed(w.posted, 1u);
    (void)RingBell(b, BellOf(s, idx));
  });
}

void PostWaiter(Bells& b, StackMap& s, uint32_t waiter) {
  pstn_waiter* const place = s.waiters.At(WaiterIndex(waiter));
  if (place == nullptr) return;
  NoteNews(b);
  pstn_waiter& w = *place;
  Exchange(w.posted, 1u);
  FenceAfterLocked();  // [F1] against AnnounceSleep
  if (LoadRelaxed(w.sleeping) == 0 || Exchange(w.sleeping, 0u) == 0) return;
  Count(b, kCounterDoorbells);
  if (RingNamed(b, BellOf(s, waiter)) != Rung::kNoRoom) [[likely]]
    return;
  (void)Exchange(w.sleeping, 1u);
  StoreRelaxed(b.owed, 1u);
}

void RingOwedInside(Bells& b, StackMap& s) {
  EachWaiter(s, [&](const pstn_waiter& w, uint32_t idx) {
    if (LoadRelaxed(w.sleeping) != 0 && LoadRelaxed(w.posted) != 0) PostWaiter(b, s, idx);
  });
}

}  // namespace postern
