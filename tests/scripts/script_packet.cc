// SPDX-License-Identifier: Apache-2.0
// script_packet.cc - IP packets of the script tier: checksums, layouts, options.
#include "script_packet.h"

#include <cstring>

namespace postern::scripts {
namespace {

constexpr uint8_t kTcp = 6, kIcmpV4 = 1, kIcmpV6 = 58;
constexpr uint8_t kEol = 0, kNop = 1, kMss = 2, kWindowScale = 3, kSackPermitted = 4, kSack = 5,
                  kTimestamps = 8;

void Put16(Bytes& out, uint32_t value) {
  out.push_back(static_cast<uint8_t>(value >> 8));
  out.push_back(static_cast<uint8_t>(value));
}
void Put32(Bytes& out, uint32_t value) {
  Put16(out, value >> 16);
  Put16(out, value & 0xffff);
}
void Set16(Bytes& out, size_t at, uint32_t value) {
  out[at] = static_cast<uint8_t>(value >> 8);
  out[at + 1] = static_cast<uint8_t>(value);
}

// RFC 1071. The sum goes on over several pieces, of even sizes but for the last.
uint32_t Sum(const uint8_t* data, size_t bytes, uint32_t sum = 0) {
  for (size_t i = 0; i + 1 < bytes; i += 2) sum += Get16(data + i);
  if (bytes % 2 != 0) sum += static_cast<uint32_t>(data[bytes - 1] << 8);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

uint32_t PseudoSum(const Address& source, const Address& destination, uint8_t protocol,
                   size_t bytes) {
  const size_t size = source.is_v6 ? 16 : 4;
  const uint32_t sum = Sum(source.bytes.data(), size, Sum(destination.bytes.data(), size));
  return sum + protocol + static_cast<uint32_t>(bytes);
}

Bytes IpHeader(const Address& source, const Address& destination, uint8_t protocol, uint8_t tos,
               uint8_t ttl, size_t payload_bytes) {
  Bytes out;
  if (source.is_v6) {
    Put32(out, uint32_t{6} << 28 | static_cast<uint32_t>(tos << 20));
    Put16(out, static_cast<uint32_t>(payload_bytes));
    out.push_back(protocol);
    out.push_back(ttl);
    out.insert(out.end(), source.bytes.begin(), source.bytes.end());
    out.insert(out.end(), destination.bytes.begin(), destination.bytes.end());
    return out;
  }
  out = {0x45, tos};
  Put16(out, static_cast<uint32_t>(20 + payload_bytes));
  Put32(out, 0x4000);  // no identification, DF
  out.push_back(ttl);
  out.push_back(protocol);
  Put16(out, 0);
  out.insert(out.end(), source.bytes.begin(), source.bytes.begin() + 4);
  out.insert(out.end(), destination.bytes.begin(), destination.bytes.begin() + 4);
  Set16(out, 10, ~Sum(out.data(), 20));
  return out;
}

struct Ip {
  Address source, destination;
  uint8_t protocol = 0, tos = 0, ttl = 0;
  const uint8_t* payload = nullptr;
  size_t bytes = 0;
};

// False: `why`. A quoted header may be cut short behind it.
bool ReadIp(const uint8_t* data, size_t bytes, bool is_quoted, Ip& ip, std::string& why) {
  size_t header = 0, total = 0;
  if (bytes >= 20 && data[0] >> 4 == 4) {
    header = static_cast<size_t>(data[0] & 15) * 4;
    total = Get16(data + 2);
    ip.tos = data[1];
    ip.ttl = data[8];
    ip.protocol = data[9];
    if (header < 20 || header > bytes) return why = "IPv4 header length", false;
    if (!is_quoted && Sum(data, header) != 0xffff) return why = "IPv4 checksum", false;
    memcpy(ip.source.bytes.data(), data + 12, 4);
    memcpy(ip.destination.bytes.data(), data + 16, 4);
  } else if (bytes >= 40 && data[0] >> 4 == 6) {
    header = 40;
    total = 40 + Get16(data + 4);
    ip.tos = static_cast<uint8_t>(data[0] << 4 | data[1] >> 4);
    ip.protocol = data[6];
    ip.ttl = data[7];
    ip.source.is_v6 = ip.destination.is_v6 = true;
    memcpy(ip.source.bytes.data(), data + 8, 16);
    memcpy(ip.destination.bytes.data(), data + 24, 16);
  } else {
    return why = "not an IP packet", false;
  }
  if (total < header || (total > bytes && !is_quoted)) return why = "IP length", false;
  ip.payload = data + header;
  ip.bytes = std::min(total, bytes) - header;
  return true;
}

bool ReadTcp(const Ip& ip, TcpPacket& out, std::string& why) {
  if (ip.bytes < 20) return why = "TCP header cut off", false;
  const uint8_t* at = ip.payload;
  const size_t header = static_cast<size_t>(at[12] >> 4) * 4;
  if (header < 20 || header > ip.bytes) return why = "TCP data offset", false;
  if (Sum(at, ip.bytes, PseudoSum(ip.source, ip.destination, kTcp, ip.bytes)) != 0xffff)
    return why = "TCP checksum", false;
  out.flow = {ip.source, ip.destination, static_cast<uint16_t>(Get16(at)),
              static_cast<uint16_t>(Get16(at + 2))};
  out.tos = ip.tos;
  out.ttl = ip.ttl;
  out.seq = Get32(at + 4);
  out.ack = Get32(at + 8);
  out.flags = at[13];
  out.window = static_cast<uint16_t>(Get16(at + 14));
  out.urgent = static_cast<uint16_t>(Get16(at + 18));
  out.options.assign(at + 20, at + header);
  out.payload.assign(at + header, at + ip.bytes);
  return true;
}

bool ReadIcmp(const Ip& ip, IcmpPacket& out, std::string& why) {
  if (ip.bytes < 8) return why = "ICMP header cut off", false;
  const uint8_t* at = ip.payload;
  const uint32_t start =
      ip.source.is_v6 ? PseudoSum(ip.source, ip.destination, kIcmpV6, ip.bytes) : 0;
  if (Sum(at, ip.bytes, start) != 0xffff) return why = "ICMP checksum", false;
  out.source = ip.source;
  out.destination = ip.destination;
  out.type = at[0];
  out.code = at[1];
  out.mtu = ip.source.is_v6 ? Get32(at + 4) : Get16(at + 6);
  Ip quoted;
  if (!ReadIp(at + 8, ip.bytes - 8, true, quoted, why)) return false;
  if (quoted.protocol != kTcp || quoted.bytes < 8) return why = "quotes no TCP segment", false;
  out.quoted = {quoted.source, quoted.destination, static_cast<uint16_t>(Get16(quoted.payload)),
                static_cast<uint16_t>(Get16(quoted.payload + 2))};
  out.quoted_seq = Get32(quoted.payload + 4);
  return true;
}

}  // namespace

Bytes Encode(const TcpPacket& packet) {
  Bytes segment;
  Put16(segment, packet.flow.source_port);
  Put16(segment, packet.flow.destination_port);
  Put32(segment, packet.seq);
  Put32(segment, packet.ack);
  segment.push_back(static_cast<uint8_t>((20 + packet.options.size()) / 4 << 4));
  segment.push_back(packet.flags);
  Put16(segment, packet.window);
  Put16(segment, 0);
  Put16(segment, packet.urgent);
  segment.insert(segment.end(), packet.options.begin(), packet.options.end());
  segment.insert(segment.end(), packet.payload.begin(), packet.payload.end());
  const Address &source = packet.flow.source, &destination = packet.flow.destination;
  Set16(segment, 16,
        ~Sum(segment.data(), segment.size(), PseudoSum(source, destination, kTcp, segment.size())));
  Bytes out = IpHeader(source, destination, kTcp, packet.tos, packet.ttl, segment.size());
  out.insert(out.end(), segment.begin(), segment.end());
  return out;
}

Bytes Encode(const IcmpPacket& packet) {
  const uint8_t protocol = packet.source.is_v6 ? kIcmpV6 : kIcmpV4;
  Bytes message = {packet.type, packet.code, 0, 0};
  Put32(message, packet.mtu);
  const Bytes quoted = IpHeader(packet.quoted.source, packet.quoted.destination, kTcp, 0, 64, 20);
  message.insert(message.end(), quoted.begin(), quoted.end());
  Put16(message, packet.quoted.source_port);
  Put16(message, packet.quoted.destination_port);
  Put32(message, packet.quoted_seq);
  const uint32_t start =
      packet.source.is_v6 ? PseudoSum(packet.source, packet.destination, protocol, message.size())
                          : 0;
  Set16(message, 2, ~Sum(message.data(), message.size(), start));
  Bytes out = IpHeader(packet.source, packet.destination, protocol, 0, 64, message.size());
  out.insert(out.end(), message.begin(), message.end());
  return out;
}

Decoded Decode(const uint8_t* data, size_t bytes, TcpPacket& tcp, IcmpPacket& icmp,
               std::string& why) {
  Ip ip;
  if (!ReadIp(data, bytes, false, ip, why)) return Decoded::kBad;
  if (ip.protocol == kTcp) return ReadTcp(ip, tcp, why) ? Decoded::kTcp : Decoded::kBad;
  if (ip.protocol == (ip.source.is_v6 ? kIcmpV6 : kIcmpV4))
    return ReadIcmp(ip, icmp, why) ? Decoded::kIcmp : Decoded::kBad;
  return Decoded::kOther;
}

// ---- options

// SYN: mss, sackOK + timestamps, nop + wscale; others: nop nop timestamps, nop nop sack. Each group
// fills whole words.
Bytes OptionBytes(const tcp::SegmentOptions& o) {
  Bytes out;
  if (o.mss != 0) {
    out.insert(out.end(), {kMss, 4});
    Put16(out, o.mss);
  }
  if (o.has_timestamps) {
    if (o.sack_permitted) {
      out.insert(out.end(), {kSackPermitted, 2});
    } else {
      out.insert(out.end(), {kNop, kNop});
    }
    out.insert(out.end(), {kTimestamps, 10});
    Put32(out, o.ts_value);
    Put32(out, o.ts_echo);
  } else if (o.sack_permitted) {
    out.insert(out.end(), {kNop, kNop, kSackPermitted, 2});
  }
  if (o.has_window_scale) out.insert(out.end(), {kNop, kWindowScale, 3, o.window_scale});
  if (o.sack_count != 0) {
    out.insert(out.end(), {kNop, kNop, kSack, static_cast<uint8_t>(2 + 8 * o.sack_count)});
    for (uint32_t i = 0; i < o.sack_count; i++) {
      Put32(out, o.sack[i].left.value());
      Put32(out, o.sack[i].right.value());
    }
  }
  return out;
}

namespace {

// The next option behind `at`: its kind, and where its body is. False: the end.
bool NextOption(const Bytes& options, size_t& at, uint8_t& kind, const uint8_t*& body,
                size_t& bytes) {
  if (at >= options.size() || options[at] == kEol) return false;
  kind = options[at];
  bytes = 0;
  if (kind == kNop) {
    at++;
    return true;
  }
  if (at + 1 >= options.size() || options[at + 1] < 2 || at + options[at + 1] > options.size())
    return false;
  body = &options[at] + 2;
  bytes = options[at + 1] - 2u;
  at += options[at + 1];
  return true;
}

}  // namespace

tcp::SegmentOptions ReadOptions(const Bytes& options) {
  tcp::SegmentOptions out;
  size_t at = 0, bytes = 0;
  uint8_t kind = 0;
  const uint8_t* body = nullptr;
  while (NextOption(options, at, kind, body, bytes)) {
    if (kind == kMss && bytes == 2) {
      out.mss = static_cast<uint16_t>(Get16(body));
    } else if (kind == kWindowScale && bytes == 1) {
      out.has_window_scale = true;
      out.window_scale = body[0];
    } else if (kind == kSackPermitted && bytes == 0) {
      out.sack_permitted = true;
    } else if (kind == kTimestamps && bytes == 8) {
      out.has_timestamps = true;
      out.ts_value = Get32(body);
      out.ts_echo = Get32(body + 4);
    } else if (kind == kSack && bytes % 8 == 0) {
      for (; bytes != 0 && out.sack_count < tcp::kSackBlocksMax; bytes -= 8, body += 8)
        out.sack[out.sack_count++] = {tcp::Seq(Get32(body)), tcp::Seq(Get32(body + 4))};
    }
  }
  return out;
}

std::string ShowOptions(const Bytes& options) {
  std::string out;
  size_t at = 0, bytes = 0;
  uint8_t kind = 0;
  const uint8_t* body = nullptr;
  const auto number = [](uint32_t value) { return std::to_string(value); };
  while (NextOption(options, at, kind, body, bytes)) {
    if (!out.empty()) out += ',';
    if (kind == kNop) {
      out += "nop";
    } else if (kind == kMss && bytes == 2) {
      out += "mss " + number(Get16(body));
    } else if (kind == kWindowScale && bytes == 1) {
      out += "wscale " + number(body[0]);
    } else if (kind == kSackPermitted) {
      out += "sackOK";
    } else if (kind == kTimestamps && bytes == 8) {
      out += "TS val " + number(Get32(body)) + " ecr " + number(Get32(body + 4));
    } else if (kind == kSack) {
      out += "sack";
      for (size_t i = 0; i + 8 <= bytes; i += 8)
        out += " " + number(Get32(body + i)) + ":" + number(Get32(body + i + 4));
    } else {
      out += "kind " + number(kind);
    }
  }
  return out;
}

std::string ShowFlags(uint8_t flags) {
  std::string out;
  const struct {
    uint8_t bit;
    char name;
  } kNames[] = {{tcp::kFin, 'F'}, {tcp::kSyn, 'S'}, {tcp::kRst, 'R'}, {tcp::kPsh, 'P'},
                {tcp::kUrg, 'U'}, {tcp::kEce, 'E'}, {tcp::kCwr, 'W'}, {tcp::kAck, '.'}};
  for (const auto& name : kNames) {
    if ((flags & name.bit) != 0) out += name.name;
  }
  return out.empty() ? "-" : out;
}

}  // namespace postern::scripts
