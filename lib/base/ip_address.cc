// SPDX-License-Identifier: Apache-2.0
// ip_address.cc - addresses as programs and people write them.
#include "base/ip_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdio>

#include "base/user_memory.h"

namespace postern {
namespace {

constexpr socklen_t kLeastIn6 = 24;  // without sin6_scope_id, which the kernel accepts too

}  // namespace

bool IpFromText(const char* text, IpAddress& out) {
  uint8_t v4[kIpv4Bytes];
  if (inet_pton(AF_INET, text, v4) == 1) {
    out = Ipv4At(v4);
    return true;
  }
  return inet_pton(AF_INET6, text, out.bytes) == 1;
}

const char* IpText(const IpAddress& ip, char (&out)[kIpTextBytes]) {
  static_assert(kIpTextBytes >= INET6_ADDRSTRLEN);
  uint8_t bytes[kIpBytes];
  const int family = PutIp(ip, bytes);
  return inet_ntop(family, bytes, out, sizeof out);
}

const char* AddrText(const pstn_addr& a, char (&out)[kAddrTextBytes]) {
  char ip[kIpTextBytes];
  IpText(IpOf(a), ip);
  char port[sizeof "65535"] = "*";
  if (a.port != 0) snprintf(port, sizeof port, "%hu", a.port);
  snprintf(out, sizeof out, AddrIsV4(a) ? "%s:%s" : "[%s]:%s", ip, port);
  return out;
}

bool IsWholeSockaddr(socklen_t len, uint32_t family) {
  return len >= (family == AF_INET6 ? kLeastIn6 : sizeof(sockaddr_in));
}

bool AddrFromSockaddr(const sockaddr* sa, socklen_t len, uint32_t family, pstn_addr& out) {
  out = {};
  if (len < sizeof(sa_family_t)) return false;
  if (sa->sa_family != family || !IsWholeSockaddr(len, family)) return false;
  if (family == AF_INET) {
    sockaddr_in in;
    memcpy(&in, sa, sizeof in);
    out = NameOf(Ipv4At(&in.sin_addr), ntohs(in.sin_port));
    return true;
  }
  if (family == AF_INET6) {
    sockaddr_in6 in = {};
    memcpy(&in, sa, len < sizeof in ? len : sizeof in);
    out = NameOf(IpAt(&in.sin6_addr), ntohs(in.sin6_port));
    out.scope = in.sin6_scope_id;
    return true;
  }
  return false;
}

bool AddrToSockaddr(const pstn_addr& a, uint32_t family, sockaddr* sa, socklen_t* len) {
  if (len == nullptr) return true;
  sockaddr_storage full;
  memset(&full, 0, sizeof full);
  socklen_t full_len;
  if (family == AF_INET) {
    auto* in = reinterpret_cast<sockaddr_in*>(&full);
    in->sin_family = AF_INET;
    in->sin_port = htons(a.port);
    memcpy(&in->sin_addr, a.ip + kIpv4Off, kIpv4Bytes);
    full_len = sizeof *in;
  } else {
    auto* in = reinterpret_cast<sockaddr_in6*>(&full);
    in->sin6_family = AF_INET6;
    in->sin6_port = htons(a.port);
    memcpy(&in->sin6_addr, a.ip, kIpBytes);
    in->sin6_scope_id = a.scope;
    full_len = sizeof *in;
  }
  socklen_t room;
  if (!GetUser(room, len)) return false;
  if (sa != nullptr && !CopyUser(sa, &full, room < full_len ? room : full_len)) return false;
  return PutUser(len, full_len);
}

}  // namespace postern
