// SPDX-License-Identifier: Apache-2.0
// clc_steps.cc - what the cells of the CLC table do.
#include "smcd/clc_steps.h"

#include <cstring>

namespace postern::clc_steps {
namespace {

bool HasAck(const ClcMachine& m) { return (m.features & kClcAckAttach) != 0; }

// The device will answer with DeviceOk or DeviceFailed.
void Request(Step& step, ClcDo request, ClcState to) {
  SetState(step, to);
  step.machine.pending = static_cast<uint8_t>(request);
  Act(step, request);
}

void Release(Step& step) {
  if (step.machine.held == 0) return;
  step.actions.release = step.machine.held;
  step.machine.held = 0;
  Act(step, ClcDo::kRelease);
}

enum class LinkGroup : uint8_t { kKeep, kForget };

void FallBack(Step& step, LinkGroup link_group) {
  Release(step);
  if (link_group == LinkGroup::kForget) Act(step, ClcDo::kForgetLinkGroup);
  SetState(step, ClcState::kTcp);
  Act(step, ClcDo::kTcp);
}

void Send(Step& step, size_t len_bytes) {
  step.actions.len_bytes = static_cast<uint16_t>(len_bytes);
  Act(step, ClcDo::kSend);
}

// In place of our next message.
void Decline(Step& step, uint32_t diagnosis) {
  ClcMachine& m = step.machine;
  m.diagnosis = diagnosis;
  m.is_peer_diagnosis = 0;
  const ClcDecline decline = ClcMakeDecline(step.local, m.peer_version, diagnosis);
  Send(step, ClcEncodeDecline(decline, step.actions.bytes));
  FallBack(step, diagnosis == kClcDiagSync ? LinkGroup::kForget : LinkGroup::kKeep);
}

// Server, after Confirm: only a client that knows of kClcAckAttach still listens.
void FailCommitted(Step& step, uint32_t diagnosis) {
  if (HasAck(step.machine)) return Decline(step, diagnosis);
  step.machine.diagnosis = diagnosis;
  Abort(step, ClcAbort::kCommitted);
}

uint32_t DeviceDiagnosis(const Step& step) {
  return step.event.diagnosis != 0 ? step.event.diagnosis : uint32_t{kClcDiagInternal};
}

ClcTerms TermsOf(const ClcMachine& m) {
  ClcTerms terms;
  memcpy(terms.eid.text, m.eid, sizeof m.eid);
  terms.feature_mask = m.feature_mask;
  terms.release = m.release;
  terms.features = m.features;
  return terms;
}
void KeepTerms(ClcMachine& m, const ClcTerms& terms) {
  memcpy(m.eid, terms.eid.text, sizeof m.eid);
  m.feature_mask = terms.feature_mask;
  m.release = terms.release;
  m.features = terms.features;
}
void KeepPeer(ClcMachine& m, const ClcAccept& message) {
  m.peer_gid = message.gid.gid;
  m.peer_gid_ext = message.gid.ext;
  m.peer_token = message.token;
  m.peer_link_id = message.link_id;
  m.peer_size_code = message.size_code;
}
void KeepDmb(ClcMachine& m, const ClcDmb& dmb) {
  m.held |= kClcHeldDmb;
  m.own_token = dmb.token;
  m.own_link_id = dmb.link_id;
  m.own_size_code = dmb.size_code;
}

// An answer of the device that comes to a machine that has given up meanwhile.
void KeepLateAnswer(Step& step) {
  ClcMachine& m = step.machine;
  const bool is_ok = step.event.kind == ClcEventKind::kDeviceOk;
  if (!is_ok && step.event.kind != ClcEventKind::kDeviceFailed) return;
  const auto request = static_cast<ClcDo>(m.pending);
  m.pending = 0;
  if (is_ok && request == ClcDo::kRegister) KeepDmb(m, step.event.dmb);
  if (is_ok && request == ClcDo::kAttach) m.held |= kClcHeldAttach;
}

// Accept or Confirm: our DMB and what was agreed on. False: the device's answer can't be said.
bool SendOurs(Step& step, ClcType type) {
  const ClcMachine& m = step.machine;
  ClcAccept ours = ClcMakeAccept(step.local, type, TermsOf(m), m.is_first_contact);
  ours.token = m.own_token;
  ours.link_id = m.own_link_id;
  ours.size_code = m.own_size_code;
  const size_t len_bytes = ClcEncodeAccept(ours, step.actions.bytes);
  if (len_bytes != 0) Send(step, len_bytes);
  return len_bytes != 0;
}

}  // namespace

void Act(Step& step, ClcDo action) {
  if (step.actions.count < kClcActionsMax) step.actions.list[step.actions.count++] = action;
}

void Abort(Step& step, ClcAbort reason) {
  KeepLateAnswer(step);
  Release(step);
  SetState(step, ClcState::kAborted);
  step.machine.abort = static_cast<uint8_t>(reason);
  Act(step, ClcDo::kAbort);
}

// ---------------------------------------------------------------- both roles

void Impossible(Step& step) { Abort(step, ClcAbort::kInternal); }
void Ignore(Step&) {}
void Unexpected(Step& step) { Abort(step, ClcAbort::kUnexpected); }
void TimedOut(Step& step) { Abort(step, ClcAbort::kTimeout); }
void Closed(Step& step) { Abort(step, ClcAbort::kPeerClosed); }
void WasReset(Step& step) { Abort(step, ClcAbort::kReset); }

void TakeDecline(Step& step) {
  ClcDecline decline;
  const ClcResult parsed = ClcParseDecline(step.event.message, decline);
  if (!parsed.ok()) return Abort(step, parsed.abort);
  step.machine.diagnosis = decline.diagnosis;
  step.machine.is_peer_diagnosis = 1;
  FallBack(step, decline.is_out_of_sync != 0 ? LinkGroup::kForget : LinkGroup::kKeep);
}

void DeclineSlow(Step& step) { Decline(step, kClcDiagInternal); }

void DeclineFailed(Step& step) {
  step.machine.pending = 0;
  Decline(step, DeviceDiagnosis(step));
}

void ReleaseLate(Step& step) {
  KeepLateAnswer(step);
  Release(step);
}

void Finish(Step& step) {
  step.machine.pending = 0;
  SetState(step, ClcState::kSmcD);
  Act(step, ClcDo::kSmcD);
}

// ---------------------------------------------------------------- client

void Propose(Step& step) {
  if (step.event.diagnosis != 0) return Decline(step, step.event.diagnosis);
  Send(step, ClcEncodeProposal(ClcMakeProposal(step.local), step.actions.bytes));
  SetState(step, ClcState::kAwaitAccept);
  Act(step, ClcDo::kWait);
}

void TakeAccept(Step& step) {
  ClcAccept accept;
  const ClcResult parsed = ClcParseAccept(step.event.message, accept);
  if (parsed.verdict == ClcVerdict::kAbort) return Abort(step, parsed.abort);
  if (!parsed.ok()) return Decline(step, parsed.diagnosis);
  ClcTerms terms;
  const ClcResult checked = ClcCheckAccept(step.local, accept, terms);
  if (!checked.ok()) return Decline(step, checked.diagnosis);
  ClcMachine& m = step.machine;
  m.is_first_contact = accept.is_first_contact;
  KeepTerms(m, terms);
  KeepPeer(m, accept);
  Request(step, ClcDo::kRegister, ClcState::kClientRegister);
}

void ClientRegistered(Step& step) {
  ClcMachine& m = step.machine;
  const ClcDmb& dmb = step.event.dmb;
  m.pending = 0;
  KeepDmb(m, dmb);
  if (m.is_first_contact == 0) {
    // The server remembers a link group that we know nothing of.
    if (dmb.has_link_group == 0) return Decline(step, kClcDiagSync);
    m.features = dmb.link_group_features & step.local.features;
  }
  Request(step, ClcDo::kAttach, ClcState::kClientAttach);
}

void ClientAttached(Step& step) {
  step.machine.pending = 0;
  step.machine.held |= kClcHeldAttach;
  if (!SendOurs(step, ClcType::kConfirm)) return Abort(step, ClcAbort::kInternal);
  SetState(step, ClcState::kProvisional);
  Act(step, ClcDo::kWait);
}

void TakeLateDecline(Step& step) {
  if (HasAck(step.machine)) return TakeDecline(step);
  ClcDecline decline;
  const ClcResult parsed = ClcParseDecline(step.event.message, decline);
  step.machine.diagnosis = decline.diagnosis;
  step.machine.is_peer_diagnosis = 1;
  Abort(step, parsed.ok() ? ClcAbort::kCommitted : parsed.abort);
}

void Overdue(Step& step) {
  if (!HasAck(step.machine)) return Finish(step);
  Request(step, ClcDo::kWithdraw, ClcState::kWithdrawLate);
}

void WithdrawClosed(Step& step) { Request(step, ClcDo::kWithdraw, ClcState::kWithdrawClosed); }

// The answer to kWithdraw is still to come.
void NoteClosed(Step& step) { SetState(step, ClcState::kWithdrawClosed); }

void Withdrawn(Step& step) {
  step.machine.pending = 0;
  SetState(step, ClcState::kAwaitDecline);
  Act(step, ClcDo::kWait);
}

void GiveUp(Step& step) {
  ClcMachine& m = step.machine;
  m.pending = 0;
  m.diagnosis = kClcDiagConfirmLinkTimeout;
  if (!HasAck(m)) return Abort(step, ClcAbort::kPeerClosed);
  FallBack(step, LinkGroup::kKeep);
}

// ---------------------------------------------------------------- server

void Listen(Step& step) {
  step.machine.diagnosis = step.event.diagnosis;
  SetState(step, ClcState::kAwaitProposal);
  Act(step, ClcDo::kWait);
}

void TakeProposal(Step& step) {
  ClcProposal proposal;
  const ClcResult parsed = ClcParseProposal(step.event.message, proposal);
  if (parsed.verdict == ClcVerdict::kAbort) return Abort(step, parsed.abort);
  if (step.machine.diagnosis != 0) return Decline(step, step.machine.diagnosis);
  if (!parsed.ok()) return Decline(step, parsed.diagnosis);
  ClcTerms terms;
  const ClcResult checked = ClcCheckProposal(step.local, proposal, terms);
  if (!checked.ok()) return Decline(step, checked.diagnosis);
  KeepTerms(step.machine, terms);
  Request(step, ClcDo::kRegister, ClcState::kServerRegister);
}

void ServerRegistered(Step& step) {
  ClcMachine& m = step.machine;
  const ClcDmb& dmb = step.event.dmb;
  m.pending = 0;
  KeepDmb(m, dmb);
  m.is_first_contact = dmb.has_link_group == 0 ? 1 : 0;
  if (m.is_first_contact == 0) m.features = dmb.link_group_features & step.local.features;
  if (!SendOurs(step, ClcType::kAccept)) return Abort(step, ClcAbort::kInternal);
  SetState(step, ClcState::kAwaitConfirm);
  Act(step, ClcDo::kWait);
}

void TakeConfirm(Step& step) {
  ClcMachine& m = step.machine;
  ClcAccept confirm;
  confirm.type = ClcType::kConfirm;
  const ClcResult parsed = ClcParseAccept(step.event.message, confirm);
  if (parsed.verdict == ClcVerdict::kAbort) return Abort(step, parsed.abort);
  // What the client did not confirm is not agreed. Later connections have it from their link group.
  if (m.is_first_contact != 0) m.features &= ClcFeatures(confirm.first);
  if (!parsed.ok()) return FailCommitted(step, parsed.diagnosis);
  if (confirm.is_first_contact != m.is_first_contact) return FailCommitted(step, kClcDiagSync);
  ClcTerms terms = TermsOf(m);
  const ClcResult checked = ClcCheckConfirm(step.local, confirm, terms);
  if (!checked.ok()) return FailCommitted(step, checked.diagnosis);
  KeepTerms(m, terms);
  KeepPeer(m, confirm);
  Request(step, ClcDo::kAttach, ClcState::kServerAttach);
}

void ServerAttached(Step& step) {
  step.machine.pending = 0;
  step.machine.held |= kClcHeldAttach;
  if (!HasAck(step.machine)) return Finish(step);
  Request(step, ClcDo::kAcknowledge, ClcState::kAcknowledge);
}

void AttachFailed(Step& step) {
  step.machine.pending = 0;
  FailCommitted(step, DeviceDiagnosis(step));
}

void AttachSlow(Step& step) { FailCommitted(step, kClcDiagInternal); }

void Refused(Step& step) {
  step.machine.pending = 0;
  Decline(step, kClcDiagConfirmLinkTimeout);
}

}  // namespace postern::clc_steps
