// verbs_port.h - a network card by a raw packet queue pair: only packets that rules steer to it.
// SPDX-License-Identifier: Apache-2.0
//
// The interface stays the kernel's, with its addresses. The card gives us the packets of the rules
// (flow_rule.h) that there are for filters, and the kernel everything else; with the process its
// rules go.
//
// Packets are copied once each way, between programs' frames and buffers that are registered: no
// program's memory is the card's.
//
//   receive buffers   posted -> received (shown by Receive()) -> posted
//   send buffers      free -> posted -> completed, which is free
//
// A completion with an error means that the queue pair is in its error state: nothing goes on until
// LookAfter() has reset it, as if the card had been reset. The rules stay, being of the same queue
// pair.
#pragma once
#include <chrono>
#include <string>
#include <unordered_map>
#include <vector>

#include "../softnic/nic_port.h"
#include "rdma_calls.h"

namespace postern::verbsnic {

class VerbsPort final : public softnic::Port {
 public:
  static constexpr uint32_t kDepth = 1024;        // of each queue, if the device has as much
  static constexpr uint32_t kBufferBytes = 2048;  // a packet
  static constexpr uint32_t kMtuMax = 1966;       // of a soft VI's frames, less the link's header
  static constexpr uint32_t kRestartsMax = 10;    // without a packet in between

  explicit VerbsPort(Verbs& verbs) : verbs_(verbs) {}
  ~VerbsPort() override;
  VerbsPort(const VerbsPort&) = delete;
  VerbsPort& operator=(const VerbsPort&) = delete;

  // With the interface's address and MTU. False after a message.
  bool Open(const uint8_t (&mac)[6], uint32_t mtu);

  bool IsLinkUp() const override { return verbs_.IsPortActive(); }
  bool LookAfter() override;
  uint32_t Receive(View (&out)[softnic::kBurst]) override;
  uint32_t Send(const View* packets, uint32_t count) override;
  int AddFlow(const pstn_xdp_flow& flow, uint32_t flags) override;
  int AddPort(const pstn_xdp_port& port, uint32_t flags) override;
  void RemoveFlow(const pstn_xdp_flow& flow) override;
  void RemovePort(const pstn_xdp_port& port) override;
  void KeepOnly(const HasFlow& has_flow, const HasPort& has_port) override;
  Counters counters() const override { return counters_; }
  size_t rules() const { return flows_.size() + ports_.size(); }

 private:
  using Rules = std::unordered_map<std::string, ibv_flow*>;  // by the filter's bytes

  uint8_t* BufferAt(uint64_t index) const { return memory_ + index * kBufferBytes; }
  int Restart();
  int GoTo(ibv_qp_state state);
  void PostReceives();
  void TakeSent();
  void Broken(const char* what, const char* why);
  template <typename Key>
  int Add(Rules& rules, const Key& key, uint32_t flags);
  template <typename Key>
  void Remove(Rules& rules, const Key& key);
  void SayFlowError(int error);

  Verbs& verbs_;
  uint8_t* memory_ = nullptr;  // receive buffers, then send buffers
  size_t memory_bytes_ = 0;
  uint32_t depth_ = kDepth;
  uint32_t lkey_ = 0;
  std::vector<uint32_t> to_post_;  // receive buffers that the card does not have
  std::vector<uint32_t> free_;     // send buffers
  bool is_broken_ = false, is_lost_ = false;
  uint32_t restarts_ = 0;
  Rules flows_, ports_;
  int said_error_ = 0;  // of a rule; each once, until one is made again
  Counters counters_ = {};
};

// What to say of an error of ibv_create_flow().
const char* FlowErrorText(int error);

}  // namespace postern::verbsnic
