// SPDX-License-Identifier: Apache-2.0
// wire_attach.cc - how a stack comes to its wire, and its processes to the stack's.
//
// The first process that listens or connects where the option "vi" names interfaces makes it: the
// packet area and the wire segment (memfds), and for each interface a VI, which posternd grants.
// posternd keeps all their descriptors for the stack (wire_bundle.h), hands them to the keeper, and
// to an image that comes from an exec. Forked children have everything already.
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/clock.h"
#include "base/sys.h"
#include "control/control.h"
#include "control/posternd.h"
#include "event/epoll_set.h"
#include "family/family.h"
#include "family/fdtab.h"
#include "family/local_lock.h"
#include "family/verbs.h"
#include "offhost/wire.h"
#include "offhost/wire_bundle.h"
#include "offhost/wire_here.h"
#include "peer/pair.h"
#include "stack/route_paths.h"
#include "state/area.h"
#include "vi/soft/soft.h"
#include "vi/xsk.h"

namespace postern {
namespace {

constexpr uint32_t kFrames = 8192;

constexpr uint64_t kRetryNs = 1'000'000'000;

// Is for the whole family: what the first one enters, the others find.
enum class Who : uint8_t { kFirst, kAnother };

int AttachVi(Family& fam, WireHere& h, uint32_t idx, int line, Who who) {
  ctl::ViGrant grant;
  int fds[ctl::kGrantFdsMax];
  uint32_t count = 0;
  int r = PeekGrant(line, grant, fds, count);
  if (r != 0) return r;
  for (uint32_t i = 0; i < count; i++) fds[i] = MoveHigh(fam, fds[i]);
  if (who == Who::kFirst) {
    EnterGrant(grant, *h.area.ViAt(idx));
    h.state->grant[idx] = grant.id;
  }
  r = h.vis[idx].Attach(h.area, idx, grant, fds);
  if (r != 0)
    for (uint32_t i = 0; i < count; i++) CloseInternal(fam, fds[i]);
  else
    h.links[idx] = fds[count - 1];
  return r;
}

// An attempt of the parent's, of which the child has copies of some descriptors. It makes its own.
void RenewWire(Family& fam) {
  AssertHeld(fam.wire->lock);  // the child has one thread
  if (fam.wire->here == nullptr || fam.engine != nullptr) return;
  for (const int link : fam.wire->here->links)
    if (IsInternalFd(fam, link)) CloseInternal(fam, link);
  if (IsInternalFd(fam, fam.wire->here->bundle)) CloseInternal(fam, fam.wire->here->bundle);
  fam.wire->here = nullptr;
  fam.wire->not_before_ns = 0;
}

PSTN_LOCK_ENTRY(wire_lock, fam.wire->lock, RenewWire);

// What an attempt that failed has left; no other thread has seen any of it.
void TearDown(Family& fam) PSTN_REQUIRES(fam.wire->lock) {
  WireHere& h = *fam.wire->here;
  for (uint32_t i = 0; i < kAreaVis; i++) {
    if (h.links[i] < 0) continue;
    h.vis[i].Detach();
    CloseInternal(fam, h.links[i]);
  }
  if (h.area.ok()) h.area.Unmap();
  if (h.state != nullptr) {
    DropLocksAt(h.state);
    munmap(h.state, sizeof *h.state);
  }
  if (h.bundle >= 0) CloseInternal(fam, h.bundle);
  std::destroy_at(fam.wire->here);
  fam.wire->here = nullptr;
}

const pstn_routes* FetchRoutes(Family& fam) {
  ctl::Msg m;
  m.type = ctl::Type::kRoutes;
  int fd = -1;
  if (CtlAsk(fam, m, -1, &fd) != 0 || fd < 0) return nullptr;
  const pstn_routes* tables = MapRoutes(fd);
  sys::Close(fd);
  return tables;
}

}  // namespace

void WireForget(Family& fam) {
  Guard g(fam.wire->lock);
  StoreRelease(fam.wire_on, 0u);      // [T3]
  StoreRelease(fam.engine, nullptr);  // [T3]
  if (fam.wire->here != nullptr) TearDown(fam);
  fam.wire->not_before_ns = 0;
}

// Not more often than a kernel would ask: once a second for each neighbour, as far as the few that
// are remembered tell.
void AskNeighbour(void* of, uint32_t ifindex, const uint8_t ip[16]) {
  Wire& wire = *static_cast<Family*>(of)->wire;
  const uint64_t now = MonotonicNs();
  for (const Wire::Asked& a : wire.asked)
    if (a.ifindex == ifindex && memcmp(a.ip, ip, 16) == 0 && now - a.at_ns < kRetryNs) return;
  Wire::Asked& a = wire.asked[wire.asked_next++ % 16];
  memcpy(a.ip, ip, 16);
  a.ifindex = ifindex;
  a.at_ns = now;
  stack::Errand errand = {};
  errand.kind = static_cast<uint32_t>(stack::ErrandKind::kNeighbour);
  errand.a = ifindex;
  memcpy(errand.ip, ip, sizeof errand.ip);
  (void)stack::PutErrand(wire.here->state->errands, errand);
}

namespace {

// Maps what the bundle has and takes part from now on.
int Join(Family& fam, WireHere& h, const int* fds, uint32_t vis, Who who) {
  int r = h.area.Map(fds[0]);
  if (r != 0) return r;
  h.state = MapWireState(fds[1]);
  if (h.state == nullptr) return -EPROTO;
  if (!AddLocksOf(fam.holder, h.state, sizeof *h.state)) return -EMFILE;
  const pstn_routes* tables = FetchRoutes(fam);
  if (tables == nullptr) return -ENOENT;
  h.paths.SetTables(tables);
  h.tables = tables;
  auto* engine = std::construct_at(reinterpret_cast<stack::Engine*>(fam.wire->engine_at), *h.state,
                                   h.area, h.streams, h.paths);
  for (uint32_t i = 0; i < vis; i++) {
    r = AttachVi(fam, h, i, fds[2 + i], who);
    if (r != 0) return r;
    engine->SetVi(i, &h.vis[i].vi());
  }
  engine->MendAfterExec();
  // A link group with ourselves is there before the first packet is.
  ConnSlot slot;
  if (who == Who::kFirst && TakeConnSlot(fam, Stack(fam).hdr.id, slot) == kReasonNone)
    GiveConn(Stack(fam).lgrs.Own(LgrIndex(slot.lgr_idx)), slot.conn);
  return 0;
}

uint32_t IndexOf(const char* name, size_t bytes) {
  ifreq q = {};
  if (bytes >= sizeof q.ifr_name) return 0;
  memcpy(q.ifr_name, name, bytes);
  const int fd = sys::Socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;
  const long r = sys::Call(SYS_ioctl, fd, static_cast<long>(SIOCGIFINDEX), &q);
  sys::Close(fd);
  return r < 0 ? 0 : static_cast<uint32_t>(q.ifr_ifindex);
}

// The line of a VI on each interface that the option names. How many; -errno of the first that
// can't be had.
int OpenVis(Family& fam, int area_fd, int* lines, uint64_t patience_ns) {
  constexpr uint64_t kTakenPauseNs = 20'000'000;
  const uint64_t end_ns = MonotonicNs() + patience_ns;
  uint32_t n = 0;
  const char* at = fam.opt.vi;
  while (*at != 0 && n < kAreaVis) {
    const size_t bytes = strcspn(at, ",");
    const uint32_t ifindex = IndexOf(at, bytes);
    if (ifindex == 0) return -ENODEV;
    const auto ask = [&] {
      ctl::Msg m;
      m.type = ctl::Type::kVi;
      m.a = ifindex;
      return CtlAsk(fam, m, area_fd, &lines[n]);
    };
    int r = ask();
    for (; r == -EBUSY && MonotonicNs() < end_ns; r = ask()) sys::Nap(kTakenPauseNs);
    if (r != 0) return r;
    if (lines[n] < 0) return -EPROTO;
    n++;
    at += bytes + (at[bytes] == ',' ? 1 : 0);
  }
  return static_cast<int>(n);
}

// Makes the stack's wire and leaves it with posternd.
int Make(Family& fam, WireHere& h, uint64_t patience_ns) {
  int fds[kBundleFdsMax] = {-1, -1};
  fds[0] = CreateArea(Stack(fam).hdr.id, kFrames);
  fds[1] = fds[0] < 0 ? -1 : NewWireState(fam);
  for (uint32_t i = 2; i < kBundleFdsMax; i++) fds[i] = -1;
  int r = fds[0] < 0 ? fds[0] : fds[1] < 0 ? fds[1] : OpenVis(fam, fds[0], fds + 2, patience_ns);
  if (r > 0) {
    const uint32_t vis = static_cast<uint32_t>(r);
    int pair[2] = {-1, -1};
    r = Join(fam, h, fds, vis, Who::kFirst);
    if (r == 0)
      r = static_cast<int>(sys::Call(SYS_socketpair, static_cast<long>(AF_UNIX),
                                     static_cast<long>(SOCK_SEQPACKET | SOCK_CLOEXEC), 0L, pair));
    if (r == 0) {
      r = SendBundle(pair[0], fds, vis, vis + 2);
      sys::Close(pair[0]);  // what is queued stays
      h.bundle = MoveHigh(fam, pair[1]);
    }
    if (r == 0) {
      ctl::Msg m;
      m.type = ctl::Type::kWire;
      m.a = 1;
      r = CtlAsk(fam, m, h.bundle, nullptr);
    }
  } else if (r == 0) {
    r = -ENODEV;
  }
  for (const int fd : fds)
    if (fd >= 0) sys::Close(fd);
  return r;
}

int Adopt(Family& fam, WireHere& h, int bundle) {
  int fds[kBundleFdsMax];
  uint32_t vis = 0;
  const uint32_t n = PeekBundle(bundle, fds, vis);
  h.bundle = bundle;
  if (n < 2) return -EPROTO;
  const int r = Join(fam, h, fds, vis, Who::kAnother);
  for (uint32_t i = 0; i < n; i++) sys::Close(fds[i]);
  return r;
}

}  // namespace

int WireAdopt(Family& fam, int bundle) {
  WireNeverWaits(fam);
  Guard g(fam.wire->lock);
  if (fam.engine != nullptr) return 0;
  fam.wire->here = std::construct_at(reinterpret_cast<WireHere*>(fam.wire->here_at), fam);
  const int r = Adopt(fam, *fam.wire->here, MoveHigh(fam, bundle));
  if (r != 0)
    TearDown(fam);
  else
    WireUse(fam, reinterpret_cast<stack::Engine*>(fam.wire->engine_at));
  return r;
}

void WireRetry(Family& fam) {
  Guard g(fam.wire->lock);
  fam.wire->not_before_ns = 0;
}

bool WireStart(Family& fam, uint64_t patience_ns) {
  if (fam.opt.vi[0] == 0) return false;
  if (LoadAcquire(fam.engine) != nullptr) return true;  // [T3]
  Guard g(fam.wire->lock);
  if (fam.engine != nullptr) return true;
  if (MonotonicNs() < fam.wire->not_before_ns) return false;
  fam.wire->not_before_ns = MonotonicNs() + kRetryNs;
  ctl::Msg m;
  m.type = ctl::Type::kWire;
  int bundle = -1;
  const int r = CtlAsk(fam, m, -1, &bundle);
  fam.wire->here = std::construct_at(reinterpret_cast<WireHere*>(fam.wire->here_at), fam);
  const int done = r == 0 && bundle >= 0 ? Adopt(fam, *fam.wire->here, MoveHigh(fam, bundle))
                                         : Make(fam, *fam.wire->here, patience_ns);
  StoreRelaxed(Stack(fam).hdr.wire_error, static_cast<uint32_t>(-done));
  if (done != 0) {
    fam.wire->not_before_ns = MonotonicNs() + kRetryNs;  // patience may have used it up
    TearDown(fam);
    return false;
  }
  (void)CtlQueues(fam, kOwnQueues);  // this process drives the engine for others' listeners, too
  WireUse(fam, reinterpret_cast<stack::Engine*>(fam.wire->engine_at));
  return true;
}

namespace {

// The VIs' lines of a new posternd. The first of the family gets them, and leaves them with it; the
// others are told the VIs' new names.
int AdoptVis(Family& fam, WireHere& h, LineAsk ask) {
  int fds[kBundleFdsMax], pair[2] = {-1, -1};
  uint32_t vis = 0, count = PeekBundle(h.bundle, fds, vis), got = 0;
  int r = count < 2 ? -EPROTO : 0;
  for (uint32_t i = 0; r == 0 && i < vis; i++) {
    ctl::Msg m;
    m.type = ctl::Type::kVi;
    m.a = h.area.ViAt(i)->ifindex;
    m.b = 1;
    int line = -1;
    r = ask(fam, m, h.vis[i].token(), &line);
    if (r == -EEXIST && m.cookie != 0) {
      h.state->grant[i] = m.cookie;
      r = 0;
    } else if (r == 0) {
      ctl::ViGrant grant;
      int link[ctl::kGrantFdsMax];
      uint32_t links = 0;
      r = PeekGrant(line, grant, link, links);
      for (uint32_t j = 0; r == 0 && j < links; j++) sys::Close(link[j]);
      if (r == 0) h.state->grant[i] = grant.id;
      fds[2 + vis + got++] = line;
    }
  }
  count += got;
  if (r == 0 && got == vis) {
    r = static_cast<int>(sys::Call(SYS_socketpair, static_cast<long>(AF_UNIX),
                                   static_cast<long>(SOCK_SEQPACKET | SOCK_CLOEXEC), 0L, pair));
    if (r == 0) {
      r = SendBundle(pair[0], fds, vis, count);
      ctl::Msg m;
      m.type = ctl::Type::kWire;
      m.a = 2;
      if (r == 0) r = ask(fam, m, pair[1], nullptr);
      sys::Close(pair[0]);
      sys::Close(pair[1]);
    }
  }
  for (uint32_t i = 0; i < count; i++) sys::Close(fds[i]);
  return r;
}

}  // namespace

int WireReintroduce(Family& fam, LineAsk ask) {
  // [T3]
  return LoadAcquire(fam.engine) == nullptr ? -ENOENT : AdoptVis(fam, *fam.wire->here, ask);
}

const pstn_routes* WireTables(Family& fam) {
  return fam.wire->here != nullptr ? fam.wire->here->tables : nullptr;
}

uint32_t WireViOn(Family& fam, uint32_t ifindex) {
  for (uint32_t i = 0; fam.wire->here != nullptr && i < kAreaVis; i++) {
    const pstn_vi& vi = *fam.wire->here->area.ViAt(i);
    if (LoadRelaxed(vi.state) == kViUp && vi.ifindex == ifindex) return i;
  }
  return kAreaVis;
}

}  // namespace postern
