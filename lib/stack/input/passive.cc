// SPDX-License-Identifier: Apache-2.0
// passive.cc - SYNs for listeners: what is kept of them, and what is not (SYN cookies).
//
// A SYN costs a connection of the table, and any host can send as many as it likes from addresses
// that are not its own. As in Linux a listener has at most `backlog` of them in handshakes; beyond
// that the SYN-ACK's number says all that there is to know (tcp/segment/syn_cookie.h), and nothing
// is kept: the client's ACK makes the connection. Clients without timestamps lose window scale and
// SACK by that.
//
// A SYN-ACK with a cookie is made by a connection like any other, which is forgotten at once: so
// there is one way only by which SYN-ACKs are made. Its place in the table is free again before the
// next packet is looked at.
#include "stack/engine.h"
#include "stack/names.h"

namespace postern::stack {
namespace {

constexpr uint64_t kMs = 1'000'000;

// What does not fit into a number without timestamps is not agreed on.
void DropOptions(tcp::SegmentOptions& o) {
  if (o.has_timestamps) return;
  o.has_window_scale = o.sack_permitted = false;
}

//= rfc3168#6.1.1
//# A host MUST NOT set ECT on SYN or SYN-ACK packets.
// A SYN that has it is not from a host that knows what ECN is (Linux: tcp_ecn_create_request).
bool AgreesToEcn(const WireSettings& settings, const tcp::SegmentIn& syn) {
  constexpr uint8_t kAsks = tcp::kEce | tcp::kCwr;
  return settings.tcp_ecn != 0 && (syn.flags & kAsks) == kAsks && syn.ecn == tcp::Ecn::kNotEct;
}

}  // namespace

uint32_t Engine::NewEmbryo(uint32_t listener, const wire::Packet& p) {
  const uint32_t idx =
      NewConn(NameOf(p.ip.destination, p.destination_port), NameOf(p.ip.source, p.source_port));
  if (idx == PSTN_NONE) return PSTN_NONE;
  Conn& c = w_.conns[idx];
  c.flags = kEmbryo;
  c.listener = listener;
  c.tcb.settings.maxseg = w_.listeners[listener].maxseg;
  w_.embryo_count++;
  w_.listeners[listener].embryos++;
  int error = 0;
  if (FindPath(c, error)) return idx;
  // The neighbour is being asked for: the SYN-ACK waits for the answer, as in Linux, or the client
  // would come again after a second. Not those of a flood from nowhere: each waiter is looked at in
  // each round.
  constexpr uint32_t kWaitersMax = 16;
  if (error == 0 && c.path_mss != 0 && w_.listeners[listener].embryos <= kWaitersMax) return idx;
  FreeConn(idx);
  return PSTN_NONE;
}

// A client that was connected before is no flood: as in Linux, it is not answered by a cookie, in
// whose number there is no room for `iss`.
void Engine::Syn(uint32_t listener, const wire::Packet& p, const tcp::SegmentIn& s, uint32_t vi,
                 const tcp::Seq* iss) {
  Listener& l = w_.listeners[listener];
  if (!streams_.Listens(l)) return AnswerReset(p, s, vi);
  w_.counters.syns_in++;
  const uint32_t cookies = w_.settings.tcp_syncookies;
  const bool full = iss == nullptr && l.embryos >= l.backlog;
  // Linux: a SYN is dropped while the accept queue is full, cookies or not; and without cookies the
  // last quarter of tcp_max_syn_backlog is for peers that it knows.
  const uint32_t most = w_.settings.tcp.tcp_max_syn_backlog;
  const bool crowded = iss == nullptr && cookies == 0 && l.embryos > most - most / 4;
  if (!streams_.MayAccept(l) || (full && cookies == 0) || crowded) {
    w_.counters.syns_dropped++;
    return;
  }
  if (full || (iss == nullptr && cookies >= 2)) return AnswerByCookie(listener, p, s);
  const uint32_t idx = NewEmbryo(listener, p);
  if (idx == PSTN_NONE) return;
  Conn& c = w_.conns[idx];
  tcp::OpenArgs args = ArgsFor(c);
  if (iss != nullptr) args.iss = *iss;
  c.tcb.settings.defer_accept_s = streams_.DeferSeconds(l);
  args.ecn = AgreesToEcn(w_.settings, s);
  Hold(idx);
  tcp::OpenPassive(c.tcb, args, s, *this);
  Touch(idx);
  LetGo();
}

void Engine::AnswerByCookie(uint32_t listener, const wire::Packet& p, tcp::SegmentIn s) {
  const uint32_t idx = NewEmbryo(listener, p);
  if (idx == PSTN_NONE) return;
  Listener& l = w_.listeners[listener];
  Conn& c = w_.conns[idx];
  const SipKey key = {w_.secret[0], w_.secret[1]};
  const tcp::ConnName name = ConnNameOf(c.local, c.peer);
  if (w_.settings.tcp.tcp_timestamps == 0) s.options.has_timestamps = false;
  DropOptions(s.options);
  tcp::OpenArgs args = ArgsFor(c);
  args.ecn = AgreesToEcn(w_.settings, s) && s.options.has_timestamps;
  args.iss = tcp::CookieMake(key, name, !AddrIsV4(c.local), s, now_ns);
  const auto clock_ms = static_cast<uint32_t>(now_ns / kMs);
  args.ts_offset = tcp::CookieTimestamp(key, name, s, args.ecn, clock_ms) - clock_ms;
  Hold(idx);
  tcp::OpenPassive(c.tcb, args, s, *this);
  tcp::Forget(c.tcb, *this);
  FreeConn(idx);
  LetGo();
  tcp::CookieMade(l.cookie_gate, now_ns);
  l.cookies++;
  w_.counters.cookies_sent++;
}

// A segment that belongs to no connection. True: it has brought a cookie back, and is taken care
// of.
bool Engine::TakeCookie(uint32_t listener, const wire::Packet& p, const tcp::SegmentIn& s) {
  const Listener& l = w_.listeners[listener];
  constexpr uint8_t kBits = tcp::kSyn | tcp::kAck | tcp::kRst;
  if ((s.flags & kBits) != tcp::kAck || !tcp::CookieExpected(l.cookie_gate, now_ns)) return false;
  const pstn_addr local = NameOf(p.ip.destination, p.destination_port);
  const pstn_addr peer = NameOf(p.ip.source, p.source_port);
  tcp::CookieState cookie;
  if (!tcp::CookieCheck({w_.secret[0], w_.secret[1]}, ConnNameOf(local, peer), !AddrIsV4(local), s,
                        now_ns, cookie)) {
    w_.counters.cookies_refused++;
    return false;
  }
  if (!streams_.Listens(l)) return false;
  if (!streams_.MayAccept(l)) {  // as if lost: the client's data bring it once more
    w_.counters.accepts_full++;
    return true;
  }
  const uint32_t idx = NewEmbryo(listener, p);
  if (idx == PSTN_NONE) return true;
  Conn& c = w_.conns[idx];
  w_.counters.cookies_taken++;
  Hold(idx);
  tcp::OpenFromCookie(c.tcb, ArgsFor(c), cookie, s, *this);
  Touch(idx);
  LetGo();
  return true;
}

}  // namespace postern::stack
