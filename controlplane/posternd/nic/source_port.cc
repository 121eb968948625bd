// source_port.cc - see source_port.h.
// SPDX-License-Identifier: Apache-2.0
#include "source_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace postern::daemon {
namespace {

struct Range {
  uint32_t low = 0, high = 0;
};

// Of the network namespace of the thread that opens it.
Range EphemeralPorts() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  Range range;
  file >> range.low >> range.high;
  return file && range.low <= range.high && range.high <= 65535 ? range : Range();
}

// Binds it, and says to which port.
int Bind(int fd, bool is_ipv6, uint16_t& port) {
  sockaddr_in6 address{};  // large enough for both
  socklen_t size = is_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  address.sin6_family = is_ipv6 ? AF_INET6 : AF_INET;
  address.sin6_port = htons(port);  // at the same place in both
  static_assert(offsetof(sockaddr_in6, sin6_port) == offsetof(sockaddr_in, sin_port));
  const int one = 1;
  if (is_ipv6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)) != 0) return -errno;
  if (bind(fd, any, size) != 0 || getsockname(fd, any, &size) != 0) return -errno;
  port = ntohs(address.sin6_port);
  return 0;
}

}  // namespace

int KeepSourcePort(uint32_t family, uint16_t wanted, UniqueFd& socket, pstn_xdp_port& key) {
  if (family != 4 && family != 6) return -EINVAL;
  const Range range = EphemeralPorts();
  if (wanted != 0 && (wanted < range.low || wanted > range.high)) return -EPERM;
  const bool is_ipv6 = family == 6;
  UniqueFd fd(::socket(is_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return -errno;
  uint16_t port = wanted;
  if (const int error = Bind(fd.get(), is_ipv6, port); error != 0) return error;
  if (wanted == 0 && ((port ^ range.low) & 1U) == 0) return -EADDRNOTAVAIL;
  key = {};
  if (!is_ipv6) key.local.byte[10] = key.local.byte[11] = 0xff;
  key.port = htons(port);
  key.protocol = IPPROTO_TCP;
  socket = std::move(fd);
  return 0;
}

}  // namespace postern::daemon
