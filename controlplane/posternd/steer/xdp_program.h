// xdp_program.h - bpf/xdp_filter.bpf.c on one interface, and its maps.
// SPDX-License-Identifier: Apache-2.0
//
// One program for each interface, which all VIs of that interface share. It stays attached as long
// as a process has its link: posternd, or a process that uses a VI and got the link with the
// sockets. So the death of posternd changes nothing for them, and the next posternd finds the
// program and its maps on the interface. To be called in the interface's network namespace
// (NetnsWorker), but for what only works on the maps.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "../kit/fd.h"
#include "filter_maps.h"

namespace postern::daemon {

class XdpProgram final : public FilterMaps {
 public:
  // Whether this posternd was built with it.
  static bool Built();

  // Attaches it, in driver mode where the driver can, or takes over what an earlier posternd has
  // attached. 0 or -errno, after Warn(): EBUSY, the interface has another program.
  int Attach(uint32_t ifindex, const std::string& name);

  // Off the interface, for Attach() to another one: loading it anew takes a tenth of a second, in
  // which posternd answers no client. False: it is not to be had again (it was taken over).
  bool Detach();

  bool generic() const { return generic_; }
  bool taken_over() const override { return taken_over_; }
  UniqueFd CopyLink() const;
  // False: the interface is gone, or it was detached.
  bool attached() const override;

  // The sockets of a VI, by queue, into a free slot, which is returned; or -errno. What an earlier
  // owner of the slot has left behind is taken out first. `is_taken`: the kernel takes the sockets
  // out that are closed, but their slot is to be dropped yet.
  using IsTaken = std::function<bool(uint32_t slot)>;
  int AddSockets(const std::vector<UniqueFd>& sockets, const IsTaken& is_taken);
  // Its owner is entered as the cookie of its first socket (FindSlot()).
  void DropSlot(uint32_t slot) override;

 private:
  int Load(const std::string& name);
  int AttachNew(uint32_t ifindex, const std::string& name);
  int TakeOver(uint32_t ifindex, uint32_t program);
  void TakeOne(const std::string& name, UniqueFd& map);
  bool HasAll() const;

  UniqueFd program_, link_, xsks_;
  bool generic_ = false, taken_over_ = false;
};

}  // namespace postern::daemon
