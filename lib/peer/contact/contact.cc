// SPDX-License-Identifier: Apache-2.0
// contact.cc - see contact.h.
#include "peer/contact/contact.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "family/local_lock.h"
#include "peer/peers.h"

namespace postern {

PSTN_LOCK_ENTRY(contacts_lock, fam.peers->contacts_lock, nullptr);

namespace {

constexpr uint64_t kGoodNs = 1'000'000'000;  // rules may have changed after that
constexpr int kPatienceMs = 100;             // a busy machine's; less than a delayed ACK waits

class OwnFd {
 public:
  explicit OwnFd(int fd) : fd_(fd) {}
  ~OwnFd() {
    if (fd_ >= 0) sys::Close(fd_);
  }
  OwnFd(const OwnFd&) = delete;
  OwnFd& operator=(const OwnFd&) = delete;
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

bool Set(int fd, int level, int name, const void* value, size_t len) {
  return sys::Call(SYS_setsockopt, fd, static_cast<long>(level), static_cast<long>(name), value,
                   len) == 0;
}

// A socket whose ACK of the server's answer waits, and whose close() is a RST.
bool Prepare(int fd, bool v4_through_v6) {
  const int off = 0;
  const linger reset = {1, 0};
  return Set(fd, IPPROTO_TCP, TCP_QUICKACK, &off, sizeof off) &&
         Set(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) &&
         (!v4_through_v6 || Set(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
}

// The program has bound the socket to that address: the kernel has to let a connection from there.
bool BindTo(int fd, pstn_addr from, sa_family_t family) {
  const int on = 1;
  from.port = 0;
  sockaddr_storage ss;
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  socklen_t len = sizeof ss;
  AddrToSockaddr(from, family, sa, &len);
  return Set(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) &&
         sys::Call(SYS_bind, fd, sa, static_cast<long>(len)) == 0;
}

// Whether the handshake has come as far as the server's answer.
bool Connects(int fd, const pstn_addr& to, sa_family_t family) {
  sockaddr_storage ss;
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  socklen_t len = sizeof ss;
  AddrToSockaddr(to, family, sa, &len);
  long r = sys::Call(SYS_connect, fd, sa, static_cast<long>(len));
  if (r == 0) return true;
  if (r != -EINPROGRESS) return false;
  const uint64_t until = MonotonicNs() + uint64_t{kPatienceMs} * 1'000'000;
  pollfd p = {fd, POLLOUT, 0};
  do {
    r = sys::Call(SYS_poll, &p, 1L, static_cast<long>(kPatienceMs));
  } while (r == -EINTR && MonotonicNs() < until);
  int error = -1;
  len = sizeof error;
  return r == 1 &&
         sys::Call(SYS_getsockopt, fd, static_cast<long>(SOL_SOCKET), static_cast<long>(SO_ERROR),
                   &error, &len) == 0 &&
         error == 0;
}

void PutIp(__be32 (&at)[4], const pstn_addr& a) {
  memset(at, 0, sizeof at);
  memcpy(at, AddrIsV4(a) ? &a.ip[12] : &a.ip[0], AddrIsV4(a) ? 4 : 16);
}

// A socket of this namespace that is not a listener and has these two names: the server's half.
bool ServerHas(int diag, const pstn_addr& server, const pstn_addr& client) {
  struct {
    nlmsghdr head;
    inet_diag_req_v2 what;
  } ask = {};
  ask.head = {sizeof ask, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0};
  ask.what.sdiag_family = AddrIsV4(server) ? AF_INET : AF_INET6;
  ask.what.sdiag_protocol = IPPROTO_TCP;
  ask.what.idiag_states = ~0u;
  ask.what.id.idiag_sport = htons(server.port);
  ask.what.id.idiag_dport = htons(client.port);
  PutIp(ask.what.id.idiag_src, server);
  PutIp(ask.what.id.idiag_dst, client);
  ask.what.id.idiag_cookie[0] = ask.what.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (sys::Call(SYS_sendto, diag, &ask, sizeof ask, 0L, 0L, 0L) != sizeof ask) return false;
  alignas(nlmsghdr) uint8_t room[1024];
  const long n = sys::Call(SYS_recvfrom, diag, &room[0], sizeof room, 0L, 0L, 0L);
  if (n < static_cast<long>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) return false;
  nlmsghdr head;
  inet_diag_msg said;
  memcpy(&head, room, sizeof head);
  memcpy(&said, room + NLMSG_HDRLEN, sizeof said);
  return head.nlmsg_type == SOCK_DIAG_BY_FAMILY && said.idiag_state != TCP_LISTEN &&
         said.id.idiag_sport == ask.what.id.idiag_sport &&
         said.id.idiag_dport == ask.what.id.idiag_dport;
}

Reason Ask(const pstn_ep& ep, const pstn_addr& asked, const pstn_addr& to, const pstn_addr& from) {
  const auto family = static_cast<sa_family_t>(ep.family);
  const OwnFd diag(static_cast<int>(sys::Call(SYS_socket, static_cast<long>(AF_NETLINK),
                                              static_cast<long>(SOCK_RAW | SOCK_CLOEXEC),
                                              static_cast<long>(NETLINK_SOCK_DIAG))));
  const OwnFd probe(sys::Socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (diag.get() == -EMFILE || probe.get() == -EMFILE) return kReasonNoDescriptor;
  if (!diag.ok() || !probe.ok() || !Prepare(probe.get(), family == AF_INET6 && AddrIsV4(to)))
    return kReasonFirewall;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) != 0 && !BindTo(probe.get(), from, family))
    return kReasonFirewall;
  if (!Connects(probe.get(), asked, family)) return kReasonFirewall;
  sockaddr_storage ss;
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  socklen_t len = sizeof ss;
  pstn_addr name;
  const bool may = sys::Call(SYS_getsockname, probe.get(), sa, &len) == 0 &&
                   AddrFromSockaddr(sa, len, ep.family, name) && SameIp(name, from) &&
                   ServerHas(diag.get(), to, name);
  return may ? kReasonNone : kReasonFirewall;
}

// The place of a destination in the table; another one there is forgotten.
Contact& PlaceOf(Peers& peers, const pstn_addr& to) PSTN_REQUIRES(peers.contacts_lock) {
  uint32_t word[4];
  memcpy(word, to.ip, sizeof word);
  return peers
      .contacts[(word[0] ^ word[1] ^ word[2] ^ word[3] ^ word[3] >> 24 ^ to.port) % kContacts];
}

enum class Answer : uint8_t { kYes, kNo, kUnknown };

Answer Remembered(Family& fam, const pstn_addr& to, const pstn_addr& from) {
  const uint64_t now = MonotonicNs();
  Guard g(fam.peers->contacts_lock);
  const Contact& c = PlaceOf(*fam.peers, to);
  if (now >= c.until_ns || c.to.port != to.port || !SameIp(c.to, to) || !SameIp(c.from, from))
    return Answer::kUnknown;
  return c.may ? Answer::kYes : Answer::kNo;
}

void Remember(Family& fam, const pstn_addr& to, const pstn_addr& from, bool may) {
  const uint64_t until = MonotonicNs() + kGoodNs;
  Guard g(fam.peers->contacts_lock);
  if (fam.peers->contacts_differ) return;
  PlaceOf(*fam.peers, to) = {to, from, until, may};
}

}  // namespace

Reason MayReach(Family& fam, const pstn_ep& ep, const pstn_addr& asked, const pstn_addr& to,
                const pstn_addr& from) {
  if (fam.opt.firewall != 0) return kReasonNone;
  const Answer known = Remembered(fam, to, from);
  if (known != Answer::kUnknown) return known == Answer::kYes ? kReasonNone : kReasonFirewall;
  const Reason why = Ask(ep, asked, to, from);
  if (why != kReasonNoDescriptor) Remember(fam, to, from, why == kReasonNone);
  return why;
}

bool HasReached(Family& fam, const pstn_addr& to) {
  return fam.opt.firewall != 0 || Remembered(fam, to, {}) == Answer::kYes;
}

void NoteReached(Family& fam, const pstn_addr& to) { Remember(fam, to, {}, true); }

void ForgetContacts(Family& fam) {
  if (fam.peers == nullptr) return;
  Guard g(fam.peers->contacts_lock);
  fam.peers->contacts_differ = true;
  for (Contact& c : fam.peers->contacts) c.until_ns = 0;
}

}  // namespace postern
