// SPDX-License-Identifier: Apache-2.0
// engine_world.h - two engines over a wire in memory, in virtual time, and frames that a test puts
// on that wire itself.
#pragma once
#include <sys/socket.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "../kit/catch.h"
#include "../wire/wire_frames.h"
#include "plain_host.h"

namespace postern::test {

inline constexpr uint64_t kMs = 1'000'000;

inline wire_test::Bytes IpOf(const pstn_addr& a) {  // no v4-mapped one is all there is to tell
  return a.ip[0] != 0 ? wire_test::Bytes(a.ip, a.ip + 16) : wire_test::Bytes(a.ip + 12, a.ip + 16);
}

// A segment of the connection whose end `c` is, as `c` would send it `skip` bytes from now; its
// checksum is right.
inline wire_test::FrameSpec SegmentOf(const stack::Conn& c, uint8_t flags, int32_t skip = 0,
                                      const wire_test::Bytes& payload = {}) {
  wire_test::FrameSpec f;
  f.is6 = c.local.ip[0] != 0;
  f.source = IpOf(c.local);
  f.destination = IpOf(c.peer);
  wire_test::Put16(f.l4, c.local.port);
  wire_test::Put16(f.l4, c.peer.port);
  wire_test::Put32(f.l4, c.tcb.snd_nxt.value() + static_cast<uint32_t>(skip));
  wire_test::Put32(f.l4, (flags & tcp::kAck) != 0 ? c.tcb.rcv_nxt.value() : 0);
  f.l4.push_back(5 << 4);
  f.l4.push_back(flags);
  wire_test::Put16(f.l4, 1000);
  wire_test::Put32(f.l4, 0);
  wire_test::Put(f.l4, payload);
  wire_test::FixChecksum(f);
  return f;
}

// Two hosts and what is between them, in virtual time.
struct World {
  PlainHost a{1}, b{2};
  std::unique_ptr<TestWire> wire = std::make_unique<TestWire>();
  TestVi* vi_a;
  TestVi* vi_b;
  std::unique_ptr<TestVi> own_a, own_b;
  uint64_t now = 1000 * kMs;

  explicit World(TestWire::Packets packets = TestWire::Packets::kFrames) {
    wire->Format(1, packets);
    own_a = std::make_unique<TestVi>(*wire, 0, a.area, 0);
    own_b = std::make_unique<TestVi>(*wire, 1, b.area, 0);
    vi_a = own_a.get();
    vi_b = own_b.get();
    vi_a->Connect(*vi_b);
    vi_b->Connect(*vi_a);
    a.engine->SetVi(0, vi_a);
    b.engine->SetVi(0, vi_b);
    Turn();
  }
  uint32_t Turn() {
    a.now = b.now = now;
    return a.engine->Poll(now) + b.engine->Poll(now);
  }
  // Until nothing happens any more.
  void Settle() {
    for (int i = 0; i < 10000 && Turn() != 0; i++) {
    }
  }
  void Pass(uint64_t ms) {
    const uint64_t end = now + ms * kMs;
    while (now < end) {
      Settle();
      uint64_t next = a.engine->NextDeadline() < b.engine->NextDeadline()
                          ? a.engine->NextDeadline()
                          : b.engine->NextDeadline();
      now = next < end && next > now ? next : end;
      Settle();
    }
  }
  // A frame that no engine has made, from `from`'s side of the wire to the other one.
  void Put(PlainHost& from, const wire_test::Bytes& bytes) {
    uint32_t frame;
    REQUIRE(from.area.Take(&frame, 1) == 1);
    constexpr uint16_t kOff = 64;
    REQUIRE(bytes.size() <= kFrameBytes - kOff);
    memcpy(from.area.At(frame, kOff), bytes.data(), bytes.size());
    const ViTx tx = {frame, kOff, static_cast<uint16_t>(bytes.size()), 0, 0};
    Vi& vi = &from == &a ? *vi_a : *vi_b;
    REQUIRE(vi.Send(&tx, 1) == 1);
    (void)vi.Kick();
  }
  // What is on its way to `host`, which never gets there; to be Put() again from the other side.
  std::vector<wire_test::Bytes> Swallow(PlainHost& host) {
    Vi& vi = &host == &a ? *vi_a : *vi_b;
    std::vector<wire_test::Bytes> all;
    ViRx rx[kViBatchMax];
    while (const uint32_t n = vi.Receive(rx, kViBatchMax)) {
      for (uint32_t i = 0; i < n; i++) {
        const uint8_t* from = host.area.At(rx[i].frame, rx[i].off);
        all.emplace_back(from, from + rx[i].bytes);
        host.area.Give(rx[i].frame);
      }
    }
    return all;
  }
  stack::Conn& ConnOf(PlainHost& host, const PlainEnd& end) {
    return host.engine->ConnAt(end.conn);
  }
  // Both ends from here on: before anything else.
  void UseIpv6() {
    const uint8_t prefix[15] = {0x20, 0x01, 0x0d, 0xb8};
    for (PlainHost* host : {&a, &b}) memcpy(host->ip.ip, prefix, sizeof prefix);
  }
  uint32_t Listen(uint16_t port, uint32_t backlog = 16) {
    return b.engine->Listen(b.At(port), b.ip.ip[0] != 0 ? AF_INET6 : AF_INET, 0, backlog, port, 1);
  }
  PlainEnd* Accepted(uint16_t port) {
    auto& q = b.accepted[port];
    if (q.empty()) return nullptr;
    PlainEnd* e = &b.EndOf(q.front());
    q.pop_front();
    return e;
  }
};

inline std::string Pattern(size_t bytes, uint32_t seed) {
  std::string s(bytes, '\0');
  for (size_t i = 0; i < bytes; i++) s[i] = static_cast<char>((i * 2654435761u + seed) >> 13);
  return s;
}

}  // namespace postern::test
