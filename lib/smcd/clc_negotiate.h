// SPDX-License-Identifier: Apache-2.0
// clc_negotiate.h - what one side offers in a CLC handshake, and what it makes of the other's
// offer.
//
// No state and no I/O: values of wire/clc/clc.h in, values and verdicts out. The order of messages
// is clc_fsm.h's.
//
// One device: the emulated one of this host, known by its UUID (GID and extended GID) and CHID
// 0xFFFF. Same CHID does not mean same host; only equal GIDs do.
#pragma once
#include "wire/clc/clc.h"

namespace postern {

constexpr uint16_t kClcChidLoopback = 0xffff;
constexpr uint8_t kClcLocalUeids = 4;

// Emulated devices have two adjacent entries in a Proposal: GID, then extended GID.
constexpr bool ClcIsEmulated(uint16_t chid) { return chid >= 0xff00; }

// What a stack is towards its peers. Constant for its life.
struct ClcLocal {
  ClcGid gid = {};
  uint16_t chid = kClcChidLoopback;
  uint16_t feature_mask = kClcFeatureEmulated;
  uint8_t features = kClcAckAttach;  // Postern's own, kClcAckAttach; 0: be a plain SMC-D peer
  uint8_t release = kClcReleaseMax;
  ClcOs os = ClcOs::kLinux;
  uint8_t ueid_count = 0;
  uint8_t has_seid = 0;
  ClcEid ueids[kClcLocalUeids] = {};
  ClcEid seid = {};
  uint8_t host_name[32] = {};  // blank padded
  uint8_t peer_id[8] = {};
};

// What a handshake has agreed on so far.
struct ClcTerms {
  ClcEid eid = {};
  uint16_t feature_mask = 0;
  uint8_t release = 0;
  uint8_t features = 0;
};

// Client.
ClcProposal ClcMakeProposal(const ClcLocal& local);
// The verdict on an Accept (kOk or kDecline), and what the Confirm is to say. Without first contact
// only `eid` is set: the rest is the link group's.
ClcResult ClcCheckAccept(const ClcLocal& local, const ClcAccept& accept, ClcTerms& terms);

// Server. Terms of the Proposal are what the Accept offers; those of the Confirm are final.
ClcResult ClcCheckProposal(const ClcLocal& local, const ClcProposal& proposal, ClcTerms& terms);
ClcResult ClcCheckConfirm(const ClcLocal& local, const ClcAccept& confirm, ClcTerms& terms);

// Both. What belongs to the buffer (token, size, link id) is left to the caller.
ClcAccept ClcMakeAccept(const ClcLocal& local, ClcType type, const ClcTerms& terms,
                        uint8_t is_first_contact);
// In the form that a peer of that version knows; 0 if none was heard of yet.
ClcDecline ClcMakeDecline(const ClcLocal& local, uint8_t peer_version, uint32_t diagnosis);

}  // namespace postern
