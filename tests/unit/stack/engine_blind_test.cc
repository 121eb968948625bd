// SPDX-License-Identifier: Apache-2.0
// engine_blind_test.cc - segments of an attacker that guesses: how many answers all connections of
// a host give together (RFC 5961, 7).
#include <climits>
#include <initializer_list>

#include "engine_world.h"

namespace postern::test {
namespace {

constexpr uint16_t kConnections = 100;

struct Many {
  World w;
  std::vector<PlainEnd*> clients;
  Many() {
    (void)w.Listen(80, 2 * kConnections);
    for (uint16_t i = 0; i < kConnections; i++) {
      clients.push_back(&w.a.Connect(w.a.At(static_cast<uint16_t>(40000 + i)), w.b.At(80)));
      w.Settle();
    }
    w.Pass(1000);
  }
  // What the server says to one segment for each of its connections.
  size_t Answers(uint8_t flags, int32_t skip) {
    for (const PlainEnd* client : clients)
      w.Put(w.a, wire_test::MakeFrame(SegmentOf(w.ConnOf(w.a, *client), flags, skip)));
    w.b.engine->Poll(w.now);
    const size_t answers = w.Swallow(w.a).size();
    (void)w.a.engine->Poll(w.now);
    CHECK(w.b.state().conn_count == kConnections);  // none was fooled
    return answers;
  }
  uint32_t& limit() { return w.b.state().settings.tcp_challenge_ack_limit; }
  void Second() { w.now += 1000 * kMs; }
};

}  // namespace

TEST_CASE("engine: challenge ACKs are limited for the whole host") {
  Many m;
  m.limit() = 20;
  for (const uint8_t flags : {uint8_t{tcp::kRst}, uint8_t{tcp::kSyn}}) {
    size_t least = SIZE_MAX, most = 0;
    for (int i = 0; i < 20; i++) {
      m.Second();
      const size_t answers = m.Answers(flags, 1);
      least = std::min(least, answers);
      most = std::max(most, answers);
      CHECK(m.Answers(flags, 1) == 0);  // within the second, and each connection's 500 ms
    }
    CHECK(least >= 10);
    CHECK(most <= 30);
    CHECK(least != most);  // nobody can count on a number (CVE-2016-5696)
  }
  CHECK(m.w.b.state().counters.challenges_limited > 0);
}

TEST_CASE("engine: tcp_challenge_ack_limit = 0 allows none, INT_MAX any") {
  Many m;
  m.limit() = 0;
  m.Second();
  CHECK(m.Answers(tcp::kRst, 1) == 0);
  m.limit() = INT_MAX;
  m.Second();
  CHECK(m.Answers(tcp::kRst, 1) == kConnections);
}

TEST_CASE("engine: the host's limit is not for ACKs that peers need") {
  Many m;
  m.limit() = 0;
  m.Second();
  CHECK(m.Answers(tcp::kAck, -1) == kConnections);  // a keepalive probe
}

TEST_CASE("engine: a listener is silent to what neither opens nor acknowledges") {
  World w;
  (void)w.Listen(80);
  const auto answers = [&w](uint16_t port, uint8_t flags) {
    stack::Conn c = {};
    c.local = w.a.At(40000);
    c.peer = w.b.At(port);
    w.Put(w.a, wire_test::MakeFrame(SegmentOf(c, flags)));
    w.b.engine->Poll(w.now);
    return w.Swallow(w.a).size();
  };
  constexpr uint8_t kXmas = tcp::kFin | tcp::kPsh | tcp::kUrg, kSynFin = tcp::kSyn | tcp::kFin;
  for (const uint8_t flags : {uint8_t{0}, tcp::kFin, tcp::kPsh, kXmas, kSynFin, tcp::kRst}) {
    INFO("flags " << int{flags});
    CHECK(answers(80, flags) == 0);
    CHECK(w.b.state().conn_count == 0);
    CHECK(answers(81, flags) == (flags == tcp::kRst ? 0 : 1));  // no listener: a RST
  }
  CHECK(answers(80, tcp::kAck) == 1);
  CHECK(answers(80, tcp::kSyn) == 1);
}

}  // namespace postern::test
