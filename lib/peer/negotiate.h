// SPDX-License-Identifier: Apache-2.0
// negotiate.h - connections to other network namespaces of this host: TCP first, then a handshake
// (docs/protocols/smcd.md) that makes them SMC-D or leaves them TCP.
#pragma once
#include "base/cut_short.h"
#include "control/control_smc.h"
#include "endpoint/call.h"
#include "family/family.h"

namespace postern {

// ---- connect()'s half (negotiate.cc)

enum class Became : uint8_t {
  kOurs,     // accelerated
  kTcp,      // connected by the kernel
  kNothing,  // not connected, and unmarked: connect() is still to be made by the kernel
  kCut       // the same: a signal's handler waits for the end of it
};
struct Negotiated {
  Became became = Became::kNothing;
  Reason why = kReasonNone;
};
constexpr long kBegun = kPass - 2;
// Makes the endpoint the kernel's and begins its connect() there, without a wait: for a caller that
// does not get there, or whose signal handlers may not return to it. kBegun: can be waited for by
// connect() once more. Under ep.setup_lock.
long KernelConnectBegun(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len,
                        Reason why) PSTN_REQUIRES(ep.setup_lock);
// Whether a peer in another network namespace may be behind the address.
bool MayNegotiate(Family& fam, const pstn_addr& to);
// Waits for the outcome, at most smcd.msec: the handshake is between daemons that do nothing else,
// and what it takes is microseconds. Under ep.setup_lock.
// A signal whose handler has to wait for the lock cuts it short (cut_short.h).
// A thread that is cancelled while it waits for the SYN's answer gives up `call` and the lock.
Negotiated Negotiate(Family& fam, Call& call, const pstn_addr& to);

// ---- accept()'s half (accept.cc has what is of listeners; posternd does the rest)

// From now on the kernel answers clients' marks with ours, or does not. True: it will.
bool MarkSmc(int fd, bool on);
// A listener that is about to listen, or listens: takes part if the host has the means.
void MarkListener(Family& fam, int fd, pstn_ep& ep);
// Both SYNs of a connected or accepted socket had the option.
bool ExchangedSmc(int fd);
// After kHeld: what posternd wants of this process's listeners.
void AttendListeners(Family& fam);

// ---- the connection slot on its way (offer.cc)

// Takes a slot for the endpoint and fills it in, without telling anybody. False: there is none.
bool OfferConn(Family& fam, pstn_ep& ep, const Offered& to, const pstn_addr& local,
               const pstn_addr& peer);
// The server has taken it over.
bool OfferTaken(Family& fam, const pstn_ep& ep);
// False: the server was faster. True: it is withdrawn.
bool WithdrawOffer(Family& fam, pstn_ep& ep);
// The client's last step: from here on the endpoint is connected.
void AcceptOffer(Family& fam, pstn_ep& ep);

// posternd, for the server: what the handshake says of the connection.
struct Admitted {
  uint32_t conn = 0, conn_gen = 0, ep_idx = 0, ep_gen = 0;
  pstn_addr client = {}, server = {};  // as TCP has them here
  bool translated = false;             // out: the client has others
};
// False: it is not that connection, or the client has withdrawn it.
bool AdmitOffered(Family& fam, uint32_t lgr_idx, Admitted& as);
// The names of a connected TCP socket.
bool NamesOf(int fd, pstn_addr& local, pstn_addr& peer);

}  // namespace postern
