// SPDX-License-Identifier: Apache-2.0
// port.cc - a local port for a connection, reserved at the kernel.
//
// The kernel's socket behind the descriptor is bound, so the port is real and no other's. That
// takes it away whole: connect() of the kernel, which has many connections share a port as long as
// their destinations differ, passes over a port that has been bound. With all of them bound, no
// program of the network namespace could connect anywhere. So half of them are left alone: bind()
// gives out the ports of one parity first, connect() takes those of the other first (Linux since
// 4.2). When bind() comes to the other half, its own is used up, and the connection is the
// kernel's. A program that needs more accelerated ones binds its sockets to several addresses.
#include <netinet/in.h>

#include "base/clock.h"
#include "base/ip_address.h"
#include "base/sys.h"
#include "peer/kernel_half.h"
#include "peer/peers.h"
#include "peer/port.h"

namespace postern {
namespace {

constexpr uint64_t kPauseNs = 100'000'000;  // to look for a port where few are left takes long

// Of the half that connect() takes first. It begins with the lowest port of all (`low`, 0 = not
// known).
bool IsConnects(uint16_t port, uint32_t low) { return low != 0 && ((port ^ low) & 1u) == 0; }

bool TakePort(int fd, pstn_ep& ep) {
  sockaddr_storage ss;
  auto* sa = reinterpret_cast<sockaddr*>(&ss);
  socklen_t len = sizeof ss;
  AddrToSockaddr(ep.local, ep.family, sa, &len);  // any, or bound to an address without a port
  if (sys::Call(SYS_bind, fd, sa, len) < 0) return false;
  len = sizeof ss;
  pstn_addr got;
  if (sys::Call(SYS_getsockname, fd, sa, &len) < 0 || !AddrFromSockaddr(sa, len, ep.family, got))
    return false;
  ep.local.port = got.port;
  ep.kernel_port = got.port;
  FetchOr(ep.flags, PSTN_EPF_BOUND_AUTO);
  return true;
}

}  // namespace

bool ReservePort(Family& fam, int fd, pstn_ep& ep, const pstn_dir& dir) {
  if (ep.local.port != 0) return true;
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_BOUND) != 0) {
    // To an address, under IP_BIND_ADDRESS_NO_PORT: now it takes a port of that address.
    int off = 0;
    (void)sys::Call(SYS_setsockopt, fd, static_cast<long>(IPPROTO_IP),
                    static_cast<long>(IP_BIND_ADDRESS_NO_PORT), &off, sizeof off);
    return TakePort(fd, ep);
  }
  if (LoadRelaxed(fam.peers->port_pause_until_ns) > MonotonicNs()) return false;
  if (TakePort(fd, ep) && !IsConnects(ep.local.port, dir.port_low)) return true;
  if (ep.local.port != 0) (void)Unbind(fd, ep);
  StoreRelaxed(fam.peers->port_pause_until_ns, MonotonicNs() + kPauseNs);
  return false;
}

}  // namespace postern
