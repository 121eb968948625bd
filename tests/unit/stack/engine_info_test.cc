// SPDX-License-Identifier: Apache-2.0
// engine_info_test.cc - TCP_INFO of connections of the engine, in what has happened to them.
#include <linux/tcp.h>

#include <algorithm>

#include "engine_world.h"
#include "tcp/info.h"

namespace postern::test {
namespace {

tcp_info InfoOf(World& w, PlainHost& host, const PlainEnd& end) {
  tcp::Info bytes;
  memset(bytes.bytes, 0xa5, sizeof bytes.bytes);
  tcp::FillInfo(w.ConnOf(host, end).tcb, w.now, end.conn == PSTN_NONE ? 0 : 40, 0, bytes);
  tcp_info info;
  memcpy(&info, bytes.bytes, sizeof info);
  constexpr size_t kKnown = 248;
  for (size_t i = kKnown; i < sizeof bytes.bytes; i++) CHECK(bytes.bytes[i] == 0);
  return info;
}

}  // namespace

TEST_CASE("engine: TCP_INFO tells what was agreed on and what has been sent") {
  World w;
  (void)w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  CHECK(InfoOf(w, w.a, client).tcpi_state == 2);  // SYN_SENT
  w.a.engine->Poll(w.now);
  w.now += 30 * kMs;  // the SYN's way
  w.b.engine->Poll(w.now);
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  CHECK(InfoOf(w, w.a, client).tcpi_rtt == 30'000);
  CHECK(InfoOf(w, w.a, client).tcpi_rttvar == 15'000);  // RFC 6298, 2.2
  CHECK(InfoOf(w, w.a, client).tcpi_snd_cwnd == 10);
  client.out = Pattern(10'000, 1);
  w.a.Wake(client);
  w.Pass(1000);

  const tcp_info i = InfoOf(w, w.a, client);
  CHECK(i.tcpi_state == 1);
  CHECK(i.tcpi_ca_state == 0);
  CHECK(i.tcpi_options == (TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE));
  CHECK(i.tcpi_snd_wscale == 5);  // of rings of 1 MiB, in this test
  CHECK(i.tcpi_rcv_wscale == 5);
  CHECK(i.tcpi_snd_mss == 1448);
  CHECK(i.tcpi_advmss == 1448);
  CHECK(i.tcpi_pmtu == 1500);
  CHECK(i.tcpi_snd_cwnd == 14);  // 7 under way were more than half of the window
  CHECK(i.tcpi_snd_ssthresh == 0x7fffffff);
  CHECK(i.tcpi_rtt < 30'000);  // the data took no time
  CHECK(i.tcpi_rto >= 200'000);
  CHECK(i.tcpi_min_rtt <= i.tcpi_rtt);
  CHECK(i.tcpi_bytes_sent == 10'000);
  CHECK(i.tcpi_bytes_acked == 10'001);  // the SYN counts, as in Linux
  CHECK(i.tcpi_data_segs_out == 7);
  CHECK(i.tcpi_delivered == 8);  // likewise
  CHECK(i.tcpi_unacked == 0);
  CHECK(i.tcpi_total_retrans == 0);
  CHECK(i.tcpi_last_data_sent >= 900);
  CHECK(i.tcpi_last_data_sent <= 1000);
  CHECK(i.tcpi_max_pacing_rate == UINT64_MAX);
  const tcp_info at_server = InfoOf(w, w.b, *server);
  CHECK(at_server.tcpi_bytes_received == 10'000);
  CHECK(at_server.tcpi_data_segs_in == 7);
  CHECK(at_server.tcpi_rcv_mss == 1448);
}

TEST_CASE("engine: what a program asks for before it connects is in its SYN, and stays") {
  World w;
  (void)w.Listen(80);
  stack::OpenWish wish = {};
  wish.settings.maxseg = 1000;
  wish.settings.congestion = static_cast<uint32_t>(tcp::CongestionKind::kNewReno);
  wish.tos = 0x48;
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80), wish);
  w.a.engine->Poll(w.now);
  for (const wire_test::Bytes& syn : w.Swallow(w.b)) {
    CHECK(syn[15] == 0x48);
    w.Put(w.a, syn);
  }
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  CHECK(InfoOf(w, w.a, client).tcpi_snd_mss == 988);
  CHECK(InfoOf(w, w.a, client).tcpi_advmss == 988);
  server->out = Pattern(2000, 1);
  w.b.Wake(*server);
  w.Pass(100);
  CHECK(InfoOf(w, w.a, client).tcpi_rcv_mss == 988);
  CHECK(InfoOf(w, w.b, *server).tcpi_snd_mss == 988);
  CHECK(w.ConnOf(w.a, client).tcb.cc.kind == static_cast<uint32_t>(tcp::CongestionKind::kNewReno));
  CHECK(w.ConnOf(w.b, *server).tcb.cc.kind == static_cast<uint32_t>(tcp::CongestionKind::kCubic));
}

TEST_CASE(
    "engine: the largest segment that a listener's program has set is in the SYN-ACK, and stays") {
  World w;
  const uint32_t l = w.Listen(80);
  w.b.state().settings.tcp_syncookies = GENERATE(1u, 2u);
  w.b.state().listeners[l].maxseg = 500;
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  CHECK(InfoOf(w, w.a, client).tcpi_snd_mss == 488);
  CHECK(InfoOf(w, w.b, *server).tcpi_snd_mss == 488);
  CHECK(InfoOf(w, w.b, *server).tcpi_advmss == 488);
}

TEST_CASE("engine: TCP_INFO while segments are lost, and after it") {
  World w;
  (void)w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  client.out = Pattern(5 * 1448, 1);
  w.wire->cut = 1;
  w.a.Wake(client);
  w.Pass(2000);
  tcp_info i = InfoOf(w, w.a, client);
  CHECK(i.tcpi_ca_state == 4);  // Loss
  CHECK(i.tcpi_unacked == 5);
  CHECK(i.tcpi_lost == 5);
  CHECK(i.tcpi_retransmits >= 2);
  CHECK(i.tcpi_backoff >= 2);
  CHECK(i.tcpi_total_retrans >= 2);
  CHECK(i.tcpi_snd_cwnd == 1);
  CHECK(i.tcpi_snd_ssthresh < 10);
  CHECK(i.tcpi_rto >= 800'000);
  CHECK(i.tcpi_bytes_acked == 1);
  w.wire->cut = 0;
  w.Pass(10'000);
  i = InfoOf(w, w.a, client);
  CHECK(i.tcpi_ca_state == 0);
  CHECK(i.tcpi_unacked == 0);
  CHECK(i.tcpi_lost == 0);
  CHECK(i.tcpi_retransmits == 0);
  CHECK(i.tcpi_bytes_acked == 5 * 1448 + 1);
  CHECK(i.tcpi_bytes_retrans == i.tcpi_bytes_sent - 5 * 1448);
  CHECK(i.tcpi_bytes_retrans > 0);
}

TEST_CASE("engine: TCP_INFO tells how long there was something to send, and the window was shut") {
  World w;
  (void)w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  w.Pass(1000);
  CHECK(InfoOf(w, w.a, client).tcpi_busy_time == 0);
  server->slow = true;
  server->room = 60'000;
  client.out = Pattern(200'000, 1);
  w.a.Wake(client);
  w.Pass(3000);
  tcp_info i = InfoOf(w, w.a, client);
  CHECK(i.tcpi_busy_time == 3'000'000);
  CHECK(i.tcpi_rwnd_limited >= 2'900'000);
  CHECK(i.tcpi_rwnd_limited <= i.tcpi_busy_time);
  server->slow = false;
  server->in.clear();
  w.b.Wake(*server);
  w.Pass(1000);
  REQUIRE(client.out.empty());
  const uint64_t busy = InfoOf(w, w.a, client).tcpi_busy_time;
  w.Pass(1000);
  i = InfoOf(w, w.a, client);
  CHECK(i.tcpi_busy_time == busy);
  CHECK(i.tcpi_rwnd_limited <= busy);
}

TEST_CASE("engine: TCP_INFO tells by how many segments the network has reordered") {
  World w;
  (void)w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.a.engine->Poll(w.now);
  w.now += 30 * kMs;
  w.b.engine->Poll(w.now);
  w.Settle();
  CHECK(InfoOf(w, w.a, client).tcpi_reordering == 3);
  // Eight segments, the second of which comes so much later.
  const auto late_by = [&](ptrdiff_t count) {
    client.out = Pattern(8 * 1448, 1);
    w.a.Wake(client);
    w.a.engine->Poll(w.now);
    std::vector<wire_test::Bytes> segments = w.Swallow(w.b);
    REQUIRE(segments.size() == 8);
    std::rotate(segments.begin() + 1, segments.begin() + 2, segments.begin() + 2 + count);
    w.now += 30 * kMs;
    for (const wire_test::Bytes& s : segments) {
      w.Put(w.a, s);
      w.Settle();
    }
    w.Pass(1000);
    REQUIRE(client.out.empty());
  };
  late_by(1);
  CHECK(InfoOf(w, w.a, client).tcpi_reordering == 3);
  late_by(6);
  const tcp_info i = InfoOf(w, w.a, client);
  CHECK(i.tcpi_reordering == 7);  // of the first of them to the end of the last, as Linux counts
  CHECK(i.tcpi_reord_seen == 2);
  CHECK(i.tcpi_total_retrans == 0);
}

TEST_CASE("engine: TCP_INFO of a connection in each state on its way out") {
  World w;
  (void)w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  client.ended = true;
  w.a.Wake(client);
  w.Pass(50);
  CHECK(InfoOf(w, w.a, client).tcpi_state == 5);   // FIN_WAIT_2
  CHECK(InfoOf(w, w.b, *server).tcpi_state == 8);  // CLOSE_WAIT
  const tcp_info closed = [&] {
    w.a.engine->ConnAt(client.conn).tcb.state = 0;
    return InfoOf(w, w.a, client);
  }();
  CHECK(closed.tcpi_state == 7);
}

}  // namespace postern::test
