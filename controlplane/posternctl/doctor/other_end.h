// other_end.h - the process at the other end of a connection that the kernel serves, and why the
// two did not meet in shared memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>

#include "../host/kernel_sockets.h"
#include "../host/process_look.h"

namespace postern::ctl_command {

struct OtherEnd {
  ProcessLook process;       // pid 0: a process that may not be seen holds it
  bool is_listener = false;  // it listens at the address; the connection has no end here now
  bool is_in_other_netns = false;
};

// Looks for the socket whose names are these the other way round, then for a listener at `peer`: in
// the network namespace of `self`, and in those of processes that may be seen. Nothing: none is
// known on this host.
std::optional<OtherEnd> FindOtherEnd(const ProcessLook& self, const std::string& local,
                                     const std::string& peer);

// Sentences: what is known of why the two are not accelerated. `port`: the listener's.
std::string WhyNotMet(const ProcessLook& self, const OtherEnd& other, uint16_t port);

// The directory of the posternd that a process started with; empty: not known.
std::string DirectoryOf(const ProcessLook& process);

// What of the program keeps the library out, in words that follow its name; empty: nothing known.
std::string WhyNoLibrary(const ProcessLook& process);

}  // namespace postern::ctl_command
