// main.cc - postern-softnic: drives one network card by DPDK, for VIs and for the kernel.
// SPDX-License-Identifier: Apache-2.0
//
// The administrator starts it, one for each card; posternd (--vi soft:NAME) comes to it by the name
// of the interface that it makes. It is a program of its own for DPDK's sake: that wants memory and
// processors to itself, and its drivers may end the process; posternd lives on.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "nic.h"

namespace postern::softnic {
namespace {

std::atomic<bool> ended;

struct Arguments {
  std::string interface, netns, port;
  Nic::Pace pace;
  std::vector<std::string> dpdk;
};

bool Say(const char* what, int error) {
  fprintf(stderr, "postern-softnic: %s: %s\n", what, strerror(error));
  return false;
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

// DPDK makes a thread for each processor and binds it there. Where that was not asked for, there is
// this one only, and it goes where there is room.
bool StartDpdk(const Arguments& arguments) {
  std::vector<std::string> argv = {"postern-softnic"};
  argv.insert(argv.end(), arguments.dpdk.begin(), arguments.dpdk.end());
  bool placed = false;
  for (const std::string& a : arguments.dpdk)
    placed |= a.rfind("-l", 0) == 0 || a.rfind("-c", 0) == 0 || a.rfind("--lcores", 0) == 0;
  cpu_set_t before;
  const bool known = sched_getaffinity(0, sizeof(before), &before) == 0;
  if (!placed) argv.push_back("--lcores=0@" + std::to_string(std::max(sched_getcpu(), 0)));
  if (!Port::StartDpdk(argv)) return false;
  if (!placed && known) (void)sched_setaffinity(0, sizeof(before), &before);
  return true;
}

int Serve(const Arguments& arguments) {
  Port port;
  if (!StartDpdk(arguments) || !port.Open(arguments.port)) return 1;
  Tap tap;
  KernelFlows kernel;
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed)) return 1;
  const bool made = In(arguments.netns, [&] {
    int error = tap.Open(arguments.interface, port.mac(), port.mtu());
    if (error != 0) return Say(arguments.interface.c_str(), -error);
    error = kernel.Open();
    return error == 0 || Say("sock_diag", -error);
  });
  if (!made) return 1;
  Nic nic(port, tap, kernel, arguments.pace, seed);
  const bool listens = In(arguments.netns, [&] {
    const int error = nic.Listen(arguments.interface);
    return error == 0 || Say("the socket for posternd", -error);
  });
  if (!listens) return 1;
  fprintf(stderr, "postern-softnic: %s is ready (%s, MTU %u)\n", arguments.interface.c_str(),
          port.driver(), port.mtu());
  nic.Run(ended);
  nic.Report();
  return 0;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("postern-softnic - drives a network card by DPDK for Postern (docs/nics.md)");
  app.add_option("--interface", arguments.interface, "Name of the TAP that the kernel gets")
      ->required()
      ->check([](const std::string& name) {
        return name.empty() || name.size() > 15 ? std::string("1 to 15 characters") : "";
      });
  app.add_option("--netns", arguments.netns, "Network namespace of that, a path (default: ours)");
  app.add_option("--port", arguments.port, "DPDK's name of the port, if it has several");
  app.add_option("--spin-usec", arguments.pace.spin_usec, "How long it polls without work")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--nap-usec", arguments.pace.nap_usec,
                 "The longest time between two looks at an idle card")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("dpdk", arguments.dpdk, "Arguments of DPDK, behind --");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  struct sigaction end {};
  end.sa_handler = [](int) { ended = true; };
  sigaction(SIGTERM, &end, nullptr);
  sigaction(SIGINT, &end, nullptr);
  return Serve(arguments);
}

}  // namespace
}  // namespace postern::softnic

int main(int argc, char** argv) {
  try {
    return postern::softnic::Main(argc, argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "postern-softnic: %s\n", error.what());
    return 1;
  }
}
