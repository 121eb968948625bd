// SPDX-License-Identifier: Apache-2.0
// passive.cc - SYNs for listeners: what is kept of them.
#include "stack/engine.h"
#include "stack/names.h"

namespace postern::stack {

void Engine::Syn(uint32_t listener, const wire::Packet& p, const tcp::SegmentIn& s, uint32_t vi) {
  (void)vi;
  Listener& l = w_.listeners[listener];
  if (!streams_.Listens(l)) return AnswerReset(p, s, vi);
  w_.counters.syns_in++;
  // Linux: a SYN is dropped while the accept queue is full, and so many may be in handshakes.
  if (!streams_.MayAccept(l) || l.embryos > l.backlog) {
    w_.counters.syns_dropped++;
    return;
  }
  const pstn_addr local = NameOf(p.ip.destination, p.destination_port);
  const pstn_addr peer = NameOf(p.ip.source, p.source_port);
  const uint32_t idx = NewConn(local, peer);
  if (idx == PSTN_NONE) return;
  Conn& c = w_.conns[idx];
  c.flags = kEmbryo;
  c.listener = listener;
  w_.embryo_count++;
  l.embryos++;
  int error = 0;
  if (!FindPath(c, error)) {
    FreeConn(idx);
    return;
  }
  Hold(idx);
  tcp::OpenPassive(c.tcb, ArgsFor(c), s, *this);
  Touch(idx);
  LetGo();
}

}  // namespace postern::stack
