// softnic_proto.h - messages between posternd and postern-softnic.
// SPDX-License-Identifier: Apache-2.0
//
// A SOCK_SEQPACKET Unix socket with an abstract name that is made of the interface's, in the
// network namespace of the interface that carries the addresses (the driver's TAP). Both sides want
// the other one to be root's, or of their own user. posternd asks, the driver answers each message
// with one of the same type; posternd waits for it.
//
// The driver keeps VIs and filters over the death of a posternd, as the kernel does for AF_XDP; a
// posternd keeps them over the death of a driver, and tells the next one.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "../posternd/bpf/xdp_maps.h"

namespace postern::softnic {

inline constexpr uint32_t kProtoVersion = 2;
inline constexpr uint32_t kFdsMax = 3;

enum class Type : uint32_t {
  kHello = 1,   // Reply: caps, mtu, slot = how many VIs there are that no posternd has
  kOpen,        // fds = packet area, rings, the driver's end of the bell. Reply: slot
  kAdopt,       // fd = rings. Reply: slot, and the three descriptors of kOpen
  kClose,       // slot: with its filters
  kAddFlow,     // flow, slot, flags (PSTN_XDP_*), uid
  kAddPort,     // port, slot, flags, uid
  kRemoveFlow,  // flow, slot
  kRemovePort,  // port, slot
  kLocal,       // behind the message: pstn_xdp_ip, `slot` of them
  kSweep,       // filters that were added by a posternd that is gone, and not once more
};

struct Msg {
  uint32_t version = kProtoVersion;
  Type type{};
  int32_t status = 0;  // reply: 0 or a positive errno
  uint32_t slot = 0;
  uint32_t flags = 0;
  uint32_t caps = 0;  // kCap*, vi/vi.h
  uint32_t mtu = 0;
  uint32_t uid = 0;
  pstn_xdp_flow flow{};
  pstn_xdp_port port{};
};
static_assert(sizeof(Msg) == 32 + sizeof(pstn_xdp_flow) + sizeof(pstn_xdp_port));

// The length of the address.
inline socklen_t SocketName(const std::string& interface, sockaddr_un& out) {
  out = {};
  out.sun_family = AF_UNIX;
  const std::string name = "postern-softnic-" + interface;
  memcpy(out.sun_path + 1, name.data(), name.size());  // an interface's name has 15 bytes at most
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// Whose descriptors these are to the closer (posternd/guard/closer.h): ends of which others have
// the other one, and can have sent what takes long to close. No user has these ids.
inline constexpr uid_t kBells = static_cast<uid_t>(-3), kStrangers = static_cast<uid_t>(-4);

// Whether we may believe the process at the other end.
inline bool IsTrusted(int line, uid_t own) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(line, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == 0 || peer.uid == own);
}

// A message and its descriptors, as sendmsg() and recvmsg() want them.
class Packet {
 public:
  explicit Packet(Msg& message) : iov_{{&message, sizeof(message)}, {nullptr, 0}} {
    header.msg_iov = iov_;
    header.msg_iovlen = 1;
  }
  Packet(const Packet&) = delete;
  Packet& operator=(const Packet&) = delete;

  void Append(void* data, size_t bytes) {
    iov_[1] = {data, bytes};
    header.msg_iovlen = 2;
  }
  void PutFds(const int* fds, uint32_t count) {
    if (count == 0) return;
    header.msg_control = control_;
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(c), fds, count * sizeof(int));
  }
  void ExpectFds() {
    header.msg_control = control_;
    header.msg_controllen = sizeof(control_);
  }
  // After it was received; how many there are.
  uint32_t TakeFds(int (&fds)[kFdsMax]) {
    uint32_t n = 0;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0) && n < kFdsMax;
           at += sizeof(int))
        memcpy(&fds[n++], CMSG_DATA(c) + at, sizeof(int));
    }
    return n;
  }

  msghdr header{};

 private:
  alignas(cmsghdr) char control_[CMSG_SPACE(kFdsMax * sizeof(int))] = {};
  iovec iov_[2];
};

}  // namespace postern::softnic
