// routes_filters.cc - asks nftables, the old iptables, IPVS and IPsec.
// SPDX-License-Identifier: Apache-2.0
#include "routes_filters.h"

#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/xfrm.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <string>
#include <tuple>

#include "routes_parse.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kLookMs = 2000;  // at what does not tell

using ChainName = std::tuple<uint8_t, std::string, std::string>;  // family, table, chain

uint16_t NftType(int message) { return static_cast<uint16_t>(NFNL_SUBSYS_NFTABLES << 8 | message); }

bool Concerns(uint8_t family) {
  return family == NFPROTO_IPV4 || family == NFPROTO_IPV6 || family == NFPROTO_INET ||
         family == NFPROTO_NETDEV;
}

uint32_t BigU32(const nlattr* attr) { return ntohl(U32(attr)); }

struct Chain {
  ChainName name;
  bool is_base = false, drops = false;
  uint32_t hook = 0;
};

Chain ChainIn(const nlmsghdr* message, uint8_t family) {
  Chain chain;
  std::get<0>(chain.name) = family;
  EachAttrOf(message, sizeof(nfgenmsg), [&](const nlattr* attr) {
    const uint16_t type = mnl_attr_get_type(attr);
    if (type == NFTA_CHAIN_TABLE) std::get<1>(chain.name) = TextOf(attr);
    if (type == NFTA_CHAIN_NAME) std::get<2>(chain.name) = TextOf(attr);
    if (type == NFTA_CHAIN_POLICY) chain.drops = BigU32(attr) != NF_ACCEPT;
    if (type != NFTA_CHAIN_HOOK) return;
    chain.is_base = true;
    EachNested(attr, [&](const nlattr* inner) {
      if (mnl_attr_get_type(inner) == NFTA_HOOK_HOOKNUM) chain.hook = BigU32(inner);
    });
  });
  return chain;
}

bool OnlyCounts(const nlattr* expressions) {
  bool only = true;
  EachNested(expressions, [&](const nlattr* element) {
    EachNested(element, [&](const nlattr* attr) {
      if (mnl_attr_get_type(attr) == NFTA_EXPR_NAME && TextOf(attr) != "counter") only = false;
    });
  });
  return only;
}

// Whether it is in one of the chains and does something.
bool Touches(const nlmsghdr* message, uint8_t family, const std::set<ChainName>& base_chains) {
  ChainName name;
  std::get<0>(name) = family;
  bool only_counts = true;
  EachAttrOf(message, sizeof(nfgenmsg), [&](const nlattr* attr) {
    const uint16_t type = mnl_attr_get_type(attr);
    if (type == NFTA_RULE_TABLE) std::get<1>(name) = TextOf(attr);
    if (type == NFTA_RULE_CHAIN) std::get<2>(name) = TextOf(attr);
    if (type == NFTA_RULE_EXPRESSIONS) only_counts = OnlyCounts(attr);
  });
  return !only_counts && base_chains.count(name) != 0;
}

const nfgenmsg* NftHeader(const nlmsghdr* message, int type) {
  if (message->nlmsg_type != NftType(type)) return nullptr;
  const auto* header = HeaderOf<nfgenmsg>(message);
  return header != nullptr && Concerns(header->nfgen_family) ? header : nullptr;
}

// Nothing there: the kernel has no nftables.
bool NotBuilt(int error) { return error == -EOPNOTSUPP || error == -EINVAL; }

bool NftablesTouch() {
  Netlink line(NETLINK_NETFILTER);
  if (!line.ok()) return errno != EPROTONOSUPPORT;
  nfgenmsg header{};
  header.nfgen_family = AF_UNSPEC;
  header.version = NFNETLINK_V0;
  std::set<ChainName> base_chains;
  bool touches = false;
  int error = line.Dump(NftType(NFT_MSG_GETCHAIN), NLM_F_DUMP, &header, sizeof(header), {},
                        [&](const nlmsghdr* message) {
                          const nfgenmsg* head = NftHeader(message, NFT_MSG_NEWCHAIN);
                          if (head == nullptr) return;
                          const Chain chain = ChainIn(message, head->nfgen_family);
                          const bool forward =
                              head->nfgen_family != NFPROTO_NETDEV && chain.hook == NF_INET_FORWARD;
                          if (!chain.is_base || forward) return;
                          touches = touches || chain.drops;
                          base_chains.insert(chain.name);
                        });
  if (NotBuilt(error)) return false;
  if (error != 0) return true;
  if (touches || base_chains.empty()) return touches;
  error = line.Dump(NftType(NFT_MSG_GETRULE), NLM_F_DUMP, &header, sizeof(header), {},
                    [&](const nlmsghdr* message) {
                      const nfgenmsg* head = NftHeader(message, NFT_MSG_NEWRULE);
                      if (head != nullptr && Touches(message, head->nfgen_family, base_chains))
                        touches = true;
                    });
  return touches || error != 0;
}

// Lines of a file of this namespace. A file that can't be read counts as having more.
bool HasMoreLines(const char* path, int than) {
  std::ifstream file(path);
  if (!file) return errno != ENOENT;
  std::string line;
  while (std::getline(file, line)) {
    if (than-- == 0) return true;
  }
  return false;
}

bool OldTables() {
  return HasMoreLines("/proc/self/net/ip_tables_names", 0) ||
         HasMoreLines("/proc/self/net/ip6_tables_names", 0) ||
         HasMoreLines("/proc/self/net/ip_vs", 3);  // three lines of headings
}

bool IpsecPolicies() {
  Netlink line(NETLINK_XFRM);
  if (!line.ok()) return errno != EPROTONOSUPPORT;
  const uint32_t flags = 0;
  bool any = false, answered = false;
  const int error = line.Dump(XFRM_MSG_GETSPDINFO, NLM_F_ACK, &flags, sizeof(flags), {},
                              [&](const nlmsghdr* message) {
                                if (message->nlmsg_type != XFRM_MSG_NEWSPDINFO) return;
                                EachAttrOf(message, sizeof(flags), [&](const nlattr* attr) {
                                  xfrmu_spdinfo info{};
                                  if (mnl_attr_get_type(attr) != XFRMA_SPD_INFO ||
                                      mnl_attr_get_payload_len(attr) < sizeof(info))
                                    return;
                                  memcpy(&info, mnl_attr_get_payload(attr), sizeof(info));
                                  answered = true;
                                  // The last three are of sockets, which set them for themselves.
                                  any = info.incnt + info.outcnt + info.fwdcnt != 0;
                                });
                              });
  return any || error != 0 || !answered;
}

}  // namespace

Filters ReadFilters() {
  Filters filters;
  filters.netfilter = OldTables() || NftablesTouch();
  filters.xfrm = IpsecPolicies();
  return filters;
}

namespace {

std::unique_ptr<Netlink> Listen(int protocol, int group) {
  auto line = std::make_unique<Netlink>(protocol);
  if (!line->ok() || line->Join(group) != 0) return nullptr;
  return line;
}

std::unique_ptr<Event> WhenReadable(event_base* base, Netlink* line,
                                    const std::function<void()>& tell) {
  if (line == nullptr) return nullptr;
  auto event = std::make_unique<Event>(base, line->fd(), static_cast<short>(EV_READ | EV_PERSIST),
                                       [line, tell] {
                                         (void)line->Drain([](const nlmsghdr*) {});
                                         tell();
                                       });
  event->Add();
  return event;
}

}  // namespace

FilterWatch::FilterWatch(event_base* base, std::function<void()> on_change)
    : on_change_(std::move(on_change)),
      nftables_(Listen(NETLINK_NETFILTER, NFNLGRP_NFTABLES)),
      xfrm_(Listen(NETLINK_XFRM, XFRMNLGRP_POLICY)),
      nftables_event_(WhenReadable(base, nftables_.get(), on_change_)),
      xfrm_event_(WhenReadable(base, xfrm_.get(), on_change_)),
      look_(base, -1, 0, [this] {
        on_change_();
        look_.AddMs(kLookMs);
      }) {
  look_.AddMs(kLookMs);
}

}  // namespace postern::daemon
