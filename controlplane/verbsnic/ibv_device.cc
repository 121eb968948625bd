// ibv_device.cc - see ibv_device.h.
// SPDX-License-Identifier: Apache-2.0
#include "ibv_device.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace postern::verbsnic {
namespace {

// Those that name a device, and go with it.
template <typename Work>
void WithDevices(const Work& work) {
  int count = 0;
  ibv_device** const list = ibv_get_device_list(&count);
  if (list == nullptr) return;
  for (int i = 0; i < count; i++) work(list[i]);
  ibv_free_device_list(list);
}

}  // namespace

const char* OpenErrorText(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "/dev/infiniband/uverbs* can't be opened: not root?";
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return "/dev/infiniband/uverbs* is missing: in a container it has to be passed in";
    default:
      return "the device can't be opened";
  }
}

const char* CreateErrorText(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "no raw packet queue pair: CAP_NET_RAW is missing";
    case EOPNOTSUPP:
    case ENOSYS:
    case EINVAL:
      return "no raw packet queue pair: the device has none (rxe and siw, for instance, have none)";
    case ENOMEM:
      return "no raw packet queue pair: memory; see ulimit -l";
    default:
      return "no raw packet queue pair";
  }
}

int IbvDevice::Fail(const char* what, int error) const {
  fprintf(stderr, "%s: %s: %s: %s\n", program_invocation_short_name, name_.c_str(), what,
          strerror(error));
  return error != 0 ? error : EIO;
}

std::vector<std::string> IbvDevice::Names() {
  std::vector<std::string> names;
  WithDevices([&](ibv_device* device) { names.emplace_back(ibv_get_device_name(device)); });
  std::sort(names.begin(), names.end());
  return names;
}

bool IbvDevice::Open(const std::string& name, uint8_t port) {
  name_ = name;
  port_ = port;
  int error = ENODEV;
  WithDevices([&](ibv_device* device) {
    if (context_ != nullptr || name != ibv_get_device_name(device)) return;
    errno = 0;
    context_ = ibv_open_device(device);
    error = errno;
  });
  if (context_ == nullptr) {
    (void)Fail(OpenErrorText(error), error);
    return false;
  }
  ibv_port_attr about{};
  error = ibv_query_port(context_, port_, &about);
  if (error != 0) {
    (void)Fail("its port", error);
    return false;
  }
  if (about.link_layer != IBV_LINK_LAYER_ETHERNET) {
    (void)Fail("its port is InfiniBand: VIs are over Ethernet only", EPROTOTYPE);
    return false;
  }
  const int flags = fcntl(context_->async_fd, F_GETFL);
  if (flags < 0 || fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    (void)Fail("its events", errno);
    return false;
  }
  return true;
}

IbvDevice::~IbvDevice() {
  if (pair_ != nullptr) (void)ibv_destroy_qp(pair_);
  if (sent_ != nullptr) (void)ibv_destroy_cq(sent_);
  if (received_ != nullptr) (void)ibv_destroy_cq(received_);
  if (memory_ != nullptr) (void)ibv_dereg_mr(memory_);
  if (domain_ != nullptr) (void)ibv_dealloc_pd(domain_);
  if (context_ != nullptr) (void)ibv_close_device(context_);
}

int IbvDevice::Create(void* memory, size_t bytes, uint32_t& depth, uint32_t& lkey) {
  ibv_device_attr about{};
  if (const int error = ibv_query_device(context_, &about); error != 0)
    return Fail("its limits", error);
  depth = std::min({depth, static_cast<uint32_t>(std::max(about.max_qp_wr, 1)),
                    static_cast<uint32_t>(std::max(about.max_cqe, 1))});
  domain_ = ibv_alloc_pd(context_);
  if (domain_ == nullptr) return Fail("a protection domain", errno);
  memory_ = ibv_reg_mr(domain_, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
  if (memory_ == nullptr) return Fail("memory can't be registered; see ulimit -l", errno);
  lkey = memory_->lkey;
  received_ = ibv_create_cq(context_, static_cast<int>(depth), nullptr, nullptr, 0);
  if (received_ == nullptr) return Fail("a completion queue", errno);
  sent_ = ibv_create_cq(context_, static_cast<int>(depth), nullptr, nullptr, 0);
  if (sent_ == nullptr) return Fail("a completion queue", errno);
  ibv_qp_init_attr wanted{};
  wanted.send_cq = sent_;
  wanted.recv_cq = received_;
  wanted.cap = {depth, depth, 1, 1, 0};
  wanted.qp_type = IBV_QPT_RAW_PACKET;
  pair_ = ibv_create_qp(domain_, &wanted);
  if (pair_ == nullptr) {
    const int error = errno;
    return Fail(CreateErrorText(error), error);
  }
  return 0;
}

int IbvDevice::Modify(ibv_qp_attr& attr, int mask) { return ibv_modify_qp(pair_, &attr, mask); }

int IbvDevice::PostReceive(ibv_recv_wr* first, ibv_recv_wr** bad) {
  return ibv_post_recv(pair_, first, bad);
}

int IbvDevice::PostSend(ibv_send_wr* first, ibv_send_wr** bad) {
  return ibv_post_send(pair_, first, bad);
}

int IbvDevice::PollReceived(int max, ibv_wc* out) { return ibv_poll_cq(received_, max, out); }
int IbvDevice::PollSent(int max, ibv_wc* out) { return ibv_poll_cq(sent_, max, out); }

int IbvDevice::CreateFlow(ibv_flow_attr& attr, ibv_flow** flow) {
  errno = 0;
  *flow = ibv_create_flow(pair_, &attr);
  if (*flow != nullptr) return 0;
  return errno != 0 ? errno : EIO;
}

int IbvDevice::DestroyFlow(ibv_flow* flow) { return ibv_destroy_flow(flow); }

bool IbvDevice::NextEvent(ibv_event_type& type) {
  ibv_async_event event{};
  if (ibv_get_async_event(context_, &event) != 0) return false;
  type = event.event_type;
  ibv_ack_async_event(&event);
  return true;
}

bool IbvDevice::IsPortActive() {
  ibv_port_attr about{};
  return ibv_query_port(context_, port_, &about) == 0 && about.state == IBV_PORT_ACTIVE;
}

}  // namespace postern::verbsnic
