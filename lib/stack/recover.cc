// SPDX-License-Identifier: Apache-2.0
// recover.cc - the engine's state after its holder has died in the middle of something.
//
// What is believed is what a connection itself says: that it is in use, its names, its chains of
// segments as far as tcp::Validate() finds them sound. The one that the dead holder was at, and any
// that is not sound, is given up: its program is told, its peer gets a RST by the next segment it
// sends, for which it is asked. All else is computed anew: hash, wheel, queue, free lists, the
// owner of each frame. It may be interrupted by the next death at any point: the one after that
// does the same again.
#include <cerrno>
#include <cstring>

#include "stack/engine.h"
#include "tcp/validate.h"

namespace postern::stack {
namespace {

// Marks in `prev` of the entry: which of the two tables' entries are named by a sound connection.
constexpr uint32_t kMaxChain = 65536;

}  // namespace

void Engine::Recover(uint64_t now) {
  w_.counters.taken_over++;
  now_ns = now;
  took_count_ = 0;
  run_.count = 0;
  closed_ = false;
  memset(out_count_, 0, sizeof out_count_);
  for (Vi* vi : vi_)
    if (vi != nullptr) vi->Recover();
  area_.ReclaimBegin();
  WheelFormat(w_.wheel, now);
  memset(w_.hash, 0, sizeof w_.hash);
  memset(w_.port_head, 0, sizeof w_.port_head);
  w_.ready_head = w_.ready_tail = 0;
  w_.conn_free = w_.listener_free = 0;
  w_.conn_count = w_.embryo_count = 0;
  // What was incomplete is lost, as it may be on the way. Its frames have no owner: they are found.
  ReassemblyInit(w_.reassembly, w_.reassembly.secret);
  ForgetLearned();  // an entry may be half written; routers say it again
  const uint32_t at = LoadRelaxed(w_.current);

  // Everything is free that no sound connection names. The tables' free lists: chained below.
  if (w_.tx_hw > kTxSegs) w_.tx_hw = kTxSegs;
  if (w_.rx_hw > kRxSegs) w_.rx_hw = kRxSegs;
  if (w_.conn_hw > kConns) w_.conn_hw = kConns;
  if (w_.listener_hw > kListeners) w_.listener_hw = kListeners;
  static_assert(kTxSegs % 64 == 0 && kRxSegs % 64 == 0);
  memset(w_.tx_named, 0, sizeof w_.tx_named);
  memset(w_.rx_named, 0, sizeof w_.rx_named);

  for (uint32_t i = 0; i < w_.listener_hw; i++) {
    Listener& l = w_.listeners[i];
    if (l.use == 0) {
      l.next = w_.listener_free;
      w_.listener_free = i + 1;
      continue;
    }
    l.embryos = 0;
    if (l.use != kListenerUsed) continue;
    uint32_t& head = w_.port_head[l.local.port % kPortSlots];
    l.next = head;
    head = i + 1;
  }

  for (uint32_t i = 0; i < w_.conn_hw; i++) {
    Conn& c = w_.conns[i];
    c.flags &= ~kReady;
    c.wheel.slot = 0;
    if (c.use != kConnUsed) {
      c.use = kConnFree;
      c.next = w_.conn_free;
      w_.conn_free = i + 1;
      continue;
    }
    w_.conn_count++;
    Enter(i);
    const bool given_up =  // by an earlier one
        (c.flags & kDetached) != 0 && tcp::StateOf(c.tcb) != tcp::State::kTimeWait;
    const bool sound = at != i + 1 && !given_up && ClaimSegments(c);
    if ((c.flags & kEmbryo) != 0) {
      w_.embryo_count++;
      if (c.listener < kListeners) w_.listeners[c.listener].embryos++;
    }
    if (!sound) {
      GiveUp(c);
      continue;
    }
    Timers().Set(i, tcp::NextDeadline(c.tcb));
    Wake(i);
  }

  w_.tx_free = w_.rx_free = 0;
  for (uint32_t i = 0; i < w_.tx_hw; i++)
    if ((w_.tx_named[i / 64] >> (i % 64) & 1) == 0) GiveTxSeg(i);
  for (uint32_t i = 0; i < w_.rx_hw; i++)
    if ((w_.rx_named[i / 64] >> (i % 64) & 1) == 0) GiveRxSeg(i);
  datagrams_.Recover();
  (void)area_.ReclaimEnd();
  LetGo();
}

// Its peer may have nothing to send, by which it would find out: it is asked. To send a RST is not
// enough: how much of what was under way has arrived is not known, and one segment can be lost.
void Engine::GiveUp(Conn& c) {
  const uint32_t idx = IdxOf(c);
  tcp::Strip(c.tcb, now_ns);  // its chains are not to be walked any more
  c.path.version = 0;
  c.path_mss = 0;
  w_.counters.lost_connections++;
  if ((c.flags & (kEmbryo | kOrphan | kDetached)) == 0) {
    streams_.Report(c, tcp::Event::kReset, ECONNRESET);
    streams_.Report(c, tcp::Event::kClosed, ECONNRESET);
  }
  if (tcp::StateOf(c.tcb) == tcp::State::kClosed) return FreeConn(idx);
  c.owner = PSTN_NONE;
  c.flags = (c.flags & (kEmbryo | kMayFragment)) | kDetached;
  Leave(idx);  // it takes no segments: they find no connection
  Timers().Set(idx, tcp::NextDeadline(c.tcb));
}

// Whether the connection's own account is sound and no other's. What it names is its own then.
bool Engine::ClaimSegments(Conn& c) {
  if (tcp::Validate(c.tcb, *this) != nullptr) return false;
  uint32_t steps = 0;
  for (uint32_t i = c.tcb.tx_head; i != tcp::kNone; i = w_.tx[i].next) {
    if (i >= w_.tx_hw || ++steps > kMaxChain || (w_.tx_named[i / 64] >> (i % 64) & 1) != 0)
      return false;
    w_.tx_named[i / 64] |= 1ull << (i % 64);
  }
  for (uint32_t i = c.tcb.rx_head; i != tcp::kNone; i = w_.rx[i].next) {
    if (i >= w_.rx_hw || ++steps > kMaxChain || (w_.rx_named[i / 64] >> (i % 64) & 1) != 0)
      return false;
    w_.rx_named[i / 64] |= 1ull << (i % 64);
    if (w_.rx[i].packet != tcp::kNone && !area_.Claim(w_.rx[i].packet)) return false;
  }
  return true;
}

}  // namespace postern::stack
