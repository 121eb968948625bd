// SPDX-License-Identifier: Apache-2.0
// parts.h - what the files of lib/udp ask of each other.
#pragma once
#include "udp/udp.h"

namespace postern::udp {

inline bool Has(const Endpoint& e, uint32_t flag) { return (e.flags & flag) != 0; }

// ---- find_endpoint.cc: chains. An endpoint is in by_port while kBound, in by_tuple while
// kConnected.
void AddPort(Ports& ports, uint32_t idx, Host& host);
void RemovePort(Ports& ports, uint32_t idx, Host& host);
void AddTuple(Ports& ports, uint32_t idx, Host& host);
void RemoveTuple(Ports& ports, uint32_t idx, Host& host);
inline uint32_t PortBucket(uint16_t port) { return port % kBuckets; }
// Whether what was sent to `in.dest` may be for it at all: port, family, local name, device.
bool MatchesLocal(const Endpoint& e, const DatagramIn& in);
bool MatchesRemote(const Endpoint& e, const DatagramIn& in);  // not connected: anybody

// ---- multicast.cc
bool WantsFrom(const Endpoint& e, const DatagramIn& in, Host& host);
void LeaveAll(Endpoint& e, Host& host);

// ---- queue.cc
bool Enqueue(uint32_t idx, const DatagramIn& in, Host& host);
// False: no room. The error is reported anyway, but without what belongs to it.
bool EnqueueError(uint32_t idx, const Failed& failed, Host& host);
void EmptyQueues(Endpoint& e, Host& host);

// ---- endpoint.cc: a port of the Host's choice, if it has none.
int EnsurePort(Ports& ports, uint32_t idx, Host& host);
// 0, -EAFNOSUPPORT, -ENETUNREACH. Any becomes the loopback address, as in Linux.
int Reachable(const Endpoint& e, IpAddress& dest);

}  // namespace postern::udp
