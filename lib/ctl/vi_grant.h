// SPDX-License-Identifier: Apache-2.0
// vi_grant.h - what posternd hands out with a VI: one message on the VI's line.
//
// The answer to kVi carries one end of a Unix socket pair (SOCK_SEQPACKET), in which one message
// waits: a ViGrant, and as its descriptors one for each queue, and last one that keeps the VI. For
// kGrantXsk those are AF_XDP sockets and the link of the XDP program; for kGrantSoft the rings (a
// memfd, vi/soft/soft_rings.h) and the program's end of the bell; for kGrantTap the TAP, the map
// with its bell (vi/tap/tap_vi.h), and the link of the tcx program. A process that uses the VI
// keeps a copy of all of them, the line included:
//
//   the line   when its last copy is closed, posternd knows that no process uses the VI now, and
//              takes its filters out; when posternd dies, it ends on this side
//   the link   while a process has it the program stays, whatever becomes of posternd
//   the TAP    with the last copy the kernel takes it away, and its packets pass to the kernel
//   the sockets with the last copy the kernel takes them out of the program's map, and what was
//              steered to them goes to the kernel
//   the bell   with the last copy the driver ends the VI: its packets go to the kernel
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

namespace postern::ctl {

inline constexpr uint32_t kGrantQueuesMax = 32;
inline constexpr uint32_t kGrantFdsMax = kGrantQueuesMax + 1;
inline constexpr uint32_t kGrantMagic = 0x74677669u;
inline constexpr uint32_t kGrantXsk = 0, kGrantSoft = 1, kGrantTap = 2;  // ViGrant::kind

struct ViGrant {
  uint32_t magic = kGrantMagic;
  uint32_t ifindex = 0;
  uint32_t queue_count = 0;
  uint32_t fill_slots = 0, rx_slots = 0, tx_slots = 0, completion_slots = 0;
  uint32_t caps = 0;  // kCap*, vi/vi.h
  uint32_t mtu = 0;
  uint8_t mac[6] = {};
  uint8_t zero_mac[2] = {};
  uint32_t kind = kGrantXsk;
  uint64_t id = 0;  // names the VI in kFilter
};
static_assert(sizeof(ViGrant) == 56);
// How many descriptors come with it.
inline uint32_t FdsOf(const ViGrant& grant) {
  return grant.queue_count + (grant.kind == kGrantTap ? 2 : 1);
}

// A ViGrant and its descriptors, as sendmsg() and recvmsg() want them.
class GrantPacket {
 public:
  // To be sent.
  GrantPacket(ViGrant& grant, const int* fds, uint32_t count) : GrantPacket(grant) {
    cmsghdr* const c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
  }
  // To be received into `grant`.
  explicit GrantPacket(ViGrant& grant) : iov_{&grant, sizeof grant} {
    header.msg_iov = &iov_;
    header.msg_iovlen = 1;
    header.msg_control = control_;
    header.msg_controllen = sizeof control_;
  }
  GrantPacket(const GrantPacket&) = delete;
  GrantPacket& operator=(const GrantPacket&) = delete;

  // After it was received: how many descriptors came.
  uint32_t TakeFds(int (&fds)[kGrantFdsMax]) {
    uint32_t n = 0;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0) && n < kGrantFdsMax;
           at += sizeof(int))
        memcpy(&fds[n++], CMSG_DATA(c) + at, sizeof(int));
    }
    return n;
  }

  msghdr header{};

 private:
  alignas(cmsghdr) char control_[CMSG_SPACE(kGrantFdsMax * sizeof(int))] = {};
  iovec iov_;
};

}  // namespace postern::ctl
