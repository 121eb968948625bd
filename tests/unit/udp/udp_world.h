// SPDX-License-Identifier: Apache-2.0
// udp_world.h - a host for lib/udp in one process: packets with reference counts, a wire that keeps
// what is sent, routes that a test sets. For unit tests and the fuzzer.
#pragma once
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/iov.h"
#include "udp/udp.h"

namespace postern::udp {

inline constexpr IpAddress kHere = IpAddress::V4(10, 0, 0, 1), kThere = IpAddress::V4(10, 0, 0, 2);
inline constexpr IpAddress kElsewhere = IpAddress::V4(10, 0, 0, 3);
inline constexpr IpAddress kGroup = IpAddress::V4(239, 1, 2, 3);
inline constexpr IpAddress kBroadcast = IpAddress::V4(10, 0, 0, 255);
inline constexpr IpAddress kHere6 = {{0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
inline constexpr IpAddress kThere6 = {{0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}};

// A table whose entries are taken and given back, each at most once.
template <typename T>
struct Table {
  std::vector<T> slots;
  std::vector<bool> taken;
  uint32_t used = 0;
  bool broken = false;

  explicit Table(uint32_t size) : slots(size), taken(size) {}
  uint32_t Take() {
    for (uint32_t i = 0; i < slots.size(); i++) {
      if (taken[i]) continue;
      taken[i] = true;
      memset(static_cast<void*>(&slots[i]), 0xee, sizeof(T));
      used++;
      return i;
    }
    return kNone;
  }
  void Give(uint32_t i) {
    broken |= i >= slots.size() || !taken[i];
    if (broken) return;
    taken[i] = false;
    used--;
  }
  T& At(uint32_t i) {
    broken |= i >= slots.size() || !taken[i];
    return slots[broken ? 0 : i];
  }
};

struct Sent {
  DatagramOut out;
  std::string payload;
};

class World final : public Host {
 public:
  Ports ports;
  std::vector<Endpoint> endpoints;
  Table<Received> received;
  Table<Failed> failed;
  Table<Member> members;
  std::vector<std::string> packets;
  std::vector<int> references;
  std::vector<Sent> wire;
  std::vector<std::pair<uint32_t, Event>> woken;
  int groups = 0;  // memberships that the interfaces know of
  // What the next calls answer.
  RouteAnswer route = {{}, 7, 1500, 1500, Cast::kUnicast, false};
  int route_error = 0;
  RouteQuery asked = {};
  uint32_t wire_room = ~0u;
  uint16_t next_port = 40000;
  IpAddress mtu_dest = {};
  uint32_t mtu_bytes = 0;

  explicit World(uint32_t endpoint_count = 32, uint32_t table = 256)
      : endpoints(endpoint_count), received(table), failed(table), members(64) {
    InitPorts(ports, {11, 22});
    for (Endpoint& e : endpoints) udp::Open(e, AF_INET, 1000);
  }

  uint32_t Open(uint16_t family = AF_INET) {
    udp::Open(endpoints[next_], family, 1000);
    return next_++;
  }
  uint32_t Bound(const IpAddress& local, uint16_t port, uint16_t family = AF_INET) {
    const uint32_t idx = Open(family);
    Bind(ports, idx, local, port, *this);
    return idx;
  }
  uint32_t Group(uint16_t port) {
    const uint32_t idx = Open();
    endpoints[idx].flags |= kReusePort;
    Bind(ports, idx, {}, port, *this);
    return idx;
  }
  uint32_t Packet(std::string payload) {
    packets.push_back(std::move(payload));
    references.push_back(1);
    return static_cast<uint32_t>(packets.size() - 1);
  }
  static DatagramIn From(const IpAddress& source, uint16_t source_port, const IpAddress& dest,
                         uint16_t dest_port) {
    DatagramIn in;
    in.source = source;
    in.dest = dest;
    in.source_port = source_port;
    in.dest_port = dest_port;
    in.ifindex = 7;
    in.ttl = 61;
    return in;
  }
  Verdict Arrive(DatagramIn in, const std::string& payload = "x") {
    in.packet = Packet("head" + payload);
    in.off = 4;
    in.bytes = static_cast<uint32_t>(payload.size());
    const Verdict verdict = Input(ports, in, *this);
    Drop(in.packet);
    return verdict;
  }
  // What is queued at an endpoint, each datagram's payload followed by '|'.
  std::string All(uint32_t idx) {
    std::string all;
    for (;;) {
      ReceiveInfo info;
      const auto [bytes, text] = Get(idx, info);
      if (bytes < 0) return all;
      all += text + "|";
    }
  }
  std::pair<int64_t, std::string> Get(uint32_t idx, ReceiveInfo& info, size_t room = 70000,
                                      bool peek = false) {
    std::string buffer(room, '#');
    const iovec iov = {buffer.data(), room};
    const int64_t bytes = Receive(idx, {&iov, 1, peek}, info, *this);
    buffer.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
    return {bytes, buffer};
  }
  int64_t Put(uint32_t idx, const std::string& payload, SendArgs args = {}) {
    const iovec iov = {const_cast<char*>(payload.data()), payload.size()};
    args.iov = &iov;
    args.iov_count = 1;
    return Send(ports, idx, args, *this);
  }
  static SendArgs To(const IpAddress& dest, uint16_t port) {
    SendArgs args;
    args.has_dest = true;
    args.dest = dest;
    args.dest_port = port;
    return args;
  }
  // Every packet has only the references that queues have.
  bool Balanced() const {
    std::vector<int> expected(packets.size());
    for (size_t i = 0; i < received.slots.size(); i++) {
      if (received.taken[i]) expected[received.slots[i].packet]++;
    }
    for (size_t i = 0; i < failed.slots.size(); i++) {
      if (failed.taken[i] && failed.slots[i].packet != kNone) expected[failed.slots[i].packet]++;
    }
    return expected == references && !received.broken && !failed.broken && !members.broken;
  }

  // ---- Host
  bool Transmit(const DatagramOut& out) override {
    if (wire_room == 0) return false;
    if (wire_room != ~0u) wire_room--;
    IovCursor from(out.iov, out.iov_count);
    from.Skip(out.skip);
    std::string payload(out.bytes, 0);
    from.CopyOut(reinterpret_cast<uint8_t*>(payload.data()), out.bytes);
    wire.push_back({out, std::move(payload)});
    return true;
  }
  int Route(const RouteQuery& query, RouteAnswer& answer) override {
    asked = query;
    answer = route;
    if (answer.source.IsAny()) answer.source = query.dest.IsV4() ? kHere : kHere6;
    if (!query.source.IsAny()) answer.source = query.source;
    if (query.ifindex != 0) answer.ifindex = query.ifindex;
    return route_error;
  }
  void PathMtu(const IpAddress& dest, uint32_t bytes) override {
    mtu_dest = dest;
    mtu_bytes = bytes;
  }
  uint16_t TakePort(uint32_t) override { return next_port == 0 ? uint16_t{0} : next_port++; }
  void Wake(uint32_t idx, Event event) override { woken.emplace_back(idx, event); }
  void GroupChanged(const IpAddress&, uint32_t, bool joined) override { groups += joined ? 1 : -1; }
  bool Keep(uint32_t packet) override {
    if (keep_none) return false;
    references[packet]++;
    return true;
  }
  void Drop(uint32_t packet) override { references[packet]--; }
  const uint8_t* PacketAt(uint32_t packet, uint32_t off) override {
    return reinterpret_cast<const uint8_t*>(packets[packet].data()) + off;
  }
  Endpoint& EndpointAt(uint32_t idx) override { return endpoints.at(idx); }
  uint32_t TakeReceived() override { return received.Take(); }
  void GiveReceived(uint32_t idx) override { received.Give(idx); }
  Received& ReceivedAt(uint32_t idx) override { return received.At(idx); }
  uint32_t TakeFailed() override { return failed.Take(); }
  void GiveFailed(uint32_t idx) override { failed.Give(idx); }
  Failed& FailedAt(uint32_t idx) override { return failed.At(idx); }
  uint32_t TakeMember() override { return members.Take(); }
  void GiveMember(uint32_t idx) override { members.Give(idx); }
  Member& MemberAt(uint32_t idx) override { return members.At(idx); }

  bool keep_none = false;

 private:
  uint32_t next_ = 0;
};

}  // namespace postern::udp
