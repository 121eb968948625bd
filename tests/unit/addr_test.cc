// SPDX-License-Identifier: Apache-2.0
// addr_test.cc - addresses to and from the program's form, truncation included.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "catch.h"
#include "endpoint/addr.h"

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

TEST_CASE("addr: IPv4 goes v4-mapped and comes back") {
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

TEST_CASE("addr: IPv6 with its scope, and without (24 bytes)") {
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

TEST_CASE("addr: too short, or of the wrong family") {
  const sockaddr_in in = In("127.0.0.1", 1);
  pstn_addr a;
  for (socklen_t len = 0; len < sizeof in; len++)
    CHECK_FALSE(AddrFromSockaddr(Sa(in), len, AF_INET, a));
  CHECK_FALSE(AddrFromSockaddr(Sa(in), sizeof in, AF_INET6, a));
  const sockaddr_in6 in6 = In6("::1", 1);
  CHECK_FALSE(AddrFromSockaddr(Sa(in6), sizeof in6, AF_INET, a));
}

TEST_CASE("addr: a short buffer is filled as far as it goes, and learns the whole length") {
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

TEST_CASE("addr: wildcard and loopback") {
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

}  // namespace
}  // namespace postern
