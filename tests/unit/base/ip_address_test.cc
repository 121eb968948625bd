// SPDX-License-Identifier: Apache-2.0
// ip_address_test.cc - addresses to and from the program's form, truncation included.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <initializer_list>
#include <string>

#include "../kit/catch.h"
#include "base/ip_address.h"

namespace postern {
namespace {

sockaddr_in In(const char* ip, uint16_t port) {
  sockaddr_in in = {};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  REQUIRE(inet_pton(AF_INET, ip, &in.sin_addr) == 1);
  return in;
}
sockaddr_in6 In6(const char* ip, uint16_t port) {
  sockaddr_in6 in = {};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  in.sin6_scope_id = 7;
  REQUIRE(inet_pton(AF_INET6, ip, &in.sin6_addr) == 1);
  return in;
}
template <typename T>
const sockaddr* Sa(const T& in) {
  return reinterpret_cast<const sockaddr*>(&in);
}

TEST_CASE("ip_address: IPv4 goes v4-mapped and comes back") {
  const sockaddr_in in = In("10.1.2.3", 4567);
  pstn_addr a;
  REQUIRE(AddrFromSockaddr(Sa(in), sizeof in, AF_INET, a));
  CHECK(AddrIsV4(a));
  CHECK(a.port == 4567);
  CHECK(a.ip[15] == 3);
  sockaddr_in out = {};
  socklen_t len = sizeof out;
  AddrToSockaddr(a, AF_INET, reinterpret_cast<sockaddr*>(&out), &len);
  CHECK(len == sizeof out);
  CHECK(memcmp(&in, &out, sizeof in) == 0);
}

TEST_CASE("ip_address: IPv6 with its scope, and without (24 bytes)") {
  const sockaddr_in6 in = In6("fe80::1", 80);
  pstn_addr a;
  REQUIRE(AddrFromSockaddr(Sa(in), sizeof in, AF_INET6, a));
  CHECK_FALSE(AddrIsV4(a));
  CHECK(a.scope == 7);
  sockaddr_in6 out = {};
  socklen_t len = sizeof out;
  AddrToSockaddr(a, AF_INET6, reinterpret_cast<sockaddr*>(&out), &len);
  CHECK(memcmp(&in, &out, sizeof in) == 0);
  REQUIRE(AddrFromSockaddr(Sa(in), 24, AF_INET6, a));
  CHECK(a.scope == 0);
  CHECK_FALSE(AddrFromSockaddr(Sa(in), 23, AF_INET6, a));
}

TEST_CASE("ip_address: too short, or of the wrong family") {
  const sockaddr_in in = In("127.0.0.1", 1);
  pstn_addr a;
  for (socklen_t len = 0; len < sizeof in; len++)
    CHECK_FALSE(AddrFromSockaddr(Sa(in), len, AF_INET, a));
  CHECK_FALSE(AddrFromSockaddr(Sa(in), sizeof in, AF_INET6, a));
  const sockaddr_in6 in6 = In6("::1", 1);
  CHECK_FALSE(AddrFromSockaddr(Sa(in6), sizeof in6, AF_INET, a));
}

TEST_CASE("ip_address: a short buffer is filled as far as it goes, and learns the whole length") {
  pstn_addr a;
  const sockaddr_in in = In("10.1.2.3", 4567);
  REQUIRE(AddrFromSockaddr(Sa(in), sizeof in, AF_INET, a));
  unsigned char room[sizeof(sockaddr_in)];
  memset(room, 0x55, sizeof room);
  socklen_t len = 6;
  AddrToSockaddr(a, AF_INET, reinterpret_cast<sockaddr*>(room), &len);
  CHECK(len == sizeof(sockaddr_in));
  CHECK(memcmp(room, &in, 6) == 0);
  CHECK(room[6] == 0x55);
  AddrToSockaddr(a, AF_INET, nullptr, &len);
  AddrToSockaddr(a, AF_INET, reinterpret_cast<sockaddr*>(room), nullptr);
}

TEST_CASE("ip_address: wildcard and loopback") {
  const auto any = [](const char* ip) {
    pstn_addr a;
    if (strchr(ip, ':') != nullptr)
      REQUIRE(AddrFromSockaddr(Sa(In6(ip, 1)), sizeof(sockaddr_in6), AF_INET6, a));
    else
      REQUIRE(AddrFromSockaddr(Sa(In(ip, 1)), sizeof(sockaddr_in), AF_INET, a));
    return a;
  };
  CHECK(AddrIsAny(any("0.0.0.0")));
  CHECK(AddrIsAny(any("::")));
  CHECK(AddrIsAny(any("::ffff:0.0.0.0")));
  CHECK_FALSE(AddrIsAny(any("::1")));
  CHECK(AddrIsLoopback(any("127.3.2.1")));
  CHECK(AddrIsLoopback(any("::1")));
  CHECK(AddrIsLoopback(any("::ffff:127.0.0.1")));
  CHECK_FALSE(AddrIsLoopback(any("128.0.0.1")));
  CHECK_FALSE(AddrIsLoopback(any("::2")));
}

TEST_CASE("ip_address: prefixes of any length, at the borders of words and bytes") {
  const auto ip = [](const char* text) {
    IpAddress address;
    REQUIRE(IpFromText(text, address));
    return address;
  };
  const auto same = [&](const char* a, const char* b, uint32_t bits) {
    return SamePrefix(ip(a).bytes, ip(b).bytes, bits);
  };
  CHECK(same("fd00::1", "10.0.0.1", 0));
  CHECK(same("fd00::1", "fd00::2", 126));
  CHECK_FALSE(same("fd00::1", "fd00::2", 127));
  CHECK(same("fd00::1", "fd00:0:0:0:8000::", 64));
  CHECK_FALSE(same("fd00::1", "fd00:0:0:0:8000::", 65));
  CHECK(same("fd00::1", "fd00:0:0:1::1", 63));
  CHECK_FALSE(same("fd00::1", "fd00:0:0:1::1", 64));
  CHECK_FALSE(same("fd00::1", "fd00::", 128));
  CHECK(same("fd00::1", "fd00::1", 65535));
  CHECK(same("10.1.0.1", "10.1.255.1", 96 + 16));
  CHECK_FALSE(same("10.1.0.1", "10.1.255.1", 96 + 17));
}

TEST_CASE("ip_address: as text and back") {
  for (const char* text : {"10.0.0.1", "fd00::1", "::", "255.255.255.255"}) {
    IpAddress ip;
    REQUIRE(IpFromText(text, ip));
    char out[kIpTextBytes];
    CHECK(std::string(IpText(ip, out)) == text);
  }
  IpAddress ip;
  for (const char* bad : {"", "10.0.0", "10.0.0.1:80", "fd00::1%eth0", "[::1]", "x"})
    CHECK_FALSE(IpFromText(bad, ip));
  char out[kAddrTextBytes];
  CHECK(std::string(AddrText(NameOf(IpAddress::V4(1, 2, 3, 4), 80), out)) == "1.2.3.4:80");
  CHECK(std::string(AddrText(NameOf(IpAddress::Loopback6(), 0), out)) == "[::1]:*");
  pstn_addr longest = {};
  memset(longest.ip, 0xfe, sizeof longest.ip);
  longest.port = 65535;
  CHECK(std::string(AddrText(longest, out)) == "[fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe]:65535");
}

TEST_CASE("ip_address: kinds, and the kernel's arrays") {
  CHECK(IpAddress::V4(224, 0, 0, 1).IsMulticast());
  CHECK_FALSE(IpAddress::V4(240, 0, 0, 1).IsMulticast());
  CHECK_FALSE(IpAddress::V4(254, 128, 0, 1).IsLinkLocal());
  const uint8_t v4[4] = {10, 1, 2, 3};
  CHECK(IpAt(AF_INET, v4) == IpAddress::V4(10, 1, 2, 3));
  uint8_t room[16] = {};
  CHECK(PutIp(IpAddress::V4(10, 1, 2, 3), room) == AF_INET);
  CHECK(memcmp(room, v4, sizeof v4) == 0);
  CHECK(PutIp(IpAddress::Loopback6(), room) == AF_INET6);
  CHECK(IpAt(room) == IpAddress::Loopback6());
}

}  // namespace
}  // namespace postern
