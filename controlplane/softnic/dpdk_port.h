// dpdk_port.h - a network card by DPDK: the only file here that knows of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "nic_port.h"

struct rte_mbuf;
struct rte_mempool;

namespace postern::softnic {

class DpdkPort final : public Port {
 public:
  DpdkPort() = default;
  ~DpdkPort() override;
  DpdkPort(const DpdkPort&) = delete;
  DpdkPort& operator=(const DpdkPort&) = delete;
  // DPDK itself, with its own arguments (argv[0] included). False after a message.
  static bool StartDpdk(std::vector<std::string> arguments);
  // The port of that name, or the only one: configured and started, one queue each way. False after
  // a message.
  bool Open(const std::string& name);

  bool IsLinkUp() const override;
  uint32_t Receive(View (&out)[kBurst]) override;
  uint32_t Send(const View* packets, uint32_t count) override;
  Counters counters() const override;

 private:
  void FreeReceived();

  uint16_t port_ = 0;
  bool is_open_ = false;
  rte_mempool* pool_ = nullptr;
  rte_mbuf* received_[kBurst] = {};
  uint32_t received_count_ = 0;
  std::vector<uint8_t> flat_;  // of packets in more than one piece
};

}  // namespace postern::softnic
