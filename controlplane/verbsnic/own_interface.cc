// own_interface.cc - see own_interface.h.
// SPDX-License-Identifier: Apache-2.0
#include "own_interface.h"

#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace postern::verbsnic {
namespace {

constexpr uint32_t kLiveFrames = 1U << 1;   // BPF_F_TEST_XDP_LIVE_FRAMES; Linux 5.18
constexpr uint16_t kExperimental = 0x88b5;  // an Ethernet type for experiments: no protocol has it

bool Fail(const std::string& interface, const char* what, int error) {
  fprintf(stderr, "%s: %s: %s: %s\n", program_invocation_short_name, interface.c_str(), what,
          strerror(error));
  return false;
}

int Bpf(int command, bpf_attr& attr) {
  return static_cast<int>(syscall(SYS_bpf, command, &attr, sizeof(attr)));
}

int LoadPass() {
  bpf_insn code[2] = {};
  code[0].code = BPF_ALU64 | BPF_MOV | BPF_K;
  code[0].imm = XDP_PASS;
  code[1].code = BPF_JMP | BPF_EXIT;
  bpf_attr attr{};
  attr.prog_type = BPF_PROG_TYPE_XDP;
  attr.insns = reinterpret_cast<uintptr_t>(code);
  attr.insn_cnt = 2;
  attr.license = reinterpret_cast<uintptr_t>("Apache-2.0");
  memcpy(attr.prog_name, "pstn_pass", sizeof("pstn_pass"));
  return Bpf(BPF_PROG_LOAD, attr);
}

// Where the classic BPF program below goes on.
enum Line : uint8_t { kIpv6 = 14, kTake = 20, kDrop = 21 };

constexpr sock_filter Load(uint16_t size, int at) {
  return {static_cast<uint16_t>(BPF_LD | BPF_ABS | size), 0, 0, static_cast<uint32_t>(at)};
}
// From line `line` to these if the value is (or is more than) `value`, or not; 0: to the next.
constexpr sock_filter Jump(uint8_t line, uint16_t how, uint32_t value, uint8_t to,
                           uint8_t else_to) {
  const auto away = [line](uint8_t target) {
    return static_cast<uint8_t>(target != 0 ? target - line - 1 : 0);
  };
  return {static_cast<uint16_t>(BPF_JMP | BPF_K | how), away(to), away(else_to), value};
}

// Packets to this host that are ICMP's (types 3, 4, 11, 12) or ICMPv6's errors (1 to 4): those that
// Steer wants. None with a tag, which would be beside the frame; none with extension headers.
constexpr sock_filter kErrors[] = {
    Load(BPF_B, SKF_AD_OFF + SKF_AD_PKTTYPE),
    Jump(1, BPF_JEQ, PACKET_HOST, 0, kDrop),
    Load(BPF_B, SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT),
    Jump(3, BPF_JEQ, 0, 0, kDrop),
    Load(BPF_H, 12),
    Jump(5, BPF_JEQ, ETH_P_IP, 0, kIpv6),
    Load(BPF_B, 23),
    Jump(7, BPF_JEQ, 1, 0, kDrop),
    {BPF_LDX | BPF_B | BPF_MSH, 0, 0, 14},
    {BPF_LD | BPF_B | BPF_IND, 0, 0, 14},
    Jump(10, BPF_JEQ, 3, kTake, 0),
    Jump(11, BPF_JEQ, 4, kTake, 0),
    Jump(12, BPF_JEQ, 11, kTake, 0),
    Jump(13, BPF_JEQ, 12, kTake, kDrop),
    Jump(kIpv6, BPF_JEQ, ETH_P_IPV6, 0, kDrop),
    Load(BPF_B, 20),
    Jump(16, BPF_JEQ, 58, 0, kDrop),
    Load(BPF_B, 54),
    Jump(18, BPF_JEQ, 0, kDrop, 0),
    Jump(19, BPF_JGT, 4, kDrop, kTake),
    {BPF_RET | BPF_K, 0, 0, 0xffff},
    {BPF_RET | BPF_K, 0, 0, 0},
};
static_assert(std::size(kErrors) == kDrop + 1);

int OpenErrors(uint32_t ifindex) {
  // Of no protocol until it has its filter.
  UniqueFd fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sock_fprog program = {static_cast<unsigned short>(std::size(kErrors)),
                              const_cast<sock_filter*>(kErrors)};
  sockaddr_ll own{};
  own.sll_family = AF_PACKET;
  own.sll_protocol = htons(ETH_P_ALL);
  own.sll_ifindex = static_cast<int>(ifindex);
  if (!fd.ok() ||
      setsockopt(fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) != 0)
    return -errno;
  return fd.Release();
}

}  // namespace

bool OwnInterface::Open(const std::string& name) {
  ifindex_ = if_nametoindex(name.c_str());
  if (ifindex_ == 0) return Fail(name, "the interface", errno);
  const int errors = OpenErrors(ifindex_);
  if (errors < 0) return Fail(name, "a packet socket, for ICMP errors (CAP_NET_RAW)", -errors);
  errors_ = UniqueFd(errors);
  program_ = UniqueFd(LoadPass());
  if (!program_.ok())
    return Fail(name, "the program that passes packets to the kernel (CAP_BPF, CAP_NET_ADMIN)",
                errno);
  uint8_t nobodys[60] = {};
  nobodys[12] = kExperimental >> 8;
  nobodys[13] = kExperimental & 0xff;
  return Pass(nobodys, sizeof(nobodys)) ||
         Fail(name, "packets can't be passed to the kernel (Linux 5.18 can)", errno);
}

bool OwnInterface::Pass(const uint8_t* frame, uint32_t bytes) const {
  xdp_md where{};
  where.data_end = bytes;
  where.ingress_ifindex = ifindex_;
  bpf_attr attr{};
  attr.test.prog_fd = static_cast<uint32_t>(program_.get());
  attr.test.data_in = reinterpret_cast<uintptr_t>(frame);
  attr.test.data_size_in = bytes;
  attr.test.ctx_in = reinterpret_cast<uintptr_t>(&where);
  attr.test.ctx_size_in = sizeof(where);
  attr.test.repeat = 1;
  attr.test.batch_size = 1;
  attr.test.flags = kLiveFrames;
  return Bpf(BPF_PROG_TEST_RUN, attr) == 0;
}

uint32_t OwnInterface::Read(uint8_t* frame, uint32_t max) const {
  const ssize_t got = recv(errors_.get(), frame, max, MSG_DONTWAIT);
  return got > 0 ? static_cast<uint32_t>(got) : 0;
}

bool OwnInterface::Write(const uint8_t* frame, uint32_t bytes, bool) const {
  return Pass(frame, bytes);
}

}  // namespace postern::verbsnic
