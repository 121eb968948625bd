// explain.cc - see explain.h.
// SPDX-License-Identifier: Apache-2.0
#include "explain.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <set>

#include "../host/daemons.h"
#include "base/schema/reasons.h"
#include "base/space/room.h"
#include "other_end.h"

namespace postern::ctl_command {
namespace {

constexpr size_t kLookedForMax = 16;  // other ends: each is a look at all processes

struct Case {
  ProcessLook process;
  Json report;
  std::string daemon_dir;  // of the posternd that knows it; empty: none does

  void Verdict(const char* verdict, const std::string& why, const std::string& sentence) {
    report["verdict"] = verdict;
    report["why"] = why;
    report["says"].push_back(sentence);
  }
  void Advise(const std::string& sentence) { report["advice"].push_back(sentence); }
};

// Those that its environment names are asked, too, through its own root directory where that is
// another one.
std::vector<std::string> DirectoriesOf(const ProcessLook& process) {
  const std::string dir = DirectoryOf(process);
  if (dir.empty() || dir[0] != '/') return {};
  const std::string inside = "/proc/" + std::to_string(process.pid) + "/root" + dir;
  const std::string below = "/netns-" + std::to_string(process.netns);
  return {dir, dir + below, inside, inside + below};
}

// False: it does not answer, or does not know the process.
bool AskOne(Case& c, const Daemon& daemon) {
  // Another user's could say anything of it.
  if (daemon.uid != c.process.uid && daemon.uid != 0 && daemon.uid != geteuid()) return false;
  Json said;
  try {
    said = Ask(daemon.runtime_dir, Report::kExplain, static_cast<uint32_t>(c.process.pid));
  } catch (const std::exception& error) {
    c.report["unasked"].push_back(daemon.runtime_dir + ": " + error.what());
    return false;
  }
  if (!said.is_object() || !said.contains("known") || !said.contains("sockets")) return false;
  if (!said.at("known").is_boolean() || !said.at("known").get<bool>()) return false;
  c.daemon_dir = daemon.runtime_dir;
  c.report["posternd"] = daemon.runtime_dir;
  for (const char* key : {"known", "sockets", "fallbacks"}) c.report[key] = said.at(key);
  return true;
}

// First those that it looks for itself; where that is not known, or they don't know it, root asks
// the others. `running`: one of the first is there.
void AskDaemons(Case& c, const std::string& runtime_dir) {
  std::vector<std::string> dirs = DirectoriesOf(c.process);
  if (dirs.empty()) dirs.push_back(runtime_dir);
  const std::vector<Daemon> own = DaemonsIn(dirs);
  c.report["running"] = !own.empty();
  for (const Daemon& daemon : own) {
    if (AskOne(c, daemon)) return;
  }
  for (const Daemon& daemon : FindDaemons(runtime_dir)) {
    const bool was_asked = std::any_of(own.begin(), own.end(), [&](const Daemon& d) {
      return d.runtime_dir == daemon.runtime_dir;
    });
    if (was_asked || !AskOne(c, daemon)) continue;
    c.report["running"] = true;
    return;
  }
}

uint64_t LimitOf(const ProcessLook& process, const char* name) {
  const auto it = process.limits.find(name);
  if (it == process.limits.end() || it->second == "unlimited") return UINT64_MAX;
  return strtoull(it->second.c_str(), nullptr, 10);
}

// A process whose sockets no posternd knows, and that has the library.
void WhyNoStack(Case& c, size_t tcp_sockets) {
  const ProcessLook& p = c.process;
  const std::string accel = p.Variable("POSTERN_ACCEL");
  const std::set<std::string> off = {"off", "no", "false", "0"};
  if (off.contains(accel)) {
    c.Verdict("not-accelerated", ReasonName(kReasonOff), ReasonText(kReasonOff));
  } else if (p.environment && DirectoryOf(p).empty()) {
    c.Verdict("not-accelerated", ReasonName(kReasonNoDaemon),
              "It has the library, and its environment names no posternd (POSTERN_RUNTIME_DIR).");
    c.Advise("Start it with `postern`.");
  } else if (p.seccomp != 0) {
    c.Verdict("not-accelerated", ReasonName(kReasonSandbox), ReasonText(kReasonSandbox));
  } else if (const uint64_t limit = LimitOf(p, "Max address space");
             limit != UINT64_MAX && limit < p.address_bytes + AddressesNeeded(limit)) {
    c.Verdict("not-accelerated", ReasonName(kReasonLimits),
              "RLIMIT_AS leaves it less than the " + std::to_string(AddressesNeeded(limit) >> 20) +
                  " MiB of address space that the library asks for.");
    c.Advise("Raise the limit (ulimit -v, LimitAS=), or leave it away.");
  } else if (tcp_sockets == 0) {
    c.Verdict("idle", "", "It has the library, and no TCP socket yet.");
  } else if (!c.report.at("running").get<bool>()) {
    c.Verdict("not-accelerated", ReasonName(kReasonNoDaemon),
              "It has the library, and no posternd answers in " +
                  (DirectoryOf(p).empty() ? std::string("its runtime directory") : DirectoryOf(p)) +
                  ".");
    c.Advise("Start posternd; a process looks for it at each new connection.");
  } else {
    c.Verdict("unknown", "",
              "It has the library, and no posternd that may be asked knows it. Why can't be seen "
              "from outside.");
    c.Advise("Run it with `postern -o log.level=info`: then it says so itself.");
  }
}

void WithoutLibrary(Case& c) {
  const ProcessLook& p = c.process;
  const char* word = "";
  const std::string out_of_reach = p.kind ? WhyOutOfReach(*p.kind, &word) : "";
  const std::string why = WhyNoLibrary(p);
  c.Verdict("not-accelerated", out_of_reach.empty() ? "no-library" : word,
            why.empty() ? "It does not have the library." : "It " + why + ".");
  if (!out_of_reach.empty()) {
    c.Advise(
        "No preloaded library reaches such a program. A proxy in front of it can be "
        "accelerated.");
  } else {
    c.Advise("Start it with `postern`.");
  }
}

// "own" sockets that the kernel has and no posternd has told of.
void AddUnlisted(Case& c, const std::vector<KernelSocket>& all,
                 const std::map<uint64_t, int>& numbers) {
  std::set<int> told;
  for (const Json& s : c.report.at("sockets")) told.insert(s.value("fd", -1));
  for (const KernelSocket& s : all) {
    const auto number = numbers.find(s.inode);
    if (s.inode == 0 || number == numbers.end() || told.contains(number->second)) continue;
    const bool has_library = c.process.has_library.value_or(false);
    const Reason reason = has_library && !c.daemon_dir.empty() ? kReasonInherited : kReasonNone;
    c.report["sockets"].push_back(
        {{"pid", c.process.pid},
         {"comm", c.process.comm},
         {"fd", number->second},
         {"path", s.listens ? "listen" : "kernel"},
         {"state", s.listens ? "LISTEN" : "KERNEL"},
         {"local", s.local},
         {"peer", s.peer},
         {"listed", false},
         {"reason", reason == kReasonNone ? "" : ReasonName(reason)},
         {"reason_text", reason == kReasonNone ? "" : ReasonText(reason)}});
  }
}

// Sockets that are not TCP.
void CountOthers(Case& c, const std::vector<KernelSocket>& all,
                 const std::map<uint64_t, int>& numbers) {
  std::set<uint64_t> tcp;
  for (const KernelSocket& s : all) tcp.insert(s.inode);
  std::set<int> told;
  for (const Json& s : c.report.at("sockets")) told.insert(s.value("fd", -1));
  size_t others = 0;
  for (const auto& [inode, fd] : numbers)
    others += tcp.contains(inode) || told.contains(fd) ? 0u : 1u;
  if (others != 0)
    c.report["others"] = {{"count", others},
                          {"reason", ReasonName(kReasonNotStream)},
                          {"reason_text", ReasonText(kReasonNotStream)}};
}

bool IsAccelerated(const Json& socket) {
  const std::string path = socket.value("path", "");
  return path == "same-host" || path == "smc-d" || path == "intra-stack" || path == "vi" ||
         (path == "listen" && socket.value("reason", "").empty() && socket.value("listed", true));
}

uint16_t PortIn(const std::string& name) {
  return static_cast<uint16_t>(strtoul(name.c_str() + name.rfind(':') + 1, nullptr, 10));
}

// What is at the other end says more than the reason that the process could know.
void LookAtOtherEnds(Case& c) {
  size_t looked = 0;
  for (Json& s : c.report.at("sockets")) {
    const std::string reason = s.value("reason", "");
    const bool is_met = reason == "no-listener" || reason == "not-local" ||
                        reason == "kernel-client" || reason == "daemon-refused";
    const std::string peer = s.value("peer", ""), local = s.value("local", "");
    if (!is_met || peer.ends_with(":*") || peer.empty() || ++looked > kLookedForMax) continue;
    const auto other = FindOtherEnd(c.process, local, peer);
    if (!other) {
      s["other_end"] = "No other end is to be seen on this host.";
      continue;
    }
    const uint16_t port = PortIn(reason == "kernel-client" ? local : peer);
    s["other_end"] = WhyNotMet(c.process, *other, port);
    if (other->process.pid != 0) s["other_pid"] = other->process.pid;
  }
}

void JudgeSockets(Case& c) {
  size_t fast = 0, slow = 0;
  for (const Json& s : c.report.at("sockets")) {
    if (s.value("path", "") == "new") continue;
    (IsAccelerated(s) ? fast : slow)++;
  }
  if (fast + slow == 0)
    return c.Verdict("idle", "", "It is known to posternd, and has no connection now.");
  const std::string count =
      std::to_string(fast) + " of its " + std::to_string(fast + slow) + " sockets are accelerated.";
  c.Verdict(slow == 0 ? "accelerated" : fast == 0 ? "not-accelerated" : "partly", "", count);
}

Json NewReport(uint32_t pid, const ProcessLook& p) {
  const Json none = Json::array();
  return {{"pid", pid},
          {"comm", p.comm},
          {"known", false},
          {"sockets", none},
          {"fallbacks", none},
          {"says", none},
          {"advice", none},
          {"unasked", none},
          {"why", ""},
          {"verdict", ""},
          {"posternd", ""},
          {"running", false},
          {"user", p.exists ? UserName(p.uid) : ""},
          {"exe", p.exe}};
}

}  // namespace

Json ExplainProcess(const std::string& runtime_dir, uint32_t pid) {
  Case c;
  c.process = LookAtProcess(static_cast<pid_t>(pid));
  c.report = NewReport(pid, c.process);
  if (!c.process.exists) {
    c.Verdict("gone", "", "There is no such process here.");
    return c.report;
  }
  if (c.process.is_kernels) {
    c.Verdict("not-accelerated", "kernel", "It is a thread of the kernel's, or has ended.");
    return c.report;
  }
  AskDaemons(c, runtime_dir);
  const auto numbers = SocketNumbersOf(c.process.pid);
  const auto all = SocketsSeenBy(c.process.pid);
  AddUnlisted(c, all, numbers);
  CountOthers(c, all, numbers);
  LookAtOtherEnds(c);
  if (!c.daemon_dir.empty()) {
    JudgeSockets(c);
  } else if (!c.process.has_library) {
    c.Verdict("unknown", "",
              "It is user " + UserName(c.process.uid) + "'s, and you may not look into it.");
    c.Advise(geteuid() == 0
                 ? "Ask from where it may be traced (CAP_SYS_PTRACE), outside of this container."
                 : "Ask as that user, or as root.");
  } else if (*c.process.has_library) {
    WhyNoStack(c, c.report.at("sockets").size());
  } else {
    WithoutLibrary(c);
  }
  return c.report;
}

}  // namespace postern::ctl_command
