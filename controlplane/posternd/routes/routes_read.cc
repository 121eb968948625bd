// routes_read.cc - the dumps, and what has no dump: sysctls.
// SPDX-License-Identifier: Apache-2.0
#include "routes_read.h"

#include <linux/fib_rules.h>
#include <linux/if_addrlabel.h>
#include <linux/neighbour.h>
#include <linux/nexthop.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "../kit/fd.h"
#include "base/ip_address.h"
#include "routes_parse.h"
#include "stack/route/route_key.h"

namespace postern::daemon {

const std::vector<int> kRouteGroups = {
    RTNLGRP_LINK,         RTNLGRP_NEIGH,        RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV4_ROUTE,   RTNLGRP_IPV6_ROUTE,   RTNLGRP_IPV4_RULE,   RTNLGRP_IPV6_RULE,
    RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF, RTNLGRP_NEXTHOP,
};

namespace {

constexpr uint16_t kDiscardPort = 9;

template <typename Header>
int DumpInto(Netlink& line, uint16_t type, const Header& header, RouteModel& model,
             const std::vector<uint8_t>& attrs = {}) {
  return line.Dump(type, NLM_F_DUMP, &header, sizeof(header), attrs,
                   [&model](const nlmsghdr* message) { TakeMessage(message, model); });
}

uint32_t Sysctl(const char* name, uint32_t otherwise) {
  std::ifstream file(std::string("/proc/sys/net/") + name);
  uint32_t value = 0;
  return file >> value ? value : otherwise;
}

void ReadSysctls(Sysctls& out) {
  out.hop_limit4 = Sysctl("ipv4/ip_default_ttl", 64);
  out.forwarding6 = Sysctl("ipv6/conf/all/forwarding", 0) != 0;
  out.route_localnet = Sysctl("ipv4/conf/all/route_localnet", 0) != 0;
  // Exists only in kernels that are built with CONFIG_IPV6_ROUTER_PREF.
  out.router_pref = access("/proc/sys/net/ipv6/conf/all/accept_ra_rtr_pref", F_OK) == 0;
}

int ReadLinks(Netlink& line, RouteModel& model) {
  constexpr uint32_t kNoStatistics = RTEXT_FILTER_SKIP_STATS;
  return DumpInto(line, RTM_GETLINK, ifinfomsg{}, model,
                  AttrBytes(IFLA_EXT_MASK, &kNoStatistics, sizeof(kNoStatistics)));
}

int ReadFamily(Netlink& line, RouteModel& model, uint8_t family) {
  ifaddrmsg addr{};
  addr.ifa_family = family;
  int error = DumpInto(line, RTM_GETADDR, addr, model);
  fib_rule_hdr rule{};
  rule.family = family;
  if (error == 0) error = DumpInto(line, RTM_GETRULE, rule, model);
  rtmsg route{};
  route.rtm_family = family;
  if (error == 0) error = DumpInto(line, RTM_GETROUTE, route, model);
  return error;
}

bool Missing(int error) { return error == -EOPNOTSUPP || error == -EAFNOSUPPORT; }

int ReadAll(Netlink& line, RouteModel& model) {
  int error = ReadLinks(line, model);
  if (error == 0) error = DumpInto(line, RTM_GETNEXTHOP, nhmsg{}, model);
  if (Missing(error)) error = 0;  // a kernel before 5.3
  if (error == 0) error = ReadFamily(line, model, AF_INET);
  if (error == 0) error = ReadFamily(line, model, AF_INET6);
  if (Missing(error)) return 0;  // no IPv6
  ifaddrlblmsg label{};
  label.ifal_family = AF_INET6;
  if (error == 0) error = DumpInto(line, RTM_GETADDRLABEL, label, model);
  return error;
}

}  // namespace

int ReadRoutes(Netlink& line, RouteModel& model) {
  ReadSysctls(model.sysctls);
  const int error = ReadAll(line, model);
  model.Sort();
  return error;
}

int ReadAddresses(Netlink& line, RouteModel& model) {
  ifaddrmsg addr{};
  return DumpInto(line, RTM_GETADDR, addr, model);
}

int ReadNeighbours(Netlink& line, std::vector<NeighEntry>& out) {
  ndmsg header{};
  return line.Dump(RTM_GETNEIGH, NLM_F_DUMP, &header, sizeof(header), {},
                   [&out](const nlmsghdr* message) {
                     NeighEntry entry;
                     if (message->nlmsg_type == RTM_NEWNEIGH && ParseNeigh(message, entry))
                       out.push_back(entry);
                   });
}

int AskForNeighbour(Netlink& line, uint32_t ifindex, const uint8_t ip[16]) {
  const bool v4 = IpAt(ip).IsV4();
  ndmsg header{};
  header.ndm_family = v4 ? AF_INET : AF_INET6;
  header.ndm_ifindex = static_cast<int>(ifindex);
  header.ndm_flags = NTF_USE;
  return line.Dump(RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE, &header, sizeof(header),
                   AttrBytes(NDA_DST, v4 ? ip + 12 : ip, v4 ? 4 : 16), [](const nlmsghdr*) {});
}

int SendForNeighbour(uint32_t ifindex, const uint8_t ip[16]) {
  const UniqueFd fd(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.ok()) return -errno;
  const int index = static_cast<int>(ifindex);
  const bool v4 = IpAt(ip).IsV4();
  // IPv4 goes by mapped addresses, whose interface only the device option can name.
  if (v4) (void)setsockopt(fd.get(), SOL_SOCKET, SO_BINDTOIFINDEX, &index, sizeof(index));
  pstn_addr to = NameOf(IpAt(ip), kDiscardPort);
  to.scope = v4 ? 0 : ifindex;
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const place = reinterpret_cast<sockaddr*>(&storage);
  AddrToSockaddr(to, AF_INET6, place, &size);
  const ssize_t sent = sendto(fd.get(), "", 0, MSG_NOSIGNAL, place, size);
  return sent < 0 ? -errno : 0;
}

}  // namespace postern::daemon
