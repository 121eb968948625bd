// SPDX-License-Identifier: Apache-2.0
// main.cc - postern-reaper: ends what the dead of one family have left in its memory.
//
// posternd starts one for each family that needs it, with a line in descriptor 3, and gives it jobs
// (kJob*, ctl/proto.h). That memory is the family's to write: it may make this process crash, spin
// or wait. So it is a process of its own, with no more rights than the family; posternd kills it
// when a job takes too long, and a crash costs that family alone (docs/adr/0014). It has no heap,
// no exceptions and no C++ runtime, so that it is there within a millisecond.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "../posternd/guard/become.h"
#include "abi/kmod_abi.h"
#include "base/clock.h"
#include "base/start_time.h"
#include "base/sys.h"
#include "confine.h"
#include "ctl/msg_packet.h"
#include "family/family.h"
#include "family/holder.h"
#include "life/reap.h"
#include "peer/negotiate.h"
#include "sock/own_family.h"

namespace postern::reaper {
namespace {

constexpr int kLine = 3;
constexpr int kExitLine = 0, kExitSetup = 70, kExitProtocol = 71, kExitLock = 75;
// A lock that a living thread keeps for so long is not worth the wait: the memory lies, or that
// thread was stopped between StaysHeld() and here.
constexpr uint64_t kLockPatienceNs = 2'000'000'000;
// A critical section takes microseconds; a thread that has not got a CPU for so long is as good as
// stopped. All locks of a job have it together.
constexpr uint64_t kStaysNs = 100'000'000, kLookNs = 1'000'000;
// A job that outlives posternd's own limit has no posternd any more.
constexpr long kAloneSec = 20;
constexpr long kCpuEnoughSec = 5;

uint64_t stays_until_ns;

bool StaysHeld(const pstn_lock& lock) {
  const uint32_t word = LoadRelaxed(lock.word) & ~kLockSleepers;
  for (;;) {
    const uint32_t now = LoadRelaxed(lock.word) & ~kLockSleepers;
    if (now == 0 || now != word) return false;
    if (!LockOwnerLives(lock, word)) return false;
    if (MonotonicNs() >= stays_until_ns) return true;
    sys::Nap(kLookNs);
  }
}

bool WouldWait(uint32_t slot) {
  stays_until_ns = MonotonicNs() + kStaysNs;
  return ReapWouldWait(Stack(g_family), slot, StaysHeld);
}

int OpenModule(int stack_fd) {
  const auto device =
      static_cast<int>(sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), PSTN_KMOD_DEVICE,
                                 static_cast<long>(O_RDWR | O_CLOEXEC)));
  if (device < 0) return -1;
  const pstn_ioc_stack arg = {static_cast<uint32_t>(stack_fd), PSTN_STACK_CLOEXEC};
  const long module = sys::Call(SYS_ioctl, device, PSTN_IOC_STACK, &arg);
  sys::Close(device);
  return module < 0 ? -1 : static_cast<int>(module);
}

int32_t Attach(int fd) {
  StackMap* s = g_family.view.s == nullptr && fd >= 0 ? MapStack(fd) : nullptr;
  if (s == nullptr) return EINVAL;
  g_family.view.s = s;
  g_family.bells.counters = s->hdr.counters;
  StoreRelaxed(s->hdr.reaper_start, StartTimeOf(SelfTid()));
  StoreRelease(s->hdr.reaper_pidns, OwnPidns(g_family));  // [P8]
  UseReaperLocks(g_family);
  // What sleeps in the kernel module is woken there.
  if (LoadRelaxed(s->hdr.module) == PSTN_MODULE_ON) g_family.bells.module = OpenModule(fd);
  return FilterCalls() ? 0 : EPERM;
}

int32_t Link(const ctl::Msg& m, int fd) {
  uint8_t* base = g_family.view.s != nullptr && m.a < Stack(g_family).lgrs.count() && fd >= 0
                      ? MapKnownLgr(fd)
                      : nullptr;
  if (base == nullptr) return EINVAL;
  SetLgrMapping(g_family.view, m.a, base, 0, m.id);  // the peer may have written over its header
  return 0;
}

// What is told, not asked.
bool Learn(const ctl::Msg& m, int fd) {
  int32_t status = 0;
  switch (m.type) {
    case ctl::Type::kJobStack:
      status = Attach(fd);
      break;
    case ctl::Type::kJobDirectory:
      g_family.dir = MapDir(fd);
      break;
    case ctl::Type::kJobSender:
      g_family.bells.wide_sender = fd;
      return true;
    case ctl::Type::kJobLink:
      status = Link(m, fd);  // one that can't be mapped is not there
      break;
    default:
      status = ENOSYS;
      break;
  }
  if (fd >= 0) sys::Close(fd);
  return status == 0 || m.type == ctl::Type::kJobLink;
}

bool IsThere(const ctl::Msg& m) {
  return g_family.view.s != nullptr && LgrBase(g_family.view, m.a) != nullptr &&
         SameUuid(g_family.view.lgr_id[m.a], m.id);
}

int32_t Slot(const ctl::Msg& m) {
  if (!ClaimDead(g_family, m.a, m.b)) return 0;
  if (WouldWait(m.a)) return EBUSY;
  if (m.type == ctl::Type::kJobSlot) {
    ReapListeners(g_family, m.a);
    ReapSlot(g_family, m.a);
  } else {
    ReapListeners(g_family, m.a);
  }
  return 0;
}

int32_t Admit(const ctl::Msg& m, ctl::Msg& reply) {
  if (!IsThere(m)) return ENOENT;
  Admitted as;
  as.conn = m.b;
  as.conn_gen = m.c;
  as.ep_idx = static_cast<uint32_t>(m.uuid.hi);
  as.ep_gen = static_cast<uint32_t>(m.uuid.lo);
  as.server = m.addr;
  as.client = ctl::JobClient(m);
  if (!AdmitOffered(g_family, m.a, as)) return ENOENT;
  reply.a = as.translated ? 1 : 0;
  return 0;
}

int32_t Do(const ctl::Msg& m, ctl::Msg& reply) {
  switch (m.type) {
    case ctl::Type::kJobListeners:
    case ctl::Type::kJobSlot:
      return Slot(m);
    case ctl::Type::kJobEnd:
      return EndStack(g_family) ? 0 : EEXIST;
    case ctl::Type::kJobPeerDead:
      if (IsThere(m)) MarkPeerDead(g_family, m.a);
      return 0;
    case ctl::Type::kJobAdmit:
      return Admit(m, reply);
    default:
      return ENOSYS;
  }
}

bool HasWorkedEnough() {
  rusage use{};
  (void)getrusage(RUSAGE_SELF, &use);
  return use.ru_utime.tv_sec + use.ru_stime.tv_sec >= kCpuEnoughSec;
}

void Answer(const ctl::Msg& m) {
  ctl::Msg reply;
  reply.type = m.type;
  reply.seq = m.seq;
  reply.status = Do(m, reply);
  reply.d = HasWorkedEnough() ? 1 : 0;
  if (send(kLine, &reply, sizeof(reply), MSG_NOSIGNAL) != sizeof(reply)) _exit(kExitLine);
}

int Serve() {
  for (;;) {
    ctl::Msg m;
    ctl::Packet packet(m);
    const ssize_t got = recvmsg(kLine, &packet.header, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    const int fd = packet.TakeFd(close);
    if (got != sizeof(m)) return kExitProtocol;
    if (m.type < ctl::Type::kJobListeners) {
      if (!Learn(m, fd)) return kExitSetup;
      continue;
    }
    if (fd >= 0) sys::Close(fd);
    if (g_family.view.s == nullptr) return kExitProtocol;
    itimerval until{};
    until.it_value.tv_sec = kAloneSec;
    (void)setitimer(ITIMER_REAL, &until, nullptr);  // SIGALRM ends us
    Answer(m);
    until = {};
    (void)setitimer(ITIMER_REAL, &until, nullptr);
  }
  if (g_family.view.s != nullptr) StoreRelease(Stack(g_family).hdr.reaper_pidns, 0u);  // [P8]
  return kExitLine;
}

}  // namespace
}  // namespace postern::reaper

int main(int argc, char** argv) {
  using namespace postern;
  if (!daemon::BecomeUser(argc > 1 ? argv[1] : nullptr)) return reaper::kExitSetup;
  // The next posternd has a reaper of its own, which takes what this one holds for left behind.
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!reaper::Confine()) return reaper::kExitSetup;
  (void)OwnPidns(g_family);
  (void)BellSender(g_family.bells);
  g_lock_patience_ns = reaper::kLockPatienceNs;
  g_lock_given_up = [] { _exit(reaper::kExitLock); };
  return reaper::Serve();
}
