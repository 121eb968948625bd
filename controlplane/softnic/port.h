// port.h - a network card by DPDK: the only file here that knows of it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

struct rte_mbuf;
struct rte_mempool;

namespace postern::softnic {

inline constexpr uint32_t kBurst = 32;

class Port {
 public:
  ~Port();
  // DPDK itself, with its own arguments (argv[0] included). False after a message.
  static bool StartDpdk(std::vector<std::string> arguments);
  // The port of that name, or the only one: configured and started, one queue each way. False after
  // a message.
  bool Open(const std::string& name);

  const uint8_t (&mac() const)[6] { return mac_; }
  uint32_t mtu() const { return mtu_; }
  const char* driver() const { return driver_; }
  // Its packets come from a kernel of this host, which may leave checksums to a card.
  bool may_be_partial() const { return is_software_; }
  bool IsLinkUp() const;

  struct View {
    const uint8_t* data;
    uint32_t bytes;
  };
  // Packets that have come, good until the next call. At most kBurst.
  uint32_t Receive(View (&out)[kBurst]);
  // Copies of these, as many as the card takes, from the first one on. What has no bytes counts as
  // sent.
  uint32_t Send(const View* packets, uint32_t count);

  struct Counters {
    uint64_t rx, rx_missed, rx_no_mbuf, tx, errors;
  };
  Counters counters() const;

 private:
  void FreeReceived();

  uint16_t port_ = 0;
  bool is_open_ = false, is_software_ = false;
  uint8_t mac_[6] = {};
  uint32_t mtu_ = 0;
  const char* driver_ = "";
  rte_mempool* pool_ = nullptr;
  rte_mbuf* received_[kBurst] = {};
  uint32_t received_count_ = 0;
  std::vector<uint8_t> flat_;  // of packets in more than one piece
};

}  // namespace postern::softnic
