// syn_marking.h - SMC's option in SYN and SYN-ACK, for the sockets of a cgroup that ask for it.
// SPDX-License-Identifier: Apache-2.0
//
// Loads bpf/syn_option.bpf.c and attaches it to a cgroup (v2): from then on the sockets of
// processes there have the socket option PSTN_TCP_SMC (lib/abi/syn_option.h). Needs Linux 5.10 and
// CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN (before 5.11 CAP_SYS_RESOURCE, too).
//
// One set of programs is enough for a cgroup and all below it. Where another posternd has attached
// the same version already, this one holds on to that (the kernel detaches with the last holder);
// finding it needs CAP_SYS_ADMIN or its pins. Without, a second set is attached, and the programs
// themselves see to it that a SYN carries the option once.
#pragma once
#include <array>
#include <string>

#include "../kit/fd.h"

namespace postern::daemon {

class SynOption {
 public:
  // Whether this posternd was built with it.
  static bool Built();

  // pin_dir: empty, or a directory of a bpffs, made if missing (not its parents). Pinned programs
  // stay attached when posternd ends, and are found by the next one: marks and connections in
  // the making survive a restart. 0 or -errno, after Warn() with what is wrong.
  int Attach(const std::string& cgroup, const std::string& pin_dir);

  // Whether the programs are another posternd's, or an earlier one's.
  bool shared() const { return shared_; }

  enum { kOps, kSet, kGet, kPrograms };
  using Links = std::array<UniqueFd, kPrograms>;

 private:
  Links links_;  // a link detaches its program when nothing refers to it any more
  bool shared_ = false;
};

}  // namespace postern::daemon
