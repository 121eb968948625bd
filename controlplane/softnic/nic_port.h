// nic_port.h - a network card as the driver's loop sees it.
// SPDX-License-Identifier: Apache-2.0
//
// DpdkPort (dpdk_port.h) gives the loop every packet of the card; VerbsPort (../verbsnic) only
// those that its rules let through, and wants to be told of the filters therefore.
#pragma once
#include <cstdint>
#include <functional>

#include "../posternd/bpf/xdp_maps.h"

namespace postern::softnic {

inline constexpr uint32_t kBurst = 32;

class Port {
 public:
  virtual ~Port() = default;

  const uint8_t (&mac() const)[6] { return mac_; }
  uint32_t mtu() const { return mtu_; }
  const char* driver() const { return driver_; }
  // Its packets come from a kernel of this host, which may leave checksums to a card.
  bool may_be_partial() const { return is_software_; }
  virtual bool IsLinkUp() const = 0;
  // Now and then. False after a message: the card is gone, or does not recover.
  virtual bool LookAfter() { return true; }

  struct View {
    const uint8_t* data;
    uint32_t bytes;
  };
  // Packets that have come, good until the next call. At most kBurst.
  virtual uint32_t Receive(View (&out)[kBurst]) = 0;
  // Copies of these, as many as the card takes, from the first one on. What has no bytes counts as
  // sent.
  virtual uint32_t Send(const View* packets, uint32_t count) = 0;

  // From here on the packets of this filter have to come to Receive(); more may. Once more with
  // other flags: as if it were new. 0 or -errno.
  virtual int AddFlow(const pstn_xdp_flow&, uint32_t /*flags*/) { return 0; }
  virtual int AddPort(const pstn_xdp_port&, uint32_t /*flags*/) { return 0; }
  virtual void RemoveFlow(const pstn_xdp_flow&) {}
  virtual void RemovePort(const pstn_xdp_port&) {}
  // Those that are not there any more, after many have gone at once.
  using HasFlow = std::function<bool(const pstn_xdp_flow&)>;
  using HasPort = std::function<bool(const pstn_xdp_port&)>;
  virtual void KeepOnly(const HasFlow&, const HasPort&) {}

  struct Counters {
    uint64_t rx, rx_missed, rx_no_mbuf, tx, errors;
  };
  virtual Counters counters() const = 0;

 protected:
  Port() = default;
  Port(const Port&) = default;
  Port& operator=(const Port&) = default;

  uint8_t mac_[6] = {};
  uint32_t mtu_ = 0;
  const char* driver_ = "";
  bool is_software_ = false;
};

}  // namespace postern::softnic
