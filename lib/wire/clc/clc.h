// SPDX-License-Identifier: Apache-2.0
// clc.h - the messages of the CLC handshake (RFC 7609 and SMC version 2.1): bytes <-> values.
//
// A handshake is Proposal (client), Accept (server), Confirm (client); a Decline may stand in place
// of each. They are the first bytes of the TCP stream, and the application's bytes follow at once:
// peek 8 bytes, ClcPeek() tells the length, read exactly so many, never more.
//
//  - SMC-D version 2 (releases 0 and 1) is spoken. The fields of version 1 and of SMC-R inside a
//    Proposal are carried and mean nothing here; a message of another version, or an SMC-R Accept
//    or Confirm, is only delimited: kDecline.
//  - kAbort: where the next message begins is in doubt, or the sender is. The TCP connection must
//    be reset, never used for data. kDecline: the message is sound, and says something that is not
//    supported. The value is filled in as far as it could be read.
//  - Reserved fields are ignored when parsed and 0 when encoded. So are fields that have a meaning
//    for SMC-R only in an Accept or Confirm of SMC-D.
//
// Pure functions of their arguments; no allocation. A value can hold counts that fit no message:
// encoders then return 0.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/clc/clc_diagnosis.h"

namespace postern {

constexpr size_t kClcPeekBytes = 8;
constexpr size_t kClcMessageBytesMax = 652;  // a Proposal with 8 prefixes, 8 EIDs and 8 devices
constexpr uint8_t kClcEidsMax = 8;
constexpr uint8_t kClcEntriesMax = 8;
constexpr uint8_t kClcPrefixesMax = 8;
constexpr uint8_t kClcSizeCodeMax = 6;  // 1 MiB; the code s means 2^(s + 14) bytes
// Only known release with more than release 0: feature mask and vendor options.
constexpr uint8_t kClcReleaseMax = 1;
constexpr uint16_t kClcFeatureEmulated = 0x0001;  // of the feature mask: knows extended GIDs

enum class ClcType : uint8_t { kProposal = 1, kAccept = 2, kConfirm = 3, kDecline = 4 };
enum class ClcPath : uint8_t { kSmcR = 0, kSmcD = 1, kNone = 2, kBoth = 3 };
enum class ClcOs : uint8_t { kUnknown = 0, kZos = 1, kLinux = 2, kAix = 3 };

enum class ClcVerdict : uint8_t { kOk, kDecline, kAbort };

// Why the TCP connection has to be reset. The first group is found by the codec, the second by the
// negotiation (smcd/clc_fsm.h).
enum class ClcAbort : uint8_t {
  kNone,
  kEyecatcher,
  kType,
  kLength,
  kOffset,
  kCount,
  kTrailer,
  kSizeCode,
  kUnexpected,   // a message that is not due now
  kTimeout,      // the peer, or our own device when it is too late for a Decline
  kPeerClosed,   // FIN before the end
  kReset,        // RST before the end
  kCommitted,    // we can't go on with SMC, and the peer can't go back to TCP any more
  kInterrupted,  // a process of ours died while it did what the last step asked for
  kInternal,     // an event that can't come in this state: a bug of the caller
  kEnd,
};
const char* ClcAbortName(ClcAbort reason);

struct [[nodiscard]] ClcResult {
  ClcVerdict verdict = ClcVerdict::kOk;
  ClcAbort abort = ClcAbort::kNone;
  uint32_t diagnosis = 0;  // of kDecline

  static constexpr ClcResult Ok() { return {}; }
  static constexpr ClcResult Decline(uint32_t code) {
    return {ClcVerdict::kDecline, ClcAbort::kNone, code};
  }
  static constexpr ClcResult Abort(ClcAbort reason) { return {ClcVerdict::kAbort, reason, 0}; }
  constexpr bool ok() const { return verdict == ClcVerdict::kOk; }
  bool operator==(const ClcResult&) const = default;
};

// Identity of a device. An emulated device is named by a UUID: two halves, each read as an integer
// of the host's byte order, and sent big-endian like every integer. (A little-endian host's UUID is
// therefore byte-reversed in each half.) A native device has no extended GID: 0.
struct ClcGid {
  uint64_t gid = 0;
  uint64_t ext = 0;
  bool operator==(const ClcGid&) const = default;
};
ClcGid ClcGidFromUuid(const uint8_t uuid[16]);

// Enterprise id: compared byte for byte, blank padded.
struct ClcEid {
  uint8_t text[32] = {};
  bool operator==(const ClcEid&) const = default;
};
// From at most 32 characters. False if it is no valid user-defined id: A-Z 0-9 . - and an
// alphanumeric first character.
bool ClcUeidFromText(const char* text, ClcEid& eid);

// ---------------------------------------------------------------- header

struct ClcHead {
  ClcType type = ClcType::kProposal;
  uint8_t version = 0;
  uint8_t low_bits = 0;  // bits 3-0 of the last byte; their meaning depends on the type
  uint8_t is_smcd = 0;   // 1: eyecatcher "SMCD", else "SMCR"
  uint16_t len_bytes = 0;
};
// What the first 8 bytes say; `len_bytes` is then at least 28 and at most kClcMessageBytesMax.
// kOk or kAbort. The parsers below do this by themselves.
ClcResult ClcPeek(std::span<const uint8_t, kClcPeekBytes> bytes, ClcHead& head);

// ---------------------------------------------------------------- Proposal

struct ClcEntry {
  uint64_t gid = 0;
  uint16_t chid = 0;
  bool operator==(const ClcEntry&) const = default;
};
struct ClcPrefix {
  uint8_t address[16] = {};
  uint8_t bits = 0;
  bool operator==(const ClcPrefix&) const = default;
};
// What only SMC-R, or version 1, looks at.
struct ClcProposalV1 {
  uint8_t peer_id[8] = {};
  uint8_t roce_gid[16] = {};
  uint8_t roce_mac[6] = {};
  uint64_t ism_gid = 0;
  uint16_t ism_chid = 0;
  // On the wire only if path_v1 is not kNone.
  uint8_t subnet[4] = {};
  uint8_t subnet_bits = 0;
  uint8_t prefix_count = 0;
  ClcPrefix prefixes[kClcPrefixesMax] = {};
  bool operator==(const ClcProposalV1&) const = default;
};
struct ClcProposal {
  uint8_t version = 2;  // a parsed one is 2: others are only delimited
  ClcPath path_v1 = ClcPath::kNone;
  ClcPath path_v2 = ClcPath::kSmcD;
  ClcProposalV1 v1 = {};
  uint8_t vendor_oui[3] = {};
  uint8_t vendor_options[5] = {};

  uint8_t has_v2 = 0;  // 1: the version 2 extension is there, and with it what follows
  uint8_t release = 0;
  uint8_t has_seid = 0;  // the flag; the SEID itself is in the SMC-D extension
  uint8_t ueid_count = 0;
  uint8_t roce_gid_v2[16] = {};
  uint8_t conns_max = 0;  // SMC-R
  uint8_t links_max = 0;  // SMC-R
  uint16_t feature_mask = 0;
  ClcEid ueids[kClcEidsMax] = {};

  uint8_t has_smcd = 0;  // 1: the SMC-D version 2 extension is there, and with it what follows
  uint8_t entry_count = 0;
  ClcEid seid = {};
  ClcEntry entries[kClcEntriesMax] = {};
  bool operator==(const ClcProposal&) const = default;
};
ClcResult ClcParseProposal(std::span<const uint8_t> bytes, ClcProposal& value);
// Returns the bytes written, 0 if `out` is too short or the value is not encodable.
size_t ClcEncodeProposal(const ClcProposal& value, std::span<uint8_t> out);

// ---------------------------------------------------------------- Accept, Confirm (SMC-D)

// Behind an Accept or Confirm that creates the link group.
struct ClcFirstContact {
  ClcOs os = ClcOs::kUnknown;
  uint8_t release = 0;
  uint8_t host_name[32] = {};      // ASCII, blank padded
  uint16_t feature_mask = 0;       // release 1
  uint8_t vendor_options[4] = {};  // release 1
  bool operator==(const ClcFirstContact&) const = default;
};
struct ClcAccept {
  ClcType type = ClcType::kAccept;  // or kConfirm: the same fields
  uint8_t is_first_contact = 0;
  uint8_t dmbe_index = 0;
  uint8_t size_code = 0;  // of the sender's DMB
  ClcGid gid = {};
  uint64_t token = 0;    // of the sender's DMB
  uint32_t link_id = 0;  // opaque
  uint16_t chid = 0;
  ClcEid eid = {};
  ClcFirstContact first = {};
  bool operator==(const ClcAccept&) const = default;
};
// `value.type` says on input which of the two is expected.
ClcResult ClcParseAccept(std::span<const uint8_t> bytes, ClcAccept& value);
size_t ClcEncodeAccept(const ClcAccept& value, std::span<uint8_t> out);

// ---------------------------------------------------------------- Decline

struct ClcDecline {
  uint8_t version = 2;         // any when parsed
  uint8_t has_more = 1;        // 1: 44 bytes, the four more diagnoses are there; 0: 28 bytes
  uint8_t is_out_of_sync = 0;  // the receiver is to forget the link group
  ClcOs os = ClcOs::kUnknown;
  uint8_t peer_id[8] = {};
  uint32_t diagnosis = 0;
  uint32_t more[4] = {};
  bool operator==(const ClcDecline&) const = default;
};
ClcResult ClcParseDecline(std::span<const uint8_t> bytes, ClcDecline& value);
size_t ClcEncodeDecline(const ClcDecline& value, std::span<uint8_t> out);

// ---------------------------------------------------------------- Postern's own agreement

// We have no organisational identifier (OUI), so what two Posterns agree on travels in the vendor's
// experimental options with OUI 0 and a magic number:
//
//   Proposal, 5 bytes:                 'P' 'S' 'T' 'N' features
//   first contact extension, 4 bytes:  'P' 'S' 'T' features      (one byte less to have)
//
// The client proposes c, the server answers s & c, the client confirms the same. Later connections
// of the link group have what its first contact agreed on. No magic, or release 0: no features.
constexpr uint8_t kClcAckAttach = 0x01;  // the server says when it has attached the client's DMB

uint8_t ClcFeatures(const ClcProposal& value);
uint8_t ClcFeatures(const ClcFirstContact& value);
void ClcSetFeatures(ClcProposal& value, uint8_t features);
void ClcSetFeatures(ClcFirstContact& value, uint8_t features);

}  // namespace postern
