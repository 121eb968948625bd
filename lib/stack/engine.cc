// SPDX-License-Identifier: Apache-2.0
// engine.cc - one round of work: completed frames, packets, news of programs, timers, packets out.
#include "stack/engine.h"

#include <cerrno>
#include <cstring>

#include "base/siphash.h"

namespace postern::stack {

void FormatWire(WireState& w, const pstn_uuid& stack, const uint64_t entropy[4], uint64_t now_ns) {
  w.version = kWireVersion;
  w.size_bytes = sizeof w;
  w.stack = stack;
  w.random[0] = entropy[0];
  w.random[1] = entropy[1];
  w.secret[0] = entropy[2];
  w.secret[1] = entropy[3];
  w.settings = {1, tcp::kChallengeAcksDefault, 2, 0, {}};
  WheelFormat(w.wheel, now_ns);
  ReassemblyInit(w.reassembly, entropy[2] ^ ~entropy[3]);
  udp::InitPorts(w.datagrams.ports, {entropy[2] ^ entropy[1], entropy[3] ^ entropy[0]});
  StoreRelease(w.magic, kWireMagic);  // [G4]
}

// Peers see some of the results (ip_id, flow labels) and must not learn of others (source ports).
uint64_t Engine::Random() {
  const uint64_t turn = w_.random_turn++;
  return SipHash24({w_.random[0], w_.random[1]},
                   {reinterpret_cast<const uint8_t*>(&turn), sizeof turn});
}

bool Engine::MayChallenge() {
  const uint32_t limit = w_.settings.tcp_challenge_ack_limit;
  if (tcp::ChallengeAllowed(w_.challenges, now_ns, limit < INT32_MAX ? limit : ~0u, Random()))
    return true;
  w_.counters.challenges_limited++;
  return false;
}

// ---- segments under way: free lists whose links are the entries' own `next`, + 1
uint32_t Engine::TakeTxSeg() {
  if (w_.tx_free != 0 && w_.tx_free <= kTxSegs) {
    const uint32_t idx = w_.tx_free - 1;
    w_.tx_free = w_.tx[idx].next;
    return idx;
  }
  if (w_.tx_hw < kTxSegs) return w_.tx_hw++;
  w_.counters.no_segment++;
  return PSTN_NONE;
}
void Engine::GiveTxSeg(uint32_t idx) {
  if (idx >= kTxSegs) return;
  w_.tx[idx].next = w_.tx_free;
  w_.tx_free = idx + 1;
}
uint32_t Engine::TakeRxSeg() {
  if (w_.rx_free != 0 && w_.rx_free <= kRxSegs) {
    const uint32_t idx = w_.rx_free - 1;
    w_.rx_free = w_.rx[idx].next;
    return idx;
  }
  if (w_.rx_hw < kRxSegs) return w_.rx_hw++;
  w_.counters.no_segment++;
  return PSTN_NONE;
}
void Engine::GiveRxSeg(uint32_t idx) {
  if (idx >= kRxSegs) return;
  w_.rx[idx].next = w_.rx_free;
  w_.rx_free = idx + 1;
}

bool Engine::Pending() {
  for (uint32_t v = 0; v < vi_end_; v++)
    if (vi_[v] != nullptr && vi_[v]->Pending()) return true;
  return false;
}

// ---------------------------------------------------------------- connections

// A quarter of the frames has to stay for what the drivers receive into.
bool Engine::Keep(uint32_t packet) {
  return area_.FreeCount() > area_.frame_count() / 4 && area_.Keep(packet);
}

void Engine::Wake(uint32_t conn) {
  if (conn >= kConns) return;
  Conn& c = w_.conns[conn];
  if (c.use != kConnUsed || (c.flags & kReady) != 0) return;
  c.flags |= kReady;
  c.next = 0;
  if (w_.ready_tail != 0 && w_.ready_tail <= kConns)
    w_.conns[w_.ready_tail - 1].next = conn + 1;
  else
    w_.ready_head = conn + 1;
  w_.ready_tail = conn + 1;
}

void Engine::Report(tcp::Tcb& t, tcp::Event event, int error) {
  Conn& c = Of(t);
  if (event == tcp::Event::kClosed) {
    closed_ = true;
    if ((c.flags & (kEmbryo | kOrphan | kDetached)) == 0) streams_.Report(c, event, error);
    return;
  }
  if ((c.flags & kEmbryo) != 0) {
    if (event != tcp::Event::kConnected) return;
    c.flags &= ~kEmbryo;
    w_.embryo_count--;
    Listener* l = c.listener < kListeners ? &w_.listeners[c.listener] : nullptr;
    if (l != nullptr && l->embryos != 0) l->embryos--;
    if (l == nullptr || l->use != kListenerUsed || !streams_.Accept(c, IdxOf(c), *l))
      c.flags |= kOrphan;
    if ((c.flags & kOrphan) != 0) Wake(IdxOf(c));  // reset, but not from within TCP
    return;
  }
  if ((c.flags & (kOrphan | kDetached)) == 0) streams_.Report(c, event, error);
}

void Engine::Touch(uint32_t idx) {
  Conn& c = w_.conns[idx];
  if (closed_ || tcp::StateOf(c.tcb) == tcp::State::kClosed) {
    closed_ = false;
    FreeConn(idx);
    return;
  }
  // Everything has been delivered, and nothing more comes: a minute of waiting needs no ring.
  if (tcp::StateOf(c.tcb) == tcp::State::kTimeWait &&
      (c.flags & (kEmbryo | kOrphan | kDetached)) == 0) {
    c.flags |= kDetached;
    streams_.Report(c, tcp::Event::kClosed, 0);
  }
  if ((c.flags & kMtuChanged) != 0) [[unlikely]] {
    c.flags &= ~kMtuChanged;
    tcp::PathMtu(c.tcb, c.path_mss, *this);
  }
  if ((c.flags & kNoRoom) != 0) Wake(idx);
  Timers().Set(idx, tcp::NextDeadline(c.tcb));
}

uint32_t Engine::Connect(const pstn_addr& local, const pstn_addr& peer, uint32_t owner,
                         uint64_t now, int& error, const OpenWish& wish) {
  error = EADDRNOTAVAIL;
  const uint32_t old = FindConn(local, peer);
  if (old != PSTN_NONE) return PSTN_NONE;  // TIME_WAIT has the port: the caller takes another
  const uint32_t idx = NewConn(local, peer);
  error = ENOBUFS;
  if (idx == PSTN_NONE) return PSTN_NONE;
  Conn& c = w_.conns[idx];
  c.owner = owner;
  c.tcb.settings = wish.settings;
  c.tos = wish.tos;
  c.ttl = wish.ttl;
  now_ns = now;
  if (!FindPath(c, error) && (error != 0 || c.path_mss == 0)) {
    FreeConn(idx);
    return PSTN_NONE;
  }
  Hold(idx);
  (void)streams_.Look(c);  // settings
  tcp::OpenArgs args = ArgsFor(c);
  args.ecn = w_.settings.tcp_ecn == 1;
  tcp::Open(c.tcb, args, *this);
  Touch(idx);
  LetGo();
  return idx;
}

// ---------------------------------------------------------------- a round of work

uint32_t Engine::RunReady() {
  uint32_t done = 0;
  const uint32_t last = w_.ready_tail;
  for (uint32_t steps = 0; w_.ready_head != 0 && w_.ready_head <= kConns && steps < kConns;
       steps++) {
    const uint32_t idx = w_.ready_head - 1;
    Conn& c = w_.conns[idx];
    w_.ready_head = c.next;
    if (w_.ready_head == 0) w_.ready_tail = 0;
    c.flags &= ~kReady;
    if (c.use != kConnUsed) {  // closed while it waited here
      c.next = w_.conn_free;
      w_.conn_free = idx + 1;
    } else {
      Hold(idx);
      const bool had_no_room = (c.flags & kNoRoom) != 0;
      c.flags &= ~kNoRoom;
      const uint32_t end = (c.flags & kOrphan) != 0                 ? kEndAborted
                           : (c.flags & (kEmbryo | kDetached)) != 0 ? 0
                                                                    : streams_.Look(c);
      if ((c.flags & kUnreachable) != 0 && tcp::StateOf(c.tcb) == tcp::State::kSynSent)
        tcp::SoftError(c.tcb, c.tcb.snd_una, c.path_error, true, *this);
      c.flags &= ~kUnreachable;
      if (closed_) {
      } else if ((end & kEndAborted) != 0) {
        c.flags |= kOrphan;
        tcp::Abort(c.tcb, *this);
      } else {
        if ((end & kEndClosed) != 0) tcp::Closed(c.tcb, *this);
        if (!closed_) tcp::Output(c.tcb, *this);
      }
      Touch(idx);
      LetGo();
      if (!had_no_room || (c.flags & kNoRoom) == 0) done++;
    }
    if (idx + 1 == last) break;  // what was put in meanwhile is the next round's
  }
  return done;
}

uint32_t Engine::RunTimers() {
  uint32_t fired = 0;
  constexpr uint32_t kTimersPerRound = 1024;
  (void)Timers().Run(now_ns, kTimersPerRound, [&](uint32_t idx) {
    AssertHeld();
    Conn& c = w_.conns[idx];
    if (c.use != kConnUsed) return kNoDeadline;
    const uint64_t deadline = tcp::NextDeadline(c.tcb);
    if (deadline > now_ns) return deadline;
    fired++;
    Hold(idx);
    tcp::Timer(c.tcb, *this);
    Touch(idx);
    LetGo();
    return c.use == kConnUsed ? tcp::NextDeadline(c.tcb) : kNoDeadline;
  });
  return fired;
}

// Whether another round is worth it. What has come since the last look is the next Poll()'s.
bool Engine::IsMore() { return full_ || LoadRelaxed(w_.ready_head) != 0 || streams_.HasNews(); }

uint32_t Engine::PollLocked(uint64_t now, uint32_t rounds) {
  if (!streams_.Reaches()) return 0;  // another process does: no data is taken for lost here
  now_ns = now;
  if (w_.mtu_expiry_ns != 0 && now >= w_.mtu_expiry_ns) ExpireLearned();
  uint32_t all = 0;
  for (uint32_t i = 0; i < rounds; i++) {
    TakeCompleted();
    streams_.Collect(*this);
    uint32_t done = ReceiveAll();
    done += RunReady();
    if (i == 0) done += RunTimers();
    Refill();
    Flush();
    all += done;
    if (done == 0 || !IsMore()) break;
  }
  StoreRelaxed(w_.polled_ns, now);
  return all;
}

void Engine::MendAfterExec() {
  if (!TakeFromLastImage(w_.lock)) return;
  t_locks.engine++;
  Recover(MonotonicNs());
  Release();
}

uint32_t Engine::Poll(uint64_t now) {
  // A thread has the lock, and sees our news before it leaves. If it is dead, Lock() finds out.
  constexpr uint64_t kLongNs = 50'000'000;
  if (LoadRelaxed(w_.lock.word) != 0 && now - LoadRelaxed(w_.polled_ns) < kLongNs) return 0;
  uint32_t done = 0;
  if (!streams_.Reaches()) return 0;  // here it may wait
  do {
    Acquire();
    done += PollLocked(now);
    Release();
    // A thread that posted since we looked found the lock taken, and counts on this look: its bit
    // is set before it looks at the lock, and ours comes after its release (both locked
    // instructions).
    FenceAfterLocked();  // [F1]
  } while (streams_.HasNews() && LoadRelaxed(w_.lock.word) == 0);
  return done;
}

}  // namespace postern::stack
