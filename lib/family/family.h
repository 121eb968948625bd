// SPDX-License-Identifier: Apache-2.0
// family.h - a process's part in a family: its view of the stack, its line to posternd.
//
// Everything that other processes must see is in the stack; what is here can be rebuilt from it
// (exec does so). A process may have several, each with a stack of its own: a function that needs
// one is given it. The preloaded library's is in sock/own_family.h.
#pragma once

#include "base/lock.h"
#include "base/log/log_sink.h"
#include "base/schema/counters.h"
#include "base/schema/options.h"
#include "base/schema/reasons.h"
#include "family/holder.h"
#include "family/verbs.h"
#include "smcd/notify.h"
#include "state/view.h"

namespace postern {

namespace stack {
class Engine;
}
// What the rooms keep for a family in this process; each room's header says what is in its own.
struct FdCache;  // family/fdcache.h
struct Uses;     // family/uses.h
struct Sets;     // event/epoll_set.h
struct Beds;     // event/wait.h
struct Wire;     // offhost/wire_here.h
struct Peers;    // peer/peers.h
struct Bounces;  // stream/bounces.h

// The readers' side of a lock whose writers fork (TableChange).
struct TableGate {
  uint32_t changing;  // threads in a TableChange
  uint32_t frozen;    // futex: 1 while a thread forks
  uint32_t freezer;   // (a) the thread that forks; 0: none does
  pstn_lock lock;     // its own; TableForked makes it anew
};

inline constexpr uint32_t kFdMax = 1u << 20;  // the kernel's default fs.nr_open
inline constexpr long kPass = -4096;          // "not ours: let the kernel do it"

struct Family {
  StackView view;
  uint32_t slot = PSTN_NONE;
  int stack_fd = -1;
  uint32_t pid = 0;
  bool enabled = false;  // options say so, and this is not posternd itself
  bool attached = false;
  bool elsewhere = false;  // in another network namespace than the stack: ports mean others there
  uint32_t ring = 0;       // (a) kRing*: an io_uring matters (family/io_uring.h)
  uint32_t cancels = 0;    // (a) so many threads have been cancelled
  uint32_t aside =
      0;  // (a) the Reason, for good: its sockets are the kernel's (StepAside, preload/leaving.h)
  For whom = For::kProgram;
  pstn_lock init_lock{};
  Options opt{};
  LogState log{};
  RingLimits limits{};
  Bells bells{};

  Holder holder{};

  // What its descriptors mean (family/fdtab.h): PSTN_FD_* of each number, or 0. A mirror of the
  // slot's chunks. No entry was ever set from `fd_hw` on.
  uint32_t* fd = nullptr;
  uint32_t fd_hw = 0;                // (a)
  uint64_t* epolls_made = nullptr;   // (a) a bit a number that epoll_create gave: a hint
  uint64_t* epolls_duped = nullptr;  // (a) of those: a dup() of it may be open, or it is one
  uint32_t wire_on = 0;              // (a) 1: its threads poll the wire
  uint32_t light_fences = 0;         // (a) see LightFence (endpoint/call.h)
  stack::Engine* engine = nullptr;   // (a) the wire as this process has it; null: there is none
  TableGate gate{};
  uint32_t replaced = 0;  // (a) counts dup2() over numbers that had meant nothing here

  FdCache* cache = nullptr;
  Uses* uses = nullptr;
  Sets* sets = nullptr;
  Beds* beds = nullptr;
  Wire* wire = nullptr;
  Peers* peers = nullptr;
  Bounces* bounces = nullptr;

  // posternd
  int ctl_fd = -1;
  uint32_t ctl_line = 1;  // (a) which of the lines that this process has had
  uint32_t ctl_seq PSTN_GUARDED_BY(ctl_lock) = 0;
  pstn_lock ctl_lock{};
  uint64_t ctl_retry_ns = 0;  // not before this
  bool ctl_below = false;     // socket_path is that of this network namespace (control/reach.cc)
  uint64_t ctl_introduced = 0;  // the posternd (dir.id.lo) that had been told of all by our parent
  bool ctl_await = false;     // none has been reached yet: one that is being started is waited for
  uint32_t ctl_version = 0;   // (a) 1: the posternd that is there is of another version
  // How long to wait for a posternd that was silent; 0: it was not.
  uint32_t ctl_silent_ms PSTN_GUARDED_BY(ctl_lock) = 0;
  uint64_t spawn_not_before_ns PSTN_GUARDED_BY(ctl_lock) = 0;
  uint64_t no_get_until_ns PSTN_GUARDED_BY(ctl_lock) = 0;  // posternd is asked for no link group
  uint64_t no_await_until_ns = 0;  // (a) no thread waits for one before this (AwaitLgrOf)
  // Of event sets that a family which this process has left still has (event/epoll_set.h); 0: none.
  uint64_t left_magic = 0;
  uint32_t attend = 0;  // (a) kAttend*: posternd wants something of our listeners
  const pstn_dir* dir = nullptr;
  char socket_path[108]{};
  char daemon_path[256]{};
};

inline constexpr uint32_t kAttendHeld = 1;   // one may have connections to fetch (pstn_ep.held)
inline constexpr uint32_t kAttendAgain = 2;  // tell posternd of them once more
inline constexpr uint32_t kAttendVi = 4;     // there may be a VI for those that have found none
inline StackMap& Stack(Family& fam) { return *fam.view.s; }

// Makes the stack at the first use. False if it can't be had; sockets then are the kernel's.
inline bool EnsureStack(Family& fam) { return fam.attached || kVerbs.make_stack(fam); }

// The tables of a link group, which are mapped if need be; null: they can't be had.
inline uint8_t* EnsureLgrTables(Family& fam, uint32_t idx) {
  uint8_t* base = LgrBase(fam.view, idx);
  return base != nullptr ? base : kVerbs.map_lgr(fam, idx);
}
// The same for a connection: with the rings.
inline uint8_t* EnsureLgr(Family& fam, uint32_t idx) {
  uint8_t* base = EnsureLgrTables(fam, idx);
  return base != nullptr && HasRings(base) ? base : nullptr;
}
// The same for a connection that the family has: waits for a posternd that is being started anew.
inline uint8_t* AwaitLgr(Family& fam, uint32_t idx) {
  uint8_t* base = LgrBase(fam.view, idx);
  if (base == nullptr) base = kVerbs.await_lgr(fam, idx);
  return base != nullptr && HasRings(base) ? base : nullptr;
}

}  // namespace postern
