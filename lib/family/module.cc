// SPDX-License-Identifier: Apache-2.0
// module.cc - see module.h.
#include "family/module.h"

#include <fcntl.h>

#include <cerrno>

#include "abi/kmod_abi.h"
#include "base/sys.h"
#include "family/fdtab.h"

namespace postern {
namespace {

long Ask(int fd, unsigned long request, const void* arg) {
  return sys::Call(SYS_ioctl, fd, request, arg);
}

// A descriptor of the device whose module understands us; -errno.
int OpenDevice() {
  const int fd = static_cast<int>(sys::MakeOurs([] {
    return sys::Call(SYS_openat, static_cast<long>(AT_FDCWD), PSTN_KMOD_DEVICE,
                     static_cast<long>(O_RDWR | O_CLOEXEC));
  }));
  if (fd < 0) return fd;
  pstn_ioc_version version = {};
  const long r = Ask(fd, PSTN_IOC_VERSION, &version);
  constexpr uint64_t kWanted = PSTN_KMOD_HAS_STREAM | PSTN_KMOD_HAS_LIBRARY;
  if (r == 0 && version.kmod_version == PSTN_KMOD_VERSION &&
      version.abi_version == PSTN_ABI_VERSION && (version.features & kWanted) == kWanted)
    return fd;
  sys::Close(fd);
  return r < 0 ? static_cast<int>(r) : -EPROTO;
}

int OpenStackOf(int stack_fd) {
  const int device = OpenDevice();
  if (device < 0) return device;
  const pstn_ioc_stack arg = {static_cast<uint32_t>(stack_fd), PSTN_STACK_CLOEXEC};
  const long fd = sys::MakeOurs([&] { return Ask(device, PSTN_IOC_STACK, &arg); });
  sys::Close(device);
  return static_cast<int>(fd);
}

// The module judges by it whether the owner of a lock lives. It may take none from the dead of a
// process that has not said it.
void SayWhoWeAre(Family& fam) {
  const pstn_ioc_join arg = {fam.slot, 0};
  (void)Ask(fam.bells.module, PSTN_IOC_JOIN, &arg);
}

int MemberOf(int inherited) {
  if (inherited < 0) return -EBADF;
  return static_cast<int>(sys::MakeOurs([&] { return Ask(inherited, PSTN_IOC_MEMBER, nullptr); }));
}

}  // namespace

void ModuleFind(Family& fam, int stack_fd) {
  if (fam.opt.module == 0) return;
  const int fd = OpenStackOf(stack_fd);
  if (fd >= 0) StoreRelaxed(fam.bells.module, MoveHigh(fam, fd));
  const uint32_t found[2] = {fd >= 0 ? PSTN_MODULE_ON : PSTN_MODULE_NONE,
                             fd >= 0 ? 0 : static_cast<uint32_t>(-fd)};
  static_assert(offsetof(pstn_stack_hdr, module_error) == offsetof(pstn_stack_hdr, module) + 4);
  if (sys::Call(SYS_pwrite64, stack_fd, &found[0], sizeof found,
                static_cast<long>(offsetof(pstn_stack_hdr, module))) != sizeof found)
    ModuleLeave(fam);
}

bool ModuleJoin(Family& fam, int inherited) {
  const bool on = LoadRelaxed(Stack(fam).hdr.module) == PSTN_MODULE_ON;
  if (on && fam.bells.module < 0) {
    int fd = MemberOf(inherited);
    if (fd < 0) fd = OpenStackOf(fam.stack_fd);
    if (fd >= 0) StoreRelaxed(fam.bells.module, MoveHigh(fam, fd));
  } else if (!on) {
    ModuleLeave(fam);  // that of another stack, which was not needed
  }
  if (inherited >= 0) CloseInternal(fam, inherited);
  if (on && fam.bells.module >= 0) SayWhoWeAre(fam);
  return !on || fam.bells.module >= 0;
}

// Its parent's does for all but to say who it is.
void ModuleForked(Family& fam) {
  const int parents = fam.bells.module;
  const int own = MemberOf(parents);
  if (own < 0) return;
  StoreRelaxed(fam.bells.module, MoveHigh(fam, own));
  CloseInternal(fam, parents);
  SayWhoWeAre(fam);
}

void ModuleLeave(Family& fam) {
  CloseInternal(fam, fam.bells.module);
  StoreRelaxed(fam.bells.module, -1);
}

bool ModuleLink(Family& fam, pstn_lgr_ref& ref, int fd) {
  if (!AtLevel2(fam) || LoadRelaxed(ref.module) != 0) return true;
  const pstn_ioc_link arg = {static_cast<uint32_t>(fd), Stack(fam).lgrs.IndexOf(ref).word(),
                             LoadRelaxed(ref.side) & 1u, 0};
  if (Ask(fam.bells.module, PSTN_IOC_LINK, &arg) != 0) return false;
  StoreRelaxed(ref.module, 1u);
  return true;
}

int ModuleSocket(Family& fam, int family, int type) {
  if (AtLevel2(fam)) {
    const pstn_ioc_endpoint arg = {static_cast<uint32_t>(family), static_cast<uint32_t>(type), 0,
                                   0};
    const long fd = Ask(fam.bells.module, PSTN_IOC_ENDPOINT, &arg);
    if (fd >= 0 || fd == -EMFILE || fd == -ENFILE) return static_cast<int>(fd);
  }
  return sys::Socket(family, type, 0);
}

bool BothHaveModule(const pstn_lgr_ref& ref, uint8_t* lgr) {
  const uint32_t side = LoadRelaxed(ref.side) & 1u;
  return LoadRelaxed(ref.module) != 0 && LoadRelaxed(LgrHdr(lgr).module[side ^ 1u]) != 0;
}

long ModuleGo(Family& fam, int fd, const pstn_ep& ep) {
  pstn_ioc_go arg = {};
  arg.ep_idx = EpIdx(Stack(fam), ep);
  arg.lgr_idx = LoadRelaxed(ep.lgr_idx);
  arg.conn_idx = LoadRelaxed(ep.conn_idx);
  arg.gen = LoadRelaxed(ep.conn_gen);
  arg.local = ep.local;
  arg.peer = ep.peer;
  arg.local.zero = arg.peer.zero = 0;
  // What it tells a library that sleeps in an event set, it rings out of this, as we do.
  const int bells = fam.bells.wide_sender >= 0 ? fam.bells.wide_sender : BellSender(fam.bells);
  const pstn_ioc_bells from = {static_cast<uint32_t>(bells), 0};
  (void)Ask(fam.bells.module, PSTN_IOC_BELLS, &from);
  return Ask(fd, PSTN_IOC_GO, &arg);
}

}  // namespace postern
