// routes_parse_rule.cc - rules of policy routing.
// SPDX-License-Identifier: Apache-2.0
#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>

#include "routes_parse.h"

namespace postern::daemon {
namespace {

// Newer than Debian 12's headers: masks of ports, which older kernels treat as all ones.
constexpr uint16_t kSportMask = 28, kDportMask = 29;

void TakePorts(const nlattr* attr, uint16_t& first, uint16_t& last) {
  fib_rule_port_range range{};
  if (mnl_attr_get_payload_len(attr) < sizeof(range)) return;
  memcpy(&range, mnl_attr_get_payload(attr), sizeof(range));
  first = range.start;
  last = range.end;
}

void TakeUids(const nlattr* attr, pstn_rt_rule& rule) {
  fib_rule_uid_range range{};
  if (mnl_attr_get_payload_len(attr) < sizeof(range)) return;
  memcpy(&range, mnl_attr_get_payload(attr), sizeof(range));
  rule.flags |= PSTN_RU_UID;
  rule.uid_first = range.start;
  rule.uid_last = range.end;
}

// Conditions on the flow. False: not one of these.
bool TakeFlowAttr(const nlattr* attr, RuleEntry& out, bool& has_mask) {
  pstn_rt_rule& rule = out.rule;
  switch (mnl_attr_get_type(attr)) {
    case FRA_IIFNAME:
      out.iif = TextOf(attr);
      return true;
    case FRA_OIFNAME:
      out.oif = TextOf(attr);
      return true;
    case FRA_FWMARK:
      rule.mark = U32(attr);
      return true;
    case FRA_FWMASK:
      rule.mark_mask = U32(attr);
      has_mask = true;
      return true;
    case FRA_L3MDEV:
      if (U8(attr) != 0) rule.flags |= PSTN_RU_L3MDEV;
      return true;
    case FRA_UID_RANGE:
      TakeUids(attr, rule);
      return true;
    case FRA_IP_PROTO:
      rule.proto = U8(attr);
      return true;
    case FRA_SPORT_RANGE:
      TakePorts(attr, rule.sport_first, rule.sport_last);
      return true;
    case FRA_DPORT_RANGE:
      TakePorts(attr, rule.dport_first, rule.dport_last);
      return true;
    case kSportMask:
    case kDportMask:
      if (U16(attr) != 0xffff) rule.flags |= PSTN_RU_UNKNOWN;
      return true;
    default:
      return false;
  }
}

void TakeRuleAttr(const nlattr* attr, RuleEntry& out) {
  pstn_rt_rule& rule = out.rule;
  switch (mnl_attr_get_type(attr)) {
    case FRA_DST:
      if (!TakeIp(attr, rule.dst)) rule.flags |= PSTN_RU_UNKNOWN;
      break;
    case FRA_SRC:
      if (!TakeIp(attr, rule.src)) rule.flags |= PSTN_RU_UNKNOWN;
      break;
    case FRA_PRIORITY:
      rule.priority = U32(attr);
      break;
    case FRA_TABLE:
      out.table_id = U32(attr);
      break;
    case FRA_GOTO:
      out.goto_priority = U32(attr);
      break;
    case FRA_SUPPRESS_PREFIXLEN:
      rule.suppress_plen = U32(attr);
      break;
    case FRA_SUPPRESS_IFGROUP:
      rule.suppress_group = U32(attr);
      break;
    case FRA_PROTOCOL:  // its maker
    case FRA_FLOW:      // realms: for statistics
    case FRA_PAD:
      break;
    default:
      rule.flags |= PSTN_RU_UNKNOWN;
      break;
  }
}

}  // namespace

bool ParseRule(const nlmsghdr* message, RuleEntry& out) {
  const auto* header = HeaderOf<fib_rule_hdr>(message);
  if (header == nullptr) return false;
  const uint8_t family = FamilyOf(header->family);
  const uint32_t longest = family == 4 ? 32 : 128;
  if (family == 0 || header->dst_len > longest || header->src_len > longest) return false;
  out = {};
  pstn_rt_rule& rule = out.rule;
  rule.family = family;
  rule.action = header->action;
  rule.tos = header->tos;
  rule.dst_plen = Bits(family, header->dst_len);
  rule.src_plen = Bits(family, header->src_len);
  rule.suppress_plen = rule.suppress_group = rule.target = PSTN_NONE;
  if ((header->flags & FIB_RULE_INVERT) != 0) rule.flags |= PSTN_RU_INVERT;
  if ((header->flags & FIB_RULE_FIND_SADDR) != 0) rule.flags |= PSTN_RU_FIND_SADDR;
  out.table_id = header->table;
  bool has_mask = false;
  EachAttrOf(message, sizeof(fib_rule_hdr), [&](const nlattr* attr) {
    if (!TakeFlowAttr(attr, out, has_mask)) TakeRuleAttr(attr, out);
  });
  if (rule.mark != 0 && !has_mask) rule.mark_mask = 0xffffffff;
  return true;
}

}  // namespace postern::daemon
