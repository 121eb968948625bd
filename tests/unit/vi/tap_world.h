// SPDX-License-Identifier: Apache-2.0
// tap_world.h - a TAP's two sides without a TAP: a socket pair keeps packets apart as well, and a
// memfd is a bell.
#pragma once
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "vi/packet_area.h"
#include "vi/tap/tap_vi.h"
#include "wire/packet/virtio_net.h"

namespace postern::test {

inline constexpr uint32_t kTapCaps =
    kCapMultiBuffer | kCapLarge | kCapTxChecksum | kCapRxChecksum | kCapRxPartial;

// Of the kernel's side of one TAP, whose other side is `vi`, number 0 of the area.
class FakeTap {
 public:
  explicit FakeTap(Area& area, int kernel = -1, int owner = -1) {
    int ends[2] = {kernel, owner};
    if (kernel < 0)
      ok_ = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0;
    kernel_ = ends[0];
    const int bell = memfd_create("bell", MFD_CLOEXEC);
    ok_ = ok_ && ftruncate(bell, 4096) == 0;
    bell_ =
        static_cast<uint64_t*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, bell, 0));
    pstn_vi& about = *area.ViAt(0);
    about.ifindex = 7;
    about.queue_count = 1;
    about.mtu = 1500;
    about.caps = kTapCaps;
    about.state = kViUp;
    ok_ = ok_ && vi.Attach(area, 0, ends[1], bell) == 0;
  }
  FakeTap(const FakeTap&) = delete;
  FakeTap& operator=(const FakeTap&) = delete;
  ~FakeTap() {
    vi.Detach();
    munmap(bell_, 4096);
    close(kernel_);
  }

  bool ok() const { return ok_; }
  void Ring(uint64_t packets = 1) { StoreRelaxed(*bell_, *bell_ + packets); }
  // As the kernel queues it; its program has counted it before.
  bool Put(const wire::VnetHeader& header, const std::vector<uint8_t>& frame) {
    iovec parts[2] = {{const_cast<wire::VnetHeader*>(&header), sizeof header},
                      {const_cast<uint8_t*>(frame.data()), frame.size()}};
    return writev(kernel_, parts, 2) == static_cast<ssize_t>(sizeof header + frame.size());
  }
  // What was written to the TAP. False: nothing.
  bool Take(wire::VnetHeader& header, std::vector<uint8_t>& frame) {
    frame.resize(70000);
    iovec parts[2] = {{&header, sizeof header}, {frame.data(), frame.size()}};
    const ssize_t n = readv(kernel_, parts, 2);
    if (n < static_cast<ssize_t>(sizeof header)) return false;
    frame.resize(static_cast<size_t>(n) - sizeof header);
    return true;
  }

  TapVi vi;

 private:
  int kernel_ = -1;
  uint64_t* bell_ = nullptr;
  bool ok_ = true;
};

}  // namespace postern::test
