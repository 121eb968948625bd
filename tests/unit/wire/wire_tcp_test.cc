// wire_tcp_test.cc - TCP headers and options: captured ones, round trips, broken ones.
// SPDX-License-Identifier: Apache-2.0
#include <initializer_list>
#include <memory>

#include "../kit/catch.h"
#include "wire/packet/tcp_header.h"
#include "wire/packet/udp_header.h"
#include "wire_frames.h"

namespace postern::wire {
namespace {

using namespace wire_test;  // NOLINT(google-build-using-namespace): helpers of these tests
using tcp::SegmentIn;
using tcp::SegmentOptions;
using tcp::SegmentOut;
using tcp::Seq;

// Of exactly that size, for sanitizers; `data` of the result dangles.
bool Parse(const Bytes& bytes, SegmentIn& out) {
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[bytes.size()]);
  if (!bytes.empty()) memcpy(exact.get(), bytes.data(), bytes.size());
  return ParseTcp(exact.get(), static_cast<uint32_t>(bytes.size()), out);
}
SegmentOptions Options(Bytes options, uint8_t flags = tcp::kSyn) {
  while (options.size() % 4 != 0) options.push_back(0);
  SegmentIn in;
  REQUIRE(Parse(TcpBytes(options, Counting(3), flags), in));
  CHECK(in.bytes == 3);
  return in.options;
}

TEST_CASE("tcp header: all fields") {
  const Bytes bytes = TcpBytes(TimestampOptions(), Counting(7), 0xd9);
  SegmentIn in;
  REQUIRE(ParseTcp(bytes.data(), static_cast<uint32_t>(bytes.size()), in));
  CHECK(in.seq == Seq(0xfffffff0));
  CHECK(in.ack == Seq(0x01020304));
  CHECK(in.window == 0x7210);
  CHECK(in.flags == 0xd9);
  CHECK(in.bytes == 7);
  CHECK(in.data == bytes.data() + 32);
  CHECK(in.options.has_timestamps);
  CHECK(in.options.ts_value == 0x11223344);
  CHECK(in.options.ts_echo == 0x55667788);
  CHECK(in.options.sack_count == 0);
  CHECK(!in.options.sack_permitted);
  CHECK(in.options.mss == 0);
}

TEST_CASE("tcp header: the SYN that Linux sends") {
  const SegmentOptions o =
      Options({2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7});
  CHECK(o.mss == 1460);
  CHECK(o.sack_permitted);
  CHECK(o.has_timestamps);
  CHECK(o.ts_value == 9);
  CHECK(o.has_window_scale);
  CHECK(o.window_scale == 7);
  CHECK(!o.has_smc);
}

TEST_CASE("tcp header: options that are not to be believed") {
  CHECK(Options({2, 4, 0, 0}).mss == 0);
  CHECK(Options({2, 3, 5, 1, 2, 4, 1, 0}).mss == 256);  // wrong length: skipped
  CHECK(Options({2, 4, 1, 0}, tcp::kAck).mss == 0);     // no SYN
  CHECK(!Options({3, 3, 5}, tcp::kAck).has_window_scale);
  CHECK(!Options({4, 2}, tcp::kAck).sack_permitted);
  CHECK(Options({3, 3, 200}).window_scale == 200);                 // as sent
  CHECK(Options({99, 2, 98, 5, 1, 2, 3, 2, 4, 1, 0}).mss == 256);  // unknown ones
  CHECK(Options({2, 4, 1, 0, 0, 2, 4, 2, 0}).mss == 256);          // behind the end
  // A length of 0 or 1, or beyond the header, ends the list; what was before it holds.
  for (uint8_t length : {uint8_t{0}, uint8_t{1}, uint8_t{200}}) {
    const SegmentOptions o = Options({2, 4, 1, 0, 77, length, 3, 3, 5});
    CHECK(o.mss == 256);
    CHECK(!o.has_window_scale);
  }
  CHECK(Options({2, 4, 1, 0, 1, 1, 1, 8}).mss == 256);  // a kind without a length
  CHECK(Options({2, 4, 1, 0, 2, 4, 2, 0}).mss == 512);  // the last one counts
  // By one byte, which is the payload's.
  CHECK(!Options({1, 1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0}).has_timestamps);
  CHECK(!Options({8, 10, 0, 0, 0, 1, 0, 0}).has_timestamps);  // cut off
}

TEST_CASE("tcp header: SMC's option") {
  CHECK(Options({254, 6, 0xe2, 0xd4, 0xc3, 0xd9}).has_smc);
  CHECK(!Options({254, 6, 0xe2, 0xd4, 0xc3, 0xd8}).has_smc);
  CHECK(!Options({254, 4, 0xe2, 0xd4}).has_smc);
  CHECK(!Options({254, 6, 0xe2, 0xd4, 0xc3, 0xd9}, tcp::kAck).has_smc);
}

TEST_CASE("tcp header: SACK blocks") {
  for (uint32_t count = 1; count <= 4; count++) {
    Bytes sack = {1, 1, 5, static_cast<uint8_t>(2 + 8 * count)};
    for (uint32_t i = 0; i < count; i++) {
      Put32(sack, 100 * i);
      Put32(sack, 100 * i + 50);
    }
    const SegmentOptions o = Options(sack, tcp::kAck);
    REQUIRE(o.sack_count == count);
    for (uint32_t i = 0; i < count; i++) {
      CHECK(o.sack[i].left == Seq(100 * i));
      CHECK(o.sack[i].right == Seq(100 * i + 50));
    }
  }
  CHECK(Options({5, 2}, tcp::kAck).sack_count == 0);
  CHECK(Options({5, 9, 0, 0, 0, 1, 0, 0, 0}, tcp::kAck).sack_count == 0);
}

TEST_CASE("tcp header: no header that does not fit is read") {
  const Bytes whole = TcpBytes(TimestampOptions(), {});
  SegmentIn in;
  for (size_t bytes = 0; bytes < whole.size(); bytes++)
    REQUIRE(!Parse(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(bytes)), in));
  for (uint8_t words = 0; words < 16; words++) {
    Bytes changed = whole;
    changed[12] = static_cast<uint8_t>(words << 4);
    REQUIRE(Parse(changed, in) == (words >= 5 && words <= 8));
  }
}

// ---------------------------------------------------------------- building

bool Same(const SegmentOptions& a, const SegmentOptions& b) {
  bool same = a.mss == b.mss && a.has_window_scale == b.has_window_scale &&
              a.window_scale == b.window_scale && a.sack_permitted == b.sack_permitted &&
              a.has_timestamps == b.has_timestamps && a.ts_value == b.ts_value &&
              a.ts_echo == b.ts_echo && a.sack_count == b.sack_count && a.has_smc == b.has_smc;
  for (uint32_t i = 0; same && i < a.sack_count; i++)
    same = a.sack[i].left == b.sack[i].left && a.sack[i].right == b.sack[i].right;
  return same;
}

TEST_CASE("tcp header: options stand where Linux puts them") {
  SegmentOut out;
  out.seq = Seq(0xfffffff0);
  out.ack = Seq(0x01020304);
  out.window = 0x7210;
  out.flags = tcp::kSyn;
  const auto built = [&] {
    Bytes bytes(TcpHeaderBytes(out.options), 0xcc);
    CHECK(BuildTcp(bytes.data(), {40001, 80}, out) == bytes.size());
    return bytes;
  };
  CHECK(built() == TcpBytes({}, {}, tcp::kSyn));
  out.options.mss = 1460;
  out.options.sack_permitted = true;
  out.options.has_timestamps = true;
  out.options.ts_value = 9;
  out.options.has_window_scale = true;
  out.options.window_scale = 7;
  CHECK(built() == TcpBytes({2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7}, {},
                            tcp::kSyn));
  out.options.has_smc = true;
  CHECK(built() == TcpBytes({2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0,   0, 0,    9,    0,    0,
                             0, 0, 1,    3,    3, 7, 1, 1,  254, 6, 0xe2, 0xd4, 0xc3, 0xd9},
                            {}, tcp::kSyn));
  out.options = {};
  out.options.sack_permitted = true;
  CHECK(built() == TcpBytes({1, 1, 4, 2}, {}, tcp::kSyn));
  out.options = {};
  out.options.has_timestamps = true;
  out.options.ts_value = 0x11223344;
  out.options.ts_echo = 0x55667788;
  CHECK(built() == TcpBytes(TimestampOptions(), {}, tcp::kSyn));
  out.options = {};
  out.options.sack_count = 1;
  out.options.sack[0] = {Seq(1), Seq(2)};
  CHECK(built() == TcpBytes({1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}, {}, tcp::kSyn));
}

TEST_CASE("tcp header: what is built is read back, for options of every kind") {
  wire_test::Random random(21);
  for (int round = 0; round < 3000; round++) {
    SegmentOut out;
    out.seq = Seq(random());
    out.ack = Seq(random());
    out.window = static_cast<uint16_t>(random());
    out.urgent = static_cast<uint16_t>(random());
    out.flags = static_cast<uint8_t>(random() | tcp::kSyn);
    SegmentOptions& o = out.options;
    const uint32_t which = random();
    if ((which & 1) != 0) o.mss = static_cast<uint16_t>(1 + random() % 65535);
    if ((which & 2) != 0) {
      o.has_window_scale = true;
      o.window_scale = static_cast<uint8_t>(random());
    }
    o.sack_permitted = (which & 4) != 0;
    if ((which & 8) != 0) {
      o.has_timestamps = true;
      o.ts_value = random();
      o.ts_echo = random();
    }
    o.has_smc = (which & 16) != 0;
    o.sack_count = (which >> 5) % 5;
    for (uint32_t i = 0; i < o.sack_count; i++) o.sack[i] = {Seq(random()), Seq(random())};
    const uint32_t bytes = TcpHeaderBytes(o);
    REQUIRE(bytes <= kTcpHeaderBytesMax);
    REQUIRE(bytes % 4 == 0);
    const Bytes payload = Counting(random() % 50);
    Bytes made(bytes);
    REQUIRE(BuildTcp(made.data(), {1, 2}, out) == bytes);
    Put(made, payload);
    SegmentIn in;
    REQUIRE(Parse(made, in));
    // Only SACK blocks are left out, and only if there is no room for one more.
    REQUIRE(in.options.sack_count <= o.sack_count);
    if (in.options.sack_count < o.sack_count)
      REQUIRE(bytes + (in.options.sack_count ? 8 : 12) > 60);
    o.sack_count = in.options.sack_count;
    REQUIRE(Same(in.options, o));
    REQUIRE(in.seq == out.seq);
    REQUIRE(in.ack == out.ack);
    REQUIRE(in.window == out.window);
    REQUIRE(in.urgent == out.urgent);
    REQUIRE(in.flags == out.flags);
    REQUIRE(in.bytes == payload.size());
  }
}

// A whole frame, as the engine makes it: built here, accepted by the parser.
Bytes Segment(bool is6, const Bytes& payload, size_t cut) {
  FrameSpec s;
  s.is6 = is6;
  SegmentOut out;
  out.flags = tcp::kAck;
  out.options.has_timestamps = true;
  const uint32_t header_bytes = TcpHeaderBytes(out.options);
  s.l4.resize(header_bytes + payload.size());
  BuildTcp(s.l4.data(), {40001, 80}, out);
  Checksummer sums;
  sums.Copy(s.l4.data() + header_bytes, payload.data(), cut);
  sums.Copy(s.l4.data() + header_bytes + cut, payload.data() + cut, payload.size() - cut);
  Packet p;
  REQUIRE(ParseFrame(MakeFrame(s).data(), static_cast<uint32_t>(MakeFrame(s).size()), kRxL4Verified,
                     p) == Refusal::kNone);
  const uint32_t pseudo =
      PseudoSum(p.ip.family, p.ip.source, p.ip.destination, 6, static_cast<uint32_t>(s.l4.size()));
  CompleteTcp(s.l4.data(), header_bytes, pseudo, sums.sum());
  return MakeFrame(s);
}

TEST_CASE("tcp header: copied in two pieces of any length, the checksum is right") {
  for (bool is6 : {false, true}) {
    for (size_t bytes : {0u, 1u, 2u, 63u, 64u, 1447u, 1448u}) {
      const Bytes payload = Counting(bytes, 3);
      for (size_t cut : {size_t{0}, bytes / 2, bytes}) {
        const Bytes frame = Segment(is6, payload, cut);
        Packet p;
        REQUIRE(ParseFrame(frame.data(), static_cast<uint32_t>(frame.size()), 0, p) ==
                Refusal::kNone);
        SegmentIn in;
        REQUIRE(ParseTcp(frame.data(), p, in));
        REQUIRE(Bytes(in.data, in.data + in.bytes) == payload);
      }
    }
  }
}

TEST_CASE("tcp header: the part of a checksum that a device completes") {
  FrameSpec s = TcpSpec(false, Counting(5));
  const Bytes done = s.l4;
  const Bytes from = SourceOf(s), to = DestinationOf(s);
  CompleteTcpOffloaded(s.l4.data(),
                       PseudoSum4(from.data(), to.data(), 6, static_cast<uint32_t>(s.l4.size())));
  // What the device does: the sum from the header on, the field included, inverted.
  Set16(s.l4, 16, 0xffffu ^ NaiveSum(s.l4));
  CHECK(s.l4 == done);
}

TEST_CASE("udp header: built as the RFC draws it, and 0 is sent as all ones") {
  for (bool is6 : {false, true}) {
    FrameSpec s = UdpSpec(is6, Counting(21));
    const Bytes from = SourceOf(s), to = DestinationOf(s);
    const auto bytes = static_cast<uint32_t>(s.l4.size());
    const uint32_t pseudo = is6 ? PseudoSum6(from.data(), to.data(), 17, bytes)
                                : PseudoSum4(from.data(), to.data(), 17, bytes);
    Bytes made = s.l4;
    REQUIRE(BuildUdp(made.data(), {5353, 53}, 21) == 8);
    CompleteUdp(made.data(), pseudo, Sum(made.data() + 8, 21, 0));
    CHECK(made == s.l4);
    // A payload that makes the sum come out as 0: the last word takes up what is missing.
    made.resize(10);
    BuildUdp(made.data(), {5353, 53}, 2);
    made[8] = made[9] = 0;
    const uint32_t short_pseudo = is6 ? PseudoSum6(from.data(), to.data(), 17, 10)
                                      : PseudoSum4(from.data(), to.data(), 17, 10);
    Set16(made, 8, ChecksumOf(Sum(made.data(), 10, short_pseudo)));
    CompleteUdp(made.data(), short_pseudo, Sum(made.data() + 8, 2, 0));
    CHECK(Get16(made, 6) == 0xffff);
  }
}

}  // namespace
}  // namespace postern::wire
