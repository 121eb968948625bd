// SPDX-License-Identifier: Apache-2.0
// route_link.cc - what an interface is made of, and whether a VI can be put on it.
//
// A VI belongs on the lowest device that carries exactly our frames: of a VLAN on the device below,
// with its tag; of a bond on the active slave, where there is only one (mode active-backup). What
// sends through more than one device, or wraps what it sends, has no such place.
#include "stack/route/route_read.h"

namespace postern::routing {
namespace {

constexpr uint16_t kEthernet = 1;  // ARPHRD_ETHER
constexpr uint32_t kDepthMax = 4;  // VLAN on VLAN on bond on device
constexpr uint8_t kTagsMax = 2;

bool CarriesVi(const pstn_rt_link& link) {
  if (link.arp_type != kEthernet) return false;
  return link.kind == PSTN_LINK_DEVICE || link.kind == PSTN_LINK_VETH ||
         link.kind == PSTN_LINK_TUN || link.kind == PSTN_LINK_DUMMY;
}

// One step down. False: this is the place, or there is none.
bool StepDown(const pstn_rt_link& link, LinkAnswer& a) {
  if (link.kind == PSTN_LINK_BOND) return link.lower != 0;
  if (link.kind != PSTN_LINK_VLAN || link.lower == 0 || a.tags >= kTagsMax) return false;
  // Outermost first: the deeper the device, the further out its tag.
  for (uint8_t i = a.tags; i > 0; i--) {
    a.tpid[i] = a.tpid[i - 1];
    a.vid[i] = a.vid[i - 1];
  }
  a.tpid[0] = link.tpid;
  a.vid[0] = link.vid;
  a.tags++;
  return true;
}

}  // namespace

LinkAnswer LinkIn(const pstn_rt_copy& c, uint32_t ifindex) {
  LinkAnswer a;
  const pstn_rt_link* link = FindLink(c, ifindex);
  if (link == nullptr) return a;
  memcpy(a.mac, link->mac, sizeof a.mac);
  a.has_mac = link->arp_type == kEthernet ? 1 : 0;
  a.mtu = link->mtu;
  a.kind = link->kind;
  a.up = (link->flags & (kIffUp | kIffLowerUp)) == (kIffUp | kIffLowerUp) ? 1 : 0;
  if ((link->conf & (PSTN_LC_L3SLAVE | PSTN_LC_PORT)) != 0) return a;
  bool below_bond = false;
  for (uint32_t depth = 0; depth < kDepthMax && StepDown(*link, a); depth++) {
    below_bond = link->kind == PSTN_LINK_BOND;
    link = FindLink(c, LoadRelaxed(link->lower));
    if (link == nullptr) return a;
    const bool port = (link->conf & (PSTN_LC_L3SLAVE | PSTN_LC_PORT)) != 0;
    if (port && !below_bond) return a;
    if ((link->flags & kIffUp) == 0) a.up = 0;
  }
  a.vi_ifindex = link->ifindex;
  if (CarriesVi(*link)) a.reason = RouteReason::kNone;
  return a;
}

}  // namespace postern::routing
