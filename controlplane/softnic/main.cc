// main.cc - postern-softnic: drives one network card by DPDK, for VIs and for the kernel.
// SPDX-License-Identifier: Apache-2.0
//
// The administrator starts it, one for each card; posternd (--vi soft:NAME) comes to it by the name
// of the interface that it makes. It is a program of its own for DPDK's sake: that wants memory and
// processors to itself, and its drivers may end the process; posternd lives on.
#include <sched.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../command_line/command_line.h"
#include "dpdk_port.h"
#include "serve.h"
#include "tap.h"

namespace postern::softnic {
namespace {

struct Arguments : CommonArguments {
  std::string port;
  std::vector<std::string> dpdk;
};

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
  if (!DpdkPort::StartDpdk(argv)) return false;
  if (!placed && known) (void)sched_setaffinity(0, sizeof(before), &before);
  return true;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CommandLine line("postern-softnic - drives a network card by DPDK for Postern (docs/nics.md)");
  AddCommonOptions(line, arguments, "Name of the TAP that the kernel gets");
  line.Option("--netns", arguments.netns, "Network namespace of that, a path (default: ours)");
  line.Option("--port", arguments.port, "DPDK's name of the port, if it has several");
  line.Option("dpdk", arguments.dpdk, "Arguments of DPDK, behind --");
  if (const auto over = line.Parse(argc, argv)) return *over;
  DpdkPort port;
  if (!StartDpdk(arguments) || !port.Open(arguments.port)) return 1;
  Tap tap;
  return Serve(arguments, daemon::Card::kDpdk, port, tap, [&] {
    const int error = tap.Open(arguments.interface, port.mac(), port.mtu());
    return error == 0 || Say(arguments.interface.c_str(), -error);
  });
}

}  // namespace
}  // namespace postern::softnic

int main(int argc, char** argv) {
  return postern::softnic::Guarded([&] { return postern::softnic::Main(argc, argv); });
}
