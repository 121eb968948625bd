// SPDX-License-Identifier: Apache-2.0
// errors.cc - what ICMP says of our packets: errors for connections, and what paths take.
//
// Anybody can send such a packet. It counts only if what it quotes is a segment of a connection of
// ours that is under way (RFC 5927, 4.1), as in Linux's tcp_v4_err() and tcp_v6_err(): then it ends
// a connection that is being opened, is remembered by any other for the case that it fails
// (SO_ERROR shows it), or says what the path takes (RFC 1191, 8201).
//
// What a path takes is known by the peer's address, for all connections to it and for ten minutes
// (RFC 1191, 6.3; Linux's mtu_expires), and only ever becomes less by a packet. Below 552 bytes
// (Linux's min_pmtu) IPv4 goes without DF instead, so no host can make us send 68 byte packets.
// A change makes `mtu_epoch` grow: each connection looks its path up once more before it sends.
#include <cerrno>
#include <cstring>

#include "stack/engine.h"
#include "stack/names.h"
#include "wire/packet/icmp.h"

namespace postern::stack {
namespace {

constexpr uint64_t kLearnedNs = 600'000'000'000;
constexpr uint32_t kMtuMin4 = 552;

// As Linux: nothing is reported of a passive handshake, so it ends by what will last (tcp_req_err);
// an active one by any error; a connection by none.
bool IsFatal(const Conn& c, const wire::IcmpIn& in) {
  switch (tcp::StateOf(c.tcb)) {
    case tcp::State::kSynSent:
      return true;
    case tcp::State::kSynReceived:
      if ((c.flags & kEmbryo) == 0 || in.error == EPROTO) return true;
      return AddrIsV4(c.local) ? in.error == ENETUNREACH || in.error == EHOSTUNREACH
                               : in.is_hard != 0;
    default:
      return false;
  }
}

}  // namespace

// `p` is neither TCP nor UDP.
void Engine::IcmpError(const uint8_t* frame, const wire::Packet& p, uint32_t vi) {
  const wire::IcmpIn in = wire::ParseIcmp(frame, p);
  if (in.kind != wire::IcmpKind::kError) return;
  if (in.quote.protocol == wire::kProtocolUdp) return datagrams_.Icmp(frame, p, in, vi);
  if (in.quote.protocol != wire::kProtocolTcp) return;
  w_.counters.icmp_in++;
  const uint32_t idx = FindConn(NameOf(in.quote.source, in.quote.source_port),
                                NameOf(in.quote.destination, in.quote.destination_port));
  const tcp::Seq seq(in.quote.seq);
  if (idx == PSTN_NONE ||
      !tcp::InWindow(seq, ConnAt(idx).tcb.snd_una,
                     static_cast<uint32_t>(ConnAt(idx).tcb.snd_nxt - ConnAt(idx).tcb.snd_una))) {
    w_.counters.icmp_ignored++;
    return;
  }
  Conn& c = w_.conns[idx];
  Hold(idx);
  if (in.mtu != 0)
    TooBig(c, in.mtu);
  else
    tcp::SoftError(c.tcb, seq, in.error, IsFatal(c, in), *this);
  Touch(idx);
  LetGo();
}

// ---------------------------------------------------------------- what paths take

LearnedMtu& Engine::LearnedSlot(const pstn_addr& peer) {
  pstn_addr host = peer;
  host.port = 0;
  return w_.learned[HashOf(host, host) % kLearnedMtus];
}

void Engine::TooBig(Conn& c, uint32_t mtu) {
  // Not more than what we send already: then the packet is old, or a lie that costs nothing.
  const uint32_t heads = wire::kTcpHeaderBytes + IpBytes(c.local);
  if (mtu >= c.path_mss + heads) return;
  const bool too_small = AddrIsV4(c.local) && mtu < kMtuMin4;
  if (too_small) mtu = kMtuMin4;
  LearnedMtu& learned = LearnedSlot(c.peer);
  learned.until_ns = 0;
  memcpy(learned.ip, c.peer.ip, sizeof learned.ip);
  learned.mtu = mtu;
  learned.may_fragment = too_small ? 1u : 0u;
  learned.until_ns = now_ns + kLearnedNs;
  if (w_.mtu_expiry_ns == 0) w_.mtu_expiry_ns = learned.until_ns;
  w_.mtu_epoch++;
  int error = 0;
  (void)FindPath(c, error);  // Touch() tells TCP. No path now: told when there is one
}

// `mtu` is the interface's or the route's.
void Engine::ApplyLearned(Conn& c, uint32_t& mtu) {
  c.mtu_epoch = w_.mtu_epoch;
  c.flags &= ~kMayFragment;
  if (w_.mtu_expiry_ns == 0) return;
  const LearnedMtu& learned = LearnedSlot(c.peer);
  if (learned.until_ns <= now_ns || memcmp(learned.ip, c.peer.ip, sizeof learned.ip) != 0) return;
  if (learned.mtu < mtu) mtu = learned.mtu;
  if (learned.may_fragment != 0) c.flags |= kMayFragment;
}

//= rfc1191#6.3
//# setting the timeout [...] should be no less than 10 minutes
void Engine::ExpireLearned() {
  uint64_t next_ns = 0;
  for (LearnedMtu& learned : w_.learned) {
    if (learned.until_ns == 0) continue;
    if (learned.until_ns <= now_ns) {
      learned.until_ns = 0;
    } else if (next_ns == 0 || learned.until_ns < next_ns) {
      next_ns = learned.until_ns;
    }
  }
  constexpr uint64_t kNotOftenNs = 1'000'000'000;
  if (next_ns != 0 && next_ns < now_ns + kNotOftenNs) next_ns = now_ns + kNotOftenNs;
  w_.mtu_expiry_ns = next_ns;
  w_.mtu_epoch++;
}

void Engine::ForgetLearned() {
  for (LearnedMtu& learned : w_.learned) learned.until_ns = 0;
  w_.mtu_expiry_ns = 0;
  w_.mtu_epoch++;
}

}  // namespace postern::stack
