// SPDX-License-Identifier: Apache-2.0
// frame_in.cc - a frame on its way in: headers, the connection or listener it is for, TCP.
#include <cerrno>
#include <cstring>

#include "stack/engine.h"
#include "stack/names.h"
#include "wire/packet/tcp_header.h"

namespace postern::stack {

void Engine::NoteData(uint32_t packet, uint32_t off) {
  const KeptHead kept = {off};
  memcpy(area_.At(packet, kHeadOff), &kept, sizeof kept);
}

const uint8_t* Engine::PacketAt(uint32_t packet, uint32_t off) {
  const uint8_t* head = area_.At(packet, kHeadOff);
  if (head == nullptr) return nullptr;
  KeptHead kept;
  memcpy(&kept, head, sizeof kept);
  return area_.At(packet, kept.data_off + off);
}

uint32_t Engine::ReceiveAll() {
  uint32_t done = 0;
  full_ = false;
  for (uint32_t v = 0; v < vi_end_; v++) {
    if (vi_[v] == nullptr) continue;
    ViRx rx[kViBatchMax];
    const uint32_t n = vi_[v]->Receive(rx, kViBatchMax);
    for (uint32_t i = 0; i < n; i++) {
      if ((rx[i].flags & kRxMore) != 0 || rx[i].segment != 0) {
        i += Large(rx + i, n - i, v) - 1;
        continue;
      }
      if (i + 1 < n) __builtin_prefetch(area_.At(rx[i + 1].frame, rx[i + 1].off));
      Frame(rx[i], v, i + 1 < n ? Behind::kMore : Behind::kNothing);
      const bool in_run = run_.count != 0 && run_.frames[run_.count - 1] == rx[i].frame;
      if (!in_run && area_.UseAt(rx[i].frame) == kFrameRx) area_.Give(rx[i].frame);  // else kept
    }
    if (run_.count != 0) EndRun();
    done += n;
    // A large packet leaves no room for another one in a batch.
    full_ |= n == kViBatchMax || (n != 0 && TakesLarge(v) && vi_[v]->Pending());
  }
  w_.counters.packets_in += done;
  return done;
}

// What the VI says of a frame. Of the IPv4 header's checksum it says nothing: no device verifies
// that one for all that it marks as good.
uint32_t Engine::KnownOf(const ViRx& rx, uint32_t vi) {
  return ((rx.flags & kRxChecksumGood) != 0 ? wire::kRxL4Verified : 0) |
         ((vi_[vi]->info().caps & kCapRxPartial) != 0 ? wire::kRxMayBePartial : 0);
}

void Engine::Frame(const ViRx& rx, uint32_t vi, Behind behind) {
  const uint8_t* frame = area_.At(rx.frame, rx.off);
  if (frame == nullptr || rx.bytes > kFrameBytes - rx.off) return;
  if (rx.off < kHeadOff + sizeof(KeptHead)) {
    w_.counters.no_headroom++;
    return;
  }
  wire::Packet p;
  const wire::Refusal why = wire::ParseFrame(frame, rx.bytes, KnownOf(rx, vi), p);
  if (why != wire::Refusal::kNone) {
    w_.counters.refused[static_cast<uint32_t>(why) % 64]++;
    return;
  }
  if (p.ip.is_multicast != 0 || p.link.is_multicast != 0) return;
  if (p.ip.protocol == wire::kProtocolTcp && p.ip.is_fragment == 0) [[likely]] {
    tcp::SegmentIn s;
    if (!wire::ParseTcp(frame, p, s)) return;
    s.packet = rx.frame;
    NoteData(rx.frame, rx.off + p.payload_off);
    if (run_.count != 0) {
      if (GoesOn(p, s)) return;
      EndRun();
    }
    return Segment(p, s, vi, behind);
  }
  if (run_.count != 0) EndRun();
  if (p.ip.is_fragment != 0) return Fragment(p, rx, vi);
  if (p.ip.protocol == wire::kProtocolUdp) return datagrams_.Frame(p, rx, vi);
  IcmpError(frame, p, vi);
}

void Engine::Segment(const wire::Packet& p, tcp::SegmentIn& s, uint32_t vi, Behind behind) {
  const pstn_addr local = NameOf(p.ip.destination, p.destination_port);
  const pstn_addr peer = NameOf(p.ip.source, p.source_port);
  const uint32_t idx = FindConn(local, peer);
  const tcp::ForListener use = tcp::AtListener(s);
  const bool is_syn = use == tcp::ForListener::kOpens;
  tcp::Seq iss;
  const tcp::Seq* left = nullptr;
  if (idx != PSTN_NONE) {
    Conn& c = w_.conns[idx];
    const bool again = is_syn && tcp::MayReuse(c.tcb, s, iss);
    if (!again) {
      // A handshake does not end while the accept queue is full: as in Linux its last ACK is as if
      // lost, and the SYN-ACK comes again; or, with tcp_abort_on_overflow, the client is reset.
      if ((c.flags & kEmbryo) != 0 && (s.flags & (tcp::kAck | tcp::kRst)) == tcp::kAck &&
          c.listener < kListeners && !streams_.MayAccept(w_.listeners[c.listener])) {
        w_.counters.accepts_full++;
        if (w_.settings.tcp.tcp_abort_on_overflow == 0) return;
        AnswerReset(p, s, vi);
        tcp::Forget(c.tcb, *this);
        FreeConn(idx);
        return;
      }
      if (behind == Behind::kMore && (c.flags & kEmbryo) == 0 && tcp::MayRun(c.tcb, s))
        return BeginRun(idx, p, s);
      Hold(idx);
      tcp::Input(c.tcb, s, *this);
      Touch(idx);
      LetGo();
      return;
    }
    left = &iss;
    tcp::Forget(c.tcb, *this);
    FreeConn(idx);
  }
  const uint32_t listener = FindListener(local, HashOf(local, peer));
  if (listener != PSTN_NONE && is_syn) {
    Syn(listener, p, s, vi, left);
  } else if (listener != PSTN_NONE && use == tcp::ForListener::kDrop) {
    w_.counters.not_ours++;
  } else if (listener == PSTN_NONE || !TakeCookie(listener, p, s)) {
    w_.counters.not_ours++;
    AnswerReset(p, s, vi);
  }
}

}  // namespace postern::stack
