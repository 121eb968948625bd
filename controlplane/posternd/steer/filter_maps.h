// filter_maps.h - the tables of vi_table.h as posternd has them: which VI's slot a packet is for.
// SPDX-License-Identifier: Apache-2.0
//
// Every program that steers in the kernel has the same ones. They live as long as the program does;
// a posternd that finds one on an interface gets its tables by their names.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../kit/fd.h"
#include "steering.h"

namespace postern::daemon {

class FilterMaps : public Steering {
 public:
  int AddFlow(const pstn_xdp_flow& flow, const pstn_xdp_target& target) override;
  int AddPort(const pstn_xdp_port& port, const pstn_xdp_target& target) override;
  int SlotOf(const pstn_xdp_flow& flow) const override;
  int SlotOf(const pstn_xdp_port& port) const override;
  void RemoveFlow(const pstn_xdp_flow& flow, uint32_t slot) override;
  void RemovePort(const pstn_xdp_port& port, uint32_t slot) override;
  void Sweep(const Keep& keep) override;
  void SetLocal(const std::vector<pstn_addr>& addresses) override;
  // The owner of a slot before posternd was started anew, by what it was entered as.
  int FindSlot(uint64_t owner) const;
  // PSTN_XDP_COUNT_*, over all processors.
  uint64_t Count(uint32_t which) const;

 protected:
  // One of a program's maps. False: it is none of these.
  bool TakeMap(const std::string& name, UniqueFd& map);
  bool HasMaps() const;
  // `take` for each map of a program that is there already. False: it is not of that name, or they
  // can't be had.
  using Take = std::function<void(const std::string& name, UniqueFd& map)>;
  static bool EachMap(uint32_t program, const std::string& name, const Take& take);
  void SetOwner(uint32_t slot, uint64_t owner);
  // No filter leads to that slot any more, and it has no owner.
  void PurgeSlot(uint32_t slot);
  // As they were when they were new.
  void Empty();

 private:
  UniqueFd flows_, ports_, local_, owners_, counts_;
};

}  // namespace postern::daemon
