// SPDX-License-Identifier: Apache-2.0
// clc_accept.cc - Accept and Confirm of SMC-D: the same fields, with and without first contact.
#include <cstring>

#include "wire/clc/clc_layout.h"

namespace postern {
namespace {

using clc_wire::At;

constexpr size_t kTrailer = sizeof(clc_wire::Trailer);
constexpr size_t kLength = sizeof(clc_wire::Accept) + kTrailer;
constexpr size_t kLengthFirst = kLength + sizeof(clc_wire::FirstContact);
constexpr size_t kLengthRelease1 = kLengthFirst + sizeof(clc_wire::Release1);
static_assert(kLength == 78 && kLengthFirst == 114 && kLengthRelease1 == 130);

size_t LengthOf(const ClcAccept& value) {
  if (value.is_first_contact == 0) return kLength;
  return value.first.release == 0 ? kLengthFirst : kLengthRelease1;
}

// A release that is not known yet may be longer: its length is the header's.
ClcResult ParseFirstContact(std::span<const uint8_t> bytes, ClcFirstContact& first) {
  if (bytes.size() < kLengthFirst) return ClcResult::Abort(ClcAbort::kLength);
  const auto& base = At<clc_wire::FirstContact>(bytes, sizeof(clc_wire::Accept));
  first.os = static_cast<ClcOs>(base.os_release >> 4);
  first.release = base.os_release & 0x0fu;
  memcpy(first.host_name, base.host_name, sizeof first.host_name);
  if (first.release == 0)
    return bytes.size() == kLengthFirst ? ClcResult::Ok() : ClcResult::Abort(ClcAbort::kLength);
  if (bytes.size() < kLengthRelease1 ||
      (first.release <= kClcReleaseMax && bytes.size() != kLengthRelease1))
    return ClcResult::Abort(ClcAbort::kLength);
  const auto& more = At<clc_wire::Release1>(bytes, sizeof(clc_wire::Accept) + sizeof base);
  first.feature_mask = more.feature_mask.get();
  memcpy(first.vendor_options, more.vendor_options, sizeof first.vendor_options);
  return ClcResult::Ok();
}

// What is sound, and nothing that we do.
ClcResult CheckValues(const ClcHead& head, const ClcAccept& value) {
  if ((head.low_bits & clc_wire::kPathMask) != static_cast<uint8_t>(ClcPath::kSmcD))
    return ClcResult::Decline(kClcDiagMode);
  // Buffers of several elements are allowed by the RFC; ours, and Linux's, have one.
  if (value.dmbe_index != 0) return ClcResult::Decline(kClcDiagConfig);
  if (value.first.release > kClcReleaseMax) return ClcResult::Decline(kClcDiagRelease);
  return ClcResult::Ok();
}

}  // namespace

ClcResult ClcParseAccept(std::span<const uint8_t> bytes, ClcAccept& value) {
  const ClcType type = value.type;
  value = {};
  value.type = type;
  ClcHead head;
  const ClcResult frame = clc_wire::CheckFrame(bytes, type, head);
  if (!frame.ok()) return frame;
  if (head.version != 2) return ClcResult::Decline(kClcDiagVersion);
  if (head.is_smcd == 0) return ClcResult::Decline(kClcDiagMode);
  if (bytes.size() < kLength) return ClcResult::Abort(ClcAbort::kLength);

  const auto& a = At<clc_wire::Accept>(bytes, 0);
  value.is_first_contact = (head.low_bits & clc_wire::kFirstContact) != 0 ? 1 : 0;
  value.gid = {a.gid.get(), a.gid_ext.get()};
  value.token = a.token.get();
  value.dmbe_index = a.dmbe_index;
  value.size_code = a.size_bits >> 4;
  value.link_id = a.link_id.get();
  value.chid = a.chid.get();
  memcpy(value.eid.text, a.eid, sizeof value.eid.text);
  if (value.size_code > kClcSizeCodeMax) return ClcResult::Abort(ClcAbort::kSizeCode);
  if (value.is_first_contact != 0) {
    const ClcResult first = ParseFirstContact(bytes, value.first);
    if (!first.ok()) return first;
  } else if (bytes.size() != kLength) {
    return ClcResult::Abort(ClcAbort::kLength);
  }
  return CheckValues(head, value);
}

size_t ClcEncodeAccept(const ClcAccept& value, std::span<uint8_t> out) {
  const bool is_type = value.type == ClcType::kAccept || value.type == ClcType::kConfirm;
  if (!is_type || value.size_code > kClcSizeCodeMax || value.first.release > kClcReleaseMax)
    return 0;
  const size_t len_bytes = LengthOf(value);
  const auto low_bits =
      static_cast<uint8_t>(static_cast<uint8_t>(ClcPath::kSmcD) |
                           (value.is_first_contact != 0 ? clc_wire::kFirstContact : uint8_t{0}));
  if (!clc_wire::WriteFrame(out, {value.type, 2, low_bits, 1, static_cast<uint16_t>(len_bytes)}))
    return 0;
  auto& a = At<clc_wire::Accept>(out, 0);
  a.gid.set(value.gid.gid);
  a.token.set(value.token);
  a.dmbe_index = value.dmbe_index;
  a.size_bits = static_cast<uint8_t>(value.size_code << 4);
  a.link_id.set(value.link_id);
  a.chid.set(value.chid);
  memcpy(a.eid, value.eid.text, sizeof a.eid);
  a.gid_ext.set(value.gid.ext);
  if (value.is_first_contact == 0) return len_bytes;
  auto& base = At<clc_wire::FirstContact>(out, sizeof a);
  base.os_release =
      static_cast<uint8_t>(static_cast<uint8_t>(value.first.os) << 4 | value.first.release);
  memcpy(base.host_name, value.first.host_name, sizeof base.host_name);
  if (value.first.release == 0) return len_bytes;
  auto& more = At<clc_wire::Release1>(out, sizeof a + sizeof base);
  more.feature_mask.set(value.first.feature_mask);
  memcpy(more.vendor_options, value.first.vendor_options, sizeof more.vendor_options);
  return len_bytes;
}

}  // namespace postern
