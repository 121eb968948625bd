// steer.cc - see steer.h.
// SPDX-License-Identifier: Apache-2.0
#include "steer.h"

#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/ip_address.h"

namespace postern::softnic {
namespace {

constexpr uint32_t kKnown = 65536, kPieces = 4096;  // powers of two
constexpr uint16_t kIpv4 = 0x0800, kIpv6 = 0x86dd, kVlan = 0x8100, kServiceVlan = 0x88a8;
constexpr uint32_t kExtensionsMax = 4;
constexpr uint8_t kHopByHop = 0, kRouting = 43, kFragment = 44, kDestination = 60, kIcmpv6 = 58;
constexpr uint8_t kSyn = 2, kAck = 16, kRst = 4;

uint64_t HashBytes(uint64_t seed, const void* data, size_t bytes) {
  uint64_t h = seed;
  const auto* at = static_cast<const uint8_t*>(data);
  for (; bytes >= 4; bytes -= 4, at += 4) {
    uint32_t word;
    memcpy(&word, at, sizeof(word));
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
  }
  return h ^ h >> 32;
}

pstn_xdp_ip MapIpv4(const uint8_t* ip) {
  pstn_xdp_ip mapped;
  memcpy(mapped.byte, Ipv4At(ip).bytes, sizeof(mapped.byte));
  return mapped;
}

uint16_t Read16(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }

}  // namespace

template <typename Key>
size_t Steer::Hash<Key>::operator()(const Key& key) const {
  static_assert(sizeof(Key) % 4 == 0);
  return HashBytes(seed, &key, sizeof(key));
}

template <typename Key>
bool Steer::Same<Key>::operator()(const Key& a, const Key& b) const {
  return memcmp(&a, &b, sizeof(a)) == 0;
}

// What has been read so far. `at` is the next byte that has not.
struct Steer::Packet {
  const uint8_t* at;
  const uint8_t* end;
  pstn_xdp_ip src{}, dst{};
  uint32_t id = 0;  // of its fragments
  uint16_t vlan = 0;
  uint8_t protocol = 0;
  uint8_t tcp_flags = 0;
  bool is_fragment = false, is_first = true, is_ipv6 = false;

  // Null if the packet is shorter.
  const uint8_t* Take(size_t bytes) {
    if (static_cast<size_t>(end - at) < bytes) return nullptr;
    return std::exchange(at, at + bytes);
  }
  bool ReadIp(uint16_t type) {
    if (type == kIpv4) return ReadIpv4();
    return type == kIpv6 && ReadIpv6();
  }
  bool ReadIpv4();
  bool ReadIpv6();
};

bool Steer::Packet::ReadIpv4() {
  const uint8_t* const ip = Take(20);
  if (ip == nullptr || ip[0] >> 4 != 4 || (ip[0] & 15) < 5) return false;
  if (Take(size_t{ip[0] & 15U} * 4 - 20) == nullptr) return false;
  const uint16_t fragment = Read16(ip + 6);
  src = MapIpv4(ip + 12);
  dst = MapIpv4(ip + 16);
  protocol = ip[9];
  id = Read16(ip + 4);
  is_ipv6 = false;
  is_fragment = (fragment & 0x3fff) != 0;
  is_first = (fragment & 0x1fff) == 0;
  return true;
}

// RFC 8200, 4: those that can stand before TCP and UDP.
bool Steer::Packet::ReadIpv6() {
  const uint8_t* const ip = Take(40);
  if (ip == nullptr || ip[0] >> 4 != 6) return false;
  memcpy(src.byte, ip + 8, 16);
  memcpy(dst.byte, ip + 24, 16);
  protocol = ip[6];
  is_ipv6 = true;
  is_fragment = false;
  is_first = true;
  const auto is_extension = [](uint8_t kind) {
    return kind == kHopByHop || kind == kRouting || kind == kDestination || kind == kFragment;
  };
  for (uint32_t i = 0; i < kExtensionsMax; i++) {
    const uint8_t kind = protocol;
    if (!is_extension(kind) || !is_first) return true;  // the rest is data
    const uint8_t* const e = Take(8);
    if (e == nullptr) return false;
    protocol = e[0];
    if (kind == kFragment) {
      is_fragment = (Read16(e + 2) & 0xfff9) != 0;  // offset or M
      is_first = (Read16(e + 2) & 0xfff8) == 0;
      memcpy(&id, e + 4, sizeof(id));
    } else if (Take(size_t{e[1]} * 8) == nullptr) {
      return false;
    }
  }
  return !is_extension(protocol);
}

Steer::Steer(uint64_t seed, Asked kernel_has)
    : seed_(seed),
      kernel_has_(std::move(kernel_has)),
      flows_(64, Hash<pstn_xdp_flow>{seed}),
      ports_(64, Hash<pstn_xdp_port>{seed}),
      local_(64, Hash<pstn_xdp_ip>{seed}),
      known_(kKnown),
      pieces_(kPieces) {}

// ---- a packet ----------------------------------------------------------------------------------

Steer::Known& Steer::KnownAt(const pstn_xdp_flow& flow) {
  return known_[HashBytes(seed_, &flow, sizeof(flow)) & (kKnown - 1)];
}

// Of a port's filter.
bool Steer::IsKernels(const Packet& p, const pstn_xdp_flow& flow, const pstn_xdp_target& target) {
  if (p.protocol != IPPROTO_TCP) return false;
  Known& known = KnownAt(flow);
  const bool begins = (p.tcp_flags & (kSyn | kAck | kRst)) == kSyn;
  if (!begins && known.is_known && !known.by_flow && Same<pstn_xdp_flow>()(known.flow, flow))
    return known.is_kernels;
  const bool minds_listeners =
      (target.flags & PSTN_XDP_OUTGOING) != 0 || (begins && (target.flags & PSTN_XDP_ENDED) != 0);
  const Holder holder = kernel_has_(flow, begins ? Why::kBegins : Why::kUnknown);
  const bool is_listeners = holder.has == Has::kListener;
  const bool is_kernels = begins && !minds_listeners
                              ? is_listeners && holder.uid != target.uid
                              : holder.has != Has::kNothing && (!is_listeners || minds_listeners);
  known = {flow, true, is_kernels, false};
  return is_kernels;
}

// Of a flow's filter.
bool Steer::HasAnother(const Packet& p, const pstn_xdp_flow& flow, uint32_t uid) {
  if (p.protocol != IPPROTO_TCP) return false;
  Known& known = KnownAt(flow);
  const bool begins = (p.tcp_flags & kSyn) != 0;
  if (!begins && known.is_known && known.by_flow && Same<pstn_xdp_flow>()(known.flow, flow))
    return known.is_kernels;
  const Holder holder = kernel_has_(flow, begins ? Why::kBegins : Why::kUnknown);
  const bool has =
      holder.has == Has::kConnection || (holder.has == Has::kListener && holder.uid != uid);
  known = {flow, true, has, true};
  return has;
}

// The filter for a packet of that flow, if there is one.
const Steer::Target* Steer::Find(const Packet& p, const pstn_xdp_flow& flow) {
  if (const auto it = flows_.find(flow);
      it != flows_.end() && !HasAnother(p, flow, it->second.to.uid))
    return &it->second;
  if (ports_.empty()) return nullptr;
  pstn_xdp_port port{};
  port.local = flow.local;
  port.port = flow.local_port;
  port.vlan = flow.vlan;
  port.protocol = flow.protocol;
  auto it = ports_.find(port);
  if (it == ports_.end() && local_.count(flow.local) != 0) {
    port.local = p.is_ipv6 ? pstn_xdp_ip{} : MapIpv4(pstn_xdp_ip{}.byte);
    it = ports_.find(port);
  }
  if (it == ports_.end()) return nullptr;
  if (!IsKernels(p, flow, it->second.to)) return &it->second;
  counts_[PSTN_XDP_COUNT_KERNELS]++;
  return nullptr;
}

Steer::Piece& Steer::PieceAt(const pstn_xdp_fragments& key) {
  return pieces_[HashBytes(seed_, &key, sizeof(key)) & (kPieces - 1)];
}

uint32_t Steer::RouteFragment(const Packet& p) {
  const pstn_xdp_fragments key = {p.src, p.dst, p.id, p.protocol};
  const Piece& piece = PieceAt(key);
  if (piece.is_used && Same<pstn_xdp_fragments>()(piece.key, key)) return piece.slot;
  counts_[PSTN_XDP_COUNT_FRAGMENTS]++;
  return kKernel;
}

// An error goes where the packet that it is about came from.
uint32_t Steer::RouteIcmp(Packet& p) {
  const uint8_t* const icmp = p.Take(8);
  if (icmp == nullptr || p.is_fragment) return kKernel;
  const uint8_t type = icmp[0];
  const bool is_error = p.is_ipv6 ? type >= 1 && type <= 4  // RFC 4443, 3; RFC 792
                                  : type == 3 || type == 4 || type == 11 || type == 12;
  Packet inner{p.at, p.end};
  inner.vlan = p.vlan;
  if (!is_error || !inner.ReadIp(p.is_ipv6 ? kIpv6 : kIpv4) || !inner.is_first) return kKernel;
  if (inner.protocol != IPPROTO_TCP && inner.protocol != IPPROTO_UDP) return kKernel;
  const uint8_t* const ports = inner.Take(4);
  if (ports == nullptr || !Same<pstn_xdp_ip>()(inner.src, p.dst)) return kKernel;
  pstn_xdp_flow flow{inner.src, inner.dst, 0, 0, inner.vlan, inner.protocol, 0};
  memcpy(&flow.local_port, ports, 2);
  memcpy(&flow.peer_port, ports + 2, 2);
  const Target* const target = Find(inner, flow);
  if (target == nullptr || (target->to.flags & PSTN_XDP_PASS) != 0) return kKernel;
  counts_[PSTN_XDP_COUNT_ICMP]++;
  return target->to.slot;
}

uint32_t Steer::RouteSegment(Packet& p) {
  if (!p.is_first) return RouteFragment(p);
  const uint8_t* const ports = p.Take(4);
  if (ports == nullptr) return kKernel;
  if (p.protocol == IPPROTO_TCP && p.end - p.at >= 10) p.tcp_flags = p.at[9];
  pstn_xdp_flow flow{p.dst, p.src, 0, 0, p.vlan, p.protocol, 0};
  memcpy(&flow.local_port, ports + 2, 2);
  memcpy(&flow.peer_port, ports, 2);
  const Target* const target = Find(p, flow);
  if (target == nullptr || (target->to.flags & PSTN_XDP_PASS) != 0) return kKernel;
  if (p.is_fragment) {
    if ((target->to.flags & PSTN_XDP_FRAGMENTS) == 0) {
      counts_[PSTN_XDP_COUNT_FRAGMENTS]++;
      return kKernel;
    }
    const pstn_xdp_fragments key = {p.src, p.dst, p.id, p.protocol};
    PieceAt(key) = {key, target->to.slot, true};
  }
  return target->to.slot;
}

uint32_t Steer::Route(const uint8_t* frame, uint32_t bytes) {
  Packet p{frame, frame + bytes};
  const uint8_t* const ether = p.Take(14);
  if (ether == nullptr || (flows_.empty() && ports_.empty())) return kKernel;
  uint16_t type = Read16(ether + 12);
  for (int i = 0; i < 2 && (type == kVlan || type == kServiceVlan); i++) {
    const uint8_t* const tag = p.Take(4);
    if (tag == nullptr || p.vlan != 0) return kKernel;  // no VI has a tag within a tag
    p.vlan = Read16(tag) & 0x0fff;
    type = Read16(tag + 2);
  }
  if (type != kIpv4 && type != kIpv6) return kKernel;
  if (!p.ReadIp(type)) {
    counts_[PSTN_XDP_COUNT_ODD]++;
    return kKernel;
  }
  uint32_t slot = kKernel;
  if (p.protocol == IPPROTO_TCP || p.protocol == IPPROTO_UDP)
    slot = RouteSegment(p);
  else if (p.protocol == (p.is_ipv6 ? kIcmpv6 : uint8_t{IPPROTO_ICMP}))
    slot = RouteIcmp(p);
  if (slot != kKernel) counts_[PSTN_XDP_COUNT_REDIRECTED]++;
  return slot;
}

// ---- filters -----------------------------------------------------------------------------------

int Steer::AddFlow(const pstn_xdp_flow& flow, const pstn_xdp_target& target, uint64_t owner) {
  if (flows_.size() >= PSTN_XDP_FLOWS_MAX && flows_.count(flow) == 0) return -ENOSPC;
  flows_[flow] = {target, owner};
  return 0;
}

int Steer::AddPort(const pstn_xdp_port& port, const pstn_xdp_target& target, uint64_t owner) {
  if (ports_.size() >= PSTN_XDP_PORTS_MAX && ports_.count(port) == 0) return -ENOSPC;
  // What the kernel had may be over by now, and what was the last owner's is.
  if (ports_.count(port) == 0) {
    for (Known& known : known_) {
      if (known.flow.local_port == port.port) known.is_known = false;
    }
  }
  ports_[port] = {target, owner};
  return 0;
}

template <typename Key>
void Steer::RemoveIfOf(Map<Key>& map, const Key& key, uint32_t slot) {
  const auto it = map.find(key);
  if (it != map.end() && it->second.to.slot == slot) map.erase(it);
}

void Steer::RemoveFlow(const pstn_xdp_flow& flow, uint32_t slot) { RemoveIfOf(flows_, flow, slot); }
void Steer::RemovePort(const pstn_xdp_port& port, uint32_t slot) { RemoveIfOf(ports_, port, slot); }

namespace {

template <typename Map, typename Condition>
void EraseIf(Map& map, const Condition& condition) {
  for (auto it = map.begin(); it != map.end();)
    it = condition(it->second) ? map.erase(it) : std::next(it);
}

}  // namespace

void Steer::DropSlot(uint32_t slot) {
  const auto leads_there = [slot](const Target& target) { return target.to.slot == slot; };
  EraseIf(flows_, leads_there);
  EraseIf(ports_, leads_there);
  for (Piece& piece : pieces_) {
    if (piece.slot == slot) piece.is_used = false;
  }
}

void Steer::Sweep(const std::function<bool(uint64_t owner)>& lives) {
  const auto is_orphan = [&lives](const Target& target) { return !lives(target.owner); };
  EraseIf(flows_, is_orphan);
  EraseIf(ports_, is_orphan);
}

bool Steer::HasFlow(const pstn_xdp_flow& flow) const { return flows_.count(flow) != 0; }
bool Steer::HasPort(const pstn_xdp_port& port) const { return ports_.count(port) != 0; }

void Steer::SetLocal(const pstn_xdp_ip* addresses, uint32_t count) {
  local_.clear();
  local_.insert(addresses, addresses + count);
}

}  // namespace postern::softnic
