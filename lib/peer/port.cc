// SPDX-License-Identifier: Apache-2.0
// port.cc - a local port for a connection, reserved at the kernel.
//
// The kernel's socket behind the descriptor is bound to the address that the connection comes from,
// so the port is real and no other's there; at other addresses programs may have it. For connect()
// of the kernel it is taken whole: that has many connections share a port as long as their
// destinations differ, but passes over a port that has been bound. With all of them bound, no
// program of the network namespace could connect anywhere. So half of them are left alone: bind()
// gives out the ports of one parity first, connect() takes those of the other first (Linux since
// 4.2). When bind() comes to the other half, its own is used up at this address, and the connection
// is the kernel's. A program that needs more accelerated ones has several addresses.
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "endpoint/endpoint.h"
#include "endpoint/kept_options.h"
#include "family/verbs.h"
#include "peer/kernel_half.h"
#include "peer/peers.h"
#include "peer/port.h"
#include "smcd/notify.h"

namespace postern {
namespace {

constexpr uint64_t kPauseNs = 100'000'000;  // to look for a port where few are left takes long

// Of the half that connect() takes first. It begins with the lowest port of all (`low`, 0 = not
// known).
bool IsConnects(uint16_t port, uint32_t low) { return low != 0 && ((port ^ low) & 1u) == 0; }

bool TakePort(int fd, pstn_ep& ep, const pstn_addr& at) {
  long r = BindWithoutPort(fd, ep, at);
  // An address of a VI may be none of the kernel's: the port is taken at all of them.
  if ((r == -EADDRNOTAVAIL || r == -EINVAL) && (LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) == 0)
    r = BindWithoutPort(fd, ep, {});
  if (r < 0) return false;
  pstn_addr got;
  if (!LearnName(fd, ep.family, got)) return false;
  StoreAddr(ep.local, got);
  ep.kernel_port = got.port;
  FetchAnd(ep.flags, ~PSTN_EPF_PORT_GIVEN_UP);
  FetchOr(ep.flags, PSTN_EPF_BOUND_AUTO);
  KeepV6only(ep);
  return true;
}

}  // namespace

bool IsNamedByUs(const pstn_ep& ep) {
  return (LoadRelaxed(ep.flags) & (PSTN_EPF_BOUND_AUTO | PSTN_EPF_BOUND)) == PSTN_EPF_BOUND_AUTO &&
         LoadRelaxed(ep.side) == 0;
}

bool ReservePort(Family& fam, int fd, pstn_ep& ep, const pstn_dir& dir, const pstn_addr& from) {
  if (ep.local.port != 0 && (!IsNamedByUs(ep) || AddrIsAny(ep.local) || SameIp(ep.local, from)))
    return true;
  if (ep.local.port != 0 && Unbind(fd, ep) != 0) return false;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) != 0) {
    // To an address, under IP_BIND_ADDRESS_NO_PORT: now it takes a port of that address.
    int off = 0;
    (void)sys::Call(SYS_setsockopt, fd, static_cast<long>(IPPROTO_IP),
                    static_cast<long>(IP_BIND_ADDRESS_NO_PORT), &off, sizeof off);
    return TakePort(fd, ep, ep.local);
  }
  if (LoadRelaxed(fam.peers->port_pause_until_ns) > MonotonicNs()) return false;
  if (TakePort(fd, ep, from) && !IsConnects(ep.local.port, dir.port_low)) return true;
  if (ep.local.port != 0) (void)Unbind(fd, ep);
  StoreRelaxed(fam.peers->port_pause_until_ns, MonotonicNs() + kPauseNs);
  return false;
}

namespace {

// As for the kernel, one that is over has no name any more. Of one that this process can't look at
// nothing is known.
bool IsOpen(Family& fam, pstn_ep& ep, ConnEnd& e) {
  const uint32_t state = LoadAcquire(ep.state);  // [E1]
  if ((state != PSTN_EP_ESTABLISHED && state != PSTN_EP_EMBRYO) || !Resolve(fam, ep, e))
    return false;
  const uint32_t peer = LoadAcquire(e.peer_ctl().flags);  // [C2]
  return (peer & PSTN_CF_RST) == 0 && (LoadRelaxed(ep.flags) & PSTN_EPF_HUNG) == 0 &&
         !BothEnded(e, peer);
}

// What is bound to `name` and what has `other`, which is never any address, are on one port.
bool Meets(const pstn_addr& name, bool v6only, const pstn_addr& other) {
  if (name.port != other.port) return false;
  if (!AddrIsAny(name)) return SameIp(name, other);
  return AddrIsV4(name) ? AddrIsV4(other) : !v6only || !AddrIsV4(other);
}

}  // namespace

namespace {

// A name in one word, so that a look without a lock gets one or the other: the port, which of
// SO_REUSEADDR and SO_REUSEPORT its socket had, whether it is an IPv4 address, and of the address a
// hash that tells two of a host apart.
constexpr uint64_t kPastPort = 0xffff, kPastReuseaddr = 1u << 16, kPastReuseport = 1u << 17,
                   kPastV4 = 1u << 18, kPastWhat = 0x7ffff;
constexpr uint64_t kPastNs = 60'000'000'000;  // TCP_TIMEWAIT_LEN; tcp_fin_timeout is as long

uint64_t PastName(const pstn_addr& a, bool reuses_addr, bool reuses_port) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t half[2];
  memcpy(half, a.ip, sizeof half);
  const uint64_t hash = (half[0] * kOdd ^ half[1]) * kOdd;
  return (hash & ~kPastWhat) | a.port | (reuses_addr ? kPastReuseaddr : 0u) |
         (reuses_port ? kPastReuseport : 0u) | (AddrIsV4(a) ? kPastV4 : 0u);
}

constexpr uint64_t kPastReuse = kPastReuseaddr | kPastReuseport;
Past& PastAt(Family& fam, uint64_t name) {
  const uint64_t n = name & ~kPastReuse;
  return fam.peers->pasts[(n ^ n >> 16 ^ n >> 32) % kPasts];
}

// Its peer, which read on, has not reset it meanwhile: that ends a TIME_WAIT. Where another
// connection has the place by now, the port may have had another owner since, which the kernel has
// given it: it counts as free, as nothing here says otherwise.
bool IsStillThere(Family& fam, uint64_t where) {
  uint8_t* const lgr = LgrBase(fam.view, static_cast<uint32_t>(where >> 44) & 0xfffffu);
  if (lgr == nullptr) return true;
  const pstn_conn& c = LgrConn(lgr, static_cast<uint32_t>(where >> 32) % PSTN_CONNS);
  if (LoadRelaxed(c.setup.gen) != static_cast<uint32_t>(where)) return false;
  return ((LoadAcquire(c.ctl[0].flags) | LoadAcquire(c.ctl[1].flags)) & PSTN_CF_RST) == 0;  // [C2]
}

bool MeetsPast(const pstn_addr& name, bool v6only, uint64_t past) {
  if (name.port != (past & kPastPort)) return false;
  const bool v4 = (past & kPastV4) != 0;
  if (!AddrIsAny(name)) return ((PastName(name, false, false) ^ past) & ~kPastWhat) == 0;
  return AddrIsV4(name) ? v4 : !v6only || !v4;
}

}  // namespace

void NotePast(Family& fam, const ConnEnd& e, Turn turn) {
  const pstn_ep& ep = *e.ep;
  const uint32_t has = LoadRelaxed(ep.flags), said = LoadAcquire(e.peer_ctl().flags);  // [C2]
  const bool server = LoadRelaxed(ep.side) != 0;
  if (fam.peers == nullptr || IsEngines(e) || PeerIsEngine(e) || (has & PSTN_EPF_ENGINE) != 0)
    return;
  uint64_t name;
  if (turn == Turn::kFirst) {
    // A port that the program has not asked for stays with the kernel's socket (fdcache.h).
    if (!server && (has & PSTN_EPF_BOUND) == 0) return;
    name = PastName(LoadAddr(ep.local), (has & PSTN_EPF_REUSEADDR) != 0,
                    (has & PSTN_EPF_REUSEPORT) != 0);
  } else {
    if (server || LoadRelaxed(e.ref->remote) == PSTN_LGR_OTHER_NETNS) return;
    name = PastName(LoadAddr(ep.peer), (said & PSTN_CF_REUSEADDR) != 0,
                    (said & PSTN_CF_REUSEPORT) != 0);
  }
  Past& at = PastAt(fam, name);
  StoreRelaxed(at.at_ns, MonotonicCoarseNs());
  StoreRelaxed(at.where, uint64_t{LoadRelaxed(ep.lgr_idx)} << 44 |
                             uint64_t{LoadRelaxed(ep.conn_idx) % PSTN_CONNS} << 32 |
                             LoadRelaxed(ep.conn_gen));
  StoreRelaxed(at.name, name);
}

void ForgetPast(Family& fam, uint16_t port) {
  for (Past& past : fam.peers->pasts) {
    if ((LoadRelaxed(past.name) & kPastPort) == port) StoreRelaxed(past.name, uint64_t{0});
  }
}

void BeginAnew(Family& fam, const pstn_addr& server) {
  if (fam.peers == nullptr) return;
  const uint64_t name = PastName(server, false, false);
  Past& past = PastAt(fam, name);
  if (((LoadRelaxed(past.name) ^ name) & ~kPastReuse) == 0) StoreRelaxed(past.name, uint64_t{0});
}

bool HasLostPort(Family& fam, pstn_ep& ep) {
  ConnEnd e;
  return LoadAcquire(ep.state) == PSTN_EP_ESTABLISHED && !IsOpen(fam, ep, e);  // [E1]
}

bool IsTakenByConnection(Family& fam, const pstn_ep& ep, const pstn_addr& name) {
  const uint32_t own = LoadRelaxed(ep.flags);
  const bool v6only = (own & PSTN_EPF_V6ONLY) != 0;
  const auto shares = [own](bool reuses_addr, bool reuses_port) {
    return ((own & PSTN_EPF_REUSEADDR) != 0 && reuses_addr) ||
           ((own & PSTN_EPF_REUSEPORT) != 0 && reuses_port);
  };
  const uint64_t now = MonotonicCoarseNs();
  for (const Past& other : fam.peers->pasts) {
    const uint64_t past = LoadRelaxed(other.name);
    if (past != 0 && MeetsPast(name, v6only, past) && now < LoadRelaxed(other.at_ns) + kPastNs &&
        !shares((past & kPastReuseaddr) != 0, (past & kPastReuseport) != 0) &&
        IsStillThere(fam, LoadRelaxed(other.where)))
      return true;
  }
  StackMap& s = Stack(fam);
  for (pstn_ep& other : s.eps.Before(LoadRelaxed(s.hdr.eps.hw))) {
    ConnEnd e;
    const bool accepted = LoadRelaxed(other.side) != 0;
    if (!Meets(name, v6only, LoadAddr(accepted ? other.local : other.peer)) ||
        !IsOpen(fam, other, e) || IsEngines(e))
      continue;
    const uint32_t has = LoadRelaxed(other.flags), said = LoadAcquire(e.peer_ctl().flags);  // [C2]
    if (accepted && !shares((has & PSTN_EPF_REUSEADDR) != 0, (has & PSTN_EPF_REUSEPORT) != 0))
      return true;
    // Its server's end, of another family: not before that has admitted it, nor where it is in
    // another network. One that has been closed (FIN_WAIT2) counts as long as this one is open.
    const uint32_t state = LoadAcquire(e.conn->setup.state);  // [C1]
    if (!accepted && !SameUuid(e.ref->peer, s.hdr.id) &&
        LoadRelaxed(e.ref->remote) != PSTN_LGR_OTHER_NETNS &&
        (state == PSTN_CS_ESTABLISHED || state == PSTN_CS_SERVER_GONE) &&
        !kVerbs.wire_is_end(fam, LoadRelaxed(other.lgr_idx), LoadRelaxed(other.conn_idx)) &&
        !shares((said & PSTN_CF_REUSEADDR) != 0, (said & PSTN_CF_REUSEPORT) != 0))
      return true;
  }
  return false;
}

void ShowReuse(const pstn_ep& ep, pstn_conn_ctl& own) {
  const uint32_t has = LoadRelaxed(ep.flags), said = LoadRelaxed(own.flags);
  const uint32_t reuse = ((has & PSTN_EPF_REUSEADDR) != 0 ? PSTN_CF_REUSEADDR : 0u) |
                         ((has & PSTN_EPF_REUSEPORT) != 0 ? PSTN_CF_REUSEPORT : 0u);
  if ((reuse & ~said) != 0) FetchOr(own.flags, reuse);
  const uint32_t gone = said & (PSTN_CF_REUSEADDR | PSTN_CF_REUSEPORT) & ~reuse;
  if (gone != 0) FetchAnd(own.flags, ~gone);
}

bool HasSameNames(Family& fam, const pstn_ep& ep, const pstn_addr& to, const pstn_addr& from) {
  // Else the kernel has given the port to this socket alone.
  const uint32_t flags = LoadRelaxed(ep.flags);
  if ((flags & PSTN_EPF_BOUND) == 0 || (flags & (PSTN_EPF_REUSEADDR | PSTN_EPF_REUSEPORT)) == 0)
    return false;
  StackMap& s = Stack(fam);
  for (pstn_ep& other : s.eps.Before(LoadRelaxed(s.hdr.eps.hw))) {
    ConnEnd e;
    const pstn_addr has = LoadAddr(other.local);
    if (&other != &ep && LoadRelaxed(other.side) == 0 && has.port == from.port &&
        (AddrIsAny(from) || SameIp(has, from)) && SameName(LoadAddr(other.peer), to) &&
        IsOpen(fam, other, e))
      return true;
  }
  return false;
}

}  // namespace postern
