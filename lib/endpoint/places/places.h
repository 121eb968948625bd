// SPDX-License-Identifier: Apache-2.0
// places.h - places in the queue of a listener, and clients that wait for one.
//
// Linux lets backlog + 1 clients wait for accept(), and answers no other. So here: who connects
// takes a place, who is accepted gives it back. All clients of a server's stack count in its
// pstn_queues, which posternd makes: the server's processes have it, and those of each stack that
// has a link group with it as a client. Clients for which posternd says otherwise
// (pstn_lgr_ref.queued) count in their link group; the server counts them, too, when it admits
// them.
//
// The count is what clients say. The server knows how many are in its queue: there are no fewer
// (RaisePlaces), and after a second in which the two did not fit no more (SeesRoom in
// peer/accept_queue.cc). So no death and no lie leaves a place taken, or free, for long.
//
// A client for which there is no place leaves its slot PSTN_CS_WAITS, and its endpoint
// PSTN_EP_CONNECTING. As Linux's SYN it comes again each second, until it or the server has taken a
// place for it (LetIn in peer/accept_queue.cc), or its time is over. No process of the server's
// tells the client's endpoint so: whichever thread looks at it finds out (StateNow).
#pragma once
#include "endpoint/endpoint.h"
#include "family/family.h"

namespace postern {

// How many places of a listener are taken, in one of this process's mappings. Null: it is not here.
inline uint32_t* TakenIn(const StackView& v, uint32_t which, uint32_t listener_idx) {
  pstn_queues* const queues = LoadAcquire(v.queues[which].map);  // [V6]
  return queues != nullptr ? &queues->at[listener_idx % PSTN_PLACES].taken : nullptr;
}
inline bool IsQueued(const pstn_lgr_ref& ref) { return LoadRelaxed(ref.queued) != 0; }
// Where the queues of a link group's server are, in fam.view.queues.
uint32_t QueuesBehind(Family& fam, const pstn_lgr_ref& ref);
// Where its clients count that connect to the listener `idx`. Null: the memory is not here.
uint32_t* TakenAt(Family& fam, const pstn_lgr_ref& ref, uint8_t* lgr, uint32_t idx);
// False: there is none.
bool TakePlace(uint32_t& taken, uint32_t backlog);
// Each may be null: then it is for others to count.
void AddPlace(uint32_t* taken);
void GivePlace(uint32_t* taken);
void RaisePlaces(uint32_t* taken, uint32_t least);
// Of a listener of ours that posternd is going to list.
void BeginPlaces(Family& fam, pstn_ep& listener);

// The listener with that backlog has no place for the connection `e`, which is filled in.
void BeginWait(Family& fam, const ConnEnd& e, uint32_t backlog);
// A place for a client that waits. False: there is none, or it waits no more.
bool TakeForWaiting(Family& fam, const ConnEnd& e);
// As LoadAcquire(ep.state), but for a connect() that has ended without a word.
uint32_t Waited(Family& fam, pstn_ep& ep);
inline uint32_t StateNow(Family& fam, pstn_ep& ep) {
  const uint32_t state = LoadAcquire(ep.state);  // [E1]
  return state == PSTN_EP_CONNECTING ? Waited(fam, ep) : state;
}
// Ends a wait as if the connection had been made: ResetConnection does the rest. False: it is made.
bool GiveUpWait(Family& fam, pstn_ep& ep);
// For all endpoints of the stack that wait: tells of those that do so no more. False: none does.
bool LookAtWaits(Family& fam);

}  // namespace postern
