// SPDX-License-Identifier: Apache-2.0
// vi_trace.cc - see vi_trace.h.
#include "vi/decorator/vi_trace.h"

#include <arpa/inet.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace postern {
namespace {

constexpr uint32_t kTcp = 6, kUdp = 17, kIcmp = 1, kIcmp6 = 58;

uint32_t Be16(const uint8_t* p) { return static_cast<uint32_t>(p[0] << 8 | p[1]); }
uint32_t Be32(const uint8_t* p) { return Be16(p) << 16 | Be16(p + 2); }

// Text that grows to the end of its line and no further.
struct Line {
  char* text;
  uint32_t used = 0;
  template <typename... A>
  void Add(const char* format, A... args) {
    const int n = snprintf(text + used, kTraceLineMax - used, format, args...);
    if (n > 0) used += static_cast<uint32_t>(n);
    if (used >= kTraceLineMax) used = kTraceLineMax - 1;
  }
};

struct Rest {
  const uint8_t* at;
  uint32_t bytes;
  bool Skip(uint32_t n) {
    if (n > bytes) return false;
    at += n;
    bytes -= n;
    return true;
  }
};

struct Packet {
  char src[INET6_ADDRSTRLEN], dst[INET6_ADDRSTRLEN];
  uint32_t protocol, fragment_off, payload_bytes;
};

void TellTcp(Line& line, const Packet& p, const Rest& rest) {
  if (rest.bytes < 20) return line.Add("%s > %s tcp cut short", p.src, p.dst);
  static constexpr char kNames[] = "FSRPAUEC";
  char flags[9] = {};
  uint32_t n = 0;
  for (uint32_t i = 0; i < 8; i++) {
    if ((rest.at[13] >> i & 1) != 0) flags[n++] = kNames[i];
  }
  const uint32_t header = static_cast<uint32_t>(rest.at[12] >> 4) * 4;
  const uint32_t payload = p.payload_bytes >= header ? p.payload_bytes - header : 0;
  line.Add("%s.%u > %s.%u tcp %s seq %u ack %u win %u len %u", p.src, Be16(rest.at), p.dst,
           Be16(rest.at + 2), n != 0 ? flags : "-", Be32(rest.at + 4), Be32(rest.at + 8),
           Be16(rest.at + 14), payload);
}

void TellTransport(Line& line, const Packet& p, const Rest& rest) {
  if (p.fragment_off != 0) {
    line.Add("%s > %s proto %u fragment at %u len %u", p.src, p.dst, p.protocol, p.fragment_off,
             p.payload_bytes);
  } else if (p.protocol == kTcp) {
    TellTcp(line, p, rest);
  } else if (p.protocol == kUdp && rest.bytes >= 8 && p.payload_bytes >= 8) {
    line.Add("%s.%u > %s.%u udp len %u", p.src, Be16(rest.at), p.dst, Be16(rest.at + 2),
             p.payload_bytes - 8);
  } else if ((p.protocol == kIcmp || p.protocol == kIcmp6) && rest.bytes >= 2) {
    line.Add("%s > %s %s type %u code %u len %u", p.src, p.dst,
             p.protocol == kIcmp ? "icmp" : "icmp6", rest.at[0], rest.at[1], p.payload_bytes);
  } else {
    line.Add("%s > %s proto %u len %u", p.src, p.dst, p.protocol, p.payload_bytes);
  }
}

bool ReadIpv4(Rest& rest, Packet& p) {
  if (rest.bytes < 20 || rest.at[0] >> 4 != 4) return false;
  const uint32_t header = (rest.at[0] & 15u) * 4, total = Be16(rest.at + 2);
  if (header < 20 || total < header || total > rest.bytes) return false;
  inet_ntop(AF_INET, rest.at + 12, p.src, sizeof p.src);
  inet_ntop(AF_INET, rest.at + 16, p.dst, sizeof p.dst);
  p.protocol = rest.at[9];
  p.fragment_off = (Be16(rest.at + 6) & 0x1fffu) * 8;
  p.payload_bytes = total - header;
  return rest.Skip(header);
}

bool ReadIpv6(Rest& rest, Packet& p) {
  if (rest.bytes < 40 || rest.at[0] >> 4 != 6) return false;
  inet_ntop(AF_INET6, rest.at + 8, p.src, sizeof p.src);
  inet_ntop(AF_INET6, rest.at + 24, p.dst, sizeof p.dst);
  p.protocol = rest.at[6];
  p.payload_bytes = Be16(rest.at + 4);
  rest.Skip(40);
  if (p.payload_bytes > rest.bytes) return false;
  // Hop-by-hop, routing, destination options, and a fragment's (RFC 8200, 4).
  for (int i = 0; i < 8; i++) {
    const bool is_fragment = p.protocol == 44;
    if (p.protocol != 0 && p.protocol != 43 && p.protocol != 60 && !is_fragment) return true;
    if (rest.bytes < 8) return false;
    const uint32_t header = is_fragment ? 8 : (rest.at[1] + 1u) * 8;
    if (is_fragment) p.fragment_off = Be16(rest.at + 2) & 0xfff8u;
    p.protocol = rest.at[0];
    if (header > p.payload_bytes || !rest.Skip(header)) return false;
    p.payload_bytes -= header;
  }
  return true;
}

}  // namespace

uint32_t DescribeFrame(const uint8_t* frame, uint32_t bytes, char (&line)[kTraceLineMax]) {
  Line out{line};
  line[0] = 0;
  Rest rest{frame, bytes};
  if (!rest.Skip(14)) {
    out.Add("frame of %u bytes", bytes);
    return out.used;
  }
  uint32_t type = Be16(frame + 12), vlan = 0;
  while ((type == 0x8100 || type == 0x88a8) && rest.bytes >= 4) {
    vlan = Be16(rest.at) & 0xfffu;
    type = Be16(rest.at + 2);
    rest.Skip(4);
  }
  Packet p{};
  if ((type == 0x0800 && ReadIpv4(rest, p)) || (type == 0x86dd && ReadIpv6(rest, p))) {
    TellTransport(out, p, rest);
  } else {
    out.Add("type %04x len %u", type, rest.bytes);
  }
  if (vlan != 0) out.Add(" vlan %u", vlan);
  return out.used;
}

void TraceVi::Tell(char direction, uint32_t frame, uint32_t off, uint32_t bytes) {
  const uint8_t* const data = area_.At(frame, off);
  if (data == nullptr) return;
  char what[kTraceLineMax];
  char line[kTraceLineMax + 32];
  DescribeFrame(data, bytes, what);
  const uint64_t now_us = clock_(context_) / 1000;
  snprintf(line, sizeof line, "%" PRIu64 ".%06" PRIu64 " %c %s", now_us / 1'000'000,
           now_us % 1'000'000, direction, what);
  sink_(context_, line);
}

uint32_t TraceVi::Receive(ViRx* rx, uint32_t max) {
  const uint32_t got = inner_.Receive(rx, max);
  for (uint32_t i = 0; i < got; i++) Tell('<', rx[i].frame, rx[i].off, rx[i].bytes);
  return got;
}

uint32_t TraceVi::Send(const ViTx* tx, uint32_t count) {
  const uint32_t took = inner_.Send(tx, count);
  // They are the VI's now, but not before the next Kick() by the same thread.
  for (uint32_t i = 0; i < took; i++) Tell('>', tx[i].frame, tx[i].off, tx[i].bytes);
  return took;
}

}  // namespace postern
