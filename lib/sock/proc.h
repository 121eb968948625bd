// SPDX-License-Identifier: Apache-2.0
// proc.h - what one process knows: its view of the stack, its fd table, its line to posternd.
//
// The one place of global mutable state. Everything that other processes must see is in the stack;
// what is here can be rebuilt from it (exec does so).
#pragma once
#include "base/counters.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/reasons.h"
#include "smcd/notify.h"
#include "state/view.h"

namespace postern {

inline constexpr uint32_t kFdMax = 1u << 20;  // the kernel's default fs.nr_open
inline constexpr long kPass = -4096;          // "not ours: let the kernel do it"

struct Process {
  StackView view;
  uint32_t slot = PSTN_NONE;
  int stack_fd = -1;
  uint32_t pid = 0;
  bool enabled = false;  // options say so, and this is not posternd itself
  bool attached = false;
  bool elsewhere = false;  // in another network namespace than the stack: ports mean others there
  bool confined = false;   // behind a seccomp filter: no more calls than the program's own
  pstn_lock init_lock{};
  Options opt{};
  RingLimits limits{};
  Bells bells{};

  // posternd
  int ctl_fd = -1;
  uint32_t ctl_line = 1;  // (a) which of the lines that this process has had
  uint32_t ctl_seq = 0;
  pstn_lock ctl_lock{};
  uint64_t ctl_retry_ns = 0;  // not before this
  uint32_t attend = 0;        // (a) kAttend*: posternd wants something of our listeners
  const pstn_dir* dir = nullptr;
  char socket_path[108]{};
  char daemon_path[256]{};
};

inline constexpr uint32_t kAttendHeld = 1;   // one may have connections to fetch (pstn_ep.held)
inline constexpr uint32_t kAttendAgain = 2;  // tell posternd of them once more
inline constexpr uint32_t kAttendVi = 4;     // there may be a VI for those that have found none
extern Process g_proc;
// This process's fd table: PSTN_FD_* entry of each fd, or 0. A mirror of its slot's chunks.
extern uint32_t g_fd[kFdMax];

inline pstn_stack& Stack() { return *g_proc.view.s; }

// Reads options and, after an exec, takes over what the image before held. Once, before main.
void ProcessInit(const char* const* envp);
// Makes the stack at the first use. False if it can't be had; sockets then are the kernel's.
bool EnsureStack();
// Becomes a process of the stack in `stack_fd`, which is taken: the keeper's way in.
bool JoinStack(int stack_fd);

// ---- owners of locks (holder.cc)
uint32_t OwnPidns();              // inode of this process's PID namespace; PSTN_NONE: not known
void ForgetPidns();               // child of fork: it may be in another one
void UseLockSlot(uint32_t slot);  // from now on this process's locks bear this slot
void UseReaperLocks();
// control.cc. From now on waits under a lock that forbids them are noticed (CheckMayWait).
void WatchLocks();

// ---- fd table (fdtab.cc)
inline uint32_t FdEntry(int fd) {  // pairs with MarkPrivate: what it names is made
  return static_cast<uint32_t>(fd) < kFdMax ? LoadAcquire(g_fd[fd]) : 0;
}
void MarkPrivate(int fd, uint32_t entry);  // this process's table only
void SetSharedFd(int fd, uint32_t entry);  // the slot's table only
void SetFd(int fd, uint32_t entry);        // both tables; the caller counts references
uint32_t SharedEntry(int fd);              // what a number of our own stands for (call.h)
// A thread that changes what a number means, to the kernel and in the tables, claims it: of several
// that would, one may. In a TableChange, for as long as that takes. The slot's table still has the
// entry (our death would release it), until ForgetFd.
//
// kFdReplaced: it is about to mean something else. Calls wait for that, as dup2() is one step in
// the kernel. kFdClosing: it is closed to calls, and about to be free.
inline constexpr uint32_t kFdReplaced = PSTN_FD_INTERNAL | 1u << 24;
inline constexpr uint32_t kFdClosing = PSTN_FD_INTERNAL | 1;
inline bool IsReplaced(uint32_t entry) {
  return (entry & (PSTN_FD_KIND | 1u << 24)) == kFdReplaced;
}
bool ClaimFd(int fd, uint32_t entry, uint32_t meanwhile);
// Closes a claimed number. For the kernel it is free before this thread can say so in the table,
// and may be another thread's by then: what that has put there stays.
long CloseClaimed(int fd);
uint32_t AwaitReplaced(int fd);    // the entry, when nobody replaces it
inline uint32_t FdMeans(int fd) {  // the same, where that is rare
  const uint32_t entry = FdEntry(fd);
  return IsReplaced(entry) ? AwaitReplaced(fd) : entry;
}
uint32_t AwaitUnclaimed(int fd);  // the entry, when nobody closes it either
void ForgetFd(int fd);
// The library's own fds: the program may neither see nor close them.
inline bool IsInternalFd(int fd) { return (FdEntry(fd) & PSTN_FD_KIND) == PSTN_FD_INTERNAL; }
// While a thread changes what numbers mean, to the kernel and in the tables, no other thread forks:
// a child would get one without the other. Does not nest with a fork of the same thread's handler:
// handlers wait, as under a lock.
class TableChange {
 public:
  TableChange();
  ~TableChange();
  TableChange(const TableChange&) = delete;
  TableChange& operator=(const TableChange&) = delete;
};
// Around a fork: waits until nobody changes the table, and keeps it so. In the child, TableForked.
void TableFreeze();
void TableThaw();
void TableForked();

int MoveHigh(int fd);  // out of the way (sys::DupHigh), close-on-exec, marked; keeps fd on failure
void CloseInternal(int fd);
extern uint32_t g_fd_hw;  // no entry was ever set from here on

// ---- fd cache (fdcache.cc): kernel sockets of closed connections, ready for the next
struct CachedFd {
  int fd = -1;
  uint16_t port = 0;  // bound to this ephemeral port; 0 = unbound
  bool cloexec = false;
  // The connection that had the port: until its peer has closed, too, the names are taken.
  uint32_t lgr_idx = PSTN_NONE, conn_idx = 0, conn_gen = 0;
};
CachedFd CacheTake(uint32_t family, bool want_bound, bool cloexec);
bool CachePut(uint32_t family, const CachedFd& c);
void CacheFlush();         // EMFILE, exec
void CacheForget();        // child of fork: closes its copies
void CacheMarkCloexec();   // before posix_spawn
void CacheRemove(int fd);  // the number is being taken for something else

// ---- posternd (control.cc). All return 0 or -errno.
bool DaemonAlive();  // no system call
// Connects to posternd by its path or, where that can't be reached (any more), by its abstract
// name, if it is of that user or root.
long CtlReach(int fd, uint32_t uid);
int CtlListen(pstn_ep& ep, int fd);
int CtlUnlisten(pstn_ep& ep);
// `known`: the link groups with that stack that are full.
int CtlIntroduce(const pstn_uuid& peer, uint32_t known, uint32_t* lgr_idx);
void CtlReap(uint32_t slot, uint32_t pid);  // a child that has been waited for
int CtlExport(const pstn_ep& ep, int fd);   // has the stack's keeper take over the connection
int CtlExportOf(uint32_t pid, int target,
                int fd);           // the same for number `target` of another family's process
void CtlDrain();                   // takes what posternd pushed
uint8_t* EnsureLgr(uint32_t idx);  // maps it if need be; null if it can't be had
void CtlAfterFork();
void CtlReconnect();  // if posternd is gone and enough time has passed

// ---- signals (installed by the preload layer)
// Handlers without SA_RESTART that ran in this thread: a wait that sees it change returns EINTR.
extern constinit thread_local uint32_t t_interrupts __attribute__((tls_model("initial-exec")));
// All handlers that ran in it: a wait with an end of its own (SO_SNDTIMEO) returns EINTR for each.
extern constinit thread_local uint32_t t_handlers __attribute__((tls_model("initial-exec")));
// A call takes one when it begins, so that a signal that comes before its wait counts as well.
class Interrupts {
 public:
  bool Ends(bool timed) const { return timed ? t_handlers != all_ : t_interrupts != some_; }

 private:
  uint32_t some_ = t_interrupts, all_ = t_handlers;
};
// The futex on which this thread is about to sleep; a handler sets kNudge in it, and forgets it.
extern constinit thread_local uint32_t* t_sleep_word __attribute__((tls_model("initial-exec")));
// Or the waiter; a handler rings its bell.
extern constinit thread_local uint32_t t_sleep_waiter __attribute__((tls_model("initial-exec")));
inline constexpr uint32_t kNudge = 0x40000000u;

}  // namespace postern
