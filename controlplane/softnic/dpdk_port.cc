// dpdk_port.cc - see dpdk_port.h.
// SPDX-License-Identifier: Apache-2.0
#include "dpdk_port.h"

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace postern::softnic {
namespace {

constexpr uint16_t kDescriptors = 1024;
constexpr unsigned kMbufs = 8191;  // a power of two less one
constexpr unsigned kMbufCache = 256;
constexpr uint32_t kFrameMax = 9 * 1024;
// Of these the other end is a kernel, most often one of this host.
constexpr const char* kSoftware[] = {"net_af_packet", "net_tap", "net_af_xdp", "net_virtio_user",
                                     "net_pcap"};

bool Fail(const char* what, int error) {
  fprintf(stderr, "postern-softnic: %s: %s\n", what, rte_strerror(error < 0 ? -error : error));
  return false;
}

}  // namespace

bool DpdkPort::StartDpdk(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  argv.reserve(arguments.size());
  for (std::string& argument : arguments) argv.push_back(argument.data());
  if (rte_eal_init(static_cast<int>(argv.size()), argv.data()) < 0)
    return Fail("DPDK does not start", rte_errno);
  return true;
}

bool DpdkPort::Open(const std::string& name) {
  if (name.empty()) {
    const uint16_t count = rte_eth_dev_count_avail();
    if (count != 1) {
      fprintf(stderr, "postern-softnic: DPDK has %u ports%s\n", count,
              count == 0 ? "" : ": name one (--port)");
      return false;
    }
    port_ = static_cast<uint16_t>(rte_eth_find_next_owned_by(0, RTE_ETH_DEV_NO_OWNER));
  } else if (const int error = rte_eth_dev_get_port_by_name(name.c_str(), &port_); error != 0) {
    return Fail(name.c_str(), error);
  }
  rte_eth_dev_info about{};
  int error = rte_eth_dev_info_get(port_, &about);
  if (error != 0) return Fail("the port's description", error);
  driver_ = about.driver_name;
  is_software_ = std::any_of(std::begin(kSoftware), std::end(kSoftware),
                             [this](const char* s) { return strcmp(driver_, s) == 0; });
  pool_ = rte_pktmbuf_pool_create("softnic", kMbufs, kMbufCache, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
                                  static_cast<int>(rte_socket_id()));
  if (pool_ == nullptr) return Fail("no memory for packets", rte_errno);
  rte_eth_conf wanted{};
  error = rte_eth_dev_configure(port_, 1, 1, &wanted);
  if (error != 0) return Fail("the port can't be configured", error);
  uint16_t rx = kDescriptors, tx = kDescriptors;
  error = rte_eth_dev_adjust_nb_rx_tx_desc(port_, &rx, &tx);
  const auto node = static_cast<unsigned>(SOCKET_ID_ANY);
  if (error == 0) error = rte_eth_rx_queue_setup(port_, 0, rx, node, nullptr, pool_);
  if (error == 0) error = rte_eth_tx_queue_setup(port_, 0, tx, node, nullptr);
  if (error == 0) error = rte_eth_dev_start(port_);
  if (error != 0) return Fail("the port can't be started", error);
  is_open_ = true;
  (void)rte_eth_promiscuous_enable(port_);  // the TAP has more addresses than the card knows of
  rte_ether_addr address{};
  error = rte_eth_macaddr_get(port_, &address);
  if (error != 0) return Fail("the port's address", error);
  memcpy(mac_, address.addr_bytes, sizeof(mac_));
  uint16_t mtu = 0;
  mtu_ = rte_eth_dev_get_mtu(port_, &mtu) == 0 ? mtu : 1500;
  flat_.resize(kFrameMax);
  return true;
}

DpdkPort::~DpdkPort() {
  FreeReceived();
  if (!is_open_) return;
  (void)rte_eth_dev_stop(port_);
  (void)rte_eth_dev_close(port_);
}

bool DpdkPort::IsLinkUp() const {
  rte_eth_link link{};
  return rte_eth_link_get_nowait(port_, &link) != 0 || link.link_status == RTE_ETH_LINK_UP;
}

void DpdkPort::FreeReceived() {
  if (received_count_ != 0) rte_pktmbuf_free_bulk(received_, received_count_);
  received_count_ = 0;
}

uint32_t DpdkPort::Receive(View (&out)[kBurst]) {
  FreeReceived();
  received_count_ = rte_eth_rx_burst(port_, 0, received_, kBurst);
  bool flat_used = false;
  uint32_t count = 0;
  for (uint32_t i = 0; i < received_count_; i++) {
    rte_mbuf* const m = received_[i];
    const uint32_t bytes = rte_pktmbuf_pkt_len(m);
    if (m->nb_segs == 1) {
      out[count++] = {rte_pktmbuf_mtod(m, const uint8_t*), bytes};
    } else if (!flat_used && bytes <= flat_.size()) {
      // Larger than the MTU: there is one buffer, and the second of a burst is lost.
      const void* const at = rte_pktmbuf_read(m, 0, bytes, flat_.data());
      flat_used = true;
      if (at != nullptr) out[count++] = {static_cast<const uint8_t*>(at), bytes};
    }
  }
  return count;
}

uint32_t DpdkPort::Send(const View* packets, uint32_t count) {
  rte_mbuf* out[kBurst];
  uint32_t place[kBurst];  // of each in `packets`
  uint16_t made = 0;
  count = std::min(count, kBurst);
  for (uint32_t i = 0; i < count; i++) {
    if (packets[i].bytes == 0) continue;
    rte_mbuf* const m = rte_pktmbuf_alloc(pool_);
    char* const to =
        m == nullptr ? nullptr : rte_pktmbuf_append(m, static_cast<uint16_t>(packets[i].bytes));
    if (to == nullptr) {
      rte_pktmbuf_free(m);
      count = i;
      break;
    }
    memcpy(to, packets[i].data, packets[i].bytes);
    place[made] = i;
    out[made++] = m;
  }
  const uint16_t sent = made != 0 ? rte_eth_tx_burst(port_, 0, out, made) : uint16_t{0};
  if (sent == made) return count;
  rte_pktmbuf_free_bulk(out + sent, made - sent);
  return place[sent];
}

DpdkPort::Counters DpdkPort::counters() const {
  rte_eth_stats s{};
  (void)rte_eth_stats_get(port_, &s);
  return {s.ipackets, s.imissed, s.rx_nombuf, s.opackets, s.ierrors + s.oerrors};
}

}  // namespace postern::softnic
