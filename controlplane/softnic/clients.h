// clients.h - the VIs of the driver: programs' memory, mapped, and the bell of each.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../posternd/kit/fd.h"
#include "vi/packet_area.h"
#include "vi/soft/soft_driver.h"

namespace postern::softnic {

using daemon::UniqueFd;

// One VI. A process that has it mapped may be hostile (soft_driver.h); what is mapped can't shrink
// and is ordinary memory, so that no access to it can fail.
class ViClient {
 public:
  ViClient() = default;
  ~ViClient();
  ViClient(const ViClient&) = delete;
  ViClient& operator=(const ViClient&) = delete;

  // 0 or -errno.
  int Map(UniqueFd area, UniqueFd rings, UniqueFd bell);
  void Ring() const;
  // Takes what the program has rung. False: all of its copies are closed.
  bool Hear() const;
  bool HasRings(int fd) const;

  uint32_t slot = 0;
  uint64_t owner = 0;  // the posternd that has it; 0: none
  bool touched = false;
  SoftDriver driver;
  UniqueFd area_fd, rings_fd, bell;

 private:
  SoftRings* rings_ = nullptr;
  uint8_t* frames_ = nullptr;
  size_t frames_bytes_ = 0;
};

// By slot; a slot is never used twice.
class ViClients {
 public:
  ViClient& Add(std::unique_ptr<ViClient> vi);
  void Remove(uint32_t slot);
  ViClient* At(uint32_t slot);
  ViClient* WithRings(int fd);
  const std::vector<ViClient*>& all() const { return list_; }

 private:
  uint32_t next_slot_ = 1;
  std::unordered_map<uint32_t, std::unique_ptr<ViClient>> by_slot_;
  std::vector<ViClient*> list_;
};

}  // namespace postern::softnic
