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

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "../kit/kernel_names.h"
#include "../kit/proc.h"
#include "base/atomic.h"
#include "base/schema/reasons.h"

namespace postern::daemon {

std::string AddressText(const pstn_addr& from, uint32_t family) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  static constexpr uint8_t kZero[16] = {};
  const pstn_addr addr = from;
  char text[INET6_ADDRSTRLEN] = "";
  std::string ip;
  if (memcmp(addr.ip, kMapped, sizeof(kMapped)) == 0) {
    ip = inet_ntop(AF_INET, addr.ip + 12, text, sizeof(text));
  } else if (family == AF_INET && memcmp(addr.ip, kZero, sizeof(kZero)) == 0) {
    ip = "0.0.0.0";
  } else {
    ip = std::string("[") + inet_ntop(AF_INET6, addr.ip, text, sizeof(text)) + "]";
  }
  return ip + ":" + (addr.port != 0 ? std::to_string(addr.port) : "*");
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
bool IsWired(const pstn_stack& s, const pstn_ep& ep, uint32_t lgr) {
  const uint32_t hw = LoadRelaxed(s.hdr.lgrs_hw);
  for (uint32_t i = 0; i < hw && i < PSTN_LGRS; i++) {
    if (i == lgr || LoadAcquire(s.lgrs[i].state) == 0 || !Same(s.lgrs[i].id, s.lgrs[lgr].id))
      continue;
    const uint32_t end = LoadAcquire(s.lgrs[i].conn_ep[LoadRelaxed(ep.conn_idx) % PSTN_CONNS]);
    return end != 0 && end <= PSTN_EPS &&
           (LoadRelaxed(s.eps[end - 1].flags) & PSTN_EPF_ENGINE) != 0;
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
  const uint32_t lgr = LoadRelaxed(ep.lgr_idx);
  if (lgr < PSTN_LGRS && Same(stack.s->lgrs[lgr].peer, stack.id))
    return IsWired(*stack.s, ep, lgr) ? "vi" : "intra-stack";
  return lgr < PSTN_LGRS && LoadRelaxed(stack.s->lgrs[lgr].remote) != 0 ? "smc-d" : "same-host";
}

// How much of a family there may still be told. A chunk is in one process's table, in one place.
struct Walk {
  size_t sockets = kSocketsMax;
  std::vector<bool> chunks = std::vector<bool>(PSTN_FDCHUNKS);
};

template <typename Visit>
void ForEachSocket(const Stack& stack, const Process& process, Walk& walk, Visit&& visit) {
  const pstn_stack& s = *stack.s;
  const pstn_slot& slot = s.slots[process.slot];
  for (uint32_t c = 0; c < PSTN_SLOT_CHUNKS; ++c) {
    const uint32_t chunk = LoadAcquire(slot.chunk[c]);
    if (chunk >= PSTN_FDCHUNKS || walk.chunks[chunk]) continue;
    walk.chunks[chunk] = true;
    for (uint32_t i = 0; i < PSTN_FDCHUNK_FDS; ++i) {
      const uint32_t entry = LoadRelaxed(s.fdchunks[chunk].fd[i]);
      if ((entry & PSTN_FD_KIND) != PSTN_FD_EP) continue;
      const pstn_ep* ep = EpAt(*stack.s, entry & PSTN_FD_IDX);
      if (ep == nullptr || LoadRelaxed(ep->state) == PSTN_EP_FREE) continue;
      if (walk.sockets == 0) return;
      walk.sockets--;
      visit(c * PSTN_FDCHUNK_FDS + i, *ep);
    }
  }
}

// A slot whose process has left it in good order has no table any more.
bool HoldsSlot(const Stack& stack, const Process& process) {
  const pstn_slot& slot = stack.s->slots[process.slot];
  return LoadAcquire(slot.state) == PSTN_SL_LIVE &&
         static_cast<pid_t>(LoadRelaxed(slot.pid)) == process.there;
}

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

struct Writer {
  const Stack& stack;
  const Process& process;
  const std::string comm;  // quoted
  KernelNames& kernel;
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
  void Socket(uint32_t fd, const pstn_ep& ep) const;
};

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
  Number(",\"rx_bytes\":", LoadRelaxed(ep.rx.bytes));
  Number(",\"tx_bytes\":", LoadRelaxed(ep.tx.bytes));
  Text(",\"reason\":\"", reason == kReasonNone ? "" : ReasonName(reason));
  if ((LoadRelaxed(ep.flags) & PSTN_EPF_STEERED) != 0) out.append(",\"steered\":true");
  out.append(",\"reason_text\":")
      .append(reason == kReasonNone ? "\"\"" : Quoted(ReasonText(reason)))
      .append("},");
}

// Nothing of a process that has died meanwhile: it holds none of these any more, and the kernel no
// longer has names for them.
void AddSockets(std::string& text, const Stack& stack, const Process& process, Walk& walk,
                KernelNames& kernel) {
  const size_t before = text.size();
  const Writer writer = {stack, process, Quoted(Comm(process.pid)), kernel, text};
  ForEachSocket(stack, process, walk,
                [&](uint32_t fd, const pstn_ep& ep) { writer.Socket(fd, ep); });
  if (PidfdIsDead(process.pidfd.get())) text.resize(before);
}

}  // namespace

std::string SocketsText(const Registry& registry, pid_t pid) {
  KernelNames kernel;
  std::string text = "[";
  for (const auto& [id, stack] : registry.stacks()) {
    Walk walk;
    for (const auto& [slot, process] : stack->processes) {
      const bool is_asked = pid == 0 || process->pid == pid;
      if (is_asked && HoldsSlot(*stack, *process) && Registry::IsMember(*process))
        AddSockets(text, *stack, *process, walk, kernel);
    }
  }
  if (text.back() == ',') text.pop_back();
  return text + "]";
}

}  // namespace postern::daemon
