// SPDX-License-Identifier: Apache-2.0
// addr.cc - socket addresses between the program's form and ours (IPv4 as v4-mapped IPv6).
#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstring>

#include "endpoint/addr.h"

namespace postern {
namespace {

constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

bool AddrFromSockaddr(const sockaddr* sa, socklen_t len, uint32_t family, pstn_addr& out) {
  memset(&out, 0, sizeof out);
  if (len < sizeof(sa_family_t)) return false;
  if (sa->sa_family == AF_INET && family == AF_INET && len >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    memcpy(&in, sa, sizeof in);
    memcpy(out.ip, kMapped, sizeof kMapped);
    memcpy(out.ip + 12, &in.sin_addr, 4);
    out.port = ntohs(in.sin_port);
    return true;
  }
  // 24: the length before sin6_scope_id, which the kernel accepts too.
  if (sa->sa_family == AF_INET6 && family == AF_INET6 && len >= 24) {
    sockaddr_in6 in = {};
    memcpy(&in, sa, len < sizeof in ? len : sizeof in);
    memcpy(out.ip, &in.sin6_addr, 16);
    out.port = ntohs(in.sin6_port);
    out.scope = in.sin6_scope_id;
    return true;
  }
  return false;
}

void AddrToSockaddr(const pstn_addr& a, uint32_t family, sockaddr* sa, socklen_t* len) {
  if (len == nullptr) return;
  sockaddr_storage full;
  memset(&full, 0, sizeof full);
  socklen_t full_len;
  if (family == AF_INET) {
    auto* in = reinterpret_cast<sockaddr_in*>(&full);
    in->sin_family = AF_INET;
    in->sin_port = htons(a.port);
    memcpy(&in->sin_addr, a.ip + 12, 4);
    full_len = sizeof *in;
  } else {
    auto* in = reinterpret_cast<sockaddr_in6*>(&full);
    in->sin6_family = AF_INET6;
    in->sin6_port = htons(a.port);
    memcpy(&in->sin6_addr, a.ip, 16);
    in->sin6_scope_id = a.scope;
    full_len = sizeof *in;
  }
  if (sa != nullptr) memcpy(sa, &full, *len < full_len ? *len : full_len);
  *len = full_len;
}

bool AddrIsV4(const pstn_addr& a) { return memcmp(a.ip, kMapped, sizeof kMapped) == 0; }

bool AddrIsAny(const pstn_addr& a) {
  static constexpr uint8_t kZero[16] = {};
  return memcmp(a.ip, kZero, 16) == 0 || (AddrIsV4(a) && memcmp(a.ip + 12, kZero, 4) == 0);
}

bool AddrIsLoopback(const pstn_addr& a) {
  if (AddrIsV4(a)) return a.ip[12] == 127;
  static constexpr uint8_t kOne[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return memcmp(a.ip, kOne, 16) == 0;
}

}  // namespace postern
