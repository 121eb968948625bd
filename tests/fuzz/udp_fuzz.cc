// SPDX-License-Identifier: Apache-2.0
// udp_fuzz.cc - UDP endpoints in a small world: calls, datagrams and ICMP errors in any order.
//
// After each step: queues, counts and charges are what a walk finds, packets have the references
// that queues hold, chains hold each endpoint once, and Lookup() finds the endpoint that a plain
// search over all finds by Linux's rules.
//
//   clang: `./run fuzz` builds it with libFuzzer
//   else:  replay.h
#include "../unit/udp/udp_world.h"
#include "replay.h"

namespace postern::udp {
namespace {

[[maybe_unused]] constexpr size_t kInputMax = 400;
constexpr uint32_t kEndpoints = 8;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  uint32_t Next() { return empty() ? 0 : data_[at_++]; }
  uint32_t Below(uint32_t n) { return Next() % n; }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

constexpr IpAddress kNames[] = {{}, kHere, kThere, kElsewhere, kGroup, kBroadcast, kHere6, kThere6};

// Linux's order as a number, over all endpoints; the newest of equals has the largest `order`.
uint32_t Search(World& w, const DatagramIn& in, const std::vector<uint32_t>& order) {
  uint32_t best = kNone;
  uint64_t best_score = 0;
  for (uint32_t i = 0; i < kEndpoints; i++) {
    const Endpoint& e = w.endpoints[i];
    if ((e.flags & kBound) == 0 || e.local_port != in.dest_port) continue;
    const bool v4 = in.dest.IsV4();
    if (e.family == AF_INET ? !v4 : v4 && (e.flags & kV6Only) != 0) continue;
    if (!e.local.IsAny() && e.local != in.dest) continue;
    if (e.ifindex != 0 && e.ifindex != in.ifindex) continue;
    const bool connected = (e.flags & kConnected) != 0;
    if (connected && (e.remote != in.source || e.remote_port != in.source_port)) continue;
    const uint64_t score = (connected ? 1000u : 0) + (e.local.IsAny() ? 0 : 100u) +
                           (e.ifindex != 0 ? 10u : 0) + (e.family == AF_INET ? 1u : 0);
    if (best != kNone && score < best_score) continue;
    if (best != kNone && score == best_score && order[i] < order[best]) continue;
    best = i;
    best_score = score;
  }
  return best;
}

class Run {
 public:
  Run(const uint8_t* data, size_t size) : in_(data, size), w_(kEndpoints, 24), order_(kEndpoints) {
    for (uint32_t i = 0; i < kEndpoints; i++) Open(i);
  }
  void All() {
    while (!in_.empty()) {
      Step();
      Check();
    }
    for (uint32_t i = 0; i < kEndpoints; i++) Close(w_.ports, i, w_);
    FUZZ_CHECK(w_.received.used == 0 && w_.failed.used == 0 && w_.members.used == 0);
    FUZZ_CHECK(w_.groups == 0 && w_.ports.connected_count == 0 && w_.Balanced());
  }

 private:
  void Open(uint32_t i) { udp::Open(w_.endpoints[i], i % 2 == 0 ? AF_INET : AF_INET6, i / 4); }
  IpAddress Name() { return kNames[in_.Below(8)]; }
  uint16_t Port() { return static_cast<uint16_t>(in_.Below(4) * 256 + 1); }  // one bucket

  DatagramIn Datagram() {
    DatagramIn in;
    in.source = Name();
    in.dest = Name();
    in.source_port = Port();
    in.dest_port = Port();
    in.ifindex = in_.Below(3);
    in.checksum = static_cast<Checksum>(in_.Below(3));
    in.tos = static_cast<uint8_t>(in_.Below(2));
    in.cast = in.dest.IsMulticast()   ? Cast::kMulticast
              : in.dest == kBroadcast ? Cast::kBroadcast
                                      : Cast::kUnicast;
    return in;
  }

  void Names(uint32_t i) {
    Endpoint& e = w_.endpoints[i];
    w_.route.cast = static_cast<Cast>(in_.Below(3));
    w_.route_error = in_.Below(8) == 0 ? EHOSTUNREACH : 0;
    w_.next_port = Port();
    const uint32_t what = in_.Below(5);
    const uint32_t before = e.flags;
    if (what == 0) Bind(w_.ports, i, Name(), Port(), w_);
    // A route's source has the family of where it leads to; a bound endpoint has a source already.
    if (what == 1 || what == 2) Connect(w_.ports, i, Name(), Port(), w_);
    if (what == 3) Disconnect(w_.ports, i, w_);
    if (what == 4) {
      Close(w_.ports, i, w_);
      FUZZ_CHECK(e.rx_head == kNone && e.err_head == kNone && e.member_head == kNone);
      Open(i);
    }
    NoteOrder(i, before);
  }
  void NoteOrder(uint32_t i, uint32_t before) {
    const uint32_t after = w_.endpoints[i].flags;
    if ((before & kBound) == 0 && (after & kBound) != 0) order_[i] = ++clock_;
    if ((before & kConnected) == 0 && (after & kConnected) != 0) connected_[i] = ++clock_;
  }

  void Options(uint32_t i) {
    constexpr uint32_t kSettable[] = {kReusePort, kV6Only,   kBroadcastAllowed, kMulticastAll,
                                      kRecvErr,   kGro,      kNoChecksumOut,    kNoChecksum6In,
                                      kShutRead,  kShutWrite};
    Endpoint& e = w_.endpoints[i];
    e.flags ^= kSettable[in_.Below(10)];
    e.ifindex = in_.Below(3);
    e.mtu_discover = static_cast<uint8_t>(in_.Below(6));
    e.rcvbuf_bytes = in_.Below(20) * 1000;
    e.gso_bytes = static_cast<uint16_t>(in_.Below(3) * 50);
  }

  void Arriving() {
    const DatagramIn in = Datagram();
    if (w_.packets.size() > 2000) return;
    w_.keep_none = in_.Below(16) == 0;
    w_.Arrive(in, std::string(in_.Below(4) * 50, 'd'));
    w_.keep_none = false;
  }
  void Reading(uint32_t i) {
    ReceiveInfo info;
    const auto [bytes, text] = w_.Get(i, info, in_.Below(4) * 60, in_.Below(4) == 0);
    FUZZ_CHECK(bytes < 0 || static_cast<uint64_t>(bytes) <= info.bytes || info.bytes == 0);
    FUZZ_CHECK(text.find('#') == std::string::npos);  // nothing but what was copied
    std::string buffer(in_.Below(30), '#');
    const iovec iov = {buffer.data(), buffer.size()};
    ErrorInfo error;
    if (in_.Below(2) == 0) ReceiveError(i, {&iov, 1, false}, error, w_);
  }
  void Sending(uint32_t i) {
    SendArgs args;
    args.has_dest = in_.Below(2) == 0;
    args.dest = Name();
    args.dest_port = Port();
    args.ifindex = in_.Below(3);
    args.gso_bytes = static_cast<int>(in_.Below(4) * 40) - 1;
    w_.wire_room = in_.Below(5) == 0 ? in_.Below(3) : ~0u;
    w_.wire.clear();
    const std::string payload(in_.Below(4) * 500, 's');
    const uint32_t before = w_.endpoints[i].flags;
    const int64_t sent = w_.Put(i, payload, args);
    uint64_t on_wire = 0;
    for (const Sent& s : w_.wire) on_wire += s.payload.size();
    FUZZ_CHECK(sent < 0 ? w_.wire.empty() : sent == static_cast<int64_t>(payload.size()));
    FUZZ_CHECK(sent < 0 || on_wire == payload.size() || w_.wire_room == 0);
    NoteOrder(i, before);
  }
  void Icmps() {
    IcmpIn icmp;
    icmp.v6 = in_.Below(2) == 0;
    icmp.type = static_cast<uint8_t>(in_.Below(14));
    icmp.code = static_cast<uint8_t>(in_.Below(18));
    icmp.info = in_.Below(3) * 700;
    icmp.source = Name();
    icmp.dest = Name();
    icmp.source_port = Port();
    icmp.dest_port = Port();
    if (w_.packets.size() > 2000) return;
    icmp.packet = w_.Packet("quoted");
    icmp.bytes = in_.Below(7);
    Icmp(w_.ports, icmp, w_);
    w_.Drop(icmp.packet);
  }
  void Groups(uint32_t i) {
    const IpAddress group = Name();
    const uint32_t ifindex = in_.Below(3);
    const uint32_t what = in_.Below(6);
    if (what == 0) Join(i, group, ifindex, w_);
    if (what == 1) Leave(i, group, ifindex, w_);
    if (what >= 2) ChangeSource(i, group, Name(), ifindex, static_cast<SourceOp>(what - 2), w_);
  }

  void Step() {
    const uint32_t i = in_.Below(kEndpoints);
    switch (in_.Below(8)) {
      case 0:
      case 1:
        return Names(i);
      case 2:
        return Options(i);
      case 3:
      case 4:
        return Arriving();
      case 5:
        return Reading(i);
      case 6:
        return Sending(i);
      default:
        return in_.Below(2) == 0 ? Icmps() : Groups(i);
    }
  }

  void CheckQueues(const Endpoint& e) {
    uint32_t count = 0, charged = 0, tail = kNone;
    for (uint32_t r = e.rx_head; r != kNone; r = w_.ReceivedAt(r).next) {
      FUZZ_CHECK(++count <= 24);
      charged += w_.ReceivedAt(r).cost;
      tail = r;
    }
    FUZZ_CHECK(count == e.rx_count && tail == e.rx_tail);
    tail = kNone;
    for (uint32_t f = e.err_head; f != kNone; f = w_.FailedAt(f).next) {
      charged += w_.FailedAt(f).cost;
      tail = f;
    }
    FUZZ_CHECK(charged == e.charged_bytes && tail == e.err_tail);
  }
  uint32_t CountIn(const uint32_t (&heads)[kBuckets], uint32_t Endpoint::*next, uint32_t idx) {
    uint32_t found = 0;
    for (uint32_t head : heads) {
      for (uint32_t steps = 0; head != kNone; head = w_.endpoints[head].*next) {
        FUZZ_CHECK(++steps <= kEndpoints);
        found += head == idx ? 1 : 0;
      }
    }
    return found;
  }
  void Check() {
    FUZZ_CHECK(w_.Balanced());
    for (uint32_t i = 0; i < kEndpoints; i++) {
      const Endpoint& e = w_.endpoints[i];
      CheckQueues(e);
      FUZZ_CHECK(CountIn(w_.ports.by_port, &Endpoint::port_next, i) ==
                 ((e.flags & kBound) != 0 ? 1 : 0));
      FUZZ_CHECK(CountIn(w_.ports.by_tuple, &Endpoint::tuple_next, i) ==
                 ((e.flags & kConnected) != 0 ? 1 : 0));
    }
    const DatagramIn in = Datagram();
    const uint32_t found = Lookup(w_.ports, in, w_), expected = Search(w_, in, order_);
    if (found == expected) return;
    // Of a group any may have it, of equals among the connected ones the last to connect.
    FUZZ_CHECK(found != kNone && expected != kNone);
    const Endpoint &a = w_.endpoints[found], &b = w_.endpoints[expected];
    FUZZ_CHECK(a.local == b.local && a.ifindex == b.ifindex);
    const bool both_connected = (a.flags & b.flags & kConnected) != 0;
    const bool both_reuse = (a.flags & b.flags & kReusePort) != 0;
    FUZZ_CHECK(both_connected || (both_reuse && a.uid == b.uid && a.family == b.family));
  }

  Bytes in_;
  World w_;
  std::vector<uint32_t> order_;
  uint32_t connected_[kEndpoints] = {};
  uint32_t clock_ = 0;
};

}  // namespace
}  // namespace postern::udp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  postern::udp::Run(data, size).All();
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) { return postern::FuzzReplay(argc, argv, postern::udp::kInputMax); }
#endif
