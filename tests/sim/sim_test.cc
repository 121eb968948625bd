// SPDX-License-Identifier: Apache-2.0
// sim_test.cc - two hosts under each kind of trouble: every byte arrives, in order, once; the
// connection ends as RFC 9293 says; nothing hangs, spins or leaks.
#include <initializer_list>

#include "../unit/kit/catch.h"
#include "host_pair.h"
#include "seeds.h"

namespace postern::sim {
namespace {

constexpr uint64_t kMb = 1 << 20;

// What a setting is tried with; `segments_max`: more than that is a busy loop.
PairResult Try(const PairSettings& settings, uint64_t seed, uint64_t segments_max) {
  const PairResult result = RunPair(settings, seed);
  INFO("--seed " << seed << " --runs 1; " << result.segments << " segments, "
                 << result.virtual_ns / kMillisecond << " ms");
  CHECK(result.verdict == "");
  CHECK(result.segments <= segments_max);
  return result;
}

PairSettings Bulk(uint64_t bytes, const LinkSettings& link) {
  PairSettings pair;
  pair.to_server = pair.to_client = link;
  pair.client.write_total = pair.server.read_total = bytes;
  return pair;
}

TEST_CASE("sim: bulk over a good link") {
  PairSettings pair = Bulk(4 * kMb, Delay(10 * kMillisecond));
  Seeds(2, [&](uint64_t seed) {
    const PairResult result = Try(pair, seed, 2 * 4 * kMb / 1448 + 200);
    CHECK(result.resent == 0);
    CHECK(result.rtos == 0);
  });
}

TEST_CASE("sim: bulk both ways at once") {
  PairSettings pair = Bulk(kMb, Delay(5 * kMillisecond));
  pair.server.write_total = pair.client.read_total = kMb;
  Seeds(2, [&](uint64_t seed) { CHECK(Try(pair, seed, 4 * kMb / 1448 + 200).resent == 0); });
}

TEST_CASE("sim: no data at all, one byte") {
  PairSettings pair = Bulk(GENERATE(uint64_t{0}, uint64_t{1}), Delay(kMillisecond));
  Seeds(5, [&](uint64_t seed) { Try(pair, seed, 12); });
}

TEST_CASE("sim: bulk under random loss") {
  const double loss = GENERATE(0.001, 0.01, 0.05, 0.1, 0.25);
  PairSettings pair = Bulk(kMb / 2, Lossy(loss, 10 * kMillisecond));
  Seeds(6, [&](uint64_t seed) { Try(pair, seed, 4000); });
}

TEST_CASE("sim: bulk under bursts of loss") {
  LinkSettings link = Delay(10 * kMillisecond);
  link.burst_begin = 0.01;
  link.burst_end = 0.5;  // the last retries of a closed connection must not all be lost
  link.burst_loss = 0.9;
  PairSettings pair = Bulk(kMb / 2, link);
  Seeds(10, [&](uint64_t seed) { Try(pair, seed, 4000); });
}

TEST_CASE("sim: bulk with late packets, copies and wrong checksums") {
  LinkSettings link = Delay(10 * kMillisecond);
  link.late = 0.3;
  link.late_ns = 8 * kMillisecond;
  link.copy = 0.1;
  link.corrupt = 0.02;
  link.jitter_ns = 2 * kMillisecond;
  PairSettings pair = Bulk(kMb / 2, link);
  Seeds(10, [&](uint64_t seed) { Try(pair, seed, 4000); });
}

TEST_CASE("sim: late packets alone are not sent again for long") {
  LinkSettings link = Delay(10 * kMillisecond);
  link.late = 0.1;
  link.late_ns = 4 * kMillisecond;  // within RACK's window of min_rtt / 4
  PairSettings pair = Bulk(2 * kMb, link);
  // A window of no more segments than TCP keeps beyond a hole.
  pair.server_host.receive_buffer = 1 << 20;
  Seeds(4, [&](uint64_t seed) { CHECK(Try(pair, seed, 5000).resent < 2 * kMb / 30); });
}

TEST_CASE("sim: a queue that overflows") {
  LinkSettings link = Delay(10 * kMillisecond);
  link.rate_bps = 20'000'000;
  link.queue_bytes = 30'000;
  PairSettings pair = Bulk(4 * kMb, link);
  Seeds(4, [&](uint64_t seed) {
    const PairResult result = Try(pair, seed, 9000);
    CHECK(result.to_server.overflowed > 0);
    // 4 MB at 20 Mbit/s take 1.7 s.
    CHECK(result.delivered == 4 * kMb);
  });
}

TEST_CASE("sim: a queue that marks costs no packet") {
  LinkSettings link = Delay(10 * kMillisecond);
  link.rate_bps = 20'000'000;
  link.mark_bytes = 30'000;
  PairSettings pair = Bulk(4 * kMb, link);
  pair.client_host.ecn = pair.server_host.ecn = true;
  Seeds(2, [&](uint64_t seed) {
    const PairResult result = Try(pair, seed, 9000);
    CHECK(result.to_server.marked > 0);
    CHECK(result.resent == 0);
  });
}

TEST_CASE("sim: request and response") {
  const uint32_t bytes = GENERATE(1u, 1024u, 5000u);
  PairSettings pair;
  pair.to_server = pair.to_client = Lossy(GENERATE(0.0, 0.05), 5 * kMillisecond);
  constexpr uint64_t kCount = 300;
  pair.client.gate = Gate::kRequest;
  pair.server.gate = Gate::kAnswer;
  for (AppSettings* app : {&pair.client, &pair.server}) {
    app->ask_bytes = bytes;
    app->answer_bytes = bytes * 2;
  }
  pair.client.write_total = pair.server.read_total = kCount * bytes;
  pair.server.write_total = pair.client.read_total = kCount * bytes * 2;
  Seeds(3, [&](uint64_t seed) { Try(pair, seed, kCount * (8 + bytes * 6 / 1448)); });
}

TEST_CASE("sim: echo of random sizes") {
  PairSettings pair;
  pair.to_server = pair.to_client = Lossy(0.03, 3 * kMillisecond);
  pair.to_server.late = 0.05;
  pair.to_server.late_ns = 2 * kMillisecond;
  constexpr uint64_t kBytes = 300'000;
  pair.server.gate = Gate::kEcho;
  for (AppSettings* app : {&pair.client, &pair.server}) {
    app->write_max = 5000;
    app->read_max = 3000;
    app->write_total = app->read_total = kBytes;
  }
  for (HostSettings* host : {&pair.client_host, &pair.server_host}) {
    host->send_buffer = 50'000;
    host->receive_buffer = 40'000;
  }
  pair.client.write_pause_ns = kMillisecond;
  Seeds(6, [&](uint64_t seed) { Try(pair, seed, 8000); });
}

TEST_CASE("sim: half close") {
  PairSettings pair = Bulk(200'000, Lossy(0.02, 5 * kMillisecond));
  pair.server.gate = Gate::kAfterFin;
  pair.server.write_total = pair.client.read_total = 300'000;
  Seeds(8, [&](uint64_t seed) { Try(pair, seed, 3000); });
}

TEST_CASE("sim: a reader that is slow, and one that sleeps") {
  PairSettings pair = Bulk(200'000, Lossy(GENERATE(0.0, 0.2), 5 * kMillisecond));
  pair.server_host.receive_buffer = 16'384;
  SECTION("small reads, pauses") {
    pair.server.read_max = 2000;
    pair.server.read_pause_ns = 20 * kMillisecond;
  }
  SECTION("nothing is read for ten minutes") { pair.server.read_begin_ns = 600 * kSecond; }
  Seeds(4, [&](uint64_t seed) { Try(pair, seed, 6000); });
}

TEST_CASE("sim: many short connections") {
  PairSettings pair;
  pair.to_server = pair.to_client = Lossy(GENERATE(0.0, 0.05), 2 * kMillisecond);
  pair.connections = 400;
  pair.connect_every_ns = 700 * kMicrosecond;
  pair.client.gate = Gate::kRequest;
  pair.server.gate = Gate::kAnswer;
  for (AppSettings* app : {&pair.client, &pair.server}) {
    app->ask_bytes = 100;
    app->answer_bytes = 3000;
  }
  for (HostSettings* host : {&pair.client_host, &pair.server_host})
    host->send_buffer = host->receive_buffer = 16'384;
  pair.client.write_total = pair.server.read_total = 100;
  pair.server.write_total = pair.client.read_total = 3000;
  Seeds(2, [&](uint64_t seed) { Try(pair, seed, 400 * 20); });
}

TEST_CASE("sim: the path's MTU") {
  PairSettings pair = Bulk(kMb / 2, Delay(10 * kMillisecond));
  SECTION("is smaller than the link's") { pair.mtu = 1400; }
  SECTION("is smaller, and nobody says so") {
    pair.mtu = 1400;
    pair.tells_mtu = false;
  }
  Seeds(3, [&](uint64_t seed) { Try(pair, seed, 4000); });
}

TEST_CASE("sim: the path's MTU gets smaller under way") {
  const bool tells = GENERATE(true, false);
  PairSettings pair = Bulk(kMb, Delay(10 * kMillisecond));
  Seeds(3, [&](uint64_t seed) {
    INFO("--seed " << seed << " --runs 1");
    const PairResult result = RunPair(pair, seed, 80 * kMillisecond, [&](World& world) {
      world.path(0, 1).hops()[0].mtu = 1300;
      world.path(0, 1).hops()[0].tells = tells;
    });
    CHECK(result.verdict == "");
    CHECK(result.delivered == kMb);
  });
}

TEST_CASE("sim: a wire that has no room, timers that come late") {
  PairSettings pair = Bulk(kMb / 2, Lossy(0.02, 5 * kMillisecond));
  for (HostSettings* host : {&pair.client_host, &pair.server_host}) {
    host->wire_full = 0.2;
    host->timer_late_ns = 20 * kMillisecond;
  }
  Seeds(5, [&](uint64_t seed) { Try(pair, seed, 4000); });
}

TEST_CASE("sim: few tables") {
  PairSettings pair = Bulk(kMb / 2, Lossy(0.02, 20 * kMillisecond));
  for (HostSettings* host : {&pair.client_host, &pair.server_host})
    host->limits = {.tx_segs = 8, .rx_segs = 3, .packets = 4};
  Seeds(3, [&](uint64_t seed) { Try(pair, seed, 5000); });
}

TEST_CASE("sim: peers without options") {
  for (const uint32_t flags : {tcp::kSetNoSack, tcp::kSetNoTimestamps, tcp::kSetNoWindowScale,
                               tcp::kSetNoSack | tcp::kSetNoTimestamps | tcp::kSetNoWindowScale}) {
    for (const bool is_client : {true, false}) {
      PairSettings pair = Bulk(kMb / 2, Lossy(0.02, 10 * kMillisecond));
      (is_client ? pair.client_host : pair.server_host).tcp_settings.flags = flags;
      Seeds(3, [&](uint64_t seed) { Try(pair, seed, 5000); });
    }
  }
}

TEST_CASE("sim: the peer is gone") {
  PairSettings pair = Bulk(64 * kMb, Delay(10 * kMillisecond));
  pair.to_server.rate_bps = pair.to_client.rate_bps = 50'000'000;
  pair.client.may_fail = pair.server.may_fail = true;
  pair.server_host.tcp_settings.flags = tcp::kSetKeepalive;
  pair.limit_ns = 20'000 * kSecond;
  Seeds(2, [&](uint64_t seed) {
    INFO("--seed " << seed << " --runs 1");
    const PairResult result = RunPair(pair, seed, kSecond, [](World& world) {
      world.link(0).settings().loss = world.link(1).settings().loss = 1;
    });
    CHECK(result.verdict == "");
    CHECK(result.errors == 2);                 // neither waits for ever
    CHECK(result.virtual_ns > 600 * kSecond);  // RFC 9293, 3.8.3: at least 100 s; Linux 924 s
    CHECK(result.segments < 20'000);
  });
}

TEST_CASE("sim: an end with unread data, and one that goes away") {
  PairSettings pair = Bulk(kMb, Lossy(GENERATE(0.0, 0.05), 5 * kMillisecond));
  pair.client.may_fail = pair.server.may_fail = true;
  pair.server.resets = true;
  pair.server.read_total = 100'000;
  pair.server.read_max = 100;
  pair.server_host.receive_buffer = 50'000;
  Seeds(5, [&](uint64_t seed) {
    const PairResult result = RunPair(pair, seed);
    INFO("--seed " << seed << " --runs 1");
    CHECK(result.verdict == "");
    CHECK(result.virtual_ns < 120 * kSecond);
  });
}

}  // namespace
}  // namespace postern::sim
