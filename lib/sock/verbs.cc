// SPDX-License-Identifier: Apache-2.0
// verbs.cc - the answers to what lower rooms say (family/verbs.h).
#include "family/verbs.h"
#include "control/posternd.h"
#include "event/epoll.h"
#include "life/process.h"
#include "offhost/datagram.h"
#include "offhost/datagram_calls.h"
#include "offhost/wire.h"
#include "offhost/wire_calls.h"
#include "offhost/wire_options.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "peer/export.h"

namespace postern {
namespace {

bool WireIsReintroduced(Family& fam, LineAsk ask) {
  if (WireReintroduce(fam, ask) != 0) return false;
  WireKeepPorts(fam, ask);
  return true;
}
bool WireIsEnd(Family& fam, uint32_t lgr, uint32_t conn) {
  return EngineEnd(fam, lgr, conn) != nullptr;
}
void WireHush(Family& fam, pstn_ep& ep) { WireUnlisten(fam, ep, Unfilter::kHush); }
void WireLeave(Family& fam, pstn_ep& ep) { WireUnlisten(fam, ep, Unfilter::kLeave); }

}  // namespace

constexpr Verbs kVerbs = {
    .make_stack = MakeStack,
    .map_lgr = MapLgrOf,
    .await_lgr = AwaitLgrOf,
    .last_reference = LastReference,
    .leave_to_kernel = SockExport,
    .admit_syns = AdmitSyns,
    .line_lost = SockEpollLineLost,
    .datagram_readiness = DatagramReadiness,
    .datagram_touch = DatagramTouch,
    .datagram_connect = DatagramConnect,
    .datagram_leave = DatagramLeave,
    .datagram_closed = DatagramClosed,
    .wire_poll = WirePoll,
    .wire_wrote = WireWroteOne,
    .wire_events = WireCountEvents,
    .wire_sleeps = WireSleeps,
    .wire_awake = WireAwake,
    .wire_errands = WireErrands,
    .wire_reintroduce = WireIsReintroduced,
    .wire_refilter = WireRefilter,
    .wire_retry = WireRetry,
    .wire_forget = WireForget,
    .wire_connect = WireConnect,
    .wire_await_connected = WireAwaitConnected,
    .wire_give_up = WireGiveUp,
    .wire_is_end = WireIsEnd,
    .wire_inherit = WireInherit,
    .wire_rehouse = WireRehouse,
    .wire_listen_again = WireListenAgain,
    .wire_unlisten = WireHush,
    .wire_leave = WireLeave,
};

}  // namespace postern
