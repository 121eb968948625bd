// SPDX-License-Identifier: Apache-2.0
// inherit.cc - options that the kernel's socket keeps, and that an accepted socket has from its
// listener.
//
// An accepted connection's kernel socket is not the listener's child: it comes from the fd cache or
// from socket(). So what the program has set on the listener is noted, an option a bit, and set on
// the accepted socket. tests/conformance/cases/options.case asks the kernel which options there
// are: each that is not in the table of socket_options.cc, and that an accepted socket has, is
// here.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "base/sys.h"
#include "endpoint/inherit.h"
#include "endpoint/kept_options.h"

namespace postern {
namespace {

// Younger than the headers that this is built with.
constexpr int kBufLock = 72, kTxRehash = 74, kRcvMark = 75, kPreferBusyPoll = 69,
              kBusyPollBudget = 70;
constexpr int kTcpNoCookie = 34, kTcpInq = 36, kTcpTxDelay = 37;
constexpr int kIpLocalPortRange = 51, kIpRecvErrRfc4884 = 26, kIpv6FreeBind = 78,
              kIpv6RecvErrRfc4884 = 31, kIpv6MinHopCount = 73, kIpv6AutoFlowLabel = 70,
              kIpv6AddrPreferences = 72, kIpv6DontFrag = 62;

struct KernelKept {
  int level, name;
  int size_of = 0;  // no getsockopt() has it, but this one: twice its value
};

constexpr KernelKept kKernelKept[] = {
    {SOL_SOCKET, SO_SNDBUFFORCE, SO_SNDBUF},
    {SOL_SOCKET, SO_RCVBUFFORCE, SO_RCVBUF},
    {SOL_SOCKET, kBufLock},
    {SOL_SOCKET, SO_BROADCAST},
    {SOL_SOCKET, SO_DEBUG},
    {SOL_SOCKET, SO_DONTROUTE},
    {SOL_SOCKET, SO_NO_CHECK},
    {SOL_SOCKET, SO_TIMESTAMP},
    {SOL_SOCKET, SO_TIMESTAMPNS},
    {SOL_SOCKET, SO_TIMESTAMPING},
    {SOL_SOCKET, SO_RXQ_OVFL},
    {SOL_SOCKET, SO_WIFI_STATUS},
    {SOL_SOCKET, SO_NOFCS},
    {SOL_SOCKET, SO_LOCK_FILTER},
    {SOL_SOCKET, SO_SELECT_ERR_QUEUE},
    {SOL_SOCKET, SO_MAX_PACING_RATE},
    {SOL_SOCKET, SO_ZEROCOPY},
    {SOL_SOCKET, kPreferBusyPoll},
    {SOL_SOCKET, kBusyPollBudget},
    {SOL_SOCKET, kTxRehash},
    {SOL_SOCKET, kRcvMark},
    {IPPROTO_TCP, TCP_CONGESTION},
    {IPPROTO_TCP, TCP_MAXSEG},
    {IPPROTO_TCP, TCP_SYNCNT},
    {IPPROTO_TCP, TCP_LINGER2},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP},
    {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS},
    {IPPROTO_TCP, TCP_SAVE_SYN},
    {IPPROTO_TCP, kTcpNoCookie},
    {IPPROTO_TCP, kTcpInq},
    {IPPROTO_TCP, kTcpTxDelay},
    {IPPROTO_IP, IP_TOS},
    {IPPROTO_IP, IP_TTL},
    {IPPROTO_IP, IP_MINTTL},
    {IPPROTO_IP, IP_MTU_DISCOVER},
    {IPPROTO_IP, IP_FREEBIND},
    {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT},
    {IPPROTO_IP, kIpLocalPortRange},
    {IPPROTO_IP, IP_RECVERR},
    {IPPROTO_IP, kIpRecvErrRfc4884},
    {IPPROTO_IP, IP_RECVTOS},
    {IPPROTO_IP, IP_RECVTTL},
    {IPPROTO_IP, IP_PKTINFO},
    {IPPROTO_IP, IP_RECVOPTS},
    {IPPROTO_IP, IP_RETOPTS},
    {IPPROTO_IP, IP_RECVORIGDSTADDR},
    {IPPROTO_IP, IP_CHECKSUM},
    {IPPROTO_IP, IP_PASSSEC},
    {IPPROTO_IP, IP_MULTICAST_LOOP},
    {IPPROTO_IP, IP_MULTICAST_ALL},
    {IPPROTO_IPV6, IPV6_TCLASS},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS},
    {IPPROTO_IPV6, kIpv6MinHopCount},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER},
    {IPPROTO_IPV6, IPV6_RECVERR},
    {IPPROTO_IPV6, kIpv6RecvErrRfc4884},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO},
    {IPPROTO_IPV6, IPV6_RECVTCLASS},
    {IPPROTO_IPV6, IPV6_RECVHOPLIMIT},
    {IPPROTO_IPV6, IPV6_MULTICAST_LOOP},
    {IPPROTO_IPV6, kIpv6AutoFlowLabel},
    {IPPROTO_IPV6, kIpv6DontFrag},
    {IPPROTO_IPV6, kIpv6FreeBind},
    {IPPROTO_IPV6, kIpv6AddrPreferences},
};
constexpr uint32_t kCount = sizeof kKernelKept / sizeof kKernelKept[0];
static_assert(kCount <= 64, "a bit of pstn_ep.kernel_options each");

// A value as getsockopt() has given it.
struct Value {
  char bytes[64] = {};
  socklen_t len = sizeof bytes;

  bool Get(int fd, const KernelKept& o) {
    const int name = o.size_of != 0 ? o.size_of : o.name;
    if (sys::Call(SYS_getsockopt, fd, static_cast<long>(o.level), static_cast<long>(name),
                  &bytes[0], &len) != 0)
      return false;
    if (o.size_of != 0) {
      int doubled;
      memcpy(&doubled, bytes, sizeof doubled);
      doubled /= 2;
      memcpy(bytes, &doubled, sizeof doubled);
    }
    return true;
  }
  bool IsZero() const {
    for (socklen_t i = 0; i < len; i++) {
      if (bytes[i] != 0) return false;
    }
    return true;
  }
};

}  // namespace

void NoteKernelOption(pstn_ep& ep, int level, int name) {
  for (uint32_t i = 0; i < kCount; i++) {
    if (kKernelKept[i].level == level && kKernelKept[i].name == name)
      FetchOr(ep.kernel_options, uint64_t{1} << i);
  }
  FetchOr(ep.flags, PSTN_EPF_KERNEL_OPTIONS);
}

void InheritKernelOptions(int listener_fd, const pstn_ep& listener, int fd, pstn_ep& ep) {
  FetchOr(ep.flags, PSTN_EPF_DIRTY);
  const uint64_t noted = LoadRelaxed(listener.kernel_options);
  // What is off first: to set SO_TIMESTAMPNS to 0 switches SO_TIMESTAMP off as well.
  for (const bool zero : {true, false}) {
    for (uint64_t bits = noted; bits != 0; bits &= bits - 1) {
      const uint32_t i = static_cast<uint32_t>(__builtin_ctzll(bits));
      Value value;
      if (i < kCount && value.Get(listener_fd, kKernelKept[i]) && value.IsZero() == zero)
        (void)sys::Call(SYS_setsockopt, fd, static_cast<long>(kKernelKept[i].level),
                        static_cast<long>(kKernelKept[i].name), &value.bytes[0],
                        static_cast<long>(value.len));
    }
  }
}

}  // namespace postern
