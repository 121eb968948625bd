// SPDX-License-Identifier: Apache-2.0
// datagram_options.cc - options and control messages of a UDP socket on the wire.
//
// The kernel's socket has each option first, and says what is wrong with it. Then: it does not
// concern what goes by a VI; or the engine learns the new value; or it is one that only the kernel
// knows, and the socket is the kernel's from then on.
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "base/ip_address.h"
#include "base/sys.h"
#include "endpoint/endpoint.h"
#include "family/family.h"
#include "offhost/datagram.h"
#include "offhost/datagram_calls.h"
#include "offhost/wire_options.h"
#include "peer/connect.h"
#include "stream/zerocopy.h"

namespace postern {
namespace {

enum class Concern : uint8_t { kNone, kLearnt, kKernel };

// pstn_ep::opt_set of such an endpoint: what the program has set.
constexpr uint32_t kSetTtl = 1, kSetOther = 2;

Concern OfSocket(int name) {
  switch (name) {
    case SO_RCVBUF:
    case SO_RCVBUFFORCE:
      return Concern::kLearnt;
    case SO_REUSEADDR:
    case SO_SNDBUF:
    case SO_SNDBUFFORCE:
    case SO_RCVTIMEO:
    case SO_SNDTIMEO:
    case SO_BROADCAST:  // and groups, below: the kernel sends and receives those
    case SO_PRIORITY:
    case SO_KEEPALIVE:
    case SO_LINGER:
    case SO_DEBUG:
    case SO_RCVLOWAT:
    case SO_OOBINLINE:
    case SO_BUSY_POLL:
      return Concern::kNone;
    default:
      return Concern::kKernel;
  }
}

Concern OfIpv4(int name) {
  switch (name) {
    case IP_TTL:
    case IP_TOS:
    case IP_MTU_DISCOVER:
    case IP_PKTINFO:
    case IP_RECVTTL:
    case IP_RECVTOS:
      return Concern::kLearnt;
    case IP_MULTICAST_IF:
    case IP_MULTICAST_TTL:
    case IP_MULTICAST_LOOP:
    case IP_MULTICAST_ALL:
    case IP_ADD_MEMBERSHIP:
    case IP_DROP_MEMBERSHIP:
    case IP_ADD_SOURCE_MEMBERSHIP:
    case IP_DROP_SOURCE_MEMBERSHIP:
    case IP_BIND_ADDRESS_NO_PORT:
      return Concern::kNone;
    default:
      return Concern::kKernel;
  }
}

Concern OfIpv6(int name) {
  switch (name) {
    case IPV6_UNICAST_HOPS:
    case IPV6_TCLASS:
    case IPV6_MTU_DISCOVER:
    case IPV6_RECVPKTINFO:
    case IPV6_RECVHOPLIMIT:
    case IPV6_RECVTCLASS:
      return Concern::kLearnt;
    case IPV6_V6ONLY:  // before bind() only
    case IPV6_MULTICAST_IF:
    case IPV6_MULTICAST_HOPS:
    case IPV6_MULTICAST_LOOP:
    case IPV6_JOIN_GROUP:
    case IPV6_LEAVE_GROUP:
      return Concern::kNone;
    default:
      return Concern::kKernel;
  }
}

Concern ConcernOf(const pstn_ep& ep, int level, int name) {
  if (level == SOL_SOCKET) return OfSocket(name);
  if (level == IPPROTO_IP && ep.family == AF_INET) return OfIpv4(name);
  if (level == IPPROTO_IPV6 && ep.family == AF_INET6) return OfIpv6(name);
  return Concern::kKernel;
}

bool IsOff(const void* value, socklen_t len) {
  int v = 0;
  if (len < sizeof v) return false;
  memcpy(&v, value, sizeof v);
  return len == sizeof v && v == 0;
}

uint32_t Number(int fd, int level, int name) {
  int v = 0;
  return KernelInt(fd, level, name, v) && v > 0 ? static_cast<uint32_t>(v) : 0;
}

// Puts a control message behind those that are there already.
class ControlWriter {
 public:
  explicit ControlWriter(msghdr& m) : m_(m), room_(m.msg_controllen) { m.msg_controllen = 0; }
  void Put(int level, int type, const void* data, size_t bytes) {
    msghdr part = m_;
    part.msg_control = static_cast<uint8_t*>(m_.msg_control) + used_;
    part.msg_controllen = room_ - used_;
    if (m_.msg_control == nullptr) part.msg_control = nullptr;
    PutControl(part, level, type, data, bytes);
    m_.msg_flags = part.msg_flags;
    used_ += part.msg_controllen;
    m_.msg_controllen = used_;
  }

 private:
  msghdr& m_;
  const size_t room_;
  size_t used_ = 0;
};

}  // namespace

long DatagramSetOpt(Family& fam, int fd, pstn_ep& ep, int level, int name, const void* value,
                    socklen_t len) {
  const long r = sys::Call(SYS_setsockopt, fd, static_cast<long>(level), static_cast<long>(name),
                           value, static_cast<long>(len));
  const Concern concern = ConcernOf(ep, level, name);
  if (r < 0 || concern == Concern::kNone) return r;
  Guard setup(ep.setup_lock);
  if (concern == Concern::kKernel) {
    if (IsOff(value, len)) return r;
    FetchOr(ep.flags, PSTN_EPF_KERNEL_OPTIONS);
    if (LoadRelaxed(ep.wire) != 0) DatagramLeave(fam, ep, kReasonOption);
    return r;
  }
  const bool ttl = (level == IPPROTO_IP && name == IP_TTL) ||
                   (level == IPPROTO_IPV6 && name == IPV6_UNICAST_HOPS);
  FetchOr(ep.opt_set, ttl ? kSetTtl : kSetOther);
  const DatagramGuard g(fam, ep);
  if (g.ok()) DatagramLearnOptions(fd, ep, g.socket());
  return r;
}

void DatagramLearnOptions(int fd, const pstn_ep& ep, stack::DatagramSocket& s) {
  udp::Endpoint& e = s.e;
  const bool v4 = ep.family == AF_INET;
  const int level = v4 ? IPPROTO_IP : IPPROTO_IPV6;
  if (const uint32_t bytes = Number(fd, SOL_SOCKET, SO_RCVBUF); bytes != 0) e.rcvbuf_bytes = bytes;
  // Of IPv6 nothing is fragmented on the way; an AF_INET6 socket's IPv4 is by the host's default.
  e.mtu_discover = static_cast<uint8_t>(Number(fd, IPPROTO_IP, IP_MTU_DISCOVER));
  const uint32_t was_set = LoadRelaxed(ep.opt_set);
  if (was_set == 0) return;
  e.ttl = (was_set & kSetTtl) != 0
              ? static_cast<uint8_t>(Number(fd, level, v4 ? IP_TTL : IPV6_UNICAST_HOPS))
              : uint8_t{0};
  e.tos = static_cast<uint8_t>(Number(fd, level, v4 ? IP_TOS : IPV6_TCLASS));
  s.wants = (Number(fd, level, v4 ? IP_PKTINFO : IPV6_RECVPKTINFO) != 0 ? kWantsPktinfo : 0) |
            (Number(fd, level, v4 ? IP_RECVTTL : IPV6_RECVHOPLIMIT) != 0 ? kWantsTtl : 0) |
            (Number(fd, level, v4 ? IP_RECVTOS : IPV6_RECVTCLASS) != 0 ? kWantsTos : 0);
}

long DatagramGetOpt(Family& fam, pstn_ep& ep, int level, int name, void* value, socklen_t* len) {
  if (level != SOL_SOCKET || name != SO_ERROR || BadPointer(value) || BadPointer(len) ||
      *len < sizeof(int) || (DatagramReadiness(fam, ep) & EPOLLERR) == 0)
    return kPass;
  int error = 0;
  {
    const DatagramGuard g(fam, ep);
    if (g.ok()) error = g.all().TakeError(g.idx());
  }
  if (error == 0) return kPass;
  memcpy(value, &error, sizeof error);
  *len = sizeof error;
  return 0;
}

void DatagramControl(uint32_t family, uint32_t wants, const udp::ReceiveInfo& info, msghdr& m) {
  ControlWriter to(m);
  if (wants == 0) return;
  const int ttl = info.ttl, tos = info.tos;
  if (family == AF_INET) {
    in_pktinfo where = {};
    where.ipi_ifindex = static_cast<int>(info.ifindex);
    memcpy(&where.ipi_addr, info.dest.v4(), sizeof where.ipi_addr);
    where.ipi_spec_dst = where.ipi_addr;
    if ((wants & kWantsPktinfo) != 0) to.Put(IPPROTO_IP, IP_PKTINFO, &where, sizeof where);
    if ((wants & kWantsTtl) != 0) to.Put(IPPROTO_IP, IP_TTL, &ttl, sizeof ttl);
    if ((wants & kWantsTos) != 0) to.Put(IPPROTO_IP, IP_TOS, &info.tos, sizeof info.tos);
    return;
  }
  in6_pktinfo where = {};
  memcpy(&where.ipi6_addr, info.dest.bytes, sizeof info.dest.bytes);
  where.ipi6_ifindex = info.ifindex;
  if ((wants & kWantsPktinfo) != 0) to.Put(IPPROTO_IPV6, IPV6_PKTINFO, &where, sizeof where);
  if (info.source.IsV4()) return;  // Linux says no more of IPv4 there
  if ((wants & kWantsTtl) != 0) to.Put(IPPROTO_IPV6, IPV6_HOPLIMIT, &ttl, sizeof ttl);
  if ((wants & kWantsTos) != 0) to.Put(IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof tos);
}

// One message that names an address of ours, as an answer from the address that was asked does.
bool DatagramWish(Family& fam, const msghdr& m, udp::SendArgs& args) {
  cmsghdr c;
  if (BadPointer(m.msg_control) || m.msg_controllen < sizeof c) return false;
  memcpy(&c, m.msg_control, sizeof c);
  const auto* data = static_cast<const uint8_t*>(m.msg_control) + CMSG_LEN(0);
  if (c.cmsg_len > m.msg_controllen || m.msg_controllen > CMSG_ALIGN(c.cmsg_len)) return false;
  if (c.cmsg_level == IPPROTO_IP && c.cmsg_type == IP_PKTINFO &&
      c.cmsg_len == CMSG_LEN(sizeof(in_pktinfo))) {
    in_pktinfo where;
    memcpy(&where, data, sizeof where);
    args.source = Ipv4At(&where.ipi_spec_dst);
    args.ifindex = static_cast<uint32_t>(where.ipi_ifindex);
  } else if (c.cmsg_level == IPPROTO_IPV6 && c.cmsg_type == IPV6_PKTINFO &&
             c.cmsg_len == CMSG_LEN(sizeof(in6_pktinfo))) {
    in6_pktinfo where;
    memcpy(&where, data, sizeof where);
    args.source = IpAt(&where.ipi6_addr);
    args.ifindex = where.ipi6_ifindex;
  } else {
    return false;
  }
  const pstn_dir* dir = LoadAcquire(fam.dir);  // [T4]
  return dir != nullptr && (args.source.IsAny() || IsLocalAddress(*dir, NameOf(args.source, 0)));
}

}  // namespace postern
