// SPDX-License-Identifier: Apache-2.0
// engine_fuzz.cc - an engine among hostile hosts: segments, fragments, ICMP errors and noise for a
// listener and its connections, programs that write and close, time, and deaths of the lock's
// holder. After each step every connection is sound, each frame is in one place, and what a flood
// may take is bounded.
//
//   clang: `./run fuzz` builds it with libFuzzer
//   else:  replay.h
#include <sys/socket.h>

#include <memory>
#include <span>

#include "../unit/stack/plain_host.h"
#include "../unit/wire/wire_frames.h"
#include "replay.h"
#include "tcp/validate.h"

namespace postern {
namespace {

using test::PlainHost;
using wire_test::Bytes;

[[maybe_unused]] constexpr size_t kInputMax = 1500;  // libFuzzer has a length of its own
constexpr uint32_t kBacklog = 4, kPeers = 8, kFrames = 2048;
constexpr uint64_t kMs = 1'000'000;

class In {
 public:
  explicit In(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (bytes_.empty()) return 0;
    const uint8_t b = bytes_[0];
    bytes_ = bytes_.subspan(1);
    return b;
  }

 private:
  std::span<const uint8_t> bytes_;
};

struct World {
  PlainHost host{2, kFrames};
  PlainHost far{1, 256};  // no engine runs there: an area and a VI to send by
  std::unique_ptr<TestWire> wire = std::make_unique<TestWire>();
  std::unique_ptr<TestVi> near_vi, far_vi;
  uint64_t now = 1000 * kMs;
  uint32_t listener;
  uint32_t answered[kPeers] = {};  // by port

  World() {
    wire->Format();
    far_vi = std::make_unique<TestVi>(*wire, 0, far.area, 0);
    near_vi = std::make_unique<TestVi>(*wire, 1, host.area, 0);
    far_vi->Connect(*near_vi);
    near_vi->Connect(*far_vi);
    host.engine->SetVi(0, near_vi.get());
    listener = host.engine->Listen(host.At(80), AF_INET, 0, kBacklog, 80, 1);
    Poll();
  }
  void Poll() {
    host.now = now;
    host.engine->Poll(now);
    Hear();
  }
  // What is answered to the peers: of a SYN-ACK they remember the number.
  void Hear() {
    uint32_t frame;
    while (far_vi->RefillRoom() > kTestSlots - 64 && far.area.Take(&frame, 1) == 1)
      (void)far_vi->Refill(&frame, 1);
    ViRx rx;
    while (far_vi->Receive(&rx, 1) == 1) {
      const uint8_t* tcp = far.area.At(rx.frame, rx.off) + 14 + 20;
      if ((tcp[13] & 0x12) == 0x12)
        answered[wire_test::Get16(std::span(tcp, 20), 2) % kPeers] =
            wire_test::Get16(std::span(tcp, 20), 4) << 16 | wire_test::Get16(std::span(tcp, 20), 6);
      far.area.Give(rx.frame);
    }
  }
  void Put(const Bytes& bytes) {
    constexpr uint16_t kOff = 64;
    uint32_t frame;
    FUZZ_CHECK(far.area.Take(&frame, 1) == 1);
    const size_t n = std::min<size_t>(bytes.size(), kFrameBytes - kOff);
    memcpy(far.area.At(frame, kOff), bytes.data(), n);
    const ViTx tx = {frame, kOff, static_cast<uint16_t>(n), 0, 0};
    FUZZ_CHECK(far_vi->Send(&tx, 1) == 1);
    (void)far_vi->Kick();
    while (far_vi->Completed(&frame, 1) == 1) far.area.Give(frame);
  }
  pstn_addr PeerAt(uint8_t who) const {
    pstn_addr a = far.At(static_cast<uint16_t>(40000 + who % kPeers));
    a.ip[15] = static_cast<uint8_t>(10 + who % kPeers);
    return a;
  }
  // The connection with that peer; null: none.
  stack::Conn* ConnWith(uint8_t who) {
    const pstn_addr peer = PeerAt(who);
    stack::WireState& w = host.state();
    for (uint32_t i = 0; i < w.conn_hw; i++) {
      stack::Conn& c = w.conns[i];
      if (c.use == stack::kConnUsed && memcmp(c.peer.ip, peer.ip, 16) == 0 &&
          c.peer.port == peer.port)
        return &c;
    }
    return nullptr;
  }

  void CheckSound() {
    stack::WireState& w = host.state();
    uint32_t used = 0, embryos = 0, kept = 0;
    for (uint32_t i = 0; i < w.conn_hw; i++) {
      const stack::Conn& c = w.conns[i];
      if (c.use != stack::kConnUsed) continue;
      used++;
      embryos += (c.flags & stack::kEmbryo) != 0 ? 1 : 0;
      const char* bad = tcp::Validate(c.tcb, *host.engine);
      if (bad != nullptr) FuzzDie("connection:", bad);
      for (uint32_t r = c.tcb.rx_head; r != tcp::kNone && c.tcb.rx_count != 0; r = w.rx[r].next)
        kept += w.rx[r].packet != tcp::kNone ? 1 : 0;
    }
    FUZZ_CHECK(used == w.conn_count);
    FUZZ_CHECK(embryos == w.embryo_count);
    FUZZ_CHECK(embryos == w.listeners[listener].embryos);
    FUZZ_CHECK(embryos <= kBacklog);
    const char* bad = stack::ReassemblyCheck(w.reassembly);
    if (bad != nullptr) FuzzDie("fragments:", bad);
    kept += w.reassembly.fragments_used;
    uint32_t owned = 0;
    for (uint32_t f = 0; f < kFrames; f++) {
      const FrameUse use = host.area.UseAt(f);
      FUZZ_CHECK(use != kFrameRx);  // in nobody's hands between two calls
      owned += use == kFrameKept ? 1 : 0;
    }
    // A packet that was cut names its frame once for each part.
    FUZZ_CHECK(owned <= kept);
  }
};

wire_test::FrameSpec FrameTo(const World& w, uint8_t who) {
  wire_test::FrameSpec f;
  const pstn_addr peer = w.PeerAt(who);
  f.source = Bytes(peer.ip + 12, peer.ip + 16);
  f.destination = Bytes(w.host.ip.ip + 12, w.host.ip.ip + 16);
  return f;
}

// A segment of a peer's: near what is right, most of the time.
void PutSegment(World& w, In& in) {
  const uint8_t who = in.Byte(), how = in.Byte(), flags = in.Byte();
  const stack::Conn* c = w.ConnWith(who);
  wire_test::FrameSpec f = FrameTo(w, who);
  const auto near = [](uint8_t b) { return b < 160 ? 0u : static_cast<uint32_t>(b - 200) * 97; };
  // Of a SYN of which nothing was kept: its third segment, if `how` says so.
  const bool third = c == nullptr && (how & 16) != 0;
  const uint32_t answer = w.answered[w.PeerAt(who).port % kPeers] + 1;
  const uint32_t seq = (c != nullptr ? c->tcb.rcv_nxt.value()
                        : third      ? 1001
                                     : 1000) +
                       near(in.Byte());
  const uint32_t ack = (c != nullptr ? c->tcb.snd_nxt.value() : answer) + near(in.Byte());
  wire_test::Put16(f.l4, w.PeerAt(who).port);
  wire_test::Put16(f.l4, (how & 64) != 0 && c != nullptr ? c->local.port : 80);
  wire_test::Put32(f.l4, seq);
  wire_test::Put32(f.l4, ack);
  const Bytes options = (how & 1) != 0 ? wire_test::TimestampOptions() : Bytes{};
  f.l4.push_back(static_cast<uint8_t>((20 + options.size()) / 4 << 4));
  f.l4.push_back((how & 2) != 0 ? flags
                                : static_cast<uint8_t>(c != nullptr || third ? 0x10 : 0x02));
  wire_test::Put16(f.l4, 0x4000);
  wire_test::Put32(f.l4, flags);  // checksum 0, urgent
  wire_test::Put(f.l4, options);
  wire_test::Put(f.l4, wire_test::Counting((how & 4) != 0 ? flags * 5u : flags % 3u));
  f.tos = how >> 3 & 3;
  wire_test::FixChecksum(f);
  if ((how & 32) == 0) return w.Put(wire_test::MakeFrame(f));
  const size_t piece = 24 + (in.Byte() & 0x1f) * 8u;
  const uint8_t missing = in.Byte();
  f.id = in.Byte() & 3;
  for (size_t at = 0, n = 0; at < f.l4.size(); at += piece, n++) {
    wire_test::FrameSpec part = f;
    const size_t end = std::min(at + piece, f.l4.size());
    part.l4 = Bytes(f.l4.begin() + static_cast<long>(at), f.l4.begin() + static_cast<long>(end));
    part.fragment = static_cast<uint32_t>(at / 8) | (end < f.l4.size() ? 0x2000u : 0);
    if ((missing >> n % 8 & 1) == 0 || missing < 128) w.Put(wire_test::MakeFrame(part));
    if ((n & 15) == 15) w.Poll();
  }
}

// Segments in a row, alike but for what `in` says: the engine makes runs of them.
void PutRow(World& w, In& in) {
  const uint8_t who = in.Byte();
  const stack::Conn* c = w.ConnWith(who);
  if (c == nullptr) return;
  const uint32_t size = 1 + in.Byte() * 5u, count = 2 + in.Byte() % 12u;
  uint32_t at = 0;
  for (uint32_t i = 0; i < count; i++) {
    const uint8_t odd = in.Byte() % 32;
    wire_test::FrameSpec f = FrameTo(w, odd == 1 ? in.Byte() : who);
    wire_test::Put16(f.l4, w.PeerAt(who).port);
    wire_test::Put16(f.l4, c->local.port);
    wire_test::Put32(f.l4, c->tcb.rcv_nxt.value() + at + (odd == 2 ? in.Byte() - 128u : 0));
    wire_test::Put32(f.l4, c->tcb.snd_nxt.value() - (odd == 3 ? in.Byte() : 0));
    const Bytes options = odd == 4 ? wire_test::TimestampOptions() : Bytes{};
    f.l4.push_back(static_cast<uint8_t>((20 + options.size()) / 4 << 4));
    f.l4.push_back(odd == 5 ? in.Byte() : odd == 6 ? 0x18 : 0x10);
    wire_test::Put16(f.l4, odd == 7 ? in.Byte() : 0x4000);
    wire_test::Put32(f.l4, 0);
    wire_test::Put(f.l4, options);
    const uint32_t bytes = odd == 8 ? in.Byte() * 6u : size;
    wire_test::Put(f.l4, wire_test::Counting(bytes));
    f.tos = odd == 9 ? 3 : 0;
    wire_test::FixChecksum(f);
    w.Put(wire_test::MakeFrame(f));
    at += odd == 10 ? 0 : bytes;
  }
}

void PutIcmp(World& w, In& in) {
  const uint8_t who = in.Byte(), type = in.Byte(), code = in.Byte(), off = in.Byte();
  const stack::Conn* c = w.ConnWith(who);
  wire_test::FrameSpec quoted = FrameTo(w, who);
  std::swap(quoted.source, quoted.destination);
  wire_test::Put16(quoted.l4, c != nullptr ? c->local.port : 80);
  wire_test::Put16(quoted.l4, w.PeerAt(who).port);
  wire_test::Put32(quoted.l4, (c != nullptr ? c->tcb.snd_una.value() : 0) + off / 32u);
  const Bytes packet = wire_test::MakeFrame(quoted);
  wire_test::FrameSpec f = FrameTo(w, who);
  f.protocol = 1;
  constexpr uint8_t kTypes[] = {3, 3, 11, 12};
  f.l4 = wire_test::IcmpBytes(kTypes[type % 4], code % 20, uint32_t{in.Byte()} * 8,
                              Bytes(packet.begin() + 14, packet.end()));
  wire_test::FixChecksum(f);
  w.Put(wire_test::MakeFrame(f));
}

void Noise(World& w, In& in) {
  wire_test::FrameSpec f = FrameTo(w, in.Byte());
  f.protocol = in.Byte() % 2 == 0 ? 6 : 1;
  f.l4 = wire_test::Counting(in.Byte(), in.Byte());
  Bytes frame = wire_test::MakeFrame(f);
  for (int i = 0; i < 3; i++) frame[in.Byte() % frame.size()] ^= in.Byte();
  w.Put(frame);
}

void Program(World& w, In& in) {
  const uint8_t what = in.Byte(), who = in.Byte();
  if (what % 8 == 0 && w.ConnWith(who) == nullptr) {
    (void)w.host.Connect(w.host.At(static_cast<uint16_t>(50000 + who % kPeers)), w.PeerAt(who));
    return;
  }
  if (what % 8 == 1) return w.host.accepted[80].clear();
  stack::Conn* c = w.ConnWith(who);
  if (c == nullptr || c->owner == PSTN_NONE) return;
  test::PlainEnd& end = w.host.EndOf(c->owner);
  if (what % 8 < 5) end.out.append(size_t{what} * 40, 'x');
  if (what % 8 == 5) end.ended = true;
  if (what % 8 == 6) end.ended = end.closed = true;
  if (what % 8 == 7) end.aborted = true;
  w.host.Wake(end);
}

void Die(World& w, In& in) {
  stack::WireState& s = w.host.state();
  s.current = in.Byte() % (s.conn_hw + 1);
  if (in.Byte() % 2 == 0) memset(&s.reassembly.buckets, 0xa5, sizeof s.reassembly.buckets);
  w.host.now = w.now;
  w.host.engine->Recover(w.now);
}

void One(std::span<const uint8_t> bytes) {
  World w;
  In in(bytes);
  w.host.state().settings = {in.Byte() % 3u, in.Byte() % 2u * 5u, in.Byte() % 3u, 0, {}};
  tcp::Sysctls& host = w.host.state().settings.tcp;
  const uint32_t odd = in.Byte();  // most often what Linux begins with
  if (odd >= 0xc0) {
    host.tcp_timestamps = odd % 3u;
    host.tcp_sack = odd >> 1 & 1;
    host.tcp_window_scaling = odd >> 2 & 1;
    host.tcp_dsack = odd >> 3 & 1;
    host.tcp_retries2 = host.tcp_syn_linear_timeouts = odd >> 4 & 3;
  }
  while (!in.empty()) {
    const uint8_t op = in.Byte();
    if (op < 125) {
      PutSegment(w, in);
    } else if (op < 150) {
      PutRow(w, in);
    } else if (op < 180) {
      PutIcmp(w, in);
    } else if (op < 190) {
      Noise(w, in);
    } else if (op < 225) {
      Program(w, in);
    } else if (op < 250) {
      w.now += uint64_t{1} << in.Byte() % 38;
    } else {
      Die(w, in);
    }
    w.Poll();
    w.CheckSound();
  }
  // Nothing is left of it, once all programs have gone and time has passed.
  for (auto& end : w.host.ends) {
    end->aborted = true;
    w.host.Wake(*end);
  }
  for (int i = 0; i < 400; i++) {
    w.now += 1000 * kMs;
    w.Poll();
  }
  w.CheckSound();
  FUZZ_CHECK(w.host.state().conn_count == 0);
}

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) postern::One({data, size});
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) { return postern::FuzzReplay(argc, argv, postern::kInputMax); }
#endif
