// SPDX-License-Identifier: Apache-2.0
// sock.h - the socket calls on accelerated endpoints. preload/ translates libc's calls to these.
//
// Each takes the fd and the endpoint that FdEntry gave for it, and returns what the system call
// would: a value or -errno; or kPass: this call is the kernel's, make it on `fd`. No call here sets
// errno or raises SIGPIPE except where said.
#pragma once
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "sock/call.h"
#include "sock/proc.h"

namespace postern {

// ---- ep.cc: state
// The connection of an endpoint, if it has one and this process can reach it.
inline uint64_t Which(const pstn_ep& ep) {
  return static_cast<uint64_t>(LoadAcquire(ep.gen)) << 32 | LoadRelaxed(ep.conn_gen);
}
inline bool Resolve(pstn_ep& ep, ConnEnd& e) {
  uint64_t which = Which(ep);
  uint32_t idx = LoadRelaxed(ep.lgr_idx);
  uint8_t* base = LgrBase(g_proc.view, idx);
  if (base == nullptr) base = EnsureLgr(idx);
  if (base == nullptr) return false;
  e = {&ep, &Stack().lgrs[idx], base, &LgrConn(base, ep.conn_idx), ep.side & 1u, which};
  return true;
}
// Comes after all that has been done with the endpoint under its locks and counts. Who gave it back
// did, and may have been another process, which ThreadSanitizer does not see.
void FollowUsers(const pstn_ep& ep);
uint32_t NewEp(uint32_t family);  // state NEW, one reference; PSTN_NONE when the stack is full
// Makes the endpoint the kernel's for good: options, flags and event registrations go with it.
void FallBack(int fd, pstn_ep& ep, Reason reason);
bool PortExcluded(uint16_t port);
// How large this endpoint's ring may become.
RingLimits LimitsOf(const pstn_ep& ep);
// Whether a send that does not block would take something.
bool Writable(const ConnEnd& e);
// A peer that has shut down both directions, and no room before it: what is under way meets its
// RST.
bool BeforeShutPeer(const ConnEnd& e, uint32_t peer);
// What poll() would say of the endpoint: EPOLLIN, EPOLLOUT, ...
uint32_t Readiness(pstn_ep& ep);
// rx_notify as the endpoint's registrations and pollers want it. Needs item_lock.
void RenotifyLocked(pstn_ep& ep);
// Marks the endpoint ready in every event set it is registered in, and wakes who sleeps on it.
void PostEp(pstn_ep& ep);
// PostEp for each connection whose peer has posted to all. Whoever was rung for such a post does
// it.
void SpreadPosts();
// A process that may have been about to do so has died.
void RespreadPosts();

// ---- datagram.h: UDP sockets that the wire serves beside the kernel. For all else they are the
// kernel's.
inline bool IsDatagram(const pstn_ep& ep) {
  return (LoadRelaxed(ep.flags) & PSTN_EPF_DATAGRAM) != 0;
}
// The kernel serves it, and nobody else.
inline bool IsKernels(const pstn_ep& ep) {
  return LoadAcquire(ep.state) == PSTN_EP_KERNEL && !IsDatagram(ep);
}
// recvmsg() and sendmsg() of one; kPass: the kernel's alone.
long DatagramRecv(Call& call, msghdr& m, int flags);
long DatagramSend(Call& call, const msghdr& m, int flags);
long DatagramIoctl(const pstn_ep& ep, unsigned long request, void* arg);
uint32_t DatagramReadiness(const pstn_ep& ep);
// It may be that this process has it from another one, and has no wire yet.
void DatagramTouch(const pstn_ep& ep);

// A handler with SA_RESTART has run, and the call's number is not its own any more: as the
// kernel's, the call begins anew, with whatever the number means by now.
inline constexpr long kRestart = kPass - 2;

// ---- addr.cc: addresses
bool AddrFromSockaddr(const sockaddr* sa, socklen_t len, uint32_t family, pstn_addr& out);
// As accept, getsockname and friends do it: truncates, and sets *len to the full length.
void AddrToSockaddr(const pstn_addr& a, uint32_t family, sockaddr* sa, socklen_t* len);
bool AddrIsAny(const pstn_addr& a);
bool AddrIsV4(const pstn_addr& a);
bool AddrIsLoopback(const pstn_addr& a);
// claim.cc: whether a client in such a link group (pstn_lgr_ref.remote) can have these names.
bool IsCredible(const pstn_ep& listener, uint32_t remote, const pstn_addr& client,
                const pstn_addr& server);

// ---- socket.cc
long SockSocket(int domain, int type, int protocol);
long SockBind(int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len);
long SockListen(int fd, pstn_ep& ep, int backlog);
long SockGetName(int fd, pstn_ep& ep, sockaddr* sa, socklen_t* len, bool peer);
// Gives up the port that we chose for the kernel's socket. 0 or -errno. Under ep.setup_lock.
long Unbind(int fd, pstn_ep& ep);
// Makes an endpoint the kernel's that is neither connected nor listens. Under ep.setup_lock.
void BecomeKernels(int fd, pstn_ep& ep, Reason why);
// The same, with the lock. False: it is connected or listens, since a moment.
bool LeaveUnconnected(int fd, pstn_ep& ep, Reason why);
// Shuts the kernel's socket down as the program has shut the endpoint.
void ShutKernelSocket(int fd, const pstn_ep& ep);
long SockShutdown(int fd, pstn_ep& ep, int how);
long SockDisconnect(int fd, pstn_ep& ep, const sockaddr* sa,
                    socklen_t len);  // connect to AF_UNSPEC

// ---- port.cc
// Reserves an ephemeral port at the kernel for the endpoint's socket, which keeps it for life.
bool ReservePort(int fd, pstn_ep& ep, const pstn_dir& dir);

// ---- pair.cc
struct ConnSlot {
  uint32_t lgr_idx, conn;
  uint8_t* lgr;  // mapped
};
// A slot in a link group in which we are the client of `stack`; posternd makes it if there is none
// with room, unless it may not be asked. The slot is taken: it is filled in, or given back
// (GiveConn).
enum class MayAsk : uint8_t { kNo, kYes };
Reason TakeConnSlot(const pstn_uuid& stack, ConnSlot& out, MayAsk may_ask = MayAsk::kYes);
// How many link groups with it there are, and about how many slots of them are free.
uint32_t LinksKnown(const pstn_uuid& stack, uint32_t* free_slots = nullptr);

// ---- connect.cc, accept.cc
inline constexpr uint16_t kFreePorts = 1024;  // ports below need a privilege
bool IsLocalAddress(const pstn_dir& d, const pstn_addr& a);
long SockConnect(Call& call, const sockaddr* sa, socklen_t len);
long SockAccept(Call& call, sockaddr* sa, socklen_t* len, int flags);
// Fills in the slot for the endpoint, and tells nobody yet.
void FillConn(pstn_ep& ep, const ConnSlot& slot, uint32_t listener_idx, uint32_t listener_gen,
              const pstn_addr& to, const pstn_addr& from);
// The endpoint is connected from now on: tells those who wait for that.
void ShowConnected(pstn_ep& ep);
// Takes what clients have posted into the accept queues of this stack's listeners: of each link
// group as much as a look takes, or all that an honest client may have posted.
inline constexpr uint32_t kAllLooks = 1024;
void AdmitSyns(uint32_t looks = 1);
// The next connection of the accept queue, or PSTN_NONE.
uint32_t DequeueEmbryo(pstn_ep& listener);
// After the fd table of a dead process has been dropped: the connections that were in its hands.
void RecoverConns(uint32_t slot);
// Takes the lock of a listener's accept queue over from who died with it.
void MendQueue(pstn_ep& listener);
// A file descriptor for an endpoint: a kernel socket from the cache or a new one. -errno on
// failure.
long OpenFdFor(pstn_ep& ep, uint32_t ep_idx, bool want_bound, bool cloexec);

// ---- io.cc. `flags` as in send and recv.
// `ahead`: bytes that will follow at once.
long SockSend(Call& call, const iovec* iov, size_t count, int flags, size_t ahead = 0);
long SockRecv(Call& call, const iovec* iov, size_t count, int flags);
long SockSendFile(Call& call, int in_fd, off_t* offset, size_t count);
long SockSplice(Call& in, Call& out, int fd_in, int fd_out, size_t len, unsigned flags);

// ---- zerocopy.cc
long SendZerocopy(Call& call, const iovec* iov, size_t count, int flags);
// recvmsg(MSG_ERRQUEUE); `m` may be null: the message is dropped.
long RecvErrorQueue(pstn_ep& ep, msghdr* m);
inline bool HasCompletions(const pstn_ep& ep) {
  return (LoadRelaxed(ep.flags) & PSTN_EPF_ZEROCOPY) != 0 &&
         LoadRelaxed(ep.zerocopy_sent) != LoadRelaxed(ep.zerocopy_told);
}

// As the kernel's put_cmsg, into all of m.msg_control.
void PutControl(msghdr& m, int level, int type, const void* data, size_t bytes);

// ---- tcp_info.cc
long GiveTcpInfo(int fd, pstn_ep& ep, void* value, socklen_t* len);
void PutInq(pstn_ep& ep, msghdr& m, size_t room);  // TCP_INQ's message behind a recvmsg()

// ---- ioctl.cc
long SockIoctl(int fd, pstn_ep& ep, unsigned long request, void* arg);
long SockFcntl(int fd, pstn_ep& ep, int cmd, long arg);

// ---- kernel_only.cc: makes the socket the kernel's if what is about to be asked of it needs that.
void OptionForKernel(int fd, pstn_ep& ep, int level, int name, const void* value, socklen_t len);
void FcntlForKernel(int fd, pstn_ep& ep, int cmd, long arg);
void IoctlForKernel(int fd, pstn_ep& ep, unsigned long request, const void* arg);

// ---- options.cc
long SockSetOpt(int fd, pstn_ep& ep, int level, int name, const void* value, socklen_t len);
long SockGetOpt(int fd, pstn_ep& ep, int level, int name, void* value, socklen_t* len);
// Gives the kernel's socket every option that the endpoint has kept for it.
void ApplyOptions(int fd, const pstn_ep& ep);
// What an accepted endpoint has of the options that its listener keeps.
void InheritKeptOptions(pstn_ep& ep, const pstn_ep& listener);

// ---- inherit.cc: options that the kernel's socket keeps
// The program sets one: sockets accepted from this one will have it.
void NoteKernelOption(pstn_ep& ep, int level, int name);
// What the kernel's socket `fd` of an accepted endpoint has of those.
void InheritKernelOptions(int listener_fd, const pstn_ep& listener, int fd, pstn_ep& ep);

// ---- close.cc
// fd numbers going away or being duplicated. SockClose returns what close() would.
long SockClose(int fd, uint32_t entry);
void SockDup(uint32_t entry, int to);  // `to` means it, too
// One more reference. False: it was on its way out.
bool RefEntry(uint32_t entry);
// Closes a number that means `entry`, and takes it out of both tables. The reference is the
// caller's.
long CloseNumberOf(int fd, uint32_t entry);
void DropFdRef(uint32_t entry);  // one reference of an entry, its fd already gone
void CloseEp(pstn_ep& ep);       // last reference dropped
void FinishClose(pstn_ep& ep);   // the rest of it, for a connection in state CLOSED
// Takes a listener out of the directory and resets who waits in its queue; `state` is its next.
void StopListening(pstn_ep& ep, uint32_t state);
void ResetQueue(pstn_ep& listener);  // those who wait in it
// Both directions are at their end: for TCP the connection is closed.
inline bool BothEnded(const pstn_ep& ep, uint32_t peer_flags) {
  return (LoadRelaxed(ep.flags) & PSTN_EPF_SHUT_WR) != 0 &&
         (peer_flags & (PSTN_CF_FIN | PSTN_CF_CLOSED)) != 0;
}
// The connection's error, which the call that reports it takes away; 0: none. A RST behind a FIN is
// EPIPE, as the kernel has it in CLOSE_WAIT.
int TakeError(const ConnEnd& e, uint32_t peer_flags);

// ---- urgent data (urgent.cc)
struct MarkState {
  bool at = false;      // the urgent byte comes next
  bool ready = false;   // and can be had with MSG_OOB
  bool hides = false;   // it is not part of what is read (no SO_OOBINLINE)
  uint64_t before = 0;  // bytes before it
};
MarkState LookAtMark(const ConnEnd& e);
// RingRead where there is, or was, an urgent byte. kOk and no bytes: the mark ends a read that has
// begun (`first` is false).
ReadResult ReadToMark(const ConnEnd& e, IovCursor* to, size_t want, bool first, ReadMode mode);
// recv(MSG_OOB): 1, 0 or -errno.
long RecvUrgent(const ConnEnd& e, const iovec* iov, size_t count, int flags);
// Of `iov`, `sent` bytes are in the ring and `more` will follow, the last of which is the urgent
// one. Under tx.lock.
void MarkUrgent(const ConnEnd& e, const iovec* iov, size_t sent, size_t more);
// RST to the peer; the endpoint is NEW again. False: its connection is gone, or the kernel's.
bool ResetConnection(pstn_ep& ep);
void ReleaseLinger(pstn_ep& ep);

// ---- epoll.cc
long SockEpollCtl(int epfd, int op, int fd, epoll_event* ev);
// Not ours to register: the kernel serves it, or it is nothing any more.
inline bool WatchesKernelOnly(const pstn_ep& ep) {
  uint32_t st = LoadAcquire(ep.state);
  return (st == PSTN_EP_KERNEL && !IsDatagram(ep)) || st == PSTN_EP_FREE || st == PSTN_EP_CLOSED;
}
long SockEpollWait(int epfd, epoll_event* out, int max, Deadline until, const sigset_t* mask);
// After a wait in the kernel alone, `count` events: drops what is not the program's, as the set has
// become ours meanwhile (and, perhaps, its number another one's), and what is over. Returns how
// many are left.
long SockEpollFilter(int epfd, epoll_event* events, long count);
// Sets in other sets: notes a registration that the kernel has taken; drops events that are over;
// makes the kernel's fd of a set tell, by being readable, whether members of ours are ready.
void SockEpollMade(int fd);                  // epoll_create gave this number, in a TableChange
void SockEpollGone(int fd);                  // it is about to be closed, in a TableChange
extern uint64_t g_epolls_made[kFdMax / 64];  // numbers that epoll_create gave: a hint
// Might `fd` be a set itself? If not, SockEpollNest has nothing to do.
inline bool MayBeSet(int fd) {
  if (static_cast<uint32_t>(fd) >= kFdMax) return false;
  return (FdEntry(fd) & PSTN_FD_KIND) == PSTN_FD_EPOLL ||
         (LoadRelaxed(g_epolls_made[fd / 64]) >> (fd & 63) & 1u) != 0;
}
// Closes a kernel's set. -EAGAIN: it has become ours, or something else.
long SockEpollClose(int fd);
// The line to posternd, `fd`, is about to be closed: sets tell of it no longer. Without that they
// would for as long as a thread sleeps in poll() on it, which holds its file.
void SockEpollLineLost(uint32_t line, int fd);
void SockEpollNest(int outer, int op, int inner, const epoll_event* ev);
void SockEpollWatch(int epfd);
void DropItemsOfEp(pstn_ep& ep);
void MoveItemsToKernel(int fd, pstn_ep& ep);
void WatchListener(int fd, pstn_ep& ep);
void DropEpoll(uint32_t idx);
void AdoptBeforeFork();

// ---- export.cc: descriptors that others than the family's processes get
// To be called before it happens. 0, or -errno: the connection could not be moved, nothing has
// changed.
long SockExport(int fd);
// `fd` was taken from another process (pidfd_getfd), where its number is `target`.
void SockAdopt(int fd, int pidfd, int target);
// The keeper's part; `fd`, the endpoint's kernel socket, is taken. Of a connection: that socket
// becomes connected to another, and a new endpoint has what the old one had. Of a listener: those
// who wait in its queue get into the kernel's queue. `taken` gets each pair: the fd of an endpoint
// of ours, and the kernel socket whose other end the program has, or will accept.
using Taken = void (*)(void* context, int ring_fd, int kernel_fd);
long TakeOver(int fd, uint32_t ep_idx, uint32_t ep_gen, Taken taken, void* context);
// Who was taking over a connection has died: whatever step it had come to is completed.
void FinishTakeOver(pstn_ep& taker);

// ---- poll.cc
// `held`: accept() and recv() wait for what they have, whatever becomes of its number. `slept`: set
// when it had to.
long SockPoll(pollfd* fds, size_t n, Deadline until, const sigset_t* mask,
              const Call* held = nullptr, bool* slept = nullptr);
long SockSelect(int n, fd_set* r, fd_set* w, fd_set* x, Deadline until, const sigset_t* mask);
bool AnyOurs(pollfd* fds, size_t n);

// ---- wait.cc
// Spins while `ready()` is false, as options and the load of this CPU allow. True: it became ready.
template <typename Ready>
bool Spin(Ready ready, const Deadline& until);

inline constexpr uint64_t kDaemonRetryNs = 300'000'000;  // a sleeping listener looks for posternd

// A place to sleep for a set of descriptors: a waiter of the stack, and its doorbell.
struct Bed {
  uint32_t waiter = PSTN_NONE;  // PSTN_NONE: there is none, and `bell` is -errno
  int bell = -1;
};
// A doorbell for a waiter of ours, which peers wherever they are can ring. fd or -errno.
int NewBell(uint32_t waiter);
// How long a sleep may last that ends at `until`.
Deadline SleepUntil(const Deadline& until);
Bed MakeBed(uint32_t owner_slot);  // PSTN_NONE: it belongs to an event set
void UnmakeBed(const Bed& bed);
// Those of a process that has ended, or become another program.
void ReleaseWaitersOf(uint32_t slot);
Bed TakeBed();  // made, or kept from before
void GiveBed(const Bed& bed);
void BedsAfterFork();  // and what else the parent's threads held or waited for
// Says (or takes back) in every place where news for `waiter` arrives that it sleeps.
void AnnounceSleep(uint32_t waiter, bool sleeps);
void MarkWaiter(uint32_t waiter, uint32_t evmap_flags);  // PSTN_EV_* in every link group
// The same for one link group that may be younger than the waiter's last sleep, when news of a
// connection in it begin to matter: a post to all goes to those that are marked.
void UseWaiter(uint8_t* lgr, uint32_t side, uint32_t waiter);
// Something for `waiter` that a look has not yet taken?
bool WaiterHasNews(uint32_t waiter, bool syn);
void GiveBackIdleRings();
void GiveBackSome(const ConnEnd& e);

// ---- process.cc
// Around a fork: no other thread changes what numbers mean, and the child gets a slot.
void ForkPrepare();
// The process may have changed its network namespace (unshare, setns).
void LearnNetns();
void ForkParent();
void ForkChild();
// The same around a spawn, whose child is another image: it needs none of this process's memory.
void SpawnPrepare();
void SpawnDone();
// The slot that ForkPrepare has made and nobody has taken over yet; PSTN_NONE if there is none.
uint32_t EmbryoSlot();
// A wait() has told that this child has ended.
void ChildEnded(int pid);
// Writes the variable (POSTERN_ATTACH=...) by which the next image in `slot` finds this stack, and
// lets the fds that it names survive the exec. Its length; 0: nothing to keep.
size_t ExecPrepare(char* variable, size_t bytes, uint32_t slot, bool spawn);
// The next image has no library: nothing is kept for it.
void ExecWithout();
// The exec did not happen, or the spawned child has been started: as before.
void ExecFailed();

// ---- reap.cc is in reap.h

bool SpinAllowed();
void SpinLost();
void SpinKept();

// ---- wire.cc: what a thread does for all where the stack has VIs (wire.h)
extern uint32_t g_wire_on;
// Looks for packets, timers and news, if nobody else is at it. How much there was.
uint32_t WirePoll();
// One look in between, where somebody spins or is about to look for events.
inline void WireTurn() {
  if (LoadRelaxed(g_wire_on) != 0) [[unlikely]]
    (void)WirePoll();
}
// After a write or a close. Who still has other events at hand goes on with them first: what they
// lead to, and the rest of this answer, goes out with it, in fewer and larger segments. Where that
// takes the program longer than it should, the keeper looks, within a millisecond.
void WireWroteOne();
inline void WireWrote() {
  if (LoadRelaxed(g_wire_on) != 0) [[unlikely]]
    WireWroteOne();
}
// How many events this thread has been given by epoll_wait() or poll(). Returns it.
long WireEvents(long count);
void WireSleeps();
void WireAwake();
// Tells posternd what came up under the engine's lock, without a wait (wire_errands.cc).
void WireErrands();
// kReasonNone: the endpoint is PSTN_EP_CONNECTING, or past it already. Else it is as before.
Reason WireConnect(int fd, pstn_ep& ep, const pstn_addr& to);
// Clients that come between the kernel's listen() and the filter that steers to us are the
// kernel's, and stay so. There are few of them if all else that takes time has been done before.
void WireBeforeListen(const pstn_ep& ep);
// An attempt that is under way ends, as if it had been reset. Under ep.setup_lock.
void WireGiveUp(pstn_ep& ep);
// Waits for the end of a handshake. 0, -EINTR, or -EINPROGRESS at the end of SO_SNDTIMEO. The
// caller has no lock: signal handlers run during the wait, and the thread can be cancelled.
long WireAwaitConnected(pstn_ep& ep, const Interrupts& since = Interrupts());
// Around a sleep in the kernel: while nobody polls, the keeper does.
class WireSleep {
 public:
  WireSleep() : on_(LoadRelaxed(g_wire_on)) {
    if (on_ != 0) [[unlikely]]
      WireSleeps();
  }
  ~WireSleep() {
    if (on_ != 0) [[unlikely]]
      WireAwake();
  }
  WireSleep(const WireSleep&) = delete;
  WireSleep& operator=(const WireSleep&) = delete;

 private:
  const uint32_t on_;
};

template <typename Ready>
bool Spin(Ready ready, const Deadline& until) {
  if (!SpinAllowed()) return ready();
  const uint64_t start = MonotonicNs();
  const uint64_t budget = static_cast<uint64_t>(g_proc.opt.spin_usec) * 1000u;
  const uint32_t interrupts = t_interrupts;
  uint64_t now = start;
  do {
    for (int i = 0; i < 40; i++) {
      if (ready()) return true;
      CpuRelax();
      if (i % 4 == 0) WireTurn();
    }
    if (t_interrupts != interrupts) return false;
    if (g_proc.opt.spin_yield != 0 && now - start > 4000) {
      // Whoever else wants this CPU gets it. If somebody did, spinning only stands in the way.
      uint64_t before = MonotonicNs();
      (void)sys::Call(SYS_sched_yield);
      now = MonotonicNs();
      // The keeper's look, each millisecond, is not somebody.
      if (now - before > (LoadRelaxed(g_wire_on) != 0 ? 30'000u : 8'000u)) {
        SpinLost();
        return ready();
      }
      SpinKept();
    } else {
      now = MonotonicNs();
    }
  } while (now - start < budget && now < until.at_ns);
  return ready();
}

}  // namespace postern
