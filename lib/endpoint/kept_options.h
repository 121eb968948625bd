// SPDX-License-Identifier: Apache-2.0
// kept_options.h - the options that an endpoint keeps for itself, and for the kernel's socket.
#pragma once
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "family/family.h"

namespace postern {

// Options whose value is an int that is just kept, and where.
enum Kept : uint32_t {
  kNodelay,
  kCork,
  kKeepalive,
  kReuseaddr,
  kReuseport,
  kOobinline,
  kV6only,
  kQuickack,  // flags
  kSndbuf,
  kRcvbuf,
  kKeepidle,
  kKeepintvl,
  kKeepcnt,
  kUserTimeout,
  kNotsentLowat,
  kDeferAccept,
  kBusyPoll,
  kPriority,
  kRcvlowat,
  kLinger,
  kRcvtimeo,
  kSndtimeo,
  kKeptCount
};

// Whether an accepted socket has the option from its listener. There is no default: each new option
// has to say.
enum class Child : uint8_t { kHas, kHasNot };

struct KeptOption {
  int level, name;
  Child child;
  uint32_t flag;             // PSTN_EPF_*, or 0
  pstn_u32 pstn_ep::*field;  // or null
};

inline constexpr KeptOption kKept[] = {
    {IPPROTO_TCP, TCP_NODELAY, Child::kHas, PSTN_EPF_NODELAY, nullptr},
    {IPPROTO_TCP, TCP_CORK, Child::kHas, PSTN_EPF_CORK, nullptr},
    {SOL_SOCKET, SO_KEEPALIVE, Child::kHas, PSTN_EPF_KEEPALIVE, nullptr},
    {SOL_SOCKET, SO_REUSEADDR, Child::kHas, PSTN_EPF_REUSEADDR, nullptr},
    {SOL_SOCKET, SO_REUSEPORT, Child::kHas, PSTN_EPF_REUSEPORT, nullptr},
    {SOL_SOCKET, SO_OOBINLINE, Child::kHas, PSTN_EPF_OOBINLINE, nullptr},
    {IPPROTO_IPV6, IPV6_V6ONLY, Child::kHas, PSTN_EPF_V6ONLY, nullptr},
    {IPPROTO_TCP, TCP_QUICKACK, Child::kHas, PSTN_EPF_QUICKACK, nullptr},
    {SOL_SOCKET, SO_SNDBUF, Child::kHas, 0, &pstn_ep::sndbuf},
    {SOL_SOCKET, SO_RCVBUF, Child::kHas, 0, &pstn_ep::rcvbuf},
    {IPPROTO_TCP, TCP_KEEPIDLE, Child::kHas, 0, &pstn_ep::keepidle},
    {IPPROTO_TCP, TCP_KEEPINTVL, Child::kHas, 0, &pstn_ep::keepintvl},
    {IPPROTO_TCP, TCP_KEEPCNT, Child::kHas, 0, &pstn_ep::keepcnt},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, Child::kHas, 0, &pstn_ep::user_timeout},
    {IPPROTO_TCP, 25 /* TCP_NOTSENT_LOWAT */, Child::kHas, 0, &pstn_ep::notsent_lowat},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT, Child::kHasNot, 0, &pstn_ep::defer_accept},
    {SOL_SOCKET, SO_BUSY_POLL, Child::kHas, 0, &pstn_ep::busy_poll},
    {SOL_SOCKET, SO_PRIORITY, Child::kHasNot, 0, &pstn_ep::priority},
};
static_assert(sizeof kKept / sizeof kKept[0] == kRcvlowat, "as the names above, in their order");

// What the kernel keeps and checks, and we act upon.
inline constexpr int kTcpInq = 36;
struct FlaggedOption {
  int level, name;
  uint32_t flag;
};
inline constexpr FlaggedOption kFlagged[] = {
    {SOL_SOCKET, SO_ZEROCOPY, PSTN_EPF_ZEROCOPY},
    {IPPROTO_TCP, kTcpInq, PSTN_EPF_INQ},
};

// One thread sets options while others use the endpoint, or admit a connection from the listener:
// each field is loaded and stored as a whole, once. SO_LINGER is two of them, and "on, 0 seconds"
// resets a connection: the seconds are stored before the switch, and loaded after it.
struct Lingering {
  bool on;
  uint32_t sec;
};
inline Lingering LingeringOf(const pstn_ep& ep) {
  const bool on = LoadAcquire(ep.linger_on) != 0;  // [E10]
  return {on, LoadRelaxed(ep.linger_sec)};
}
inline void SetLingering(pstn_ep& ep, Lingering to) {
  StoreRelaxed(ep.linger_sec, to.sec);
  StoreRelease(ep.linger_on, to.on ? 1u : 0u);  // [E10]
}

uint32_t FindKept(int level, int name);  // kKeptCount: it is none of them
long KernelSetOpt(int fd, int level, int name, const void* value, socklen_t len);
// Gives the kernel's socket every option that the endpoint has kept for it.
void ApplyOptions(int fd, const pstn_ep& ep);
// What an accepted endpoint has of the options that its listener keeps.
void InheritKeptOptions(pstn_ep& ep, const pstn_ep& listener);
// The kernel's socket is bound to an address that the program did not ask for, and bind() sets
// IPV6_V6ONLY: the endpoint's own value is what the program sees.
inline void KeepV6only(pstn_ep& ep) {
  if (ep.family == AF_INET6) FetchOr(ep.opt_set, 1u << kV6only);
}
// The kernel begins the acknowledgements' state anew: TCP_QUICKACK has to be set behind listen().
void ResetForListen(pstn_ep& ep);

}  // namespace postern
