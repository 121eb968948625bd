// tap.cc - see tap.h.
// SPDX-License-Identifier: Apache-2.0
#include "tap.h"

#include <fcntl.h>
#include <linux/if_arp.h>
#include <linux/if_tun.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "wire/packet/virtio_net.h"

namespace postern::softnic {
namespace {

bool Exists(const ifreq& tap) {
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = tap;
  return fd.ok() && ioctl(fd.get(), SIOCGIFINDEX, &request) == 0;
}

int SetLink(const ifreq& tap, const uint8_t (&mac)[6], uint32_t mtu) {
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = tap;
  if (!fd.ok() || ioctl(fd.get(), SIOCGIFHWADDR, &request) != 0) return -errno;
  // Of an interface that is up: only if it has to be.
  if (memcmp(request.ifr_hwaddr.sa_data, mac, sizeof(mac)) != 0) {
    request = tap;
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    memcpy(request.ifr_hwaddr.sa_data, mac, sizeof(mac));
    if (ioctl(fd.get(), SIOCSIFHWADDR, &request) != 0) return -errno;
  }
  request = tap;
  request.ifr_mtu = static_cast<int>(mtu);
  return ioctl(fd.get(), SIOCSIFMTU, &request) == 0 ? 0 : -errno;
}

}  // namespace

int Tap::Open(const std::string& name, const uint8_t (&mac)[6], uint32_t mtu) {
  fd_ = UniqueFd(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd_.ok()) return -errno;
  ifreq tap{};
  memcpy(tap.ifr_name, name.data(), std::min(name.size(), sizeof(tap.ifr_name) - 1));
  was_there_ = Exists(tap);
  ifreq request = tap;
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(fd_.get(), TUNSETIFF, &request) != 0) return -errno;
  // What the kernel sends comes whole: with its checksums, and no larger than the MTU.
  if (ioctl(fd_.get(), TUNSETOFFLOAD, 0) != 0 || ioctl(fd_.get(), TUNSETPERSIST, 1) != 0)
    return -errno;
  return SetLink(tap, mac, mtu);
}

void Tap::SetCarrier(bool on) const {
  int carrier = on ? 1 : 0;
  (void)ioctl(fd_.get(), TUNSETCARRIER, &carrier);
}

uint32_t Tap::Read(uint8_t* frame, uint32_t max) const {
  wire::VnetHeader head;
  const iovec parts[2] = {{&head, sizeof(head)}, {frame, max}};
  const ssize_t got = readv(fd_.get(), parts, 2);
  constexpr ssize_t kHead = sizeof(head);
  return got > kHead ? static_cast<uint32_t>(got - kHead) : 0;
}

bool Tap::Write(const uint8_t* frame, uint32_t bytes, bool may_be_partial) const {
  wire::VnetHeader head{};
  wire::Packet packet;
  if (may_be_partial && wire::ParseFrame(frame, bytes, 0, packet) == wire::Refusal::kL4Checksum &&
      wire::ParseFrame(frame, bytes, wire::kRxMayBePartial, packet) == wire::Refusal::kNone) {
    head.flags = wire::kVnetNeedsChecksum;  // the kernel may do without, it comes from a kernel
    head.checksum_start = static_cast<uint16_t>(packet.ip.l4_off);
    head.checksum_off =
        packet.ip.protocol == wire::kProtocolTcp ? wire::kTcpChecksumOff : wire::kUdpChecksumOff;
  }
  const iovec parts[2] = {{&head, sizeof(head)}, {const_cast<uint8_t*>(frame), bytes}};
  return writev(fd_.get(), parts, 2) == static_cast<ssize_t>(sizeof(head) + bytes);
}

}  // namespace postern::softnic
