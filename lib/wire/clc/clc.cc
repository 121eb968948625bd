// SPDX-License-Identifier: Apache-2.0
// clc.cc - what the CLC messages have in common: header, trailer, identities; and Decline.
#include "wire/clc/clc.h"

#include <cstring>

#include "wire/clc/clc_layout.h"

namespace postern {
namespace {

constexpr uint8_t kMagic[4] = {'P', 'S', 'T', 'N'};

// The shortest of any version: a Proposal of version 1 without the fields of SMC-D, an Accept of
// SMC-D version 1. Each parser knows better.
bool LengthAllowed(ClcType type, size_t len_bytes) {
  switch (type) {
    case ClcType::kProposal:
      return len_bytes >= 52 && len_bytes <= kClcMessageBytesMax;
    case ClcType::kAccept:
    case ClcType::kConfirm:
      return len_bytes >= 48 && len_bytes <= kClcMessageBytesMax;
    case ClcType::kDecline:
      return len_bytes == clc_wire::kDeclineShort || len_bytes == clc_wire::kDeclineLong;
  }
  return false;
}

}  // namespace

const char* ClcAbortName(ClcAbort reason) {
  constexpr const char* kNames[] = {"none",       "eyecatcher",  "type",        "length",
                                    "offset",     "count",       "trailer",     "size",
                                    "unexpected", "timeout",     "peer-closed", "reset",
                                    "committed",  "interrupted", "internal"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<size_t>(ClcAbort::kEnd));
  return reason < ClcAbort::kEnd ? kNames[static_cast<size_t>(reason)] : "unknown";
}

ClcGid ClcGidFromUuid(const uint8_t uuid[16]) {
  ClcGid gid;
  memcpy(&gid.gid, uuid, 8);
  memcpy(&gid.ext, uuid + 8, 8);
  return gid;
}

bool ClcUeidFromText(const char* text, ClcEid& eid) {
  const size_t length = strnlen(text, sizeof eid.text + 1);
  if (length == 0 || length > sizeof eid.text) return false;
  memset(eid.text, ' ', sizeof eid.text);
  for (size_t i = 0; i < length; i++) {
    const char c = text[i];
    const bool alphanumeric = (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!alphanumeric && (i == 0 || (c != '.' && c != '-'))) return false;
    eid.text[i] = static_cast<uint8_t>(c);
  }
  return true;
}

ClcResult ClcPeek(std::span<const uint8_t, kClcPeekBytes> bytes, ClcHead& head) {
  const auto& h = clc_wire::At<clc_wire::Header>(bytes, 0);
  const bool is_smcd = memcmp(h.eyecatcher, clc_wire::kEyecatcherD, 4) == 0;
  if (!is_smcd && memcmp(h.eyecatcher, clc_wire::kEyecatcherR, 4) != 0)
    return ClcResult::Abort(ClcAbort::kEyecatcher);
  if (h.type < static_cast<uint8_t>(ClcType::kProposal) ||
      h.type > static_cast<uint8_t>(ClcType::kDecline))
    return ClcResult::Abort(ClcAbort::kType);
  const auto type = static_cast<ClcType>(h.type);
  // Only what belongs to one device says "SMCD".
  if (is_smcd && (type == ClcType::kProposal || type == ClcType::kDecline))
    return ClcResult::Abort(ClcAbort::kEyecatcher);
  if (!LengthAllowed(type, h.len_bytes.get())) return ClcResult::Abort(ClcAbort::kLength);
  head.type = type;
  head.version = h.version_bits >> 4;
  head.low_bits = h.version_bits & 0x0fu;
  head.is_smcd = is_smcd ? 1 : 0;
  head.len_bytes = h.len_bytes.get();
  return ClcResult::Ok();
}

namespace clc_wire {

ClcResult CheckFrame(std::span<const uint8_t> bytes, ClcType type, ClcHead& head) {
  if (bytes.size() < kClcPeekBytes) return ClcResult::Abort(ClcAbort::kLength);
  const ClcResult peek = ClcPeek(bytes.first<kClcPeekBytes>(), head);
  if (!peek.ok()) return peek;
  if (head.type != type) return ClcResult::Abort(ClcAbort::kType);
  if (head.len_bytes != bytes.size()) return ClcResult::Abort(ClcAbort::kLength);
  const auto& trailer = At<Trailer>(bytes, bytes.size() - sizeof(Trailer));
  const auto& eyecatcher = head.is_smcd != 0 ? kEyecatcherD : kEyecatcherR;
  if (type != ClcType::kDecline && memcmp(trailer.eyecatcher, eyecatcher, 4) != 0)
    return ClcResult::Abort(ClcAbort::kTrailer);
  return ClcResult::Ok();
}

bool WriteFrame(std::span<uint8_t> out, const ClcHead& head) {
  if (out.size() < head.len_bytes || !LengthAllowed(head.type, head.len_bytes)) return false;
  memset(out.data(), 0, head.len_bytes);
  const auto& eyecatcher = head.is_smcd != 0 ? kEyecatcherD : kEyecatcherR;
  auto& h = At<Header>(out, 0);
  memcpy(h.eyecatcher, eyecatcher, 4);
  h.type = static_cast<uint8_t>(head.type);
  h.len_bytes.set(head.len_bytes);
  h.version_bits = static_cast<uint8_t>(uint32_t{head.version} << 4 | (head.low_bits & 0x0fu));
  memcpy(At<Trailer>(out, head.len_bytes - sizeof(Trailer)).eyecatcher, eyecatcher, 4);
  return true;
}

}  // namespace clc_wire

// ---------------------------------------------------------------- Decline

ClcResult ClcParseDecline(std::span<const uint8_t> bytes, ClcDecline& value) {
  value = {};
  ClcHead head;
  const ClcResult frame = clc_wire::CheckFrame(bytes, ClcType::kDecline, head);
  if (!frame.ok()) return frame;
  // Everything else is acceptable: whatever the peer says, it will not do SMC.
  const auto& d = clc_wire::At<clc_wire::Decline>(bytes, 0);
  value.version = head.version;
  value.has_more = bytes.size() == clc_wire::kDeclineLong ? 1 : 0;
  value.is_out_of_sync = (head.low_bits & clc_wire::kFirstContact) != 0 ? 1 : 0;
  value.os = static_cast<ClcOs>(d.os_bits >> 4);
  memcpy(value.peer_id, d.peer_id, sizeof value.peer_id);
  value.diagnosis = d.diagnosis.get();
  if (value.has_more != 0) {
    const auto& more = clc_wire::At<clc_wire::More>(bytes, sizeof d);
    for (size_t i = 0; i < 4; i++) value.more[i] = more.diagnosis[i].get();
  }
  return ClcResult::Ok();
}

size_t ClcEncodeDecline(const ClcDecline& value, std::span<uint8_t> out) {
  const size_t len_bytes = value.has_more != 0 ? clc_wire::kDeclineLong : clc_wire::kDeclineShort;
  const uint8_t low_bits = value.is_out_of_sync != 0 ? clc_wire::kFirstContact : uint8_t{0};
  if (!clc_wire::WriteFrame(
          out, {ClcType::kDecline, value.version, low_bits, 0, static_cast<uint16_t>(len_bytes)}))
    return 0;
  auto& d = clc_wire::At<clc_wire::Decline>(out, 0);
  d.os_bits = static_cast<uint8_t>(static_cast<uint8_t>(value.os) << 4);
  memcpy(d.peer_id, value.peer_id, sizeof d.peer_id);
  d.diagnosis.set(value.diagnosis);
  if (value.has_more != 0) {
    auto& more = clc_wire::At<clc_wire::More>(out, sizeof d);
    for (size_t i = 0; i < 4; i++) more.diagnosis[i].set(value.more[i]);
  }
  return len_bytes;
}

// ---------------------------------------------------------------- Postern's own agreement

uint8_t ClcFeatures(const ClcProposal& value) {
  const bool ours = (value.vendor_oui[0] | value.vendor_oui[1] | value.vendor_oui[2]) == 0 &&
                    memcmp(value.vendor_options, kMagic, 4) == 0;
  return ours ? value.vendor_options[4] : uint8_t{0};
}
uint8_t ClcFeatures(const ClcFirstContact& value) {
  return memcmp(value.vendor_options, kMagic, 3) == 0 ? value.vendor_options[3] : uint8_t{0};
}
// A peer that has nothing to agree on gets no magic either: it may know the bytes as something
// else.
void ClcSetFeatures(ClcProposal& value, uint8_t features) {
  memset(value.vendor_options, 0, sizeof value.vendor_options);
  if (features == 0) return;
  memcpy(value.vendor_options, kMagic, 4);
  value.vendor_options[4] = features;
}
void ClcSetFeatures(ClcFirstContact& value, uint8_t features) {
  memset(value.vendor_options, 0, sizeof value.vendor_options);
  if (features == 0) return;
  memcpy(value.vendor_options, kMagic, 3);
  value.vendor_options[3] = features;
}

}  // namespace postern
