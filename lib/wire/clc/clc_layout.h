// SPDX-License-Identifier: Apache-2.0
// clc_layout.h - where each field of a CLC message stands; for the codec only.
//
// All of these are laid over bytes. Offsets that a message carries count from the end of the field
// that holds them, or as said there.
#pragma once
#include <cstddef>

#include "wire/be.h"
#include "wire/clc/clc.h"

namespace postern::clc_wire {

constexpr uint8_t kEyecatcherR[4] = {0xe2, 0xd4, 0xc3, 0xd9};  // "SMCR" in EBCDIC
constexpr uint8_t kEyecatcherD[4] = {0xe2, 0xd4, 0xc3, 0xc4};  // "SMCD"
constexpr uint8_t kFirstContact = 0x08;  // of the header's low bits; "out of sync" in a Decline
constexpr uint8_t kPathMask = 0x03;
constexpr uint8_t kSeidPresent = 0x01;

struct Header {
  uint8_t eyecatcher[4];
  uint8_t type;
  Be16 len_bytes;
  uint8_t version_bits;  // 7-4 version, 3-2 path of version 2, 1-0 path of version 1
};
static_assert(sizeof(Header) == 8);

struct Trailer {
  uint8_t eyecatcher[4];
};

// ---------------------------------------------------------------- Proposal
// Header | v1 | [IP area, prefixes] | [V2, UEIDs | [Smcd, entries]] | trailer

struct Proposal {
  Header header;
  uint8_t peer_id[8];
  uint8_t roce_gid[16];
  uint8_t roce_mac[6];
  Be16 ip_off;  // 40: the IP area follows this struct
  Be64 ism_gid;
  Be16 ism_chid;
  Be16 v2_off;  // 0: no version 2 extension
  uint8_t vendor_oui[3];
  uint8_t vendor_options[5];
  uint8_t reserved[20];
};
static_assert(sizeof(Proposal) == 80);
static_assert(offsetof(Proposal, ip_off) == 38 && offsetof(Proposal, v2_off) == 50);
constexpr size_t kIpOffBase = offsetof(Proposal, ip_off) + 2;
constexpr size_t kV2OffBase = offsetof(Proposal, v2_off) + 2;

struct IpArea {
  uint8_t subnet[4];
  uint8_t subnet_bits;
  uint8_t reserved[2];
  uint8_t prefix_count;
};
static_assert(sizeof(IpArea) == 8);

struct Prefix {
  uint8_t address[16];
  uint8_t bits;
};
static_assert(sizeof(Prefix) == 17);

struct V2 {
  uint8_t ueid_count;
  uint8_t entry_count;
  uint8_t reserved;
  uint8_t release_bits;  // 7-4 release, 0 SEID present
  uint8_t reserved2[2];
  Be16 smcd_off;  // 0: no SMC-D extension
  uint8_t roce_gid[16];
  uint8_t conns_max;
  uint8_t links_max;
  Be16 feature_mask;
  uint8_t reserved3[12];
};
static_assert(sizeof(V2) == 40);
constexpr size_t kSmcdOffBase = offsetof(V2, smcd_off) + 2;  // from the start of V2

struct Smcd {
  uint8_t seid[32];
  uint8_t reserved[16];
};
static_assert(sizeof(Smcd) == 48);

struct Entry {
  Be64 gid;
  Be16 chid;
};
static_assert(sizeof(Entry) == 10);

static_assert(sizeof(Proposal) + sizeof(IpArea) + kClcPrefixesMax * sizeof(Prefix) + sizeof(V2) +
                  kClcEidsMax * sizeof(ClcEid) + sizeof(Smcd) + kClcEntriesMax * sizeof(Entry) +
                  sizeof(Trailer) ==
              kClcMessageBytesMax);

// ---------------------------------------------------------------- Accept, Confirm
// Accept | [FirstContact | [Release1]] | trailer

struct Accept {
  Header header;
  Be64 gid;
  Be64 token;
  uint8_t dmbe_index;
  uint8_t size_bits;  // 7-4 size code
  uint8_t reserved[2];
  Be32 link_id;
  Be16 chid;
  uint8_t eid[32];
  Be64 gid_ext;
};
static_assert(sizeof(Accept) == 74 && offsetof(Accept, chid) == 32);

struct FirstContact {
  uint8_t smcr_bits;
  uint8_t os_release;  // 7-4 operating system, 3-0 release
  uint8_t reserved[2];
  uint8_t host_name[32];
};
static_assert(sizeof(FirstContact) == 36);

struct Release1 {
  uint8_t smcr_conns_max;
  uint8_t smcr_links_max;
  Be16 feature_mask;
  uint8_t vendor_options[4];
  uint8_t reserved[8];
};
static_assert(sizeof(Release1) == 16);

// ---------------------------------------------------------------- Decline
// Decline | [More] | trailer

struct Decline {
  Header header;
  uint8_t peer_id[8];
  Be32 diagnosis;
  uint8_t os_bits;  // 7-4 operating system
  uint8_t reserved[3];
};
static_assert(sizeof(Decline) == 24);

struct More {
  Be32 diagnosis[4];
};

constexpr size_t kDeclineShort = sizeof(Decline) + sizeof(Trailer);
constexpr size_t kDeclineLong = kDeclineShort + sizeof(More);
static_assert(kDeclineShort == 28 && kDeclineLong == 44);

// ---------------------------------------------------------------- helpers of the codec

template <typename T>
const T& At(std::span<const uint8_t> bytes, size_t off) {
  return *reinterpret_cast<const T*>(bytes.data() + off);
}
template <typename T>
T& At(std::span<uint8_t> bytes, size_t off) {
  return *reinterpret_cast<T*>(bytes.data() + off);
}

// Header and trailer of a whole message: the length is that of `bytes`, the type is `type`. Of a
// Decline the trailer is not looked at.
ClcResult CheckFrame(std::span<const uint8_t> bytes, ClcType type, ClcHead& head);
// Zeroes `len_bytes` of `out` and writes header and trailer. False if there is no room.
bool WriteFrame(std::span<uint8_t> out, const ClcHead& head);

}  // namespace postern::clc_wire
