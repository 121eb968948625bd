// SPDX-License-Identifier: Apache-2.0
// contact.h - first contact: the kernel decides whether a client may reach a listener.
//
// A path through memory meets no firewall, no cgroup program, no Landlock and no security module.
// So before a process first connects to an address of this host, and again each second while it
// goes on to, it asks the kernel for a connection to it, on a socket with the same names: all of
// them have their say. Who would be refused, rewritten or kept waiting is left to the kernel.
//
//   client                               kernel                       listener
//   connect() --------- SYN ---------->  (rules)  ----------------->  a request, SYN_RECV
//             <-------- SYN,ACK -------  (rules)  <-----------------
//   sock_diag: is there a request with exactly our two names?
//   close()   --------- RST ---------->           ----------------->  gone
//
// The server's program sees nothing of it: without the ACK there is nothing to accept, and the
// RST takes the request away at once. The client delays its ACK (TCP_QUICKACK off) for 200 ms, and
// the rest takes some ten microseconds.
//
// For an address of another network namespace the proof is the TCP connection with which the last
// handshake began (negotiate.h).
#pragma once
#include "abi/postern_abi.h"
#include "base/schema/reasons.h"
#include "family/family.h"

namespace postern {

// Whether a connection from `ep` to `to`, which is local, may go through memory: kReasonNone, or
// why not. `asked`: the destination as the program wrote it. `from`: what will be our name.
Reason MayReach(Family& fam, const pstn_ep& ep, const pstn_addr& asked, const pstn_addr& to,
                const pstn_addr& from);

// The same for a destination in another network namespace; false: a handshake has to come first.
bool HasReached(Family& fam, const pstn_addr& to);
void NoteReached(Family& fam, const pstn_addr& to);

// A thread has rights of its own from now on (Landlock): what the kernel says to one of them counts
// for no other, so it is asked each time.
void ForgetContacts(Family& fam);

}  // namespace postern
