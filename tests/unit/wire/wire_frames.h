// wire_frames.h - frames written byte by byte, as the RFCs draw them, for tests and fuzzers.
// SPDX-License-Identifier: Apache-2.0
//
// Nothing of lib/wire is used to make them, so that an error there is not made twice.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace postern::wire_test {

using Bytes = std::vector<uint8_t>;

inline void Put16(Bytes& to, uint32_t value) {
  to.push_back(static_cast<uint8_t>(value >> 8));
  to.push_back(static_cast<uint8_t>(value));
}
inline void Put32(Bytes& to, uint32_t value) {
  Put16(to, value >> 16);
  Put16(to, value & 0xffff);
}
inline void Put(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }
inline void Set16(Bytes& in, size_t off, uint32_t value) {
  in[off] = static_cast<uint8_t>(value >> 8);
  in[off + 1] = static_cast<uint8_t>(value);
}
inline uint32_t Get16(std::span<const uint8_t> in, size_t off) {
  return static_cast<uint32_t>(in[off]) << 8 | in[off + 1];
}

// RFC 1071, 1: pairs of bytes, an odd one padded with 0, carries added at the end. Not inverted.
inline uint16_t NaiveSum(std::span<const uint8_t> bytes, uint64_t sum = 0) {
  for (size_t i = 0; i < bytes.size(); i++)
    sum += i % 2 == 0 ? static_cast<uint64_t>(bytes[i]) << 8 : bytes[i];
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

// splitmix64: seeded, the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint32_t operator()() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return static_cast<uint32_t>((z ^ z >> 31) >> 16);
  }

 private:
  uint64_t state_;
};

inline Bytes Counting(size_t bytes, uint8_t first = 1) {
  Bytes out(bytes);
  for (size_t i = 0; i < bytes; i++) out[i] = static_cast<uint8_t>(first + i * 7);
  return out;
}

struct FrameSpec {
  bool is6 = false;
  Bytes tags = {};         // TPID and TCI, four bytes for each
  Bytes options = {};      // IPv4: padded to 4; IPv6: extension headers, made by Extension()
  uint8_t first_next = 0;  // IPv6: of the first of those
  uint8_t protocol = 6;
  uint8_t tos = 0, ttl = 64;
  uint32_t id = 0x1234;
  uint32_t fragment = 0x4000;           // IPv4: the field
  Bytes source = {}, destination = {};  // default: below
  Bytes l4 = {};
  size_t padding = 0;
};

inline Bytes Address4(uint8_t last) { return {10, 1, 2, last}; }
inline Bytes Address6(uint8_t last) {
  return {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last};
}
inline Bytes SourceOf(const FrameSpec& s) {
  return !s.source.empty() ? s.source : s.is6 ? Address6(1) : Address4(1);
}
inline Bytes DestinationOf(const FrameSpec& s) {
  return !s.destination.empty() ? s.destination : s.is6 ? Address6(2) : Address4(2);
}

// An IPv6 extension header; the body is padded with zeroes (Pad1) to a multiple of 8 bytes.
inline Bytes Extension(uint8_t next, const Bytes& body) {
  Bytes out = {next, 0};
  Put(out, body);
  while (out.size() % 8 != 0) out.push_back(0);
  out[1] = static_cast<uint8_t>(out.size() / 8 - 1);
  return out;
}
inline Bytes FragmentHeader(uint8_t next, uint32_t off, bool more, uint32_t id) {
  Bytes out = {next, 0};
  Put16(out, off | (more ? 1 : 0));
  Put32(out, id);
  return out;
}

inline size_t IpOffOf(const FrameSpec& s) { return 14 + s.tags.size(); }
inline size_t L4OffOf(const FrameSpec& s) {
  return IpOffOf(s) + (s.is6 ? 40 : 20) + s.options.size();
}

inline Bytes MakeFrame(const FrameSpec& s) {
  Bytes f = {2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1};
  Put(f, s.tags);
  Put16(f, s.is6 ? 0x86dd : 0x0800);
  const size_t ip = f.size();
  if (s.is6) {
    Put32(f, 6u << 28 | static_cast<uint32_t>(s.tos) << 20 | 0xabcde);
    Put16(f, static_cast<uint32_t>(s.options.size() + s.l4.size()));
    f.push_back(s.options.empty() ? s.protocol : s.first_next);
    f.push_back(s.ttl);
    Put(f, SourceOf(s));
    Put(f, DestinationOf(s));
    Put(f, s.options);
  } else {
    f.push_back(static_cast<uint8_t>(0x45 + s.options.size() / 4));
    f.push_back(s.tos);
    Put16(f, static_cast<uint32_t>(20 + s.options.size() + s.l4.size()));
    Put16(f, s.id);
    Put16(f, s.fragment);
    f.push_back(s.ttl);
    f.push_back(s.protocol);
    Put16(f, 0);
    Put(f, SourceOf(s));
    Put(f, DestinationOf(s));
    Put(f, s.options);
    Set16(f, ip + 10, 0xffffu ^ NaiveSum(std::span(f).subspan(ip)));
  }
  Put(f, s.l4);
  f.insert(f.end(), s.padding, 0xee);
  return f;
}

// Sum of the pseudo header, folded.
inline uint16_t NaivePseudo(const FrameSpec& s, size_t l4_bytes) {
  Bytes p = SourceOf(s);
  Put(p, DestinationOf(s));
  Put32(p, static_cast<uint32_t>(l4_bytes));
  Put32(p, s.protocol);
  return NaiveSum(p);
}

// Fills in the checksum of what `l4` is: TCP, UDP or either ICMP.
inline void FixChecksum(FrameSpec& s) {
  const size_t off = s.protocol == 6 ? 16 : s.protocol == 17 ? 6 : 2;
  Set16(s.l4, off, 0);
  const uint16_t before = s.protocol == 1 ? 0 : NaivePseudo(s, s.l4.size());
  uint16_t checksum = static_cast<uint16_t>(~NaiveSum(s.l4, before));
  if (s.protocol == 17 && checksum == 0) checksum = 0xffff;
  Set16(s.l4, off, checksum);
}

inline Bytes TcpBytes(const Bytes& options, const Bytes& payload, uint8_t flags = 0x18) {
  Bytes t;
  Put16(t, 40001);
  Put16(t, 80);
  Put32(t, 0xfffffff0);
  Put32(t, 0x01020304);
  t.push_back(static_cast<uint8_t>((20 + options.size()) / 4 << 4));
  t.push_back(flags);
  Put16(t, 0x7210);
  Put16(t, 0);
  Put16(t, 0);
  Put(t, options);
  Put(t, payload);
  return t;
}
inline Bytes UdpBytes(const Bytes& payload) {
  Bytes u;
  Put16(u, 5353);
  Put16(u, 53);
  Put16(u, static_cast<uint32_t>(8 + payload.size()));
  Put16(u, 0);
  Put(u, payload);
  return u;
}
inline Bytes IcmpBytes(uint8_t type, uint8_t code, uint32_t rest, const Bytes& payload) {
  Bytes i = {type, code, 0, 0};
  Put32(i, rest);
  Put(i, payload);
  return i;
}
inline Bytes TimestampOptions() {
  return {1, 1, 8, 10, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88};
}

inline FrameSpec TcpSpec(bool is6, const Bytes& payload) {
  FrameSpec s;
  s.is6 = is6;
  s.l4 = TcpBytes(TimestampOptions(), payload);
  FixChecksum(s);
  return s;
}
inline FrameSpec UdpSpec(bool is6, const Bytes& payload) {
  FrameSpec s;
  s.is6 = is6;
  s.protocol = 17;
  s.l4 = UdpBytes(payload);
  FixChecksum(s);
  return s;
}
inline FrameSpec IcmpSpec(bool is6, uint8_t type, uint8_t code, uint32_t rest,
                          const Bytes& payload) {
  FrameSpec s;
  s.is6 = is6;
  s.protocol = is6 ? 58 : 1;
  s.l4 = IcmpBytes(type, code, rest, payload);
  FixChecksum(s);
  return s;
}

}  // namespace postern::wire_test
