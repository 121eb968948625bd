// wire_icmp_test.cc - what ICMP errors mean, whose packet they quote, and our two answers.
// SPDX-License-Identifier: Apache-2.0
#include "wire/packet/icmp.h"

#include <cerrno>
#include <initializer_list>

#include "../kit/catch.h"
#include "wire_frames.h"

namespace postern::wire {
namespace {

using namespace wire_test;  // NOLINT(google-build-using-namespace): helpers of these tests

// A packet of ours, without its Ethernet header: from the host that the errors are sent to.
Bytes Ours(FrameSpec s) {
  s.source = s.is6 ? Address6(2) : Address4(2);
  s.destination = s.is6 ? Address6(9) : Address4(9);
  FixChecksum(s);
  const Bytes frame = MakeFrame(s);
  return {frame.begin() + 14, frame.end()};
}

IcmpIn Read(const FrameSpec& s) {
  const Bytes made = MakeFrame(s);
  // Of exactly that size, for sanitizers.
  uint8_t* frame = new uint8_t[made.size()];
  memcpy(frame, made.data(), made.size());
  Packet p;
  const Refusal refusal = ParseFrame(frame, static_cast<uint32_t>(made.size()), 0, p);
  IcmpIn in{};
  if (refusal == Refusal::kNone) in = ParseIcmp(frame, p);
  delete[] frame;
  CHECK(refusal == Refusal::kNone);
  return in;
}
IcmpIn Read(bool is6, uint8_t type, uint8_t code, uint32_t rest, const Bytes& payload) {
  return Read(IcmpSpec(is6, type, code, rest, payload));
}

TEST_CASE("icmp: the quoted packet") {
  for (bool is6 : {false, true}) {
    const IcmpIn tcp = Read(is6, is6 ? 1 : 3, is6 ? 4 : 3, 0, Ours(TcpSpec(is6, Counting(100))));
    REQUIRE(tcp.kind == IcmpKind::kError);
    CHECK(tcp.error == ECONNREFUSED);
    CHECK(tcp.is_hard == 1);
    CHECK(tcp.mtu == 0);
    CHECK(tcp.quote.protocol == 6);
    CHECK(tcp.quote.source_port == 40001);
    CHECK(tcp.quote.destination_port == 80);
    CHECK(tcp.quote.has_seq == 1);
    CHECK(tcp.quote.seq == 0xfffffff0);
    CHECK(tcp.quote.packet_bytes == (is6 ? 40u : 20u) + 32 + 100);
    CHECK(tcp.quote.source.bytes[15] == 2);
    CHECK(tcp.quote.destination.bytes[15] == 9);
    const IcmpIn udp = Read(is6, is6 ? 1 : 3, 0, 0, Ours(UdpSpec(is6, Counting(10))));
    CHECK(udp.error == ENETUNREACH);
    CHECK(udp.is_hard == 0);
    CHECK(udp.quote.source_port == 5353);
    CHECK(udp.quote.has_seq == 0);
  }
}

TEST_CASE("icmp: eight bytes behind the quoted header are enough, fewer are not") {
  for (bool is6 : {false, true}) {
    const Bytes ours = Ours(TcpSpec(is6, {}));
    for (size_t bytes = 0; bytes <= ours.size(); bytes++) {
      const Bytes cut(ours.begin(), ours.begin() + static_cast<ptrdiff_t>(bytes));
      const IcmpIn in = Read(is6, is6 ? 1 : 3, 1, 0, cut);
      REQUIRE(in.kind == (bytes >= (is6 ? 48 : 28) ? IcmpKind::kError : IcmpKind::kMalformed));
      if (in.kind == IcmpKind::kError) REQUIRE(in.quote.seq == 0xfffffff0);
    }
  }
}

TEST_CASE("icmp: quoted options and extension headers are passed over") {
  FrameSpec options = TcpSpec(false, {});
  options.options = {1, 1, 1, 1, 148, 4, 0, 0};
  CHECK(Read(false, 3, 1, 0, Ours(options)).quote.seq == 0xfffffff0);
  FrameSpec extended = TcpSpec(true, {});
  extended.first_next = 0;
  extended.options = Extension(44, {});
  Put(extended.options, FragmentHeader(60, 0, true, 7));
  Put(extended.options, Extension(6, {}));
  const IcmpIn in = Read(true, 1, 3, 0, Ours(extended));
  REQUIRE(in.kind == IcmpKind::kError);
  CHECK(in.quote.protocol == 6);
  CHECK(in.quote.seq == 0xfffffff0);
  // From the middle of a datagram: nobody can tell whose.
  extended.options = Extension(44, {});
  Put(extended.options, FragmentHeader(6, 64, true, 7));
  CHECK(Read(true, 1, 3, 0, Ours(extended)).kind == IcmpKind::kMalformed);
  FrameSpec middle = TcpSpec(false, {});
  middle.fragment = 5;
  CHECK(Read(false, 3, 1, 0, Ours(middle)).kind == IcmpKind::kMalformed);
}

TEST_CASE("icmp: a quoted packet that we did not send") {
  for (bool is6 : {false, true}) {
    FrameSpec theirs = TcpSpec(is6, {});  // not from the host that the error is sent to
    const Bytes frame = MakeFrame(theirs);
    const Bytes quote(frame.begin() + 14, frame.end());
    CHECK(Read(is6, is6 ? 1 : 3, 1, 0, quote).kind == IcmpKind::kMalformed);
    Bytes other = Ours(TcpSpec(!is6, {}));
    CHECK(Read(is6, is6 ? 1 : 3, 1, 0, other).kind == IcmpKind::kMalformed);
  }
}

TEST_CASE("icmp: the path's MTU") {
  const Bytes ours4 = Ours(TcpSpec(false, Counting(1448)));
  const auto mtu4 = [&](uint32_t rest) { return Read(false, 3, 4, rest, ours4); };
  CHECK(mtu4(1400).mtu == 1400);
  CHECK(mtu4(1400).error == EMSGSIZE);
  CHECK(mtu4(0xffff0000 | 1400).mtu == 1400);  // the upper half is unused
  CHECK(mtu4(67).kind == IcmpKind::kIgnored);
  CHECK(mtu4(68).mtu == 68);
  // A router that does not tell: the next plateau below 1500 (RFC 1191, 7.1).
  CHECK(mtu4(0).mtu == 1492);
  CHECK(Read(false, 3, 4, 0, Ours(TcpSpec(false, Counting(1440)))).mtu == 1006);
  CHECK(Read(false, 3, 4, 0, Ours(TcpSpec(false, {}))).mtu == 68);
  const Bytes ours6 = Ours(TcpSpec(true, Counting(1000)));
  CHECK(Read(true, 2, 0, 1400, ours6).mtu == 1400);
  CHECK(Read(true, 2, 9, 1280, ours6).mtu == 1280);
  CHECK(Read(true, 2, 0, 1279, ours6).kind == IcmpKind::kIgnored);
}

TEST_CASE("icmp: types and codes as Linux reports them") {
  struct Row {
    bool is6;
    uint8_t type, code;
    int error, is_hard;
  };
  const Row rows[] = {
      {false, 3, 0, ENETUNREACH, 0},   {false, 3, 1, EHOSTUNREACH, 0},
      {false, 3, 2, ENOPROTOOPT, 1},   {false, 3, 3, ECONNREFUSED, 1},
      {false, 3, 5, EOPNOTSUPP, 0},    {false, 3, 6, ENETUNREACH, 1},
      {false, 3, 7, EHOSTDOWN, 1},     {false, 3, 9, ENETUNREACH, 1},
      {false, 3, 10, EHOSTUNREACH, 1}, {false, 3, 13, EHOSTUNREACH, 1},
      {false, 11, 0, EHOSTUNREACH, 0}, {false, 12, 0, EPROTO, 1},
      {true, 1, 0, ENETUNREACH, 0},    {true, 1, 1, EACCES, 1},
      {true, 1, 3, EHOSTUNREACH, 0},   {true, 1, 4, ECONNREFUSED, 1},
      {true, 1, 6, EACCES, 1},         {true, 3, 0, EHOSTUNREACH, 0},
      {true, 4, 1, EPROTO, 1},
  };
  for (const Row& row : rows) {
    const IcmpIn in = Read(row.is6, row.type, row.code, 0, Ours(TcpSpec(row.is6, {})));
    INFO("v6 " << row.is6 << " type " << int{row.type} << " code " << int{row.code});
    CHECK(in.kind == IcmpKind::kError);
    CHECK(in.error == row.error);
    CHECK(in.is_hard == row.is_hard);
    CHECK(in.mtu == 0);
  }
  const std::pair<bool, uint8_t> ignored[] = {{false, 4}, {false, 5},  {false, 13},
                                              {true, 5},  {true, 135}, {true, 137}};
  for (const auto& [is6, type] : ignored)
    CHECK(Read(is6, type, 0, 0, Ours(TcpSpec(is6, {}))).kind == IcmpKind::kIgnored);
  CHECK(Read(false, 3, 16, 0, Ours(TcpSpec(false, {}))).kind == IcmpKind::kIgnored);
  CHECK(Read(true, 1, 7, 0, Ours(TcpSpec(true, {}))).kind == IcmpKind::kIgnored);
  CHECK(Read(TcpSpec(false, {})).kind == IcmpKind::kIgnored);
}

// ---------------------------------------------------------------- answers

// The message in a frame of its own, as the other side gets it.
FrameSpec Answer(const FrameSpec& to, Bytes message) {
  FrameSpec s;
  s.is6 = to.is6;
  s.protocol = to.is6 ? 58 : 1;
  s.source = DestinationOf(to);
  s.destination = SourceOf(to);
  s.l4 = std::move(message);
  return s;
}

TEST_CASE("icmp: port unreachable reaches who sent the packet") {
  for (bool is6 : {false, true}) {
    for (size_t bytes : {0u, 1u, 300u, 1400u}) {
      const FrameSpec s = UdpSpec(is6, Counting(bytes));
      const Bytes frame = MakeFrame(s);
      Packet p;
      REQUIRE(ParseFrame(frame.data(), static_cast<uint32_t>(frame.size()), 0, p) ==
              Refusal::kNone);
      CHECK(MayAnswerWithError(p));
      Bytes message(kIcmpErrorBytesMax);
      const uint32_t n = BuildPortUnreachable(message.data(), kIcmpErrorBytesMax, frame.data(), p);
      REQUIRE(n != 0);
      REQUIRE(n + (is6 ? 40 : 20) <= (is6 ? 1280 : 576));
      CHECK(BuildPortUnreachable(message.data(), n - 1, frame.data(), p) == 0);
      REQUIRE(BuildPortUnreachable(message.data(), n, frame.data(), p) == n);
      message.resize(n);
      const IcmpIn in = Read(Answer(s, message));
      REQUIRE(in.kind == IcmpKind::kError);
      CHECK(in.error == ECONNREFUSED);
      CHECK(in.quote.source_port == 5353);
      CHECK(in.quote.destination_port == 53);
      const IpOut ip = ReplyIp(p);
      CHECK(ip.source == p.ip.destination);
      CHECK(ip.destination == p.ip.source);
      CHECK(ip.protocol == (is6 ? 58 : 1));
    }
  }
}

TEST_CASE("icmp: an echo is answered with its own bytes") {
  for (bool is6 : {false, true}) {
    for (size_t bytes : {0u, 1u, 56u, 1401u}) {
      const FrameSpec s = IcmpSpec(is6, is6 ? 128 : 8, 0, 0x12340007, Counting(bytes));
      const Bytes frame = MakeFrame(s);
      Packet p;
      REQUIRE(ParseFrame(frame.data(), static_cast<uint32_t>(frame.size()), 0, p) ==
              Refusal::kNone);
      Bytes message(8 + bytes);
      CHECK(BuildEchoReply(message.data(), static_cast<uint32_t>(7 + bytes), frame.data(), p) == 0);
      REQUIRE(BuildEchoReply(message.data(), static_cast<uint32_t>(8 + bytes), frame.data(), p) ==
              8 + bytes);
      CHECK(Bytes(message.begin() + 4, message.end()) == Bytes(s.l4.begin() + 4, s.l4.end()));
      CHECK(Read(Answer(s, message)).kind == IcmpKind::kEchoReply);
    }
  }
}

TEST_CASE("icmp: nothing is answered with an error that may not be") {
  const auto may = [](const FrameSpec& s, uint8_t link = 2) {
    Bytes frame = MakeFrame(s);
    frame[0] = link;
    Packet p;
    REQUIRE(ParseFrame(frame.data(), static_cast<uint32_t>(frame.size()), kRxL4Verified, p) ==
            Refusal::kNone);
    return MayAnswerWithError(p);
  };
  FrameSpec s = UdpSpec(false, Counting(40));
  CHECK(may(s));
  CHECK(!may(s, 0xff));
  s.destination = {224, 0, 0, 251};
  CHECK(!may(s));
  s.destination = {255, 255, 255, 255};
  CHECK(!may(s));
  s = UdpSpec(false, Counting(40));
  s.fragment = 9;
  CHECK(!may(s));
  CHECK(!may(IcmpSpec(false, 8, 0, 0, {})));
  CHECK(!may(IcmpSpec(true, 1, 4, 0, Ours(UdpSpec(true, {})))));
}

}  // namespace
}  // namespace postern::wire
