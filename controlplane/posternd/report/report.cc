// report.cc - walks the stacks and tells what is in them.
// SPDX-License-Identifier: Apache-2.0
//
// Stacks are untrusted here as everywhere in posternd: an index is loaded once and checked; a text
// is cut at its field's size and cleaned when the JSON is written. Holes of a table are not read,
// since reading shared memory allocates it.
#include "report.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "../kit/log.h"
#include "../kit/proc.h"
#include "base/atomic.h"
#include "base/schema/counters.h"
#include "base/schema/reasons.h"
#include "report_sockets.h"

#ifndef POSTERN_VERSION
#define POSTERN_VERSION "unknown"
#endif

namespace postern::daemon {
namespace {

using Json = nlohmann::json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string Quoted(const std::string& text) { return Dump(Json(text)); }

namespace {

uint64_t MemoryBytes(int fd) {
  struct stat st {};
  return fstat(fd, &st) == 0 ? static_cast<uint64_t>(st.st_blocks) * 512 : 0;
}

Json CountersJson(const pstn_stack_hdr& hdr) {
  Json counters = Json::object();
  for (uint32_t i = 0; i < kCounterCount; ++i)
    counters[CounterName(i)] = LoadRelaxed(hdr.counters[i]);
  return counters;
}

Json FallbacksJson(const pstn_stack_hdr& hdr) {
  Json fallbacks = Json::object();
  for (uint32_t i = 1; i < kReasonCount; ++i) {
    if (const uint64_t count = LoadRelaxed(hdr.reasons[i]); count != 0)
      fallbacks[ReasonName(i)] = count;
  }
  return fallbacks;
}

constexpr int kErrnoEnd = 4096;

std::string NoModule(int error) {
  switch (error) {
    case ENOENT:
    case ENXIO:
    case ENODEV:
      return "postern.ko is not loaded, or /dev/postern is not to be seen from there";
    case EPROTO:
    case ENOTTY:
      return "postern.ko is of another version";
    case EDQUOT:
      return "the user has as many stacks in postern.ko as it gives to one";
    default:
      return std::string("/dev/postern: ") + strerror(error);
  }
}

// Texts of the family's, which are cut here.
Json ChecksJson(const pstn_stack_hdr& hdr) {
  constexpr uint32_t kEntered = 2;
  Json checks = Json::array();
  for (const pstn_check& c : hdr.checks) {
    if (LoadAcquire(c.state) != kEntered) continue;
    checks.push_back({{"place", std::string(c.place, strnlen(c.place, sizeof(c.place)))},
                      {"count", LoadRelaxed(c.count)}});
  }
  return checks;
}

// Of connections that are open: what a counter of closed ones will get.
Json LiveJson(const Stack& stack) {
  const pstn_stack_hdr& hdr = stack.s->hdr;
  uint64_t sent = 0, received = 0;
  for (const pstn_ep& ep : stack.s->eps.Before(PoolUsed(hdr.eps))) {
    if (LoadRelaxed(ep.state) != PSTN_EP_ESTABLISHED) continue;
    sent += LoadRelaxed(ep.tx.bytes);
    received += LoadRelaxed(ep.rx.bytes);
  }
  return {{"bytes_sent", sent}, {"bytes_received", received}};
}

// At which level its programs are (docs/kmod.md), and what was in the way of the kernel module.
Json LevelJson(const pstn_stack_hdr& hdr, const DaemonState& state) {
  const uint32_t module = LoadRelaxed(hdr.module);
  Json level = {{"level", module == PSTN_MODULE_ON ? 2 : state.has_broker ? 1 : 0}};
  if (module == PSTN_MODULE_NONE)
    level["no_module"] = NoModule(static_cast<int>(LoadRelaxed(hdr.module_error) % kErrnoEnd));
  return level;
}

Json StackJson(const Stack& stack, const DaemonState& state) {
  const pstn_stack_hdr& hdr = stack.s->hdr;
  Json processes = Json::array();
  for (const auto& [slot, process] : stack.processes) {
    processes.push_back({{"pid", process->pid}, {"comm", Comm(process->pid)}, {"slot", slot}});
  }
  Json json = {{"id", Text(stack.id)},
               {"processes", processes},
               {"endpoints", std::min(PoolUsed(hdr.eps), stack.s->eps.count())},
               {"link_groups", stack.links.size()},
               {"counters", CountersJson(hdr)},
               {"live", LiveJson(stack)},
               {"fallbacks", FallbacksJson(hdr)},
               {"checks", ChecksJson(hdr)},
               {"memory_bytes", MemoryBytes(stack.fd->get())},
               {"uid", stack.uid}};
  json.update(LevelJson(hdr, state));
  return json;
}

// Of what one end has given out. A slot that it has left counts until the other end has left it,
// too, and it has been looked at again.
struct EndUse {
  uint32_t connections = 0, left = 0, rings = 0;
};
EndUse UseOf(const LinkEnd& end, int lgr) {
  EndUse use;
  if (end.stack == nullptr) return use;
  const pstn_lgr_ref& ref = end.stack->s->lgrs.Own(LgrIndex(end.idx));
  const uint32_t conns = ConnsOfLgr(lgr);
  for (uint32_t i = 0; i < conns; ++i)
    use.connections += LoadRelaxed(ref.conn_ep[i]) != 0 ? 1u : 0u;
  use.left = std::min(LoadRelaxed(ref.zombies), PSTN_CONNS);
  use.rings = LoadRelaxed(ref.rings);
  return use;
}

Json LinkJson(const LinkGroup& link) {
  const int lgr = link.fd->get();
  const EndUse client = UseOf(link.end[0], lgr), server = UseOf(link.end[1], lgr);
  return {{"id", Text(link.id)},
          {"client", Text(link.owner[0])},
          {"server", Text(link.owner[1])},
          {"connections", std::max(client.connections, server.connections)},
          {"left", std::max(client.left, server.left)},
          {"rings", client.rings + server.rings},
          {"peer_dead", link.dead},
          {"memory_bytes", MemoryBytes(link.fd->get())}};
}

}  // namespace

std::string StatusReport(const Registry& registry, const Directory& directory,
                         const DaemonState& state) {
  Json stacks = Json::array(), links = Json::array(), listeners = Json::array(),
       addresses = Json::array();
  for (const auto& [id, stack] : registry.stacks()) stacks.push_back(StackJson(*stack, state));
  for (const auto& [id, link] : registry.links()) links.push_back(LinkJson(*link));
  for (const auto& [entry, l] : directory.listeners()) {
    listeners.push_back({{"local", AddressText(l.local, l.family)},
                         {"family", l.family == AF_INET ? "ipv4" : "ipv6"},
                         {"v6only", l.v6only != 0},
                         {"backlog", l.backlog},
                         {"stack", Text(l.stack)},
                         {"endpoint", l.ep_idx}});
  }
  const uint32_t address_count = std::min(directory.map()->addr_count, PSTN_DIR_ADDRS);
  for (uint32_t i = 0; i < address_count; ++i) {
    std::string text = AddressText(directory.map()->addrs[i], AF_INET6);
    addresses.push_back(text.substr(0, text.rfind(':')));
  }
  return Dump({{"running", true},
               {"version", POSTERN_VERSION},
               {"pid", getpid()},
               {"uptime_sec", state.uptime_sec},
               {"uid", geteuid()},
               {"broker", state.has_broker},
               {"gives_paths", state.gives_paths},
               {"vi_errors", state.vi_errors},
               {"listeners_refused", state.listeners_refused},
               {"reapers_failed", registry.reapers().failed()},
               {"stacks", stacks},
               {"link_groups", links},
               {"listeners", listeners},
               {"addresses", addresses}});
}

std::string SocketReport(const Registry& registry, pid_t pid, bool details) {
  return R"({"running":true,"sockets":)" + SocketsText(registry, pid, details) + "}";
}

std::string ExplainReport(const Registry& registry, pid_t pid) {
  Json fallbacks = Json::array();
  bool known = false;
  for (const auto& [id, stack] : registry.stacks()) {
    for (const auto& [slot, process] : stack->processes) {
      if (process->pid != pid || !Registry::IsMember(*process)) continue;
      known = true;
      for (uint32_t i = 1; i < kReasonCount; ++i) {
        const uint64_t count = LoadRelaxed(stack->s->hdr.reasons[i]);
        if (count == 0) continue;
        fallbacks.push_back({{"reason", ReasonName(i)}, {"text", ReasonText(i)}, {"count", count}});
      }
    }
  }
  const std::string rest =
      Dump({{"pid", pid}, {"known", known}, {"comm", Comm(pid)}, {"fallbacks", fallbacks}});
  const std::string sockets = pid > 0 ? SocketsText(registry, pid, false) : "[]";
  return R"({"sockets":)" + sockets + "," + rest.substr(1);
}

UniqueFd ToMemfd(const std::string& text) {
  UniqueFd fd(memfd_create("postern-report", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  size_t done = 0;
  while (fd.ok() && done < text.size()) {
    const ssize_t wrote = write(fd.get(), text.data() + done, text.size() - done);
    if (wrote <= 0) fd.Reset();
    done += static_cast<size_t>(wrote > 0 ? wrote : 0);
  }
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  if (fd.ok() && fcntl(fd.get(), F_ADD_SEALS, seals) != 0) fd.Reset();
  if (fd.ok()) (void)lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

}  // namespace postern::daemon
