// SPDX-License-Identifier: Apache-2.0
// demux.cc - which connection a segment belongs to, or which listener: exact names first.
#include <cstring>

#include "base/siphash.h"
#include "stack/engine.h"
#include "stack/names.h"
#include "tcp/segment/isn.h"

namespace postern::stack {
namespace {

uint64_t Word(const uint8_t* at) {
  uint64_t v;
  memcpy(&v, at, sizeof v);
  return v;
}

// 0: not at all; more is better, as Linux scores it (compute_score: exact, wildcard, dual stack).
int Fit(const Listener& l, const pstn_addr& to) {
  if (l.use == 0 || l.local.port != to.port) return 0;
  if (!AddrIsAny(l.local)) return SameName(l.local, to) ? 3 : 0;
  const bool v4 = AddrIsV4(to);
  if (l.family == 2) return v4 ? 2 : 0;  // AF_INET
  return v4 ? (l.v6only != 0 ? 0 : 1) : 2;
}

}  // namespace

// Keyed, so that no host outside can choose names that meet in one slot. Two multiplications: the
// key is never shown, and a chain that a host finds by timing is bounded by kConns alone.
uint32_t Engine::HashOf(const pstn_addr& local, const pstn_addr& peer) const {
  const auto mix = [](uint64_t a, uint64_t b) {
    const unsigned __int128 m = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(m) ^ static_cast<uint64_t>(m >> 64);
  };
  const uint64_t ports = static_cast<uint64_t>(local.port) << 16 | peer.port;
  const uint64_t x = mix(Word(peer.ip) ^ w_.secret[0], Word(peer.ip + 8) ^ w_.secret[1]);
  const uint64_t y =
      mix(Word(local.ip) ^ w_.secret[1] ^ ports, Word(local.ip + 8) ^ w_.secret[0] ^ x);
  return static_cast<uint32_t>(mix(y ^ ports, w_.secret[0] | 1)) % kHashSlots;
}

uint32_t Engine::FindConn(const pstn_addr& local, const pstn_addr& peer) {
  uint32_t next = w_.hash[HashOf(local, peer)];
  for (uint32_t steps = 0; next != 0 && next <= kConns && steps < kConns; steps++) {
    const Conn& c = w_.conns[next - 1];
    if (SameName(c.local, local) && SameName(c.peer, peer)) return next - 1;
    next = c.hash_next;
  }
  return PSTN_NONE;
}

// Several that fit equally well (SO_REUSEPORT) share by the peer's name, as in Linux.
uint32_t Engine::FindListener(const pstn_addr& local, uint32_t hash) {
  int best = 0;
  uint32_t same = 0, found = PSTN_NONE;
  for (int pass = 0; pass < 2; pass++) {
    uint32_t nth = 0;
    uint32_t next = w_.port_head[local.port % kPortSlots];
    for (uint32_t steps = 0; next != 0 && next <= kListeners && steps < kListeners; steps++) {
      const Listener& l = w_.listeners[next - 1];
      const int fit = Fit(l, local);
      if (pass == 0 && fit != 0 && fit >= best) {
        same = fit > best ? 1 : same + 1;
        best = fit;
      } else if (pass == 1 && fit != 0 && fit == best && nth++ == hash % same) {
        found = next - 1;
      }
      next = l.next;
    }
    if (best == 0) break;
  }
  return found;
}

void Engine::Enter(uint32_t idx) {
  Conn& c = w_.conns[idx];
  uint32_t& head = w_.hash[HashOf(c.local, c.peer)];
  c.hash_next = head;
  head = idx + 1;
}

void Engine::Leave(uint32_t idx) {
  const Conn& c = w_.conns[idx];
  uint32_t* link = &w_.hash[HashOf(c.local, c.peer)];
  for (uint32_t steps = 0; *link != 0 && *link <= kConns && steps < kConns; steps++) {
    if (*link == idx + 1) {
      *link = c.hash_next;
      return;
    }
    link = &w_.conns[*link - 1].hash_next;
  }
}

uint32_t Engine::NewConn(const pstn_addr& local, const pstn_addr& peer) {
  uint32_t idx;
  if (w_.conn_free != 0 && w_.conn_free <= kConns) {
    idx = w_.conn_free - 1;
    w_.conn_free = w_.conns[idx].next;
  } else if (w_.conn_hw < kConns) {
    idx = w_.conn_hw++;
  } else {
    w_.counters.no_conn++;
    return PSTN_NONE;
  }
  Conn& c = w_.conns[idx];
  const uint32_t gen = c.gen + 1;
  memset(static_cast<void*>(&c), 0, sizeof c);
  c.gen = gen;
  c.local = local;
  c.peer = peer;
  c.listener = c.owner = PSTN_NONE;
  c.tcb.settings.congestion = w_.settings.tcp_congestion;
  c.flow_label = static_cast<uint32_t>(Random()) & 0xfffff;
  c.ip_id = static_cast<uint32_t>(Random());
  c.use = kConnUsed;
  Enter(idx);
  w_.conn_count++;
  return idx;
}

tcp::OpenArgs Engine::ArgsFor(const Conn& c) {
  const tcp::ConnName name = ConnNameOf(c.local, c.peer);
  const SipKey key = {w_.secret[0], w_.secret[1]};
  tcp::OpenArgs args = {};
  args.mss_max = args.mss_receive = c.path_mss;
  args.iss = tcp::InitialSeq(key, name, now_ns);
  constexpr uint32_t kNoOffset = 2;
  if (w_.settings.tcp.tcp_timestamps != kNoOffset) args.ts_offset = tcp::TimestampOffset(key, name);
  return args;
}

void Engine::FreeConn(uint32_t idx) {
  Conn& c = w_.conns[idx];
  if (c.use != kConnUsed) return;
  Timers().Remove(idx);
  Leave(idx);
  if ((c.flags & kEmbryo) != 0) {
    w_.embryo_count--;
    if (c.listener < kListeners && w_.listeners[c.listener].embryos != 0)
      w_.listeners[c.listener].embryos--;
  }
  // A queue that names it still finds it free, and passes on: it is given back from there.
  c.use = kConnFree;
  w_.conn_count--;
  if ((c.flags & kReady) != 0) return;
  c.next = w_.conn_free;
  w_.conn_free = idx + 1;
}

uint32_t Engine::Listen(const pstn_addr& local, uint32_t family, uint32_t v6only, uint32_t backlog,
                        uint32_t owner, uint32_t owner_gen) {
  uint32_t idx;
  if (w_.listener_free != 0 && w_.listener_free <= kListeners) {
    idx = w_.listener_free - 1;
    w_.listener_free = w_.listeners[idx].next;
  } else if (w_.listener_hw < kListeners) {
    idx = w_.listener_hw++;
  } else {
    return PSTN_NONE;
  }
  uint32_t& head = w_.port_head[local.port % kPortSlots];
  w_.listeners[idx] = {1,         head, local, family, v6only, backlog, 0, owner,
                       owner_gen, 0,    0,     {},     {},     0,       0};
  head = idx + 1;
  return idx;
}

void Engine::Unlisten(uint32_t listener) {
  if (listener >= kListeners || w_.listeners[listener].use != kListenerUsed) return;
  Listener& l = w_.listeners[listener];
  uint32_t* link = &w_.port_head[l.local.port % kPortSlots];
  for (uint32_t steps = 0; *link != 0 && *link <= kListeners && steps < kListeners; steps++) {
    if (*link == listener + 1) {
      *link = l.next;
      break;
    }
    link = &w_.listeners[*link - 1].next;
  }
  l.use = kListenerEnded;
  for (uint32_t i = 0; l.embryos != 0 && i < w_.conn_hw && i < kConns; i++) {
    Conn& c = w_.conns[i];
    if (c.use != kConnUsed || (c.flags & kEmbryo) == 0 || c.listener != listener) continue;
    Hold(i);
    tcp::Abort(c.tcb, *this);
    Touch(i);
    LetGo();
  }
}

bool Engine::NeedsFilter(const Listener& l) const {
  for (uint32_t next = w_.port_head[l.local.port % kPortSlots], steps = 0;
       next != 0 && next <= kListeners && steps < kListeners; steps++) {
    const Listener& other = w_.listeners[next - 1];
    if (memcmp(&other.local, &l.local, sizeof l.local) == 0 && other.family == l.family)
      return false;  // has one of its own
    next = other.next;
  }
  for (uint32_t i = 0; i < w_.conn_hw && i < kConns; i++) {
    const Conn& c = w_.conns[i];
    if (c.use == kConnUsed && c.filter == 0 && c.local.port == l.local.port &&
        tcp::StateOf(c.tcb) != tcp::State::kTimeWait)
      return true;
  }
  return false;
}

void Engine::FreeListener(uint32_t listener) {
  if (listener >= kListeners || w_.listeners[listener].use != kListenerEnded) return;
  Listener& l = w_.listeners[listener];
  l.use = kListenerFree;
  l.next = w_.listener_free;
  w_.listener_free = listener + 1;
}

uint32_t Engine::Unfinished() const {
  uint32_t count = 0;
  for (uint32_t i = 0; i < LoadRelaxed(w_.conn_hw) && i < kConns; i++) {
    const Conn& c = w_.conns[i];
    if (LoadRelaxed(c.use) == kConnUsed && tcp::StateOf(c.tcb) != tcp::State::kTimeWait) count++;
  }
  return count;
}

}  // namespace postern::stack
