// SPDX-License-Identifier: Apache-2.0
// export.cc - descriptors that leave the family: passed over a Unix socket, or inherited by an
// image that does not have the library (static, setuid).
//
// A process that gets such a descriptor has the kernel's socket and nothing else, so from then on
// the kernel must serve it, for the family as well: one stream, one path. What was a connection is
// taken over by the stack's keeper, a process that posternd starts (controlplane/keeper): it
// connects the kernel's socket to one of its own, makes an endpoint that continues the connection
// where this one stops, and carries bytes between the two for as long as both live. Nothing is
// lost: the endpoint changes hands under both its locks, with all that the ring holds.
// docs/adr/0005 has the reasons.
//
// Where both stacks have the kernel module (level 2) there is no bridge: the socket is the
// module's, which reads and writes the rings of the endpoint that the keeper holds (ADR 27).
//
// A keeper that dies at any step leaves either an endpoint that is still ours, or one that the
// kernel serves and whose other end is closed (FinishTakeOver).
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/kept_options.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "endpoint/refs.h"
#include "endpoint/state.h"
#include "event/epoll.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/module.h"
#include "family/telling.h"
#include "family/verbs.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "peer/export.h"
#include "peer/kernel_half.h"
#include "smcd/hold.h"

namespace postern {
namespace {

void SetBlocking(int fd, bool blocking) {
  int fl = sys::Fcntl(fd, F_GETFL, 0);
  if (fl >= 0) (void)sys::Fcntl(fd, F_SETFL, blocking ? fl & ~O_NONBLOCK : fl | O_NONBLOCK);
}

int ExportConnection(Family& fam, int fd, pstn_ep& ep) {
  int r = CtlExport(fam, ep, fd);
  if (r == 0) MoveItemsToKernel(fam, fd, ep);
  return r;
}

// A listener is the kernel's from now on, or its accelerated clients would wait for a family that
// may never accept again. Those in its queue get into the kernel's (TakeOver); the directory tells
// a client that comes too late (StillListed, lib/peer/connect.cc). False: it does not listen any
// more.
bool ExportListener(Family& fam, int fd, pstn_ep& ep, Reason why) {
  Guard g(ep.setup_lock);
  if (LoadAcquire(ep.state) != PSTN_EP_LISTEN) return false;  // [E1]
  if ((FetchAnd(ep.flags, ~PSTN_EPF_PUBLISHED) & PSTN_EPF_PUBLISHED) != 0)
    (void)CtlUnlisten(fam, ep);
  if (LoadRelaxed(ep.wire) != 0) kVerbs.wire_leave(fam, ep);
  AdmitSyns(fam, kAllLooks);
  AdmitDeferred(fam, ep);
  EndWaiting(fam, ep);
  FetchOr(ep.flags, PSTN_EPF_EXPORTED);
  MendQueue(fam, ep);
  Lock(ep.accept_lock);
  FetchAdd(ep.gen, 1u);  // for late SYNs, too, this is another endpoint
  SetState(ep, PSTN_EP_KERNEL);
  Unlock(ep.accept_lock);
  // The kernel's listener never blocked while accept() merged two queues. The clients in it go
  // first (AcceptKernel).
  TableFreeze(fam);
  constexpr uint32_t kStays = PSTN_EPF_NONBLOCK | PSTN_EPF_BROUGHT;  // others' file, too
  if ((LoadRelaxed(ep.flags) & kStays) == 0) SetBlocking(fd, true);
  TableThaw(fam);
  if (LoadAcquire(ep.accept_count) != 0) (void)CtlExport(fam, ep, fd);  // [E8]
  ResetQueue(fam, ep);  // only what the keeper could not take
  FallBack(fam, fd, ep, why);
  PostEp(fam, ep);
  return true;
}

}  // namespace

bool KernelKnows(Family& fam, int fd) {
  const uint32_t entry = FdMeans(fam, fd);
  if (entry == 0) return true;
  if ((entry & PSTN_FD_KIND) != PSTN_FD_EP) return false;
  const Call call(fam, fd);
  const pstn_ep* ep = call.ep();
  return ep == nullptr || (LoadAcquire(ep->state) == PSTN_EP_KERNEL && !IsDatagram(*ep));  // [E1]
}

long SockExport(Family& fam, int fd) { return ExportFor(fam, fd, kReasonExported); }

long ExportFor(Family& fam, int fd, Reason why) {
  // It would wait for itself: posternd gives it what is exported.
  if (fam.whom == For::kKeeper) return -ENOSPC;
  Call call(fam, fd);
  pstn_ep* ep = call.ep();
  if (ep == nullptr) return 0;
  if (LoadAcquire(ep->state) == PSTN_EP_KERNEL) {  // [E1]
    if (!IsDatagram(*ep)) return 0;
    Guard g(ep->setup_lock);
    kVerbs.datagram_leave(fam, *ep, why);
    return 0;
  }
  // Another thread may close the number while the keeper works. Out of numbers (a sandbox that
  // allows itself none), the program's own has to do.
  if (call.Pin() == -EBADF) return 0;  // closed: nothing to export
  const int number = call.fd();
  Count(Stack(fam).hdr, kCounterFdsExported);
  // Another thread may connect it meanwhile, listen, or disconnect: then it is looked at again.
  for (;;) {
    const uint32_t state = StateNow(fam, *ep);
    if (state == PSTN_EP_NEW) {
      if (LeaveUnconnected(fam, number, *ep, why)) return 0;
    } else if (state == PSTN_EP_LISTEN) {
      if (ExportListener(fam, number, *ep, why)) return 0;
    } else if (state == PSTN_EP_ESTABLISHED) {
      const int r = ExportConnection(fam, number, *ep);
      if (r == 0 && LoadRelaxed(ep->reason) != kReasonModule) StoreRelaxed(ep->reason, why);
      if (r == 0 || LoadAcquire(ep->state) == state) return r;  // [E1]
    } else if (state == PSTN_EP_CONNECTING) {
      if (LeaveWaiting(fam, number, *ep, why)) return 0;
      if (LoadAcquire(ep->state) == state) return 0;  // [E1] the engine's
    } else {
      return 0;
    }
  }
}

uint32_t PidOf(int pidfd) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
  int fd = static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), &path[0],
                                      static_cast<long>(O_RDONLY | O_CLOEXEC)));
  if (fd < 0) return 0;
  long n = sys::Call(SYS_read, fd, &text[0], sizeof text - 1);
  sys::Close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  const char* at = strstr(text, "\nPid:\t");
  uint32_t pid = 0;
  for (at = at != nullptr ? at + 6 : ""; *at >= '0' && *at <= '9'; at++)
    pid = pid * 10 + static_cast<uint32_t>(*at - '0');
  return pid;
}

namespace {

// What number `fd` of process `pid` means in our stack; 0: nothing, or it is not of our family.
uint32_t EntryOf(Family& fam, uint32_t pid, int fd, bool* family) {
  StackMap& s = Stack(fam);
  for (const pstn_slot& slot : s.slots.Before(LoadRelaxed(s.hdr.slots_hw))) {
    // [P1]
    if (LoadAcquire(slot.state) != PSTN_SL_LIVE || LoadRelaxed(slot.pid) != pid) continue;
    *family = true;
    // [P3]
    const ChunkIndex place(LoadAcquire(slot.chunk[static_cast<uint32_t>(fd) / PSTN_FDCHUNK_FDS]));
    const pstn_fdchunk* const chunk = s.fdchunks.At(place);
    if (chunk == nullptr) return 0;
    return LoadAcquire(chunk->fd[static_cast<uint32_t>(fd) % PSTN_FDCHUNK_FDS]);  // [P4]
  }
  return 0;
}

}  // namespace

void SockAdopt(Family& fam, int fd, int pidfd, int target) {
  int type = 0;
  socklen_t len = sizeof type;
  if (sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_PROTOCOL),
                &type, &len) != 0 ||
      type != IPPROTO_TCP)
    return;
  uint32_t pid = PidOf(pidfd);
  if (pid == 0 || static_cast<uint32_t>(target) >= kFdMax || !fam.enabled || !EnsureStack(fam))
    return;
  bool family = false;
  uint32_t entry = EntryOf(fam, pid, target, &family);
  if (!family) {
    (void)CtlExportOf(fam, pid, target,
                      fd);  // fails if that process is not accelerated: nothing to do
    return;
  }
  pstn_ep* ep =
      (entry & PSTN_FD_KIND) == PSTN_FD_EP ? EpAt(Stack(fam), entry & PSTN_FD_IDX) : nullptr;
  if (ep == nullptr) return;
  TableChange change(fam);
  SockDup(fam, entry, fd);
}

// ---------------------------------------------------------------- in the keeper
namespace {

// Binds to the peer's address, or to ours if that is not of this host (the peer is behind a VI).
long BindBridge(int listener, const pstn_ep& ep, sockaddr* sa, socklen_t* len) {
  long r = -EADDRNOTAVAIL;
  for (pstn_addr at : {ep.peer, ep.local}) {
    if (r != -EADDRNOTAVAIL) break;
    at.port = 0;
    *len = sizeof(sockaddr_storage);
    AddrToSockaddr(at, ep.family, sa, len);
    r = sys::Call(SYS_bind, listener, sa, static_cast<long>(*len));
  }
  return r;
}

// Connects `fd` to a socket of ours; its address is the peer's if it can be, its port the kernel's
// choice. Returns our end, or -errno. `early`: PSTN_EPF_SHUT_*, the marks of a shutdown() before
// connect(), which send nothing.
long ConnectPair(int fd, const pstn_ep& ep, uint32_t early) {
  int family = static_cast<int>(ep.family);
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_SMC) != 0) {  // connected, beside the rings
    const sockaddr none = {AF_UNSPEC, {}};
    (void)sys::Call(SYS_connect, fd, &none, static_cast<long>(sizeof none));
  }
  // A client's before, which an accepted connection has got.
  if (LoadRelaxed(ep.side) != 0 && (LoadRelaxed(ep.flags) & PSTN_EPF_BOUND_AUTO) != 0)
    (void)LoseName(fd, ep);
  ShutKernelSocket(fd, early);
  int listener = sys::Socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return listener;
  sockaddr_storage ss = {};
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  socklen_t len = sizeof ss;
  long r = BindBridge(listener, ep, sa, &len);
  if (r == 0) r = sys::Call(SYS_listen, listener, 1L);
  if (r == 0) r = sys::Call(SYS_getsockname, listener, sa, &len);
  if (r == 0) r = sys::Call(SYS_connect, fd, sa, static_cast<long>(len));
  if (r == -EINPROGRESS) r = 0;
  // Anybody on the host can connect: the one we want has the name of our socket. Others may have
  // filled the queue, and ours may never come.
  constexpr uint64_t kWaitNs = 2'000'000'000;
  for (const Deadline until = Deadline::AfterNs(kWaitNs); r == 0;) {
    pollfd p = {listener, POLLIN, 0};
    const timespec left = until.LeftTimespec(kWaitNs);
    if (sys::Call(SYS_ppoll, &p, 1L, &left, nullptr, 0L) != 1) {
      r = -ETIMEDOUT;
      break;
    }
    sockaddr_storage mine = {}, other = {};
    socklen_t mine_len = sizeof mine, other_len = sizeof other;
    long end = sys::Call(SYS_accept4, listener, &other, &other_len,
                         static_cast<long>(SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (end == -EAGAIN || end == -ECONNABORTED) continue;  // it has gone again
    if (end < 0) {
      r = end;
    } else if (sys::Call(SYS_getsockname, fd, &mine, &mine_len) == 0 && mine_len == other_len &&
               memcmp(&mine, &other, mine_len) == 0) {
      r = end;
    } else {
      sys::Close(static_cast<int>(end));
    }
  }
  sys::Close(listener);
  return r;
}

// The connection's state, as it is: a new owner of the same ring positions. Under both locks of
// `from` and of `to`, which was another connection's: a thread that still looks for that one, a
// sweep of idle rings, takes its lock to find out.
void CopyConnection(pstn_ep& to, const pstn_ep& from) {
  // What comes behind a shutdown() of reading can be read: it goes to the kernel's half. What lets
  // others share its port is asked of it as long as it is open (IsTakenByConnection).
  constexpr uint32_t kCarried =
      PSTN_EPF_SHUT_WR | PSTN_EPF_HUNG | PSTN_EPF_REUSEADDR | PSTN_EPF_REUSEPORT;
  SetPlace(to, from.lgr_idx, from.conn_idx, from.conn_gen, from.side);
  to.local = from.local;
  to.peer = from.peer;
  // The bridge reads the urgent byte in its place, and knows it by the mark.
  FetchOr(to.flags, PSTN_EPF_NONBLOCK | PSTN_EPF_OOBINLINE | (LoadRelaxed(from.flags) & kCarried));
  StoreRelaxed(to.error, LoadRelaxed(from.error));
  CopyButLock(to.tx, from.tx);
  CopyButLock(to.rx, from.rx);
}

// Whether the kernel module can be the end: not of a connection that is the engine's, either side.
bool CanBeModules(Family& fam, const ConnEnd& e) {
  return AtLevel2(fam) && BothHaveModule(*e.ref, e.lgr) && !PeerIsEngine(e) && !IsEngines(e);
}

// From now on `fd` is the module's socket, for the endpoint `to`. The module looks where the entry
// says that its connection is.
bool GiveToModule(Family& fam, int fd, const pstn_ep& from, pstn_ep& to) {
  SetPlace(to, from.lgr_idx, from.conn_idx, from.conn_gen, from.side);
  to.local = from.local;
  to.peer = from.peer;
  if (ModuleGo(fam, fd, to) == 0) return true;
  StoreRelaxed(to.lgr_idx, PSTN_NONE);
  return false;
}

// The step that counts. After each store a death is mended by FinishTakeOver. `module_fd`: the
// socket that is to be the module's, or -1.
bool ChangeHands(Family& fam, pstn_ep& from, const ConnEnd& e, pstn_ep& to, int module_fd) {
  StackMap& s = Stack(fam);
  Guard tx(from.tx.lock);
  Guard rx(from.rx.lock);
  if (LoadAcquire(from.state) != PSTN_EP_ESTABLISHED) return false;  // [E1]
  Guard to_tx(to.tx.lock);
  Guard to_rx(to.rx.lock);
  if (module_fd >= 0 && !GiveToModule(fam, module_fd, from, to)) return false;
  AssertHeld(e.ep->tx.lock);
  (void)HoldRelease(e);  // the kernel's half is not told of it
  CopyConnection(to, from);
  StoreRelaxed(to.took_over, EpIdx(s, from) + 1);
  SetState(to, PSTN_EP_ESTABLISHED);
  StoreRelease(e.ref->conn_ep[from.conn_idx % PSTN_CONNS], EpIdx(s, to) + 1);  // [E4]
  StoreRelaxed(from.tx.ring, 0u);  // they are `to`'s to give back
  StoreRelaxed(from.tx.old_ring, 0u);
  StoreRelaxed(from.reason, module_fd >= 0 ? kReasonModule : kReasonExported);
  FetchOr(from.flags, PSTN_EPF_EXPORTED | PSTN_EPF_DIRTY);
  SetState(from, PSTN_EP_KERNEL);
  StoreRelease(to.took_over, 0u);  // [E12]
  return true;
}

// At level 2: the kernel's module is the other half, and this process only holds the endpoint until
// the module says that the socket's last descriptor is gone.
long TakeOverForModule(Family& fam, int fd, pstn_ep& from, const ConnEnd& e, Taken taken,
                       void* context) {
  const uint32_t idx = NewEp(fam, from.family);
  if (idx == PSTN_NONE) return -ENOBUFS;
  pstn_ep& to = Stack(fam).eps.Own(EpIndex(idx));
  const long number = OpenFdFor(fam, to, idx, false, true);
  if (number < 0) {
    GiveEp(Stack(fam), idx);
    return number;
  }
  const uint32_t before = LoadRelaxed(from.flags);
  FetchOr(from.flags, PSTN_EPF_DIRTY | PSTN_EPF_DUPPED);  // never again for the fd cache
  if (!ChangeHands(fam, from, e, to, fd)) {
    (void)SockClose(fam, static_cast<int>(number), PSTN_FD_EP | idx);
    return -EOPNOTSUPP;
  }
  ApplyOptions(fd, from);
  SetBlocking(fd, (before & PSTN_EPF_NONBLOCK) == 0);
  FetchOr(to.flags, before & PSTN_EPF_SHUT_RD);
  Count(Stack(fam).hdr, kCounterModuleSockets);
  // The peer's threads that sleep on futexes sleep where the module can wake them; ours go on in
  // the kernel, and event sets look there.
  AnnounceData(fam.bells, e);
  AnnounceSpace(fam.bells, e);
  AnnounceLocal(fam.bells, e);
  PostEp(fam, from);
  taken(context, static_cast<int>(number), kHeldForModule);
  return 0;
}

// What the kernel's socket is to be shut for. One that was reset, and has said so, is closed.
uint32_t ShutOf(const ConnEnd& e) {
  const pstn_ep& ep = *e.ep;
  const uint32_t flags = LoadRelaxed(ep.flags);
  if ((LoadRelaxed(ep.rx.gate) & PSTN_RXG_RESET) != 0 && LoadRelaxed(ep.error) == 0)
    return flags | PSTN_EPF_SHUT_RD | PSTN_EPF_SHUT_WR;
  return HasEnded(e) ? flags : flags & ~PSTN_EPF_SHUT_WR;
}

long TakeOverConnection(Family& fam, int fd, pstn_ep& from, bool hand_on, Taken taken,
                        void* context) {
  ConnEnd e;
  if (!Resolve(fam, from, e)) return -ECONNRESET;
  if (!hand_on && CanBeModules(fam, e)) {
    const long r = TakeOverForModule(fam, fd, from, e, taken, context);
    if (r == 0) return r;
  }
  FetchOr(from.flags, PSTN_EPF_DIRTY | PSTN_EPF_DUPPED);  // never again for the fd cache
  const uint32_t early = HasEnded(e) ? 0u : LoadRelaxed(from.flags);
  const long end = hand_on ? -1 : ConnectPair(fd, from, early);
  if (end < 0 && !hand_on) return end;
  uint32_t idx = NewEp(fam, from.family);
  long ring_fd = idx != PSTN_NONE
                     ? OpenFdFor(fam, Stack(fam).eps.Own(EpIndex(idx)), idx, false, true)
                     : -ENOBUFS;
  if (ring_fd < 0) {
    if (idx != PSTN_NONE) GiveEp(Stack(fam), idx);
    if (end >= 0) sys::Close(static_cast<int>(end));
    return ring_fd;
  }
  if (!hand_on) ApplyOptions(fd, from);
  if (!hand_on) SetBlocking(fd, (LoadRelaxed(from.flags) & PSTN_EPF_NONBLOCK) == 0);
  if (!ChangeHands(fam, from, e, Stack(fam).eps.Own(EpIndex(idx)), -1)) {
    (void)SockClose(fam, static_cast<int>(ring_fd), PSTN_FD_EP | idx);
    if (end >= 0) sys::Close(static_cast<int>(end));
    if (hand_on) return -ESTALE;
    return LoadAcquire(from.state) == PSTN_EP_KERNEL ? 0 : -ECONNRESET;  // [E1]
  }
  NoteFallback(fam, kReasonExported, fd);
  kVerbs.wire_rehouse(fam, fd, Stack(fam).eps.Own(EpIndex(idx)));
  if (!hand_on) ShutKernelSocket(fd, ShutOf(e));
  AnnounceData(fam.bells, e);  // what was held back
  // Threads that sleep on the ring go on in the kernel, and event sets look there.
  AnnounceLocal(fam.bells, e);
  PostEp(fam, from);
  taken(context, static_cast<int>(ring_fd), static_cast<int>(end));
  return 0;
}

// A client of the kernel's listener in the place of one that waits in ours.
long TakeOverQueue(Family& fam, int fd, pstn_ep& listener, const ListensAt* at, Taken taken,
                   void* context) {
  sockaddr_storage ss = {};
  socklen_t len = sizeof ss;
  long r = 0;
  if (at != nullptr) {
    ss = at->name;
    len = at->len;
  } else {
    r = sys::Call(SYS_getsockname, fd, &ss, &len);
  }
  StackMap& s = Stack(fam);
  for (uint32_t idx; r >= 0 && (idx = DequeueEmbryo(fam, listener)) != PSTN_NONE;) {
    long ring_fd = OpenFdFor(fam, s.eps.Own(EpIndex(idx)), idx, false, true);
    FetchOr(s.eps.Own(EpIndex(idx)).flags, PSTN_EPF_NONBLOCK);
    SetState(s.eps.Own(EpIndex(idx)), PSTN_EP_ESTABLISHED);
    if (ring_fd < 0) {
      CloseEp(fam, s.eps.Own(EpIndex(idx)));
      return ring_fd;
    }
    int client = sys::Socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    r = client < 0 ? client : sys::Call(SYS_connect, client, &ss, static_cast<long>(len));
    if (r == -EINPROGRESS) r = 0;
    taken(context, static_cast<int>(ring_fd), client);
  }
  return r;
}

}  // namespace

long TakeOver(Family& fam, int fd, uint32_t ep_idx, uint32_t ep_gen, bool hand_on,
              const ListensAt* at, Taken taken, void* context) {
  pstn_ep* from = EpAt(Stack(fam), ep_idx);
  // Our death drops the reference.
  if (from == nullptr || !ShareRef(fam, PSTN_FD_EP | ep_idx, PlaceOf(fam, fd, true))) {
    sys::Close(fd);
    return -ESTALE;
  }
  MarkPrivate(fam, fd, PSTN_FD_EP | ep_idx);
  if (LoadAcquire(from->gen) != ep_gen) {  // [E2] another one by now
    (void)SockClose(fam, fd, PSTN_FD_EP | ep_idx);
    return -ESTALE;
  }
  uint32_t state = LoadAcquire(from->state);  // [E1]
  // One that no process of the family waits at goes on listening, for others.
  const bool is_left = state == PSTN_EP_LISTEN && LoadRelaxed(from->unlisted) != 0;
  if (is_left) AdmitSyns(fam, kAllLooks);
  long r = -ESTALE;
  if (state == PSTN_EP_ESTABLISHED && at == nullptr) {
    r = TakeOverConnection(fam, fd, *from, hand_on, taken, context);
  } else if (state == PSTN_EP_KERNEL || is_left) {
    r = TakeOverQueue(fam, fd, *from, at, taken, context);
  }
  (void)SockClose(fam, fd, PSTN_FD_EP | ep_idx);
  return r;
}

void FinishTakeOver(Family& fam, pstn_ep& taker) {
  uint32_t idx = taker.took_over - 1;
  taker.took_over = 0;
  pstn_ep* from = EpAt(Stack(fam), idx);
  if (from == nullptr || LoadAcquire(taker.state) != PSTN_EP_ESTABLISHED ||                 // [E1]
      LoadAcquire(from->state) != PSTN_EP_ESTABLISHED || from->lgr_idx != taker.lgr_idx ||  // [E1]
      from->conn_idx != taker.conn_idx) {
    return;
  }
  StoreRelaxed(from->reason, kReasonExported);
  FetchOr(from->flags, PSTN_EPF_EXPORTED | PSTN_EPF_DIRTY);
  SetState(*from, PSTN_EP_KERNEL);
  ConnEnd e;
  if (Resolve(fam, *from, e)) AnnounceLocal(fam.bells, e);
  PostEp(fam, *from);
}

}  // namespace postern
