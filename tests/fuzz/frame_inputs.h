// SPDX-License-Identifier: Apache-2.0
// frame_inputs.h - frames out of a fuzzer's input: its first byte chooses whether the rest is one
// as it is, or says at which places a good one is changed, with its checksums made right again or
// left, so that random inputs get past them.
#pragma once
#include "../unit/wire/wire_frames.h"

namespace postern::wire_test {

inline constexpr uint32_t kSeeds = 14;

inline Bytes Quote(FrameSpec s) {
  s.source = s.is6 ? Address6(2) : Address4(2);
  s.destination = s.is6 ? Address6(9) : Address4(9);
  FixChecksum(s);
  const Bytes frame = MakeFrame(s);
  return {frame.begin() + 14, frame.end()};
}

inline FrameSpec Seed(uint32_t which) {
  const bool is6 = which % 2 != 0;
  FrameSpec s = TcpSpec(is6, Counting(30));
  switch (which / 2) {
    case 0:
      break;
    case 1:
      s.l4 = TcpBytes({2, 4, 5,   180, 4,    2,    8,    10,   0, 0,  0, 9, 0, 0, 0, 0, 1, 3, 3, 7,
                       1, 1, 254, 6,   0xe2, 0xd4, 0xc3, 0xd9, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0},
                      {}, 2);
      break;
    case 2:
      s = UdpSpec(is6, Counting(17));
      break;
    case 3:
      s = IcmpSpec(is6, is6 ? 128 : 8, 0, 7, Counting(20));
      break;
    case 4:
      s = IcmpSpec(is6, is6 ? 1 : 3, is6 ? 4 : 3, 0, Quote(TcpSpec(is6, Counting(4))));
      break;
    case 5:
      s = IcmpSpec(is6, is6 ? 2 : 3, is6 ? 0 : 4, 1400, Quote(UdpSpec(is6, Counting(4))));
      break;
    default:
      s.tags = {0x88, 0xa8, 0, 1, 0x81, 0, 0, 2};
      if (!is6) {
        s.options = {7, 7, 4, 0, 0, 0, 0, 1};
        s.fragment = 0x2000;
      } else {
        s.first_next = 0;
        s.options = Extension(43, {5, 2, 0, 0});
        Put(s.options, Extension(44, {4, 0, 0, 0, 0, 0}));
        Put(s.options, FragmentHeader(60, 0, true, 77));
        Put(s.options, Extension(6, {1, 4, 0, 0, 0, 0}));
      }
      while ((s.l4.size() + s.options.size()) % 8 != 0) s.l4.push_back(0);
  }
  FixChecksum(s);
  return s;
}

// Makes the IPv4 header's checksum right, wherever a careless reader would look for it.
inline void FixIp(Bytes& frame, size_t ip) {
  if (frame.size() < ip + 20 || frame[ip] >> 4 != 4) return;
  const size_t header = (frame[ip] & 15u) * 4u;
  if (header < 20 || frame.size() < ip + header) return;
  Set16(frame, ip + 10, 0);
  Set16(frame, ip + 10, 0xffffu ^ NaiveSum(std::span(frame).subspan(ip, header)));
}

inline Bytes Changed(const FrameSpec& s, std::span<const uint8_t> in) {
  Bytes frame = MakeFrame(s);
  const size_t ip = IpOffOf(s), l4 = L4OffOf(s);
  const uint8_t how = in.empty() ? uint8_t{0} : in[0];
  // Few changes mostly: with many, nothing is left that is nearly right.
  const uint32_t changes = (how & 0xe0) == 0xe0 ? UINT32_MAX : how >> 2 & 7u;
  in = in.subspan(in.empty() ? 0 : 1);
  for (uint32_t i = 0; i < changes && in.size() >= 3; i++, in = in.subspan(3)) {
    const size_t pos = (in[0] | static_cast<size_t>(in[1] & 0x3fu) << 8) % frame.size();
    switch (in[1] >> 6) {
      case 0:
        frame[pos] = in[2];
        break;
      case 1:
        frame[pos] ^= static_cast<uint8_t>(1u << (in[2] & 7u));
        break;
      case 2:
        frame.resize(in[2] % 4 != 0 ? pos + 1 : frame.size() + in[2] / 4u);
        break;
      default:  // lengths and offsets that are nearly right
        frame[pos] = static_cast<uint8_t>(frame[pos] + in[2] % 5 - 2);
    }
  }
  if ((how & 1) != 0) {
    FrameSpec fixed = s;
    const size_t end = frame.size() < l4 + 20 ? 0 : frame.size();
    if (end != 0) {
      fixed.l4.assign(frame.begin() + static_cast<ptrdiff_t>(l4), frame.end());
      FixChecksum(fixed);
      memcpy(frame.data() + l4, fixed.l4.data(), fixed.l4.size());
    }
  }
  if ((how & 2) != 0) FixIp(frame, ip);
  return frame;
}

// `in` is not empty.
inline Bytes FrameOf(std::span<const uint8_t> in) {
  const uint32_t which = in[0] % (kSeeds + 1);
  const auto rest = in.subspan(1);
  // A vector of exactly the frame's size, so that a sanitizer sees a byte too many.
  Bytes frame = which == kSeeds ? Bytes(rest.begin(), rest.end()) : Changed(Seed(which), rest);
  frame.shrink_to_fit();
  return frame;
}

}  // namespace postern::wire_test
