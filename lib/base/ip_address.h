// SPDX-License-Identifier: Apache-2.0
// ip_address.h - IP addresses, alone and with a port, and every form that they come in.
//
// An address is 16 bytes, in the order of the wire. IPv4 is kept v4-mapped, ::ffff:a.b.c.d
// (RFC 4291, 2.5.5.2). "Any" is all zero, in either family, or ::ffff:0.0.0.0.
//
// pstn_addr is an address with port (host order) and scope (the interface of a link-local one), as
// shared memory has it; `family` is AF_INET or AF_INET6 and belongs to the socket: a socket of IPv6
// may have IPv4's addresses.
//
// Another address family is added here, and where headers are read and built (lib/wire/ip).
#pragma once
#include <sys/socket.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "abi/postern_abi.h"
#include "base/atomic.h"

namespace postern {

inline constexpr uint32_t kIpBytes = 16, kIpv4Bytes = 4;
inline constexpr uint32_t kIpv4Off = 12;  // where the four bytes of an IPv4 address are

struct IpAddress {
  uint8_t bytes[kIpBytes];

  constexpr bool operator==(const IpAddress& o) const {
    return __builtin_memcmp(bytes, o.bytes, sizeof bytes) == 0;
  }

  constexpr bool IsV4() const {
    return __builtin_memcmp(bytes, V4(0, 0, 0, 0).bytes, kIpv4Off) == 0;
  }
  constexpr bool IsAny() const { return *this == IpAddress{} || *this == V4(0, 0, 0, 0); }
  constexpr bool IsLoopback() const {
    return IsV4() ? bytes[kIpv4Off] == 127 : *this == Loopback6();
  }
  constexpr bool IsMulticast() const {
    return IsV4() ? (bytes[kIpv4Off] & 0xf0u) == 0xe0u : bytes[0] == 0xff;
  }
  // Of IPv6 (RFC 4291, 2.5.6).
  constexpr bool IsLinkLocal() const { return bytes[0] == 0xfe && (bytes[1] & 0xc0u) == 0x80; }

  // Of an IPv4 address, its four bytes.
  constexpr const uint8_t* v4() const { return bytes + kIpv4Off; }

  static constexpr IpAddress V4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
    return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d}};
  }
  static constexpr IpAddress Loopback6() {
    return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
  }
};
static_assert(sizeof(IpAddress) == kIpBytes && alignof(IpAddress) == 1);

// From 16 bytes (in6_addr, a field of shared memory), and from four (in_addr, an IPv4 header's).
inline IpAddress IpAt(const void* bytes) {
  IpAddress ip;
  memcpy(ip.bytes, bytes, sizeof ip.bytes);
  return ip;
}
inline IpAddress Ipv4At(const void* bytes) {
  IpAddress ip = IpAddress::V4(0, 0, 0, 0);
  memcpy(ip.bytes + kIpv4Off, bytes, kIpv4Bytes);
  return ip;
}
// As the kernel has it in arrays that serve both families: four bytes or 16 at `bytes`.
inline IpAddress IpAt(int family, const void* bytes) {
  return family == AF_INET ? Ipv4At(bytes) : IpAt(bytes);
}
// The reverse: AF_INET or AF_INET6, and the four or 16 bytes, written to `to`.
inline int PutIp(const IpAddress& ip, void* to) {
  if (ip.IsV4()) {
    memcpy(to, ip.v4(), kIpv4Bytes);
    return AF_INET;
  }
  memcpy(to, ip.bytes, kIpBytes);
  return AF_INET6;
}

inline uint64_t LoadBe64(const uint8_t* at) {
  uint64_t v;
  memcpy(&v, at, sizeof v);
  return std::endian::native == std::endian::little ? __builtin_bswap64(v) : v;
}
// Whether the first `bits` are the same: up to 128; a prefix of IPv4 is 96 longer than its own.
inline bool SamePrefix(const uint8_t* a, const uint8_t* b, uint32_t bits) {
  const uint64_t high = LoadBe64(a) ^ LoadBe64(b), low = LoadBe64(a + 8) ^ LoadBe64(b + 8);
  if (bits == 0) return true;
  if (bits <= 64) return high >> (64 - bits) == 0;
  return high == 0 && low >> (bits < 128 ? 128 - bits : 0) == 0;
}

// "10.0.0.1", "fd00::1". False: it is neither.
bool IpFromText(const char* text, IpAddress& out);
inline constexpr size_t kIpTextBytes = 46, kAddrTextBytes = 56;
const char* IpText(const IpAddress& ip, char (&out)[kIpTextBytes]);

// ---- with a port

inline IpAddress IpOf(const pstn_addr& a) { return IpAt(a.ip); }
inline void SetIp(pstn_addr& a, const IpAddress& ip) { memcpy(a.ip, ip.bytes, sizeof a.ip); }
inline pstn_addr NameOf(const IpAddress& ip, uint16_t port) {
  pstn_addr a = {};
  SetIp(a, ip);
  a.port = port;
  return a;
}

inline bool AddrIsAny(const pstn_addr& a) { return IpOf(a).IsAny(); }
inline bool AddrIsV4(const pstn_addr& a) { return IpOf(a).IsV4(); }
inline bool AddrIsLoopback(const pstn_addr& a) { return IpOf(a).IsLoopback(); }
inline bool SameIp(const pstn_addr& a, const pstn_addr& b) {
  return memcmp(a.ip, b.ip, sizeof a.ip) == 0;
}
// Address and port, as packets have them.
inline bool SameName(const pstn_addr& a, const pstn_addr& b) {
  return a.port == b.port && SameIp(a, b);
}
// An order among all, of no further meaning: the scope counts as well.
inline int CompareAddr(const pstn_addr& a, const pstn_addr& b) { return memcmp(&a, &b, sizeof a); }

// "10.0.0.1:80", "[fd00::1]:80"; port 0 is "*".
const char* AddrText(const pstn_addr& a, char (&out)[kAddrTextBytes]);

// False: too short, or not of `family`.
bool AddrFromSockaddr(const sockaddr* sa, socklen_t len, uint32_t family, pstn_addr& out);
// As accept, getsockname and friends do it: truncates, and sets *len to the full length. Both are
// the program's; false: there is no memory.
bool AddrToSockaddr(const pstn_addr& a, uint32_t family, sockaddr* sa, socklen_t* len);
// Whether a program may give an address of so few bytes to a socket of `family`.
bool IsWholeSockaddr(socklen_t len, uint32_t family);

// An endpoint's names may be asked for while its connection is made or ended: word by word, as the
// kernel's are.
static_assert(sizeof(pstn_addr) % sizeof(uint32_t) == 0 && alignof(pstn_addr) >= alignof(uint32_t));
inline constexpr size_t kAddrWords = sizeof(pstn_addr) / sizeof(uint32_t);
inline void StoreAddr(pstn_addr& to, const pstn_addr& from) {
  uint32_t words[kAddrWords];
  memcpy(words, &from, sizeof words);
  auto* const at = reinterpret_cast<uint32_t*>(&to);
  for (size_t i = 0; i < kAddrWords; i++) StoreRelaxed(at[i], words[i]);
}
inline pstn_addr LoadAddr(const pstn_addr& from) {
  uint32_t words[kAddrWords];
  const auto* const at = reinterpret_cast<const uint32_t*>(&from);
  for (size_t i = 0; i < kAddrWords; i++) words[i] = LoadRelaxed(at[i]);
  pstn_addr to;
  memcpy(&to, words, sizeof to);
  return to;
}

}  // namespace postern
