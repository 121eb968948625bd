// SPDX-License-Identifier: Apache-2.0
// host_pair.cc - runs two hosts until all their connections are closed, and judges how they ended.
#include "host_pair.h"

namespace postern::sim {
namespace {

constexpr uint16_t kServerPort = 80, kClientPorts = 10000;

// Opens the connections one after the other.
class Opener final : public Actor {
 public:
  Opener(World& world, const PairSettings& settings, uint64_t seed)
      : world_(world), settings_(settings), random_(seed) {}

  void Happen(uint64_t number) override {
    AppSettings app = settings_.client;
    const uint16_t port = static_cast<uint16_t>(kClientPorts + number % settings_.client_ports);
    app.seed = port * 2u;
    // EADDRINUSE: an earlier one on the port is still there, its data have come late.
    if (world_.host(0).IsConnected(port, 1, kServerPort)) {
      world_.events().At(world_.events().now_ns() + settings_.connect_every_ns, *this, number);
      return;
    }
    world_.host(0).Connect(1, kServerPort, port, std::make_unique<StreamApp>(app, random_.Next()));
    if (number + 1 < settings_.connections)
      world_.events().At(world_.events().now_ns() + settings_.connect_every_ns, *this, number + 1);
  }

 private:
  World& world_;
  const PairSettings& settings_;
  TestRandom random_;
};

// How connections ended: a regular end leaves one side in TIME_WAIT, the other without.
void Judge(World& world, const PairSettings& settings, PairResult& result) {
  uint64_t kept = 0;
  for (uint32_t i = 0; i < 2; i++) {
    SimHost& host = world.host(i);
    result.segments += host.segments_out();
    result.delivered += host.bytes_delivered();
    for (const auto& conn : host.conns()) {
      result.resent += conn->data_resent;
      result.rtos += conn->rtos;
      result.time_waits += conn->was_time_wait;
      // A SYN that came twice, or too late, is nobody's connection (see World::Verdict); or its
      // peer thinks that it is connected.
      const bool is_half = conn->is_passive && !conn->connected;
      (is_half ? result.half_errors : result.errors) += conn->error != 0;
    }
    kept = std::max<uint64_t>(kept, host.packets_most());
  }
  if (!result.verdict.empty()) return;
  if (kept > uint64_t{settings.connections} * (tcp::kRxSegsMax + 1))
    result.verdict = "more packets were kept than TCP may";
  const bool regular = !settings.client.resets && !settings.server.resets &&
                       !settings.client.may_fail && !settings.server.may_fail;
  if (regular && result.time_waits < settings.connections)
    result.verdict = "a connection ended without TIME_WAIT on either side";
}

}  // namespace

PairResult RunPair(const PairSettings& settings, uint64_t seed, uint64_t meanwhile_ns,
                   const std::function<void(World&)>& meanwhile) {
  World world(seed);
  world.AddHost(settings.client_host);
  world.AddHost(settings.server_host);
  LinkModel& there = world.AddLink(settings.to_server);
  LinkModel& back = world.AddLink(settings.to_client);
  world.Join(0, 1, {{&there, settings.mtu, settings.tells_mtu}});
  world.Join(1, 0, {{&back, settings.mtu, settings.tells_mtu}});
  TestRandom server_random(seed ^ 0x5e);
  world.host(1).Listen(kServerPort, [&](const Segment& syn) {
    AppSettings app = settings.server;
    app.is_second = true;
    app.seed = syn.from_port * 2u;
    return std::make_unique<StreamApp>(app, server_random.Next());
  });
  Opener opener(world, settings, seed ^ 0xc1);
  const uint64_t begun_ns = world.events().now_ns();
  world.events().At(begun_ns, opener, 0);
  if (meanwhile) {
    world.RunFor(meanwhile_ns);
    meanwhile(world);
  }
  world.Run(settings.limit_ns);
  PairResult result;
  result.verdict = world.Verdict();
  result.virtual_ns = world.events().now_ns() - begun_ns;
  result.events = world.events().count();
  result.to_server = there.counts();
  result.to_client = back.counts();
  Judge(world, settings, result);
  return result;
}

}  // namespace postern::sim
