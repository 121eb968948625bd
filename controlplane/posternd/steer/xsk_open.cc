// xsk_open.cc - see xsk_open.h.
// SPDX-License-Identifier: Apache-2.0
#include "xsk_open.h"

#include <linux/ethtool.h>
#include <linux/if_xdp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "../kit/log.h"
#include "steering.h"
#include "vi/vi.h"

namespace postern::daemon {
namespace {

#ifndef SOL_XDP
constexpr int SOL_XDP = 283;
#endif
constexpr uint16_t kUseSg = 1 << 4;  // XDP_USE_SG, Linux 6.6
constexpr uint32_t kSlotsDefault = 2048, kSlotsMax = 16384;
constexpr uint64_t kAreaBytesMax = 1ull << 30;
constexpr uint32_t kHeadroom = 256;  // XDP_PACKET_HEADROOM
// What another socket has held is given back some time after its end.
constexpr int kBindTries = 20;
constexpr useconds_t kBindPauseUsec = 5000;

// Memory of others, mapped for the time of the registration: the kernel keeps the pages.
class Frames {
 public:
  Frames(int fd, const AreaShape& shape)
      : bytes_(uint64_t{shape.frame_count} << kFrameShift),
        at_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, shape.frames_off)) {}
  ~Frames() {
    if (at_ != MAP_FAILED) munmap(at_, bytes_);
  }
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;
  bool ok() const { return at_ != MAP_FAILED; }
  xdp_umem_reg Registration() const {
    xdp_umem_reg reg{};
    reg.addr = reinterpret_cast<uintptr_t>(at_);
    reg.len = bytes_;
    reg.chunk_size = kFrameBytes;
    return reg;
  }

 private:
  const uint64_t bytes_;
  void* const at_;
};

int Set(int fd, int name, const void* value, socklen_t size) {
  return setsockopt(fd, SOL_XDP, name, value, size) == 0 ? 0 : -errno;
}

int SetRings(int fd, uint32_t slots) {
  int error = 0;
  for (const int name : {XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING}) {
    if (error == 0) error = Set(fd, name, &slots, sizeof(slots));
  }
  return error;
}

int Bind(int fd, const sockaddr_xdp& address) {
  for (int i = 0; i < kBindTries; ++i) {
    if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return 0;
    if (errno != EBUSY) break;
    usleep(kBindPauseUsec);
  }
  return -errno;
}

// Whether another process than the one that bound it can map its rings (Linux 6.4).
bool CanBeShared(int fd) {
  void* const at =
      mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(XDP_UMEM_PGOFF_FILL_RING));
  if (at == MAP_FAILED) return false;
  munmap(at, 4096);
  return true;
}

bool IsZeroCopy(int fd) {
  xdp_options options{};
  socklen_t size = sizeof(options);
  return getsockopt(fd, SOL_XDP, XDP_OPTIONS, &options, &size) == 0 &&
         (options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
}

int OpenOne(const NetInterface& interface, uint32_t queue, uint32_t slots, uint16_t flags,
            const Frames& frames, std::vector<UniqueFd>& sockets) {
  UniqueFd fd(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return -errno;
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_ifindex = interface.ifindex;
  address.sxdp_queue_id = queue;
  address.sxdp_flags = flags;
  int error = 0;
  if (queue == 0) {
    const xdp_umem_reg reg = frames.Registration();
    error = Set(fd.get(), XDP_UMEM_REG, &reg, sizeof(reg));
  } else {
    address.sxdp_flags = XDP_SHARED_UMEM;  // all else is as the first one's
    address.sxdp_shared_umem_fd = static_cast<uint32_t>(sockets.front().get());
  }
  if (error == 0) error = SetRings(fd.get(), slots);
  if (error == 0) error = Bind(fd.get(), address);
  if (error == 0) sockets.push_back(std::move(fd));
  return error;
}

const char* Explain(int error) {
  switch (-error) {
    case EBUSY:
      return "somebody else has its queues";
    case ENOBUFS:
      return "the limit on locked memory is too small (RLIMIT_MEMLOCK, or give CAP_IPC_LOCK)";
    case EMSGSIZE:
      return "its MTU is too large for a frame, and the kernel has no multi-buffer AF_XDP";
    case ENOTSUP:
      return "the kernel is older than 6.4: bound AF_XDP sockets can't be shared";
    case E2BIG:
      return "it has too many queues (ethtool -L)";
    default:
      return strerror(-error);
  }
}

template <typename Command>
bool Ethtool(int fd, const NetInterface& interface, Command& command) {
  ifreq request{};
  memcpy(request.ifr_name, interface.name.c_str(), interface.name.size());
  request.ifr_data = reinterpret_cast<char*>(&command);
  return ioctl(fd, SIOCETHTOOL, &request) == 0;
}

}  // namespace

int ReadInterface(uint32_t ifindex, NetInterface& out) {
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  request.ifr_ifindex = static_cast<int>(ifindex);
  if (!fd.ok() || ioctl(fd.get(), SIOCGIFNAME, &request) != 0) return -errno;
  out.ifindex = ifindex;
  out.name.assign(request.ifr_name, strnlen(request.ifr_name, sizeof(request.ifr_name)));
  if (ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0) return -errno;
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) return -EOPNOTSUPP;
  memcpy(out.mac, request.ifr_hwaddr.sa_data, sizeof(out.mac));
  if (ioctl(fd.get(), SIOCGIFMTU, &request) != 0) return -errno;
  out.mtu = static_cast<uint32_t>(request.ifr_mtu);
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  if (Ethtool(fd.get(), out, channels)) out.queues = channels.combined_count + channels.rx_count;
  if (out.queues == 0) out.queues = 1;
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  if (Ethtool(fd.get(), out, driver))
    out.driver.assign(driver.driver, strnlen(driver.driver, sizeof(driver.driver)));
  return 0;
}

int OpenSockets(const NetInterface& interface, const UniqueFd& area, const SocketsWanted& wanted,
                std::vector<UniqueFd>& sockets, ctl::ViGrant& grant) {
  AreaShape shape{};
  int error = ReadAreaShape(area.get(), shape);
  if (error == 0 && shape.size_bytes > kAreaBytesMax) error = -ENOMEM;
  const uint32_t slots = wanted.slots != 0 ? wanted.slots : kSlotsDefault;
  if (error == 0 && (slots > kSlotsMax || (slots & (slots - 1)) != 0)) error = -EINVAL;
  if (error != 0) return error;
  const Frames frames(area.get(), shape);
  if (!frames.ok()) return -errno;
  const bool large = interface.mtu + kLinkHeader > kFrameBytes - kHeadroom;
  const auto flags = static_cast<uint16_t>(XDP_USE_NEED_WAKEUP | (wanted.generic ? XDP_COPY : 0) |
                                           (large ? kUseSg : 0));
  if (interface.queues > kViQueues) error = -E2BIG;
  for (uint32_t queue = 0; queue < interface.queues && error == 0; ++queue)
    error = OpenOne(interface, queue, slots, flags, frames, sockets);
  if (error == -EINVAL && large && sockets.empty()) error = -EMSGSIZE;
  if (error == 0 && !CanBeShared(sockets.front().get())) error = -ENOTSUP;
  if (error != 0) {
    Warn("VI on %s: no AF_XDP socket: %s", interface.name.c_str(), Explain(error));
    sockets.clear();
    return error;
  }
  grant.ifindex = interface.ifindex;
  grant.queue_count = interface.queues;
  grant.fill_slots = grant.rx_slots = grant.tx_slots = grant.completion_slots = slots;
  grant.mtu = interface.mtu;
  memcpy(grant.mac, interface.mac, sizeof(grant.mac));
  if (IsZeroCopy(sockets.front().get())) grant.caps |= kCapZeroCopy;
  if (large) grant.caps |= kCapMultiBuffer;
  // What a sender of the same host leaves to a NIC arrives as it is.
  if (interface.driver == "veth" || interface.driver == "tun") grant.caps |= kCapRxPartial;
  return 0;
}

}  // namespace postern::daemon
