// steering.h - what brings an interface's packets to VIs: filters, each of a VI's slot.
// SPDX-License-Identifier: Apache-2.0
//
// The XDP program (xdp_program.h) or a driver outside of the kernel (soft_nic.h). To be called in
// the interface's network namespace (NetnsWorker).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../bpf/xdp_maps.h"
#include "abi/postern_abi.h"

namespace postern::daemon {

// Bytes in front of what the MTU counts: Ethernet and a VLAN tag.
inline constexpr uint32_t kLinkHeader = 14 + 4;

// As the key of a table.
template <typename Key>
std::string Bytes(const Key& key) {
  return {reinterpret_cast<const char*>(&key), sizeof(key)};
}

class Steering {
 public:
  Steering() = default;
  virtual ~Steering() = default;
  Steering(const Steering&) = delete;
  Steering& operator=(const Steering&) = delete;

  // False: the interface is gone, or another program steers it now.
  virtual bool attached() const = 0;
  // There may be filters that an earlier posternd has left.
  virtual bool taken_over() const = 0;
  virtual void DropSlot(uint32_t slot) = 0;

  // 0 or -errno; adding what is there replaces it.
  virtual int AddFlow(const pstn_xdp_flow& flow, const pstn_xdp_target& target) = 0;
  virtual int AddPort(const pstn_xdp_port& port, const pstn_xdp_target& target) = 0;
  // Which slot it leads to; -1: there is none.
  virtual int SlotOf(const pstn_xdp_flow& flow) const = 0;
  virtual int SlotOf(const pstn_xdp_port& port) const = 0;
  // Only what leads to that slot.
  virtual void RemoveFlow(const pstn_xdp_flow& flow, uint32_t slot) = 0;
  virtual void RemovePort(const pstn_xdp_port& port, uint32_t slot) = 0;
  // Takes out what is not to be kept, a key's bytes.
  using Keep = std::function<bool(uint32_t slot, const std::string& key)>;
  virtual void Sweep(const Keep& keep) = 0;
  // The addresses that a port on any address means.
  virtual void SetLocal(const std::vector<pstn_addr>& addresses) = 0;
};

}  // namespace postern::daemon
