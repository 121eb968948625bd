// SPDX-License-Identifier: Apache-2.0
// fork.cc - around fork and spawn, in the parent and in the child.
//
// Before the kernel copies the process, an embryo slot takes a reference on everything that the fd
// table means, so that no close in the parent can end what the child inherits. The child makes the
// slot its own; if it never comes, posternd reaps the slot.
#include "base/sys.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/refs.h"
#include "event/epoll.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "family/holder.h"
#include "family/local_lock.h"
#include "family/module.h"
#include "life/depart.h"
#include "life/process.h"
#include "life/reap.h"
#include "life/slot.h"
#include "peer/export.h"

namespace postern {
namespace {

// Made by this thread's last SpawnPrepare, for each of its families.
struct Embryo {
  const Family* fam;  // null: none
  uint32_t slot;
};
constexpr uint32_t kEmbryos = 4;
constinit thread_local Embryo t_embryos[kEmbryos] __attribute__((tls_model("initial-exec"))) = {};

void KeepEmbryo(const Family& fam, uint32_t slot) {
  for (Embryo& e : t_embryos) {
    if (e.fam != &fam && e.fam != nullptr) continue;
    e = {slot != PSTN_NONE ? &fam : nullptr, slot};
    return;
  }
}

// A child that there is no slot for has the kernel's sockets and nothing else.
void LeaveAllToKernel(Family& fam) {
  for (uint32_t fd = 0; fd < LoadAcquire(fam.fd_hw); fd++) {  // [T1]
    if ((FdMeans(fam, static_cast<int>(fd)) & PSTN_FD_KIND) == PSTN_FD_EP)
      (void)SockExport(fam, static_cast<int>(fd));
  }
}

// Such a child: the tables and what they count are its parent's.
void ForkedWithoutSlot(Family& fam) {
  fam.slot = PSTN_NONE;
  fam.enabled = fam.attached = false;
  ModuleLeave(fam);
  LeaveLocks(fam);
  StoreRelease(fam.wire_on, 0u);  // [T3]
  UsesForget(fam);
  for (uint32_t fd = 0; fd < fam.fd_hw; fd++) {
    const uint32_t kind = fam.fd[fd] & PSTN_FD_KIND;
    if (kind == PSTN_FD_EP || kind == PSTN_FD_EPOLL) MarkPrivate(fam, static_cast<int>(fd), 0);
  }
  CacheForget(fam);
  BedsAfterFork(fam);
  CloseInternal(fam, fam.ctl_fd);
  StoreRelaxed(fam.ctl_fd, -1);
}

}  // namespace

void SpawnPrepare(Family& fam, void (*leave_to_kernel)(Family& fam)) {
  uint32_t slot = fam.attached ? TakeSlot(fam, PSTN_SL_EMBRYO) : PSTN_NONE;
  if (fam.attached && slot == PSTN_NONE) leave_to_kernel(fam);
  TableFreeze(fam);
  if (slot != PSTN_NONE) {
    if (LoadRelaxed(fam.aside) == 0) AdoptBeforeFork(fam);
    if (!CopyTable(fam, slot)) {  // no room for its table, either
      TableThaw(fam);
      EndEmbryo(fam, slot);
      slot = PSTN_NONE;
      leave_to_kernel(fam);
      TableFreeze(fam);
    }
  }
  KeepEmbryo(fam, slot);
}

void SpawnDone(Family& fam) { TableThaw(fam); }

void ForkPrepare(Family& fam) {
  SpawnPrepare(fam, LeaveAllToKernel);
  LocalLocksTake(fam);
}

void ForkParent(Family& fam) {
  LocalLocksGive(fam);
  SpawnDone(fam);
}

void ForkChild(Family& fam) {
  TableForked(fam);
  ForgetTid();
  ForgetLockSlot(fam);
  ForgetPidns(fam);
  fam.pid = static_cast<uint32_t>(sys::Pid());
  LocalLocksForked(fam);
  if (!fam.attached) return;
  CtlForked(fam);  // first: on its parent's line it would take answers that the parent waits for
  uint32_t slot = EmbryoSlot(fam);
  KeepEmbryo(fam, PSTN_NONE);
  if (slot == PSTN_NONE) {  // a fork that went past our handlers, or no slot was free
    slot = TakeSlot(fam, PSTN_SL_EMBRYO);
    if (slot == PSTN_NONE) return ForkedWithoutSlot(fam);
    if (!CopyTable(fam, slot)) {
      EndEmbryo(fam, slot);
      return ForkedWithoutSlot(fam);
    }
  }
  fam.slot = slot;
  fam.bells.told = &Stack(fam).slots.Own(ProcIndex(slot)).told;
  fam.bells.noted = 0;
  if (!FillSlot(fam)) return ForkedWithoutSlot(fam);
  Count(Stack(fam).hdr, kCounterForks);
  ModuleForked(fam);
  // What the parent's other threads are in calls on is not the child's.
  UsesAfterFork(fam);
  CtlAfterFork(fam);  // the last reference to a listener may be among those that follow
  EachFd(fam, Stack(fam).slots.Own(ProcIndex(slot)), [&fam](int fd, uint32_t entry) {
    if ((FdEntry(fam, fd) & PSTN_FD_KIND) != PSTN_FD_INTERNAL || IsParkedHere(fam, fd)) return;
    (void)CloseNumberOf(fam, fd, entry);
  });
  CacheForget(fam);
  BedsAfterFork(fam);
  UserChanged(fam);
}

uint32_t EmbryoSlot(const Family& fam) {
  for (const Embryo& e : t_embryos) {
    if (e.fam == &fam) return e.slot;
  }
  return PSTN_NONE;
}

}  // namespace postern
