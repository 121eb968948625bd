// SPDX-License-Identifier: Apache-2.0
// process.cc - a process joins a stack at its first socket. The other ways are in fork.cc and
// exec.cc.
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/sys.h"
#include "base/user_memory.h"
#include "control/named_stack.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/io_uring.h"
#include "family/local_lock.h"
#include "family/module.h"
#include "family/telling.h"
#include "life/process.h"
#include "life/slot.h"
#include "life/surroundings.h"

namespace postern {

// What it held is released before the parent goes on, as with the kernel's descriptors.
void ChildEnded(Family& fam, int pid) {
  if (!fam.attached || pid <= 0) return;
  StackMap& s = Stack(fam);
  const auto ended = static_cast<uint32_t>(pid);
  for (const pstn_slot& slot : s.slots.Before(LoadRelaxed(s.hdr.slots_hw))) {
    if (LoadAcquire(slot.state) != PSTN_SL_FREE && LoadRelaxed(slot.pid) == ended)  // [P1]
      CtlReap(fam, s.slots.IndexOf(slot).word(), ended);
  }
  if (LoadRelaxed(s.hdr.guests) != 0) CtlReap(fam, PSTN_NONE, ended);
}

namespace {

// Another thread of the parent was about to join or make a stack: the child begins anew.
void RenewJoining(Family& fam) {
  if (fam.attached) return;
  if (fam.view.s != nullptr) UnmapStack(fam.view.s);
  fam.view.s = nullptr;
  CloseInternal(fam, fam.stack_fd);
  fam.stack_fd = -1;
  fam.slot = PSTN_NONE;
}
PSTN_LOCK_ENTRY(init_lock, fam.init_lock, RenewJoining);

// Of this process's network namespace; 0: unknown.
uint64_t NetnsIno() {
  struct stat st;
  long r = sys::Call(SYS_newfstatat, static_cast<long>(AT_FDCWD), "/proc/self/ns/net", &st, 0L);
  return r == 0 ? st.st_ino : 0;
}

void UseOptions(Family& fam) {
  auto cls = [](int64_t bytes) {
    return bytes <= PSTN_RING0_BYTES ? 0u : bytes <= PSTN_RING1_BYTES ? 1u : 2u;
  };
  fam.limits.class_min = cls(fam.opt.ring_min);
  fam.limits.class_max = cls(fam.opt.ring_max);
}

const char* EnvValue(const char* const* envp, const char* name) {
  size_t len = strlen(name);
  for (; envp != nullptr && *envp != nullptr; envp++) {
    if (strncmp(*envp, name, len) == 0 && (*envp)[len] == '=') return *envp + len + 1;
  }
  return nullptr;
}

void ReportNothing(void*, const char*) {}

void ReportToLog(void* context, const char* message) {
  LogText(*static_cast<Family*>(context), LogLevel::kWarn, "ignores in its environment: ", message);
}

// The log's own options are known when the others are complained of.
void TakeOptions(Family& fam, const char* const* envp) {
  fam.opt = OptionsDefault();
  const size_t wrong = OptionsLoadEnv(fam.opt, envp, ReportNothing, nullptr);
  LogBegin(fam.log, fam.opt);
  if (wrong != 0 && Logs(fam, LogLevel::kWarn))
    (void)OptionsLoadEnv(fam.opt, envp, ReportToLog, &fam);
  if (fam.opt.accel == 0) NoteFallback(fam, kReasonOff, -1);
}

void SayAside(Family& fam, const char* why) {
  LogText(fam, LogLevel::kInfo, "is not accelerated: ", why);
  NoteFallback(fam, kReasonLimits, -1);
}

}  // namespace

void ProcessInit(Family& fam, const char* const* envp) {
  TakeOptions(fam, envp);
  UseOptions(fam);
  const char* dir = EnvValue(envp, "POSTERN_RUNTIME_DIR");
  if (dir != nullptr && dir[0] == '/') {
    int n = snprintf(fam.socket_path, sizeof fam.socket_path, "%s/posternd.sock", dir);
    if (n < 0 || static_cast<size_t>(n) >= sizeof fam.socket_path) fam.socket_path[0] = 0;
  }
  const char* daemon = EnvValue(envp, "POSTERN_DAEMON");
  if (daemon != nullptr && daemon[0] == '/' && strlen(daemon) < sizeof fam.daemon_path) {
    memcpy(fam.daemon_path, daemon, strlen(daemon) + 1);
  }
  fam.pid = static_cast<uint32_t>(sys::Pid());
  if (fam.opt.accel != 0) UsesInit(fam);
  // Without a posternd to ask there is no peer to meet: everything is the kernel's, at no cost.
  fam.enabled = fam.opt.accel != 0 && fam.socket_path[0] != 0;
  const char* attach = EnvValue(envp, "POSTERN_ATTACH");
  if (attach == nullptr || attach[0] == 0) return;
  if (fam.enabled) AttachAfterExec(fam, attach);
  // posternd reads it in /proc: an image that does not take its slot over takes that back.
  if (!fam.attached) const_cast<char*>(attach)[0] = 0;
}

namespace {

StackSizes SizesIn(const Options& opt) {
  const auto entries = [](int64_t n) { return static_cast<uint32_t>(n); };
  return {entries(opt.stack_processes), entries(opt.stack_sockets), entries(opt.stack_groups),
          entries(opt.stack_sets), entries(opt.stack_registrations)};
}

void Describe(pstn_stack_hdr& hdr, const Family& fam) {
  static_assert(sizeof(Options) <= PSTN_OPTIONS_BYTES);
  memcpy(hdr.options, &fam.opt, sizeof fam.opt);
  hdr.netns_ino = NetnsIno();
}

// Joins the stack of our name, if there is one that has room for us. The descriptor to go on with.
int JoinNamed(Family& fam, int own) {
  int fd = FindNamedStack(fam, own, NetnsIno());
  if (fd < 0) return own;
  fd = MoveHigh(fam, fd);
  const int module = fam.bells.module;
  StoreRelaxed(fam.bells.module, -1);
  const bool joined = JoinAs(fam, fd, PSTN_NONE);
  if (joined)
    CloseInternal(fam, module);
  else
    StoreRelaxed(fam.bells.module, module);
  CloseInternal(fam, joined ? own : fd);
  return joined ? fd : own;
}

}  // namespace

int CreateStackOf(Family& fam) {
  const int fd = CreateStack(NewUuid(), SizesIn(fam.opt));
  StackMap* const s = fd >= 0 ? MapStack(fd) : nullptr;
  if (s == nullptr) {
    if (fd >= 0) sys::Close(fd);
    return fd < 0 ? fd : -ENOMEM;
  }
  Describe(s->hdr, fam);
  UnmapStack(s);
  return fd;
}

namespace {

// Else it is about to become the one or the other, and its stack would be the wrong one's.
bool HasOneUser() {
  uint32_t real = 0, effective = 0, saved = 0;
  return sys::Call(SYS_getresuid, &real, &effective, &saved) != 0 ||
         (real == effective && saved == effective);
}

}  // namespace

bool MakeStack(Family& fam) {
  if (!fam.enabled || !HasOneUser()) return false;
  Guard g(fam.init_lock);
  if (fam.attached) return true;
  if (const char* const why = WhyNoStack(fam); why != nullptr) {
    SayAside(fam, why);
    fam.enabled = false;
    return false;
  }
  const pstn_uuid id = NewUuid();
  int fd = CreateStack(id, SizesIn(fam.opt));
  if (fd < 0) {
    SayAside(fam, fd == -EFBIG ? "RLIMIT_FSIZE leaves too little memory" : "there is no memory");
    fam.enabled = false;
    return false;
  }
  fd = MoveHigh(fam, fd);
  ModuleFind(fam, fd);
  if (fam.opt.stack_name[0] != 0) fd = JoinNamed(fam, fd);
  if (!fam.view.s && !JoinAs(fam, fd, PSTN_NONE)) {
    CloseInternal(fam, fd);
    ModuleLeave(fam);
    fam.enabled = false;
    return false;
  }
  if (SameUuid(Stack(fam).hdr.id, id)) Describe(Stack(fam).hdr, fam);
  (void)FillSlot(fam);
  fam.ctl_await = true;
  fam.attached = true;
  g_watch_faults();
  CountRing(fam);
  CtlReconnect(fam);
  LogText(fam, LogLevel::kDebug,
          DaemonAlive(fam) ? "is accelerated" : "has a stack, and finds no posternd");
  return true;
}

bool JoinStack(Family& fam, int stack_fd) {
  stack_fd = MoveHigh(fam, stack_fd);
  fam.whom = For::kKeeper;
  if (!fam.enabled || !JoinAs(fam, stack_fd, PSTN_NONE)) return false;
  (void)FillSlot(fam);
  fam.attached = true;
  CtlReconnect(fam);
  return true;
}

void LearnNetns(Family& fam) {
  if (!fam.attached) return;  // the stack will belong where it is made
  uint64_t ino = NetnsIno();
  fam.elsewhere = ino != 0 && ino != Stack(fam).hdr.netns_ino;
}

}  // namespace postern
