// SPDX-License-Identifier: Apache-2.0
// clc_propose.cc - the Proposal: the one message with offsets, counts and optional parts.
//
// The parts have one order and no gaps, so each offset has one right value:
//
//    0        80            88 + 17 n6      E        E+40          E+40+32 eids     +48+10 entries
//    | fixed  | IP area, prefixes           | V2      | UEIDs       | SEID, entries  | trailer |
//               only if path_v1 != none       only if v2_off != 0     only if smcd_off != 0
//
// Walking in that order, with the end checked before each part is read, leaves nothing that could
// point outside; at last the walk must have come to the trailer. Offsets decide what is there, the
// paths only say what is wanted.
#include <cstring>

#include "wire/clc/clc_layout.h"

namespace postern {
namespace {

using clc_wire::At;

// Reads or skips parts in order.
class Walk {
 public:
  Walk(std::span<const uint8_t> bytes, size_t pos)
      : bytes_(bytes), pos_(pos), end_(bytes.size() - sizeof(clc_wire::Trailer)) {}

  size_t pos() const { return pos_; }
  bool at_end() const { return pos_ == end_; }
  bool Has(size_t len_bytes) const { return len_bytes <= end_ - pos_; }
  // After Has().
  template <typename T>
  const T& Take() {
    const T& part = At<T>(bytes_, pos_);
    pos_ += sizeof(T);
    return part;
  }

 private:
  std::span<const uint8_t> bytes_;
  size_t pos_;
  size_t end_;
};

ClcResult ParseIpArea(Walk& walk, ClcProposalV1& v1) {
  if (!walk.Has(sizeof(clc_wire::IpArea))) return ClcResult::Abort(ClcAbort::kLength);
  const auto& area = walk.Take<clc_wire::IpArea>();
  if (area.prefix_count > kClcPrefixesMax) return ClcResult::Abort(ClcAbort::kCount);
  if (!walk.Has(area.prefix_count * sizeof(clc_wire::Prefix)))
    return ClcResult::Abort(ClcAbort::kLength);
  memcpy(v1.subnet, area.subnet, sizeof v1.subnet);
  v1.subnet_bits = area.subnet_bits;
  v1.prefix_count = area.prefix_count;
  for (uint8_t i = 0; i < v1.prefix_count; i++) {
    const auto& prefix = walk.Take<clc_wire::Prefix>();
    memcpy(v1.prefixes[i].address, prefix.address, sizeof prefix.address);
    v1.prefixes[i].bits = prefix.bits;
  }
  return ClcResult::Ok();
}

ClcResult ParseSmcd(Walk& walk, ClcProposal& value) {
  value.has_smcd = 1;
  if (!walk.Has(sizeof(clc_wire::Smcd) + value.entry_count * sizeof(clc_wire::Entry)))
    return ClcResult::Abort(ClcAbort::kLength);
  const auto& smcd = walk.Take<clc_wire::Smcd>();
  memcpy(value.seid.text, smcd.seid, sizeof value.seid.text);
  for (uint8_t i = 0; i < value.entry_count; i++) {
    const auto& entry = walk.Take<clc_wire::Entry>();
    value.entries[i] = {entry.gid.get(), entry.chid.get()};
  }
  return ClcResult::Ok();
}

ClcResult ParseV2(Walk& walk, ClcProposal& value) {
  const size_t start = walk.pos();
  value.has_v2 = 1;
  if (!walk.Has(sizeof(clc_wire::V2))) return ClcResult::Abort(ClcAbort::kLength);
  const auto& v2 = walk.Take<clc_wire::V2>();
  if (v2.ueid_count > kClcEidsMax || v2.entry_count > kClcEntriesMax)
    return ClcResult::Abort(ClcAbort::kCount);
  if (!walk.Has(v2.ueid_count * sizeof(ClcEid))) return ClcResult::Abort(ClcAbort::kLength);
  value.release = v2.release_bits >> 4;
  value.has_seid = v2.release_bits & clc_wire::kSeidPresent;
  value.ueid_count = v2.ueid_count;
  value.entry_count = v2.entry_count;
  memcpy(value.roce_gid_v2, v2.roce_gid, sizeof value.roce_gid_v2);
  value.conns_max = v2.conns_max;
  value.links_max = v2.links_max;
  value.feature_mask = v2.feature_mask.get();
  for (uint8_t i = 0; i < value.ueid_count; i++) value.ueids[i] = walk.Take<ClcEid>();
  if (v2.smcd_off.get() == 0)  // entries have no place without it
    return value.entry_count == 0 ? ClcResult::Ok() : ClcResult::Abort(ClcAbort::kCount);
  if (start + clc_wire::kSmcdOffBase + v2.smcd_off.get() != walk.pos())
    return ClcResult::Abort(ClcAbort::kOffset);
  return ParseSmcd(walk, value);
}

void ParseFixed(const clc_wire::Proposal& p, ClcProposal& value) {
  memcpy(value.v1.peer_id, p.peer_id, sizeof p.peer_id);
  memcpy(value.v1.roce_gid, p.roce_gid, sizeof p.roce_gid);
  memcpy(value.v1.roce_mac, p.roce_mac, sizeof p.roce_mac);
  value.v1.ism_gid = p.ism_gid.get();
  value.v1.ism_chid = p.ism_chid.get();
  memcpy(value.vendor_oui, p.vendor_oui, sizeof p.vendor_oui);
  memcpy(value.vendor_options, p.vendor_options, sizeof p.vendor_options);
}

bool Encodable(const ClcProposal& value) {
  return value.version == 2 && value.v1.prefix_count <= kClcPrefixesMax &&
         value.ueid_count <= kClcEidsMax && value.entry_count <= kClcEntriesMax &&
         (value.has_v2 != 0 || value.has_smcd == 0) &&
         (value.has_smcd != 0 || value.entry_count == 0);
}

// Where each part of a value stands; 0: it has none.
struct Offsets {
  size_t ip = 0, v2 = 0, smcd = 0, len_bytes = 0;
};
Offsets Place(const ClcProposal& value) {
  Offsets at;
  size_t pos = sizeof(clc_wire::Proposal);
  if (value.path_v1 != ClcPath::kNone) {
    at.ip = pos;
    pos += sizeof(clc_wire::IpArea) + value.v1.prefix_count * sizeof(clc_wire::Prefix);
  }
  if (value.has_v2 != 0) {
    at.v2 = pos;
    pos += sizeof(clc_wire::V2) + value.ueid_count * sizeof(ClcEid);
  }
  if (value.has_smcd != 0) {
    at.smcd = pos;
    pos += sizeof(clc_wire::Smcd) + value.entry_count * sizeof(clc_wire::Entry);
  }
  at.len_bytes = pos + sizeof(clc_wire::Trailer);
  return at;
}

void EncodeFixed(const ClcProposal& value, const Offsets& at, clc_wire::Proposal& p) {
  memcpy(p.peer_id, value.v1.peer_id, sizeof p.peer_id);
  memcpy(p.roce_gid, value.v1.roce_gid, sizeof p.roce_gid);
  memcpy(p.roce_mac, value.v1.roce_mac, sizeof p.roce_mac);
  if (at.ip != 0) p.ip_off.set(static_cast<uint16_t>(at.ip - clc_wire::kIpOffBase));
  p.ism_gid.set(value.v1.ism_gid);
  p.ism_chid.set(value.v1.ism_chid);
  if (at.v2 != 0) p.v2_off.set(static_cast<uint16_t>(at.v2 - clc_wire::kV2OffBase));
  memcpy(p.vendor_oui, value.vendor_oui, sizeof p.vendor_oui);
  memcpy(p.vendor_options, value.vendor_options, sizeof p.vendor_options);
}

void EncodeIpArea(const ClcProposalV1& v1, std::span<uint8_t> out) {
  auto& area = At<clc_wire::IpArea>(out, 0);
  memcpy(area.subnet, v1.subnet, sizeof area.subnet);
  area.subnet_bits = v1.subnet_bits;
  area.prefix_count = v1.prefix_count;
  for (uint8_t i = 0; i < v1.prefix_count; i++) {
    auto& prefix = At<clc_wire::Prefix>(out, sizeof area + i * sizeof(clc_wire::Prefix));
    memcpy(prefix.address, v1.prefixes[i].address, sizeof prefix.address);
    prefix.bits = v1.prefixes[i].bits;
  }
}

void EncodeV2(const ClcProposal& value, const Offsets& at, std::span<uint8_t> out) {
  auto& v2 = At<clc_wire::V2>(out, at.v2);
  v2.ueid_count = value.ueid_count;
  v2.entry_count = value.entry_count;
  v2.release_bits = static_cast<uint8_t>(value.release << 4 | (value.has_seid != 0 ? 1 : 0));
  if (at.smcd != 0)
    v2.smcd_off.set(static_cast<uint16_t>(at.smcd - at.v2 - clc_wire::kSmcdOffBase));
  memcpy(v2.roce_gid, value.roce_gid_v2, sizeof v2.roce_gid);
  v2.conns_max = value.conns_max;
  v2.links_max = value.links_max;
  v2.feature_mask.set(value.feature_mask);
  for (uint8_t i = 0; i < value.ueid_count; i++)
    At<ClcEid>(out, at.v2 + sizeof v2 + i * sizeof(ClcEid)) = value.ueids[i];
}

void EncodeSmcd(const ClcProposal& value, std::span<uint8_t> out) {
  auto& smcd = At<clc_wire::Smcd>(out, 0);
  memcpy(smcd.seid, value.seid.text, sizeof smcd.seid);
  for (uint8_t i = 0; i < value.entry_count; i++) {
    auto& entry = At<clc_wire::Entry>(out, sizeof smcd + i * sizeof(clc_wire::Entry));
    entry.gid.set(value.entries[i].gid);
    entry.chid.set(value.entries[i].chid);
  }
}

}  // namespace

ClcResult ClcParseProposal(std::span<const uint8_t> bytes, ClcProposal& value) {
  value = {};
  value.path_v2 = ClcPath::kNone;
  ClcHead head;
  const ClcResult frame = clc_wire::CheckFrame(bytes, ClcType::kProposal, head);
  if (!frame.ok()) return frame;
  value.version = head.version;
  if (head.version != 2) return ClcResult::Decline(kClcDiagVersion);
  if (bytes.size() < sizeof(clc_wire::Proposal) + sizeof(clc_wire::Trailer))
    return ClcResult::Abort(ClcAbort::kLength);

  const auto& p = At<clc_wire::Proposal>(bytes, 0);
  value.path_v1 = static_cast<ClcPath>(head.low_bits & clc_wire::kPathMask);
  value.path_v2 = static_cast<ClcPath>(head.low_bits >> 2 & clc_wire::kPathMask);
  ParseFixed(p, value);
  Walk walk(bytes, sizeof p);
  if (value.path_v1 != ClcPath::kNone) {
    if (clc_wire::kIpOffBase + p.ip_off.get() != walk.pos())
      return ClcResult::Abort(ClcAbort::kOffset);
    const ClcResult area = ParseIpArea(walk, value.v1);
    if (!area.ok()) return area;
  }
  if (p.v2_off.get() != 0) {
    if (clc_wire::kV2OffBase + p.v2_off.get() != walk.pos())
      return ClcResult::Abort(ClcAbort::kOffset);
    const ClcResult v2 = ParseV2(walk, value);
    if (!v2.ok()) return v2;
  }
  return walk.at_end() ? ClcResult::Ok() : ClcResult::Abort(ClcAbort::kLength);
}

size_t ClcEncodeProposal(const ClcProposal& value, std::span<uint8_t> out) {
  if (!Encodable(value)) return 0;
  const Offsets at = Place(value);
  const auto paths = static_cast<uint8_t>(static_cast<uint32_t>(value.path_v2) << 2 |
                                          static_cast<uint32_t>(value.path_v1));
  if (!clc_wire::WriteFrame(
          out, {ClcType::kProposal, value.version, paths, 0, static_cast<uint16_t>(at.len_bytes)}))
    return 0;
  EncodeFixed(value, at, At<clc_wire::Proposal>(out, 0));
  if (at.ip != 0) EncodeIpArea(value.v1, out.subspan(at.ip));
  if (at.v2 != 0) EncodeV2(value, at, out);
  if (at.smcd != 0) EncodeSmcd(value, out.subspan(at.smcd));
  return at.len_bytes;
}

}  // namespace postern
