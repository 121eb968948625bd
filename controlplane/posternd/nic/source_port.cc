// source_port.cc - see source_port.h.
// SPDX-License-Identifier: Apache-2.0
#include "source_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/ip_address.h"

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
  const uint32_t family = is_ipv6 ? AF_INET6 : AF_INET;
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const place = reinterpret_cast<sockaddr*>(&storage);
  pstn_addr name = NameOf(IpAddress{}, port);
  AddrToSockaddr(name, family, place, &size);
  const int one = 1;
  if (is_ipv6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)) != 0) return -errno;
  if (bind(fd, place, size) != 0 || getsockname(fd, place, &size) != 0) return -errno;
  if (!AddrFromSockaddr(place, size, family, name)) return -EINVAL;
  port = name.port;
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
  const IpAddress any = is_ipv6 ? IpAddress{} : IpAddress::V4(0, 0, 0, 0);
  memcpy(key.local.byte, any.bytes, sizeof(key.local.byte));
  key.port = htons(port);
  key.protocol = IPPROTO_TCP;
  socket = std::move(fd);
  return 0;
}

}  // namespace postern::daemon
