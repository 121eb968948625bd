// SPDX-License-Identifier: Apache-2.0
// port.h - ephemeral ports, and ports that connections have.
#pragma once

#include "family/family.h"

namespace postern {

// Reserves an ephemeral port at the kernel for the endpoint's socket, which keeps it for life: of
// the address `from`, or of the one that the program has bound it to.
bool ReservePort(Family& fam, int fd, pstn_ep& ep, const pstn_dir& dir, const pstn_addr& from)
    PSTN_REQUIRES(ep.setup_lock);
// Whether its name is one that we have chosen, and not the program's business before connect().
bool IsNamedByUs(const pstn_ep& ep);

// Whether an accepted connection, of this family or of one that it is connected to, keeps the
// endpoint from being bound to `name`, as the kernel's bind() has it. An accepted connection has no
// socket of the kernel that does. It does so for a minute after its end has been closed, if that
// was before the other's: FIN_WAIT2 and TIME_WAIT, for which no connection is kept.
bool IsTakenByConnection(Family& fam, const pstn_ep& ep, const pstn_addr& name);
// An end of a connection is being closed in order, the second one or not. It and the peer's stay
// taken as Linux has it, as far as this process knows.
enum class Turn : uint8_t { kFirst, kSecond };
void NotePast(Family& fam, const ConnEnd& e, Turn turn);
// The kernel has given the port to a socket anew: no connection has it.
void ForgetPast(Family& fam, uint16_t port);
// A connection is made to `server`. The kernel may have given the port to a new listener since an
// older one ended; this one's end is noted when it comes.
void BeginAnew(Family& fam, const pstn_addr& server);
// Whether a connection is over for both ends, and its port is the program's to choose anew.
bool HasLostPort(Family& fam, pstn_ep& ep);
// Tells the client's family the options of an accepted connection that matter to its bind().
void ShowReuse(const pstn_ep& ep, pstn_conn_ctl& own);
// Whether the family has a connection from `from` (any address: from any), where the endpoint is
// bound, to `to`: its names are those that this one would have.
bool HasSameNames(Family& fam, const pstn_ep& ep, const pstn_addr& to, const pstn_addr& from);

}  // namespace postern
