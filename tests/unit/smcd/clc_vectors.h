// SPDX-License-Identifier: Apache-2.0
// clc_vectors.h - CLC messages captured between Linux hosts, and what has to be said of each of
// their bytes when it is another.
//
// The device is that of UUID b08ab7ce-c173-42f1-9684-e327d343a0e1, the UEID "POSTERN-TEST".
// No Catch2 here: the fuzzers use it.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "wire/clc/clc.h"

namespace postern::clc_vectors {

inline constexpr uint8_t kUuid[16] = {0xb0, 0x8a, 0xb7, 0xce, 0xc1, 0x73, 0x42, 0xf1,
                                      0x96, 0x84, 0xe3, 0x27, 0xd3, 0x43, 0xa0, 0xe1};

// Proposal, loopback device, one UEID.
inline constexpr char kProposal[] =
    "e2d4c3d90100e0260000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000001c00000000000000000000000000000000000000000000000000000000"
    "01020010000000400000000000000000000000000000000000000001000000000000000000000000"
    "504f535445524e2d5445535420202020202020202020202020202020202020200000000000000000"
    "00000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "f14273c1ceb78ab0ffffe1a043d327e38496ffffe2d4c3d9";
// Accept, first contact.
inline constexpr char kAcceptFirst[] =
    "e2d4c3c402008229f14273c1ceb78ab029fab616061d1a640020000000010000ffff504f53544552"
    "4e2d544553542020202020202020202020202020202020202020e1a043d327e3849600210000286e"
    "6f6e6529202020202020202020202020202020202020202020202020202000000001000000000000"
    "000000000000e2d4c3c4";
// Confirm, first contact.
inline constexpr char kConfirmFirst[] =
    "e2d4c3c403008229f14273c1ceb78ab0cb7071d9fb89135c0020000000020000ffff504f53544552"
    "4e2d544553542020202020202020202020202020202020202020e1a043d327e3849600210000286e"
    "6f6e6529202020202020202020202020202020202020202020202020202000000001000000000000"
    "000000000000e2d4c3c4";
// Accept, link group known.
inline constexpr char kAcceptKnown[] =
    "e2d4c3c402004e21f14273c1ceb78ab029fab616061d1a640020000000010000ffff504f53544552"
    "4e2d544553542020202020202020202020202020202020202020e1a043d327e38496e2d4c3c4";
// Confirm, link group known.
inline constexpr char kConfirmKnown[] =
    "e2d4c3c403004e21f14273c1ceb78ab0aa48d958cdd870c10020000000010000ffff504f53544552"
    "4e2d544553542020202020202020202020202020202020202020e1a043d327e38496e2d4c3c4";
// client's first message: no device, version 1.
inline constexpr char kDeclineNoDevice[] =
    "e2d4c3d904001c10fd395254000000020303000000000000e2d4c3d9";
// server: no UEID.
inline constexpr char kDeclineNoUeid[] =
    "e2d4c3d904002c200000000000000000030300082000000000000000000000000000000000000000"
    "e2d4c3d9";
// client, in place of Confirm: attach failed.
inline constexpr char kDeclineAttach[] =
    "e2d4c3d904002c200000000000000000010100002000000000000000000000000000000000000000"
    "e2d4c3d9";
// SMC-R Proposal.
inline constexpr char kSmcrProposal[] =
    "e2d4c3d901009c220000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000001c00000000000000000000000000000000000000000000000000000000"
    "010000100000000000000000000000000000ffff0a000002ff020001000000000000000000000000"
    "504f535445524e2d544553542020202020202020202020202020202020202020e2d4c3d9";
// SMC-R Accept, first contact.
inline constexpr char kSmcrAcceptFirst[] =
    "e2d4c3d90200a0284ccd52540000000100000000000000000000ffff0a0000015254000000010000"
    "110000035601000000012300ffff8d3003c50000001a60bf504f535445524e2d5445535420202020"
    "20202020202020202020202020202020000000000000000080210000286e6f6e6529202020202020"
    "2020202020202020202020202020202020202020ff020001000000000000000000000000e2d4c3d9";
// SMC-R Confirm, first contact.
inline constexpr char kSmcrConfirmFirst[] =
    "e2d4c3d90300b428d33752540000000200000000000000000000ffff0a0000025254000000020000"
    "110000037001000000012300ffff8dc983e5000000475f67504f535445524e2d5445535420202020"
    "20202020202020202020202020202020000000000000000080210000286e6f6e6529202020202020"
    "2020202020202020202020202020202020202020ff02000100000000000000000000000001000000"
    "00000000000000000000ffff0a000002e2d4c3d9";
// SMC-R Accept, link group known.
inline constexpr char kSmcrAcceptKnown[] =
    "e2d4c3d902006c204ccd52540000000100000000000000000000ffff0a0000015254000000010000"
    "110000035601000000022300ffff8d3003c50000001a60bf504f535445524e2d5445535420202020"
    "202020202020202020202020202020200000000000000000e2d4c3d9";

inline std::vector<uint8_t> BytesOfHex(const char* hex) {
  const auto digit = [](char c) {
    return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10);
  };
  std::vector<uint8_t> bytes;
  for (; hex[0] != 0; hex += 2)
    bytes.push_back(static_cast<uint8_t>(digit(hex[0]) << 4 | digit(hex[1])));
  return bytes;
}

// ---------------------------------------------------------------- verdicts

// What becomes of a message whose bits under `mask` in bytes [from, to) differ from the vector's.
// The first rule that matches decides.
enum class Fate : uint8_t {
  kFree,       // reserved, or information that selects nothing: the verdict stays
  kStructure,  // abort
  kUnknown,    // an enumerated value that we don't know: the codec says Decline
  kMismatch,   // well-formed, but not what was offered: the negotiation says Decline
};
struct Rule {
  uint16_t from, to;
  uint8_t mask;
  int value;  // of the masked byte for which the rule holds; -1: any that differs
  Fate fate;
  uint32_t diagnosis;
};
constexpr int kAny = -1;
inline constexpr uint8_t kAll = 0xff;

// Section 3.2; this Proposal has no IP area, so the version 2 extension is at 80.
inline constexpr Rule kProposalRules[] = {
    {0, 4, kAll, kAny, Fate::kStructure, 0},                 // eyecatcher
    {4, 5, kAll, kAny, Fate::kStructure, 0},                 // type
    {5, 7, kAll, kAny, Fate::kStructure, 0},                 // length
    {7, 8, 0xf0, kAny, Fate::kUnknown, kClcDiagVersion},     // version
    {7, 8, 0x03, kAny, Fate::kStructure, 0},                 // path v1: an IP area is missing
    {7, 8, 0x0c, 0x00, Fate::kMismatch, kClcDiagMode},       // path v2: R
    {7, 8, 0x0c, 0x08, Fate::kMismatch, kClcDiagMode},       // none
    {7, 8, 0x0c, kAny, Fate::kFree, 0},                      // both
    {8, 38, kAll, kAny, Fate::kFree, 0},                     // SMC-R v1
    {38, 40, kAll, kAny, Fate::kFree, 0},                    // IP area offset: there is none
    {40, 50, kAll, kAny, Fate::kFree, 0},                    // native device
    {50, 52, kAll, kAny, Fate::kStructure, 0},               // v2 extension offset
    {52, 60, kAll, kAny, Fate::kFree, 0},                    // vendor
    {60, 80, kAll, kAny, Fate::kFree, 0},                    // reserved
    {80, 82, kAll, kAny, Fate::kStructure, 0},               // counts
    {82, 83, kAll, kAny, Fate::kFree, 0},                    // reserved
    {83, 84, 0xf0, 0x00, Fate::kMismatch, kClcDiagRelease},  // release 0: no emulated devices
    {83, 84, 0xf0, kAny, Fate::kFree, 0},                    // newer: the lower one is taken
    {83, 84, 0x0f, kAny, Fate::kFree, 0},                    // reserved; SEID, which we lack
    {84, 86, kAll, kAny, Fate::kFree, 0},                    // reserved
    {86, 88, kAll, kAny, Fate::kStructure, 0},               // SMC-D extension offset
    {88, 104, kAll, kAny, Fate::kFree, 0},                   // RoCEv2 GID
    {104, 106, kAll, kAny, Fate::kFree, 0},                  // SMC-R limits
    {106, 107, kAll, kAny, Fate::kFree, 0},                  // features that we don't know
    {107, 108, 0x01, kAny, Fate::kMismatch, kClcDiagNoSmcdV2Device},  // emulated devices
    {107, 108, 0xfe, kAny, Fate::kFree, 0},
    {108, 120, kAll, kAny, Fate::kFree, 0},                           // reserved
    {120, 152, kAll, kAny, Fate::kMismatch, kClcDiagNoUeid},          // UEID
    {152, 184, kAll, kAny, Fate::kFree, 0},                           // SEID: not flagged
    {184, 200, kAll, kAny, Fate::kFree, 0},                           // reserved
    {200, 220, kAll, kAny, Fate::kMismatch, kClcDiagNoSmcdV2Device},  // GIDs and CHIDs
    {220, 224, kAll, kAny, Fate::kStructure, 0},                      // trailer
};

// Section 3.3. `first contact` or not makes a difference from byte 74 on only.
#define PSTN_ACCEPT_RULES                                                                       \
  {0, 5, kAll, kAny, Fate::kStructure, 0},                 /* eyecatcher, type */               \
      {5, 7, kAll, kAny, Fate::kStructure, 0},             /* length */                         \
      {7, 8, 0xf0, kAny, Fate::kUnknown, kClcDiagVersion}, /* version */                        \
      {7, 8, 0x08, kAny, Fate::kStructure, 0},             /* first contact: the length */      \
      {7, 8, 0x03, kAny, Fate::kUnknown, kClcDiagMode},    /* path */                           \
      {7, 8, 0x04, kAny, Fate::kFree, 0},                  /* reserved */                       \
      {8, 16, kAll, kAny, Fate::kMismatch, kClcDiagNoSmcdV2Device}, /* GID */                   \
      {16, 24, kAll, kAny, Fate::kFree, 0},                 /* token: the device's affair */    \
      {24, 25, kAll, kAny, Fate::kUnknown, kClcDiagConfig}, /* DMBE index */                    \
      {25, 26, 0xf0, 0x00, Fate::kFree, 0},                 /* size code 0..6 */                \
      {25, 26, 0xf0, 0x10, Fate::kFree, 0}, {25, 26, 0xf0, 0x20, Fate::kFree, 0},               \
      {25, 26, 0xf0, 0x30, Fate::kFree, 0}, {25, 26, 0xf0, 0x40, Fate::kFree, 0},               \
      {25, 26, 0xf0, 0x50, Fate::kFree, 0}, {25, 26, 0xf0, 0x60, Fate::kFree, 0},               \
      {25, 26, 0xf0, kAny, Fate::kStructure, 0},                     /* larger than there is */ \
      {25, 26, 0x0f, kAny, Fate::kFree, 0},                          /* reserved */             \
      {26, 28, kAll, kAny, Fate::kFree, 0},                          /* reserved */             \
      {28, 32, kAll, kAny, Fate::kFree, 0},                          /* link id: opaque */      \
      {32, 34, kAll, kAny, Fate::kMismatch, kClcDiagNoSmcdV2Device}, /* CHID */                 \
      {34, 66, kAll, kAny, Fate::kMismatch, kClcDiagNoUeid},         /* EID */                  \
  {                                                                                             \
    66, 74, kAll, kAny, Fate::kMismatch, kClcDiagNoSmcdV2Device                                 \
  } /* extended GID */

inline constexpr Rule kKnownRules[] = {
    PSTN_ACCEPT_RULES, {74, 78, kAll, kAny, Fate::kStructure, 0},  // trailer
};
inline constexpr Rule kFirstRules[] = {
    PSTN_ACCEPT_RULES,
    {74, 75, kAll, kAny, Fate::kFree, 0},                   // SMC-R
    {75, 76, 0x0f, 0x00, Fate::kStructure, 0},              // release 0 would be shorter
    {75, 76, 0x0f, kAny, Fate::kUnknown, kClcDiagRelease},  // newer than we offered
    {75, 76, 0xf0, kAny, Fate::kFree, 0},                   // operating system: selects nothing
    {76, 78, kAll, kAny, Fate::kFree, 0},                   // reserved
    {78, 110, kAll, kAny, Fate::kFree, 0},                  // host name
    {110, 112, kAll, kAny, Fate::kFree, 0},                 // SMC-R limits
    {112, 113, kAll, kAny, Fate::kFree, 0},                 // features that we don't know
    {113, 114, 0x01, kAny, Fate::kMismatch, kClcDiagNoSmcdV2Device},
    {113, 114, 0xfe, kAny, Fate::kFree, 0},
    {114, 118, kAll, kAny, Fate::kFree, 0},       // vendor options
    {118, 126, kAll, kAny, Fate::kFree, 0},       // reserved
    {126, 130, kAll, kAny, Fate::kStructure, 0},  // trailer
};
#undef PSTN_ACCEPT_RULES

// Section 3.4: a Decline is acceptable whatever it says.
inline constexpr Rule kDeclineRules[] = {
    {0, 5, kAll, kAny, Fate::kStructure, 0},  // eyecatcher, type
    {5, 7, kAll, kAny, Fate::kStructure, 0},  // length
    {7, 44, kAll, kAny, Fate::kFree, 0},      // the trailer included
};

// An SMC-R message to a peer that offered SMC-D only is delimited and declined.
inline constexpr Rule kSmcrRules[] = {
    {0, 5, kAll, kAny, Fate::kStructure, 0},              // eyecatcher, type
    {5, 7, kAll, kAny, Fate::kStructure, 0},              // length
    {7, 8, 0xf0, kAny, Fate::kUnknown, kClcDiagVersion},  // version
};

struct Expected {
  Fate fate = Fate::kFree;
  uint32_t diagnosis = 0;
};
// The verdict on `vector` with `byte` at `pos`. A free part leaves the decision to the others.
inline Expected Judge(std::span<const Rule> rules, const std::vector<uint8_t>& vector, size_t pos,
                      uint8_t byte) {
  auto changed = static_cast<uint8_t>(vector[pos] ^ byte);
  for (const Rule& rule : rules) {
    if (pos < rule.from || pos >= rule.to || (changed & rule.mask) == 0) continue;
    if (rule.value != kAny && (byte & rule.mask) != rule.value) continue;
    if (rule.fate != Fate::kFree) return {rule.fate, rule.diagnosis};
    changed &= static_cast<uint8_t>(~rule.mask);
  }
  return {};
}
// Whether the rules say something of each bit of a message: none was forgotten.
inline bool Covers(std::span<const Rule> rules, size_t len_bytes) {
  for (size_t pos = 0; pos < len_bytes; pos++) {
    unsigned mask = 0;
    for (const Rule& rule : rules) {
      if (pos >= rule.from && pos < rule.to) mask |= rule.mask;
    }
    if (mask != kAll) return false;
  }
  return true;
}

}  // namespace postern::clc_vectors
