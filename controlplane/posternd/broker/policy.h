// policy.h - which users may reach which listeners: the broker's rules, from a JSON file.
// SPDX-License-Identifier: Apache-2.0
//
//   { "default": "allow",
//     "rules": [ { "from": { "user": "www-data" }, "to": { "user": "redis" }, "ports": "6379",
//     "verdict": "allow" },
//                { "to": { "cgroup": "/secret/" }, "verdict": "deny" } ],
//     "addresses": [ "10.96.0.0/12" ],
//     "same_host": "on",
//     "vis": [ { "interface": "eth1", "group": "web", "verdict": "allow" } ] }
//
// The first rule that fits decides. "deny" means that the connection is the kernel's, not that it
// is refused: Postern adds no firewall, and goes around none that names users, cgroups or ports
// here. "vis" says which users' programs may have an interface's packets themselves, of those that
// --vi names: the first that fits decides, and if there are any, a program that fits none may not.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/postern_abi.h"

namespace postern::daemon {

// Whether connections of this host may take a path through memory (server/same_host.h).
enum class SameHost : uint8_t { kOn, kUnfiltered, kOff };

// It takes so much longer than other asks.
inline constexpr uint32_t kViAskCost = 200;

// A daemon, and so the programs behind it, as the kernel knows it.
struct Who {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  uint64_t netns = 0;  // inode
  std::string cgroup;  // path in the unified hierarchy, or ""
};

class Policy {
 public:
  // All may reach all, as over TCP.
  Policy() = default;
  // Nothing, with `error` saying what is wrong and where, if the text does not mean a policy.
  static std::optional<Policy> Parse(const std::string& text, std::string& error);
  // A file that does not exist is the empty policy.
  static std::optional<Policy> Load(const std::string& path, std::string& error);

  bool Allows(const Who& from, const Who& to, uint16_t port) const;
  bool AllowsVi(const Who& who, const std::string& interface) const;
  SameHost same_host = SameHost::kOn;
  // What one user may have.
  uint32_t links_max = 1024, listeners_max = 4096, daemons_max = 256, buffers_max = 4096,
           filters_max = 65536, processes_max = 16384, stacks_max = 4096, descriptors_max = 256;
  // What one daemon may ask about VIs in a second; to make one counts for kViAskCost.
  uint32_t vi_asks_max = 2000;
  // The names of our host towards others (SMC's user-defined ids; at least one).
  std::vector<std::string> ueids = {"POSTERN"};
  // Where network namespaces of this host may be reached, besides their own addresses: virtual
  // addresses of services, for example. `port` is the length of the prefix, of 128 bits.
  std::vector<pstn_addr> addresses;

 private:
  // Unset: any.
  struct Match {
    std::optional<uid_t> uid;
    std::optional<gid_t> gid;
    std::string cgroup;  // the path begins with it
    bool Fits(const Who& who) const;
  };
  struct Rule {
    Match from, to;
    std::string ports;
    bool allow = true;
  };
  struct ViRule {
    Match who;
    std::string interface;  // "": any
    bool allow = true;
  };
  friend struct PolicyReader;

  bool default_ = true;
  std::vector<Rule> rules_;
  std::optional<std::vector<ViRule>> vi_rules_;  // unset: all may
};

}  // namespace postern::daemon
