// SPDX-License-Identifier: Apache-2.0
// runner_packets.cc - packets of a script: made for the system, or compared with what it sent.
#include <algorithm>
#include <cstring>

#include "../unit/kit/known_stream.h"
#include "runner.h"

namespace postern::scripts {
namespace {

constexpr int64_t kWaitUs = 2'000'000;  // for a packet that is late, before it is missed

// 192.0.2.1 (RFC 5737), 2001:db8::1 (RFC 3849): the other end. 192.168.0.1, fd3d:fa7b:d17d::1:
// ours.
Address Remote(bool is_v6) {
  Address out;
  out.is_v6 = is_v6;
  if (is_v6) {
    out.bytes = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  } else {
    out.bytes = {192, 0, 2, 1};
  }
  return out;
}
Address Local(bool is_v6) {
  Address out;
  out.is_v6 = is_v6;
  if (is_v6) {
    out.bytes = {0xfd, 0x3d, 0xfa, 0x7b, 0xd1, 0x7d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  } else {
    out.bytes = {192, 168, 0, 1};
  }
  return out;
}

void Set32(uint8_t* at, uint32_t value) {
  for (int i = 0; i < 4; i++) at[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}

// Adds to each number of the SACK blocks, wherever they are.
void MoveSacks(Bytes& options, uint32_t by) {
  for (size_t at = 0; at + 1 < options.size();) {
    if (options[at] == 1) {
      at++;
      continue;
    }
    if (options[at] == 0 || options[at + 1] < 2) return;
    const size_t end = std::min<size_t>(at + options[at + 1], options.size());
    for (size_t block = at + 2; options[at] == 5 && block + 4 <= end; block += 4)
      Set32(&options[block], Get32(&options[block]) + by);
    at = end;
  }
}

// Where the timestamps are, or null.
uint8_t* Timestamps(Bytes& options) {
  for (size_t at = 0; at + 1 < options.size();) {
    if (options[at] == 1) {
      at++;
      continue;
    }
    if (options[at] == 0 || options[at + 1] < 2) return nullptr;
    if (options[at] == 8 && at + 10 <= options.size()) return &options[at + 2];
    at += options[at + 1];
  }
  return nullptr;
}

// Without what only fills up the last word.
Bytes Trimmed(Bytes options) {
  while (!options.empty() && options.back() == 0 && Timestamps(options) == nullptr &&
         ReadOptions(options).sack_count == 0)
    options.pop_back();
  return options;
}

}  // namespace

void Runner::Collect() {
  Bytes bytes;
  uint64_t at_ns = 0;
  while (sut_.PacketOut(bytes, at_ns)) {
    TcpPacket packet;
    IcmpPacket icmp;
    std::string why;
    const Decoded kind = Decode(bytes.data(), bytes.size(), packet, icmp, why);
    if (kind == Decoded::kTcp) {
      sent_.push_back({std::move(packet), at_ns});
    } else if (error_.empty()) {
      error_ = path_ + ": a broken packet was sent: " + why;
    }
  }
}

// ---- connections

Runner::Map* Runner::MapFor(const PacketSpec& spec) {
  if (spec.source_port == 0) return current_;
  const uint16_t remote = spec.is_inbound ? spec.source_port : spec.destination_port;
  for (Map& map : maps_) {
    if (map.in.source_port == remote) return &map;
  }
  return nullptr;
}

// A SYN that comes in makes a connection of its own.
Runner::Map& Runner::NewMap(const PacketSpec& spec) {
  maps_.emplace_back();
  Map& map = maps_.back();
  map.in.source = Remote(options_.is_v6);
  map.in.destination = Local(options_.is_v6);
  map.in.source_port = spec.source_port != 0 ? spec.source_port : next_port_++;
  map.in.destination_port = spec.destination_port != 0 ? spec.destination_port : kServicePort;
  map.remote_offset = 0xfffff000u;  // wraps after 4 KiB
  current_ = &map;
  return map;
}

// ---- in

Bytes Runner::InboundOptions(const PacketSpec& spec, const Map& map) const {
  Bytes options = spec.options;
  MoveSacks(options, map.local_offset);
  if (uint8_t* ts = Timestamps(options); ts != nullptr && (spec.flags & tcp::kAck) != 0) {
    const uint32_t echo = Get32(ts + 4);
    const auto known = map.ts_wire.find(echo);
    Set32(ts + 4, known != map.ts_wire.end() ? known->second
                  : map.has_ts               ? echo + map.ts_offset
                                             : echo);
  }
  return options;
}

bool Runner::PlayPacketIn(const Event& event) {
  const PacketSpec& spec = event.packet;
  Map* map = MapFor(spec);
  const bool opens = (spec.flags & (tcp::kSyn | tcp::kAck)) == tcp::kSyn;
  // A SYN for a connection that we have not heard of, or a new one while none is half open.
  if (map == nullptr ||
      (opens && (map->has_local || map->fd >= 0) && !map->is_active && spec.source_port == 0))
    map = &NewMap(spec);
  current_ = map;
  TcpPacket packet;
  packet.flow = map->in;
  packet.tos = spec.tos;
  packet.seq = spec.seq + map->remote_offset;
  packet.ack = spec.has_ack ? spec.ack + map->local_offset : 0;
  packet.flags = spec.flags;
  packet.window = spec.window;
  packet.urgent = spec.urgent;
  packet.options = InboundOptions(spec, *map);
  packet.payload.resize(spec.bytes);
  FillStream(packet.payload.data(), spec.bytes, kPayloadSeed, spec.seq);
  const Bytes bytes = Encode(packet);
  sut_.PacketIn(bytes.data(), bytes.size());
  Collect();
  return TryPending();
}

bool Runner::PlayIcmp(const Event& event) {
  const PacketSpec& spec = event.packet;
  if (!spec.is_inbound || current_ == nullptr) return Fail(event, "ICMP without a connection");
  struct Code {
    const char *type, *code;
    uint8_t v4_type, v4_code, v6_type, v6_code;
  };
  static const Code kCodes[] = {
      {"unreachable", "frag_needed", 3, 4, 2, 0},
      {"unreachable", "net_unreachable", 3, 0, 1, 0},
      {"unreachable", "host_unreachable", 3, 1, 1, 3},
      {"unreachable", "protocol_unreachable", 3, 2, 4, 1},
      {"unreachable", "port_unreachable", 3, 3, 1, 4},
      {"unreachable", "net_prohibited", 3, 9, 1, 1},
      {"unreachable", "host_prohibited", 3, 10, 1, 1},
      {"unreachable", "packet_filtered", 3, 13, 1, 1},
      {"unreachable", "source_route_failed", 3, 5, 1, 0},
      {"unreachable", "net_unknown", 3, 6, 1, 0},
      {"unreachable", "host_unknown", 3, 7, 1, 3},
      {"unreachable", "source_host_isolated", 3, 8, 1, 3},
      {"unreachable", "net_unreachable_for_tos", 3, 11, 1, 0},
      {"unreachable", "host_unreachable_for_tos", 3, 12, 1, 3},
      {"packet_too_big", "", 3, 4, 2, 0},
      {"time_exceeded", "exceeded_in_transit", 11, 0, 3, 0},
  };
  const Code* found = nullptr;
  for (const Code& code : kCodes) {
    if (spec.icmp_type == code.type && spec.icmp_code == code.code) found = &code;
  }
  if (found == nullptr)
    return Fail(event, "ICMP " + spec.icmp_type + " " + spec.icmp_code + " is not known");
  IcmpPacket packet;
  packet.source = current_->in.source;
  packet.destination = current_->in.destination;
  packet.type = options_.is_v6 ? found->v6_type : found->v4_type;
  packet.code = options_.is_v6 ? found->v6_code : found->v4_code;
  packet.mtu = spec.mtu;
  packet.quoted = current_->in.Back();
  packet.quoted_seq = spec.seq + current_->local_offset;
  const Bytes bytes = Encode(packet);
  sut_.PacketIn(bytes.data(), bytes.size());
  Collect();
  return TryPending();
}

// ---- out

std::string Runner::Show(const TcpPacket& packet, const Map* map) const {
  const uint32_t local = map == nullptr ? 0 : map->local_offset;
  const uint32_t remote = map == nullptr ? 0 : map->remote_offset;
  const uint32_t seq = packet.seq - local;
  const size_t bytes = packet.payload.size();
  Bytes options = packet.options;
  MoveSacks(options, 0u - remote);
  std::string out = ShowFlags(packet.flags) + " " + std::to_string(seq) + ":" +
                    std::to_string(seq + static_cast<uint32_t>(bytes)) + "(" +
                    std::to_string(bytes) + ")";
  if ((packet.flags & tcp::kAck) != 0) out += " ack " + std::to_string(packet.ack - remote);
  out += " win " + std::to_string(packet.window);
  if (packet.urgent != 0) out += " urg " + std::to_string(packet.urgent);
  if (!options.empty()) out += " <" + ShowOptions(options) + ">";
  if ((packet.tos & 3) != 0) out += " tos " + std::to_string(packet.tos);
  return out;
}

// The next packet that was sent; time goes on until there is one.
bool Runner::NextOut(const Event& event, Sent& sent) {
  Collect();
  const int64_t end_us = std::max(event.time_us, event.time_end_us) + kWaitUs;
  const bool is_any = event.time == TimeKind::kAny;
  while (sent_.empty()) {
    const uint64_t next_ns = sut_.NextDeadlineNs();
    const uint64_t end_ns = start_ns_ + static_cast<uint64_t>(end_us) * 1000;
    if (next_ns == UINT64_MAX || (!is_any && next_ns > end_ns))
      return Fail(event, "no packet was sent");
    AdvanceUs(static_cast<int64_t>((next_ns - start_ns_ + 999) / 1000));
    if (!error_.empty()) return false;
  }
  sent = std::move(sent_.front());
  sent_.pop_front();
  return true;
}

// Kernels hand several segments down as one, and scripts say so: segments that follow each other
// are taken together until `bytes` are there.
bool Runner::Join(const Event& event, uint32_t bytes, Sent& sent) {
  while (sent.packet.payload.size() < bytes && (sent.packet.flags & tcp::kFin) == 0) {
    Collect();
    if (sent_.empty()) return true;
    const TcpPacket& next = sent_.front().packet;
    const uint32_t end = sent.packet.seq + static_cast<uint32_t>(sent.packet.payload.size());
    if (next.flow != sent.packet.flow || next.seq != end || next.payload.empty() ||
        next.ack != sent.packet.ack)
      return true;
    if ((sent.packet.flags & tcp::kPsh) != 0 &&
        sent.packet.payload.size() + next.payload.size() > bytes)
      return Fail(event, "segments that do not add up");
    sent.packet.payload.insert(sent.packet.payload.end(), next.payload.begin(), next.payload.end());
    sent.packet.flags |= next.flags;
    sent.packet.window = next.window;
    sent_.pop_front();
  }
  return true;
}

bool Runner::PlayPacketOut(const Event& event) {
  const PacketSpec& spec = event.packet;
  Sent sent;
  if (!NextOut(event, sent)) return false;
  const bool is_syn = (sent.packet.flags & (tcp::kSyn | tcp::kAck)) == tcp::kSyn;
  Map* map = nullptr;
  for (Map& known : maps_) {
    if (known.in.Back() == sent.packet.flow) map = &known;
  }
  if (map == nullptr && is_syn) {
    map = &NewMap(spec);
    map->in = sent.packet.flow.Back();
    map->is_active = true;
    if (connecting_fd_ >= 0) {
      map->fd = connecting_fd_;
      fd_maps_[connecting_fd_] = map;
      connecting_fd_ = -1;
    }
  }
  if (map == nullptr)
    return Fail(event, "a packet of no connection was sent: " + Show(sent.packet, nullptr));
  const bool is_first = !map->has_local && (sent.packet.flags & tcp::kSyn) != 0;
  if (is_first) {
    map->has_local = true;
    map->local_offset = sent.packet.seq - spec.seq;
  }
  if (!Join(event, spec.bytes, sent)) return false;
  if (!Matches(event, *map, sent)) return false;
  const int64_t at_us = static_cast<int64_t>((sent.at_ns - start_ns_) / 1000);
  return InTime(event, event.time, event.time_us, event.time_end_us, at_us, last_time_us_,
                ("sent " + Show(sent.packet, map)).c_str());
}

std::string Runner::OptionsWrong(const PacketSpec& spec, Map& map, const TcpPacket& packet) {
  if (spec.any_options) return "";
  Bytes want = spec.options, is = packet.options;
  MoveSacks(is, 0u - map.remote_offset);
  uint8_t *want_ts = Timestamps(want), *is_ts = Timestamps(is);
  if (want_ts != nullptr && is_ts != nullptr) {
    const uint32_t script = Get32(want_ts), wire = Get32(is_ts);
    map.ts_wire[script] = wire;
    if (!map.has_ts) map.ts_offset = wire - script;
    map.has_ts = true;
    Set32(is_ts, script);  // the clock's own business
  }
  if (Trimmed(want) == Trimmed(is)) return "";
  return "options <" + ShowOptions(is) + ">, expected <" + ShowOptions(want) + ">";
}

bool Runner::Matches(const Event& event, Map& map, const Sent& sent) {
  const PacketSpec& spec = event.packet;
  const TcpPacket& packet = sent.packet;
  std::string wrong;
  const auto differ = [&](const char* what, uint32_t is, uint32_t want) {
    if (is == want || !wrong.empty()) return;
    wrong = std::string(what) + " " + std::to_string(is) + ", expected " + std::to_string(want);
  };
  if (packet.flags != spec.flags)
    wrong = "flags " + ShowFlags(packet.flags) + ", expected " + ShowFlags(spec.flags);
  differ("sequence number", packet.seq - map.local_offset, spec.seq);
  differ("payload", static_cast<uint32_t>(packet.payload.size()), spec.bytes);
  if (spec.has_ack) differ("acknowledgement", packet.ack - map.remote_offset, spec.ack);
  if (spec.has_window) differ("window", packet.window, spec.window);
  differ("urgent pointer", packet.urgent, spec.urgent);
  if (spec.any_ect) {
    if ((packet.tos & 3) != 1 && (packet.tos & 3) != 2) differ("ECN bits", packet.tos & 3u, 2);
  } else if (spec.has_tos) {
    differ("TOS", spec.ecn_only ? packet.tos & 3u : packet.tos, spec.tos);
  }
  if (wrong.empty()) wrong = OptionsWrong(spec, map, packet);
  const uint32_t pos = packet.seq - map.local_offset - 1;  // the SYN has the first number
  if (wrong.empty() && pos < map.written.size()) {
    const size_t known = std::min<size_t>(packet.payload.size(), map.written.size() - pos);
    if (known != 0 && memcmp(packet.payload.data(), &map.written[pos], known) != 0)
      wrong = "payload that the program has not written";
  }
  return wrong.empty() || Fail(event, wrong + ", in " + Show(packet, &map));
}

}  // namespace postern::scripts
