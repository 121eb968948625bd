// SPDX-License-Identifier: Apache-2.0
// udp_host.h - what UDP needs of the world: routes, a wire, packets and tables.
//
// All calls happen under the lock of the stack's owner, from within a call to udp.h.
#pragma once
#include <cstdint>

#include "udp/udp_endpoint.h"

namespace postern::udp {

struct RouteQuery {
  IpAddress source, dest;  // source any: to be chosen
  uint32_t ifindex;        // 0: any
  uint8_t tos;
};
struct RouteAnswer {
  IpAddress source;
  uint32_t ifindex;
  uint32_t mtu_bytes;       // of the interface
  uint32_t path_mtu_bytes;  // of the path, as far as it is known
  Cast cast;                // what `dest` is there
  bool joined;              // kMulticast: this host is a member on that interface
};

enum class Event : uint8_t { kReadable, kError, kWritable };

class Host {
 public:
  // False: no room now (EAGAIN, or the caller waits). Takes what it needs of the payload at once.
  virtual bool Transmit(const DatagramOut& out) = 0;
  // 0, or ENETUNREACH, EHOSTUNREACH, EACCES (prohibited), EINVAL (the source isn't ours).
  virtual int Route(const RouteQuery& query, RouteAnswer& answer) = 0;
  virtual void PathMtu(const IpAddress& dest, uint32_t mtu_bytes) = 0;  // ICMP has said so
  // An unused port for an endpoint that sends without having been bound; 0: none.
  virtual uint16_t TakePort(uint32_t endpoint) = 0;
  virtual void Wake(uint32_t endpoint, Event event) = 0;
  // An endpoint has joined or left; the Host counts, and tells the interface of first and last.
  virtual void GroupChanged(const IpAddress& group, uint32_t ifindex, bool joined) = 0;

  // ---- packets: one more reference, one less. Keep() false: not to be had, it is dropped.
  virtual bool Keep(uint32_t packet) = 0;
  virtual void Drop(uint32_t packet) = 0;
  virtual const uint8_t* PacketAt(uint32_t packet, uint32_t off) = 0;

  // ---- tables. Take: kNone when there are none left.
  virtual Endpoint& EndpointAt(uint32_t idx) = 0;
  virtual uint32_t TakeReceived() = 0;
  virtual void GiveReceived(uint32_t idx) = 0;
  virtual Received& ReceivedAt(uint32_t idx) = 0;
  virtual uint32_t TakeFailed() = 0;
  virtual void GiveFailed(uint32_t idx) = 0;
  virtual Failed& FailedAt(uint32_t idx) = 0;
  virtual uint32_t TakeMember() = 0;
  virtual void GiveMember(uint32_t idx) = 0;
  virtual Member& MemberAt(uint32_t idx) = 0;

 protected:
  ~Host() = default;
};

}  // namespace postern::udp
