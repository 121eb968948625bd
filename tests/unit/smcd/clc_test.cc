// SPDX-License-Identifier: Apache-2.0
// clc_test.cc - the CLC codec: captured messages byte for byte, all their truncations and all their
// single-byte corruptions.
#include <cstdio>
#include <string>

#include "../kit/catch.h"
#include "clc_vectors.h"

namespace postern {
namespace {

using namespace clc_vectors;  // NOLINT(google-build-using-namespace): a list of test data

// Exactly as long as the message, so that a sanitizer sees a read beyond it.
std::vector<uint8_t> Exact(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

ClcResult Parse(std::span<const uint8_t> bytes, ClcType type) {
  const std::vector<uint8_t> exact = Exact(bytes);
  if (type == ClcType::kProposal) {
    ClcProposal value;
    return ClcParseProposal(exact, value);
  }
  if (type == ClcType::kDecline) {
    ClcDecline value;
    return ClcParseDecline(exact, value);
  }
  ClcAccept value;
  value.type = type;
  return ClcParseAccept(exact, value);
}

std::vector<uint8_t> Reencoded(std::span<const uint8_t> bytes, ClcType type) {
  std::vector<uint8_t> out(kClcMessageBytesMax, 0xaa);
  ClcProposal proposal;
  ClcDecline decline;
  ClcAccept accept;
  accept.type = type;
  size_t n = 0;
  if (type == ClcType::kProposal) {
    REQUIRE(ClcParseProposal(bytes, proposal).ok());
    n = ClcEncodeProposal(proposal, out);
  } else if (type == ClcType::kDecline) {
    REQUIRE(ClcParseDecline(bytes, decline).ok());
    n = ClcEncodeDecline(decline, out);
  } else {
    REQUIRE(ClcParseAccept(bytes, accept).ok());
    n = ClcEncodeAccept(accept, out);
  }
  out.resize(n);
  return out;
}

struct Vector {
  const char* name;
  const char* hex;
  ClcType type;
  std::span<const Rule> rules;
};
const Vector kVectors[] = {
    {"P", kProposal, ClcType::kProposal, kProposalRules},
    {"A1", kAcceptFirst, ClcType::kAccept, kFirstRules},
    {"C1", kConfirmFirst, ClcType::kConfirm, kFirstRules},
    {"A2", kAcceptKnown, ClcType::kAccept, kKnownRules},
    {"C2", kConfirmKnown, ClcType::kConfirm, kKnownRules},
    {"D1", kDeclineNoDevice, ClcType::kDecline, kDeclineRules},
    {"D2", kDeclineNoUeid, ClcType::kDecline, kDeclineRules},
    {"D3", kDeclineAttach, ClcType::kDecline, kDeclineRules},
};
const Vector kSmcrVectors[] = {
    {"SMC-R Accept, first contact", kSmcrAcceptFirst, ClcType::kAccept, kSmcrRules},
    {"SMC-R Accept", kSmcrAcceptKnown, ClcType::kAccept, kSmcrRules},
    {"SMC-R Confirm, first contact", kSmcrConfirmFirst, ClcType::kConfirm, kSmcrRules},
};

ClcVerdict VerdictOf(const Expected& expected, ClcVerdict otherwise) {
  switch (expected.fate) {
    case Fate::kStructure:
      return ClcVerdict::kAbort;
    case Fate::kUnknown:
      return ClcVerdict::kDecline;
    case Fate::kFree:
    case Fate::kMismatch:  // not for the codec to see
      break;
  }
  return otherwise;
}

void CorruptEachByte(const Vector& v, std::span<const Rule> rules, const ClcResult& otherwise) {
  const std::vector<uint8_t> good = BytesOfHex(v.hex);
  std::vector<uint8_t> bytes = good;
  for (size_t pos = 0; pos < good.size(); pos++) {
    for (unsigned value = 0; value < 256; value++) {
      bytes[pos] = static_cast<uint8_t>(value);
      if (bytes[pos] == good[pos]) continue;
      const Expected expected = Judge(rules, good, pos, bytes[pos]);
      const ClcResult result = Parse(bytes, v.type);
      const uint32_t diagnosis =
          expected.fate == Fate::kUnknown ? expected.diagnosis : otherwise.diagnosis;
      const bool right = result.verdict == VerdictOf(expected, otherwise.verdict) &&
                         (result.verdict != ClcVerdict::kDecline || result.diagnosis == diagnosis);
      if (right) continue;
      FAIL_CHECK(v.name << ", byte " << pos << " = " << value << ": verdict "
                        << static_cast<int>(result.verdict) << " " << ClcAbortName(result.abort)
                        << " " << ClcDiagnosisName(result.diagnosis));
    }
    bytes[pos] = good[pos];
  }
}

TEST_CASE("clc: captured SMC-D messages parse, and encode to the same bytes") {
  for (const Vector& v : kVectors) {
    INFO(v.name);
    const std::vector<uint8_t> bytes = BytesOfHex(v.hex);
    CHECK(Parse(bytes, v.type).ok());
    CHECK(Reencoded(bytes, v.type) == bytes);
  }
  const std::vector<uint8_t> smcr = BytesOfHex(kSmcrProposal);
  CHECK(Reencoded(smcr, ClcType::kProposal) == smcr);
}

TEST_CASE("clc: values of the captured Proposal") {
  ClcProposal p;
  REQUIRE(ClcParseProposal(BytesOfHex(kProposal), p).ok());
  const ClcGid gid = ClcGidFromUuid(kUuid);
  CHECK(p.path_v1 == ClcPath::kNone);
  CHECK(p.path_v2 == ClcPath::kSmcD);
  CHECK(p.has_v2 == 1);
  CHECK(p.release == 1);
  CHECK(p.has_seid == 0);
  CHECK(p.feature_mask == kClcFeatureEmulated);
  REQUIRE(p.ueid_count == 1);
  ClcEid eid;
  REQUIRE(ClcUeidFromText("POSTERN-TEST", eid));
  CHECK(p.ueids[0] == eid);
  REQUIRE(p.entry_count == 2);
  CHECK(p.entries[0] == ClcEntry{gid.gid, 0xffff});
  CHECK(p.entries[1] == ClcEntry{gid.ext, 0xffff});
  CHECK(ClcFeatures(p) == 0);
}

TEST_CASE("clc: values of the captured Accept and Confirm") {
  ClcAccept a;
  REQUIRE(ClcParseAccept(BytesOfHex(kAcceptFirst), a).ok());
  CHECK(a.is_first_contact == 1);
  CHECK(a.gid == ClcGidFromUuid(kUuid));
  CHECK(a.token == 0x29fab616061d1a64);
  CHECK(a.size_code == 2);  // 64 KiB
  CHECK(a.link_id == 0x00010000);
  CHECK(a.chid == 0xffff);
  CHECK(a.first.os == ClcOs::kLinux);
  CHECK(a.first.release == 1);
  CHECK(a.first.feature_mask == 1);
  CHECK(memcmp(a.first.host_name, "(none)   ", 9) == 0);
  ClcAccept c;
  c.type = ClcType::kConfirm;
  REQUIRE(ClcParseAccept(BytesOfHex(kConfirmKnown), c).ok());
  CHECK(c.type == ClcType::kConfirm);
  CHECK(c.is_first_contact == 0);
  CHECK(c.token == 0xaa48d958cdd870c1);
  CHECK(c.first == ClcFirstContact{});
}

TEST_CASE("clc: values of the captured Declines") {
  ClcDecline d;
  REQUIRE(ClcParseDecline(BytesOfHex(kDeclineNoDevice), d).ok());
  CHECK(d.version == 1);
  CHECK(d.has_more == 0);
  CHECK(d.peer_id[0] == 0xfd);
  CHECK(d.diagnosis == kClcDiagNoDevice);
  REQUIRE(ClcParseDecline(BytesOfHex(kDeclineAttach), d).ok());
  CHECK(d.version == 2);
  CHECK(d.has_more == 1);
  CHECK(d.os == ClcOs::kLinux);
  CHECK(d.is_out_of_sync == 0);
  CHECK(d.diagnosis == kClcDiagNoMemory);
}

TEST_CASE("clc: the first 8 bytes tell how many to read") {
  for (const Vector& v : kVectors) {
    INFO(v.name);
    const std::vector<uint8_t> bytes = BytesOfHex(v.hex);
    ClcHead head;
    REQUIRE(ClcPeek(std::span<const uint8_t, 8>(bytes.data(), 8), head).ok());
    CHECK(head.len_bytes == bytes.size());
    CHECK(head.type == v.type);
  }
  ClcHead head;
  const uint8_t http[] = {'G', 'E', 'T', ' ', '/', ' ', 'H', 'T'};
  CHECK(ClcPeek(http, head) == ClcResult::Abort(ClcAbort::kEyecatcher));
}

TEST_CASE("clc: a message cut short, or with bytes behind it, is no message") {
  for (const Vector& v : kVectors) {
    INFO(v.name);
    std::vector<uint8_t> bytes = BytesOfHex(v.hex);
    for (size_t n = 0; n < bytes.size(); n++) {
      INFO(n);
      CHECK(Parse(std::span(bytes).first(n), v.type) == ClcResult::Abort(ClcAbort::kLength));
    }
    bytes.push_back(0);
    CHECK(Parse(bytes, v.type) == ClcResult::Abort(ClcAbort::kLength));
  }
}

// The same with a header that agrees with what is left, so that the parts are what is missing.
TEST_CASE("clc: a message whose parts do not fit into its length is aborted") {
  for (const Vector& v : kVectors) {
    if (v.type == ClcType::kDecline) continue;
    INFO(v.name);
    const std::vector<uint8_t> good = BytesOfHex(v.hex);
    for (size_t n = 12; n < good.size() + 40; n++) {
      if (n == good.size()) continue;
      std::vector<uint8_t> bytes = good;
      bytes.resize(n);
      bytes[5] = static_cast<uint8_t>(n >> 8);
      bytes[6] = static_cast<uint8_t>(n);
      std::copy(good.end() - 4, good.end(), bytes.end() - 4);
      INFO(n);
      CHECK(Parse(bytes, v.type).verdict == ClcVerdict::kAbort);
    }
  }
}

TEST_CASE("clc: each other value of each byte gets the verdict that the byte's meaning asks for") {
  for (const Vector& v : kVectors) {
    REQUIRE(Covers(v.rules, strlen(v.hex) / 2));
    CorruptEachByte(v, v.rules, ClcResult::Ok());
  }
}

TEST_CASE("clc: an Accept or Confirm of SMC-R is delimited and declined") {
  for (const Vector& v : kSmcrVectors) {
    INFO(v.name);
    const std::vector<uint8_t> bytes = BytesOfHex(v.hex);
    const ClcResult declined = ClcResult::Decline(kClcDiagMode);
    CHECK(Parse(bytes, v.type) == declined);
    for (size_t n = 0; n < bytes.size(); n++)
      CHECK(Parse(std::span(bytes).first(n), v.type) == ClcResult::Abort(ClcAbort::kLength));
    const auto end = static_cast<uint16_t>(bytes.size());
    std::vector<Rule> rules(std::begin(kSmcrRules), std::end(kSmcrRules));
    rules.push_back({static_cast<uint16_t>(end - 4), end, kAll, kAny, Fate::kStructure, 0});
    CorruptEachByte(v, rules, declined);
  }
}

TEST_CASE("clc: a Proposal of SMC-R is read, and judged byte by byte like one of SMC-D") {
  const Vector v = {"SMC-R Proposal", kSmcrProposal, ClcType::kProposal, {}};
  ClcProposal p;
  REQUIRE(ClcParseProposal(BytesOfHex(v.hex), p).ok());
  CHECK(p.path_v2 == ClcPath::kSmcR);
  CHECK(p.has_smcd == 0);
  CHECK(p.conns_max == 255);
  CHECK(p.links_max == 2);
  std::vector<Rule> rules;
  for (Rule rule : kProposalRules) {
    if (rule.from < 152) rules.push_back(rule);
  }
  rules.push_back({152, 156, kAll, kAny, Fate::kStructure, 0});
  REQUIRE(Covers(rules, 156));
  CorruptEachByte(v, rules, ClcResult::Ok());
}

// ---------------------------------------------------------------- what the captures do not show

ClcProposal FullProposal() {
  ClcProposal p;
  p.path_v1 = p.path_v2 = ClcPath::kBoth;
  p.v1.prefix_count = kClcPrefixesMax;
  p.v1.subnet_bits = 24;
  p.v1.ism_gid = 0x0102030405060708;
  p.v1.ism_chid = 9;
  p.has_v2 = p.has_smcd = p.has_seid = 1;
  p.release = 1;
  p.ueid_count = kClcEidsMax;
  p.entry_count = kClcEntriesMax;
  for (uint8_t i = 0; i < 8; i++) {
    p.v1.prefixes[i] = {{0x20, 1, i}, static_cast<uint8_t>(64 + i)};
    p.ueids[i].text[0] = static_cast<uint8_t>('A' + i);
    p.entries[i] = {i + 1000u, static_cast<uint16_t>(i + 1)};
  }
  return p;
}

TEST_CASE("clc: the longest Proposal") {
  const ClcProposal p = FullProposal();
  std::vector<uint8_t> out(kClcMessageBytesMax);
  REQUIRE(ClcEncodeProposal(p, out) == kClcMessageBytesMax);
  ClcProposal back;
  REQUIRE(ClcParseProposal(out, back).ok());
  CHECK(back == p);
  CHECK(ClcEncodeProposal(p, std::span(out).first(kClcMessageBytesMax - 1)) == 0);
}

TEST_CASE("clc: the longest Proposal cut anywhere, with a header that agrees") {
  std::vector<uint8_t> whole(kClcMessageBytesMax);
  REQUIRE(ClcEncodeProposal(FullProposal(), whole) == kClcMessageBytesMax);
  for (size_t n = 52; n < whole.size(); n++) {
    std::vector<uint8_t> bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    bytes[5] = static_cast<uint8_t>(n >> 8);
    bytes[6] = static_cast<uint8_t>(n);
    std::copy(whole.end() - 4, whole.end(), bytes.end() - 4);
    INFO(n);
    CHECK(Parse(bytes, ClcType::kProposal) == ClcResult::Abort(ClcAbort::kLength));
  }
}

TEST_CASE("clc: counts over the limit") {
  ClcProposal p = FullProposal();
  std::vector<uint8_t> out(kClcMessageBytesMax);
  SECTION("are not encoded") {
    SECTION("prefixes") { p.v1.prefix_count = 9; }
    SECTION("EIDs") { p.ueid_count = 9; }
    SECTION("entries") { p.entry_count = 9; }
    CHECK(ClcEncodeProposal(p, out) == 0);
  }
  SECTION("are not believed") {
    REQUIRE(ClcEncodeProposal(p, out) == kClcMessageBytesMax);
    SECTION("prefixes") { out[87] = 9; }
    SECTION("EIDs") { out[80 + 8 + 8 * 17] = 9; }
    SECTION("entries") { out[80 + 8 + 8 * 17 + 1] = 9; }
    ClcProposal back;
    CHECK(ClcParseProposal(out, back) == ClcResult::Abort(ClcAbort::kCount));
  }
}

TEST_CASE("clc: a Proposal may lack the SMC-D extension, or all of version 2") {
  std::vector<uint8_t> out(kClcMessageBytesMax);
  ClcProposal p, back;
  SECTION("all") {
    p.path_v2 = ClcPath::kNone;
    REQUIRE(ClcEncodeProposal(p, out) == 84);
    out.resize(84);
  }
  SECTION("SMC-D, though it is wanted") {
    p.has_v2 = 1;
    REQUIRE(ClcEncodeProposal(p, out) == 124);
    out.resize(124);
  }
  REQUIRE(ClcParseProposal(out, back).ok());
  CHECK(back == p);
}

TEST_CASE("clc: other versions are only delimited") {
  // A Proposal of version 1 as RFC 7609 has it: IP area at once, no field of SMC-D.
  std::vector<uint8_t> v1(52);
  const std::vector<uint8_t> p = BytesOfHex(kProposal);
  std::copy(p.begin(), p.begin() + 4, v1.begin());
  std::copy(p.begin(), p.begin() + 4, v1.end() - 4);
  v1[4] = 1;
  v1[6] = 52;
  v1[7] = 0x10;
  ClcProposal value;
  CHECK(ClcParseProposal(v1, value) == ClcResult::Decline(kClcDiagVersion));
  CHECK(value.version == 1);
  v1[51] ^= 1;
  CHECK(ClcParseProposal(v1, value) == ClcResult::Abort(ClcAbort::kTrailer));

  std::vector<uint8_t> accept = BytesOfHex(kAcceptKnown);
  accept.erase(accept.begin() + 44, accept.begin() + 74);  // 48 bytes, as version 1 has it
  accept[6] = 48;
  accept[7] = 0x11;
  ClcAccept a;
  CHECK(ClcParseAccept(accept, a) == ClcResult::Decline(kClcDiagVersion));
}

TEST_CASE("clc: first contact of release 0 is shorter, of an unknown release as long as it says") {
  ClcAccept a;
  REQUIRE(ClcParseAccept(BytesOfHex(kAcceptFirst), a).ok());
  a.first.release = 0;
  std::vector<uint8_t> out(kClcMessageBytesMax);
  REQUIRE(ClcEncodeAccept(a, out) == 114);
  ClcAccept back;
  REQUIRE(ClcParseAccept(std::span(out).first(114), back).ok());
  a.first.feature_mask = 0;  // has no place
  CHECK(back == a);

  a.first.release = 2;
  CHECK(ClcEncodeAccept(a, out) == 0);
  std::vector<uint8_t> longer = BytesOfHex(kAcceptFirst);
  longer.insert(longer.begin() + 126, 10, 0x55);
  longer[6] = 140;
  CHECK(ClcParseAccept(longer, back) == ClcResult::Abort(ClcAbort::kLength));
  longer[75] = 0x22;
  CHECK(ClcParseAccept(longer, back) == ClcResult::Decline(kClcDiagRelease));
}

TEST_CASE("clc: a Decline of version 2 may have the length of version 1") {
  ClcDecline d;
  d.has_more = 0;
  d.is_out_of_sync = 1;
  d.diagnosis = kClcDiagSync;
  std::vector<uint8_t> out(64, 0xff);
  REQUIRE(ClcEncodeDecline(d, out) == 28);
  ClcDecline back;
  REQUIRE(ClcParseDecline(std::span(out).first(28), back).ok());
  CHECK(back == d);
  CHECK(ClcEncodeDecline(d, std::span(out).first(27)) == 0);
}

TEST_CASE("clc: what two Posterns agree on stands in the vendor's options") {
  ClcProposal p;
  ClcSetFeatures(p, kClcAckAttach);
  CHECK(ClcFeatures(p) == kClcAckAttach);
  CHECK(memcmp(p.vendor_options, "PSTN\x01", 5) == 0);
  p.vendor_oui[1] = 1;  // somebody else's options
  CHECK(ClcFeatures(p) == 0);
  ClcFirstContact f;
  ClcSetFeatures(f, kClcAckAttach);
  CHECK(ClcFeatures(f) == kClcAckAttach);
  CHECK(memcmp(f.vendor_options, "PST\x01", 4) == 0);
  ClcSetFeatures(f, 0);
  CHECK(f == ClcFirstContact{});
}

TEST_CASE("clc: user-defined enterprise ids") {
  ClcEid eid;
  CHECK(ClcUeidFromText("A", eid));
  CHECK(ClcUeidFromText("0.-ABCDEFGHIJKLMNOPQRSTUVWXYZ012", eid));
  CHECK(eid.text[31] == '2');
  CHECK_FALSE(ClcUeidFromText("0.-ABCDEFGHIJKLMNOPQRSTUVWXYZ0123", eid));
  CHECK_FALSE(ClcUeidFromText("", eid));
  CHECK_FALSE(ClcUeidFromText(".A", eid));
  CHECK_FALSE(ClcUeidFromText("a", eid));
  CHECK_FALSE(ClcUeidFromText("A B", eid));
}

TEST_CASE("clc: each diagnosis has a name, a text and a place of its own") {
  for (uint32_t i = 0; i < kClcDiagnosisCount; i++) {
    const uint32_t code = ClcDiagnosisAt(i);
    INFO(std::hex << code);
    CHECK(ClcDiagnosisIndex(code) == i);
    CHECK(std::string(ClcDiagnosisName(code)) != "unknown");
    CHECK(std::string(ClcDiagnosisText(code)).back() == '.');
  }
  CHECK(ClcDiagnosisIndex(0x12345678) == kClcDiagnosisCount);
  CHECK(std::string(ClcDiagnosisName(0x12345678)) == "unknown");
  CHECK(ClcDiagnosisAt(kClcDiagnosisCount) == 0);
}

}  // namespace
}  // namespace postern
