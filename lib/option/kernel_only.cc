// SPDX-License-Identifier: Apache-2.0
// kernel_only.cc - what a program can ask of a socket that only the kernel does: signals, filters,
// devices. Such a socket is the kernel's from then on.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <fcntl.h>

#include "base/sys.h"
#include "base/user_memory.h"
#include "endpoint/endpoint.h"
#include "offhost/datagram.h"
#include "option/kernel_only.h"
#include "peer/export.h"
#include "peer/kernel_half.h"

namespace postern {
namespace {

struct KernelOption {
  int level, name;
  Reason why;
  bool late = false;  // of a connection, too
};

constexpr int kBindToIfindex = 62, kIpv6Transparent = 75, kMd5SigExt = 32;
// Those with 64 bits of seconds on machines of 32.
constexpr int kTimestampNew = 63, kTimestampnsNew = 64, kTimestampingNew = 65;

// Options of a socket before it has a connection, by which the kernel chooses or filters its path;
// and times of arrival, which a ring does not keep.
const KernelOption kOptions[] = {
    {SOL_SOCKET, SO_BINDTODEVICE, kReasonBoundDevice},
    {SOL_SOCKET, kBindToIfindex, kReasonBoundDevice},
    {SOL_SOCKET, SO_ATTACH_FILTER, kReasonFiltered},
    {SOL_SOCKET, SO_ATTACH_BPF, kReasonFiltered},
    {SOL_SOCKET, SO_MARK, kReasonFiltered},
    {SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, kReasonReusePort},
    {SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, kReasonReusePort},
    {SOL_SOCKET, kPeekOff, kReasonOption},
    {IPPROTO_IP, IP_TRANSPARENT, kReasonFiltered},
    {IPPROTO_IP, IP_OPTIONS, kReasonOption},
    {IPPROTO_IPV6, kIpv6Transparent, kReasonFiltered},
    {IPPROTO_TCP, TCP_MD5SIG, kReasonOption},
    {IPPROTO_TCP, kMd5SigExt, kReasonOption},
    {IPPROTO_TCP, kFastOpenConnect, kReasonFastOpen},
    {SOL_SOCKET, SO_TIMESTAMP, kReasonOption, true},
    {SOL_SOCKET, SO_TIMESTAMPNS, kReasonOption, true},
    {SOL_SOCKET, SO_TIMESTAMPING, kReasonOption, true},
    {SOL_SOCKET, kTimestampNew, kReasonOption, true},
    {SOL_SOCKET, kTimestampnsNew, kReasonOption, true},
    {SOL_SOCKET, kTimestampingNew, kReasonOption, true},
};

// No device, no mark, off; or nothing that the kernel could take. No such value is longer; the
// kernel looks at no more of it either.
bool AllZero(const void* value, socklen_t len) {
  int v = 0;
  return !CopyUser(&v, value, len < sizeof v ? len : sizeof v) || v == 0;
}

void GoKernel(Family& fam, int fd, pstn_ep& ep, Reason why) {
  switch (LoadAcquire(ep.state)) {  // [E1]
    case PSTN_EP_NEW:
      if (LeaveUnconnected(fam, fd, ep, why)) break;
      [[fallthrough]];
    case PSTN_EP_LISTEN:
    case PSTN_EP_ESTABLISHED:
      if (SockExport(fam, fd) == 0) StoreRelaxed(ep.reason, why);
      break;
    case PSTN_EP_KERNEL:
      if (IsDatagram(ep)) {
        Guard g(ep.setup_lock);
        DatagramLeave(fam, ep, why);
      }
      break;
    default:
      break;
  }
}

}  // namespace

// IPV6_ADDRFORM: a connection of IPv4 becomes an IPv4 socket's, which only the kernel makes of its
// own. False: it is one of IPv6.
static bool BecomeIpv4(Family& fam, int fd, pstn_ep& ep, const void* value, socklen_t len) {
  int v = 0;
  if (len < sizeof v || !CopyUser(&v, value, sizeof v) || v != AF_INET || ep.family != AF_INET6)
    return true;
  if (!AddrIsV4(LoadAddr(ep.peer))) return false;
  GoKernel(fam, fd, ep, kReasonOption);
  if (LoadAcquire(ep.state) == PSTN_EP_KERNEL) StoreRelaxed(ep.family, AF_INET);  // [E1]
  return true;
}

bool OptionForKernel(Family& fam, int fd, pstn_ep& ep, int level, int name, const void* value,
                     socklen_t len) {
  const bool connected = LoadAcquire(ep.state) == PSTN_EP_ESTABLISHED;  // [E1]
  if (static_cast<int>(len) < 0) return true;
  if (connected && level == IPPROTO_IPV6 && name == IPV6_ADDRFORM)
    return BecomeIpv4(fam, fd, ep, value, len);
  for (const KernelOption& o : kOptions) {
    if (o.level != level || o.name != name || (connected && !o.late)) continue;
    if (name == kPeekOff || !AllZero(value, len)) GoKernel(fam, fd, ep, o.why);
  }
  return true;
}

// SIGIO, and SIGURG for the socket's owner.
void FcntlForKernel(Family& fam, int fd, pstn_ep& ep, int cmd, long arg) {
  if ((cmd == F_SETOWN && arg != 0) || (cmd == F_SETOWN_EX && arg != 0) ||
      (cmd == F_SETFL && (arg & O_ASYNC) != 0))
    GoKernel(fam, fd, ep, kReasonSignalIo);
}

void IoctlForKernel(Family& fam, int fd, pstn_ep& ep, unsigned long request, const void* arg) {
  if (request != FIOASYNC && request != FIOSETOWN && request != SIOCSPGRP) return;
  int value = 0;
  if (GetUser(value, arg) && value != 0) GoKernel(fam, fd, ep, kReasonSignalIo);
}

}  // namespace postern
