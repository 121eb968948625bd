// SPDX-License-Identifier: Apache-2.0
// odd_test.cc - what two hosts and a listener do not show: simultaneous open, a port that is used
// again, flows that share a bottleneck.
#include "../unit/kit/catch.h"
#include "host_pair.h"
#include "seeds.h"

namespace postern::sim {
namespace {

std::unique_ptr<StreamApp> End(uint64_t bytes, bool is_second, uint64_t seed) {
  AppSettings app;
  app.write_total = app.read_total = bytes;
  app.is_second = is_second;
  return std::make_unique<StreamApp>(app, seed);
}

//= rfc9293#3.5
//= type=test
//# TCP implementations MUST support simultaneous open attempts
TEST_CASE("sim: both open at once") {
  const double loss = GENERATE(0.0, 0.2);
  Seeds(10, [&](uint64_t seed) {
    INFO("--seed " << seed << " --runs 1");
    World world(seed);
    SimHost& a = world.AddHost({});
    SimHost& b = world.AddHost({});
    world.JoinBoth(0, 1, Lossy(loss, 10 * kMillisecond));
    a.Connect(1, 2, 1, End(50'000, false, seed));
    b.Connect(0, 1, 2, End(50'000, true, seed + 1));
    world.Run(3600 * kSecond);
    CHECK(world.Verdict() == "");
  });
}

TEST_CASE("sim: a port is used again while the peer is in TIME_WAIT") {
  Seeds(5, [&](uint64_t seed) {
    PairSettings pair;
    pair.to_server = pair.to_client = Lossy(0.02, 2 * kMillisecond);
    pair.connections = 20;
    pair.client_ports = 1;
    pair.connect_every_ns = 2 * kSecond;
    // The server ends first, so TIME_WAIT is on its side.
    pair.client.gate = Gate::kAfterFin;
    pair.server.write_total = pair.client.read_total = 1000;
    pair.client.write_total = pair.server.read_total = 500;
    INFO("--seed " << seed << " --runs 1");
    const PairResult result = RunPair(pair, seed);
    CHECK(result.verdict == "");
    CHECK(result.virtual_ns < 60 * kSecond + 20 * 2 * kSecond + 60 * kSecond);
  });
}

// Four senders, one bottleneck: nobody starves (Jain's index), and the link is used.
TEST_CASE("sim: flows share a bottleneck") {
  Seeds(2, [&](uint64_t seed) {
    INFO("--seed " << seed << " --runs 1");
    constexpr uint32_t kFlows = 4;
    World world(seed);
    LinkSettings narrow = Delay(5 * kMillisecond);
    narrow.rate_bps = 40'000'000;
    narrow.queue_bytes = 100'000;
    LinkModel& bottleneck = world.AddLink(narrow);
    SimHost& sink = world.AddHost({});
    std::vector<StreamApp*> readers;
    sink.Listen(80, [&](const Segment&) {
      AppSettings app;
      app.keeps_open = app.unchecked = app.is_second = true;
      auto reader = std::make_unique<StreamApp>(app, seed);
      readers.push_back(reader.get());
      return reader;
    });
    for (uint32_t i = 1; i <= kFlows; i++) {
      SimHost& host = world.AddHost({});
      LinkModel& access = world.AddLink(Delay(5 * kMillisecond));
      world.Join(i, 0, {{&access, 1500}, {&bottleneck, 1500}});
      world.Join(0, i, {{&world.AddLink(Delay(10 * kMillisecond)), 1500}});
      AppSettings app;
      app.write_total = uint64_t{1} << 40;
      app.unchecked = true;
      host.Connect(0, 80, 1, std::make_unique<StreamApp>(app, seed));
    }
    world.RunFor(10 * kSecond);
    REQUIRE(world.Problem() == "");
    REQUIRE(readers.size() == kFlows);
    double sum = 0, squares = 0;
    for (const StreamApp* reader : readers) {
      const double bytes = static_cast<double>(reader->read_bytes());
      sum += bytes;
      squares += bytes * bytes;
    }
    CHECK(sum * 8 / 10 > 0.9 * 40'000'000 * 1448 / 1500);
    CHECK(sum * sum / (kFlows * squares) > 0.7);
  });
}

}  // namespace
}  // namespace postern::sim
