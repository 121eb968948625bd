// report_sockets.cc - the list of sockets, as JSON text.
// SPDX-License-Identifier: Apache-2.0
//
// A host may have hundreds of thousands, and while they are listed posternd does nothing else. So
// the text is written as the tables are walked, with no tree of objects in between: 200,000 sockets
// take a third of a second. All that is not a number comes from fixed tables and from inet_ntop, or
// is quoted once for each process.
#include "report_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "../kit/kernel_names.h"
#include "../kit/proc.h"
#include "base/atomic.h"
#include "base/ip_address.h"
#include "base/schema/reasons.h"
#include "state/slab.h"

namespace postern::daemon {

std::string AddressText(const pstn_addr& from, uint32_t family) {
  pstn_addr addr = from;
  if (family == AF_INET && AddrIsAny(addr)) SetIp(addr, IpAddress::V4(0, 0, 0, 0));
  char text[kAddrTextBytes];
  return AddrText(addr, text);
}

namespace {

const char* StateName(uint32_t state) {
  switch (state) {
    case PSTN_EP_NEW:
      return "NEW";
    case PSTN_EP_LISTEN:
      return "LISTEN";
    case PSTN_EP_CONNECTING:
      return "SYN-SENT";
    case PSTN_EP_EMBRYO:
      return "QUEUED";
    case PSTN_EP_ESTABLISHED:
      return "ESTAB";
    case PSTN_EP_KERNEL:
      return "KERNEL";
    case PSTN_EP_CLOSED:
      return "CLOSED";
    default:
      return "UNKNOWN";
  }
}

// The other end is the engine's (lib/offhost/wire.h): its index in the stack's own link group.
bool IsWired(const StackLook& s, const pstn_ep& ep, const pstn_lgr_ref& lgr) {
  for (const pstn_lgr_ref& ref : s.lgrs.Before(LoadRelaxed(s.hdr.lgrs_hw))) {
    if (&ref == &lgr || LoadAcquire(ref.state) == 0 || !Same(ref.id, lgr.id)) continue;
    const uint32_t end = LoadAcquire(ref.conn_ep[LoadRelaxed(ep.conn_idx) % PSTN_CONNS]);
    const pstn_ep* const other = EpAt(s, end - 1);
    return other != nullptr && (LoadRelaxed(other->flags) & PSTN_EPF_ENGINE) != 0;
  }
  return false;
}

// A UDP socket that a VI serves, too.
bool IsOnWire(const pstn_ep& ep) {
  return (LoadRelaxed(ep.flags) & PSTN_EPF_DATAGRAM) != 0 && LoadRelaxed(ep.wire) != 0 &&
         LoadRelaxed(ep.reason) == kReasonNone;
}

const char* PathName(const Stack& stack, const pstn_ep& ep, uint32_t state) {
  switch (state) {
    case PSTN_EP_NEW:
      return "new";
    case PSTN_EP_LISTEN:
      return "listen";
    case PSTN_EP_KERNEL:
      return IsOnWire(ep) ? "vi" : "kernel";
    default:
      break;
  }
  const pstn_lgr_ref* const lgr = stack.s->lgrs.At(LgrIndex(LoadRelaxed(ep.lgr_idx)));
  if (lgr != nullptr && Same(lgr->peer, stack.id))
    return IsWired(*stack.s, ep, *lgr) ? "vi" : "intra-stack";
  const uint32_t whose = lgr != nullptr ? LoadRelaxed(lgr->remote) : PSTN_LGR_SAME_USER;
  return whose == PSTN_LGR_OTHER_USER || whose == PSTN_LGR_OTHER_NETNS ? "smc-d" : "same-host";
}

// How much of a family there may still be told. A chunk is in one process's table, in one place.
struct Walk {
  explicit Walk(const StackLook& s) : sockets(SocketsMax(s)), chunks(s.fdchunks.count()) {}
  size_t sockets;
  std::vector<bool> chunks;
};

template <typename Visit>
void ForEachSocket(const Stack& stack, const Process& process, Walk& walk, Visit&& visit) {
  const StackLook& s = *stack.s;
  const pstn_slot& slot = s.slots.Own(ProcIndex(process.slot));
  for (uint32_t c = 0; c < PSTN_SLOT_CHUNKS; ++c) {
    const ChunkIndex part(LoadAcquire(slot.chunk[c]));
    const pstn_fdchunk* const chunk = s.fdchunks.At(part);
    if (chunk == nullptr || walk.chunks[part.word()]) continue;
    walk.chunks[part.word()] = true;
    for (uint32_t i = 0; i < PSTN_FDCHUNK_FDS; ++i) {
      const uint32_t entry = LoadRelaxed(chunk->fd[i]);
      if ((entry & PSTN_FD_KIND) != PSTN_FD_EP) continue;
      const pstn_ep* ep = EpAt(s, entry & PSTN_FD_IDX);
      if (ep == nullptr || LoadRelaxed(ep->state) == PSTN_EP_FREE) continue;
      if (walk.sockets == 0) return;
      walk.sockets--;
      visit(c * PSTN_FDCHUNK_FDS + i, *ep);
    }
  }
}

// A slot whose process has left it in good order has no table any more.
bool HoldsSlot(const Stack& stack, const Process& process) {
  const pstn_slot& slot = stack.s->slots.Own(ProcIndex(process.slot));
  return LoadAcquire(slot.state) == PSTN_SL_LIVE &&
         static_cast<pid_t>(LoadRelaxed(slot.pid)) == process.there;
}

struct Writer {
  const Stack& stack;
  const Process& process;
  const std::string comm;  // quoted
  KernelNames& kernel;
  const bool details;
  std::string& out;

  void Text(const char* key, const std::string& value) const {
    out.append(key).append(value).push_back('"');
  }
  void Number(const char* key, uint64_t value) const {
    char digits[24];
    out.append(key).append(digits,
                           static_cast<size_t>(snprintf(digits, sizeof digits, "%llu",
                                                        static_cast<unsigned long long>(value))));
  }
  void Bytes(uint32_t state, const pstn_ep& ep, const KernelNames::Entry* names) const;
  void Details(uint32_t state, const pstn_ep& ep, const KernelNames::Entry* names) const;
  void Socket(uint32_t fd, const pstn_ep& ep) const;
};

// Of the kernel's connections posternd knows them only if it has asked.
void Writer::Bytes(uint32_t state, const pstn_ep& ep, const KernelNames::Entry* names) const {
  if (state == PSTN_EP_ESTABLISHED || state == PSTN_EP_CLOSED) {
    Number(",\"rx_bytes\":", LoadRelaxed(ep.rx.bytes));
    Number(",\"tx_bytes\":", LoadRelaxed(ep.tx.bytes));
  } else if (names != nullptr && names->has_info) {
    Number(",\"rx_bytes\":", names->bytes_received);
    Number(",\"tx_bytes\":", names->bytes_acked);
  } else {
    out.append(",\"rx_bytes\":null,\"tx_bytes\":null");
  }
}

uint32_t RingBytesOf(uint64_t ring) {
  const uint64_t cls = ring >> PSTN_RING_CLASS_SHIFT & 0xf;
  return (ring & PSTN_RING_PLACE) == 0 || cls >= PSTN_SLAB_CLASSES
             ? 0
             : RingBytes(static_cast<uint32_t>(cls));
}

// Bytes of the transmit ring that the reader has not given back; false: not known. The other side
// writes its offset as it likes.
bool RingQueue(const Stack& stack, const pstn_ep& ep, uint32_t& bytes) {
  const auto link = stack.links.find(LoadRelaxed(ep.lgr_idx));
  const uint64_t ring = LoadRelaxed(ep.tx.ring);
  const uint32_t size = RingBytesOf(ring);
  if (link == stack.links.end() || size == 0) return false;
  const uint64_t at =
      PSTN_LGR_CONN_OFF + sizeof(pstn_conn) * uint64_t{LoadRelaxed(ep.conn_idx) % PSTN_CONNS} +
      offsetof(pstn_conn, pos) + sizeof(pstn_conn_pos) * ((LoadRelaxed(ep.side) & 1u) ^ 1u);
  uint64_t read = 0;
  if (pread(link->second->fd->get(), &read, sizeof read, static_cast<off_t>(at)) != sizeof read ||
      read >> 32 != ring >> PSTN_RING_GEN_SHIFT)
    return false;
  bytes = (LoadRelaxed(ep.tx.off) - static_cast<uint32_t>(read)) & (size - 1);
  return true;
}

void Writer::Details(uint32_t state, const pstn_ep& ep, const KernelNames::Entry* names) const {
  Number(",\"endpoint\":", stack.s->eps.IndexOf(ep).word());
  out.append(",\"stack\":\"").append(daemon::Text(stack.id)).push_back('"');
  if (const uint32_t size = LoadRelaxed(ep.rcvbuf); size != 0) Number(",\"rcvbuf\":", size);
  if (const uint32_t size = LoadRelaxed(ep.sndbuf); size != 0) Number(",\"sndbuf\":", size);
  if (state == PSTN_EP_ESTABLISHED) {
    uint32_t queue = 0;
    Number(",\"ring_rx\":", RingBytesOf(LoadRelaxed(ep.rx.ring)));
    Number(",\"ring_tx\":", RingBytesOf(LoadRelaxed(ep.tx.ring)));
    Number(",\"records\":", LoadRelaxed(ep.tx.records));
    Number(",\"sleepers\":", LoadRelaxed(ep.sleepers));
    if (RingQueue(stack, ep, queue)) Number(",\"tx_queue\":", queue);
  }
  if (state == PSTN_EP_LISTEN) {
    Number(",\"accept_queue\":", LoadRelaxed(ep.accept_count));
    Number(",\"backlog\":", LoadRelaxed(ep.backlog));
  }
  if (names == nullptr) return;
  Number(",\"inode\":", names->inode);
  Number(",\"recv_queue\":", names->recv_queue);
  Number(",\"send_queue\":", names->send_queue);
  if (!names->has_info) return;
  Number(",\"rtt_us\":", names->rtt_us);
  Number(",\"cwnd\":", names->cwnd);
}

// What the kernel serves has no names of its own in the endpoint.
void Writer::Socket(uint32_t fd, const pstn_ep& ep) const {
  const uint32_t state = LoadAcquire(ep.state);
  const uint32_t reason = LoadRelaxed(ep.reason);
  const uint32_t family = LoadRelaxed(ep.family);
  const KernelNames::Entry* const names =
      state == PSTN_EP_KERNEL ? kernel.Find(process.pid, fd) : nullptr;
  // connect() writes the peer's name before the state: a socket that is still NEW has no peer.
  const pstn_addr peer = state == PSTN_EP_NEW ? pstn_addr{} : ep.peer;
  Number("{\"pid\":", static_cast<uint64_t>(process.pid));
  out.append(",\"comm\":").append(comm);
  Number(",\"fd\":", fd);
  Text(",\"path\":\"", PathName(stack, ep, state));
  Text(",\"state\":\"", names != nullptr ? names->state : StateName(state));
  Text(",\"local\":\"", names != nullptr ? names->local : AddressText(ep.local, family));
  Text(",\"peer\":\"", names != nullptr ? names->peer : AddressText(peer, family));
  Bytes(state, ep, names);
  if (details) Details(state, ep, names);
  Text(",\"reason\":\"", reason == kReasonNone ? "" : ReasonName(reason));
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_STEERED) != 0) out.append(",\"steered\":true");
  out.append(",\"reason_text\":")
      .append(reason == kReasonNone ? "\"\"" : Quoted(ReasonText(reason)))
      .append("},");
}

// Nothing of a process that has died meanwhile: it holds none of these any more, and the kernel no
// longer has names for them.
void AddSockets(std::string& text, const Stack& stack, const Process& process, Walk& walk,
                KernelNames& kernel, bool details) {
  const size_t before = text.size();
  const Writer writer = {stack, process, Quoted(Comm(process.pid)), kernel, details, text};
  ForEachSocket(stack, process, walk,
                [&](uint32_t fd, const pstn_ep& ep) { writer.Socket(fd, ep); });
  if (PidfdIsDead(process.pidfd.get())) text.resize(before);
}

}  // namespace

std::string SocketsText(const Registry& registry, pid_t pid, bool details) {
  KernelNames kernel(details);
  std::string text = "[";
  for (const auto& [id, stack] : registry.stacks()) {
    Walk walk(*stack->s);
    for (const auto& [slot, process] : stack->processes) {
      const bool is_asked = pid == 0 || process->pid == pid;
      if (is_asked && HoldsSlot(*stack, *process) && Registry::IsMember(*process))
        AddSockets(text, *stack, *process, walk, kernel, details);
    }
  }
  if (text.back() == ',') text.pop_back();
  return text + "]";
}

}  // namespace postern::daemon
