// SPDX-License-Identifier: Apache-2.0
// runs.cc - segments in order are handed to TCP several at a time, as one.
//
// A sender with much to send has its segments behind each other in the rx ring. Each of them alone
// costs a look for its connection, a step of TCP, a record in the program's ring, and every other
// one an acknowledgement, which costs the peer as much again. So what is the same but for its
// numbers becomes one step, by the rules of Linux's GRO (net/ipv4/tcp_offload.c): flags,
// acknowledgement, window, options and ECN are the same, each is as large as the first, and the
// first that is smaller or has PSH is the last.
//
//   rx ring:  | A 1 | A 2 | A 3, PSH | B 1 | A 5 |
//             |<------ a run ------->|       beyond a hole: by itself, and acknowledged at once
//
// Nothing waits: a run ends with the frames that one Receive() has brought, and a frame that comes
// alone never begins one. Only what TCP expects next begins one (tcp::MayRun), so that holes, late
// and odd segments are seen, and told to the peer, one by one. What TCP would do between two of
// them at one moment it does once: an acknowledgement, and a look at what may be sent.
#include "stack/engine.h"
#include "stack/names.h"

namespace postern::stack {

void Engine::BeginRun(uint32_t idx, const wire::Packet& p, const tcp::SegmentIn& s) {
  run_.conn = idx;
  run_.packet = p;
  run_.first = s;
  run_.parts[0] = {s.data, s.bytes};
  run_.frames[0] = s.packet;
  run_.count = 1;
}

// Whether it is the next one of the run, of which it is a part then.
bool Engine::GoesOn(const wire::Packet& p, const tcp::SegmentIn& s) {
  if (run_.count == kViBatchMax) return false;
  tcp::SegmentIn& first = run_.first;
  const wire::Packet& head = run_.packet;
  const uint32_t size = run_.parts[0].bytes;
  if (p.source_port != head.source_port || p.destination_port != head.destination_port ||
      !(p.ip.source == head.ip.source) || !(p.ip.destination == head.ip.destination) ||
      !tcp::Follows(first, size, s) || first.bytes + s.bytes > kRunBytesMax)
    return false;
  run_.parts[run_.count] = {s.data, s.bytes};
  run_.frames[run_.count++] = s.packet;
  first.bytes += s.bytes;
  first.flags |= s.flags;
  if (s.bytes < size || (s.flags & tcp::kPsh) != 0) EndRun();
  return true;
}

void Engine::EndRun() {
  const uint32_t count = run_.count;
  run_.count = 0;
  if (count > 1) {
    run_.first.segments = run_.first.parts = count;
    run_.first.size = run_.parts[0].bytes;
    run_.first.run = run_.parts;
  }
  Hold(run_.conn);
  tcp::Input(w_.conns[run_.conn].tcb, run_.first, *this);
  Touch(run_.conn);
  LetGo();
  for (uint32_t i = 0; i < count; i++)
    if (area_.UseAt(run_.frames[i]) == kFrameRx) area_.Give(run_.frames[i]);  // else it is kept
}

}  // namespace postern::stack
