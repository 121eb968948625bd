// call_filter.h - system calls that no daemon makes are refused (docs/adr/security/0020).
// SPDX-License-Identifier: Apache-2.0
#pragma once
namespace postern::daemon {

// What one kind of daemon does, and others don't.
struct MoreCalls {
  bool namespaces;  // enters others
  bool bpf;         // loads programs into the kernel
  bool packets;     // makes sockets of AF_XDP and AF_PACKET
  bool programs;    // starts some
  bool by_prctl;    // if it is below a filter already
};

// For all threads of this process, and its children: a call that is refused says EPERM, and is in
// the kernel's log. By prctl() it is for this thread and those that come of it, and nothing is in
// the log: seccomp(2) may end a daemon that a confined program has started, since systemd's
// @system-service does not have it. False: the kernel has no such filter, or refuses it (errno). A
// process with a sanitizer has none: leak detection traces its own process.
bool FilterCalls(const MoreCalls& more);

}  // namespace postern::daemon
