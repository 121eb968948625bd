// main.cc - postern-verbsnic: has programs' packets from an RDMA card whose interface the kernel
// has.
// SPDX-License-Identifier: Apache-2.0
//
// The sibling of postern-softnic, with the same loop and the same way to posternd (--vi soft:NAME);
// NAME is the card's own interface here. It is a program of its own, so that neither needs the
// other's libraries.
#include <string>

#include "../command_line/command_line.h"
#include "../softnic/serve.h"
#include "find_device.h"
#include "ibv_device.h"
#include "own_interface.h"
#include "verbs_port.h"

namespace postern::verbsnic {
namespace {

int Refuse(const std::string& why) {
  fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  return 1;
}

int Main(int argc, char** argv) {
  softnic::CommonArguments arguments;
  std::string device;
  CommandLine line(
      "postern-verbsnic - drives a queue pair of an RDMA card for Postern (docs/nics.md)");
  softnic::AddCommonOptions(line, arguments, "The card's interface, which the kernel keeps");
  line.Option("--device", device, "RDMA device, if the interface's can't be found by itself");
  if (const auto over = line.Parse(argc, argv)) return *over;
  uint8_t mac[6];
  uint32_t mtu = 0;
  Found found;
  std::string why = ReadInterface(arguments.interface, mac, mtu);
  if (why.empty()) why = FindDevice("/sys", arguments.interface, device, IbvDevice::Names(), found);
  if (!why.empty()) return Refuse(why);
  IbvDevice card;
  VerbsPort port(card);
  OwnInterface kernel_side;
  if (!card.Open(found.device, found.port) || !port.Open(mac, mtu)) return 1;
  return Serve(arguments, daemon::Card::kVerbs, port, kernel_side,
               [&] { return kernel_side.Open(arguments.interface); });
}

}  // namespace
}  // namespace postern::verbsnic

int main(int argc, char** argv) {
  return postern::softnic::Guarded([&] { return postern::verbsnic::Main(argc, argv); });
}
