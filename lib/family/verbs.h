// SPDX-License-Identifier: Apache-2.0
// verbs.h - what lower rooms tell the rooms above them, and ask of them.
//
// A room includes and calls only what lies below it (tests/tidy). Where something happens that
// concerns a room above - the last reference to an endpoint is gone, the line to posternd is lost,
// a thread is about to sleep - the room below says so by a verb. sock/verbs.cc has the answers.
#pragma once
#include <sys/socket.h>

#include "abi/postern_abi.h"
#include "base/schema/reasons.h"

namespace postern {

namespace ctl {
struct Msg;
}
class Interrupts;
struct Family;

// How a posternd that has come anew is asked, under the line's lock. 0 or -errno.
using LineAsk = int (*)(Family& fam, ctl::Msg& m, int fd, int* reply_fd);

struct Verbs {
  // ---- a process and its stack
  bool (*make_stack)(Family& fam);                     // EnsureStack, where there is none yet
  uint8_t* (*map_lgr)(Family& fam, uint32_t index);    // maps a link group; null: it can't be had
  uint8_t* (*await_lgr)(Family& fam, uint32_t index);  // the same, and waits for posternd
  // ---- endpoints and event sets
  void (*last_reference)(Family& fam, uint32_t entry);  // PSTN_FD_*: no number refers to it now
  long (*leave_to_kernel)(Family& fam, int fd);         // SockExport
  void (*admit_syns)(Family& fam, uint32_t looks);      // AdmitSyns
  void (*line_lost)(Family& fam, uint32_t line,
                    int fd);  // the line to posternd is about to be closed
  // ---- UDP sockets that the wire serves beside the kernel (offhost/datagram.h)
  uint32_t (*datagram_readiness)(Family& fam, const pstn_ep& ep);
  void (*datagram_touch)(Family& fam, const pstn_ep& ep);
  long (*datagram_connect)(Family& fam, int fd, pstn_ep& ep, const sockaddr* sa, socklen_t len);
  void (*datagram_leave)(Family& fam, pstn_ep& ep, Reason why);
  bool (*datagram_closed)(Family& fam, pstn_ep& ep);
  // ---- what a thread does for all where the stack has VIs (family/turn.h)
  uint32_t (*wire_poll)(Family& fam);
  bool (*wire_wrote)(Family& fam);
  long (*wire_events)(Family& fam, long count);
  void (*wire_sleeps)(Family& fam);
  void (*wire_awake)(Family& fam);
  void (*wire_errands)(Family& fam);
  // ---- the wire and posternd
  bool (*wire_reintroduce)(Family& fam, LineAsk ask);  // false: there is no wire to speak of
  void (*wire_refilter)(Family& fam, LineAsk ask, int fd, const pstn_ep& ep);
  void (*wire_retry)(Family& fam);
  void (*wire_forget)(Family& fam);  // the process leaves the family, and has one thread
  // ---- the wire and connections (offhost/wire.h, wire_calls.h, wire_options.h)
  Reason (*wire_connect)(Family& fam, int fd, pstn_ep& ep, const pstn_addr& to);
  long (*wire_await_connected)(Family& fam, pstn_ep& ep, const Interrupts& since);
  void (*wire_give_up)(Family& fam, pstn_ep& ep);
  bool (*wire_is_end)(Family& fam, uint32_t lgr, uint32_t conn);  // the other end is behind a VI
  void (*wire_inherit)(Family& fam, int fd, const pstn_ep& ep);
  void (*wire_rehouse)(Family& fam, int fd, const pstn_ep& ep);
  void (*wire_listen_again)(Family& fam, int fd, pstn_ep& ep);
  void (*wire_unlisten)(Family& fam, pstn_ep& ep);  // it listens no more
  void (*wire_leave)(Family& fam, pstn_ep& ep);     // others than the family go on listening
};
extern const Verbs kVerbs;

}  // namespace postern
