// addresses_through.cc - see addresses_through.h.
// SPDX-License-Identifier: Apache-2.0
#include "addresses_through.h"

#include <libmnl/libmnl.h>
#include <linux/nsfs.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/ip_address.h"

namespace postern::daemon {
namespace {

constexpr size_t kAnswerBytes = 65536;  // messages of a dump are at most 32 KiB
constexpr int kAnswersMax = 1024;

bool IsRouteSocketOf(int fd, uint64_t netns) {
  int domain = 0, protocol = 0;
  socklen_t size = sizeof(int);
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_NETLINK ||
      getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0 || protocol != NETLINK_ROUTE)
    return false;
  const UniqueFd ns(ioctl(fd, SIOCGSKNS));
  return ns.ok() && InodeOf(ns.get()) == netns;
}

bool Ask(int fd, uint32_t seq) {
  struct {
    nlmsghdr header;
    ifaddrmsg body;
  } request{};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = RTM_GETADDR;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.header.nlmsg_seq = seq;
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  return sendto(fd, &request, sizeof(request), MSG_DONTWAIT | MSG_NOSIGNAL,
                reinterpret_cast<sockaddr*>(&kernel), sizeof(kernel)) == sizeof(request);
}

void AddressIn(const nlmsghdr* message, std::vector<pstn_addr>& found) {
  if (message->nlmsg_type != RTM_NEWADDR || mnl_nlmsg_get_payload_len(message) < sizeof(ifaddrmsg))
    return;
  const auto* body = static_cast<const ifaddrmsg*>(mnl_nlmsg_get_payload(message));
  const size_t bytes = body->ifa_family == AF_INET ? 4 : 16;
  const nlattr* chosen = nullptr;
  const auto choose = [](const nlattr* attr, void* place) {
    const uint16_t type = mnl_attr_get_type(attr);
    auto& now = *static_cast<const nlattr**>(place);
    // Where there is a peer's, IFA_ADDRESS is that one.
    if (type == IFA_LOCAL || (type == IFA_ADDRESS && now == nullptr)) now = attr;
    return MNL_CB_OK;
  };
  (void)mnl_attr_parse(message, sizeof(ifaddrmsg), choose, static_cast<void*>(&chosen));
  if (chosen == nullptr || mnl_attr_get_payload_len(chosen) != bytes) return;
  uint8_t ip[16] = {};
  memcpy(ip, mnl_attr_get_payload(chosen), bytes);
  found.push_back(NameOf(IpAt(body->ifa_family, ip), 0));
}

enum class Part : uint8_t { kMore, kEnd, kBroken };

// Messages of another process, or to another question, are no part of it.
Part Read(const char* bytes, size_t size, uint32_t seq, std::vector<pstn_addr>& found) {
  int left = static_cast<int>(size);
  for (auto* one = reinterpret_cast<const nlmsghdr*>(bytes); mnl_nlmsg_ok(one, left);
       one = mnl_nlmsg_next(one, &left)) {
    if (one->nlmsg_seq != seq) continue;
    if (one->nlmsg_type == NLMSG_ERROR) return Part::kBroken;
    if (one->nlmsg_type == NLMSG_DONE || found.size() >= PSTN_DIR_ADDRS) return Part::kEnd;
    AddressIn(one, found);
  }
  return Part::kMore;
}

}  // namespace

NetnsOwner OwnerOf(const UniqueFd& netns) {
  const UniqueFd user(ioctl(netns.get(), NS_GET_USERNS));
  NetnsOwner owner;
  struct stat own {};
  if (!user.ok() || stat("/proc/self/ns/user", &own) != 0) return owner;
  owner.host = InodeOf(user.get()) == own.st_ino;
  if (!owner.host && ioctl(user.get(), NS_GET_OWNER_UID, &owner.uid) != 0) owner.uid = 0;
  return owner;
}

bool AddressesThrough(const UniqueFd& socket, uint64_t netns, std::vector<pstn_addr>& found) {
  found.clear();
  uint32_t seq = 0;
  if (!socket.ok() || !IsRouteSocketOf(socket.get(), netns) ||
      getrandom(&seq, sizeof(seq), 0) != sizeof(seq) || !Ask(socket.get(), seq))
    return false;
  std::vector<char> buffer(kAnswerBytes);
  for (int i = 0; i < kAnswersMax; ++i) {
    sockaddr_nl from{};
    socklen_t size = sizeof(from);
    const ssize_t n = recvfrom(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC,
                               reinterpret_cast<sockaddr*>(&from), &size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 || static_cast<size_t>(n) > buffer.size()) return false;
    if (size < sizeof(from) || from.nl_pid != 0) continue;
    const Part part = Read(buffer.data(), static_cast<size_t>(n), seq, found);
    if (part != Part::kMore) return part == Part::kEnd;
  }
  return false;
}

}  // namespace postern::daemon
