// SPDX-License-Identifier: Apache-2.0
// find_endpoint.cc - whose a datagram is: Linux's rules (compute_score, udp4_lib_lookup2) on two
// tables.
//
// One of several endpoints with one port gets a unicast datagram:
//   1. the connected one whose four names are the datagram's (bound to the device before others);
//   2. else one bound to just this address;
//   3. else one bound to any.
// Among equals of 2 and 3: bound to the device, then IPv4 before IPv6 (for IPv4), then the last one
// bound. If that is of a reuse-port group, a hash of the four names chooses among the group,
// so that a flow stays with one endpoint for as long as the group is the same.
//
// 1 is a look-up of its own, by a keyed hash: a server with a connected endpoint for each client
// would else walk all of them. 2 and 3 walk those that share the port.
#include <cstring>

#include "udp/parts.h"

#include <sys/socket.h>

namespace postern::udp {
namespace {

uint64_t TupleHash(const Ports& ports, const IpAddress& local, uint16_t local_port,
                   const IpAddress& remote, uint16_t remote_port) {
  uint8_t bytes[36];
  memcpy(bytes, &local, 16);
  memcpy(bytes + 16, &remote, 16);
  memcpy(bytes + 32, &local_port, 2);
  memcpy(bytes + 34, &remote_port, 2);
  return SipHash24(ports.secret, bytes);
}

uint32_t& TupleHead(Ports& ports, const Endpoint& e) {
  const uint64_t hash = TupleHash(ports, e.local, e.local_port, e.remote, e.remote_port);
  return ports.by_tuple[hash % kBuckets];
}

// Takes `idx` out of a chain that begins at `head`.
template <uint32_t Endpoint::*kNext>
void Unchain(uint32_t& head, uint32_t idx, Host& host) {
  for (uint32_t* at = &head; *at != kNone; at = &(host.EndpointAt(*at).*kNext)) {
    if (*at != idx) continue;
    *at = host.EndpointAt(idx).*kNext;
    return;
  }
}

bool SameGroup(const Endpoint& a, const Endpoint& b) {
  return Has(b, kReusePort) && !Has(b, kConnected) && a.local == b.local &&
         a.local_port == b.local_port && a.family == b.family && a.ifindex == b.ifindex &&
         a.uid == b.uid;
}

uint32_t Connected(const Ports& ports, const DatagramIn& in, uint64_t hash, Host& host) {
  uint32_t found = kNone;
  for (uint32_t i = ports.by_tuple[hash % kBuckets]; i != kNone;) {
    const Endpoint& e = host.EndpointAt(i);
    if (e.local == in.dest && MatchesLocal(e, in) && MatchesRemote(e, in)) {
      if (e.ifindex != 0) return i;
      if (found == kNone) found = i;
    }
    i = e.tuple_next;
  }
  return found;
}

// Of the group that `first` belongs to, the one that the hash means.
uint32_t ChooseOfGroup(const Ports& ports, uint32_t first, uint64_t hash, Host& host) {
  const Endpoint& e = host.EndpointAt(first);
  const uint32_t head = ports.by_port[PortBucket(e.local_port)];
  uint64_t count = 0;
  for (uint32_t i = head; i != kNone; i = host.EndpointAt(i).port_next)
    count += SameGroup(e, host.EndpointAt(i)) ? 1u : 0u;
  uint64_t left = (hash >> 32) * count >> 32;
  for (uint32_t i = head; i != kNone; i = host.EndpointAt(i).port_next) {
    if (SameGroup(e, host.EndpointAt(i)) && left-- == 0) return i;
  }
  return first;
}

}  // namespace

void InitPorts(Ports& ports, const SipKey& secret) {
  for (uint32_t& head : ports.by_port) head = kNone;
  for (uint32_t& head : ports.by_tuple) head = kNone;
  ports.connected_count = ports.pad = 0;
  ports.secret = secret;
}

void AddPort(Ports& ports, uint32_t idx, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  uint32_t& head = ports.by_port[PortBucket(e.local_port)];
  e.port_next = head;
  head = idx;
  e.flags |= kBound;
}

void RemovePort(Ports& ports, uint32_t idx, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  if (!Has(e, kBound)) return;
  Unchain<&Endpoint::port_next>(ports.by_port[PortBucket(e.local_port)], idx, host);
  e.port_next = kNone;
  e.flags &= ~kBound;
}

void AddTuple(Ports& ports, uint32_t idx, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  uint32_t& head = TupleHead(ports, e);
  e.tuple_next = head;
  head = idx;
  e.flags |= kConnected;
  ports.connected_count++;
}

void RemoveTuple(Ports& ports, uint32_t idx, Host& host) {
  Endpoint& e = host.EndpointAt(idx);
  if (!Has(e, kConnected)) return;
  Unchain<&Endpoint::tuple_next>(TupleHead(ports, e), idx, host);
  e.tuple_next = kNone;
  e.flags &= ~kConnected;
  ports.connected_count--;
}

bool MatchesLocal(const Endpoint& e, const DatagramIn& in) {
  if (e.local_port != in.dest_port) return false;
  if (e.family == AF_INET ? !in.dest.IsV4() : in.dest.IsV4() && Has(e, kV6Only)) return false;
  if (!e.local.IsAny() && e.local != in.dest) return false;
  return e.ifindex == 0 || e.ifindex == in.ifindex;
}

bool MatchesRemote(const Endpoint& e, const DatagramIn& in) {
  return !Has(e, kConnected) || (e.remote == in.source && e.remote_port == in.source_port);
}

uint32_t Lookup(const Ports& ports, const DatagramIn& in, Host& host) {
  const uint64_t hash = TupleHash(ports, in.dest, in.dest_port, in.source, in.source_port);
  if (ports.connected_count != 0) {
    const uint32_t found = Connected(ports, in, hash, host);
    if (found != kNone) return found;
  }
  uint32_t best = kNone, best_score = 0;
  for (uint32_t i = ports.by_port[PortBucket(in.dest_port)]; i != kNone;) {
    const Endpoint& e = host.EndpointAt(i);
    if (!Has(e, kConnected) && MatchesLocal(e, in)) {
      const uint32_t score = 1u + (e.local.IsAny() ? 0 : 4u) + (e.ifindex == 0 ? 0 : 2u) +
                             (e.family == AF_INET ? 1u : 0);
      if (score > best_score) {
        best = i;
        best_score = score;
      }
    }
    i = e.port_next;
  }
  if (best == kNone || !Has(host.EndpointAt(best), kReusePort)) return best;
  return ChooseOfGroup(ports, best, hash, host);
}

}  // namespace postern::udp
