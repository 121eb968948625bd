// SPDX-License-Identifier: Apache-2.0
// kernel_names.cc - the kernel's sockets by sock_diag(7). /proc/net/tcp would list those in
// TIME_WAIT, too: tens of thousands, where connections are short.
#include "kernel_names.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "base/ip_address.h"
#include "sock_diag.h"

namespace postern::daemon {
namespace {

// Linux's numbers (include/net/tcp_states.h), ss's names.
constexpr const char* kStates[] = {"UNKNOWN",    "ESTAB",      "SYN-SENT",  "SYN-RECV",
                                   "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT", "UNCONN",
                                   "CLOSE-WAIT", "LAST-ACK",   "LISTEN",    "CLOSING"};
constexpr uint32_t kTimeWait = 1u << 6;

std::string TextOf(uint8_t family, const __be32* words, __be16 port) {
  char text[kAddrTextBytes];
  return AddrText(NameOf(IpAt(family, words), ntohs(port)), text);
}

// By the offsets of the kernel's struct tcp_info, of which an older kernel has less.
int TakeInfo(const nlattr* attribute, void* context) {
  constexpr size_t kRtt = 68, kCwnd = 80, kBytesAcked = 120, kBytesReceived = 128, kEnd = 136;
  if (mnl_attr_get_type(attribute) != INET_DIAG_INFO || mnl_attr_get_payload_len(attribute) < kEnd)
    return MNL_CB_OK;
  auto& entry = *static_cast<KernelNames::Entry*>(context);
  const auto* const info = static_cast<const uint8_t*>(mnl_attr_get_payload(attribute));
  entry.has_info = true;
  memcpy(&entry.rtt_us, info + kRtt, sizeof entry.rtt_us);
  memcpy(&entry.cwnd, info + kCwnd, sizeof entry.cwnd);
  memcpy(&entry.bytes_acked, info + kBytesAcked, sizeof entry.bytes_acked);
  memcpy(&entry.bytes_received, info + kBytesReceived, sizeof entry.bytes_received);
  return MNL_CB_OK;
}

}  // namespace

void KernelNames::Load(uint8_t family) {
  const mnl_cb_t add = [](const nlmsghdr* answer, void* names) {
    const auto* d = static_cast<const inet_diag_msg*>(mnl_nlmsg_get_payload(answer));
    if (mnl_nlmsg_get_payload_len(answer) < sizeof *d || d->idiag_inode == 0) return MNL_CB_OK;
    Entry& entry = static_cast<KernelNames*>(names)->by_inode_[d->idiag_inode];
    entry.local = TextOf(d->idiag_family, d->id.idiag_src, d->id.idiag_sport);
    entry.peer = TextOf(d->idiag_family, d->id.idiag_dst, d->id.idiag_dport);
    entry.state = d->idiag_state < std::size(kStates) ? kStates[d->idiag_state] : kStates[0];
    entry.inode = d->idiag_inode;
    entry.recv_queue = d->idiag_rqueue;
    entry.send_queue = d->idiag_wqueue;
    (void)mnl_attr_parse(answer, sizeof *d, TakeInfo, &entry);
    return MNL_CB_OK;
  };
  constexpr uint8_t kInfo = 1u << (INET_DIAG_INFO - 1);
  (void)DumpSockets(family, ~kTimeWait, 0, add, this, details_ ? kInfo : uint8_t{0});
}

const KernelNames::Entry* KernelNames::Find(pid_t pid, uint32_t fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  // By the link's text: another file's system may not answer a stat().
  char is[64];
  const ssize_t n = readlink(path.c_str(), is, sizeof(is) - 1);
  is[std::max<ssize_t>(n, 0)] = 0;
  unsigned long inode = 0;
  if (sscanf(is, "socket:[%lu]", &inode) != 1) return nullptr;
  if (!loaded_) {
    Load(AF_INET);
    Load(AF_INET6);
    loaded_ = true;
  }
  const auto it = by_inode_.find(inode);
  return it == by_inode_.end() ? nullptr : &it->second;
}

}  // namespace postern::daemon
