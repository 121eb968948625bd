// SPDX-License-Identifier: Apache-2.0
// meet.cc - see meet.h.
#include "life/meet.h"

#include <sys/eventfd.h>

#include <cerrno>

#include "base/ip_address.h"
#include "base/sys.h"
#include "control/posternd.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "endpoint/state.h"
#include "family/fdtab.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "peer/kernel_half.h"
#include "peer/pair.h"

namespace postern {
namespace {

constexpr uint16_t kPlacePort = 1024;  // of the names, which no program sees
constexpr uint32_t kPlaceBacklog = 4096;

pstn_addr Named(uint32_t port) {
  pstn_addr name = {};
  SetIp(name, IpAddress::V4(127, 0, 0, 1));
  name.port = static_cast<uint16_t>(port);
  return name;
}

}  // namespace

bool HandOn(Family& fam, int fd, pstn_ep& ep, const pstn_uuid& to, Place& place) {
  place.stack = Stack(fam).hdr.id;
  return CtlHandOn(fam, ep, fd, to, &place.ep_idx, &place.ep_gen, &place.tag) == 0;
}

bool Meet(Family& fam, pstn_ep& ep, const Place& place) {
  ConnSlot slot;
  if (place.tag < kTagMin || place.tag > kTagMax ||
      TakeConnSlot(fam, place.stack, slot) != kReasonNone)
    return false;
  const pstn_addr local = LoadAddr(ep.local), peer = LoadAddr(ep.peer);
  AddPlace(TakenAt(fam, Stack(fam).lgrs.Own(LgrIndex(slot.lgr_idx)), slot.lgr, place.ep_idx));
  FillConn(fam, ep, slot, place.ep_idx, place.ep_gen, Named(kPlacePort), Named(place.tag));
  StoreAddr(ep.local, local);  // as the program knows it
  StoreAddr(ep.peer, peer);
  NoteNews(fam.bells);
  SetState(ep, PSTN_EP_ESTABLISHED);
  pstn_conn& c = LgrConn(slot.lgr, slot.conn);
  StoreRelease(c.setup.state, PSTN_CS_SYN);  // [C1]
  AnnounceSyn(fam.bells, slot.lgr, slot.conn);
  return true;
}

long OpenPlace(Family& fam) {
  const uint32_t idx = NewEp(fam, AF_INET);
  if (idx == PSTN_NONE) return -ENOBUFS;
  pstn_ep& ep = Stack(fam).eps.Own(EpIndex(idx));
  // A number that the kernel has nothing to say of.
  const long fd = sys::Call(SYS_eventfd2, 0L, static_cast<long>(EFD_CLOEXEC));
  if (fd < 0) {
    GiveEp(Stack(fam), idx);
    return fd;
  }
  SetFd(fam, static_cast<int>(fd), PSTN_FD_EP | idx);
  ep.local = Named(kPlacePort);
  StoreRelaxed(ep.backlog, kPlaceBacklog);
  FetchOr(ep.flags, PSTN_EPF_DIRTY | PSTN_EPF_NONBLOCK);
  SetState(ep, PSTN_EP_LISTEN);
  return fd;
}

long AcceptGuest(Family& fam, int place, uint32_t& tag, pstn_uuid& stack) {
  const Call call(fam, place);
  if (call.ep() == nullptr) return -EBADF;
  AdmitSyns(fam);
  const uint32_t idx = DequeueEmbryo(fam, *call.ep());
  if (idx == PSTN_NONE) return -EAGAIN;
  StackMap& s = Stack(fam);
  pstn_ep& ep = s.eps.Own(EpIndex(idx));
  tag = ep.peer.port;
  const pstn_lgr_ref* const ref = s.lgrs.At(LgrIndex(LoadRelaxed(ep.lgr_idx)));
  stack = ref != nullptr ? ref->peer : pstn_uuid{};
  FetchOr(ep.flags, PSTN_EPF_NONBLOCK | PSTN_EPF_OOBINLINE);  // as CopyConnection's
  SetState(ep, PSTN_EP_ESTABLISHED);
  const long fd = OpenFdFor(fam, ep, idx, false, true);
  if (fd < 0) CloseEp(fam, ep);
  return fd;
}

}  // namespace postern
