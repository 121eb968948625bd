// SPDX-License-Identifier: Apache-2.0
// udp_endpoint.cc - the life of a UDP endpoint: open, bind, connect, disconnect, close.
#include <errno.h>
#include <sys/socket.h>

#include "udp/parts.h"

namespace postern::udp {
namespace {

constexpr uint32_t kRcvbufDefault = 212992;  // net.core.rmem_default

}  // namespace

void Open(Endpoint& e, uint16_t family, uint32_t uid) {
  e = {};
  e.family = family;
  e.uid = uid;
  e.flags = kMulticastAll | kMulticastLoop;
  e.multicast_ttl = 1;
  e.mtu_discover = kPmtuWant;
  e.port_next = e.tuple_next = e.member_head = kNone;
  e.rx_head = e.rx_tail = e.err_head = e.err_tail = kNone;
  e.rcvbuf_bytes = kRcvbufDefault;
}

int Bind(Ports& ports, uint32_t idx, const IpAddress& local, uint16_t port, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  if (Has(e, kBound) || port == 0) return -EINVAL;
  const bool any = local.IsAny();
  if (!any && local.IsV4() != (e.family == AF_INET) && (e.family == AF_INET || Has(e, kV6Only)))
    return -EINVAL;
  e.local = any ? IpAddress{} : local;
  e.local_port = port;
  if (!any) e.flags |= kBoundAddress;
  AddPort(ports, idx, host);
  return 0;
}

int EnsurePort(Ports& ports, uint32_t idx, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  if (Has(e, kBound)) return 0;
  const uint16_t port = host.TakePort(idx);
  if (port == 0) return -EAGAIN;
  e.local_port = port;
  e.flags |= kAutoPort;
  AddPort(ports, idx, host);
  return 0;
}

int Reachable(const Endpoint& e, IpAddress& dest) {
  if (dest.IsAny())
    dest =
        e.family == AF_INET || dest.IsV4() ? IpAddress::V4(127, 0, 0, 1) : IpAddress::Loopback6();
  if (e.family == AF_INET) return dest.IsV4() ? 0 : -EAFNOSUPPORT;
  return dest.IsV4() && Has(e, kV6Only) ? -ENETUNREACH : 0;
}

int Connect(Ports& ports, uint32_t idx, const IpAddress& remote, uint16_t port, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  IpAddress dest = remote;
  if (const int error = Reachable(e, dest); error != 0) return error;
  const uint32_t device = e.ifindex == 0 && dest.IsMulticast() ? e.multicast_ifindex : e.ifindex;
  RouteAnswer route = {};
  if (const int error = host.Route({e.local, dest, device, e.tos}, route); error != 0)
    return -error;
  if (route.cast == Cast::kBroadcast && !Has(e, kBroadcastAllowed)) return -EACCES;
  if (const int error = EnsurePort(ports, idx, host); error != 0) return error;
  RemoveTuple(ports, idx, host);
  // The address stays what it was at the first connect(), as in Linux, until it is disconnected.
  if (e.local.IsAny()) e.local = route.source;
  e.remote = dest;
  e.remote_port = port;
  AddTuple(ports, idx, host);
  return 0;
}

void Disconnect(Ports& ports, uint32_t idx, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  RemoveTuple(ports, idx, host);
  e.remote = {};
  e.remote_port = 0;
  if (!Has(e, kBoundAddress)) e.local = {};
  if (!Has(e, kAutoPort)) return;
  RemovePort(ports, idx, host);
  e.flags &= ~kAutoPort;
  e.local_port = 0;
}

void Close(Ports& ports, uint32_t idx, Host& host) {
  RemoveTuple(ports, idx, host);
  RemovePort(ports, idx, host);
  Endpoint& e = host.EndpointAt(idx);
  LeaveAll(e, host);
  EmptyQueues(e, host);
  e.flags |= kShutRead | kShutWrite;
}

void Rechain(Ports& ports, uint32_t idx, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  const uint32_t flags = e.flags;
  e.flags &= ~(kBound | kConnected);
  e.port_next = e.tuple_next = kNone;
  if (e.local_port != 0) AddPort(ports, idx, host);
  if ((flags & kConnected) != 0) AddTuple(ports, idx, host);
}

int TakeError(Endpoint& e) {
  const int error = e.error;
  e.error = 0;
  return error;
}

}  // namespace postern::udp
