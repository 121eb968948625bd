// SPDX-License-Identifier: Apache-2.0
// engine_runs_test.cc - segments that come in a row are taken as one, and only those that may be.
#include <functional>
#include <initializer_list>
#include <vector>

#include "engine_world.h"

namespace postern::test {

using wire_test::Bytes;
using wire_test::FrameSpec;

namespace {

constexpr size_t kFull = 1000;
constexpr size_t kAckOff = 8, kFlagsOff = 13, kWindowOff = 14, kUrgentOff = 18;

// A connection from a to b whose client is played by the test: nothing of a's engine runs.
struct Runs {
  World w;
  PlainEnd* server = nullptr;
  stack::Conn* client = nullptr;
  std::string sent;

  explicit Runs(bool is6 = false) {
    if (is6) w.UseIpv6();
    (void)w.Listen(80);
    PlainEnd& c = w.a.Connect(w.a.At(40000), w.b.At(80));
    w.Settle();
    server = w.Accepted(80);
    REQUIRE(server != nullptr);
    client = &w.ConnOf(w.a, c);
    // SegmentOf() has no timestamps, and what lacks them is taken all the same.
    server->deliveries = 0;
  }
  tcp::Tcb& Tcb() { return w.ConnOf(w.b, *server).tcb; }
  // The next `bytes` of the stream, or those `at` bytes behind what was put last.
  FrameSpec Next(size_t bytes, uint8_t flags = tcp::kAck) {
    const std::string text = Pattern(bytes, static_cast<uint32_t>(sent.size()));
    FrameSpec f = SegmentOf(*client, flags, static_cast<int32_t>(sent.size()),
                            Bytes(text.begin(), text.end()));
    sent += text;
    return f;
  }
  void Put(const FrameSpec& f) { w.Put(w.a, wire_test::MakeFrame(f)); }
  // Acknowledgements that b sends for what has been put, all of it in one batch.
  size_t Answers() {
    w.b.now = w.now;
    w.b.engine->Poll(w.now);
    return w.Swallow(w.a).size();
  }
  bool AllCame() const { return server->in == sent; }
};

void Edit(FrameSpec& f, size_t off, uint32_t value) {
  wire_test::Set16(f.l4, off, value);
  wire_test::FixChecksum(f);
}

}  // namespace

TEST_CASE("runs: a bulk transfer is acknowledged once for many segments") {
  World w;
  (void)w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  const std::string all = Pattern(1'000'000, 3);
  client.out = all;
  w.a.Wake(client);
  w.Settle();
  CHECK((server->in == all));
  const tcp::Tcb& a = w.ConnOf(w.a, client).tcb;
  const tcp::Tcb& b = w.ConnOf(w.b, *server).tcb;
  CHECK(b.data_segments_in == a.data_segments_out);
  CHECK(b.segments_out < a.data_segments_out / 4);
  CHECK(a.retransmits == 0);
  CHECK(b.rcv_mss == a.mss_bytes);
}

TEST_CASE("runs: what comes in a row is one delivery, and one acknowledgement") {
  for (const bool is6 : {false, true}) {
    CAPTURE(is6);
    Runs r(is6);
    for (int i = 0; i < 10; i++) r.Put(r.Next(kFull));
    CHECK(r.Answers() == 1);
    CHECK(r.server->deliveries == 1);
    CHECK(r.AllCame());
    CHECK(r.Tcb().data_segments_in == 10);
    CHECK(r.Tcb().rcv_mss == kFull);
  }
}

TEST_CASE("runs: a segment that comes alone is taken at once, and may be kept") {
  Runs r;
  r.Put(r.Next(kFull));
  CHECK(r.Answers() == 1);
  CHECK(r.AllCame());
  // Two on both sides of a hole, in one batch, then what fills it.
  FrameSpec first = r.Next(kFull), hole = r.Next(kFull), third = r.Next(kFull);
  r.Put(first);
  r.Put(third);
  CHECK(r.Answers() == 2);
  CHECK(r.Tcb().rx_count == 1);
  r.Put(hole);
  CHECK(r.Answers() == 1);
  CHECK(r.AllCame());
}

TEST_CASE("runs: no more than there is room for; the rest comes again") {
  Runs r;
  r.server->slow = true;
  r.server->room = 4 * kFull;
  r.Put(r.Next(kFull));
  (void)r.Answers();  // the window is offered
  for (int i = 0; i < 8; i++) r.Put(r.Next(kFull));
  (void)r.Answers();
  CHECK(r.server->in.size() <= 4 * kFull);
  CHECK(r.sent.substr(0, r.server->in.size()) == r.server->in);
  CHECK(r.Tcb().rcv_nxt - r.Tcb().irs == static_cast<int32_t>(r.server->in.size()) + 1);
}

// The segment behind two that begin a run, and how many deliveries the batch of four is.
struct Odd {
  const char* name;
  std::function<void(FrameSpec&)> make;
  uint32_t deliveries;
};

TEST_CASE("runs: what differs from the first is not of its run") {
  const Odd odd[] = {
      {"alike", [](FrameSpec&) {}, 1},
      {"window", [](FrameSpec& f) { Edit(f, kWindowOff, 999); }, 3},
      {"ECE", [](FrameSpec& f) { f.l4[kFlagsOff] |= tcp::kEce, wire_test::FixChecksum(f); }, 3},
      {"CWR", [](FrameSpec& f) { f.l4[kFlagsOff] |= tcp::kCwr, wire_test::FixChecksum(f); }, 3},
      {"URG", [](FrameSpec& f) { f.l4[kFlagsOff] |= tcp::kUrg, Edit(f, kUrgentOff, 1); }, 3},
      {"congestion on the way", [](FrameSpec& f) { f.tos = 3; }, 3},
      {"PSH", [](FrameSpec& f) { f.l4[kFlagsOff] |= tcp::kPsh, wire_test::FixChecksum(f); }, 2},
      {"old acknowledgement",
       [](FrameSpec& f) { Edit(f, kAckOff + 2, wire_test::Get16(f.l4, kAckOff + 2) - 1); }, 3},
  };
  for (const Odd& o : odd) {
    CAPTURE(o.name);
    Runs r;
    FrameSpec f[5];
    for (FrameSpec& one : f) one = r.Next(kFull);
    o.make(f[2]);
    for (const FrameSpec& one : f) r.Put(one);
    (void)r.Answers();
    CHECK(r.AllCame());
    CHECK(r.server->deliveries == o.deliveries);
    CHECK(r.Tcb().data_segments_in == 5);
  }
}

TEST_CASE("runs: a smaller one is the last, a larger one begins the next") {
  Runs r;
  for (const size_t bytes : {kFull, kFull, kFull / 2, kFull, kFull + 1, kFull + 1})
    r.Put(r.Next(bytes));
  (void)r.Answers();
  CHECK(r.AllCame());
  CHECK(r.server->deliveries == 3);
  CHECK(r.Tcb().rcv_mss == kFull + 1);
}

TEST_CASE("runs: FIN and RST come behind what was sent before them") {
  for (const uint8_t flag : {tcp::kFin, tcp::kRst}) {
    CAPTURE(flag);
    Runs r;
    for (int i = 0; i < 4; i++) r.Put(r.Next(kFull));
    r.Put(r.Next(0, static_cast<uint8_t>(tcp::kAck | flag)));
    (void)r.Answers();
    CHECK(r.AllCame());
    CHECK(r.server->fin == (flag == tcp::kFin));
    CHECK(r.server->reset == (flag == tcp::kRst));
  }
}

TEST_CASE("runs: another connection's segment, and what is no segment, end one") {
  Runs r;
  PlainEnd& second = r.w.a.Connect(r.w.a.At(40001), r.w.b.At(80));
  r.w.Settle();
  PlainEnd* other = r.w.Accepted(80);
  REQUIRE(other != nullptr);
  const Bytes text(100, 'x');
  r.server->deliveries = 0;
  for (int i = 0; i < 2; i++) r.Put(r.Next(kFull));
  r.Put(SegmentOf(r.w.ConnOf(r.w.a, second), tcp::kAck, 0, text));
  for (int i = 0; i < 2; i++) r.Put(r.Next(kFull));
  r.w.Put(r.w.a, Bytes(60, 0xff));
  for (int i = 0; i < 2; i++) r.Put(r.Next(kFull));
  (void)r.Answers();
  CHECK(r.AllCame());
  CHECK(r.server->deliveries <= 3);
  CHECK((other->in == std::string(100, 'x')));
}

// What a listener's port gets twice in one batch: the copy is told to the peer (RFC 2883).
TEST_CASE("runs: copies of a run's segments are answered as copies") {
  Runs r;
  FrameSpec f[3];
  for (FrameSpec& one : f) one = r.Next(kFull);
  for (const FrameSpec& one : f) r.Put(one);
  for (const FrameSpec& one : f) r.Put(one);
  CHECK(r.Answers() >= 3);
  CHECK(r.AllCame());
  CHECK(r.server->deliveries == 1);
}

// Whatever comes in a row, the stream and the connection are as if it had come one by one.
TEST_CASE("runs: at random, as one by one") {
  const std::string stream = Pattern(300'000, 1);
  for (uint32_t seed = 1; seed <= 300; seed++) {
    CAPTURE(seed);
    wire_test::Random random(seed);
    Runs batch, single;
    for (int round = 0; round < 4; round++) {
      const uint32_t begun = static_cast<uint32_t>(batch.Tcb().rcv_nxt - batch.Tcb().irs) - 1;
      const uint32_t size = 1 + random() % 1400, count = 2 + random() % 30;
      uint32_t at = begun;
      for (uint32_t i = 0; i < count; i++) {
        const uint32_t odd = random() % 24;
        const uint32_t bytes = odd == 0 ? random() % 1400 : size;
        if (odd == 1) at += 100;                    // a hole
        if (odd == 2 && at > begun + 50) at -= 50;  // some of it again
        uint8_t flags = tcp::kAck;
        if (odd == 3) flags |= tcp::kPsh;
        if (odd == 4 && round == 3) flags |= tcp::kFin;
        const std::string text = stream.substr(at, bytes);
        for (Runs* r : {&batch, &single}) {
          FrameSpec f = SegmentOf(*r->client, flags, static_cast<int32_t>(at),
                                  Bytes(text.begin(), text.end()));
          if (odd == 5) Edit(f, kWindowOff, 999);
          if (odd == 6) f.tos = 3;
          r->Put(f);
          if (r == &single) (void)r->Answers();
        }
        at += bytes;
      }
      (void)batch.Answers();
      CHECK((batch.server->in == single.server->in));
      CHECK((batch.server->in == stream.substr(0, batch.server->in.size())));
      const tcp::Tcb &a = batch.Tcb(), &b = single.Tcb();
      CHECK(a.rcv_nxt - a.irs == b.rcv_nxt - b.irs);
      CHECK(a.state == b.state);
      CHECK(a.segments_in == b.segments_in);
      CHECK(a.rx_bytes == b.rx_bytes);
      CHECK(a.snd_wnd == b.snd_wnd);
      CHECK(batch.server->fin == single.server->fin);
    }
  }
}

}  // namespace postern::test
