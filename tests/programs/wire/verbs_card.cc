// verbs_card.cc - postern-verbsnic with a card that is made up: its wire is an interface, the
// kernel's share of it a TAP.
// SPDX-License-Identifier: Apache-2.0
//
//   wire (a packet socket) --- rules ---> queue pair: VerbsPort, Nic, programs
//                                `------> TAP: what the kernel has of such a card, with its
//                                addresses
//
// usage: verbs_card --interface TAP --netns PATH_OF_THE_TAPS --wire INTERFACE [--rules MOST]
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "../../../controlplane/softnic/serve.h"
#include "../../../controlplane/softnic/tap.h"
#include "../../../controlplane/verbsnic/own_interface.h"
#include "../../../controlplane/verbsnic/verbs_port.h"
#include "../../unit/nic/fake_card.h"

namespace postern::verbsnic {
namespace {

using softnic::Say;

constexpr int kBurst = 32;
constexpr size_t kFrameMax = 2048;

class WireCard final : public FakeCard {
 public:
  // The wire in our network namespace; then that becomes the interface's, where the driver runs.
  bool Open(const std::string& wire, const std::string& interface, const std::string& netns,
            uint8_t (&mac)[6]) {
    const unsigned ifindex = if_nametoindex(wire.c_str());
    sockaddr_ll own{};
    own.sll_family = AF_PACKET;
    own.sll_protocol = htons(ETH_P_ALL);
    own.sll_ifindex = static_cast<int>(ifindex);
    wire_ = UniqueFd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    ifreq request{};
    wire.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
    if (ifindex == 0 || !wire_.ok() ||
        setsockopt(wire_.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) != 0 ||
        bind(wire_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0 ||
        ioctl(wire_.get(), SIOCGIFHWADDR, &request) != 0)
      return Say(wire.c_str(), errno);
    memcpy(mac, request.ifr_hwaddr.sa_data, sizeof(mac));
    const UniqueFd theirs(open(netns.c_str(), O_RDONLY | O_CLOEXEC));
    if (!theirs.ok() || setns(theirs.get(), CLONE_NEWNET) != 0) return Say(netns.c_str(), errno);
    const int error = tap_.Open(interface, mac, 1500);
    return error == 0 || Say(interface.c_str(), -error);
  }

  // The card's own work is done when it is looked at.
  int PollReceived(int max, ibv_wc* out) override {
    uint8_t frame[kFrameMax];
    for (int i = 0; i < kBurst; i++) {
      const ssize_t got = recv(wire_.get(), frame, sizeof(frame), 0);
      if (got <= 0) break;
      if (!Arrive(Bytes(frame, frame + got)))
        (void)tap_.Write(frame, static_cast<uint32_t>(got), false);
    }
    for (int i = 0; i < kBurst; i++) {
      const uint32_t got = tap_.Read(frame, sizeof(frame));
      if (got == 0) break;
      (void)!send(wire_.get(), frame, got, 0);
    }
    return FakeCard::PollReceived(max, out);
  }
  int PostSend(ibv_send_wr* first, ibv_send_wr** bad) override {
    const int error = FakeCard::PostSend(first, bad);
    for (const Bytes& frame : sent) (void)!send(wire_.get(), frame.data(), frame.size(), 0);
    sent.clear();
    return error;
  }

 private:
  UniqueFd wire_;
  softnic::Tap tap_;
};

int Main(int argc, char** argv) {
  softnic::CommonArguments arguments;
  std::string wire, netns;
  WireCard card;
  CommandLine line("verbs_card - postern-verbsnic with a card that is made up");
  softnic::AddCommonOptions(line, arguments, "The TAP");
  line.Option("--netns", netns, "Network namespace of that").Required();
  line.Option("--wire", wire, "The interface that is the wire").Required();
  line.Option("--rules", card.rules_max, "So many at most");
  if (const auto over = line.Parse(argc, argv)) return *over;
  VerbsPort port(card);
  OwnInterface kernel_side;
  uint8_t mac[6];
  if (!card.Open(wire, arguments.interface, netns, mac) || !port.Open(mac, 1500)) return 1;
  return Serve(arguments, daemon::Card::kVerbs, port, kernel_side,
               [&] { return kernel_side.Open(arguments.interface); });
}

}  // namespace
}  // namespace postern::verbsnic

int main(int argc, char** argv) {
  return postern::softnic::Guarded([&] { return postern::verbsnic::Main(argc, argv); });
}
