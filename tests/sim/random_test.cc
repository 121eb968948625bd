// SPDX-License-Identifier: Apache-2.0
// random_test.cc - everything at random: links, hosts, options, programs. `--seed N --runs 1` plays
// one of them; `--runs 100000` looks for the next bug.
#include <initializer_list>

#include "../unit/kit/catch.h"
#include "host_pair.h"
#include "seeds.h"

namespace postern::sim {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  bool Once(uint64_t in) { return random_.Below(in) == 0; }
  uint64_t To(uint64_t limit) { return random_.Below(limit + 1); }
  double Part(double limit) { return limit * static_cast<double>(random_.Below(10'001)) / 10'000; }
  size_t Size(size_t largest) { return random_.Size(largest); }

 private:
  TestRandom random_;
};

LinkSettings AnyLink(Dice& dice) {
  LinkSettings link;
  link.delay_ns = dice.Size(200 * kMillisecond);
  if (dice.Once(2)) link.loss = dice.Part(dice.Once(4) ? 0.3 : 0.05);
  if (dice.Once(5)) {
    link.burst_begin = dice.Part(0.02);
    link.burst_end = 0.05 + dice.Part(0.5);
  }
  if (dice.Once(3)) {
    link.late = dice.Part(0.5);
    link.late_ns = dice.Size(100 * kMillisecond);
  }
  if (dice.Once(4)) link.copy = dice.Part(0.3);
  if (dice.Once(4)) link.corrupt = dice.Part(0.05);
  if (dice.Once(3)) link.jitter_ns = dice.Size(50 * kMillisecond);
  if (dice.Once(2)) {
    link.rate_bps = 100'000 + dice.Size(1'000'000'000);
    link.queue_bytes = 3000 + dice.Size(1'000'000);
    if (dice.Once(3)) link.mark_bytes = dice.To(link.queue_bytes);
  }
  return link;
}

HostSettings AnyHost(Dice& dice) {
  HostSettings host;
  host.mss = static_cast<uint32_t>(dice.Once(3) ? 88 + dice.To(1372) : 1460);
  host.send_buffer = static_cast<uint32_t>(500 + dice.Size(2 << 20));
  host.receive_buffer = static_cast<uint32_t>(1000 + dice.Size(2 << 20));
  host.ecn = dice.Once(2);
  if (dice.Once(5)) host.wire_full = dice.Part(0.5);
  if (dice.Once(3)) host.timer_late_ns = dice.Size(30 * kMillisecond);
  if (dice.Once(6)) {
    host.limits = {.tx_segs = static_cast<uint32_t>(4 + dice.To(30)),
                   .rx_segs = static_cast<uint32_t>(dice.To(10)),
                   .packets = static_cast<uint32_t>(2 + dice.To(10))};
  }
  for (const uint32_t flag : {tcp::kSetNoDelay, tcp::kSetKeepalive, tcp::kSetNoTimestamps,
                              tcp::kSetNoSack, tcp::kSetNoWindowScale, tcp::kSetPacing}) {
    if (dice.Once(5)) host.tcp_settings.flags |= flag;
  }
  host.tcp_settings.congestion = static_cast<uint32_t>(dice.To(1));
  return host;
}

void AnyPrograms(Dice& dice, PairSettings& pair) {
  const uint64_t up = dice.Once(10) ? 0 : dice.Size(300'000);
  uint64_t down = dice.Once(10) ? 0 : dice.Size(300'000);
  switch (dice.To(3)) {
    case 0:
      break;
    case 1:
      pair.server.gate = Gate::kEcho;
      down = up;
      break;
    case 2:
      pair.server.gate = Gate::kAfterFin;
      break;
    case 3:
      pair.client.gate = Gate::kAfterFin;
      break;
  }
  pair.client.write_total = pair.server.read_total = up;
  pair.server.write_total = pair.client.read_total = down;
  for (AppSettings* app : {&pair.client, &pair.server}) {
    app->write_max = static_cast<uint32_t>(dice.Size(65'536));
    app->read_max = static_cast<uint32_t>(dice.Size(65'536));
    // A pause after each call, only where the calls are few.
    if (dice.Once(4)) {
      app->read_max = std::max(app->read_max, 2000u);
      app->read_pause_ns = dice.Size(300 * kMillisecond);
    }
    if (dice.Once(4)) {
      app->write_max = std::max(app->write_max, 2000u);
      app->write_pause_ns = dice.Size(100 * kMillisecond);
    }
    if (dice.Once(10)) app->read_begin_ns = dice.Size(300 * kSecond);
  }
  pair.connections = static_cast<uint32_t>(dice.Once(3) ? 1 + dice.To(5) : 1);
  pair.connect_every_ns = dice.To(kSecond);
}

void Play(uint64_t seed) {
  Dice dice(seed);
  PairSettings pair;
  pair.to_server = AnyLink(dice);
  pair.to_client = AnyLink(dice);
  if (dice.Once(5)) {
    pair.mtu = static_cast<uint32_t>(600 + dice.To(900));
    pair.tells_mtu = true;
  }
  pair.client_host = AnyHost(dice);
  pair.server_host = AnyHost(dice);
  AnyPrograms(dice, pair);
  Dice ways(seed ^ 0x9e3779b97f4a7c15u);  // of their own: older seeds play as they did
  for (HostSettings* host : {&pair.client_host, &pair.server_host}) {
    if (ways.Once(2)) host->gather_ns = 1 + ways.Size(2 * kMillisecond);
    if (ways.Once(2)) host->row_max = 1 + static_cast<uint32_t>(ways.To(tcp::kRowMax - 1));
  }
  // A link that is bad enough may make anybody give up, which is no fault as long as it is said.
  pair.client.may_fail = pair.server.may_fail = true;
  pair.limit_ns = 40'000 * kSecond;
  const PairResult result = RunPair(pair, seed);
  INFO("--seed " << seed << " --runs 1: " << result.segments << " segments, "
                 << result.virtual_ns / kMillisecond << " ms, " << result.delivered << " bytes");
  // Whose peer has given up, and could not say so, waits for ever without keepalive (RFC 9293).
  const bool is_left_alone = result.errors + result.half_errors != 0 &&
                             result.verdict.find(" connection ") != std::string::npos;
  if (!is_left_alone) CHECK(result.verdict == "");
  const double worst = std::max(pair.to_server.loss, pair.to_client.loss);
  if (worst < 0.1 && pair.to_server.burst_begin == 0 && pair.to_client.burst_begin == 0)
    CHECK(result.errors == 0);
}

TEST_CASE("sim: anything") {
  const uint64_t runs = seed_runs != 0 ? seed_runs : 120;
  for (uint64_t seed = first_seed; seed < first_seed + runs; seed++) Play(seed);
}

// 44852: writes of a few bytes over a queue of few packets, with neither SACK nor timestamps. The
// window counts bytes: the one segment's worth of small ones that a time-out sent overflowed the
// queue again. As all of it had been sent before, no round trip was ever measured, and the RTO grew
// to two minutes for some bytes each.
TEST_CASE("sim: what has found something once") { Play(44852); }

}  // namespace
}  // namespace postern::sim
