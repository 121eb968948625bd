// rdma_calls.h - the calls to an RDMA device that a port makes: libibverbs's, or a test's card's.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

namespace postern::verbsnic {

// One device with one raw packet queue pair, one completion queue each way, and one piece of
// registered memory. Errors are as libibverbs has them: 0 or a positive errno.
class Verbs {
 public:
  virtual ~Verbs() = default;

  // Makes all of these; the queue pair is in RESET then. `lkey`: of that memory. `depth`: of each
  // queue; may become smaller.
  virtual int Create(void* memory, size_t bytes, uint32_t& depth, uint32_t& lkey) = 0;
  virtual int Modify(ibv_qp_attr& attr, int mask) = 0;
  virtual int PostReceive(ibv_recv_wr* first, ibv_recv_wr** bad) = 0;
  virtual int PostSend(ibv_send_wr* first, ibv_send_wr** bad) = 0;
  // How many, or less than 0.
  virtual int PollReceived(int max, ibv_wc* out) = 0;
  virtual int PollSent(int max, ibv_wc* out) = 0;
  virtual int CreateFlow(ibv_flow_attr& attr, ibv_flow** flow) = 0;
  virtual int DestroyFlow(ibv_flow* flow) = 0;
  // What has happened beside the queues, one at a time. False: nothing.
  virtual bool NextEvent(ibv_event_type& event) = 0;
  virtual bool IsPortActive() = 0;
  virtual uint8_t port() const = 0;
  virtual const char* name() const = 0;

 protected:
  Verbs() = default;
  Verbs(const Verbs&) = default;
  Verbs& operator=(const Verbs&) = default;
};

}  // namespace postern::verbsnic
