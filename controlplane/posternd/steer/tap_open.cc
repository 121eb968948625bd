// tap_open.cc - see tap_open.h.
// SPDX-License-Identifier: Apache-2.0
#include "tap_open.h"

#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "../kit/log.h"
#include "../kit/netlink.h"
#include "vi/vi.h"

namespace postern::daemon {
namespace {

constexpr char kPrefix[] = "pstn-tap", kNames[] = "pstn-tap%d";  // the kernel counts
// What the kernel may hand over: checksums left out, and what TCP's segments were gathered into.
// Not with ECN's CWR, which only the first segment of a packet has: those the kernel cuts.
constexpr unsigned kOffload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;

int Failed(const NetInterface& interface, const char* what) {
  const int error = errno;
  Warn("VI on %s: no TAP: %s: %s", interface.name.c_str(), what, strerror(error));
  return -error;
}

ifreq Named(int fd, uint32_t ifindex) {
  ifreq request{};
  request.ifr_ifindex = static_cast<int>(ifindex);
  (void)ioctl(fd, SIOCGIFNAME, &request);
  return request;
}

// One request about a link, and the kernel's answer.
void AskLink(uint16_t type, uint32_t ifindex, const std::vector<uint8_t>& attrs) {
  Netlink netlink(NETLINK_ROUTE);
  if (!netlink.ok()) return;
  ifinfomsg about{};
  about.ifi_index = static_cast<int>(ifindex);
  (void)netlink.Dump(type, NLM_F_ACK, &about, sizeof(about), attrs, [](const nlmsghdr*) {});
}

std::vector<uint8_t> Nested(uint16_t type, const std::vector<uint8_t>& inner) {
  return AttrBytes(static_cast<uint16_t>(type | NLA_F_NESTED), inner.data(), inner.size());
}

}  // namespace

int OpenTap(const NetInterface& interface, UniqueFd& tap, uint32_t& ifindex) {
  tap = UniqueFd(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!tap.ok()) return Failed(interface, "/dev/net/tun");
  ifreq request{};
  memcpy(request.ifr_name, kNames, sizeof(kNames));
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(tap.get(), TUNSETIFF, &request) != 0) return Failed(interface, "TUNSETIFF");
  if (ioctl(tap.get(), TUNSETOFFLOAD, kOffload) != 0) return Failed(interface, "TUNSETOFFLOAD");
  ifindex = if_nametoindex(request.ifr_name);
  return ifindex != 0 ? 0 : Failed(interface, "its number");
}

int RaiseTap(uint32_t ifindex, uint32_t mtu) {
  // Without an address of IPv6's the kernel has nothing to say there. (Where it has no IPv6 it
  // refuses, and is right.)
  const uint8_t none = IN6_ADDR_GEN_MODE_NONE;
  AskLink(RTM_NEWLINK, ifindex,
          Nested(IFLA_AF_SPEC,
                 Nested(AF_INET6, AttrBytes(IFLA_INET6_ADDR_GEN_MODE, &none, sizeof(none)))));
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return -errno;
  ifreq request = Named(fd.get(), ifindex);
  request.ifr_mtu = static_cast<int>(mtu);
  if (ioctl(fd.get(), SIOCSIFMTU, &request) != 0) return -errno;
  request = Named(fd.get(), ifindex);
  request.ifr_flags = IFF_UP | IFF_NOARP;
  return ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0 ? 0 : -errno;
}

// Its number may be another interface's by now.
void RemoveTap(uint32_t ifindex) {
  char name[IF_NAMESIZE] = "";
  if (if_indextoname(ifindex, name) == nullptr) return;
  if (strncmp(name, kPrefix, sizeof(kPrefix) - 1) == 0) AskLink(RTM_DELLINK, ifindex, {});
}

void DescribeTap(const NetInterface& interface, ctl::ViGrant& grant) {
  grant.kind = ctl::kGrantTap;
  grant.ifindex = interface.ifindex;
  grant.queue_count = 1;
  grant.mtu = interface.mtu;
  memcpy(grant.mac, interface.mac, sizeof(grant.mac));
  grant.caps = kCapMultiBuffer | kCapLarge | kCapTxChecksum | kCapRxChecksum | kCapRxPartial;
}

}  // namespace postern::daemon
