// SPDX-License-Identifier: Apache-2.0
// wire_bundle.cc - see wire_bundle.h.

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/sys.h"
#include "family/family.h"
#include "offhost/wire.h"
#include "offhost/wire_bundle.h"
#include "state/area.h"

namespace postern {
namespace {

constexpr uint32_t kBundleMagic = 0x656c7562u;

struct Bundle {
  uint32_t magic = kBundleMagic;
  uint32_t vis = 0;
};

}  // namespace

int NewWireState(Family& fam) {
  int fd = static_cast<int>(sys::Call(SYS_memfd_create, "postern-wire", 3L));  // CLOEXEC, SEALING
  if (fd < 0) return fd;
  constexpr long kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  uint64_t entropy[4];
  long r = sys::Call(SYS_ftruncate, fd, static_cast<long>(sizeof(stack::WireState)));
  if (r == 0 && sys::Call(SYS_getrandom, entropy, sizeof entropy, 0L) != sizeof entropy) r = -EIO;
  if (r == 0) r = sys::Fcntl(fd, F_ADD_SEALS, kSeals);
  if (r != 0) {
    sys::Close(fd);
    return static_cast<int>(r);
  }
  void* p = mmap(nullptr, sizeof(stack::WireState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) {
    sys::Close(fd);
    return -ENOMEM;
  }
  auto& state = *static_cast<stack::WireState*>(p);
  stack::FormatWire(state, Stack(fam).hdr.id, entropy, MonotonicNs());
  WireReadSettings(state.settings);
  state.settings_ns = MonotonicNs();
  munmap(p, sizeof(stack::WireState));
  return fd;
}

stack::WireState* MapWireState(int fd) {
  if (SegmentBytes(fd) != sizeof(stack::WireState)) return nullptr;
  void* p = mmap(nullptr, sizeof(stack::WireState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return nullptr;
  auto* w = static_cast<stack::WireState*>(p);
  if (LoadAcquire(w->magic) == stack::kWireMagic && w->version == stack::kWireVersion &&  // [G4]
      w->size_bytes == sizeof *w)
    return w;
  munmap(p, sizeof *w);
  return nullptr;
}

int PeekGrant(int line, ctl::ViGrant& grant, int (&fds)[ctl::kGrantFdsMax], uint32_t& count) {
  ctl::GrantPacket packet(grant);
  const long r = sys::Call(SYS_recvmsg, line, &packet.header,
                           static_cast<long>(MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
  count = r > 0 ? packet.TakeFds(fds) : 0;
  if (r == static_cast<long>(sizeof grant) && grant.magic == ctl::kGrantMagic &&
      grant.queue_count <= kViQueues && count == ctl::FdsOf(grant))
    return 0;
  for (uint32_t i = 0; i < count; i++) sys::Close(fds[i]);
  return r < 0 ? static_cast<int>(r) : -EPROTO;
}

int SendBundle(int to, const int* fds, uint32_t vis, uint32_t count) {
  Bundle bundle;
  bundle.vis = vis;
  iovec iov = {&bundle, sizeof bundle};
  alignas(cmsghdr) char control[CMSG_SPACE(kBundleFdsMax * sizeof(int))] = {};
  msghdr m = {};
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(count * sizeof(int));
  memcpy(CMSG_DATA(c), fds, count * sizeof(int));
  const long r = sys::Call(SYS_sendmsg, to, &m, static_cast<long>(MSG_NOSIGNAL));
  return r < 0 ? static_cast<int>(r) : 0;
}

uint32_t PeekBundle(int from, int (&fds)[kBundleFdsMax], uint32_t& vis) {
  Bundle bundle;
  iovec iov = {&bundle, sizeof bundle};
  alignas(cmsghdr) char control[CMSG_SPACE(kBundleFdsMax * sizeof(int))] = {};
  msghdr m = {};
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  const long r = sys::Call(SYS_recvmsg, from, &m,
                           static_cast<long>(MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
  uint32_t n = 0;
  for (cmsghdr* c = r > 0 ? CMSG_FIRSTHDR(&m) : nullptr; c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0) && n < kBundleFdsMax;
         at += sizeof(int))
      memcpy(&fds[n++], CMSG_DATA(c) + at, sizeof(int));
  }
  vis = bundle.vis;
  if (r == static_cast<long>(sizeof bundle) && bundle.magic == kBundleMagic && vis <= kAreaVis &&
      (n == vis + 2 || n == 2 * vis + 2))
    return n;
  for (uint32_t i = 0; i < n; i++) sys::Close(fds[i]);
  return 0;
}

}  // namespace postern
