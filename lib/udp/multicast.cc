// SPDX-License-Identifier: Apache-2.0
// multicast.cc - groups that an endpoint has joined, and the sources it wants to hear there
// (RFC 3678).
#include <errno.h>

#include "udp/parts.h"

namespace postern::udp {
namespace {

uint32_t Find(const Endpoint& e, const IpAddress& group, uint32_t ifindex, Host& host) {
  for (uint32_t i = e.member_head; i != kNone; i = host.MemberAt(i).next) {
    const Member& m = host.MemberAt(i);
    if (m.group == group && m.ifindex == ifindex) return i;
  }
  return kNone;
}

uint32_t SourceAt(const Member& m, const IpAddress& source) {
  uint32_t at = 0;
  while (at < m.source_count && m.source[at] != source) at++;
  return at;
}

int Add(Endpoint& e, const IpAddress& group, uint32_t ifindex, uint32_t include, Host& host) {
  if (!group.IsMulticast()) return -EINVAL;
  if (Find(e, group, ifindex, host) != kNone) return -EADDRINUSE;
  uint32_t count = 0;
  for (uint32_t i = e.member_head; i != kNone; i = host.MemberAt(i).next) count++;
  if (count >= kMembersMax) return -ENOBUFS;
  const uint32_t idx = host.TakeMember();
  if (idx == kNone) return -ENOBUFS;
  Member& m = host.MemberAt(idx);
  m = {};
  m.group = group;
  m.ifindex = ifindex;
  m.include = include;
  m.next = e.member_head;
  e.member_head = idx;
  host.GroupChanged(group, ifindex, true);
  return 0;
}

int Drop(Endpoint& e, const IpAddress& group, uint32_t ifindex, Host& host) {
  for (uint32_t* at = &e.member_head; *at != kNone; at = &host.MemberAt(*at).next) {
    const uint32_t idx = *at;
    const Member& m = host.MemberAt(idx);
    if (m.group != group || m.ifindex != ifindex) continue;
    *at = m.next;
    host.GiveMember(idx);
    host.GroupChanged(group, ifindex, false);
    return 0;
  }
  return -EADDRNOTAVAIL;
}

int Insert(Member& m, const IpAddress& source) {
  if (SourceAt(m, source) < m.source_count) return -EADDRNOTAVAIL;
  if (m.source_count >= kSourcesMax) return -ENOBUFS;
  m.source[m.source_count++] = source;
  return 0;
}

int Erase(Member& m, const IpAddress& source) {
  const uint32_t at = SourceAt(m, source);
  if (at >= m.source_count) return -EADDRNOTAVAIL;
  m.source[at] = m.source[--m.source_count];
  return 0;
}

}  // namespace

int Join(uint32_t idx, const IpAddress& group, uint32_t ifindex, Host& host) {
  return Add(host.EndpointAt(idx), group, ifindex, 0, host);
}

int Leave(uint32_t idx, const IpAddress& group, uint32_t ifindex, Host& host) {
  return Drop(host.EndpointAt(idx), group, ifindex, host);
}

int ChangeSource(uint32_t idx, const IpAddress& group, const IpAddress& source, uint32_t ifindex,
                 SourceOp op, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  const bool include = op == SourceOp::kAdd || op == SourceOp::kRemove;
  if (op == SourceOp::kAdd && Find(e, group, ifindex, host) == kNone) {
    if (const int error = Add(e, group, ifindex, 1, host); error != 0) return error;
  }
  const uint32_t at = Find(e, group, ifindex, host);
  if (at == kNone || (host.MemberAt(at).include != 0) != include) return -EINVAL;
  Member& m = host.MemberAt(at);
  const bool insert = op == SourceOp::kAdd || op == SourceOp::kBlock;
  const int error = insert ? Insert(m, source) : Erase(m, source);
  // A group without sources is one that was left.
  if (error == 0 && op == SourceOp::kRemove && m.source_count == 0)
    return Drop(e, group, ifindex, host);
  return error;
}

// Linux's ip_mc_sf_allow: a group that only others have joined is heard, too, unless
// IP_MULTICAST_ALL is off.
bool WantsFrom(const Endpoint& e, const DatagramIn& in, Host& host) {
  const uint32_t at = Find(e, in.dest, in.ifindex, host);
  if (at == kNone) return Has(e, kMulticastAll);
  const Member& m = host.MemberAt(at);
  const bool listed = SourceAt(m, in.source) < m.source_count;
  return (m.include != 0) == listed;
}

void LeaveAll(Endpoint& e, Host& host) {
  while (e.member_head != kNone) {
    const Member& m = host.MemberAt(e.member_head);
    Drop(e, IpAddress(m.group), m.ifindex, host);
  }
}

}  // namespace postern::udp
