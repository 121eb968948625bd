// SPDX-License-Identifier: Apache-2.0
// host_pair.h - a run of two hosts and the connections between them: the setting of most
// simulations.
#pragma once
#include "apps.h"

namespace postern::sim {

struct PairSettings {
  LinkSettings to_server, to_client;
  uint32_t mtu = 1500;
  bool tells_mtu = true;
  HostSettings client_host, server_host;
  AppSettings client, server;  // seeds and is_second are set by RunPair
  uint32_t connections = 1;
  uint64_t connect_every_ns = 0;
  uint32_t client_ports = 20000;  // so many are used, then the first one again
  uint64_t limit_ns = 3600 * kSecond;
};

struct PairResult {
  std::string verdict;  // "": all is well
  uint64_t virtual_ns = 0, events = 0;
  uint64_t segments = 0, delivered = 0, resent = 0, rtos = 0;
  uint32_t time_waits = 0, errors = 0;
  uint32_t half_errors = 0;  // of passive ends whose handshake was not completed
  LinkCounts to_server, to_client;
};

// `meanwhile` is called once, `meanwhile_ns` after the start, to change the world.
PairResult RunPair(const PairSettings& settings, uint64_t seed, uint64_t meanwhile_ns = 0,
                   const std::function<void(World&)>& meanwhile = nullptr);

inline LinkSettings Delay(uint64_t delay_ns) {
  LinkSettings link;
  link.delay_ns = delay_ns;
  return link;
}
inline LinkSettings Lossy(double loss, uint64_t delay_ns) {
  LinkSettings link = Delay(delay_ns);
  link.loss = loss;
  return link;
}

}  // namespace postern::sim
