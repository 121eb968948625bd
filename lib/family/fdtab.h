// SPDX-License-Identifier: Apache-2.0
// fdtab.h - what numbers mean: this process's table, and its slot's.
#pragma once

#include "base/atomic.h"
#include "family/family.h"

namespace postern {

inline uint32_t FdEntry(Family& fam, int fd) {  // pairs with MarkPrivate: what it names is made
  return static_cast<uint32_t>(fd) < kFdMax ? LoadAcquire(fam.fd[fd]) : 0;  // [T1]
}
void MarkPrivate(Family& fam, int fd, uint32_t entry);  // this process's table only
void SetSharedFd(Family& fam, int fd, uint32_t entry);  // the slot's table only
void SetFd(Family& fam, int fd, uint32_t entry);        // both tables; the caller counts references
// Where the slot's table has the number's entry (PSTN_REFS_*); PSTN_NONE: nowhere. `make`: where it
// is going to.
uint32_t PlaceOf(Family& fam, int fd, bool make);
uint32_t* EntryAt(StackMap& s, uint32_t place);  // null: there is no such place
uint32_t SharedEntry(Family& fam, int fd);       // what a number of our own stands for (call.h)
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
bool ClaimFd(Family& fam, int fd, uint32_t entry, uint32_t meanwhile);
// Closes a claimed number. For the kernel it is free before this thread can say so in the table,
// and may be another thread's by then: what that has put there stays.
long CloseClaimed(Family& fam, int fd);
uint32_t AwaitReplaced(Family& fam, int fd);    // the entry, when no thread replaces it
inline uint32_t FdMeans(Family& fam, int fd) {  // the same, where that is rare
  const uint32_t entry = FdEntry(fam, fd);
  return IsReplaced(entry) ? AwaitReplaced(fam, fd) : entry;
}
uint32_t AwaitUnclaimed(Family& fam, int fd);  // the entry, when no thread closes it either
void ForgetFd(Family& fam, int fd);
// The library's own fds: the program may neither see nor close them.
inline bool IsInternalFd(Family& fam, int fd) {
  return (FdEntry(fam, fd) & PSTN_FD_KIND) == PSTN_FD_INTERNAL;
}
// This thread is in a child of vfork(). The tables are its parent's, whose other threads go on and
// change them; the child's descriptors are copies of what its parent had. So a number that the
// table has may be another file here.
extern constinit thread_local uint32_t t_vforked __attribute__((tls_model("initial-exec")));
inline bool InVfork() { return t_vforked != 0; }
// While a thread changes what numbers mean, to the kernel and in the tables, no other thread forks:
// a child would get one without the other. Does not nest with a fork of the same thread's handler:
// handlers wait, as under a lock.
class TableChange {
 public:
  TableChange(Family& fam);
  ~TableChange();
  TableChange(const TableChange&) = delete;
  TableChange& operator=(const TableChange&) = delete;

 private:
  Family& fam_;
};
// Around a fork: waits until no thread changes the table; keeps it so. In the child, TableForked.
void TableFreeze(Family& fam);
void TableThaw(Family& fam);
void TableForked(Family& fam);

int MoveHigh(Family& fam,
             int fd);  // out of the way (sys::DupHigh), close-on-exec, marked; keeps fd on failure
void CloseInternal(Family& fam, int fd);

}  // namespace postern
