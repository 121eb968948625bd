// SPDX-License-Identifier: Apache-2.0
// tcp_sysctls_test.cc - settings of the host (sysctls.h): each is seen to be followed. More are in
// the packet scripts, where Linux itself is asked.
#include <algorithm>
#include <initializer_list>

#include "tcp_world.h"

namespace postern::tcp {
namespace {

// A full segment is under way, and none of it is ever acknowledged: sizes of what is sent again.
std::vector<uint32_t> SentAgain(TcpWorld& w, uint32_t timeouts) {
  w.Establish({.mss = 1460});
  w.Write(1460);
  w.wire.clear();
  std::vector<uint32_t> bytes;
  while (bytes.size() < timeouts) {
    w.Fire(0, 200 * kSecond);
    if (!w.wire.empty()) bytes.push_back(w.wire.front().segment.bytes);
    w.wire.clear();
  }
  return bytes;
}

}  // namespace

TEST_CASE("tcp sysctls: a black hole is suspected only with tcp_mtu_probing") {
  TcpWorld never;
  never.host.tcp_mtu_probing = 0;
  CHECK(SentAgain(never, 8).back() == 1460);
  TcpWorld w;
  w.host.tcp_mtu_probing = 1;
  w.host.tcp_retries1 = 1;
  w.host.tcp_base_mss = 700;
  w.host.tcp_mtu_probe_floor = 200;
  const std::vector<uint32_t> sizes = SentAgain(w, 8);
  CHECK(std::find(sizes.begin(), sizes.end(), 700u) != sizes.end());
  CHECK(sizes.back() == 200);
}

TEST_CASE("tcp sysctls: tcp_retries2 and tcp_rto_max_ms bound how long it is tried") {
  TcpWorld w;
  w.host.tcp_rto_max_ms = 1000;
  w.host.tcp_retries2 = 5;  // 0.2, 0.4, 0.8, 1, 1, 1
  w.Establish();
  w.Write("x");
  w.Advance(4 * kSecond);
  w.ExpectState(State::kEstablished);
  w.Advance(2 * kSecond);
  w.ExpectClosed();
}

TEST_CASE("tcp sysctls: tcp_frto") {
  for (const uint32_t frto : {0u, 2u}) {
    TcpWorld w;
    w.host.tcp_frto = frto;
    w.host.tcp_early_retrans = 0;
    w.Establish();
    w.Write(4 * kMss);
    w.wire.clear();
    w.Fire(0, kSecond);
    CHECK(Has(w.t, kFrto) == (frto != 0));
  }
}

TEST_CASE("tcp sysctls: tcp_recovery keeps RACK's window as it is, and open") {
  for (const uint32_t bits : {1u, 3u, 5u}) {
    TcpWorld w;
    w.host.tcp_recovery = bits;
    w.Establish();
    w.Write(8 * kMss);
    w.wire.clear();
    w.Advance(10 * kMs);
    // Three of them: with the threshold the first one is lost, else it may be late.
    w.Send({.ack = 1, .sack = Blocks{{1001, 4001}}});
    CHECK((w.t.retransmits != 0) == (bits != 5));
    w.Advance(10 * kMs);
    w.Send({.ack = 4001, .sack = Blocks{{1, 1001}}});  // it comes twice
    CHECK((w.t.rack_reo_wnd_mult > 1) == (bits != 3));
  }
}

TEST_CASE("tcp sysctls: tcp_retrans_collapse") {
  for (const uint32_t collapse : {0u, 1u}) {
    TcpWorld w;
    w.host.tcp_retrans_collapse = collapse;
    w.host.tcp_early_retrans = 0;
    w.t.settings.flags = kSetNoDelay;
    w.Establish();
    for (int i = 0; i < 4; i++) w.Write(100);
    REQUIRE(w.wire.size() == 4);
    w.wire.clear();
    w.Fire(0, kSecond);
    CHECK(w.Expect({.seq = 1}).segment.bytes == (collapse != 0 ? 400 : 100));
  }
}

TEST_CASE("tcp sysctls: tcp_pingpong_thresh") {
  TcpWorld w;
  w.host.tcp_pingpong_thresh = 3;
  w.Establish();
  for (uint32_t i = 0; i < 3; i++) {
    CHECK_FALSE(Has(w.t, kPingPong));
    w.Send({.data = "question"});
    w.Write("answer");
  }
  CHECK(Has(w.t, kPingPong));
}

TEST_CASE("tcp sysctls: tcp_stdurg") {
  for (const uint32_t standard : {0u, 1u}) {
    TcpWorld w;
    w.host.tcp_stdurg = standard;
    w.Establish();
    w.Send({.flags = kAck | kUrg, .data = "abcdef", .urgent = 3});
    CHECK(w.t.rcv_up - w.t.irs == 1 + 3 + static_cast<int32_t>(standard));
  }
}

TEST_CASE("tcp sysctls: tcp_rfc1337, tcp_fin_timeout, tcp_orphan_retries") {
  for (const uint32_t rfc1337 : {0u, 1u}) {
    TcpWorld w;
    w.host.tcp_rfc1337 = rfc1337;
    w.Establish();
    w.Close();
    w.Send({.flags = kAck | kFin});
    w.ExpectState(State::kTimeWait);
    w.Send({.flags = kRst});
    w.ExpectState(rfc1337 != 0 ? State::kTimeWait : State::kClosed);
  }
  TcpWorld w;
  w.host.tcp_fin_timeout = 5;
  w.Establish();
  w.Close();
  w.Send({});
  w.ExpectState(State::kFinWait2);
  w.Advance(6 * kSecond);
  w.ExpectClosed();
  TcpWorld orphan;
  orphan.host.tcp_orphan_retries = 2;
  orphan.Establish();
  orphan.Close();
  orphan.Advance(5 * kSecond);
  orphan.ExpectClosed();
}

TEST_CASE("tcp sysctls: tcp_moderate_rcvbuf and tcp_rmem bound the window") {
  uint32_t limits[3] = {};
  for (uint32_t i = 0; i < 3; i++) {
    TcpWorld w;
    w.host.tcp_moderate_rcvbuf = i == 0 ? 0 : 1;
    w.host.tcp_rmem_max = i == 1 ? 150000 : 6291456;
    w.Establish();
    for (int round = 0; round < 20; round++) {
      for (int n = 0; n < 40; n++) w.Send({.data = std::string(kMss, 'x')});
      w.Advance(10 * kMs);
    }
    limits[i] = w.t.rcv_limit;
  }
  CHECK(limits[0] <= 65535);
  CHECK(limits[1] > limits[0]);
  CHECK(limits[1] <= 75000);
  CHECK(limits[2] > limits[1]);
}

TEST_CASE("tcp sysctls: tcp_max_reordering, tcp_min_rtt_wlen") {
  TcpWorld w;
  w.host.tcp_max_reordering = 5;
  w.host.tcp_min_rtt_wlen = 3;
  w.Establish();
  w.Write(10 * kMss);
  w.wire.clear();
  w.Advance(10 * kMs);
  w.Send({.ack = 1, .sack = Blocks{{9001, 10001}}});
  w.Send({.ack = 1, .sack = Blocks{{1001, 2001}, {9001, 10001}}});
  CHECK(w.t.reordering == 5);
  CHECK(MinRtt(w.t.rtt, w.now_ns) <= 10 * kMs);
  CHECK(MinRtt(w.t.rtt, w.now_ns + 5 * kSecond) == UINT64_MAX);
}

TEST_CASE("tcp sysctls: tcp_slow_start_after_idle") {
  for (const uint32_t begins_anew : {0u, 1u}) {
    TcpWorld w;
    w.host.tcp_slow_start_after_idle = begins_anew;
    w.Establish();
    for (uint32_t sent = 0; sent < 40 * kMss; sent += 10 * kMss) {
      w.Write(10 * kMss);
      w.Advance(10 * kMs);
      w.Send({});
    }
    w.wire.clear();
    w.Advance(10 * kSecond);
    w.Write(30 * kMss);
    CHECK((w.wire.size() > 10) == (begins_anew == 0));
  }
}

}  // namespace postern::tcp
