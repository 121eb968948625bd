// tap_program.h - bpf/tap_filter.bpf.c on one interface, its maps, and the TAPs beside it.
// SPDX-License-Identifier: Apache-2.0
//
// One program at the ingress of the interface, which all its VIs share, held by a link as the XDP
// program is (xdp_program.h): posternd has it, and each process that uses a VI. At the ingress of
// each TAP is the program that says what may leave. That one is held by no link but by the TAP
// itself: its owner, who is not trusted, can't let go of it, and where it was not, what the owner
// writes would be the kernel's.
//
// A TAP lives as long as a process has its descriptor, which posternd has not. What a slot's owner
// is entered as is the kernel's number of its bell's map. To be called in the interface's network
// namespace (NetnsWorker).
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "../kit/fd.h"
#include "filter_maps.h"

namespace postern::daemon {

class TapProgram final : public FilterMaps {
 public:
  // Attaches it, or takes over what an earlier posternd has attached. 0 or -errno, after Warn().
  int Attach(uint32_t ifindex, const std::string& name);
  // Off the interface, whoever has copies of the link.
  void Detach();

  bool taken_over() const override { return taken_over_; }
  UniqueFd CopyLink() const;
  bool attached() const override;

  // A TAP that is down yet, into a free slot, which is returned; or -errno. From here on nothing
  // that it is written comes to the kernel. `bell`: what its owner is to have of the bell.
  using IsTaken = std::function<bool(uint32_t slot)>;
  int AddTap(uint32_t tap, const IsTaken& is_taken, UniqueFd& bell);
  // Whose bell that is: -ENOENT, nobody's; -EINVAL, it is none.
  int FindBell(const UniqueFd& bell) const;
  // And its TAP, if a process should have kept that.
  void DropSlot(uint32_t slot) override;

 private:
  int Load(const std::string& name);
  int TakeOver(uint32_t ifindex);
  void TakeOne(const std::string& name, UniqueFd& map);
  bool HasAll() const;
  int NewBell(uint32_t slot, UniqueFd& bell);

  uint32_t ifindex_ = 0;
  UniqueFd program_, out_, link_, taps_, slots_, bells_;
  bool taken_over_ = false;
};

}  // namespace postern::daemon
