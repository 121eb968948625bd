// SPDX-License-Identifier: Apache-2.0
// clc_steps.h - what the cells of the CLC table do; for clc_fsm.cc and clc_steps.cc only.
#pragma once
#include "smcd/clc_fsm.h"

namespace postern::clc_steps {

// One call of ClcStep().
struct Step {
  ClcMachine& machine;
  const ClcLocal& local;
  const ClcEvent& event;
  uint64_t now_ns;
  ClcActions& actions;
};
using Handler = void (*)(Step&);

// The only way to another state: sets the deadline too. An edge that is not in the table is a bug
// here and leads to Aborted.
void SetState(Step& step, ClcState to);
void Act(Step& step, ClcDo action);
// The end of a connection that can't be used for data.
void Abort(Step& step, ClcAbort reason);

// Both roles.
void Impossible(Step& step);     // the caller's mistake: abort
void Ignore(Step& step);         // nothing to do
void Unexpected(Step& step);     // a message that is not due: abort
void TakeDecline(Step& step);    // back to TCP, as the peer wants
void TimedOut(Step& step);       // abort
void Closed(Step& step);         // abort
void WasReset(Step& step);       // abort
void DeclineSlow(Step& step);    // the device took too long: send Decline, back to TCP
void DeclineFailed(Step& step);  // the device failed: send Decline, back to TCP
void ReleaseLate(Step& step);    // give back what the device brings after the end
void Finish(Step& step);         // both have attached: SMC-D

// Client.
void Propose(Step& step);           // send Proposal, or Decline if SMC is not wanted
void TakeAccept(Step& step);        // check; register our DMB
void ClientRegistered(Step& step);  // attach the server's
void ClientAttached(Step& step);    // send Confirm
void TakeLateDecline(Step& step);   // agreed: back to TCP; else abort
void Overdue(Step& step);           // agreed: withdraw; else the silence is success
void WithdrawClosed(Step& step);    // withdraw, or see whether the peer has attached
void NoteClosed(Step& step);        // no Decline will come any more
void Withdrawn(Step& step);         // wait for the Decline that says so
void GiveUp(Step& step);            // agreed: back to TCP, which has ended; else abort

// Server.
void Listen(Step& step);            // wait for the Proposal
void TakeProposal(Step& step);      // check; register our DMB, or send Decline
void ServerRegistered(Step& step);  // send Accept
void TakeConfirm(Step& step);       // check; attach the client's DMB
void ServerAttached(Step& step);    // acknowledge, if that was agreed
void AttachFailed(Step& step);      // agreed: send Decline, back to TCP; else abort
void AttachSlow(Step& step);        // the same
void Refused(Step& step);           // the client has withdrawn: send Decline, back to TCP

}  // namespace postern::clc_steps
