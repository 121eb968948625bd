// verbs_port.cc - see verbs_port.h.
// SPDX-License-Identifier: Apache-2.0
#include "verbs_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <iterator>

#include "flow_rule.h"

namespace postern::verbsnic {
namespace {

using softnic::kBurst;

constexpr uint32_t kFrameMin = 60;    // of Ethernet; mlx5 refuses to send less than its headers
constexpr uint32_t kLinkHeader = 18;  // with a tag

[[gnu::format(printf, 2, 3)]] bool Fail(const Verbs& verbs, const char* format, ...) {
  fprintf(stderr, "%s: %s: ", program_invocation_short_name, verbs.name());
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  return false;
}

// Never on a wire: to see whether the card has rules at all.
pstn_xdp_flow NobodysFlow() {
  pstn_xdp_flow flow{};
  for (pstn_xdp_ip* ip : {&flow.local, &flow.peer}) {
    ip->byte[10] = ip->byte[11] = 0xff;
    ip->byte[12] = 127;
    ip->byte[15] = 1;
  }
  flow.local_port = flow.peer_port = htons(9);
  flow.protocol = IPPROTO_UDP;
  return flow;
}

template <typename Key>
std::string BytesOf(const Key& key) {
  return {reinterpret_cast<const char*>(&key), sizeof(key)};
}

template <typename Key>
Key KeyOf(const std::string& bytes) {
  Key key;
  memcpy(&key, bytes.data(), sizeof(key));
  return key;
}

}  // namespace

const char* FlowErrorText(int error) {
  switch (error) {
    case EOPNOTSUPP:
    case ENOSYS:
    case EPROTONOSUPPORT:
      return "its driver does not steer packets by rules; of mlx4 see log_num_mgm_entry_size in "
             "docs/nics.md";
    case EPERM:
    case EACCES:
      return "not permitted: rules need CAP_NET_RAW";
    case ENOSPC:
    case ENOMEM:
      return "the card's table is full";
    case EINVAL:
      return "it does not know rules by MAC address, IP addresses and ports";
    default:
      return "unexpected";
  }
}

// ---- the queue pair ----------------------------------------------------------------------------

bool VerbsPort::Open(const uint8_t (&mac)[6], uint32_t mtu) {
  if (mtu > kMtuMax)
    return Fail(verbs_, "an MTU of %u: a VI has frames for %u at most (ip link set ... mtu 1500)",
                mtu, kMtuMax);
  memcpy(mac_, mac, sizeof(mac_));
  mtu_ = mtu;
  driver_ = verbs_.name();
  memory_bytes_ = size_t{2} * kDepth * kBufferBytes;
  void* const at =
      mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return Fail(verbs_, "no memory for packets: %s", strerror(errno));
  memory_ = static_cast<uint8_t*>(at);
  int error = verbs_.Create(memory_, memory_bytes_, depth_, lkey_);
  if (error != 0) return false;  // it has said what
  depth_ = std::min(depth_, kDepth);
  error = Restart();
  if (error != 0) return Fail(verbs_, "the queue pair can't be started: %s", strerror(error));
  const pstn_xdp_flow probe = NobodysFlow();
  if (AddFlow(probe, 0) != 0) return false;
  RemoveFlow(probe);
  return true;
}

VerbsPort::~VerbsPort() {
  for (Rules* rules : {&flows_, &ports_}) {
    for (const auto& [key, flow] : *rules) (void)verbs_.DestroyFlow(flow);
  }
  // Registered memory stays the card's until that ends, even if other processes have it mapped.
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

int VerbsPort::GoTo(ibv_qp_state state) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  attr.port_num = verbs_.port();
  return verbs_.Modify(attr, state == IBV_QPS_INIT ? IBV_QP_STATE | IBV_QP_PORT : IBV_QP_STATE);
}

// From any state to one that works. What was under way is lost.
int VerbsPort::Restart() {
  if (const int error = GoTo(IBV_QPS_RESET); error != 0) return error;
  // Of a queue pair in RESET nothing completes any more; of what has, the buffers are free, too.
  ibv_wc done[kBurst];
  for (uint32_t i = 0; i < 2 * depth_ && verbs_.PollReceived(kBurst, done) > 0; i++) {
  }
  for (uint32_t i = 0; i < 2 * depth_ && verbs_.PollSent(kBurst, done) > 0; i++) {
  }
  to_post_.clear();
  free_.clear();
  for (uint32_t i = depth_; i != 0; i--) {
    to_post_.push_back(i - 1);
    free_.push_back(kDepth + i - 1);
  }
  is_broken_ = false;
  if (const int error = GoTo(IBV_QPS_INIT); error != 0) return error;
  PostReceives();
  if (const int error = GoTo(IBV_QPS_RTR); error != 0) return error;
  return GoTo(IBV_QPS_RTS);
}

void VerbsPort::Broken(const char* what, const char* why) {
  counters_.errors++;
  if (is_broken_) return;
  is_broken_ = true;
  (void)Fail(verbs_, "%s: %s: the queue pair begins anew", what, why);
}

bool VerbsPort::LookAfter() {
  for (ibv_event_type event; verbs_.NextEvent(event);) {
    if (event == IBV_EVENT_DEVICE_FATAL) return Fail(verbs_, "the device is gone, or has failed");
    if (event == IBV_EVENT_CQ_ERR) return Fail(verbs_, "a completion queue has failed");
    if (event == IBV_EVENT_QP_FATAL || event == IBV_EVENT_WQ_FATAL ||
        event == IBV_EVENT_QP_REQ_ERR || event == IBV_EVENT_QP_ACCESS_ERR)
      Broken("the queue pair", "the device reports an error");
  }
  if (is_lost_) return Fail(verbs_, "the completion queues can't be read any more");
  if (!is_broken_) return true;
  if (++restarts_ > kRestartsMax)
    return Fail(verbs_, "%u times begun anew, and no packet has come through", kRestartsMax);
  const int error = Restart();
  return error == 0 || Fail(verbs_, "the queue pair can't be started again: %s", strerror(error));
}

// ---- packets -----------------------------------------------------------------------------------

void VerbsPort::PostReceives() {
  while (!to_post_.empty() && !is_broken_) {
    ibv_recv_wr requests[kBurst] = {};
    ibv_sge pieces[kBurst];
    const uint32_t count = std::min<uint32_t>(kBurst, static_cast<uint32_t>(to_post_.size()));
    for (uint32_t i = 0; i < count; i++) {
      const uint32_t buffer = to_post_[to_post_.size() - 1 - i];
      pieces[i] = {reinterpret_cast<uintptr_t>(BufferAt(buffer)), kBufferBytes, lkey_};
      requests[i].wr_id = buffer;
      requests[i].sg_list = &pieces[i];
      requests[i].num_sge = 1;
      requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    const int error = verbs_.PostReceive(requests, &bad);
    // What is before the bad one is posted.
    const auto posted = error == 0 ? count : static_cast<uint32_t>(bad - requests);
    to_post_.resize(to_post_.size() - posted);
    if (error == 0) continue;
    if (error != ENOMEM) Broken("a buffer to receive into is refused", strerror(error));
    return;  // no room yet: the next time
  }
}

uint32_t VerbsPort::Receive(View (&out)[kBurst]) {
  PostReceives();
  ibv_wc done[kBurst];
  const int polled = verbs_.PollReceived(kBurst, done);
  is_lost_ |= polled < 0;
  uint32_t count = 0;
  for (int i = 0; i < polled; i++) {
    const ibv_wc& c = done[i];
    if (c.status != IBV_WC_SUCCESS) {
      Broken("receiving", ibv_wc_status_str(c.status));
    } else if (c.wr_id >= depth_ || c.byte_len > kBufferBytes) {
      Broken("receiving", "a completion of nothing that was posted");
    } else {
      out[count++] = {BufferAt(c.wr_id), c.byte_len};
      to_post_.push_back(static_cast<uint32_t>(c.wr_id));
    }
  }
  counters_.rx += count;
  if (count != 0) restarts_ = 0;
  return count;
}

void VerbsPort::TakeSent() {
  ibv_wc done[kBurst];
  for (;;) {
    const int polled = verbs_.PollSent(kBurst, done);
    is_lost_ |= polled < 0;
    for (int i = 0; i < polled; i++) {
      if (done[i].status != IBV_WC_SUCCESS) {
        Broken("sending", ibv_wc_status_str(done[i].status));
      } else if (done[i].wr_id < kDepth || done[i].wr_id >= kDepth + depth_) {
        Broken("sending", "a completion of nothing that was posted");
      } else {
        free_.push_back(static_cast<uint32_t>(done[i].wr_id));
        counters_.tx++;
        restarts_ = 0;
      }
    }
    if (polled < static_cast<int>(kBurst)) return;
  }
}

uint32_t VerbsPort::Send(const View* packets, uint32_t count) {
  TakeSent();
  if (is_broken_ || is_lost_) return 0;
  ibv_send_wr requests[kBurst] = {};
  ibv_sge pieces[kBurst];
  uint32_t place[kBurst];  // of each in `packets`
  uint32_t made = 0;
  count = std::min(count, kBurst);
  for (uint32_t i = 0; i < count; i++) {
    if (packets[i].bytes == 0) continue;
    if (packets[i].bytes > mtu_ + kLinkHeader) {  // no card sends it, and some stop at it
      counters_.errors++;
      continue;
    }
    if (made == free_.size()) {
      count = i;
      break;
    }
    const uint32_t buffer = free_[free_.size() - 1 - made];
    uint8_t* const at = BufferAt(buffer);
    const uint32_t bytes = std::max(packets[i].bytes, kFrameMin);
    memcpy(at, packets[i].data, packets[i].bytes);
    memset(at + packets[i].bytes, 0, bytes - packets[i].bytes);
    pieces[made] = {reinterpret_cast<uintptr_t>(at), bytes, lkey_};
    ibv_send_wr& request = requests[made];
    request.wr_id = buffer;
    request.sg_list = &pieces[made];
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    if (made != 0) requests[made - 1].next = &request;
    place[made++] = i;
  }
  if (made == 0) return count;
  ibv_send_wr* bad = nullptr;
  const int error = verbs_.PostSend(requests, &bad);
  const auto posted = error == 0 ? made : static_cast<uint32_t>(bad - requests);
  free_.resize(free_.size() - posted);
  if (error == 0) return count;
  if (error != ENOMEM) Broken("a packet to send is refused", strerror(error));
  return place[posted];
}

// ---- rules -------------------------------------------------------------------------------------

void VerbsPort::SayFlowError(int error) {
  if (error == said_error_) return;
  said_error_ = error;
  (void)Fail(verbs_, "a rule for a filter (there are %zu): %s: %s", rules(), strerror(error),
             FlowErrorText(error));
}

template <typename Key>
int VerbsPort::Add(Rules& rules, const Key& key, uint32_t flags) {
  if ((flags & PSTN_XDP_PASS) != 0) {  // the kernel has it, unless a wider rule brings it here
    Remove(rules, key);
    return 0;
  }
  const std::string bytes = BytesOf(key);
  if (rules.count(bytes) != 0) return 0;
  FlowRule rule(key, mac_, verbs_.port());
  ibv_flow* flow = nullptr;
  const int error = verbs_.CreateFlow(rule.attr(), &flow);
  if (error != 0) {
    SayFlowError(error);
    return -error;
  }
  said_error_ = 0;
  rules[bytes] = flow;
  return 0;
}

template <typename Key>
void VerbsPort::Remove(Rules& rules, const Key& key) {
  const auto it = rules.find(BytesOf(key));
  if (it == rules.end()) return;
  (void)verbs_.DestroyFlow(it->second);
  rules.erase(it);
}

int VerbsPort::AddFlow(const pstn_xdp_flow& flow, uint32_t flags) {
  return Add(flows_, flow, flags);
}
int VerbsPort::AddPort(const pstn_xdp_port& port, uint32_t flags) {
  return Add(ports_, port, flags);
}
void VerbsPort::RemoveFlow(const pstn_xdp_flow& flow) { Remove(flows_, flow); }
void VerbsPort::RemovePort(const pstn_xdp_port& port) { Remove(ports_, port); }

void VerbsPort::KeepOnly(const HasFlow& has_flow, const HasPort& has_port) {
  const auto keep = [this](Rules& rules, const auto& has) {
    for (auto it = rules.begin(); it != rules.end();) {
      if (has(it->first)) {
        it = std::next(it);
      } else {
        (void)verbs_.DestroyFlow(it->second);
        it = rules.erase(it);
      }
    }
  };
  keep(flows_, [&](const std::string& key) { return has_flow(KeyOf<pstn_xdp_flow>(key)); });
  keep(ports_, [&](const std::string& key) { return has_port(KeyOf<pstn_xdp_port>(key)); });
}

}  // namespace postern::verbsnic
