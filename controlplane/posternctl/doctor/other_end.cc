// other_end.cc - see other_end.h.
// SPDX-License-Identifier: Apache-2.0
#include "other_end.h"

#include <cstdlib>
#include <set>

#include "../host/daemons.h"
#include "base/schema/options.h"

namespace postern::ctl_command {
namespace {

// Where a listener is asked for: its own address, or any.
bool ListensFor(const KernelSocket& s, const std::string& peer, uint16_t port) {
  if (!s.listens || s.local_port != port) return false;
  return s.local == peer || s.local.starts_with("0.0.0.0:") || s.local.starts_with("[::]:");
}

uint16_t PortOf(const std::string& name) {
  return static_cast<uint16_t>(strtoul(name.c_str() + name.rfind(':') + 1, nullptr, 10));
}

const KernelSocket* Find(const std::vector<KernelSocket>& all, const std::string& local,
                         const std::string& peer, bool listeners) {
  const uint16_t port = PortOf(peer);
  for (const KernelSocket& s : all) {
    const bool fits =
        listeners ? ListensFor(s, peer, port) : !s.listens && s.local == peer && s.peer == local;
    if (fits) return &s;
  }
  return nullptr;
}

// The first process, by its number, that has it open.
ProcessLook HolderOf(uint64_t inode, pid_t but) {
  ProcessLook none;
  if (inode == 0) return none;
  for (const pid_t pid : AllProcesses()) {
    if (pid != but && SocketNumbersOf(pid).contains(inode)) return LookAtProcess(pid);
  }
  return SocketNumbersOf(but).contains(inode) ? LookAtProcess(but) : none;
}

std::optional<OtherEnd> FindIn(pid_t in_netns_of, const ProcessLook& self, const std::string& local,
                               const std::string& peer) {
  const std::vector<KernelSocket> all = SocketsSeenBy(in_netns_of);
  const bool is_other_netns = in_netns_of != self.pid;
  const KernelSocket* const end = Find(all, local, peer, false);
  if (end != nullptr && end->inode != 0)
    return OtherEnd{HolderOf(end->inode, self.pid), false, is_other_netns};
  // It may wait in the listener's queue. A listener of another network namespace alone may have
  // nothing to do with this connection.
  const KernelSocket* const listener = Find(all, local, peer, true);
  if (listener != nullptr && (end != nullptr || !is_other_netns))
    return OtherEnd{HolderOf(listener->inode, self.pid), true, is_other_netns};
  if (end != nullptr) return OtherEnd{{}, false, is_other_netns};
  return std::nullopt;
}

std::string NameOfProcess(const ProcessLook& p) {
  return "process " + std::to_string(p.pid) + " (" + p.comm + ")";
}

std::string NoBroker() {
  return BrokerListens()
             ? "The host's broker runs: look whether both posternds have joined it, and what its "
               "policy says (posternctl status, posternd.log)."
             : "Only the host's broker (posternd --system) connects these, and none runs here.";
}

}  // namespace

std::optional<OtherEnd> FindOtherEnd(const ProcessLook& self, const std::string& local,
                                     const std::string& peer) {
  if (auto found = FindIn(self.pid, self, local, peer)) return found;
  std::set<uint64_t> seen = {0, self.netns};
  for (const pid_t pid : AllProcesses()) {
    if (!seen.insert(NamespaceOf(pid, "net")).second) continue;
    if (auto found = FindIn(pid, self, local, peer)) return found;
  }
  return std::nullopt;
}

std::string DirectoryOf(const ProcessLook& process) {
  return process.Variable("POSTERN_RUNTIME_DIR");
}

std::string WhyNoLibrary(const ProcessLook& process) {
  if (process.kind) {
    const std::string why = WhyOutOfReach(*process.kind);
    if (!why.empty()) return why;
  }
  if (!process.environment) return "";
  if (process.Variable("LD_PRELOAD").find("libpostern.so") == std::string::npos)
    return "was not started with `postern`";
  return "was started with `postern`, and its loader has not taken the library";
}

std::string WhyNotMet(const ProcessLook& self, const OtherEnd& other, uint16_t port) {
  const ProcessLook& p = other.process;
  if (p.pid == 0) {
    return other.is_listener ? "A process listens there that you may not see: ask as root."
                             : "Its other end is held by a process that you may not see, or by "
                               "none any more: ask as root.";
  }
  const std::string name =
      (other.is_listener ? "At that address listens " : "Its other end is ") + NameOfProcess(p);
  if (!p.has_library) return name + ", of which no more may be seen: ask as root.";
  if (!*p.has_library) {
    const std::string why = WhyNoLibrary(p);
    return name + ", which does not have the library" + (why.empty() ? "" : ": it " + why) + ".";
  }
  if (other.is_in_other_netns || (p.netns != 0 && self.netns != 0 && p.netns != self.netns))
    return name + ", in another network namespace of this host. " + NoBroker();
  if (p.uid != self.uid)
    return name + ", of user " + UserName(p.uid) + ", and this one is " + UserName(self.uid) +
           "'s. " + NoBroker();
  if (p.Variable("POSTERN_ACCEL") == "off") return name + ", which has accel=off.";
  if (PortListHas(p.Variable("POSTERN_PORTS_EXCLUDE").c_str(), port))
    return name + ", which excludes port " + std::to_string(port) + " (ports.exclude).";
  const std::string here = DirectoryOf(self), there = DirectoryOf(p);
  const bool is_private = p.mount_ns != self.mount_ns && p.mount_ns != 0 && self.mount_ns != 0;
  if (!here.empty() && !there.empty() && here != there)
    return name + ", whose posternd is that of " + there + ", and this one's that of " + here +
           ". Give both one POSTERN_RUNTIME_DIR.";
  if (is_private)
    return name +
           ", which sees other files than this one (another mount namespace, as with "
           "PrivateTmp=): " +
           (here.empty() ? "its runtime directory" : here) +
           " may mean two directories. Give both one that they share (POSTERN_RUNTIME_DIR).";
  return name +
         ", which has the library, too: now the two may meet; they did not when the "
         "connection was made.";
}

}  // namespace postern::ctl_command
