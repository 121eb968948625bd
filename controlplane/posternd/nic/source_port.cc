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
int Bind(int fd, pstn_addr& name) {
  const uint32_t family = AddrIsV4(name) ? AF_INET : AF_INET6;
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const place = reinterpret_cast<sockaddr*>(&storage);
  AddrToSockaddr(name, family, place, &size);
  if (bind(fd, place, size) != 0 || getsockname(fd, place, &size) != 0) return -errno;
  return AddrFromSockaddr(place, size, family, name) ? 0 : -EINVAL;
}

}  // namespace

int KeepSourcePort(const pstn_addr& wanted, UniqueFd& socket, pstn_xdp_port& key) {
  if (AddrIsAny(wanted)) return -EINVAL;
  const Range range = EphemeralPorts();
  if (wanted.port != 0 && (wanted.port < range.low || wanted.port > range.high)) return -EPERM;
  UniqueFd fd(::socket(AddrIsV4(wanted) ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return -errno;
  pstn_addr name = wanted;
  if (const int error = Bind(fd.get(), name); error != 0) return error;
  if (wanted.port == 0 && ((name.port ^ range.low) & 1U) == 0) return -EADDRNOTAVAIL;
  key = {};
  memcpy(key.local.byte, wanted.ip, sizeof(key.local.byte));
  key.port = htons(name.port);
  key.protocol = IPPROTO_TCP;
  socket = std::move(fd);
  return 0;
}

}  // namespace postern::daemon
