// SPDX-License-Identifier: Apache-2.0
// packet_fuzz.cc - frames from a hostile network: no read outside, and what is told of an accepted
// one is so: offsets lie in the frame, the checksum is right by RFC 1071's own words, and a TCP
// header that is built from what was read says the same.
//
// The first byte of the input chooses: the rest as it is, or a good frame changed at places that
// the rest names, with its checksums made right again or left, so that random inputs get past them.
//
//   clang: `./run fuzz` builds it with libFuzzer
//   else:  replay.h
#include "frame_inputs.h"
#include "replay.h"
#include "wire/packet/icmp.h"
#include "wire/packet/tcp_header.h"

namespace postern {
namespace {

using namespace wire_test;  // NOLINT(google-build-using-namespace): helpers of this test
using wire::Family;
using wire::Packet;
using wire::Refusal;

[[maybe_unused]] constexpr size_t kInputMax = 96;

// ---------------------------------------------------------------- what has to hold

void CheckSum(const Bytes& frame, const Packet& p) {
  FrameSpec s;
  s.is6 = p.ip.family == Family::kIpv6;
  s.protocol = p.ip.protocol;
  const size_t at = s.is6 ? 0 : 12, bytes = s.is6 ? 16 : 4;
  s.source.assign(p.ip.source.bytes + at, p.ip.source.bytes + at + bytes);
  s.destination.assign(p.ip.destination.bytes + at, p.ip.destination.bytes + at + bytes);
  const auto covered = std::span(frame).subspan(p.ip.l4_off, wire::CoveredBytes(p));
  const uint16_t pseudo = s.protocol == 1 ? uint16_t{0} : NaivePseudo(s, covered.size());
  FUZZ_CHECK(NaiveSum(covered, pseudo) == 0xffff);
}

void CheckTcp(const Bytes& frame, const Packet& p) {
  tcp::SegmentIn in;
  FUZZ_CHECK(wire::ParseTcp(frame.data(), p, in));
  FUZZ_CHECK(in.data == frame.data() + p.payload_off && in.bytes == p.payload_bytes);
  FUZZ_CHECK(in.options.sack_count <= tcp::kSackBlocksMax);
  tcp::SegmentOut out;
  out.seq = in.seq;
  out.ack = in.ack;
  out.window = in.window;
  out.urgent = in.urgent;
  out.flags = in.flags;
  out.options = in.options;
  uint8_t built[wire::kTcpHeaderBytesMax];
  const uint32_t bytes = wire::TcpHeaderBytes(out.options);
  FUZZ_CHECK(bytes <= sizeof built);
  FUZZ_CHECK(wire::BuildTcp(built, {p.source_port, p.destination_port}, out) == bytes);
  tcp::SegmentIn back;
  FUZZ_CHECK(wire::ParseTcp(built, bytes, back));
  FUZZ_CHECK(back.seq == in.seq && back.ack == in.ack && back.flags == in.flags);
  FUZZ_CHECK(back.options.mss == in.options.mss);
  FUZZ_CHECK(back.options.has_timestamps == in.options.has_timestamps);
  FUZZ_CHECK(back.options.ts_echo == in.options.ts_echo);
  FUZZ_CHECK(back.options.window_scale == in.options.window_scale);
  FUZZ_CHECK(back.options.sack_count <= in.options.sack_count);
  FUZZ_CHECK(back.options.has_smc == in.options.has_smc);
}

void CheckIcmp(const Bytes& frame, const Packet& p) {
  const wire::IcmpIn in = wire::ParseIcmp(frame.data(), p);
  FUZZ_CHECK((in.kind == wire::IcmpKind::kError) == (in.error != 0));
  FUZZ_CHECK(in.mtu == 0 || in.mtu >= (p.ip.family == Family::kIpv6 ? 1280u : 68u));
  Bytes answer(p.ip.l4_bytes);
  const uint32_t n = wire::BuildEchoReply(answer.data(), p.ip.l4_bytes, frame.data(), p);
  FUZZ_CHECK(n == (in.kind == wire::IcmpKind::kEchoRequest ? p.ip.l4_bytes : 0u));
}

void CheckAccepted(const Bytes& frame, const Packet& p) {
  const wire::IpHead& ip = p.ip;
  FUZZ_CHECK(ip.ip_off >= 14 && ip.ip_off < ip.l4_off && ip.ip_off < ip.data_off);
  FUZZ_CHECK(ip.l4_off <= p.payload_off && ip.data_off <= ip.l4_off);
  FUZZ_CHECK(ip.ip_off + ip.ip_bytes <= frame.size());
  FUZZ_CHECK(ip.l4_off + ip.l4_bytes == ip.ip_off + ip.ip_bytes);
  FUZZ_CHECK(ip.data_off + ip.data_bytes == ip.ip_off + ip.ip_bytes);
  FUZZ_CHECK(p.payload_off + p.payload_bytes <= ip.ip_off + ip.ip_bytes);
  FUZZ_CHECK(ip.source.IsV4() == (ip.family == Family::kIpv4));
  FUZZ_CHECK(ip.destination.IsV4() == (ip.family == Family::kIpv4));
  if (ip.family == Family::kIpv4) {
    const size_t header = (frame[ip.ip_off] & 15u) * 4u;
    FUZZ_CHECK(NaiveSum(std::span(frame).subspan(ip.ip_off, header)) == 0xffff);
  }
  if (ip.is_fragment != 0) {
    FUZZ_CHECK(p.l4_state == wire::L4State::kUnknown);
    FUZZ_CHECK(ip.data_bytes != 0 && ip.fragment_off + ip.data_bytes <= 65535);
    FUZZ_CHECK(ip.has_more == 0 || ip.data_bytes % 8 == 0);
    FUZZ_CHECK(ip.has_more != 0 || ip.fragment_off != 0);
    return;
  }
  if (p.l4_state == wire::L4State::kVerified) CheckSum(frame, p);
  if (ip.protocol == wire::kProtocolTcp) {
    FUZZ_CHECK(p.l4_state == wire::L4State::kVerified);
    CheckTcp(frame, p);
  }
  CheckIcmp(frame, p);
  if (wire::MayAnswerWithError(p)) {
    uint8_t answer[wire::kIcmpErrorBytesMax];
    FUZZ_CHECK(wire::BuildPortUnreachable(answer, sizeof answer, frame.data(), p) != 0);
  }
}

void One(const Bytes& frame) {
  const auto bytes = static_cast<uint32_t>(frame.size());
  Packet p;
  if (wire::ParseFrame(frame.data(), bytes, 0, p) == Refusal::kNone) CheckAccepted(frame, p);
  // What the device has verified may be wrong all the same: nothing may be read outside.
  if (wire::ParseFrame(frame.data(), bytes, wire::kRxIpVerified | wire::kRxL4Verified, p) ==
      Refusal::kNone) {
    FUZZ_CHECK(p.payload_off + p.payload_bytes <= bytes);
    tcp::SegmentIn in;
    if (p.ip.protocol == wire::kProtocolTcp && p.ip.is_fragment == 0)
      FUZZ_CHECK(wire::ParseTcp(frame.data(), p, in));
  }
  tcp::SegmentIn in;
  wire::ParseTcp(frame.data(), bytes, in);
}

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace postern;  // NOLINT(google-build-using-namespace): the entry of this file
  if (size == 0) return 0;
  const Bytes frame = FrameOf({data, size});
  One(frame);
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) { return postern::FuzzReplay(argc, argv, postern::kInputMax); }
#endif
