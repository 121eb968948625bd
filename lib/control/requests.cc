// SPDX-License-Identifier: Apache-2.0
// requests.cc - what posternd is asked for the sake of this host's sockets.
#include <cerrno>

#include "base/clock.h"
#include "base/cut_short.h"
#include "base/sys.h"
#include "control/line.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/places/places.h"
#include "family/family.h"

namespace postern {

using ctl::Msg;
using ctl::Type;

namespace {

bool HasQueues(Family& fam, uint32_t which) {
  const pstn_dir* const dir = LoadAcquire(fam.dir);                                   // [T4]
  return dir != nullptr && LoadAcquire(fam.view.queues[which].daemon) == dir->id.lo;  // [V6]
}

int TakeQueues(Family& fam, uint32_t which) PSTN_REQUIRES(fam.ctl_lock) {
  if (HasQueues(fam, which)) return 0;
  Msg m;
  m.type = Type::kQueues;
  m.a = which == kOwnQueues ? PSTN_NONE : which;
  int fd = -1;
  const int r = Ask(fam, m, -1, &fd);
  const pstn_dir* const dir = LoadAcquire(fam.dir);  // [T4]
  pstn_queues* const map = r == 0 && fd >= 0 ? MapQueues(fd) : nullptr;
  if (fd >= 0) sys::Close(fd);
  if (map == nullptr) return r != 0 ? r : -ENOMEM;
  SetQueuesMapping(fam.view, which, map, dir->id.lo);
  return 0;
}

}  // namespace

int CtlQueues(Family& fam, uint32_t which) {
  if (HasQueues(fam, which)) return 0;
  const LineGuard line(fam);
  return ConnectLocked(fam) ? TakeQueues(fam, which) : -ENOTCONN;
}

// Before a client finds the listener. Those of the listener that had its place before are gone, and
// a new posternd's memory has none yet.
int ListenLocked(Family& fam, pstn_ep& ep, int fd) {
  if (const int r = TakeQueues(fam, kOwnQueues); r != 0) return r;
  BeginPlaces(fam, ep);
  Msg m;
  m.type = Type::kListen;
  m.a = EpIdx(Stack(fam), ep);
  m.b = ep.gen;
  m.c = LoadRelaxed(ep.backlog);
  return Ask(fam, m, fd, nullptr);
}

int CtlListen(Family& fam, pstn_ep& ep, int fd) {
  const LineGuard line(fam);
  if (!ConnectLocked(fam)) return -ENOTCONN;
  return ListenLocked(fam, ep, fd);
}

int CtlUnlisten(Family& fam, pstn_ep& ep) {
  const LineGuard line(fam);
  if (LoadRelaxed(fam.ctl_fd) < 0) return -ENOTCONN;
  Msg m;
  m.type = Type::kUnlisten;
  m.a = EpIdx(Stack(fam), ep);
  m.b = ep.gen;
  return Ask(fam, m, -1, nullptr);
}

namespace {

// What is not handed over is lost to the program that gets it. A posternd that is gone is started
// again (ConnectLocked), and a keeper that was just leaving (EIO). One that lives may have a busy
// machine, or a keeper with all the jobs that it takes (EBUSY): it gets more time.
constexpr uint64_t kGoneNs = 2'000'000'000, kBusyNs = 20'000'000'000;

int ExportWith(Family& fam, Msg& m, int fd) {
  if (InVfork()) return -ENOTCONN;  // the line is its parent's, and it gets none
  const Msg request = m;
  constexpr timespec kPause = {0, 100'000'000};
  const Deadline gone = Deadline::AfterNs(kGoneNs), busy = Deadline::AfterNs(kBusyNs);
  for (;;) {
    int r = -ENOTCONN;
    {
      const LineGuard line(fam);
      if (LoadRelaxed(fam.ctl_fd) >= 0 && !DaemonAlive(fam)) Disconnect(fam);
      StoreRelaxed(fam.ctl_retry_ns, 0);
      if (ConnectLocked(fam)) {
        m = request;
        r = Ask(fam, m, fd, nullptr);
      }
    }
    // No answer in time: what was asked for may be done by now, and asking again does no harm.
    const bool was_cut = r == -EPIPE || r == -ECONNRESET || r == -EAGAIN;
    if (r == 0 || (!was_cut && r != -ENOTCONN && r != -EIO && r != -EBUSY)) return r;
    const bool lives = r != -ENOTCONN && DaemonAlive(fam);
    if ((lives ? busy : gone).left_ns() == 0) return was_cut ? -ENOTCONN : r;
    (void)sys::Call(SYS_nanosleep, &kPause, nullptr);
  }
}

Msg Exported(Family& fam, const pstn_ep& ep) {
  Msg m;
  m.type = Type::kExport;
  m.a = EpIdx(Stack(fam), ep);
  m.b = LoadRelaxed(ep.gen);
  return m;
}

}  // namespace

int CtlExport(Family& fam, const pstn_ep& ep, int fd) {
  Msg m = Exported(fam, ep);
  return ExportWith(fam, m, fd);
}
int CtlHandOn(Family& fam, const pstn_ep& ep, int fd, const pstn_uuid& to, uint32_t* place,
              uint32_t* place_gen, uint32_t* tag) {
  Msg m = Exported(fam, ep);
  m.d = 1;
  m.uuid = to;
  const int r = ExportWith(fam, m, fd);
  *place = m.a;
  *place_gen = m.b;
  *tag = m.c;
  return r;
}
int CtlExportOf(Family& fam, uint32_t pid, int target, int fd) {
  Msg m;
  m.type = Type::kExport;
  m.a = PSTN_NONE;
  m.b = pid;
  m.c = static_cast<uint32_t>(target);
  return ExportWith(fam, m, fd);
}

namespace {

// A guest's reaper is its user's, who can stop it: a parent waits no longer for it than it would
// for a busy machine, and does not take posternd for gone.
constexpr uint64_t kGuestNs = 1'000'000'000;

}  // namespace

// From a handler, too (of SIGCHLD): not while another call is under way.
void CtlReap(Family& fam, uint32_t slot, uint32_t pid) {
  if (!TryLock(fam.ctl_lock)) return;
  if (fam.ctl_fd >= 0) {
    Msg m;
    m.type = Type::kReap;
    m.a = slot;
    m.b = pid;
    CutShort limit(MonotonicNs() + kGuestNs);
    (void)Ask(fam, m, -1, nullptr, slot == PSTN_NONE ? &limit : nullptr);
  }
  Unlock(fam.ctl_lock);
}

namespace {

// The broker may be busy with very many others, or stopped: the connection is the kernel's then.
constexpr uint64_t kSeekNs = 200'000'000;

}  // namespace

int CtlSeek(Family& fam, uint16_t port) {
  const LineGuard line(fam);
  if (!ConnectLocked(fam)) return -ENOTCONN;
  Msg m;
  m.type = Type::kSeek;
  m.a = port;
  CutShort limit(MonotonicNs() + kSeekNs);
  return Ask(fam, m, -1, nullptr, &limit);
}

int CtlIntroduce(Family& fam, const pstn_uuid& peer, uint32_t known, uint32_t* lgr_idx) {
  const LineGuard line(fam);
  if (!ConnectLocked(fam)) return -ENOTCONN;
  Msg m;
  m.type = Type::kIntroduce;
  m.uuid = peer;
  m.a = known;
  int fd = -1;
  int r = Ask(fam, m, -1, &fd);
  if (r == 0 && m.a >= Stack(fam).lgrs.count()) r = -EPROTO;
  if (r != 0) {
    if (fd >= 0) sys::Close(fd);
    return r;
  }
  Count(Stack(fam).hdr, kCounterIntroductions);
  TakeLgr(fam, m.a, fd);
  *lgr_idx = m.a;
  return LgrBase(fam.view, m.a) != nullptr ? 0 : -ENOMEM;
}

namespace {

// One that posternd does not give, or that can't be mapped here, for want of addresses perhaps, is
// not asked for by each look for clients: a server looks many times in a millisecond.
constexpr uint64_t kAskAgainNs = 10'000'000, kMapAgainNs = 200'000'000;

}  // namespace

uint8_t* MapLgrOf(Family& fam, uint32_t idx) {
  uint8_t* base = LgrBase(fam.view, idx);
  if (base != nullptr || idx >= Stack(fam).lgrs.count()) return base;
  CtlDrain(fam);
  base = LgrBase(fam.view, idx);
  // Under the engine's lock no thread asks: Engine::Poll() comes back when it is here (Reaches).
  if (base != nullptr || HoldsEngine()) return base;
  const LineGuard line(fam);
  base = LgrBase(fam.view, idx);
  if (base != nullptr || MonotonicNs() < fam.no_get_until_ns || !ConnectLocked(fam)) return base;
  Msg m;
  m.type = Type::kGetLgr;
  m.a = idx;
  int fd = -1;
  const bool came = Ask(fam, m, -1, &fd) == 0;
  if (came) TakeLgr(fam, idx, fd);
  base = LgrBase(fam.view, idx);
  if (base == nullptr) fam.no_get_until_ns = MonotonicNs() + (came ? kMapAgainNs : kAskAgainNs);
  return base;
}

namespace {

// The link group is there, and not for want of addresses.
bool MayCome(Family& fam, uint32_t idx) {
  const pstn_lgr_ref* const ref = Stack(fam).lgrs.At(LgrIndex(idx));
  return ref != nullptr && LoadAcquire(ref->state) != 0 && fam.socket_path[0] != 0 &&  // [L1]
         LoadRelaxed(Stack(fam).hdr.short_slot) != fam.slot + 1;
}

}  // namespace

// A connection of a link group that another process of the family has mapped, and this one has not
// heard of: posternd was just gone. Its bytes are there, so it is no lost one. The next posternd,
// which this process starts if need be, has the link group from those that have it.
uint8_t* AwaitLgrOf(Family& fam, uint32_t idx) {
  constexpr uint64_t kAwaitNs = 3'000'000'000, kNoAwaitNs = 10'000'000'000, kLookNs = 2'000'000;
  uint8_t* base = MapLgrOf(fam, idx);
  if (base != nullptr || HoldsEngine() || MonotonicNs() < LoadRelaxed(fam.no_await_until_ns))
    return base;
  CheckMayWait();
  const uint64_t end_ns = MonotonicNs() + kAwaitNs;
  while (base == nullptr && MayCome(fam, idx)) {
    if (MonotonicNs() > end_ns) {
      StoreRelaxed(fam.no_await_until_ns, MonotonicNs() + kNoAwaitNs);
      break;
    }
    sys::Nap(kLookNs);
    base = MapLgrOf(fam, idx);
  }
  return base;
}

}  // namespace postern
