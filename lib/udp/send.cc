// SPDX-License-Identifier: Apache-2.0
// send.cc - what goes out: whereto, how long it may be, whether it may be fragmented, and one
// buffer as many datagrams (UDP_SEGMENT).
//
//   IP_MTU_DISCOVER   limit              don't-fragment bit    longer than that
//   dont              64 KiB             no                    fragmented here (path MTU)
//   want (default)    64 KiB             if it fits the path   fragmented here
//   do                path MTU           yes                   EMSGSIZE
//   probe             interface's MTU    yes                   EMSGSIZE
//   interface         interface's MTU    no                    EMSGSIZE
//   omit              64 KiB             no                    fragmented here (interface's MTU)
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

#include "udp/parts.h"

namespace postern::udp {
namespace {

constexpr uint64_t kGsoCountMax = 128;  // UDP_MAX_SEGMENTS
constexpr uint8_t kTtlDefault = 64;
constexpr uint8_t kOriginLocal = 1;  // SO_EE_ORIGIN_LOCAL

// Beyond any datagram it does not matter by how much.
uint64_t TotalBytes(const SendArgs& args) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < args.iov_count; i++)
    total += std::min<uint64_t>(args.iov[i].iov_len, UINT32_MAX);
  return total;
}

struct Plan {
  DatagramOut out;
  RouteAnswer route;
  uint32_t total, gso;  // gso: bytes of each datagram
  uint32_t headers;     // of IP and UDP
  uint32_t mtu;         // the one that counts for this endpoint
  bool may_fragment;
};

int Destination(const Endpoint& e, const SendArgs& args, Plan& plan) {
  plan.out.dest = e.remote;
  plan.out.dest_port = e.remote_port;
  if (!args.has_dest) return Has(e, kConnected) ? 0 : -EDESTADDRREQ;
  if (args.dest_port == 0) return -EINVAL;
  plan.out.dest = args.dest;
  plan.out.dest_port = args.dest_port;
  return Reachable(e, plan.out.dest);
}

int Routed(const Endpoint& e, const SendArgs& args, Host& host, Plan& plan) {
  DatagramOut& out = plan.out;
  const bool multicast = out.dest.IsMulticast();
  out.tos = args.tos >= 0 ? static_cast<uint8_t>(args.tos) : e.tos;
  uint32_t device = args.ifindex != 0 ? args.ifindex : e.ifindex;
  if (device == 0 && multicast) device = e.multicast_ifindex;
  // A packet must not leave a bound endpoint by another device.
  if (e.ifindex != 0 && device != e.ifindex) return -EINVAL;
  const IpAddress source = args.source.IsAny() ? e.local : args.source;
  // A socket that is bound to a group, to hear only that, does not send from there.
  const IpAddress wanted = source.IsMulticast() ? IpAddress{} : source;
  if (const int error = host.Route({wanted, out.dest, device, out.tos}, plan.route); error != 0)
    return -error;
  if (plan.route.cast == Cast::kBroadcast && !Has(e, kBroadcastAllowed)) return -EACCES;
  const uint8_t unicast_ttl = e.ttl != 0 ? e.ttl : kTtlDefault;
  out.ttl =
      args.ttl >= 0 ? static_cast<uint8_t>(args.ttl) : (multicast ? e.multicast_ttl : unicast_ttl);
  out.loop = multicast && plan.route.joined && Has(e, kMulticastLoop);
  out.source = plan.route.source;
  out.ifindex = plan.route.ifindex;
  return 0;
}

void Limits(const Endpoint& e, Plan& plan) {
  const bool v4 = plan.out.dest.IsV4();
  plan.headers = kHeaderBytes + (v4 ? kIpv4HeaderBytes : kIpv6HeaderBytes);
  plan.mtu = e.mtu_discover < kPmtuProbe ? std::min(plan.route.path_mtu_bytes, plan.route.mtu_bytes)
                                         : plan.route.mtu_bytes;
  plan.may_fragment = e.mtu_discover < kPmtuDo || e.mtu_discover == kPmtuOmit;
}

// Linux tells of a datagram that is too long in the errors queue, too: with the MTU.
int TooLong(uint32_t idx, const Plan& plan, Host& host) {
  if (!Has(host.EndpointAt(idx), kRecvErr)) return -EMSGSIZE;
  Failed f = {};
  f.dest = plan.out.dest;
  f.dest_port = plan.out.dest_port;
  f.origin = kOriginLocal;
  f.error = EMSGSIZE;
  f.info = plan.mtu;
  f.packet = kNone;
  EnqueueError(idx, f, host);
  host.Wake(idx, Event::kError);
  return -EMSGSIZE;
}

int CheckLength(uint32_t idx, const Plan& plan, bool segmented, Host& host) {
  const Endpoint& e = host.EndpointAt(idx);
  const uint32_t most = plan.out.dest.IsV4() ? kPayloadMax : kPayloadMax6;
  if (segmented) {
    // Each of them must fit: datagrams of a train are not fragmented.
    if (uint64_t{plan.headers} + std::min(plan.gso, plan.total) > plan.mtu) return -EMSGSIZE;
    if (plan.total > kGsoCountMax * plan.gso || Has(e, kNoChecksumOut)) return -EINVAL;
    return plan.total > most ? TooLong(idx, plan, host) : 0;
  }
  const uint32_t fits = plan.mtu > plan.headers ? plan.mtu - plan.headers : 0;
  return plan.total > (plan.may_fragment ? most : fits) ? TooLong(idx, plan, host) : 0;
}

bool DontFragment(const Endpoint& e, const Plan& plan, uint32_t bytes) {
  if (e.mtu_discover == kPmtuDo || e.mtu_discover == kPmtuProbe) return true;
  return e.mtu_discover == kPmtuWant && bytes + plan.headers <= plan.mtu;
}

int64_t Emit(const Endpoint& e, Plan& plan, Host& host) {
  DatagramOut& out = plan.out;
  uint32_t done = 0;
  do {
    out.skip = done;
    out.bytes = std::min(plan.gso, plan.total - done);
    out.dont_fragment = DontFragment(e, plan, out.bytes);
    if (!host.Transmit(out)) return done == 0 ? int64_t{-EAGAIN} : plan.total;
    done += out.bytes;
  } while (done < plan.total);
  return plan.total;
}

}  // namespace

int64_t Send(Ports& ports, uint32_t idx, const SendArgs& args, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  const uint64_t total = TotalBytes(args);
  if (total > UINT16_MAX) return -EMSGSIZE;
  Plan plan = {};
  plan.total = static_cast<uint32_t>(total);
  if (Has(e, kShutWrite)) return -EPIPE;
  if (const int error = Destination(e, args, plan); error != 0) return error;
  if (args.gso_bytes > UINT16_MAX || args.ttl > UINT8_MAX || args.tos > UINT8_MAX) return -EINVAL;
  if (const int error = EnsurePort(ports, idx, host); error != 0) return error;
  if (const int error = Routed(e, args, host, plan); error != 0) return error;
  if (e.error != 0) return -TakeError(e);
  Limits(e, plan);
  const uint32_t gso = args.gso_bytes >= 0 ? static_cast<uint32_t>(args.gso_bytes) : e.gso_bytes;
  plan.gso = gso != 0 ? gso : UINT16_MAX;
  if (const int error = CheckLength(idx, plan, gso != 0, host); error != 0) return error;
  DatagramOut& out = plan.out;
  out.source_port = e.local_port;
  out.no_checksum = Has(e, kNoChecksumOut);
  out.confirm = args.confirm;
  out.iov = args.iov;
  out.iov_count = args.iov_count;
  return Emit(e, plan, host);
}

}  // namespace postern::udp
