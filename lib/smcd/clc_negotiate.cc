// SPDX-License-Identifier: Apache-2.0
// clc_negotiate.cc - see clc_negotiate.h.
#include "smcd/clc_negotiate.h"

#include <cstring>

namespace postern {
namespace {

uint8_t Least(uint8_t a, uint8_t b) { return a < b ? a : b; }

// Whether the client has our device: the same host, that is. An emulated entry without its second
// half is no device's.
bool OffersOurDevice(const ClcLocal& local, const ClcProposal& proposal) {
  const ClcEntry* entries = proposal.entries;
  for (size_t i = 0; i < proposal.entry_count; i++) {
    ClcGid gid = {entries[i].gid, 0};
    const uint16_t chid = entries[i].chid;
    if (ClcIsEmulated(chid)) {
      if (i + 1 == proposal.entry_count || entries[i + 1].chid != chid) continue;
      gid.ext = entries[++i].gid;
    }
    if (chid == local.chid && gid == local.gid) return true;
  }
  return false;
}

// A release 0 peer has no feature mask, hence no emulated devices.
ClcResult CheckFeatures(const ClcLocal& local, uint8_t release, uint16_t feature_mask) {
  if (!ClcIsEmulated(local.chid)) return ClcResult::Ok();
  if (release == 0) return ClcResult::Decline(kClcDiagRelease);
  return (feature_mask & kClcFeatureEmulated) != 0 ? ClcResult::Ok()
                                                   : ClcResult::Decline(kClcDiagNoSmcdV2Device);
}

bool HasUeid(const ClcLocal& local, const ClcEid& eid) {
  for (size_t i = 0; i < Least(local.ueid_count, kClcLocalUeids); i++) {
    if (local.ueids[i] == eid) return true;
  }
  return false;
}

// The system's id is taken only if both say that they have it: elsewhere it is all zero.
ClcResult ChooseEid(const ClcLocal& local, const ClcProposal& proposal, ClcEid& eid) {
  if (local.has_seid != 0 && proposal.has_seid != 0 && local.seid == proposal.seid) {
    eid = local.seid;
    return ClcResult::Ok();
  }
  for (size_t i = 0; i < proposal.ueid_count; i++) {
    eid = proposal.ueids[i];
    if (HasUeid(local, eid)) return ClcResult::Ok();
  }
  const bool relies_on_seid = proposal.ueid_count == 0 && proposal.has_seid != 0;
  return ClcResult::Decline(relies_on_seid ? kClcDiagNoSeid : kClcDiagNoUeid);
}

// The device that an Accept or Confirm names has to be the one of this host. An offered CHID is
// ours or none's; there is no empty slot that a CHID of 0 could match.
bool NamesOurDevice(const ClcLocal& local, const ClcAccept& message) {
  return message.chid == local.chid && message.gid == local.gid;
}

}  // namespace

// ---------------------------------------------------------------- client

ClcProposal ClcMakeProposal(const ClcLocal& local) {
  ClcProposal p;
  memcpy(p.v1.peer_id, local.peer_id, sizeof p.v1.peer_id);
  p.has_v2 = p.has_smcd = 1;
  p.release = local.release;
  p.feature_mask = local.release == 0 ? uint16_t{0} : local.feature_mask;
  p.has_seid = local.has_seid;
  if (local.has_seid != 0) p.seid = local.seid;
  p.ueid_count = Least(local.ueid_count, kClcLocalUeids);
  for (size_t i = 0; i < p.ueid_count; i++) p.ueids[i] = local.ueids[i];
  p.entries[p.entry_count++] = {local.gid.gid, local.chid};
  if (ClcIsEmulated(local.chid)) p.entries[p.entry_count++] = {local.gid.ext, local.chid};
  ClcSetFeatures(p, local.features);
  return p;
}

ClcResult ClcCheckAccept(const ClcLocal& local, const ClcAccept& accept, ClcTerms& terms) {
  if (!NamesOurDevice(local, accept)) return ClcResult::Decline(kClcDiagNoSmcdV2Device);
  if (!HasUeid(local, accept.eid) && (local.has_seid == 0 || accept.eid != local.seid))
    return ClcResult::Decline(kClcDiagNoUeid);
  terms.eid = accept.eid;
  if (accept.is_first_contact == 0) return ClcResult::Ok();
  terms.release = accept.first.release;
  terms.feature_mask = accept.first.feature_mask & local.feature_mask;
  terms.features = ClcFeatures(accept.first) & local.features;
  if (terms.release > local.release) return ClcResult::Decline(kClcDiagRelease);
  return CheckFeatures(local, terms.release, terms.feature_mask);
}

// ---------------------------------------------------------------- server

ClcResult ClcCheckProposal(const ClcLocal& local, const ClcProposal& proposal, ClcTerms& terms) {
  if (proposal.has_v2 == 0) return ClcResult::Decline(kClcDiagNoV2Extension);
  if (proposal.path_v2 != ClcPath::kSmcD && proposal.path_v2 != ClcPath::kBoth)
    return ClcResult::Decline(kClcDiagMode);
  if (proposal.has_smcd == 0) return ClcResult::Decline(kClcDiagNoSmcdV2Extension);
  if (!OffersOurDevice(local, proposal)) return ClcResult::Decline(kClcDiagNoSmcdV2Device);
  terms.release = Least(proposal.release, local.release);
  const ClcResult features = CheckFeatures(local, terms.release, proposal.feature_mask);
  if (!features.ok()) return features;
  terms.feature_mask = local.feature_mask;
  // Without release 1 the Accept has no place to say it.
  terms.features = terms.release == 0 ? uint8_t{0} : ClcFeatures(proposal) & local.features;
  return ChooseEid(local, proposal, terms.eid);
}

ClcResult ClcCheckConfirm(const ClcLocal& local, const ClcAccept& confirm, ClcTerms& terms) {
  if (!NamesOurDevice(local, confirm)) return ClcResult::Decline(kClcDiagNoSmcdV2Device);
  if (confirm.eid != terms.eid) return ClcResult::Decline(kClcDiagNoUeid);
  if (confirm.is_first_contact == 0) return ClcResult::Ok();
  if (confirm.first.release != terms.release) return ClcResult::Decline(kClcDiagRelease);
  terms.feature_mask &= confirm.first.feature_mask;
  return CheckFeatures(local, terms.release, terms.feature_mask);
}

// ---------------------------------------------------------------- both

ClcAccept ClcMakeAccept(const ClcLocal& local, ClcType type, const ClcTerms& terms,
                        uint8_t is_first_contact) {
  ClcAccept a;
  a.type = type;
  a.is_first_contact = is_first_contact;
  a.gid = local.gid;
  a.chid = local.chid;
  a.eid = terms.eid;
  if (is_first_contact == 0) return a;
  a.first.os = local.os;
  a.first.release = terms.release;
  memcpy(a.first.host_name, local.host_name, sizeof a.first.host_name);
  a.first.feature_mask = terms.feature_mask;
  ClcSetFeatures(a.first, terms.features);
  return a;
}

ClcDecline ClcMakeDecline(const ClcLocal& local, uint8_t peer_version, uint32_t diagnosis) {
  ClcDecline d;
  d.version = peer_version >= 2 ? 2 : 1;
  d.has_more = d.version == 2 ? 1 : 0;
  if (d.version == 2) d.os = local.os;
  d.is_out_of_sync = diagnosis == kClcDiagSync ? 1 : 0;
  memcpy(d.peer_id, local.peer_id, sizeof d.peer_id);
  d.diagnosis = diagnosis;
  return d;
}

}  // namespace postern
