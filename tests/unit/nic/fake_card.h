// fake_card.h - an RDMA card with a raw packet queue pair, as libibverbs's manual pages describe
// it.
// SPDX-License-Identifier: Apache-2.0
//
// It knows rules by their bytes alone, and minds what a device minds: states and their order, keys,
// limits of queues, flushes. What a test wants to go wrong it says by the public members.
#pragma once
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "../../../controlplane/verbsnic/rdma_calls.h"

namespace postern::verbsnic {

class FakeCard : public Verbs {
 public:
  using Bytes = std::vector<uint8_t>;

  // ---- what a test does and sees ----

  // From the wire. False: no rule for it, it is the kernel's.
  bool Arrive(const Bytes& frame) {
    const bool wanted = std::any_of(rules_.begin(), rules_.end(),
                                    [&](const Bytes& rule) { return Matches(rule, frame); });
    if (!wanted) return false;
    if ((state_ != IBV_QPS_RTR && state_ != IBV_QPS_RTS) || receives_.empty()) {
      missed++;
      return true;
    }
    const Posted to = receives_.front();
    receives_.pop_front();
    ibv_wc done{};
    done.wr_id = to.id;
    done.status = frame.size() <= to.bytes ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR;
    done.byte_len = static_cast<uint32_t>(frame.size());
    if (done.status == IBV_WC_SUCCESS) memcpy(to.at, frame.data(), frame.size());
    received_.push_back(done);
    if (done.status != IBV_WC_SUCCESS) Err();
    return true;
  }
  // The queue pair goes into its error state.
  void Err() {
    state_ = IBV_QPS_ERR;
    Flush();
  }
  void CompleteSends() {
    for (const uint64_t id : unfinished_) Complete(sent_, id, IBV_WC_SUCCESS);
    unfinished_.clear();
  }
  ibv_qp_state state() const { return state_; }
  size_t receives() const { return receives_.size(); }
  const std::list<Bytes>& rules() const { return rules_; }

  std::vector<Bytes> sent;
  uint64_t missed = 0;
  bool holds_sends = false;  // until CompleteSends()
  uint32_t depth_max = 4096;
  size_t rules_max = 1 << 20;
  int flow_error = 0, create_error = 0, post_error = 0, poll_error = 0;
  ibv_qp_state refused_state = IBV_QPS_UNKNOWN;
  std::deque<ibv_event_type> events;
  bool port_active = true;

  // ---- Verbs ----

  int Create(void* memory, size_t bytes, uint32_t& depth, uint32_t& lkey) override {
    if (create_error != 0) return create_error;
    memory_ = static_cast<uint8_t*>(memory);
    bytes_ = bytes;
    depth = depth_ = std::min(depth, depth_max);
    lkey = kKey;
    state_ = IBV_QPS_RESET;
    return 0;
  }
  int Modify(ibv_qp_attr& attr, int mask) override {
    const ibv_qp_state to = attr.qp_state;
    if (to == refused_state) return EIO;
    const bool in_order = to == IBV_QPS_RESET || (to == IBV_QPS_INIT && state_ == IBV_QPS_RESET) ||
                          (to == IBV_QPS_RTR && state_ == IBV_QPS_INIT) ||
                          (to == IBV_QPS_RTS && state_ == IBV_QPS_RTR);
    const int wanted = to == IBV_QPS_INIT ? IBV_QP_STATE | IBV_QP_PORT : IBV_QP_STATE;
    if (!in_order || mask != wanted || (to == IBV_QPS_INIT && attr.port_num != port()))
      return EINVAL;
    state_ = to;
    if (to == IBV_QPS_RESET) {
      receives_.clear();
      unfinished_.clear();
    }
    return 0;
  }
  int PostReceive(ibv_recv_wr* first, ibv_recv_wr** bad) override {
    for (ibv_recv_wr* w = first; w != nullptr; w = w->next) {
      *bad = w;
      if (state_ == IBV_QPS_RESET || !IsGood(w->sg_list, w->num_sge)) return EINVAL;
      if (receives_.size() == depth_) return ENOMEM;
      const ibv_sge& piece = *w->sg_list;
      receives_.push_back({w->wr_id, reinterpret_cast<uint8_t*>(piece.addr), piece.length});
    }
    if (state_ == IBV_QPS_ERR) Flush();
    return 0;
  }
  int PostSend(ibv_send_wr* first, ibv_send_wr** bad) override {
    for (ibv_send_wr* w = first; w != nullptr; w = w->next) {
      *bad = w;
      if (post_error != 0) return std::exchange(post_error, 0);
      const ibv_sge& piece = *w->sg_list;
      if ((state_ != IBV_QPS_RTS && state_ != IBV_QPS_ERR) || w->opcode != IBV_WR_SEND ||
          w->send_flags != IBV_SEND_SIGNALED || !IsGood(w->sg_list, w->num_sge) ||
          piece.length < 18)
        return EINVAL;
      if (unfinished_.size() == depth_) return ENOMEM;
      if (state_ == IBV_QPS_ERR) {
        Complete(sent_, w->wr_id, IBV_WC_WR_FLUSH_ERR);
        continue;
      }
      const auto* const at = reinterpret_cast<const uint8_t*>(piece.addr);
      sent.emplace_back(at, at + piece.length);
      unfinished_.push_back(w->wr_id);
    }
    if (!holds_sends) CompleteSends();
    return 0;
  }
  int PollReceived(int max, ibv_wc* out) override { return Poll(received_, max, out); }
  int PollSent(int max, ibv_wc* out) override { return Poll(sent_, max, out); }
  int CreateFlow(ibv_flow_attr& attr, ibv_flow** flow) override {
    if (flow_error != 0) return flow_error;
    if (rules_.size() == rules_max) return ENOSPC;
    const auto* const at = reinterpret_cast<const uint8_t*>(&attr);
    rules_.emplace_back(at, at + attr.size);
    if (attr.type != IBV_FLOW_ATTR_NORMAL || attr.port != port() || attr.flags != 0 ||
        attr.comp_mask != 0 || !IsWellFormed(rules_.back())) {
      rules_.pop_back();
      return EINVAL;
    }
    *flow = reinterpret_cast<ibv_flow*>(&rules_.back());
    return 0;
  }
  int DestroyFlow(ibv_flow* flow) override {
    const auto it = std::find_if(rules_.begin(), rules_.end(), [flow](const Bytes& rule) {
      return reinterpret_cast<const ibv_flow*>(&rule) == flow;
    });
    if (it == rules_.end()) return EINVAL;
    rules_.erase(it);
    return 0;
  }
  bool NextEvent(ibv_event_type& event) override {
    if (events.empty()) return false;
    event = events.front();
    events.pop_front();
    return true;
  }
  bool IsPortActive() override { return port_active; }
  uint8_t port() const override { return 1; }
  const char* name() const override { return "fake0"; }

 private:
  static constexpr uint32_t kKey = 0x1234;
  struct Posted {
    uint64_t id;
    uint8_t* at;
    uint32_t bytes;
  };

  bool IsGood(const ibv_sge* pieces, int count) const {
    if (count != 1 || pieces->lkey != kKey) return false;
    const auto* const at = reinterpret_cast<const uint8_t*>(pieces->addr);
    return at >= memory_ && at + pieces->length <= memory_ + bytes_;
  }
  static void Complete(std::deque<ibv_wc>& queue, uint64_t id, ibv_wc_status status) {
    ibv_wc done{};
    done.wr_id = id;
    done.status = status;
    queue.push_back(done);
  }
  void Flush() {
    for (const Posted& posted : receives_) Complete(received_, posted.id, IBV_WC_WR_FLUSH_ERR);
    for (const uint64_t id : unfinished_) Complete(sent_, id, IBV_WC_WR_FLUSH_ERR);
    receives_.clear();
    unfinished_.clear();
  }
  int Poll(std::deque<ibv_wc>& queue, int max, ibv_wc* out) const {
    if (poll_error != 0) return -poll_error;
    int count = 0;
    for (; count < max && !queue.empty(); count++) {
      out[count] = queue.front();
      queue.pop_front();
    }
    return count;
  }

  // ---- rules ----

  struct SpecHead {
    uint32_t type;
    uint16_t size;
  };
  // Each spec of a rule: its type, its value and its mask, which are of one size.
  template <typename Work>
  static bool ForSpecs(const Bytes& rule, const Work& work) {
    size_t at = sizeof(ibv_flow_attr);
    while (at + sizeof(SpecHead) <= rule.size()) {
      SpecHead head;
      memcpy(&head, &rule[at], sizeof(head));
      if (head.size < 8 || at + head.size > rule.size()) return false;
      if (!work(head.type, &rule[at], size_t{head.size})) return false;
      at += head.size;
    }
    return at == rule.size();
  }
  static bool IsWellFormed(const Bytes& rule) {
    uint32_t count = 0, layers = 0;
    const bool whole = ForSpecs(rule, [&](uint32_t type, const uint8_t*, size_t size) {
      count++;
      layers = layers << 8 | type;
      return (type == IBV_FLOW_SPEC_ETH && size == sizeof(ibv_flow_spec_eth)) ||
             (type == IBV_FLOW_SPEC_IPV4 && size == sizeof(ibv_flow_spec_ipv4)) ||
             (type == IBV_FLOW_SPEC_IPV6 && size == sizeof(ibv_flow_spec_ipv6)) ||
             ((type == IBV_FLOW_SPEC_TCP || type == IBV_FLOW_SPEC_UDP) &&
              size == sizeof(ibv_flow_spec_tcp_udp));
    });
    ibv_flow_attr attr;
    memcpy(&attr, rule.data(), sizeof(attr));
    return whole && count == attr.num_of_specs && attr.size == rule.size() && layers >> 16 == 0x20;
  }
  static bool Same(const void* packet, const void* value, const void* mask, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
      const auto at = [i](const void* p) { return static_cast<const uint8_t*>(p)[i]; };
      if (((at(packet) ^ at(value)) & at(mask)) != 0) return false;
    }
    return true;
  }
  // A frame as a card has parsed it; of fragments and behind extension headers it knows no ports.
  struct Parsed {
    ibv_flow_eth_filter eth{};
    ibv_flow_ipv4_filter v4{};
    ibv_flow_ipv6_filter v6{};
    ibv_flow_tcp_udp_filter ports{};
    uint32_t l3 = 0, l4 = 0;
  };
  static Parsed Parse(const Bytes& f) {
    Parsed p;
    if (f.size() < 14) return p;
    size_t at = 12;
    memcpy(p.eth.dst_mac, f.data(), 6);
    memcpy(p.eth.src_mac, &f[6], 6);
    if (f[12] == 0x81 && f[13] == 0 && f.size() >= 18) {
      memcpy(&p.eth.vlan_tag, &f[14], 2);
      at = 16;
    }
    memcpy(&p.eth.ether_type, &f[at], 2);
    at += 2;
    uint8_t protocol = 0;
    if (p.eth.ether_type == htons(0x0800) && f.size() >= at + 20) {
      p.l3 = IBV_FLOW_SPEC_IPV4;
      memcpy(&p.v4.src_ip, &f[at + 12], 4);
      memcpy(&p.v4.dst_ip, &f[at + 16], 4);
      const bool is_fragment = ((f[at + 6] & 0x3f) | f[at + 7]) != 0;
      protocol = is_fragment ? uint8_t{0} : f[at + 9];
      at += size_t{f[at] & 15U} * 4;
    } else if (p.eth.ether_type == htons(0x86dd) && f.size() >= at + 40) {
      p.l3 = IBV_FLOW_SPEC_IPV6;
      memcpy(p.v6.src_ip, &f[at + 8], 16);
      memcpy(p.v6.dst_ip, &f[at + 24], 16);
      protocol = f[at + 6];
      at += 40;
    }
    if ((protocol != 6 && protocol != 17) || f.size() < at + 4) return p;
    p.l4 = protocol == 6 ? IBV_FLOW_SPEC_TCP : IBV_FLOW_SPEC_UDP;
    memcpy(&p.ports.src_port, &f[at], 2);
    memcpy(&p.ports.dst_port, &f[at + 2], 2);
    return p;
  }
  template <typename Spec, typename Filter>
  static bool SpecMatches(const uint8_t* bytes, const Filter& packet) {
    Spec spec;
    memcpy(&spec, bytes, sizeof(spec));
    return Same(&packet, &spec.val, &spec.mask, sizeof(packet));
  }
  static bool Matches(const Bytes& rule, const Bytes& frame) {
    const Parsed p = Parse(frame);
    return ForSpecs(rule, [&](uint32_t type, const uint8_t* at, size_t) {
      switch (type) {
        case IBV_FLOW_SPEC_ETH:
          return SpecMatches<ibv_flow_spec_eth>(at, p.eth);
        case IBV_FLOW_SPEC_IPV4:
          return p.l3 == type && SpecMatches<ibv_flow_spec_ipv4>(at, p.v4);
        case IBV_FLOW_SPEC_IPV6:
          return p.l3 == type && SpecMatches<ibv_flow_spec_ipv6>(at, p.v6);
        default:
          return p.l4 == type && SpecMatches<ibv_flow_spec_tcp_udp>(at, p.ports);
      }
    });
  }

  uint8_t* memory_ = nullptr;
  size_t bytes_ = 0;
  uint32_t depth_ = 0;
  ibv_qp_state state_ = IBV_QPS_RESET;
  std::deque<Posted> receives_;
  std::vector<uint64_t> unfinished_;
  std::deque<ibv_wc> received_, sent_;
  std::list<Bytes> rules_;
};

}  // namespace postern::verbsnic
