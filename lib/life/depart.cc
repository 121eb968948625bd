// SPDX-License-Identifier: Apache-2.0
// depart.cc - see depart.h.
#include "life/depart.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>

#include "base/sys.h"
#include "control/acceptor.h"
#include "control/named_stack.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "event/epoll_set.h"
#include "event/wait.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "family/holder.h"
#include "family/module.h"
#include "family/telling.h"
#include "life/luggage.h"
#include "life/process.h"
#include "life/slot.h"
#include "peer/connect.h"
#include "peer/contact/contact.h"
#include "peer/export.h"
#include "peer/kernel_half.h"
#include "peer/peers.h"
#include "state/area.h"

namespace postern {
namespace {

// In calls on the stack: other threads, or what a handler has come in the middle of.
bool MayBeInCalls() {
  if (t_uses != nullptr && t_uses->depth != 0) return true;
  if (__libc_single_threaded != 0) return false;
  struct stat st = {};
  if (sys::Call(SYS_newfstatat, static_cast<long>(AT_FDCWD), "/proc/self/task", &st, 0L) == 0)
    return st.st_nlink != 3;  // two, and one for each thread
  // Where there is no /proc (chroot): nothing is done to a process of one thread, others may not.
  return sys::Call(SYS_unshare, static_cast<long>(CLONE_THREAD)) != 0;
}

bool Listens(const pstn_ep& ep) { return LoadAcquire(ep.state) == PSTN_EP_LISTEN; }  // [E1]

// What does not go along is the kernel's from now on. `all`: nothing does.
void LeaveToKernel(Family& fam, bool all) {
  const uint32_t hw = LoadAcquire(fam.fd_hw);  // [T1]
  for (uint32_t n = 0; n < hw; n++) {
    const int fd = static_cast<int>(n);
    const uint32_t entry = FdMeans(fam, fd);
    pstn_ep* const ep = EpOfEntry(fam, entry);
    if (ep == nullptr) continue;
    const uint32_t state = LoadAcquire(ep->state);  // [E1]
    LeaveAcceptor(fam, fam.slot, *ep);
    const bool goes_along =
        !all && (Listens(*ep) || state == PSTN_EP_NEW) && !Luggage::IsLast(fam, entry, *ep);
    if (state == PSTN_EP_CONNECTING) (void)LeaveWaiting(fam, fd, *ep, kReasonExported);
    if (LoadAcquire(ep->state) == PSTN_EP_CONNECTING) {  // [E1]
      Guard g(ep->setup_lock);
      (void)DisconnectEp(fam, fd, *ep);
    }
    if (!goes_along) (void)SockExport(fam, fd);
  }
}

// The last user's: the line, bells, spare sockets. The slot is posternd's to reap, as that of a
// process which runs another image by now.
void GiveBack(Family& fam) {
  StoreRelaxed(Stack(fam).hdr.guests, 1u);
  ExecWithout(fam);
  CtlLeave(fam);
  for (uint32_t fd = 0; fd < LoadRelaxed(fam.fd_hw); fd++) {
    const uint32_t kind = fam.fd[fd] & PSTN_FD_KIND;
    if (kind == PSTN_FD_EP || kind == PSTN_FD_EPOLL) MarkPrivate(fam, static_cast<int>(fd), 0);
  }
  (void)CacheFlush(fam);
  BedsForget(fam);
  SetsForget(fam);
  for (int* sender : {&fam.bells.sender, &fam.bells.wide_sender}) {
    CloseInternal(fam, *sender);
    *sender = -1;
  }
  ModuleLeave(fam);
  memset(fam.peers->hints, 0, sizeof fam.peers->hints);
  ForgetContacts(fam);
  StoreRelaxed(fam.attend, 0u);
  fam.left_magic = SetMagic(fam);
}

void Unmap(Family& fam) {
  kVerbs.wire_forget(fam);
  for (uint32_t i = 0; i < kGroups.most; i++) {
    DropLgrMapping(fam.view, i);
    if (fam.view.lgr_fd[i] > 0) CloseInternal(fam, fam.view.lgr_fd[i]);
    fam.view.lgr_fd[i] = 0;
  }
  DropQueuesMapping(fam.view, kOwnQueues);
  CloseInternal(fam, fam.stack_fd);
  Unjoin(fam);
  if (fam.dir != nullptr) UnmapDir(fam.dir);
  StoreRelease(fam.dir, nullptr);  // [T4]
}

void MoveOver(void* own, void* at, size_t bytes) {
  if (own == nullptr) return sys::Unmap(at, bytes);  // better a crash than another one's memory
  (void)sys::Call(SYS_mremap, own, bytes, bytes, static_cast<long>(MREMAP_MAYMOVE | MREMAP_FIXED),
                  at);
}

// In the place of shared memory, which begins at `off` of `fd`, memory of this process's own, that
// has the same in it.
void MakeOwn(void* at, size_t bytes, int fd, long off) {
  void* const copy = sys::MapPrivate(bytes);
  if (copy == nullptr) return MoveOver(copy, at, bytes);
  const long end = off + static_cast<long>(bytes);
  for (long data = off, hole; data < end; data = hole) {
    data = sys::Call(SYS_lseek, fd, data, static_cast<long>(SEEK_DATA));
    hole = data >= 0 ? sys::Call(SYS_lseek, fd, data, static_cast<long>(SEEK_HOLE)) : -1;
    if (hole < 0 || data >= end) break;
    if (hole > end) hole = end;
    (void)sys::Call(SYS_pread64, fd, static_cast<uint8_t*>(copy) + (data - off), hole - data, data);
  }
  MoveOver(copy, at, bytes);
}

// Threads that are in calls go on with a copy, and find that the kernel has their sockets.
void MakeAllOwn(Family& fam) {
  for (uint32_t i = 0; i < kGroups.most; i++) {
    uint8_t* const base = LoadRelaxed(fam.view.lgr[i]);
    if (base == nullptr || fam.view.lgr_fd[i] <= 0) continue;
    LgrPart part;
    for (uint32_t from = 0; NextPart(base, from, part);)
      MakeOwn(part.at, part.bytes, fam.view.lgr_fd[i], static_cast<long>(part.off));
    CloseInternal(fam, fam.view.lgr_fd[i]);
    fam.view.lgr_fd[i] = 0;
  }
  for (const QueuesHere& here : fam.view.queues) {  // in which nobody counts any more
    for (pstn_queues* const map : {here.map, here.retired})
      if (map != nullptr) MoveOver(sys::MapPrivate(sizeof *map), map, sizeof *map);
  }
  auto* const stack = reinterpret_cast<uint8_t*>(&Stack(fam).hdr);
  for (uint32_t i = 0; i < kStackParts; i++) {
    const StackPart part = Stack(fam).Part(i);
    MakeOwn(stack + part.off, part.bytes, fam.stack_fd, static_cast<long>(part.off));
  }
  CloseInternal(fam, fam.stack_fd);
  fam.stack_fd = -1;
}

// The guests' stack; -1: there is none.
int GuestStack(Family& fam, uint64_t* ticket, pstn_uuid* id) {
  const int own = CreateStackOf(fam);
  if (own < 0) return -1;
  const int fd = FindGuestStack(fam, own, ticket);
  sys::Close(own);
  StackMap* const next = fd >= 0 ? MapStack(fd) : nullptr;
  if (next == nullptr) return fd < 0 ? -1 : (sys::Close(fd), -1);
  *id = next->hdr.id;
  UnmapStack(next);
  return MoveHigh(fam, fd);
}

void LeaveForKernel(Family& fam, Reason why) {
  NoteFallback(fam, why, -1);  // posternd says kReasonSecurity
  LeaveToKernel(fam, true);
  const bool in_calls = MayBeInCalls();
  GiveBack(fam);
  if (in_calls) {
    MakeAllOwn(fam);
  } else {
    Unmap(fam);
  }
  fam.enabled = fam.attached = false;
}

}  // namespace

bool HasOtherUser(Family& fam) {
  uint32_t real = 0, effective = 0, saved = 0;
  if (sys::Call(SYS_getresuid, &real, &effective, &saved) != 0) return false;
  // As the kernel says whose memory it is, and by the names of this process's user namespace.
  struct stat st = {};
  if (sys::Call(SYS_fstat, fam.stack_fd, &st) != 0) return false;
  const uint32_t uid = st.st_uid;
  return real != uid && effective != uid && saved != uid;
}

void LeaveQueues(Family& fam) {
  if (!fam.attached || LoadRelaxed(Stack(fam).hdr.ticket) == 0) return;
  const uint32_t hw = LoadAcquire(fam.fd_hw);  // [T1]
  for (uint32_t n = 0; n < hw; n++) {
    const int fd = static_cast<int>(n);
    const uint32_t entry = FdMeans(fam, fd);
    const pstn_ep* const ep = EpOfEntry(fam, entry);
    if (ep != nullptr && Listens(*ep) && (LoadRelaxed(ep->flags) & PSTN_EPF_BROUGHT) != 0 &&
        Luggage::IsLast(fam, entry, *ep))
      (void)SockExport(fam, fd);
  }
}

void LeaveForGood(Family& fam, Reason why) {
  TableChange change(fam);  // handlers wait, too
  if (!fam.attached) return;
  CtlReconnect(fam);
  LeaveForKernel(fam, why);
}

void LeaveFamily(Family& fam) {
  TableChange change(fam);  // handlers wait, too
  CtlReconnect(fam);
  uint64_t ticket = 0;
  pstn_uuid next = {};
  Luggage luggage;
  const int guest =
      MayBeInCalls() || LoadRelaxed(fam.aside) != 0 ? -1 : GuestStack(fam, &ticket, &next);
  if (guest < 0 || !luggage.Pack(fam)) {
    CloseInternal(fam, guest);
    return LeaveForKernel(fam, kReasonSecurity);
  }
  luggage.HandOnAll(fam, next);
  LeaveToKernel(fam, false);
  GiveBack(fam);
  Unmap(fam);
  fam.attached = false;
  if (JoinAs(fam, guest, PSTN_NONE) && FillSlot(fam)) {
    StoreRelaxed(Stack(fam).hdr.ticket, ticket);
    fam.attached = true;
    CtlReconnect(fam);
  } else {  // it is full
    CloseInternal(fam, guest);
    fam.enabled = false;
  }
  luggage.Unpack(fam);
}

}  // namespace postern
