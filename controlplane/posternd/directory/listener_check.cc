// listener_check.cc - the questions of listener_check.h.
// SPDX-License-Identifier: Apache-2.0
#include "listener_check.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "../guard/patience.h"
#include "../kit/proc.h"
#include "base/ip_address.h"

namespace postern::daemon {
namespace {

int IntOption(int fd, int level, int name, int& value) {
  socklen_t size = sizeof(value);
  return getsockopt(fd, level, name, &value, &size) == 0 ? 0 : -errno;
}

int ReadAddress(int fd, uid_t whose, Listener& listener) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const place = reinterpret_cast<sockaddr*>(&storage);
  if (const int error = SocketName(fd, whose, storage, size); error != 0) return error;
  pstn_addr& local = listener.local;
  if (!AddrFromSockaddr(place, size, storage.ss_family, local)) return -EINVAL;
  // The wildcard is all zero in both families.
  if (storage.ss_family == AF_INET && AddrIsAny(local)) SetIp(local, {});
  return local.port != 0 ? 0 : -EINVAL;
}

// SIOCGSKNS tells the socket's own namespace but needs CAP_NET_ADMIN; without it the process's has
// to do: a socket from elsewhere can only reach it through a process of the same user.
uint64_t SocketNetns(int fd, pid_t owner) {
  UniqueFd ns(ioctl(fd, SIOCGSKNS));
  struct stat st {};
  if (ns.ok()) return fstat(ns.get(), &st) == 0 ? st.st_ino : 0;
  return NetnsIno(owner);
}

}  // namespace

int CheckListener(int fd, pid_t owner, uid_t whose, uint64_t netns, Listener& listener) {
  int domain = 0, type = 0, protocol = 0, listening = 0, v6only = 0, device = 0, shares_port = 0;
  int error = IntOption(fd, SOL_SOCKET, SO_DOMAIN, domain);
  if (error == 0) error = IntOption(fd, SOL_SOCKET, SO_TYPE, type);
  if (error == 0) error = IntOption(fd, SOL_SOCKET, SO_PROTOCOL, protocol);
  if (error == 0) error = IntOption(fd, SOL_SOCKET, SO_ACCEPTCONN, listening);
  if (error == 0) error = IntOption(fd, SOL_SOCKET, SO_BINDTOIFINDEX, device);
  if (error == 0) error = IntOption(fd, SOL_SOCKET, SO_REUSEPORT, shares_port);
  if (error != 0) return error;
  if (domain != AF_INET && domain != AF_INET6) return -EINVAL;
  if (type != SOCK_STREAM || protocol != IPPROTO_TCP || listening == 0 || device != 0)
    return -EINVAL;
  if (domain == AF_INET6) error = IntOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, v6only);
  if (error == 0) error = ReadAddress(fd, whose, listener);
  if (error != 0) return error;
  socklen_t size = sizeof(listener.cookie);
  if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &listener.cookie, &size) != 0) return -errno;
  listener.family = static_cast<uint32_t>(domain);
  listener.v6only = v6only != 0 ? 1 : 0;
  listener.shares_port = shares_port != 0;
  listener.netns_ino = SocketNetns(fd, owner);
  if (listener.netns_ino == 0 || listener.netns_ino != netns) return -EPERM;
  return 0;
}

}  // namespace postern::daemon
