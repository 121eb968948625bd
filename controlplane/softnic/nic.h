// nic.h - the driver's loop: packets between the card, the VIs and the kernel; and what posternd
// asks.
// SPDX-License-Identifier: Apache-2.0
//
//   card --Steer--> VI's rx ring        VI's tx ring --> card
//        `--------> the kernel            the kernel --> card
//
// One thread. It polls the card as long as there is work; then it sleeps for a time that grows, up
// to a limit, since not every card can wake us: programs, the kernel and posternd do.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "clients.h"
#include "kernel_flows.h"
#include "kernel_side.h"
#include "nic_port.h"
#include "softnic_proto.h"
#include "steer.h"

namespace postern::softnic {

class Nic {
 public:
  struct Pace {
    uint32_t spin_usec = 50;  // without work, before it sleeps
    uint32_t nap_usec = 500;  // the longest sleep
  };
  Nic(Port& port, KernelSide& kernel_side, KernelFlows& kernel, Pace pace, uint64_t seed);

  // The socket that posternd comes to, by the interface's name, in the network namespace that we
  // are in. 0 or -errno.
  int Listen(const std::string& interface);
  // Until `ended` is true; or the card is gone: false.
  bool Run(const std::atomic<bool>& ended);
  void Report() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class What : uint32_t { kListener, kPosternd, kBell, kKernel };

  bool FromCard();
  void ToKernel(const Port::View& packet);
  bool FromPrograms();
  void ToVi(ViClient& vi, const Port::View& packet);
  void RingTouched();
  bool FromKernel();
  bool FromProgram(ViClient& vi);
  // Sleeps at most so long, and does what has been asked for meanwhile. Whether there was any.
  bool Attend(std::chrono::nanoseconds at_most);
  bool Sleep(std::chrono::nanoseconds at_most);
  bool LookAtCard();
  void Watch(What what, uint32_t number, int fd) const;
  void Unwatch(int fd) const;

  // nic_control.cc
  void Accept();
  void Serve(uint32_t posternd);
  void Answer(uint32_t posternd, Msg& message, int (&fds)[kFdsMax], uint32_t count,
              const pstn_xdp_ip* addresses, size_t address_count);
  int Open(uint32_t posternd, UniqueFd area, UniqueFd rings, UniqueFd bell, Msg& message);
  void End(uint32_t slot);
  // The filter, for the card too. 0 or -errno.
  int Add(const Msg& message, const pstn_xdp_target& target, uint64_t owner);
  // Rules of the card whose filters are gone.
  void DropRules();

  Port& port_;
  KernelSide& kernel_side_;
  const Pace pace_;
  Steer steer_;
  ViClients vis_;
  UniqueFd set_, listener_;
  std::map<uint32_t, UniqueFd> posternds_;  // by a number that is never used twice
  uint32_t next_posternd_ = 1;
  bool link_up_ = true;
  Clock::time_point link_seen_{};
  // Until then the kernel gets no IP: the driver before had VIs, whose packets it would answer with
  // a RST while no posternd has told us of them.
  Clock::time_point quiet_until_{};
  bool quiet_ = false;
  uint64_t to_kernel_ = 0, kernel_full_ = 0, from_kernel_ = 0, card_full_ = 0, held_back_ = 0;
  uint64_t copies_ = 0;
};

}  // namespace postern::softnic
