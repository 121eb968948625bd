// routes_parse.cc - links, addresses, labels and neighbours.
// SPDX-License-Identifier: Apache-2.0
#include "routes_parse.h"

#include <linux/if_addrlabel.h>
#include <linux/if_link.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if_arp.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/ip_address.h"

namespace postern::daemon {

uint32_t U32(const nlattr* attr) {
  return mnl_attr_get_payload_len(attr) >= sizeof(uint32_t) ? mnl_attr_get_u32(attr) : 0;
}
uint16_t U16(const nlattr* attr) {
  return mnl_attr_get_payload_len(attr) >= sizeof(uint16_t) ? mnl_attr_get_u16(attr) : uint16_t{0};
}
uint8_t U8(const nlattr* attr) {
  return mnl_attr_get_payload_len(attr) >= 1 ? mnl_attr_get_u8(attr) : uint8_t{0};
}

std::string TextOf(const nlattr* attr) {
  const auto* text = static_cast<const char*>(mnl_attr_get_payload(attr));
  return {text, strnlen(text, mnl_attr_get_payload_len(attr))};
}

bool TakeIp(const nlattr* attr, uint8_t out[16]) {
  const uint16_t bytes = mnl_attr_get_payload_len(attr);
  if (bytes != 4 && bytes != 16) return false;
  const IpAddress ip = IpAt(bytes == 4 ? AF_INET : AF_INET6, mnl_attr_get_payload(attr));
  memcpy(out, ip.bytes, sizeof ip.bytes);
  return true;
}

uint8_t FamilyOf(unsigned char af) { return af == AF_INET ? 4 : af == AF_INET6 ? 6 : 0; }

namespace {

// ---- links -------------------------------------------------------------------------------------

struct KindName {
  const char* name;
  uint32_t kind;
};
constexpr KindName kKinds[] = {
    {"veth", PSTN_LINK_VETH},       {"tun", PSTN_LINK_TUN},          {"vlan", PSTN_LINK_VLAN},
    {"bond", PSTN_LINK_BOND},       {"bridge", PSTN_LINK_BRIDGE},    {"macvlan", PSTN_LINK_MACVLAN},
    {"macvtap", PSTN_LINK_MACVLAN}, {"ipvlan", PSTN_LINK_IPVLAN},    {"vrf", PSTN_LINK_VRF},
    {"dummy", PSTN_LINK_DUMMY},     {"team", PSTN_LINK_TEAM},        {"gre", PSTN_LINK_TUNNEL},
    {"gretap", PSTN_LINK_TUNNEL},   {"ipip", PSTN_LINK_TUNNEL},      {"sit", PSTN_LINK_TUNNEL},
    {"ip6tnl", PSTN_LINK_TUNNEL},   {"wireguard", PSTN_LINK_TUNNEL}, {"vxlan", PSTN_LINK_TUNNEL},
    {"geneve", PSTN_LINK_TUNNEL},   {"vti", PSTN_LINK_TUNNEL},       {"xfrm", PSTN_LINK_TUNNEL},
};

uint32_t KindOf(const std::string& name) {
  for (const KindName& k : kKinds) {
    if (name == k.name) return k.kind;
  }
  return PSTN_LINK_OTHER;
}

constexpr uint8_t kBondActiveBackup = 1;

void TakeVlan(const nlattr* data, pstn_rt_link& link) {
  EachNested(data, [&](const nlattr* attr) {
    if (mnl_attr_get_type(attr) == IFLA_VLAN_ID) link.vid = U16(attr);
    if (mnl_attr_get_type(attr) == IFLA_VLAN_PROTOCOL)
      link.tpid = __builtin_bswap16(U16(attr));  // big-endian on the wire
  });
}

// The slave through which everything goes; none in modes where it is several.
uint32_t ActiveSlave(const nlattr* data) {
  uint32_t mode = PSTN_NONE, active = 0;
  EachNested(data, [&](const nlattr* attr) {
    if (mnl_attr_get_type(attr) == IFLA_BOND_MODE) mode = U8(attr);
    if (mnl_attr_get_type(attr) == IFLA_BOND_ACTIVE_SLAVE) active = U32(attr);
  });
  return mode == kBondActiveBackup ? active : 0;
}

void TakeInfo(const nlattr* info, pstn_rt_link& link) {
  const nlattr* data = nullptr;
  EachNested(info, [&](const nlattr* attr) {
    const uint16_t type = mnl_attr_get_type(attr);
    if (type == IFLA_INFO_KIND) link.kind = KindOf(TextOf(attr));
    if (type == IFLA_INFO_DATA) data = attr;
    if (type == IFLA_INFO_SLAVE_KIND)
      link.conf |= TextOf(attr) == "vrf" ? PSTN_LC_L3SLAVE : PSTN_LC_PORT;
  });
  if (data == nullptr) return;
  if (link.kind == PSTN_LINK_VLAN) TakeVlan(data, link);
  if (link.kind == PSTN_LINK_BOND) link.lower = ActiveSlave(data);
}

// An array of 32-bit values of the kernel's own order.
uint32_t Setting(const nlattr* array, size_t at) {
  if (mnl_attr_get_payload_len(array) < (at + 1) * sizeof(uint32_t)) return 0;
  uint32_t value;
  memcpy(&value, static_cast<const char*>(mnl_attr_get_payload(array)) + at * sizeof(value),
         sizeof(value));
  return value;
}

void TakeInet(const nlattr* af, pstn_rt_link& link) {
  link.conf |= PSTN_LC_INET;
  EachNested(af, [&](const nlattr* attr) {
    if (mnl_attr_get_type(attr) != IFLA_INET_CONF) return;
    if (Setting(attr, IPV4_DEVCONF_ROUTE_LOCALNET - 1) != 0) link.conf |= PSTN_LC_ROUTE_LOCALNET;
    if (Setting(attr, IPV4_DEVCONF_IGNORE_ROUTES_WITH_LINKDOWN - 1) != 0)
      link.conf |= PSTN_LC_IGNORE_LINKDOWN;
  });
}

void TakeInet6(const nlattr* af, pstn_rt_link& link) {
  link.conf |= PSTN_LC_INET6;
  EachNested(af, [&](const nlattr* attr) {
    if (mnl_attr_get_type(attr) != IFLA_INET6_CONF) return;
    link.hop_limit = static_cast<uint8_t>(Setting(attr, DEVCONF_HOPLIMIT));
    link.mtu6 = Setting(attr, DEVCONF_MTU6);
    const uint32_t temporary = Setting(attr, DEVCONF_USE_TEMPADDR);
    link.use_tempaddr = temporary <= 2 ? static_cast<uint8_t>(temporary) : uint8_t{0};
    if (Setting(attr, DEVCONF_USE_OIF_ADDRS_ONLY) != 0) link.conf |= PSTN_LC_OIF_ADDRS;
    if (Setting(attr, DEVCONF_OPTIMISTIC_DAD) != 0 && Setting(attr, DEVCONF_USE_OPTIMISTIC) != 0)
      link.conf |= PSTN_LC_OPTIMISTIC;
    if (Setting(attr, DEVCONF_IGNORE_ROUTES_WITH_LINKDOWN) != 0)
      link.conf |= PSTN_LC_IGNORE_LINKDOWN6;
  });
}

void TakeFamilies(const nlattr* spec, pstn_rt_link& link) {
  EachNested(spec, [&](const nlattr* af) {
    if (mnl_attr_get_type(af) == AF_INET) TakeInet(af, link);
    if (mnl_attr_get_type(af) == AF_INET6) TakeInet6(af, link);
  });
}

struct Below {
  uint32_t ifindex = 0;
  bool elsewhere = false;  // in another network namespace
};

void TakeLinkAttr(const nlattr* attr, LinkEntry& out, Below& below) {
  switch (mnl_attr_get_type(attr)) {
    case IFLA_IFNAME:
      out.name = TextOf(attr);
      break;
    case IFLA_MTU:
      out.link.mtu = U32(attr);
      break;
    case IFLA_GROUP:
      out.link.group = U32(attr);
      break;
    case IFLA_MASTER:
      out.link.master = U32(attr);
      break;
    case IFLA_LINK:
      below.ifindex = U32(attr);
      break;
    case IFLA_LINK_NETNSID:
      below.elsewhere = true;
      break;
    case IFLA_ADDRESS:
      if (mnl_attr_get_payload_len(attr) == sizeof(out.link.mac))
        memcpy(out.link.mac, mnl_attr_get_payload(attr), sizeof(out.link.mac));
      break;
    case IFLA_LINKINFO:
      TakeInfo(attr, out.link);
      break;
    case IFLA_AF_SPEC:
      TakeFamilies(attr, out.link);
      break;
    default:
      break;
  }
}

}  // namespace

bool ParseLink(const nlmsghdr* message, LinkEntry& out) {
  const auto* header = HeaderOf<ifinfomsg>(message);
  // A bridge tells of its ports in messages of its own family.
  if (header == nullptr || header->ifi_index <= 0 || header->ifi_family != AF_UNSPEC) return false;
  out = {};
  pstn_rt_link& link = out.link;
  link.ifindex = static_cast<uint32_t>(header->ifi_index);
  link.flags = header->ifi_flags;
  link.arp_type = header->ifi_type;
  link.kind = header->ifi_type == ARPHRD_LOOPBACK ? PSTN_LINK_LOOPBACK : PSTN_LINK_DEVICE;
  Below below;
  EachAttrOf(message, sizeof(ifinfomsg),
             [&](const nlattr* attr) { TakeLinkAttr(attr, out, below); });
  if (link.kind == PSTN_LINK_VLAN && !below.elsewhere) link.lower = below.ifindex;
  if (link.master != 0 && (link.conf & PSTN_LC_L3SLAVE) == 0) link.conf |= PSTN_LC_PORT;
  return true;
}

bool ParseAddr(const nlmsghdr* message, AddrEntry& out) {
  const auto* header = HeaderOf<ifaddrmsg>(message);
  if (header == nullptr || header->ifa_index == 0) return false;
  out = {};
  out.family = FamilyOf(header->ifa_family);
  if (out.family == 0 || header->ifa_prefixlen > (out.family == 4 ? 32 : 128)) return false;
  pstn_rt_addr& a = out.addr;
  a.ifindex = header->ifa_index;
  a.flags = header->ifa_flags;
  a.scope = header->ifa_scope;
  a.plen = Bits(out.family, header->ifa_prefixlen);
  bool has_local = false, has_address = false;
  EachAttrOf(message, sizeof(ifaddrmsg), [&](const nlattr* attr) {
    const uint16_t type = mnl_attr_get_type(attr);
    if (type == IFA_LOCAL) has_local = TakeIp(attr, a.ip);
    if (type == IFA_ADDRESS) has_address = TakeIp(attr, a.peer);
    if (type == IFA_FLAGS) a.flags = U32(attr);
  });
  if (!has_local) memcpy(a.ip, a.peer, sizeof(a.ip));
  if (!has_address) memcpy(a.peer, a.ip, sizeof(a.peer));
  return has_local || has_address;
}

bool ParseLabel(const nlmsghdr* message, pstn_rt_label& out) {
  const auto* header = HeaderOf<ifaddrlblmsg>(message);
  if (header == nullptr || header->ifal_prefixlen > 128) return false;
  out = {};
  out.plen = header->ifal_prefixlen;
  out.ifindex = header->ifal_index;
  bool complete = false;
  EachAttrOf(message, sizeof(ifaddrlblmsg), [&](const nlattr* attr) {
    if (mnl_attr_get_type(attr) == IFAL_ADDRESS && mnl_attr_get_payload_len(attr) == 16)
      memcpy(out.prefix, mnl_attr_get_payload(attr), 16);
    if (mnl_attr_get_type(attr) == IFAL_LABEL) {
      out.label = U32(attr);
      complete = true;
    }
  });
  return complete;
}

bool ParseNeigh(const nlmsghdr* message, NeighEntry& out) {
  const auto* header = HeaderOf<ndmsg>(message);
  if (header == nullptr || header->ndm_ifindex <= 0 || FamilyOf(header->ndm_family) == 0)
    return false;
  if ((header->ndm_flags & NTF_PROXY) != 0) return false;
  out = {};
  pstn_rt_neigh& n = out.neigh;
  n.ifindex = static_cast<uint32_t>(header->ndm_ifindex);
  n.state = header->ndm_state;
  n.flags = header->ndm_flags;
  bool has_ip = false;
  EachAttrOf(message, sizeof(ndmsg), [&](const nlattr* attr) {
    if (mnl_attr_get_type(attr) == NDA_DST) has_ip = TakeIp(attr, n.ip);
    if (mnl_attr_get_type(attr) == NDA_LLADDR && mnl_attr_get_payload_len(attr) == sizeof(n.mac)) {
      memcpy(n.mac, mnl_attr_get_payload(attr), sizeof(n.mac));
      n.flags |= PSTN_NB_MAC;
    }
  });
  out.gone = message->nlmsg_type == RTM_DELNEIGH || n.state == NUD_NONE;
  return has_ip;
}

namespace {

template <typename T>
bool Append(const nlmsghdr* message, bool (*parse)(const nlmsghdr*, T&), std::vector<T>& to) {
  T entry;
  if (!parse(message, entry)) return false;
  to.push_back(std::move(entry));
  return true;
}

}  // namespace

bool TakeMessage(const nlmsghdr* message, RouteModel& model) {
  switch (message->nlmsg_type) {
    case RTM_NEWLINK:
      return Append(message, ParseLink, model.links);
    case RTM_NEWADDR:
      return Append(message, ParseAddr, model.addrs);
    case RTM_NEWROUTE:
      return Append(message, ParseRoute, model.routes);
    case RTM_NEWRULE:
      return Append(message, ParseRule, model.rules);
    case RTM_NEWADDRLABEL:
      return Append(message, ParseLabel, model.labels);
    case RTM_NEWNEXTHOP: {
      NexthopEntry entry;
      if (!ParseNexthop(message, entry)) return false;
      model.nexthops[entry.id] = std::move(entry);
      return true;
    }
    default:
      return false;
  }
}

}  // namespace postern::daemon
