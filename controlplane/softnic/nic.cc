// nic.cc - see nic.h.
// SPDX-License-Identifier: Apache-2.0
#include "nic.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>

namespace postern::softnic {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr uint32_t kKernelBurst = 32;
constexpr uint32_t kFrameMax = 9 * 1024;
constexpr int kEventsMax = 32;
constexpr microseconds kAttendEvery{50};  // while it is busy
constexpr microseconds kFirstNap{20};
constexpr std::chrono::milliseconds kLinkEvery{200};
constexpr std::chrono::seconds kQuiet{1};  // ten attempts of a posternd that looks for us

}  // namespace

Nic::Nic(Port& port, KernelSide& kernel_side, KernelFlows& kernel, Pace pace, uint64_t seed)
    : port_(port),
      kernel_side_(kernel_side),
      pace_(pace),
      steer_(seed, [&kernel](const pstn_xdp_flow& flow,
                             Steer::Why why) { return kernel.Ask(flow, why); }),
      set_(epoll_create1(EPOLL_CLOEXEC)) {
  Watch(What::kKernel, 0, kernel_side.fd());
}

void Nic::Watch(What what, uint32_t number, int fd) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = uint64_t{static_cast<uint32_t>(what)} << 32 | number;
  (void)epoll_ctl(set_.get(), EPOLL_CTL_ADD, fd, &event);
}

// Before it is closed: posternd may have a copy, for which the kernel would keep it in the set.
void Nic::Unwatch(int fd) const { (void)epoll_ctl(set_.get(), EPOLL_CTL_DEL, fd, nullptr); }

// ---- packets -----------------------------------------------------------------------------------

void Nic::ToKernel(const Port::View& packet) {
  if (quiet_ && packet.bytes > 13 && !(packet.data[12] == 0x08 && packet.data[13] == 0x06)) {
    held_back_++;  // all but ARP
  } else if (kernel_side_.Write(packet.data, packet.bytes, port_.may_be_partial())) {
    to_kernel_++;
  } else {
    kernel_full_++;
  }
}

void Nic::ToVi(ViClient& vi, const Port::View& packet) {
  (void)vi.driver.Deliver(packet.data, packet.bytes);
  vi.touched = true;
}

void Nic::RingTouched() {
  for (ViClient* const vi : vis_.all()) {
    if (!vi->touched) continue;
    vi->touched = false;
    if (vi->driver.Publish()) vi->Ring();
  }
}

bool Nic::FromCard() {
  Port::View packets[kBurst];
  const uint32_t count = port_.Receive(packets);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t slot = steer_.Route(packets[i].data, packets[i].bytes);
    ViClient* const vi = slot != Steer::kKernel ? vis_.At(slot) : nullptr;
    if (vi != nullptr)
      ToVi(*vi, packets[i]);
    else
      ToKernel(packets[i]);
  }
  if (count == 0) return false;
  RingTouched();
  return true;
}

// What the card has no room for stays in the program's ring.
bool Nic::FromProgram(ViClient& vi) {
  SoftPacket packets[kBurst];
  Port::View views[kBurst];
  const uint32_t count = vi.driver.Peek(packets, kBurst);
  if (count == 0) return false;
  for (uint32_t i = 0; i < count; i++) views[i] = {packets[i].data, packets[i].bytes};
  const uint32_t sent = port_.Send(views, count);
  if (sent != 0) vi.driver.Complete(sent);
  return sent != 0;
}

bool Nic::FromPrograms() {
  bool any = false;
  for (ViClient* const vi : vis_.all()) any |= FromProgram(*vi);
  return any;
}

bool Nic::FromKernel() {
  uint8_t frame[kFrameMax];
  for (uint32_t i = 0; i < kKernelBurst; i++) {
    const uint32_t bytes = kernel_side_.Read(frame, sizeof(frame));
    if (bytes == 0) return i != 0;
    const Port::View view = {frame, bytes};
    if (kernel_side_.has_copies()) {
      const uint32_t slot = steer_.Route(frame, bytes);
      if (ViClient* const vi = slot != Steer::kKernel ? vis_.At(slot) : nullptr; vi != nullptr) {
        copies_++;
        ToVi(*vi, view);
      }
      continue;
    }
    from_kernel_++;
    if (port_.Send(&view, 1) == 0) card_full_++;
  }
  return true;
}

// ---- the loop ----------------------------------------------------------------------------------

bool Nic::Attend(nanoseconds at_most) {
  epoll_event events[kEventsMax];
  const timespec limit = {0, static_cast<long>(at_most.count())};
  const int count = epoll_pwait2(set_.get(), events, kEventsMax, &limit, nullptr);
  for (int i = 0; i < count; i++) {
    const auto number = static_cast<uint32_t>(events[i].data.u64);
    switch (static_cast<What>(events[i].data.u64 >> 32)) {
      case What::kListener:
        Accept();
        break;
      case What::kPosternd:
        Serve(number);
        break;
      case What::kBell: {
        const ViClient* const vi = vis_.At(number);
        if (vi != nullptr && !vi->Hear()) End(number);
        break;
      }
      case What::kKernel:
        (void)FromKernel();
        RingTouched();
        break;
    }
  }
  return count > 0;
}

bool Nic::Sleep(nanoseconds at_most) {
  for (ViClient* const vi : vis_.all()) vi->driver.SetAsleep(true);
  FullFence();  // with SoftVi::Kick(): it sees that we sleep, or we what it has to send
  const bool has_tx = std::any_of(vis_.all().begin(), vis_.all().end(),
                                  [](const ViClient* vi) { return vi->driver.HasTx(); });
  const bool asked = Attend(has_tx ? nanoseconds{0} : at_most);
  for (ViClient* const vi : vis_.all()) vi->driver.SetAsleep(false);
  return asked || has_tx;
}

bool Nic::LookAtCard() {
  if (!port_.LookAfter()) return false;
  const bool up = port_.IsLinkUp();
  if (up != link_up_) {
    link_up_ = up;
    kernel_side_.SetCarrier(up);
    for (ViClient* const vi : vis_.all()) vi->driver.SetLink(up);
  }
  return true;
}

bool Nic::Run(const std::atomic<bool>& ended) {
  Clock::time_point worked = Clock::now(), attended = worked;
  nanoseconds nap = kFirstNap;
  kernel_side_.SetCarrier(true);
  quiet_ = kernel_side_.was_there();
  quiet_until_ = worked + kQuiet;
  while (!ended.load(std::memory_order_relaxed)) {
    bool any = FromCard();
    any |= FromPrograms();
    const Clock::time_point now = Clock::now();
    if (any) {
      worked = now;
      nap = kFirstNap;
    }
    if (now - worked > microseconds(pace_.spin_usec)) {
      if (Sleep(nap)) {
        worked = Clock::now();
        nap = kFirstNap;
      } else {
        nap = std::min<nanoseconds>(2 * nap, microseconds(pace_.nap_usec));
      }
      attended = now;
    } else if (now - attended > kAttendEvery) {
      (void)Attend(nanoseconds{0});
      attended = now;
    }
    if (now - link_seen_ > kLinkEvery) {
      link_seen_ = now;
      if (now > quiet_until_) quiet_ = false;
      if (!LookAtCard()) return false;
    }
  }
  return true;
}

void Nic::Report() const {
  const char* const name = program_invocation_short_name;
  const Port::Counters c = port_.counters();
  fprintf(stderr,
          "%s: card: %" PRIu64 " in, %" PRIu64 " out, %" PRIu64 " missed, %" PRIu64
          " without memory, %" PRIu64 " errors\n",
          name, c.rx, c.tx, c.rx_missed, c.rx_no_mbuf, c.errors);
  fprintf(stderr,
          "%s: kernel: %" PRIu64 " in, %" PRIu64 " not taken, %" PRIu64 " out, %" PRIu64
          " without room, %" PRIu64 " held back, %" PRIu64 " copied\n",
          name, to_kernel_, kernel_full_, from_kernel_, card_full_, held_back_, copies_);
  for (const ViClient* const vi : vis_.all()) {
    const SoftDriver::Counters& v = vi->driver.counters();
    fprintf(stderr,
            "%s: VI %u: %" PRIu64 " in, %" PRIu64 " out, %" PRIu64 " without a frame, %" PRIu64
            " too long, %" PRIu64 " bad descriptors\n",
            name, vi->slot, v.rx_packets, v.tx_packets, v.rx_no_frame, v.rx_too_long,
            v.bad_descriptors);
  }
}

}  // namespace postern::softnic
