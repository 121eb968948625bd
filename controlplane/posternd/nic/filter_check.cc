// filter_check.cc - see filter_check.h.
// SPDX-License-Identifier: Apache-2.0
#include "filter_check.h"

#include <libmnl/libmnl.h>
#include <linux/inet_diag.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "../guard/patience.h"
#include "base/ip_address.h"

namespace postern::daemon {
namespace {

struct Socket {
  int domain = 0, type = 0, protocol = 0, listening = 0, v6only = 0, device = 0;
  uid_t uid = 0;
  pstn_xdp_ip ip{};  // IPv4 mapped; any of IPv4 is ::ffff:0.0.0.0
  bool any = false;
  __be16 port = 0;
};

bool Option(int fd, int level, int name, int& value) {
  socklen_t size = sizeof(value);
  return getsockopt(fd, level, name, &value, &size) == 0;
}

pstn_xdp_ip KeyOf(const IpAddress& ip) {
  pstn_xdp_ip key{};
  memcpy(key.byte, ip.bytes, sizeof(key.byte));
  return key;
}

bool ReadAddress(int fd, uid_t whose, Socket& s) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const place = reinterpret_cast<sockaddr*>(&storage);
  pstn_addr name;
  if (SocketName(fd, whose, storage, size) != 0 ||
      !AddrFromSockaddr(place, size, storage.ss_family, name))
    return false;
  s.ip = KeyOf(IpOf(name));
  s.any = storage.ss_family == AF_INET ? AddrIsAny(name) : IpOf(name) == IpAddress{};
  s.port = htons(name.port);
  return s.port != 0;
}

int Read(int fd, uid_t whose, uint64_t netns, uint32_t ifindex, Socket& s) {
  struct stat st {};
  // A socket answers at once, which other files need not.
  if (!Option(fd, SOL_SOCKET, SO_DOMAIN, s.domain) || fstat(fd, &st) != 0) return -ENOTSOCK;
  s.uid = st.st_uid;
  if (!Option(fd, SOL_SOCKET, SO_TYPE, s.type) ||
      !Option(fd, SOL_SOCKET, SO_PROTOCOL, s.protocol) ||
      !Option(fd, SOL_SOCKET, SO_ACCEPTCONN, s.listening) ||
      !Option(fd, SOL_SOCKET, SO_BINDTOIFINDEX, s.device))
    return -EINVAL;
  const bool tcp = s.type == SOCK_STREAM && s.protocol == IPPROTO_TCP;
  const bool udp = s.type == SOCK_DGRAM && s.protocol == IPPROTO_UDP;
  if ((s.domain != AF_INET && s.domain != AF_INET6) || (!tcp && !udp)) return -EINVAL;
  if (s.domain == AF_INET6 && !Option(fd, IPPROTO_IPV6, IPV6_V6ONLY, s.v6only)) return -EINVAL;
  if (!ReadAddress(fd, whose, s)) return -EINVAL;
  if (s.device != 0 && static_cast<uint32_t>(s.device) != ifindex) return -EPERM;
  const UniqueFd ns(ioctl(fd, SIOCGSKNS));
  return ns.ok() && fstat(ns.get(), &st) == 0 && st.st_ino == netns ? 0 : -EPERM;
}

// Of the kernel's socket that would get a packet of this flow, if there is one.
struct Getter {
  bool found = false;
  uid_t uid = 0;
};

int TakeGetter(const nlmsghdr* answer, void* context) {
  auto& getter = *static_cast<Getter*>(context);
  if (mnl_nlmsg_get_payload_len(answer) < sizeof(inet_diag_msg)) return MNL_CB_OK;
  const auto& d = *static_cast<const inet_diag_msg*>(mnl_nlmsg_get_payload(answer));
  if (d.idiag_state == TCP_TIME_WAIT) return MNL_CB_OK;  // no program's any more
  getter.found = true;
  getter.uid = d.idiag_uid;
  return MNL_CB_OK;
}

void SetEnds(const pstn_xdp_flow& flow, inet_diag_req_v2& request) {
  request.id.idiag_sport = flow.local_port;
  request.id.idiag_dport = flow.peer_port;
  request.sdiag_family = static_cast<uint8_t>(PutIp(IpAt(flow.local.byte), request.id.idiag_src));
  (void)PutIp(IpAt(flow.peer.byte), request.id.idiag_dst);
  if (flow.protocol == IPPROTO_UDP) {  // udp_diag has them the other way round, and always had
    std::swap(request.id.idiag_sport, request.id.idiag_dport);
    std::swap(request.id.idiag_src, request.id.idiag_dst);
  }
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
}

int FindGetter(const pstn_xdp_flow& flow, Getter& getter) {
  const std::unique_ptr<mnl_socket, int (*)(mnl_socket*)> line(
      mnl_socket_open2(NETLINK_SOCK_DIAG, SOCK_CLOEXEC), mnl_socket_close);
  if (line == nullptr) return -errno;
  alignas(nlmsghdr) char buffer[8192] = {};
  nlmsghdr* const header = mnl_nlmsg_put_header(buffer);
  header->nlmsg_type = SOCK_DIAG_BY_FAMILY;
  header->nlmsg_flags = NLM_F_REQUEST;
  auto& request =
      *static_cast<inet_diag_req_v2*>(mnl_nlmsg_put_extra_header(header, sizeof(inet_diag_req_v2)));
  request.sdiag_protocol = flow.protocol;
  request.idiag_states = ~0U;
  SetEnds(flow, request);
  if (mnl_socket_sendto(line.get(), header, header->nlmsg_len) < 0) return -errno;
  const ssize_t n = mnl_socket_recvfrom(line.get(), buffer, sizeof(buffer));
  if (n < 0) return -errno;
  const int ran = mnl_cb_run(buffer, static_cast<size_t>(n), 0, mnl_socket_get_portid(line.get()),
                             TakeGetter, &getter);
  return ran < 0 && errno != ENOENT ? -errno : 0;
}

bool IsAmong(const pstn_xdp_ip& ip, const std::vector<pstn_addr>& all) {
  for (const pstn_addr& a : all) {
    if (memcmp(a.ip, ip.byte, 16) == 0) return true;
  }
  return false;
}

int FlowKey(const Socket& s, const ctl::Msg& request, const std::vector<pstn_addr>& local,
            FilterKeys& keys) {
  pstn_xdp_flow flow{};
  memcpy(flow.local.byte, &request.id, 16);
  memcpy(flow.peer.byte, request.addr.ip, 16);
  if (!s.any) flow.local = s.ip;
  flow.local_port = s.port;
  flow.peer_port = htons(request.addr.port);
  flow.vlan = static_cast<uint16_t>(request.c);
  flow.protocol = static_cast<uint8_t>(s.protocol);
  const bool v4 = IpAt(flow.local.byte).IsV4();
  if (v4 != IpAt(flow.peer.byte).IsV4()) return -EINVAL;
  if (v4 ? s.domain == AF_INET6 && s.v6only != 0 : s.domain == AF_INET) return -EINVAL;
  if (!IsAmong(flow.local, local)) return -EADDRNOTAVAIL;
  Getter getter;
  if (const int error = FindGetter(flow, getter); error != 0) return error;
  if (getter.found && getter.uid != s.uid) return -EPERM;
  keys.flows.push_back(flow);
  return 0;
}

// Of TCP a listening socket is the only one on its port (or of a group of one user's); one that is
// only bound is not. Of UDP the kernel says which socket gets what comes from a stranger.
int PortKeys(const Socket& s, const ctl::Msg& request, FilterKeys& keys) {
  if (s.protocol == IPPROTO_TCP && s.listening == 0) return -EINVAL;
  if (s.protocol == IPPROTO_UDP) {
    pstn_xdp_flow flow{};
    flow.local = flow.peer = s.ip;
    flow.local_port = flow.peer_port = s.port;
    flow.protocol = IPPROTO_UDP;
    Getter getter;
    if (const int error = FindGetter(flow, getter); error != 0) return error;
    if (!getter.found || getter.uid != s.uid) return -EPERM;
  }
  pstn_xdp_port port{};
  port.local = s.ip;
  port.port = s.port;
  port.vlan = static_cast<uint16_t>(request.c);
  port.protocol = static_cast<uint8_t>(s.protocol);
  keys.ports.push_back(port);
  if (!s.any || s.domain != AF_INET6 || s.v6only != 0) return 0;
  port.local = KeyOf(IpAddress::V4(0, 0, 0, 0));
  keys.ports.push_back(port);
  return 0;
}

}  // namespace

bool StillListens(int fd, uid_t whose, const FilterKeys& keys) {
  Socket s;
  if (!Option(fd, SOL_SOCKET, SO_ACCEPTCONN, s.listening) || s.listening == 0) return false;
  const auto is_its = [&s](const pstn_xdp_port& port) {
    return port.port == s.port && memcmp(port.local.byte, s.ip.byte, sizeof(s.ip.byte)) == 0;
  };
  return ReadAddress(fd, whose, s) && std::any_of(keys.ports.begin(), keys.ports.end(), is_its);
}

int CheckFilter(int fd, uid_t whose, uint64_t netns, uint32_t ifindex, const ctl::Msg& request,
                const std::vector<pstn_addr>& local, FilterKeys& keys) {
  Socket s;
  if (const int error = Read(fd, whose, netns, ifindex, s); error != 0) return error;
  if (request.c >= 4095) return -EINVAL;
  keys.uid = s.uid;
  return request.addr.port != 0 ? FlowKey(s, request, local, keys) : PortKeys(s, request, keys);
}

}  // namespace postern::daemon
