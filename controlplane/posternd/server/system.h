// system.h - posternd --system: the broker's process.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "../kit/runtime_dir.h"
#include "abi/postern_abi.h"

struct event_base;

namespace postern::daemon {

inline constexpr const char* kSystemDir = "/run/postern";
inline constexpr const char* kBrokerSocket = "broker.sock";
inline constexpr const char* kPolicyFile = "/etc/postern/policy.json";

// The host's GID (an UUID of version 4): the same for as long as the directory is there, which is
// until the next boot.
pstn_uuid HostGid(const RuntimeDir& dir);

struct SystemOptions {
  std::string policy = kPolicyFile;
  // A cgroup (v2) whose sockets may have SMC's option in their SYNs. "auto": all of the host,
  // pinned where the host has a bpffs. "off": none.
  std::string syn_option = "auto";
  std::string vi = "off";       // interfaces of which programs may have VIs (vis.h)
  std::string syn_option_pins;  // a directory of a bpffs; empty: as said above
};

// Makes the doorbells' network namespace in `dir` and does no more: in a sandbox with mounts of its
// own, the broker could not leave it to its next one. What the process exits with.
int MakeBells(const RuntimeDir& dir);

// Serves until it is told to end. 0, or what the process exits with: a policy that can't be read is
// an error at the start, and ignored when it is read again (SIGHUP). Without the SYN option, for
// whatever reason, it serves the daemons that need none.
int ServeSystem(event_base* base, RuntimeDir& dir, const SystemOptions& options,
                void (*ready)(void*), void* context);

}  // namespace postern::daemon
