// SPDX-License-Identifier: Apache-2.0
// wire_options.h - what options of a connection say that goes through a VI: the engine knows.
//
// Each of these does nothing for any other connection, and is cheap where there is no wire.
#pragma once
#include "family/family.h"
#include "stack/engine.h"
#include "tcp/info.h"

namespace postern {

struct WireValue {
  uint8_t bytes[16];
  socklen_t size;
};
// True: the answer to getsockopt().
bool WireGetOpt(Family& fam, const pstn_ep& ep, int level, int name, WireValue& out);
// setsockopt() of what the endpoint does not keep, on the socket `fd`. kPass: not one of those.
long WireSetOpt(Family& fam, int fd, pstn_ep& ep, int level, int name, const void* value,
                socklen_t len);
// An accepted connection has what `fd`, its kernel's socket, has of its listener.
void WireInherit(Family& fam, int fd, const pstn_ep& ep);
// TCP_MAXSEG of a listener, for the clients that come.
void WireListenerMaxseg(Family& fam, const pstn_ep& ep, uint32_t maxseg);
// The same of TCP_FASTOPEN: where the host lets servers have it, the kernel has the clients that
// come.
void WireListenerFastOpen(Family& fam, pstn_ep& ep, uint32_t queue);
// The endpoint keeps another value than before: the engine learns it.
void WireOptionSet(Family& fam, const pstn_ep& ep, int level, int name);
// TCP_INFO. False: there is nothing to be known.
bool WireInfo(Family& fam, const pstn_ep& ep, tcp::Info& out);
// What the program has written and the peer has not acknowledged, and of that what was not sent.
struct WireQueue {
  uint32_t all, notsent;  // bytes
};
// False: there is no such connection.
bool WireQueued(Family& fam, const pstn_ep& ep, WireQueue& out);
// What the kernel's socket says of an option that is a number. False: it can't be told.
bool KernelInt(int fd, int level, int name, int& out);
// What the program has set of the kernel's socket before it connects.
stack::OpenWish WireWish(Family& fam, int fd, const pstn_ep& ep);
// The error that an ICMP packet has told of, which is forgotten by that; 0: none.
int WireTakeSoftError(Family& fam, const pstn_ep& ep);

}  // namespace postern
