// ibv_device.h - an RDMA device by libibverbs: the only file here that calls it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "rdma_calls.h"

namespace postern::verbsnic {

class IbvDevice final : public Verbs {
 public:
  IbvDevice() = default;
  ~IbvDevice() override;
  IbvDevice(const IbvDevice&) = delete;
  IbvDevice& operator=(const IbvDevice&) = delete;

  static std::vector<std::string> Names();
  // False after a message.
  bool Open(const std::string& name, uint8_t port);

  int Create(void* memory, size_t bytes, uint32_t& depth, uint32_t& lkey) override;
  int Modify(ibv_qp_attr& attr, int mask) override;
  int PostReceive(ibv_recv_wr* first, ibv_recv_wr** bad) override;
  int PostSend(ibv_send_wr* first, ibv_send_wr** bad) override;
  int PollReceived(int max, ibv_wc* out) override;
  int PollSent(int max, ibv_wc* out) override;
  int CreateFlow(ibv_flow_attr& attr, ibv_flow** flow) override;
  int DestroyFlow(ibv_flow* flow) override;
  bool NextEvent(ibv_event_type& event) override;
  bool IsPortActive() override;
  uint8_t port() const override { return port_; }
  const char* name() const override { return name_.c_str(); }

 private:
  int Fail(const char* what, int error) const;

  std::string name_;
  uint8_t port_ = 1;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_mr* memory_ = nullptr;
  ibv_cq *received_ = nullptr, *sent_ = nullptr;
  ibv_qp* pair_ = nullptr;
};

// What to say of an error of ibv_open_device() or ibv_create_qp().
const char* OpenErrorText(int error);
const char* CreateErrorText(int error);

}  // namespace postern::verbsnic
