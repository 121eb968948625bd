// SPDX-License-Identifier: Apache-2.0
// udp_endpoint.h - what is kept of a UDP socket: plain memory that processes share, indices, no
// bool.
//
//   Ports ── by local port ──> endpoint ─ port_next ─> endpoint ...     newest first
//         └─ by 4-tuple ─────> endpoint ─ tuple_next ─> ...             connected ones only
//   endpoint ── rx_head ─> Received ─ next ─> ... <─ rx_tail            payload stays in its packet
//            ├─ err_head ─> Failed ─ next ─> ...                        IP_RECVERR
//            └─ member_head ─> Member ─ next ─> ...                     joined groups
//
// All under the lock of the stack's owner.
#pragma once
#include <cstdint>

#include "base/siphash.h"
#include "udp/datagram_values.h"

namespace postern::udp {

inline constexpr uint32_t kNone = ~0u;
inline constexpr uint32_t kBuckets = 256;

// Ports of a stack.
struct Ports {
  uint32_t by_port[kBuckets];   // endpoints, by local port; kNone: empty
  uint32_t by_tuple[kBuckets];  // connected ones, by a keyed hash of both ends
  uint32_t connected_count;     // 0: by_tuple need not be looked at
  uint32_t pad;
  SipKey secret;  // drawn by the stack's maker: no outsider can fill one bucket
};

// Endpoint::flags, socket options and state.
inline constexpr uint32_t kBound = 1u << 0, kConnected = 1u << 1;
inline constexpr uint32_t kBoundAddress = 1u << 2;  // by bind(): disconnecting keeps it
inline constexpr uint32_t kReusePort = 1u << 3, kV6Only = 1u << 4, kBroadcastAllowed = 1u << 5;
inline constexpr uint32_t kMulticastAll = 1u << 6;    // IP_MULTICAST_ALL: groups of others, too
inline constexpr uint32_t kMulticastLoop = 1u << 7;   // IP_MULTICAST_LOOP
inline constexpr uint32_t kRecvErr = 1u << 8;         // IP_RECVERR
inline constexpr uint32_t kGro = 1u << 9;             // UDP_GRO
inline constexpr uint32_t kNoChecksumOut = 1u << 10;  // SO_NO_CHECK, UDP_NO_CHECK6_TX
inline constexpr uint32_t kNoChecksum6In = 1u << 11;  // UDP_NO_CHECK6_RX
inline constexpr uint32_t kShutRead = 1u << 12, kShutWrite = 1u << 13;
inline constexpr uint32_t kAutoPort = 1u << 14;  // not by bind(): disconnecting gives it back

// IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, Linux's numbers.
inline constexpr uint8_t kPmtuDont = 0, kPmtuWant = 1, kPmtuDo = 2, kPmtuProbe = 3,
                         kPmtuInterface = 4, kPmtuOmit = 5;

struct Endpoint {
  IpAddress local, remote;  // all zero: any, none
  uint16_t local_port, remote_port;
  uint16_t family;     // AF_INET or AF_INET6
  uint16_t gso_bytes;  // UDP_SEGMENT; 0: off
  uint32_t flags;
  uint32_t ifindex;  // SO_BINDTODEVICE; 0: any
  uint32_t uid;      // whose reuse-port group it may be in
  int32_t error;     // SO_ERROR, positive; 0: none
  uint8_t ttl;       // unicast; 0: the default
  uint8_t multicast_ttl;
  uint8_t tos, mtu_discover;
  uint32_t multicast_ifindex;  // IP_MULTICAST_IF; 0: as routed
  // ---- chains
  uint32_t port_next, tuple_next;
  uint32_t member_head;
  uint32_t rx_head, rx_tail, rx_count;
  uint32_t err_head, err_tail;
  uint32_t rcvbuf_bytes;   // SO_RCVBUF as Linux keeps it: twice what was asked for
  uint32_t charged_bytes;  // both queues, as DatagramCost() has it
  uint32_t drops;          // datagrams dropped, the queue being full; SO_RXQ_OVFL's counter
};

// A datagram that waits to be received.
struct Received {
  IpAddress source, dest;
  uint16_t source_port;
  uint8_t tos, ttl;
  uint32_t ifindex;
  uint32_t packet, off, bytes;
  uint32_t cost;
  uint32_t drops;  // Endpoint::drops when it was queued
  uint32_t next;
  uint64_t arrived_ns;
};

// An error that waits in the errors queue.
struct Failed {
  IpAddress dest, from;  // where the datagram went; the sender of the error, any: we are
  uint16_t dest_port;
  uint8_t origin, type, code, pad;  // SO_EE_ORIGIN_*
  uint16_t pad2;
  int32_t error;
  uint32_t info;
  uint32_t ifindex;
  uint32_t packet, off, bytes;  // kNone: no payload
  uint32_t cost;
  uint32_t next;
};

// A group that an endpoint has joined on an interface, and the sources it wants to hear there.
inline constexpr uint32_t kMembersMax = 20;  // Linux's igmp_max_memberships
inline constexpr uint32_t kSourcesMax = 10;  // and igmp_max_msf
struct Member {
  IpAddress group;
  IpAddress source[kSourcesMax];
  uint32_t ifindex;
  uint32_t source_count;
  uint32_t include;  // 1: from the sources alone (IP_ADD_SOURCE_MEMBERSHIP); 0: all but the sources
  uint32_t next;
};

// What a datagram counts for against SO_RCVBUF: about what Linux charges (its skb and the power of
// two that holds headers, payload and skb_shared_info), so that a buffer size that a program was
// tuned with means as many datagrams here.
constexpr uint32_t DatagramCost(uint32_t bytes) {
  constexpr uint32_t kSkb = 256, kAround = 384, kPage = 4096;
  uint32_t held = 512;
  while (held < bytes + kAround && held < 4 * kPage) held *= 2;
  if (held < bytes + kAround) held = (bytes + kAround + kPage - 1) / kPage * kPage;
  return kSkb + held;
}

}  // namespace postern::udp
