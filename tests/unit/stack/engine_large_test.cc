// SPDX-License-Identifier: Apache-2.0
// engine_large_test.cc - large packets: rows go out as one, and what comes as one is a run, or is
// taken apart.
#include <algorithm>
#include <initializer_list>
#include <vector>

#include "engine_world.h"

namespace postern::test {

using wire_test::Bytes;
using wire_test::FrameSpec;

namespace {

constexpr uint16_t kSize = 1000;

// A connection from a to b over VIs that take large packets.
struct Large {
  World w{TestWire::Packets::kLarge};
  PlainEnd* client;
  PlainEnd* server;

  explicit Large(bool is6 = false) {
    if (is6) w.UseIpv6();
    (void)w.Listen(80);
    client = &w.a.Connect(w.a.At(40000), w.b.At(80));
    w.Settle();
    server = w.Accepted(80);
    REQUIRE(server != nullptr);
  }
  stack::Conn& A() { return w.ConnOf(w.a, *client); }
  tcp::Tcb& B() { return w.ConnOf(w.b, *server).tcb; }

  // A packet of a's with that payload, `skip` bytes ahead, as a device would have gathered it of
  // segments of kSize; in frames of `piece` bytes.
  void Put(const std::string& payload, uint32_t skip = 0, uint8_t flags = tcp::kAck,
           uint16_t segment = kSize, uint32_t piece = 1500) {
    const FrameSpec f =
        SegmentOf(A(), flags, static_cast<int32_t>(skip), Bytes(payload.begin(), payload.end()));
    PutFrames(wire_test::MakeFrame(f), segment, piece);
  }
  void PutFrames(const Bytes& bytes, uint16_t segment, uint32_t piece = 1500) {
    std::vector<ViTx> tx;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const size_t n = std::min<size_t>(piece, bytes.size() - at);
      uint32_t frame;
      REQUIRE(w.a.area.Take(&frame, 1) == 1);
      memcpy(w.a.area.At(frame, 64), bytes.data() + at, n);
      const uint16_t more = at + n < bytes.size() ? kTxMore : uint16_t{0};
      tx.push_back({frame, 64, static_cast<uint16_t>(n), more, 0, at == 0 ? segment : uint16_t{0}});
    }
    REQUIRE(w.vi_a->Send(tx.data(), static_cast<uint32_t>(tx.size())) == tx.size());
    (void)w.vi_a->Kick();
  }
  // Acknowledgements that b sends for what has been put.
  size_t Answers() {
    w.b.now = w.now;
    w.b.engine->Poll(w.now);
    return w.Swallow(w.a).size();
  }
  // No frame is anywhere but where it may be once nothing is under way.
  void CheckFrames() {
    for (PlainHost* host : {&w.a, &w.b})
      for (uint32_t i = 0; i < host->area.frame_count(); i++)
        REQUIRE((host->area.UseAt(i) != kFrameRx && host->area.UseAt(i) != kFrameTx));
  }
};

}  // namespace

TEST_CASE("large: a row is one packet of several frames, and one step at the other end") {
  for (const bool is6 : {false, true}) {
    CAPTURE(is6);
    Large l(is6);
    const std::string all = Pattern(1'000'000, 3);
    const uint32_t ip_id = l.A().ip_id;
    l.client->out = all;
    l.server->deliveries = 0;
    l.w.a.Wake(*l.client);
    l.w.Settle();
    CHECK((l.server->in == all));
    const tcp::Tcb& a = l.A().tcb;
    CHECK(l.B().data_segments_in == a.data_segments_out);
    CHECK(l.server->deliveries < a.data_segments_out / 8);
    CHECK(l.B().segments_out < a.data_segments_out / 8);
    CHECK(a.retransmits == 0);
    CHECK(l.B().rcv_mss == a.mss_bytes);
    CHECK(l.A().ip_id - ip_id == a.data_segments_out);  // as if each had been sent by itself
    l.CheckFrames();
  }
}

TEST_CASE("large: what is in order is a run, in place") {
  Large l;
  const std::string text = Pattern(30'500, 1);
  l.server->deliveries = 0;
  l.Put(text, 0, tcp::kAck | tcp::kPsh);
  CHECK(l.Answers() == 1);
  CHECK(l.server->deliveries == 1);
  CHECK((l.server->in == text));
  CHECK(l.B().data_segments_in == 31);
  CHECK(l.B().rcv_mss == kSize);
  l.CheckFrames();
}

TEST_CASE("large: behind a hole it is segments, each told to the peer, and kept") {
  Large l, single;
  const std::string text = Pattern(20'700, 1);
  l.Put(text.substr(kSize), kSize);
  for (uint32_t at = kSize; at < text.size(); at += kSize)
    single.Put(text.substr(at, kSize), at, tcp::kAck, 0);
  CHECK(l.Answers() == single.Answers());
  CHECK(l.server->in.empty());
  CHECK(l.B().ack_dups == single.B().ack_dups);
  CHECK(l.B().rx_bytes == text.size() - kSize);
  CHECK(l.B().out_of_order == 20);
  l.Put(text.substr(0, kSize), 0, tcp::kAck, 0);
  CHECK(l.Answers() == 1);
  CHECK((l.server->in == text));
  l.CheckFrames();
}

TEST_CASE("large: a copy of it is told as copies") {
  Large l;
  const std::string text = Pattern(5000, 1);
  l.Put(text);
  (void)l.Answers();
  l.Put(text);
  CHECK(l.Answers() >= 1);
  CHECK((l.server->in == text));
  l.CheckFrames();
}

TEST_CASE("large: FIN and RST come behind what it has") {
  for (const uint8_t flag : {tcp::kFin, tcp::kRst}) {
    CAPTURE(flag);
    Large l;
    const std::string text = Pattern(7200, 1);
    l.Put(text, 0, static_cast<uint8_t>(tcp::kAck | flag));
    (void)l.Answers();
    CHECK(l.server->fin == (flag == tcp::kFin));
    CHECK(l.server->reset == (flag == tcp::kRst));
    if (flag == tcp::kFin) CHECK((l.server->in == text));
    l.CheckFrames();
  }
}

TEST_CASE("large: one segment in several frames, and a size that is none of its") {
  for (const uint16_t segment : {uint16_t{0}, uint16_t{1}, uint16_t{3000}, uint16_t{65535}}) {
    CAPTURE(segment);
    Large l;
    const std::string text = Pattern(6000, 1);
    l.Put(text, 0, tcp::kAck, segment);
    CHECK(l.Answers() >= 1);
    CHECK((l.server->in == text));
    l.Put(text, 6010, tcp::kAck, segment);  // behind a hole: a frame takes at most so much
    CHECK(l.Answers() >= 1);
    CHECK(l.B().rx_bytes == text.size());
    l.CheckFrames();
  }
}

TEST_CASE("large: no more than there is room for") {
  Large l;
  l.server->slow = true;
  l.server->room = 10 * kSize;
  l.Put(Pattern(kSize, 1));
  (void)l.Answers();  // the window is offered
  l.Put(Pattern(40 * kSize, 2), kSize);
  (void)l.Answers();
  CHECK(l.server->in.size() <= 10 * kSize);
  CHECK(l.server->in.size() >= kSize);
  l.CheckFrames();
}

TEST_CASE("large: what nobody knows is answered once") {
  Large l;
  FrameSpec f = SegmentOf(l.A(), tcp::kAck, 0, Bytes(9000, 'x'));
  wire_test::Set16(f.l4, 2, 81);
  wire_test::FixChecksum(f);
  l.PutFrames(wire_test::MakeFrame(f), kSize);
  CHECK(l.Answers() == 1);
  l.CheckFrames();
}

TEST_CASE("large: lengths, headers and checksums that are wrong are refused") {
  Large l;
  const std::string text = Pattern(6000, 1);
  const FrameSpec good = SegmentOf(l.A(), tcp::kAck, 0, Bytes(text.begin(), text.end()));
  const auto put = [&](Bytes frame, uint32_t piece = 1500) {
    l.PutFrames(frame, kSize, piece);
    const size_t answers = l.Answers();
    l.CheckFrames();
    return answers + l.server->in.size();
  };
  Bytes frame = wire_test::MakeFrame(good);
  frame[100] ^= 1;  // TCP's checksum
  CHECK(put(frame) == 0);
  frame = wire_test::MakeFrame(good);
  frame.resize(5000);  // shorter than it says
  CHECK(put(frame) == 0);
  frame = wire_test::MakeFrame(good);
  CHECK(put(frame, 60) == 0);  // headers in pieces
  frame[14 + 9] = 17;          // not TCP's
  CHECK(put(frame) == 0);
  CHECK(put(wire_test::MakeFrame(
            SegmentOf(l.A(), tcp::kAck | tcp::kSyn, 0, Bytes(text.begin(), text.end())))) == 0);
  FrameSpec fragment = good;
  fragment.fragment = 0x2000;
  CHECK(put(wire_test::MakeFrame(fragment)) == 0);
  CHECK(put(wire_test::MakeFrame(good)) > text.size());  // and that is the difference
}

// Whatever is lost on the way of what a has sent in large packets, the stream comes whole.
TEST_CASE("large: with losses, the stream comes whole") {
  for (uint32_t seed = 1; seed <= 40; seed++) {
    CAPTURE(seed);
    wire_test::Random random(seed);
    Large l;
    const std::string all = Pattern(300'000, seed);
    l.client->out = all;
    l.w.a.Wake(*l.client);
    for (int i = 0; i < 3000 && l.server->in.size() < all.size(); i++) {
      l.w.a.now = l.w.b.now = l.w.now;
      l.w.a.engine->Poll(l.w.now);
      if (random() % 8 == 0) (void)l.w.Swallow(l.w.b);
      l.w.b.engine->Poll(l.w.now);
      l.w.now += kMs * (1 + random() % 30);
    }
    CHECK((l.server->in == all));
    l.CheckFrames();
  }
}

}  // namespace postern::test
