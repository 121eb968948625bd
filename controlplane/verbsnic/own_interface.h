// own_interface.h - the kernel's side of a card whose interface stays the kernel's.
// SPDX-License-Identifier: Apache-2.0
//
// What the card's rules let through and no filter is for (a connection that the kernel had before
// its listener had a filter, say) goes back to the kernel as if it had come by the interface: by
// running an XDP program that passes everything on this one packet (BPF_PROG_RUN with
// BPF_F_TEST_XDP_LIVE_FRAMES). It is attached nowhere.
//
// Of what the kernel gets from the card, ICMP errors may be about a program's packet, and no rule
// can tell. A packet socket has copies of them; the kernel, which has no connection that they could
// be about, lets them go.
#pragma once
#include <string>

#include "../posternd/kit/fd.h"
#include "../softnic/kernel_side.h"

namespace postern::verbsnic {

using daemon::UniqueFd;

class OwnInterface final : public softnic::KernelSide {
 public:
  // In the interface's network namespace. False after a message.
  bool Open(const std::string& name);

  int fd() const override { return errors_.get(); }
  bool was_there() const override { return false; }
  bool has_copies() const override { return true; }
  void SetCarrier(bool) const override {}
  uint32_t Read(uint8_t* frame, uint32_t max) const override;
  bool Write(const uint8_t* frame, uint32_t bytes, bool may_be_partial) const override;

 private:
  bool Pass(const uint8_t* frame, uint32_t bytes) const;

  uint32_t ifindex_ = 0;
  UniqueFd errors_;   // the packet socket
  UniqueFd program_;  // XDP_PASS
};

}  // namespace postern::verbsnic
