// nic.h - the driver's loop: packets between the card, the VIs and the TAP; and what posternd asks.
// SPDX-License-Identifier: Apache-2.0
//
//   card --Steer--> VI's rx ring        VI's tx ring --> card
//        `--------> TAP (the kernel)             TAP --> card
//
// One thread. It polls the card as long as there is work; then it sleeps for a time that grows, up
// to a limit, since not every DPDK driver can wake us: programs, the kernel and posternd do.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "clients.h"
#include "kernel_flows.h"
#include "port.h"
#include "proto.h"
#include "steer.h"
#include "tap.h"

namespace postern::softnic {

class Nic {
 public:
  struct Pace {
    uint32_t spin_usec = 50;  // without work, before it sleeps
    uint32_t nap_usec = 500;  // the longest sleep
  };
  Nic(Port& port, Tap& tap, KernelFlows& kernel, Pace pace, uint64_t seed);

  // The socket that posternd comes to, by the interface's name, in the network namespace that we
  // are in. 0 or -errno.
  int Listen(const std::string& interface);
  // Until `ended` is true.
  void Run(const std::atomic<bool>& ended);
  void Report() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class What : uint32_t { kListener, kPosternd, kBell, kTap };

  bool FromCard();
  void ToKernel(const Port::View& packet);
  bool FromPrograms();
  bool FromKernel();
  bool FromProgram(ViClient& vi);
  // Sleeps at most so long, and does what has been asked for meanwhile. Whether there was any.
  bool Attend(std::chrono::nanoseconds at_most);
  bool Sleep(std::chrono::nanoseconds at_most);
  void LookAtLink();
  void Watch(What what, uint32_t number, int fd) const;
  void Unwatch(int fd) const;

  // nic_control.cc
  void Accept();
  void Serve(uint32_t posternd);
  void Answer(uint32_t posternd, Msg& message, int (&fds)[kFdsMax], uint32_t count,
              const pstn_xdp_ip* addresses, size_t address_count);
  int Open(uint32_t posternd, UniqueFd area, UniqueFd rings, UniqueFd bell, Msg& message);
  void End(uint32_t slot);

  Port& port_;
  Tap& tap_;
  const Pace pace_;
  Steer steer_;
  ViClients vis_;
  UniqueFd set_, listener_;
  std::map<uint32_t, UniqueFd> posternds_;  // by a number that is never used twice
  uint32_t next_posternd_ = 1;
  bool link_up_ = true, kernel_has_more_ = false;
  Clock::time_point link_seen_{};
  // Until then the kernel gets no IP: the driver before had VIs, whose packets it would answer with
  // a RST while no posternd has told us of them.
  Clock::time_point quiet_until_{};
  bool quiet_ = false;
  uint64_t to_kernel_ = 0, kernel_full_ = 0, from_kernel_ = 0, card_full_ = 0, held_back_ = 0;
};

}  // namespace postern::softnic
