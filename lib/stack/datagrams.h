// SPDX-License-Identifier: Apache-2.0
// datagrams.h - the UDP sockets of a stack with VIs: what lib/udp asks of the world, and what the
// sockets' layer asks of lib/udp.
//
// Only what a VI can carry in one packet is done here. All else is left to the kernel's socket,
// which every UDP socket is besides (docs/adr/0012): Send() says kByKernel, fragments, groups and
// broadcasts are not steered to us.
//
// A part of the engine (engine.h): all of it happens under the wire segment's lock, but for what is
// said to be asked without.
#pragma once
#include "base/atomic.h"
#include "stack/datagram_state.h"
#include "udp/udp.h"
#include "vi/vi.h"
#include "wire/packet/icmp.h"
#include "wire/packet/packet.h"

namespace postern::stack {

class Engine;
struct WireState;

inline constexpr int64_t kByKernel = INT64_MIN;

class Datagrams final : public udp::Host {
 public:
  explicit Datagrams(Engine& engine) : engine_(engine) {}

  DatagramSocket& At(uint32_t idx);

  // ---- for the sockets' layer
  // One that is bound to `local`, the kernel's socket being bound to it. PSTN_NONE: no place.
  uint32_t Open(const pstn_addr& local, uint32_t family, uint32_t flags, uint32_t owner,
                uint32_t owner_gen);
  void Close(uint32_t idx);
  // As the kernel's socket is connected, or not any more. 0 or -errno: -EINVAL, it has another
  // port.
  int Connect(uint32_t idx, const pstn_addr& local, const pstn_addr& peer);
  int Disconnect(uint32_t idx, const pstn_addr& local);
  // It is the kernel's from now on. What waits can be received.
  void Leave(uint32_t idx);
  // Bytes, -errno, or kByKernel: nothing has been done, the kernel's socket can send it.
  int64_t Send(uint32_t idx, const udp::SendArgs& args);
  int64_t Receive(uint32_t idx, const udp::ReceiveArgs& args, udp::ReceiveInfo& info);
  int TakeError(uint32_t idx) { return udp::TakeError(At(idx).e); }
  // Without the lock: a moment's answer.
  bool IsReadable(uint32_t idx) { return LoadRelaxed(At(idx).e.rx_count) != 0; }
  bool HasError(uint32_t idx) { return LoadRelaxed(At(idx).e.error) != 0; }

  // ---- for the engine
  void Frame(const wire::Packet& p, const ViRx& rx, uint32_t vi);
  void Icmp(const uint8_t* frame, const wire::Packet& p, const wire::IcmpIn& in, uint32_t vi);
  // Between ReclaimBegin() and ReclaimEnd() of the area.
  void Recover();

  // ---- udp::Host
  bool Transmit(const udp::DatagramOut& out) override;
  int Route(const udp::RouteQuery& query, udp::RouteAnswer& answer) override;
  void PathMtu(const IpAddress&, uint32_t) override {}  // Icmp() sees to it
  uint16_t TakePort(uint32_t) override { return 0; }    // each is bound
  void Wake(uint32_t endpoint, udp::Event event) override;
  void GroupChanged(const IpAddress&, uint32_t, bool) override {}
  bool Keep(uint32_t packet) override;
  void Drop(uint32_t packet) override;
  const uint8_t* PacketAt(uint32_t packet, uint32_t off) override;
  udp::Endpoint& EndpointAt(uint32_t idx) override { return At(idx).e; }
  uint32_t TakeReceived() override;
  void GiveReceived(uint32_t idx) override;
  udp::Received& ReceivedAt(uint32_t idx) override;
  // IP_RECVERR and groups are the kernel's.
  uint32_t TakeFailed() override { return udp::kNone; }
  void GiveFailed(uint32_t) override {}
  udp::Failed& FailedAt(uint32_t) override { return no_failed_; }
  uint32_t TakeMember() override { return udp::kNone; }
  void GiveMember(uint32_t) override {}
  udp::Member& MemberAt(uint32_t) override { return no_member_; }

 private:
  DatagramTables& Tables();
  bool FindPath(DatagramSocket& s, const IpAddress& from, const IpAddress& to, uint16_t to_port);
  void ClaimQueue(uint32_t idx);

  Engine& engine_;
  const DatagramSocket* sending_ = nullptr;  // whose path Route() and Transmit() use
  udp::Failed no_failed_ = {};
  udp::Member no_member_ = {};
};

}  // namespace postern::stack
