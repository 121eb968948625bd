// serve.h - what the drivers' programs have in common: options, the kernel's network namespace,
// end.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/random.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "../command_line/command_line.h"
#include "../confine/driver.h"
#include "nic.h"

namespace postern::softnic {

struct CommonArguments {
  std::string interface;
  std::string netns;  // of the interface; empty: ours
  Nic::Pace pace;
};

inline bool Say(const char* what, int error) {
  fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(error));
  return false;
}

inline void AddCommonOptions(CommandLine& line, CommonArguments& arguments, const char* interface) {
  line.Option("--interface", arguments.interface, interface)
      .Required()
      .Check([](const std::string& name) {
        return name.empty() || name.size() > 15 ? std::string("1 to 15 characters") : "";
      });
  line.Option("--spin-usec", arguments.pace.spin_usec, "How long it polls without work")
      .Range(0, 1'000'000)
      .ShowDefault();
  line.Option("--nap-usec", arguments.pace.nap_usec,
              "The longest time between two looks at an idle card")
      .Range(1, 100'000)
      .ShowDefault();
}

// What belongs to the kernel's side, in its network namespace; and back.
template <typename Work>
bool In(const std::string& netns, const Work& work) {
  if (netns.empty()) return work();
  const UniqueFd own(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  const UniqueFd theirs(open(netns.c_str(), O_RDONLY | O_CLOEXEC));
  if (!own.ok() || !theirs.ok() || setns(theirs.get(), CLONE_NEWNET) != 0)
    return Say(netns.c_str(), errno);
  const bool done = work();
  if (setns(own.get(), CLONE_NEWNET) != 0) return Say("the way back", errno);
  return done;
}

// The loop, with the card open, until a signal or the card's end. `open_kernel`: makes the kernel's
// side in the interface's namespace; false after a message. The process's exit code.
template <typename OpenKernel>
int Serve(const CommonArguments& arguments, daemon::Card card, Port& port, KernelSide& kernel_side,
          const OpenKernel& open_kernel) {
  static std::atomic<bool> ended;
  struct sigaction end {};
  end.sa_handler = [](int) { ended = true; };
  sigaction(SIGTERM, &end, nullptr);
  sigaction(SIGINT, &end, nullptr);
  KernelFlows kernel;
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) return 1;
  const bool made = In(arguments.netns, [&] {
    if (!open_kernel()) return false;
    const int error = kernel.Open();
    return error == 0 || Say("sock_diag", -error);
  });
  if (!made) return 1;
  Nic nic(port, kernel_side, kernel, arguments.pace, seed);
  const bool listens = In(arguments.netns, [&] {
    const int error = nic.Listen(arguments.interface);
    return error == 0 || Say("the socket for posternd", -error);
  });
  if (!listens || !daemon::ConfineDriver(card)) return 1;
  fprintf(stderr, "%s: %s is ready (%s, MTU %u)\n", program_invocation_short_name,
          arguments.interface.c_str(), port.driver(), port.mtu());
  const bool whole = nic.Run(ended);
  nic.Report();
  return whole ? 0 : 1;
}

// main() of a program whose Main() may throw (command line, memory).
template <typename Work>
int Guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, error.what());
    return 1;
  }
}

}  // namespace postern::softnic
