// SPDX-License-Identifier: Apache-2.0
// places.h - places in the queue of a listener, and clients that wait for one.
//
// Linux lets backlog + 1 clients wait for accept(), and answers no other. So here: who connects
// takes a place, who is accepted gives it back. Clients and server of one user count in
// pstn_queues, which posternd makes for the listeners of its directory; those of two users, of two
// network namespaces, or without an entry count in their link group.
//
// A client for which there is no place leaves its slot PSTN_CS_WAITS, and its endpoint
// PSTN_EP_CONNECTING. As Linux's SYN it comes again each second (its evmap bit), until the server
// has taken a place for it (LetIn in peer/accept_queue.cc), or its time is over. No process of the
// server's tells the client's endpoint so: whichever thread looks at it finds out (StateNow).
#pragma once
#include "endpoint/endpoint.h"
#include "family/family.h"

namespace postern {

// The entry of the listener that is `entry` - 1 in posternd's directory; null: there is none, or
// this process may not count there.
inline pstn_places* PlacesAt(const Family& fam, uint32_t entry) {
  pstn_queues* const q = LoadRelaxed(fam.queues);
  return q != nullptr && entry != 0 && entry <= PSTN_DIR_LISTENERS ? &q->at[entry - 1] : nullptr;
}
// Where clients of a link group count that wait at the listener `idx`, the directory's `entry` - 1.
uint32_t& TakenAt(const Family& fam, const pstn_lgr_ref& ref, uint8_t* lgr, uint32_t idx,
                  uint32_t entry);
// False: there is none.
bool TakePlace(uint32_t& taken, uint32_t backlog);
void GivePlace(uint32_t& taken);
// The entry of a listener of ours, which posternd has just listed.
void LearnPlaces(Family& fam, pstn_ep& listener);

// The listener has no place for the connection `e`, which is filled in. `since_ns`: now.
void BeginWait(Family& fam, const ConnEnd& e, pstn_places& places);
// As LoadAcquire(ep.state), but for a connect() that has ended without a word.
uint32_t Waited(Family& fam, pstn_ep& ep);
inline uint32_t StateNow(Family& fam, pstn_ep& ep) {
  const uint32_t state = LoadAcquire(ep.state);  // [E1]
  return state == PSTN_EP_CONNECTING ? Waited(fam, ep) : state;
}
// Ends a wait as if the connection had been made: ResetConnection does the rest.
void GiveUpWait(Family& fam, pstn_ep& ep);
// For all endpoints of the stack that wait: tells of those that do so no more. False: none does.
bool LookAtWaits(Family& fam);

}  // namespace postern
