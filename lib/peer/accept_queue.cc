// SPDX-License-Identifier: Apache-2.0
// accept_queue.cc - admits clients' connections to listeners, and has them wait for accept().
//
// A client's SYN is a bit in its link group's SYN map. Whichever process of the server's family
// comes by first takes the bits, makes an endpoint for each connection and puts it into the accept
// queue of its listener (in the stack, so that every process that shares the listener can accept).
#include "base/clock.h"
#include "control/posternd.h"
#include "endpoint/endpoint.h"
#include "endpoint/inherit.h"
#include "endpoint/kept_options.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "endpoint/state.h"
#include "event/wait.h"
#include "family/family.h"
#include "family/verbs.h"
#include "peer/claim.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "peer/negotiate.h"
#include "peer/port.h"
#include "state/bits.h"

namespace postern {
namespace {

// Clients count those that wait for a listener, so as not to overrun its backlog; one that no
// longer waits is taken off (endpoint/places/places.h).
uint32_t* TakenOf(Family& fam, const pstn_ep& listener) {
  return TakenIn(fam.view, kOwnQueues, EpIdx(Stack(fam), listener));
}
// Where a client counts that does not count in the queues of our stack; else null.
uint32_t* PendingOf(Family& fam, const pstn_ep& ep, const pstn_ep& listener) {
  const LgrHere at = LgrAt(fam.view, LgrIndex(ep.lgr_idx));
  return at.base != nullptr && !IsQueued(*at.ref)
             ? TakenAt(fam, *at.ref, at.base, EpIdx(Stack(fam), listener))
             : nullptr;
}

// The client that finds its listener gone takes its SYN back, and may use the slot again
// (StillListed in connect.cc); from here on it can't. False: it has, or another process has
// admitted or refused it.
bool Claim(pstn_conn& c) {
  uint32_t state = PSTN_CS_SYN;
  if (CompareExchange(c.setup.state, state, PSTN_CS_ESTABLISHED)) return true;
  return state == PSTN_CS_SYN_GONE && CompareExchange(c.setup.state, state, PSTN_CS_CLIENT_GONE);
}
// It was another connection than the one that was looked at.
void Unclaim(pstn_conn& c) {
  uint32_t state = PSTN_CS_ESTABLISHED;
  if (CompareExchange(c.setup.state, state, PSTN_CS_SYN)) return;
  if (state == PSTN_CS_CLIENT_GONE) CompareExchange(c.setup.state, state, PSTN_CS_SYN_GONE);
}

// Stands in conn_ep, with the mark of its process, while a thread refuses the connection: no other
// admits it meanwhile, and the process may die.
constexpr uint32_t kRefusing = 0x80000000u;

// A refused client hears of it, and has the slot.
void TellRefused(Family& fam, const ConnEnd& e) {
  FetchOr(e.ctl().flags, PSTN_CF_REFUSED | PSTN_CF_RST | PSTN_CF_CLOSED);
  uint32_t claimed = PSTN_CS_ESTABLISHED;
  if (!CompareExchange(e.conn->setup.state, claimed, PSTN_CS_SERVER_GONE) &&
      claimed == PSTN_CS_CLIENT_GONE)
    StoreRelease(e.conn->setup.state, PSTN_CS_FREE);  // [C1]
  AnnounceData(fam.bells, e);
  AnnounceSpace(fam.bells, e);
}

// The client may use the slot again since it has heard: its next SYN was left to us (Admit).
void EndRefusal(Family& fam, const ConnEnd& e) {
  const uint32_t conn = e.ep->conn_idx % PSTN_CONNS;
  (void)Exchange(e.ref->conn_ep[conn], 0u);                 // before the look at the state
  const uint32_t state = LoadAcquire(e.conn->setup.state);  // [C1]
  if (WaitsForServer(state)) AnnounceSyn(fam.bells, e.lgr, conn);
}

// Refuses a connection, as a RST would: there is no such listener, or no room.
void Refuse(Family& fam, const ConnEnd& e, uint32_t listener_idx) {
  uint32_t& place = e.ref->conn_ep[e.ep->conn_idx % PSTN_CONNS];
  uint32_t nobody = 0;
  if (!CompareExchange(place, nobody, kRefusing | HandsMark(e.ref->lock))) return;
  if (Claim(*e.conn)) {
    GivePlace(TakenAt(fam, *e.ref, e.lgr, listener_idx));
    Count(Stack(fam).hdr, kCounterSynsRefused);
    TellRefused(fam, e);
  }
  EndRefusal(fam, e);
}

// A process died while it refused: the client has been claimed, or comes once more.
void RecoverRefusal(Family& fam, const ConnEnd& e) {
  if (LoadAcquire(e.conn->setup.state) == PSTN_CS_ESTABLISHED ||  // [C1]
      LoadAcquire(e.conn->setup.state) == PSTN_CS_CLIENT_GONE)    // [C1]
    TellRefused(fam, e);
  EndRefusal(fam, e);
}

// The rest of the queue anew from its chain, which is whole, walked forwards.
void MendChain(Family& fam, pstn_ep& listener) PSTN_REQUIRES(listener.accept_lock) {
  const StackMap& s = Stack(fam);
  uint32_t count = 0;
  listener.accept_tail = PSTN_NONE;
  const pstn_ep* ep = EpAt(s, LoadRelaxed(listener.accept_head));
  for (; ep != nullptr && count < s.eps.count(); count++) {
    listener.accept_tail = EpIdx(s, *ep);
    ep = EpAt(s, LoadRelaxed(ep->next));
  }
  StoreRelease(listener.accept_count, count);  // [E8]
}

// accept_lock. What an owner that died with it has left half done is mended.
class PSTN_SCOPED_CAPABILITY QueueGuard {
 public:
  explicit QueueGuard(Family& fam, pstn_ep& listener) PSTN_ACQUIRE(listener.accept_lock)
      : listener_(listener) {
    if (Lock(listener.accept_lock)) MendChain(fam, listener);
  }
  ~QueueGuard() PSTN_RELEASE() { Unlock(listener_.accept_lock); }
  QueueGuard(const QueueGuard&) = delete;
  QueueGuard& operator=(const QueueGuard&) = delete;

 private:
  pstn_ep& listener_;
};

// In the order in which the clients connected, which is not that of the map's bits. Most come last.
// Far from both ends the order is not worth the way, which clients could have us go each time.
constexpr uint32_t kQueueWalk = 512;
constexpr uint32_t kNotPending = 1;  // `backlog` of an embryo: it has given its place back

void QueueAccepted(Family& fam, pstn_ep& listener, uint32_t idx)
    PSTN_REQUIRES(listener.accept_lock) {
  StackMap& s = Stack(fam);
  pstn_ep& ep = s.eps.Own(EpIndex(idx));
  pstn_ep* after = EpAt(s, LoadRelaxed(listener.accept_tail));
  if (after != nullptr && LoadRelaxed(after->syn_ns) > LoadRelaxed(ep.syn_ns)) {
    after = nullptr;
    uint32_t guard = 0;
    pstn_ep* i = EpAt(s, LoadRelaxed(listener.accept_head));
    for (; i != nullptr && guard < kQueueWalk && LoadRelaxed(i->syn_ns) <= LoadRelaxed(ep.syn_ns);
         i = EpAt(s, LoadRelaxed(i->next)), guard++)
      after = i;
    if (guard == kQueueWalk) after = EpAt(s, LoadRelaxed(listener.accept_tail));
  }
  uint32_t& link = after != nullptr ? after->next : listener.accept_head;
  const uint32_t next = LoadRelaxed(link);
  StoreRelaxed(ep.next, next);  // a thread that takes from the pool may still look at it (PoolTake)
  StoreRelease(link, idx);      // [E8]
  if (next == PSTN_NONE) listener.accept_tail = idx;
  StoreRelease(listener.accept_count, listener.accept_count + 1);  // [E8]
  LeaveHands(ep);
}

// TCP_DEFER_ACCEPT: a client that has only connected is left where it is, and announces itself once
// more when it writes, or ends.
bool Defer(uint8_t* lgr, uint32_t conn) {
  pstn_ep unread = {};
  pstn_conn& c = LgrConn(lgr, conn);
  ConnEnd e = {&unread, nullptr, lgr, &c, 1};
  auto silent = [&] {
    return !RingReadable(e) &&
           // [C2]
           (LoadAcquire(c.ctl[0].flags) & (PSTN_CF_FIN | PSTN_CF_RST | PSTN_CF_CLOSED)) == 0;
  };
  if (!silent()) return false;
  StoreRelease(c.ctl[1].rx_notify, PSTN_NOTIFY_SYN);  // [C3]
  FullFence();                                        // [F1] against AnnounceData
  return silent();
}

bool Defers(const pstn_ep& listener) {
  return static_cast<int32_t>(LoadRelaxed(listener.defer_accept)) > 0;
}

// So long, in Linux's steps: its SYN-ACK is repeated, for the last time of TCP_DEFER_ACCEPT's
// number of them at this time, and answered.
constexpr uint64_t kSecondNs = 1'000'000'000;
uint64_t DeferNs(uint32_t seconds) {
  constexpr uint64_t kLongest = 120;
  uint64_t period = 1;
  for (uint64_t timeout = 1; period < seconds && period < UINT32_MAX; period += timeout)
    timeout = timeout * 2 > kLongest ? kLongest : timeout * 2;
  return period * kSecondNs;
}

// When it connected, by its own word: it may be late, but not so late that it overtakes everybody.
constexpr uint64_t kLateNs = 10'000'000'000;
uint64_t SynTime(const pstn_conn& c) {
  constexpr uint64_t kTickNs = 10'000'000;  // the coarse clock is behind by that at most
  const uint64_t said = LoadRelaxed(c.ctl[0].syn_ns), now = MonotonicCoarseNs() + kTickNs;
  return said > now ? now : said + kLateNs < now ? now - kLateNs : said;
}

// A client that has only connected is left where it is, until its listener's time has passed. The
// process that finds it looks again then (AdmitLate); its threads don't sleep longer (SleepUntil).
bool IsDeferred(Family& fam, const pstn_ep& listener, uint8_t* lgr, uint32_t conn) {
  uint64_t until = SynTime(LgrConn(lgr, conn)) + DeferNs(LoadRelaxed(listener.defer_accept));
  if (until <= MonotonicNs() || !Defer(lgr, conn)) return false;
  if (fam.beds == nullptr) return true;  // in the reaper
  const uint64_t rest = LoadRelaxed(fam.beds->deferred_rest_ns);
  if (until < rest) until = rest;
  uint64_t& first = fam.beds->deferred_ns;
  for (uint64_t seen = LoadRelaxed(first);
       (seen == 0 || until < seen) && !CompareExchange(first, seen, until);) {
  }
  return true;
}

// Of one link group more connections wait than an honest client lets wait (TakePlace): this one
// does not count itself. What accept() could not give a number goes back to the queue, where its
// place may have been taken meanwhile: as many as there may be threads that do so are let pass.
// Handshakes with other network namespaces are bounded otherwise (HandOver in accept.cc).
constexpr uint32_t kGivenBackMax = 16;

bool IsOverBacklog(Family& fam, const pstn_ep& listener, const pstn_lgr_ref& ref)
    PSTN_REQUIRES(listener.accept_lock) {
  const StackMap& s = Stack(fam);
  const uint32_t most = LoadRelaxed(listener.backlog) + kGivenBackMax;
  if (LoadRelaxed(listener.accept_count) <= most || SameUuid(ref.peer, s.hdr.id) ||
      ref.remote == PSTN_LGR_OTHER_NETNS)
    return false;
  const uint32_t idx = EpIdx(s, listener);
  uint32_t waiting = 0;
  for (uint32_t c = 0; c < PSTN_CONNS && waiting <= most; c++) {  // conns_hw is the client's word
    const uint32_t at = LoadAcquire(ref.conn_ep[c]);              // [E4]
    const pstn_ep* const ep = at != 0 ? EpAt(s, at - 1) : nullptr;
    if (ep != nullptr && LoadAcquire(ep->state) == PSTN_EP_EMBRYO &&  // [E1]
        LoadRelaxed(ep->listener) == idx && LoadRelaxed(ep->backlog) != kNotPending)
      waiting++;
  }
  return waiting > most;
}

void InheritBuffers(pstn_ep& ep, const pstn_ep& listener, pstn_conn& c) {
  StoreRelaxed(ep.tx.budget, LoadRelaxed(listener.tx.budget));
  StoreRelaxed(ep.rcv_lines, LoadRelaxed(listener.rcv_lines));
  StoreRelaxed(c.ctl[1].rcv_room, uint32_t{LoadRelaxed(ep.rcv_lines)} * PSTN_REC_ALIGN);
}

enum class Admission : uint8_t { kDone, kRefused, kChanged };
constexpr int kAdmitTries = 4;  // a client that changes its mind more often does it to keep us busy

// One connection of link group `idx`. What the client wrote is loaded once and checked. kChanged:
// the client has taken it back meanwhile, and there may be another in its place.
Admission Admit(Family& fam, uint32_t lgr_idx, uint8_t* lgr, uint32_t conn) {
  StackMap& s = Stack(fam);
  pstn_lgr_ref& ref = s.lgrs.Own(LgrIndex(lgr_idx));
  pstn_conn& c = LgrConn(lgr, conn);
  uint32_t state = LoadAcquire(c.setup.state);  // [C1]
  // [E4]
  if (!WaitsForServer(state) || LoadAcquire(ref.conn_ep[conn]) != 0) return Admission::kDone;
  const uint32_t gen = LoadRelaxed(c.setup.gen), at = LoadRelaxed(c.setup.listener_idx),
                 listener_gen = LoadRelaxed(c.setup.listener_gen);
  pstn_ep* listener = EpAt(s, at);
  pstn_ep none;
  ConnEnd e = {&none, &ref, lgr, &c, 1};
  none.conn_idx = conn;
  // Over a VI it is TCP that waits (and has a timer for it).
  if (listener != nullptr && Defers(*listener) && !kVerbs.wire_is_end(fam, lgr_idx, conn) &&
      IsDeferred(fam, *listener, lgr, conn))
    return Admission::kDone;
  const bool room = listener != nullptr && HasRings(lgr);
  uint32_t idx = room ? NewEp(fam, LoadRelaxed(listener->family)) : PSTN_NONE;
  if (idx == PSTN_NONE) {
    Refuse(fam, e, at);
    return Admission::kRefused;
  }
  pstn_ep& ep = s.eps.Own(EpIndex(idx));
  SetPlace(ep, lgr_idx, conn, gen, 1);
  StoreRelaxed(ep.listener, at);
  StoreRelaxed(ep.syn_ns, SynTime(c));
  // The thread that enters its endpoint here has admitted it: a bit may come twice, from a strange
  // client or for a process that died with it (RecoverConns).
  uint32_t nobody = 0;
  if (!CompareExchange(ref.conn_ep[conn], nobody, idx + 1)) {
    SetState(ep, PSTN_EP_FREE);
    GiveEp(s, idx);
    return Admission::kDone;
  }
  bool open, over = false, claimed = false, same = false, lies = false;
  {
    QueueGuard g(fam, *listener);
    open = LoadAcquire(listener->state) == PSTN_EP_LISTEN &&  // [E1]
           LoadRelaxed(listener->gen) == listener_gen &&
           (LoadRelaxed(listener->flags) & PSTN_EPF_SHUT_RD) == 0;
    over = open && IsOverBacklog(fam, *listener, ref);
    claimed = open && !over && Claim(c);
    // The copy was made while the client might write; from the claim on it doesn't.
    same = claimed && LoadRelaxed(c.setup.gen) == gen && LoadRelaxed(c.setup.listener_idx) == at &&
           LoadRelaxed(c.setup.listener_gen) == listener_gen;
    if (same) {
      ep.local = c.setup.server;  // loaded once
      ep.peer = c.setup.client;
      // The engine has names of anywhere, also for a listener that has just left the wire. Another
      // client of our own family has no need to lie.
      lies = !SameUuid(ref.peer, s.hdr.id) &&
             !IsCredible(fam, *listener, ref.remote, ep.peer, ep.local);
    }
    if (same && !lies) {
      BuryZombie(ref, lgr, conn);  // of the slot's last use: before the claim, perhaps of this one
      InheritKeptOptions(ep, *listener);
      ShowReuse(ep, c.ctl[1]);
      InheritBuffers(ep, *listener, c);
      StoreRelaxed(c.ctl[1].rx_notify, 0u);
      SetState(ep, PSTN_EP_EMBRYO);
      QueueAccepted(fam, *listener, idx);
    }
  }
  if (same && !lies) {
    RaisePlaces(TakenOf(fam, *listener), LoadRelaxed(listener->accept_count));
    PostEp(fam, *listener);
    return Admission::kDone;
  }
  if (claimed) Unclaim(c);              // before the slot is given up: a death leaves none claimed
  StoreRelease(ref.conn_ep[conn], 0u);  // [E4]
  SetState(ep, PSTN_EP_FREE);
  GiveEp(s, idx);
  if (over) Count(s.hdr, kCounterPeerViolations);
  if (!open || over) {
    Refuse(fam, e, at);
    return Admission::kRefused;
  }
  if (!lies) return Admission::kChanged;
  Count(s.hdr, kCounterPeerViolations);
  Refuse(fam, e, at);
  return Admission::kRefused;
}

// Of kLookBudget. A refused client has a claim to be told so, not to be first: a peer that does
// nothing else would have most of our time.
constexpr uint32_t kSynCost = 64, kRefusedCost = 192, kNoSynCost = 6;

// Whether the queue has room, whatever the count of places says: after a second in which clients
// had to wait beside a queue that was not full. Then some places are nobody's: of clients that died
// before their SYN was there, or that lie. These may go on, and say now and then that there is
// room; so from then on the queue's length is what counts for those that wait, for a minute.
constexpr uint32_t kSureMs = 900, kDoubtMs = 60'000;  // a client comes again after 1000
uint32_t NowMs() { return static_cast<uint32_t>(MonotonicCoarseNs() / 1'000'000) | 1u; }

bool SeesRoom(pstn_ep& listener, uint32_t* taken) PSTN_REQUIRES(listener.accept_lock) {
  const uint32_t since_ms = LoadRelaxed(listener.misfit_ms), now_ms = NowMs();
  const uint32_t for_ms = since_ms != 0 ? now_ms - since_ms : 0;
  if (since_ms == 0 || for_ms > kDoubtMs) StoreRelaxed(listener.misfit_ms, now_ms);
  if (for_ms < kSureMs || for_ms > kDoubtMs) return false;
  if (Defers(listener)) {  // some have their place, and are not in the queue
    AddPlace(taken);
  } else if (taken != nullptr) {
    StoreRelaxed(*taken, LoadRelaxed(listener.accept_count) + 1);
  }
  return true;
}

// Which room a client that waits may take: a place that the count says is free; that, or what the
// queue has, once all whose SYN is there are in it; or any.
enum class Room : uint8_t { kCounted, kInQueue, kAny };

bool TakeForClient(pstn_ep& listener, uint32_t* taken, Room room)
    PSTN_REQUIRES(listener.accept_lock) {
  const uint32_t backlog = LoadRelaxed(listener.backlog);
  if (taken != nullptr && TakePlace(*taken, backlog)) return true;
  if (room == Room::kInQueue && LoadRelaxed(listener.accept_count) <= backlog &&
      SeesRoom(listener, taken))
    return true;
  if (room == Room::kAny) AddPlace(taken);
  if (room != Room::kAny) StoreRelaxed(listener.waits, 1u);
  return room == Room::kAny;
}

enum class LetIn : uint8_t { kIn, kGone, kNoRoom };

// A client that waits for a place (endpoint/places/places.h) gets one, if there is one: its slot
// says SYN then, and it is to be admitted. So is one whose listener has gone, to be refused. The
// lock says that the listener is one, and places are given back under it: the thread that does so
// sees afterwards that a client waits.
LetIn TryLetIn(Family& fam, const pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn, Room room) {
  pstn_conn& c = LgrConn(lgr, conn);
  pstn_ep* const listener = EpAt(Stack(fam), LoadRelaxed(c.setup.listener_idx));
  uint32_t state = PSTN_CS_WAITS;
  uint32_t* taken = nullptr;
  bool listens = listener != nullptr;
  if (listens) {
    QueueGuard g(fam, *listener);
    listens = LoadAcquire(listener->state) == PSTN_EP_LISTEN &&  // [E1]
              LoadRelaxed(listener->gen) == LoadRelaxed(c.setup.listener_gen);
    if (listens && !IsQueued(ref)) return LetIn::kGone;  // it was not told to wait
    taken = TakenOf(fam, *listener);
    if (listens && !TakeForClient(*listener, taken, room)) return LetIn::kNoRoom;
  }
  if (!CompareExchange(c.setup.state, state, PSTN_CS_SYN)) {
    if (listens) GivePlace(taken);
    return LetIn::kGone;
  }
  if (!listens) return LetIn::kIn;
  pstn_ep none = {};
  none.conn_idx = conn;
  AnnounceData(fam.bells, {&none, nullptr, lgr, &c, 1});
  return LetIn::kIn;
}

// Clients that wait, and found no place; the oldest first, where they come in another order. The
// others come again.
struct Waiting {
  static constexpr uint32_t kMost = 8;
  struct {
    uint64_t since;
    uint32_t lgr_idx, conn;
  } at[kMost];
  uint32_t count = 0;

  void Add(uint64_t since, uint32_t lgr_idx, uint32_t conn) {
    if (count == kMost && at[kMost - 1].since <= since) return;
    uint32_t i = count < kMost ? count++ : kMost - 1;
    for (; i != 0 && at[i - 1].since > since; i--) at[i] = at[i - 1];
    at[i] = {since, lgr_idx, conn};
  }
};

// As many as there is room for: what came of the last one.
LetIn LetInAll(Family& fam, const Waiting& waiting) {
  LetIn last = LetIn::kGone;
  for (uint32_t i = 0; i < waiting.count && last != LetIn::kNoRoom; i++) {
    const auto& w = waiting.at[i];
    const LgrHere here = LgrAt(fam.view, LgrIndex(w.lgr_idx));
    if (here.base == nullptr) continue;
    last = TryLetIn(fam, *here.ref, here.base, w.conn, Room::kInQueue);
    if (last == LetIn::kIn) (void)Admit(fam, w.lgr_idx, here.base, w.conn);
  }
  return last;
}

void AdmitFrom(Family& fam, uint32_t lgr_idx, uint8_t* lgr, Waiting& waiting) {
  pstn_lgr_ref& ref = Stack(fam).lgrs.Own(LgrIndex(lgr_idx));
  TakeBits(LgrEvmap(lgr, 1, PSTN_EVMAP_SYN), ref.syn_hand, [&](uint32_t conn) {
    const uint32_t state = LoadRelaxed(LgrConn(lgr, conn).setup.state);
    if (state == PSTN_CS_WAITS) {
      const LetIn let = TryLetIn(fam, ref, lgr, conn, Room::kCounted);
      if (let == LetIn::kNoRoom) waiting.Add(SynTime(LgrConn(lgr, conn)), lgr_idx, conn);
      if (let != LetIn::kIn) return kSynCost;
    }
    if (state != PSTN_CS_WAITS && !WaitsForServer(state)) return kNoSynCost;
    Admission a = Admission::kChanged;
    for (int i = 0; i < kAdmitTries && a == Admission::kChanged; i++)
      a = Admit(fam, lgr_idx, lgr, conn);
    return a == Admission::kDone ? kSynCost : kRefusedCost;
  });
}

}  // namespace

// What came off the queue goes back to it.
static void CountPending(Family& fam, const pstn_ep& listener, pstn_ep& ep) {
  if (LoadRelaxed(ep.backlog) != kNotPending) return;
  AddPlace(PendingOf(fam, ep, listener));
  AddPlace(TakenOf(fam, listener));
  DeathFence();  // [Z1]
  StoreRelaxed(ep.backlog, 0u);
}

uint32_t DequeueEmbryo(Family& fam, pstn_ep& listener) {
  StackMap& s = Stack(fam);
  if (LoadAcquire(listener.accept_count) == 0) return PSTN_NONE;  // [E8]
  pstn_ep* ep = nullptr;
  uint32_t idx;
  {
    QueueGuard g(fam, listener);
    idx = LoadRelaxed(listener.accept_head);
    if (!PSTN_CHECK((EpAt(s, idx) != nullptr) == (listener.accept_count != 0)))
      MendChain(fam, listener);
    ep = EpAt(s, idx);
    if (ep == nullptr) return PSTN_NONE;
    FollowUsers(*ep);
    ep->owner_slot = fam.slot;  // until its fd is in the table: see RecoverConns
    TakeInHands(*ep, listener.accept_lock);
    listener.accept_head = LoadRelaxed(ep->next);
    if (listener.accept_head == PSTN_NONE) listener.accept_tail = PSTN_NONE;
    StoreRelease(listener.accept_count, listener.accept_count - 1);  // [E8]
    // A death between the two counts one client too many, and none too few.
    StoreRelaxed(ep->backlog, kNotPending);
    DeathFence();  // [Z1]
    // Under the lock: a client that finds no place says under it that some wait (AdmitWaiting).
    GivePlace(TakenOf(fam, listener));
  }
  // Another process has admitted it, perhaps from a link group that this one has not heard of.
  (void)AwaitLgr(fam, LoadRelaxed(ep->lgr_idx));
  GivePlace(PendingOf(fam, *ep, listener));
  return idx;
}

void RequeueEmbryo(Family& fam, pstn_ep& listener, uint32_t idx) {
  StackMap& s = Stack(fam);
  pstn_ep& ep = s.eps.Own(EpIndex(idx));
  QueueGuard g(fam, listener);
  CountPending(fam, listener, ep);  // before it is in the queue, where a death leaves it as it is
  DeathFence();                     // [Z1]
  StoreRelaxed(ep.next, listener.accept_head);
  listener.accept_head = idx;
  if (listener.accept_tail == PSTN_NONE) listener.accept_tail = idx;
  StoreRelease(listener.accept_count, listener.accept_count + 1);  // [E8]
  LeaveHands(ep);
}

namespace {

bool InQueue(Family& fam, const pstn_ep& listener, const pstn_ep& ep)
    PSTN_REQUIRES(listener.accept_lock) {
  const StackMap& s = Stack(fam);
  const pstn_ep* i = EpAt(s, LoadRelaxed(listener.accept_head));
  for (uint32_t guard = 0; i != nullptr && guard < s.eps.count(); guard++) {
    if (i == &ep) return true;
    i = EpAt(s, LoadRelaxed(i->next));
  }
  return false;
}

// Whether that mark is the dead process's, or a reaper's before this one.
bool IsOf(const Family& fam, uint32_t mark, uint32_t slot) {
  return mark == slot + 1 || (fam.slot == PSTN_NONE && mark == PSTN_LOCK_REAPER);
}

// A connection that the dead process of `slot` was just admitting, accepting or closing.
void RecoverConn(Family& fam, uint32_t slot, pstn_lgr_ref& ref, uint8_t* lgr, uint32_t conn,
                 pstn_ep& ep) {
  StackMap& s = Stack(fam);
  const uint32_t idx = EpIdx(s, ep);
  const auto in_hands = [&] { return IsOf(fam, HandsOf(ep), slot); };
  if ((LoadRelaxed(ep.owner_slot) != slot && !in_hands()) ||
      s.lgrs.At(LgrIndex(LoadRelaxed(ep.lgr_idx))) != &ref || LoadRelaxed(ep.conn_idx) != conn)
    return;
  uint32_t state = LoadAcquire(ep.state);  // [E1]
  pstn_ep* listener = EpAt(s, LoadRelaxed(ep.listener));
  pstn_conn& c = LgrConn(lgr, conn);
  uint32_t offered = PSTN_CS_OFFERED;
  if (ref.side == 0 && state != PSTN_EP_ESTABLISHED && state != PSTN_EP_CONNECTING &&
      CompareExchange(c.setup.state, offered, PSTN_CS_FREE)) {  // in a handshake (offer.cc)
    StoreRelease(ref.conn_ep[conn], 0u);                        // [E4]
    GiveConn(ref, conn);
  } else if (state == PSTN_EP_NEW && ref.side == 1 && in_hands()) {
    // Admitted, but in no queue: once more from the beginning.
    Unclaim(c);
    StoreRelease(ref.conn_ep[conn], 0u);  // [E4]
    SetState(ep, PSTN_EP_FREE);
    GiveEp(s, idx);
  } else if (state == PSTN_EP_EMBRYO && listener != nullptr) {
    {
      QueueGuard g(fam, *listener);
      // Another process may just have taken it off the queue: then it is in that one's hands. And
      // the listener's place may be another's.
      if (in_hands() && LoadAcquire(listener->state) == PSTN_EP_LISTEN &&  // [E1]
          LoadRelaxed(listener->gen) == LoadRelaxed(c.setup.listener_gen)) {
        if (InQueue(fam, *listener, ep)) {
          LeaveHands(ep);
        } else {
          CountPending(fam, *listener, ep);
          QueueAccepted(fam, *listener, idx);
        }
      }
    }
    PostEp(fam, *listener);
  } else if (state == PSTN_EP_CLOSED) {
    FinishClose(fam, ep);
  }
}

}  // namespace

void MendQueue(Family& fam, pstn_ep& listener) { QueueGuard g(fam, listener); }

void RecoverConns(Family& fam, uint32_t slot) {
  StackMap& s = Stack(fam);
  for (pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    const uint32_t i = s.lgrs.IndexOf(ref).word();
    uint8_t* lgr = LgrBase(fam.view, i);
    if (LoadAcquire(ref.state) == 0 || lgr == nullptr) continue;  // [L1]
    uint32_t hw =
        LoadRelaxed(LgrHdr(lgr).conns_hw);  // a look at the others would allocate their pages
    for (uint32_t c = 0; c < hw && c < PSTN_CONNS; c++) {
      const uint32_t idx = LoadAcquire(ref.conn_ep[c]);  // [E4]
      pstn_ep* const ep = idx != 0 ? EpAt(s, idx - 1) : nullptr;
      if (ep != nullptr) RecoverConn(fam, slot, ref, lgr, c, *ep);
      if (ref.side == 1 && (idx & kRefusing) != 0 && IsOf(fam, idx & ~kRefusing, slot)) {
        pstn_ep none = {};
        none.conn_idx = c;
        RecoverRefusal(fam, {&none, &ref, lgr, &LgrConn(lgr, c), 1});
      }
      // Its bit has been taken, by the dead process or by one that is about to admit it: then the
      // second finds it done.
      if (ref.side == 1 && WaitsForServer(LoadAcquire(LgrConn(lgr, c).setup.state)) &&  // [C1]
          LoadAcquire(ref.conn_ep[c]) == 0)                                             // [E4]
        (void)Admit(fam, i, lgr, c);
    }
  }
}

namespace {

// Clients that have been left where they are: of `listener`, or of all that leave some there.
void AdmitLeft(Family& fam, const pstn_ep* listener) {
  StackMap& s = Stack(fam);
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    if (LoadAcquire(ref.state) == 0 || ref.side != 1) continue;  // [L1]
    const uint32_t i = s.lgrs.IndexOf(ref).word();
    uint8_t* lgr = EnsureLgrTables(fam, i);
    if (lgr == nullptr) continue;
    const uint32_t hw = LoadRelaxed(LgrHdr(lgr).conns_hw);
    for (uint32_t c = 0; c < hw && c < PSTN_CONNS; c++) {
      const pstn_conn_setup& setup = LgrConn(lgr, c).setup;
      if (!WaitsForServer(LoadAcquire(setup.state))) continue;  // [C1]
      const pstn_ep* const at = EpAt(s, LoadRelaxed(setup.listener_idx));
      if (at == nullptr) continue;
      if (listener != nullptr ? at == listener : Defers(*at)) (void)Admit(fam, i, lgr, c);
    }
  }
}

// TCP_DEFER_ACCEPT's time has passed for one at least. A client says when it connected, and peers
// how many connections there are to be looked at: so this has a small share of the time.
constexpr uint64_t kLateRest = 20;  // of the time that a look takes, on a machine that is not busy
constexpr uint64_t kLateRestMostNs = 500'000'000;

void AdmitLate(Family& fam) {
  const uint64_t begin = MonotonicNs();
  uint64_t until = LoadRelaxed(fam.beds->deferred_ns);
  if (until == 0 || until > begin || !CompareExchange(fam.beds->deferred_ns, until, uint64_t{0}))
    return;
  AdmitLeft(fam, nullptr);
  const uint64_t end = MonotonicNs(), share = kLateRest * (end - begin);
  const uint64_t rest = end + (share < kLateRestMostNs ? share : kLateRestMostNs);
  StoreRelaxed(fam.beds->deferred_rest_ns, rest);
  until = LoadRelaxed(fam.beds->deferred_ns);
  while (until != 0 && until < rest && !CompareExchange(fam.beds->deferred_ns, until, rest)) {
  }
}

}  // namespace

namespace {

// `fn` gets the connections that wait for a place at `listener`. None of a link group in which
// clients count by themselves: who says so there was not told to, and would be in the others' way.
template <typename Fn>
void EachWaiting(Family& fam, const pstn_ep& listener, Fn fn) {
  StackMap& s = Stack(fam);
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    if (LoadAcquire(ref.state) == 0 || ref.side != 1 || !IsQueued(ref)) continue;  // [L1]
    const uint32_t i = s.lgrs.IndexOf(ref).word();
    uint8_t* lgr = EnsureLgrTables(fam, i);
    const uint32_t hw = lgr != nullptr ? LoadRelaxed(LgrHdr(lgr).conns_hw) : 0;
    for (uint32_t c = 0; c < hw && c < PSTN_CONNS; c++) {
      const pstn_conn_setup& setup = LgrConn(lgr, c).setup;
      if (LoadAcquire(setup.state) == PSTN_CS_WAITS &&  // [C1]
          EpAt(s, LoadRelaxed(setup.listener_idx)) == &listener)
        fn(ref, i, lgr, c);
    }
  }
}

// Whether some did. Where none does, the count and the queue fit.
bool SayWhetherWait(Family& fam, pstn_ep& listener, uint32_t some) {
  QueueGuard g(fam, listener);
  if (LoadAcquire(listener.state) != PSTN_EP_LISTEN) return false;  // [E1]
  return Exchange(listener.waits, some) != 0;
}

void NoneWaits(Family& fam, pstn_ep& listener) {
  QueueGuard g(fam, listener);
  const uint32_t since_ms = LoadRelaxed(listener.misfit_ms);
  if (LoadAcquire(listener.state) == PSTN_EP_LISTEN && since_ms != 0 &&  // [E1]
      LoadRelaxed(listener.waits) == 0 && NowMs() - since_ms < kSureMs)
    StoreRelaxed(listener.misfit_ms, 0u);
}

}  // namespace

// Those that have waited longest, as many as there are places.
void AdmitWaiting(Family& fam, pstn_ep& listener) {
  if (LoadRelaxed(listener.waits) == 0) [[likely]]
    return;
  if (!SayWhetherWait(fam, listener, 0)) return;
  for (int gone = 0; gone < kAdmitTries;) {
    Waiting waiting;
    EachWaiting(fam, listener, [&](const pstn_lgr_ref&, uint32_t idx, uint8_t* lgr, uint32_t c) {
      waiting.Add(SynTime(LgrConn(lgr, c)), idx, c);
    });
    if (waiting.count == 0) return NoneWaits(fam, listener);
    const LetIn last = LetInAll(fam, waiting);
    if (last == LetIn::kNoRoom) return;  // it has said that some wait
    if (last == LetIn::kGone) gone++;
  }
  (void)SayWhetherWait(fam, listener, 1);
}

void EndWaiting(Family& fam, pstn_ep& listener) {
  if (LoadRelaxed(listener.waits) == 0) return;
  EachWaiting(fam, listener, [&](const pstn_lgr_ref& ref, uint32_t i, uint8_t* lgr, uint32_t c) {
    if (TryLetIn(fam, ref, lgr, c, Room::kAny) == LetIn::kIn) (void)Admit(fam, i, lgr, c);
  });
}

void AdmitDeferred(Family& fam, pstn_ep& listener) {
  if (Exchange(listener.defer_accept, 0u) != 0) AdmitLeft(fam, &listener);
}

void AdmitSyns(Family& fam, uint32_t looks) {
  // A server that has always something to do, and never sleeps, comes back to posternd as well.
  if (LoadRelaxed(fam.ctl_fd) < 0 && fam.beds != nullptr && !HoldsEngine()) [[unlikely]]
    CtlReconnect(fam);
  if (LoadRelaxed(fam.attend) != 0) [[unlikely]]
    AttendListeners(fam);
  if (fam.beds != nullptr && LoadRelaxed(fam.beds->deferred_ns) != 0) [[unlikely]]
    AdmitLate(fam);
  PayRings(fam, Pay::kIfDue);
  StackMap& s = Stack(fam);
  Waiting waiting;
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    if (LoadAcquire(ref.state) == 0 || ref.side != 1) continue;  // [L1]
    const uint32_t i = s.lgrs.IndexOf(ref).word();
    uint8_t* lgr = LgrBase(fam.view, i);
    if (lgr == nullptr) lgr = EnsureLgrTables(fam, i);
    if (lgr == nullptr) continue;
    const uint64_t& posted = LgrEvmap(lgr, 1, PSTN_EVMAP_SYN).summary;
    for (uint32_t n = 0; n < looks && LoadRelaxed(posted) != 0; n++)
      AdmitFrom(fam, i, lgr, waiting);
  }
  if (waiting.count != 0) [[unlikely]]
    (void)LetInAll(fam, waiting);
}

}  // namespace postern
