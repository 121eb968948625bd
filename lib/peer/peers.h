// SPDX-License-Identifier: Apache-2.0
// peers.h - what a process remembers of those that it connects to.
#pragma once
#include "family/family.h"

namespace postern {

// Addresses that cost a call the whole time of a negotiation (negotiate.cc).
struct Slow {
  pstn_addr addr;
  uint64_t until_ns;
};
// What the kernel said of a connection from `from` to `to` (contact/contact.h).
struct Contact {
  pstn_addr to, from;
  uint64_t until_ns;  // it counts until then
  bool may;
};
// A name that a connection has ended with, whose TIME_WAIT is its own end's: port.cc. 0: none.
struct Past {
  uint64_t name;   // (a) the port, what it shares, and the address
  uint64_t at_ns;  // (a) when it was closed
  uint64_t where;  // (a) the connection's place, and its generation
};
// option/kernel_loopback.h.
struct Loopback {
  uint32_t state;        // (a) 2: the others are there
  uint32_t sndbuf;       // SO_SNDBUF, which the program has not set
  uint8_t info[2][512];  // TCP_INFO right behind the handshake: the client's, the server's
};
inline constexpr uint32_t kSlow = 16, kHints = 256, kContacts = 64, kPasts = 256;

struct Peers {
  pstn_lock slow_lock;
  uint32_t slow_next PSTN_GUARDED_BY(slow_lock);
  Slow slow[kSlow] PSTN_GUARDED_BY(slow_lock);
  pstn_lock contacts_lock;
  bool contacts_differ PSTN_GUARDED_BY(contacts_lock);  // from thread to thread: none is kept
  Contact contacts[kContacts] PSTN_GUARDED_BY(contacts_lock);
  // By server stack: link group + 1, where there was room (pair.cc); wrong ones cost a look.
  uint32_t hints[kHints];
  uint64_t port_pause_until_ns;  // (a) port.cc
  uint64_t lot_seed, lot_turn;   // (a) connect.cc
  Loopback loopback;
  Past pasts[kPasts];
};

}  // namespace postern
