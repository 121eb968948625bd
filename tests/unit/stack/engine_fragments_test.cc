// SPDX-License-Identifier: Apache-2.0
// engine_fragments_test.cc - segments that come to the engine in fragments, in any order, with
// holes, with lies, and far too many of them.
#include <algorithm>
#include <initializer_list>

#include "engine_world.h"

namespace postern::test {

using wire_test::Bytes;

namespace {

Bytes BytesOf(const std::string& s) { return Bytes(s.begin(), s.end()); }

// A segment of the connection whose end `c` is, `skip` bytes behind what it would send next, cut
// into fragments with `piece` bytes each.
std::vector<Bytes> Cut(const stack::Conn& c, const Bytes& payload, uint32_t skip, size_t piece,
                       uint32_t id, uint8_t flags = tcp::kAck) {
  const wire_test::FrameSpec whole = SegmentOf(c, flags, static_cast<int32_t>(skip), payload);
  std::vector<Bytes> out;
  for (size_t at = 0; at < whole.l4.size(); at += piece) {
    const size_t end = std::min(at + piece, whole.l4.size());
    const bool more = end < whole.l4.size();
    wire_test::FrameSpec f = whole;
    f.l4 =
        Bytes(whole.l4.begin() + static_cast<long>(at), whole.l4.begin() + static_cast<long>(end));
    f.id = id;
    f.fragment = static_cast<uint32_t>(at / 8) | (more ? 0x2000u : 0);
    if (f.is6) {
      f.first_next = 44;
      f.options = wire_test::FragmentHeader(6, static_cast<uint32_t>(at), more, id);
    }
    out.push_back(wire_test::MakeFrame(f));
  }
  return out;
}

struct Pair {
  World w;
  PlainEnd* client;
  PlainEnd* server;
  explicit Pair(bool is6 = false) {
    if (is6) w.UseIpv6();
    (void)w.Listen(80);
    client = &w.a.Connect(w.a.At(40000), w.b.At(80));
    w.Settle();
    server = w.Accepted(80);
    REQUIRE(server != nullptr);
  }
  const stack::Conn& conn() { return w.ConnOf(w.a, *client); }
  void PutAll(const std::vector<Bytes>& frames) {
    for (const Bytes& f : frames) w.Put(w.a, f);
    while (w.b.engine->Poll(w.now) != 0) {  // and once more, for the frames that have been sent
    }
  }
  stack::Reassembly& table() { return w.b.state().reassembly; }
  // Nothing waits, and no frame is lost.
  bool IsClean() {
    auto& fill = w.wire->end[1].queue[0].fill;
    return table().fragments_used == 0 && stack::ReassemblyCheck(table()) == nullptr &&
           w.b.area.FreeCount() + fill.producer - fill.consumer == w.b.area.frame_count();
  }
};

}  // namespace

TEST_CASE("engine: a segment in fragments is delivered, in whatever order they come") {
  for (const bool is6 : {false, true}) {
    CAPTURE(is6);
    Pair p(is6);
    std::string sent;
    uint32_t id = 1;
    for (int order = 0; order < 4; order++) {
      CAPTURE(order);
      const std::string data = Pattern(6001, id);
      // Nobody has told the client's TCP: what it would send next stays where it was.
      std::vector<Bytes> frames =
          Cut(p.conn(), BytesOf(data), static_cast<uint32_t>(sent.size()), 1400, id++);
      REQUIRE(frames.size() == 5);
      if (order == 1) std::reverse(frames.begin(), frames.end());
      if (order == 2) std::rotate(frames.begin(), frames.begin() + 2, frames.end());
      if (order == 3) frames.insert(frames.begin() + 3, frames[1]);  // one comes twice
      sent += data;
      p.PutAll(frames);
      CHECK((p.server->in == sent));
      CHECK(p.IsClean());
    }
  }
}

TEST_CASE("engine: fragments of what is early for TCP, and of the last segment") {
  Pair p;
  const std::string all = Pattern(9000, 1);
  p.PutAll(Cut(p.conn(), BytesOf(all.substr(5000)), 5000, 800, 2, tcp::kAck | tcp::kFin));
  CHECK(p.server->in.empty());
  CHECK(p.w.ConnOf(p.w.b, *p.server).tcb.rx_bytes == 4000);
  CHECK_FALSE(p.server->fin);
  p.PutAll(Cut(p.conn(), BytesOf(all.substr(0, 5000)), 0, 1480, 1));
  CHECK((p.server->in == all));
  CHECK(p.server->fin);
  CHECK(p.IsClean());
}

TEST_CASE("engine: fragments that overlap, that are missing or changed, deliver nothing") {
  Pair p;
  const Bytes data = BytesOf(Pattern(4000, 3));
  std::vector<Bytes> changed = Cut(p.conn(), data, 0, 1400, 1);
  changed[1].back() ^= 1;
  p.PutAll(changed);
  CHECK(p.IsClean());

  std::vector<Bytes> overlapping = Cut(p.conn(), data, 0, 1400, 2);
  overlapping[2] = Cut(p.conn(), data, 0, 1392, 2)[2];  // begins 8 bytes too early
  p.PutAll(overlapping);

  std::vector<Bytes> tiny = Cut(p.conn(), data, 0, 16, 3);  // a header in two pieces
  p.PutAll({tiny.begin(), tiny.begin() + 100});

  std::vector<Bytes> missing = Cut(p.conn(), data, 0, 1400, 4);
  missing.erase(missing.begin() + 1);
  p.PutAll(missing);
  CHECK(p.server->in.empty());
  CHECK(stack::ReassemblyCheck(p.table()) == nullptr);
  CHECK(p.table().fragments_used != 0);

  p.w.Pass(31'000);  // what waits goes when its time is over and the next one comes
  p.PutAll(Cut(p.conn(), data, 0, 1400, 5));
  CHECK((p.server->in == Pattern(4000, 3)));
  CHECK(p.IsClean());
}

TEST_CASE("engine: a flood of fragments takes bounded memory, and others get through") {
  Pair p;
  const uint32_t before = p.w.b.area.FreeCount();
  for (uint32_t i = 0; i < 5000; i++) {
    wire_test::FrameSpec f;
    f.source = {192, 0, static_cast<uint8_t>(i >> 8), static_cast<uint8_t>(i)};
    f.destination = IpOf(p.w.b.ip);
    f.id = i;
    f.fragment = 0x2000 | (i % 2 == 0 ? 0u : 100u);
    f.l4 = wire_test::TcpBytes({}, wire_test::Counting(804));  // a multiple of 8
    p.w.Put(p.w.a, wire_test::MakeFrame(f));
    if (i % 64 == 63) p.w.Settle();
  }
  p.w.Settle();
  CHECK(p.table().fragments_used <= stack::kFragmentsMax);
  CHECK(p.table().counters.evicted > 0);
  CHECK(stack::ReassemblyCheck(p.table()) == nullptr);
  CHECK(p.w.b.area.FreeCount() + stack::kFragmentsMax >= before);
  p.PutAll(Cut(p.conn(), BytesOf(Pattern(4000, 9)), 0, 1400, 77));
  CHECK((p.server->in == Pattern(4000, 9)));
}

TEST_CASE("engine: who takes over from a death among fragments finds their frames again") {
  Pair p;
  std::vector<Bytes> frames = Cut(p.conn(), BytesOf(Pattern(4000, 3)), 0, 1400, 1);
  p.PutAll({frames.begin(), frames.end() - 1});
  REQUIRE(p.table().fragments_used == 2);
  const uint64_t secret = p.table().secret;
  memset(static_cast<void*>(&p.table()), 0xa5, sizeof p.table());  // in the middle of a call
  p.table().secret = secret;
  p.w.b.engine->Recover(p.w.now);
  CHECK(p.IsClean());
  CHECK_FALSE(p.server->gone);
  p.PutAll({frames.back()});
  CHECK(p.server->in.empty());
  p.PutAll(Cut(p.conn(), BytesOf(Pattern(4000, 3)), 0, 1400, 2));
  CHECK((p.server->in == Pattern(4000, 3)));
}

}  // namespace postern::test
