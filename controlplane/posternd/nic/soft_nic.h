// soft_nic.h - an interface whose packets postern-softnic drives: VIs and filters there.
// SPDX-License-Identifier: Apache-2.0
//
// posternd makes the rings and the bell of each VI and shows them to the driver. It keeps a copy of
// all that the driver has been told, so that a driver that has died can be followed by another one
// without the programs' noticing more than a card that loses packets for a while. The slots that
// others know are ours; the driver has numbers of its own.
#pragma once
#include <map>

#include "../../softnic/softnic_proto.h"
#include "../kit/fd.h"
#include "ctl/vi_grant.h"
#include "../steer/steering.h"

namespace postern::daemon {

class SoftNic final : public Steering {
 public:
  SoftNic(uint32_t ifindex, std::string name) : ifindex_(ifindex), name_(std::move(name)) {}

  // To the driver; it is told what the one before was told. 0 or -errno.
  int Connect();
  // Its end can be seen there.
  int line() const { return line_.get(); }
  bool connected() const { return line_.ok(); }
  void Disconnect();

  // A VI over that packet area: a slot or -errno, and after Warn(). Fills in what the driver knows
  // of the grant; `fds` is what goes with it.
  int Open(UniqueFd area, ctl::ViGrant& grant, std::vector<UniqueFd>& fds);
  // The slot of the VI with these rings, or -errno.
  int Adopt(const UniqueFd& rings);

  bool attached() const override;
  bool taken_over() const override { return orphans_ != 0; }
  void DropSlot(uint32_t slot) override;
  int AddFlow(const pstn_xdp_flow& flow, const pstn_xdp_target& target) override;
  int AddPort(const pstn_xdp_port& port, const pstn_xdp_target& target) override;
  int SlotOf(const pstn_xdp_flow& flow) const override;
  int SlotOf(const pstn_xdp_port& port) const override;
  void RemoveFlow(const pstn_xdp_flow& flow, uint32_t slot) override;
  void RemovePort(const pstn_xdp_port& port, uint32_t slot) override;
  void Sweep(const Keep& keep) override;
  void SetLocal(const std::vector<pstn_addr>& addresses) override;

 private:
  struct Held {
    UniqueFd area, rings, bell;
    uint32_t there = 0;  // the driver's number
  };
  template <typename Key>
  struct Filter {
    Key key;
    pstn_xdp_target target;
  };
  template <typename Key>
  using Filters = std::map<std::string, Filter<Key>>;  // by the key's bytes

  // Sends it with what belongs to it and waits for the answer, which `message` is then. 0 or
  // -errno; ENETDOWN: there is no driver.
  struct Luggage {
    std::vector<int> fds;
    std::vector<pstn_xdp_ip> addresses;
  };
  int Ask(softnic::Msg& message, Luggage luggage, std::vector<UniqueFd>* answer = nullptr);
  int Ask(softnic::Msg& message) { return Ask(message, {}); }
  int Show(Held& vi);
  int Show(const Filter<pstn_xdp_flow>& filter);
  int Show(const Filter<pstn_xdp_port>& filter);
  int ShowLocal();

  const uint32_t ifindex_;
  const std::string name_;
  UniqueFd line_;
  uint32_t orphans_ = 0, caps_ = 0, mtu_ = 0;
  uint32_t next_slot_ = 0;
  std::map<uint32_t, Held> vis_;  // by our slot
  Filters<pstn_xdp_flow> flows_;
  Filters<pstn_xdp_port> ports_;
  std::vector<pstn_addr> local_;
};

}  // namespace postern::daemon
