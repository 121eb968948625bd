// SPDX-License-Identifier: Apache-2.0
// wire_streams.cc - the engine's ends of rings: what the program has written, room for what came.
//
// All of it runs under the engine's lock. The locks of the engine's own endpoints are taken as by
// any other user of a ring (a process that looks after idle rings is one).
#include <cerrno>
#include <cstring>

#include "endpoint/endpoint.h"
#include "endpoint/marks.h"
#include "endpoint/places/places.h"
#include "endpoint/posts.h"
#include "endpoint/state.h"
#include "family/family.h"
#include "family/telling.h"
#include "offhost/datagram.h"
#include "offhost/wire.h"
#include "offhost/wire_here.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "peer/pair.h"
#include "smcd/ring_ahead.h"
#include "state/bits.h"
#include "stream/urgent.h"

namespace postern {
namespace {

using stack::Conn;

// The engine's end. False: it is gone, which only happens on the way out.
bool EndOf(Family& fam, const Conn& c, ConnEnd& e) {
  pstn_ep* ep = EpAt(Stack(fam), c.owner);
  return ep != nullptr && (LoadRelaxed(ep->flags) & PSTN_EPF_ENGINE) != 0 && Resolve(fam, *ep, e);
}
// The program's end of the same connection, if it has one now.
pstn_ep* ProgramOf(Family& fam, const ConnEnd& e) {
  StackMap& s = Stack(fam);
  const uint32_t other = e.ep->listener;  // the link group as the other side has it
  const pstn_lgr_ref* const ref = s.lgrs.At(LgrIndex(other));
  if (ref == nullptr) return nullptr;
  const uint32_t idx = LoadAcquire(ref->conn_ep[e.ep->conn_idx % PSTN_CONNS]);  // [E4]
  return idx == 0 ? nullptr : EpAt(s, idx - 1);
}

RingCursor In(const tcp::Cursor& at) { return {at.ring, at.off, at.done}; }
tcp::Cursor Out(const RingCursor& at) { return {at.ring, at.off, at.done}; }

// Link groups of the stack with itself; each is there twice, once for each side.
template <typename Fn>
void EachSelf(Family& fam, Fn fn) {
  StackMap& s = Stack(fam);
  for (pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    const uint32_t i = s.lgrs.IndexOf(ref).word();
    if (LoadAcquire(ref.state) == 0 || !SameUuid(ref.peer, s.hdr.id)) continue;  // [L1]
    uint8_t* lgr = LgrBase(fam.view, i);
    if (lgr == nullptr) lgr = EnsureLgr(fam, i);  // without a wait under the engine's lock
    if (lgr != nullptr) fn(ref, lgr);
  }
}

constexpr uint32_t kPiece = 1448;  // what segments usually carry

// The receive buffer that the listener's program has asked for; 0: it has not.
uint32_t BufferOf(const pstn_ep* listener) {
  return listener == nullptr ? 0 : uint32_t{LoadRelaxed(listener->rcv_lines)} * PSTN_REC_ALIGN;
}

// From what comes next to behind the urgent byte.
uint32_t UrgentAhead(const tcp::Tcb& t) { return static_cast<uint32_t>(t.rcv_up - t.rcv_nxt); }

// The urgent byte among what is to be delivered is marked before it is there, as any writer does
// (urgent.cc). A pointer that runs ahead of its byte is no news for the program: with Linux the
// byte comes with it. Under tx.lock.
void MarkUrgentIn(const Conn& c, const ConnEnd& e, const uint8_t* data, uint32_t bytes)
    PSTN_REQUIRES(e.ep->tx.lock) {
  const uint32_t end = UrgentAhead(c.tcb);
  if (static_cast<int32_t>(end) <= 0 || end > bytes) return;
  const uint64_t at = e.ep->tx.bytes + end;
  StoreRelease(e.ctl().urgent,  // [R4]
               Mark::After(LoadRelaxed(e.ctl().urgent), at, data[end - 1]));
}

// The mark of the program's urgent byte is there before the byte (urgent.cc): a reader that has
// seen the data sees it.
void MarkUrgentOut(Conn& c, const ConnEnd& e) {
  const uint64_t word = LoadAcquire(e.peer_ctl().urgent);  // [R4]
  const uint64_t done = LoadRelaxed(e.ep->rx.bytes), end = Mark::Of(word, done).end;
  constexpr uint64_t kMost = 1u << 30;  // sequence numbers would not tell what is ahead
  if (word != 0 && end > done && end - done <= kMost)
    tcp::MarkUrgent(c.tcb, static_cast<uint32_t>(end - done));
}

// The last write with MSG_MORE or MSG_EOR.
void TakeMark(Conn& c, const ConnEnd& e) {
  const uint64_t mark = LoadRelaxed(e.peer_ctl().more), end = mark >> 1;
  const uint64_t done = LoadRelaxed(e.ep->rx.bytes);
  constexpr uint64_t kMost = 1u << 30;  // as above
  if ((mark & 1) == 0) {
    c.tcb.flags |= tcp::kMoreOut;
  } else if (end > done && end - done <= kMost) {
    tcp::MarkRecord(c.tcb, static_cast<uint32_t>(end - done));
  }
}

}  // namespace

tcp::Cursor RingStreams::Begin(Conn& c) {
  ConnEnd e;
  return EndOf(fam_, c, e) ? Out(RingBegin(e)) : tcp::Cursor{};
}

uint32_t RingStreams::Available(Conn& c, const tcp::Cursor& at, uint32_t limit) {
  ConnEnd e;
  const uint32_t there = EndOf(fam_, c, e) ? RingAhead(e, In(at), limit) : 0;
  if (there != 0) {
    MarkUrgentOut(c, e);
    if (LoadRelaxed(e.peer_ctl().more) != 0) [[unlikely]]
      TakeMark(c, e);
  }
  return there;
}

// The mark is there before the last byte is, whose record RingAhead() has seen.
bool RingStreams::MoreFollows(Conn& c, uint32_t ahead) {
  ConnEnd e;
  return EndOf(fam_, c, e) &&
         LoadRelaxed(e.peer_ctl().more) == (LoadRelaxed(e.ep->rx.bytes) + ahead) << 1;
}

tcp::Cursor RingStreams::Skip(Conn& c, const tcp::Cursor& at, uint32_t bytes) {
  ConnEnd e;
  RingCursor to = In(at);
  if (EndOf(fam_, c, e)) RingSkip(e, to, bytes);
  return Out(to);
}

bool RingStreams::Copy(Conn& c, tcp::Cursor& at, uint32_t bytes, uint8_t* to,
                       wire::Checksummer& sum) {
  ConnEnd e;
  if (!EndOf(fam_, c, e)) return false;
  RingCursor from = In(at);
  while (bytes != 0) {
    const uint8_t* data;
    const uint32_t n = RingPiece(e, from, bytes, &data);
    if (n == 0) return false;
    sum.Copy(to, data, n);
    to += n;
    bytes -= n;
  }
  at = Out(from);
  return true;
}

// What is not acknowledged lies in the program's ring, besides what is not sent: SO_SNDBUF counts
// both, TCP_NOTSENT_LOWAT does not.
void RingStreams::Release(Conn& c, uint32_t bytes) {
  ConnEnd e;
  if (!EndOf(fam_, c, e)) return;
  const tcp::Tcb& t = c.tcb;
  if (t.settings.notsent_lowat != 0) [[unlikely]]
    StoreRelaxed(e.ctl().rcv_room,
                 kLastSegmentBytes + static_cast<uint32_t>(t.snd_nxt - t.snd_una));
  Lock(e.ep->rx.lock);
  (void)RingRead(e, nullptr, bytes, ReadMode::kDiscard);
  ReturnSpace(fam_.bells, e);
  Unlock(e.ep->rx.lock);
}

// As Look() has found it: a FIN that is seen later has data before it that were not.
bool RingStreams::Ended(Conn& c) {
  const pstn_ep* ep = EpAt(Stack(fam_), c.owner);
  return ep == nullptr || (LoadRelaxed(ep->flags) & PSTN_EPF_SHUT_RD) != 0;
}

uint32_t RingStreams::Room(Conn& c) {
  ConnEnd e;
  constexpr uint32_t kFirstWindow = 65535;
  if (c.owner == PSTN_NONE) return std::min(kFirstWindow, RoomMax(c));
  if (!EndOf(fam_, c, e)) return 0;
  const RingLimits limits = RingLimitsFor(e, fam_.limits);
  Lock(e.ep->tx.lock);
  uint32_t room = RingRoom(e, limits, kPiece);
  // The program gives some back: then TCP may have to say so.
  if (room < RingRoomMax(e, limits, kPiece) / 2 &&
      (LoadRelaxed(e.ctl().tx_wait) & PSTN_TXW_POST) == 0) {
    FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
    FenceAfterLocked();  // [F1] against AnnounceSpace
    room = RingRoom(e, limits, kPiece);
  }
  Unlock(e.ep->tx.lock);
  return room;
}

const pstn_ep* RingStreams::ListenerOf(const Conn& c) const {
  if (c.listener >= stack::kListeners) return nullptr;
  return EpAt(Stack(fam_), fam_.engine->state().listeners[c.listener].owner);
}

// In its handshake a connection has no ring: its listener's receive buffer counts.
uint32_t RingStreams::RoomMax(Conn& c) {
  if (c.owner == PSTN_NONE) {
    const uint32_t most = RingBytes(fam_.limits.class_max) / 8 * 7, said = BufferOf(ListenerOf(c));
    return said != 0 ? std::min(most, RingPayloadFor(said)) : most;
  }
  ConnEnd e;
  return EndOf(fam_, c, e) ? RingRoomMax(e, RingLimitsFor(e, fam_.limits), kPiece) : 0;
}

uint32_t RingStreams::Deliver(Conn& c, const uint8_t* data, uint32_t bytes) {
  const iovec iov = {const_cast<uint8_t*>(data), bytes};
  return Write(c, &iov, 1);
}

uint32_t RingStreams::DeliverRun(Conn& c, const tcp::SegmentIn& run, uint32_t skip,
                                 uint32_t bytes) {
  iovec iov[kViBatchMax];
  uint32_t count = 0;
  (void)tcp::EachPart(run, skip, bytes, [&](const uint8_t* data, uint32_t n) {
    iov[count++ % kViBatchMax] = {const_cast<uint8_t*>(data), n};
    return n;
  });
  return Write(c, iov, count);
}

// Urgent data come alone: the first of `iov` is all.
uint32_t RingStreams::Write(Conn& c, const iovec* iov, uint32_t count) {
  ConnEnd e;
  if (!EndOf(fam_, c, e)) return 0;
  IovCursor from(iov, count);
  const size_t bytes = from.left();
  NoteNews(fam_.bells);
  Lock(e.ep->tx.lock);
  if ((c.tcb.flags & tcp::kUrgentIn) != 0) [[unlikely]]
    MarkUrgentIn(c, e, static_cast<const uint8_t*>(iov[0].iov_base),
                 static_cast<uint32_t>(iov[0].iov_len));
  const size_t taken = RingWrite(e, from, RingLimitsFor(e, fam_.limits), Growth::kNow);
  Unlock(e.ep->tx.lock);
  if (taken != 0) (void)AnnounceUnlocked(fam_.bells, e);
  // The program frees some: then TCP has to say so.
  if (taken < bytes) {
    FetchOr(e.ctl().tx_wait, PSTN_TXW_POST);
    FenceAfterLocked();  // [F1] before Room() looks, against AnnounceSpace
  }
  return static_cast<uint32_t>(taken);
}

void RingStreams::Report(Conn& c, tcp::Event event, int error) {
  ConnEnd e;
  if (!EndOf(fam_, c, e)) return;
  NoteNews(fam_.bells);
  pstn_ep* program = ProgramOf(fam_, e);
  switch (event) {
    case tcp::Event::kConnected:
      if (program != nullptr) WireConnected(fam_, *program, *e.conn, 0);
      break;
    case tcp::Event::kFin:
      FetchOr(e.ep->flags, PSTN_EPF_SHUT_WR);
      FetchOr(e.ctl().flags, PSTN_CF_FIN);
      AnnounceData(fam_.bells, e);
      break;
    case tcp::Event::kUrgent:  // where no program reads it outruns the reset (RecvUrgent)
      if ((c.tcb.flags & tcp::kNoReader) == 0) break;
      Lock(e.ep->tx.lock);
      StoreRelease(e.ctl().urgent, Mark::After(0, e.ep->tx.bytes + UrgentAhead(c.tcb), 0));  // [R4]
      Unlock(e.ep->tx.lock);
      break;
    case tcp::Event::kReset:
      if (program != nullptr && error != ECONNRESET)
        StoreRelaxed(program->error, static_cast<uint32_t>(error));
      FetchOr(e.ctl().flags, PSTN_CF_RST | PSTN_CF_CLOSED);
      if (program != nullptr) WireConnected(fam_, *program, *e.conn, error);
      AnnounceData(fam_.bells, e);
      AnnounceSpace(fam_.bells, e);
      break;
    case tcp::Event::kClosed:
      if (c.filter != 0) WireUnfilter(fam_, c.filter_vi, c.filter, Unfilter::kLater);
      c.filter = 0;
      // In our hands before the connection forgets it, so that one of the two ends it if we die.
      TakeInHands(*e.ep, e.ep->item_lock);
      c.owner = PSTN_NONE;
      DeathFence();  // [Z1]
      CloseEp(fam_, *e.ep);
      break;
    default:
      break;
  }
}

namespace {

void LearnSettings(const pstn_ep& program, Conn& c) {
  tcp::Settings& s = c.tcb.settings;
  const uint32_t flags = LoadRelaxed(program.flags);
  s.flags = ((flags & PSTN_EPF_NODELAY) != 0 ? tcp::kSetNoDelay : 0) |
            ((flags & PSTN_EPF_CORK) != 0 ? tcp::kSetCork : 0) |
            ((flags & PSTN_EPF_KEEPALIVE) != 0 ? tcp::kSetKeepalive : 0);
  s.keepalive_idle_s = LoadRelaxed(program.keepidle);
  s.keepalive_interval_s = LoadRelaxed(program.keepintvl);
  s.keepalive_probes = LoadRelaxed(program.keepcnt);
  s.user_timeout_ms = LoadRelaxed(program.user_timeout);
  // Where SO_SNDBUF is less, that is what bounds the program.
  const uint32_t lowat = LoadRelaxed(program.notsent_lowat),
                 budget = LoadRelaxed(program.tx.budget);
  s.notsent_lowat = lowat != 0 && budget == RingLines(lowat) ? lowat : 0;
}

}  // namespace

uint32_t RingStreams::Look(Conn& c) {
  ConnEnd e;
  if (!EndOf(fam_, c, e)) return stack::kEndAborted;
  const uint32_t flags = LoadAcquire(e.peer_ctl().flags);  // [C2]
  // A thread that sees the flag sees the data that was written before.
  if ((flags & (PSTN_CF_FIN | PSTN_CF_CLOSED)) != 0) FetchOr(e.ep->flags, PSTN_EPF_SHUT_RD);
  const pstn_ep* program = ProgramOf(fam_, e);
  if (program != nullptr) LearnSettings(*program, c);
  if (c.tcb.settings.notsent_lowat == 0 && LoadRelaxed(e.ctl().rcv_room) != kLastSegmentBytes)
    StoreRelaxed(e.ctl().rcv_room, kLastSegmentBytes);
  return ((flags & PSTN_CF_RST) != 0 ? stack::kEndAborted : 0) |
         ((flags & (PSTN_CF_CLOSED | PSTN_CF_RD_SHUT)) != 0 ? stack::kEndClosed : 0);
}

bool RingStreams::Listens(const stack::Listener& l) {
  const pstn_ep* ep = EpAt(Stack(fam_), l.owner);
  // [E1]
  return ep != nullptr && LoadAcquire(ep->state) == PSTN_EP_LISTEN && ep->gen == l.owner_gen;
}

// As Linux keeps it: as the number of SYN-ACKs that could go out meanwhile, the next of them after
// one second, then two, then four, two minutes at most. The time of the last one is what counts.
uint32_t RingStreams::DeferSeconds(const stack::Listener& l) {
  constexpr int64_t kFirst = 1, kPauseMax = 120, kCountMax = 255;
  const pstn_ep* ep = EpAt(Stack(fam_), l.owner);
  const int64_t asked = ep != nullptr ? static_cast<int32_t>(LoadRelaxed(ep->defer_accept)) : 0;
  if (asked <= 0) return 0;
  int64_t pause = kFirst, until = kFirst;
  for (int64_t count = 1; until < asked && count < kCountMax; count++) {
    pause = pause * 2 < kPauseMax ? pause * 2 : kPauseMax;
    until += pause;
  }
  return static_cast<uint32_t>(until);
}

namespace {

// Whether there is a slot for one more client. posternd is asked for a link group long before there
// is none; while it does not answer, SYNs are dropped, as when the accept queue is full.
bool HasSlots(Family& fam) {
  constexpr uint32_t kFew = 512, kReserve = 64;  // of handshakes that are under way
  constexpr uint64_t kAgainNs = 1'000'000'000;
  uint64_t& asked_ns = fam.wire->links_asked_ns;
  uint32_t free = 0;
  const uint32_t known = LinksKnown(fam, Stack(fam).hdr.id, &free);
  const uint64_t now = MonotonicCoarseNs();
  if (free < kFew && known < PSTN_PAIR_LGRS && now - asked_ns > kAgainNs) {
    asked_ns = now;
    stack::Errand errand = {};
    errand.kind = static_cast<uint32_t>(stack::ErrandKind::kLinks);
    (void)stack::PutErrand(fam.engine->state().errands, errand);
  }
  return free > kReserve;
}

}  // namespace

bool RingStreams::MayAccept(const stack::Listener& l) {
  if (!Listens(l)) return false;
  const pstn_ep* ep = EpAt(Stack(fam_), l.owner);
  // Those in its queue, and those that are on their way there.
  const uint32_t* const taken = TakenIn(fam_.view, kOwnQueues, l.owner);
  const uint32_t waiting = LoadRelaxed(taken != nullptr ? *taken : ep->accept_count);
  return waiting <= LoadRelaxed(ep->backlog) && HasSlots(fam_);
}

// The engine becomes the client of the listener, in a link group of the stack with itself.
bool RingStreams::Accept(Conn& c, uint32_t conn_idx, const stack::Listener& l) {
  StackMap& s = Stack(fam_);
  const pstn_ep* listener = EpAt(s, l.owner);
  if (listener == nullptr) return false;
  ConnSlot slot;
  if (TakeConnSlot(fam_, s.hdr.id, slot, MayAsk::kNo) != kReasonNone) return false;
  const uint32_t idx = NewEp(fam_, listener->family);
  if (idx == PSTN_NONE) {
    GiveConn(s.lgrs.Own(LgrIndex(slot.lgr_idx)), slot.conn);
    return false;
  }
  pstn_ep& ep = s.eps.Own(EpIndex(idx));
  FetchOr(ep.flags, PSTN_EPF_ENGINE | PSTN_EPF_NODELAY);
  ep.owner_slot = PSTN_NONE;  // no process's in particular: the holder of the engine's lock has it
  FillConn(fam_, ep, slot, l.owner, l.owner_gen, c.local, c.peer);
  ep.listener = OtherSide(fam_, slot.lgr_idx);
  StoreRelaxed(ep.accept_head, conn_idx);  // an engine's end has no accept queue
  pstn_conn& conn = LgrConn(slot.lgr, slot.conn);
  UseWaiter(fam_, slot.lgr, 0, PSTN_EVMAP_WIRE);
  StoreRelaxed(conn.ctl[0].rcv_room, kLastSegmentBytes);
  StoreRelaxed(conn.ctl[1].rcv_room, BufferOf(listener));    // until accept() says it
  StoreRelease(conn.ctl[0].rx_notify, PSTN_EVMAP_WIRE + 1);  // [C3]
  NoteNews(fam_.bells);
  SetState(ep, PSTN_EP_ESTABLISHED);
  StoreRelaxed(fam_.engine->state().settings_used, 1u);
  c.owner = idx;
  LeaveHands(ep);  // the next holder of the engine's lock finds it there
  AddPlace(TakenAt(fam_, s.lgrs.Own(LgrIndex(slot.lgr_idx)), slot.lgr, l.owner));
  StoreRelease(conn.setup.state, PSTN_CS_SYN);  // [C1]
  AnnounceSyn(fam_.bells, slot.lgr, slot.conn);
  return true;
}

void RingStreams::Collect(stack::Engine& engine) {
  StackMap& s = Stack(fam_);
  EachSelf(fam_, [&](pstn_lgr_ref& ref, uint8_t* lgr) {
    TakeBits(LgrEvmap(lgr, ref.side, PSTN_EVMAP_WIRE), ref.wire_hand, [&](uint32_t conn) {
      engine.AssertHeld();
      const uint32_t ep_idx = LoadAcquire(ref.conn_ep[conn]);  // [E4]
      const pstn_ep* const ep = ep_idx != 0 ? EpAt(s, ep_idx - 1) : nullptr;
      if (ep == nullptr) return 1u;
      if ((LoadRelaxed(ep->flags) & PSTN_EPF_ENGINE) != 0)
        engine.Wake(LoadRelaxed(ep->accept_head));
      return 1u;
    });
  });
}

bool RingStreams::HasNews() {
  bool news = false;
  EachSelf(fam_, [&](const pstn_lgr_ref& ref, uint8_t* lgr) {
    news = news || LoadRelaxed(LgrEvmap(lgr, ref.side, PSTN_EVMAP_WIRE).summary) != 0;
  });
  return news;
}

bool RingStreams::Reaches() {
  const StackMap& s = Stack(fam_);
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    const uint32_t i = s.lgrs.IndexOf(ref).word();
    if (LoadAcquire(ref.state) == 0 || LgrBase(fam_.view, i) != nullptr) continue;  // [L1]
    if (SameUuid(ref.peer, s.hdr.id) && EnsureLgr(fam_, i) == nullptr) return false;
  }
  return true;
}

void RingStreams::DatagramCame(const stack::DatagramSocket& s) {
  pstn_ep* ep = EpAt(Stack(fam_), s.owner);
  if (ep != nullptr && LoadRelaxed(ep->gen) == s.owner_gen) PostEp(fam_, *ep);
}

void RingStreams::DatagramsLeave(stack::DatagramSocket& s) {
  for (uint32_t vi = 0; vi < kAreaVis; vi++)
    if (const uint32_t filter = Exchange(s.filter[vi], 0u); filter != 0)
      WireUnfilter(fam_, vi, filter, Unfilter::kLater);
  pstn_ep* ep = EpAt(Stack(fam_), s.owner);
  if (ep == nullptr || LoadRelaxed(ep->gen) != s.owner_gen ||
      LoadRelaxed(ep->reason) != kReasonNone)
    return;
  StoreRelaxed(ep->reason, kReasonPathMtu);  // no other thread has asked for it
  NoteFallback(fam_, kReasonPathMtu, -1);
}

}  // namespace postern
