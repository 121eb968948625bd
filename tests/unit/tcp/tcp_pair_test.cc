// tcp_pair_test.cc - two ends of ours over a bad wire in virtual time: all bytes arrive, both
// close.
// SPDX-License-Identifier: Apache-2.0
//
// The simulator (tests/sim) does this at length; here are the few runs that each build can afford.
#include <initializer_list>
#include <map>

#include "tcp_world.h"

namespace postern::tcp {
namespace {

struct Wire {
  uint32_t loss_permille = 0, duplicate_permille = 0, reorder_permille = 0;
  uint64_t delay_ns = 10 * kMs;
  uint32_t mtu_bytes = 9000;  // payload beyond it vanishes
};

class Pair {
 public:
  TcpWorld a, b;
  uint64_t dropped = 0;

  Pair(const Wire& wire, uint64_t seed, const Options& o) : wire_(wire), random_(seed) {
    a.options_ = b.options_ = o;
    b.now_ns = a.now_ns;
    a.t.settings.flags = b.t.settings.flags =
        (o.sack ? 0 : kSetNoSack) | (o.timestamps ? 0 : kSetNoTimestamps);
    a.Step([&] {
      Open(a.t, {.mss_max = 1460, .mss_receive = 1460, .iss = Seq(kIss), .ecn = o.ecn}, a);
    });
    Collect();
  }

  // Until nothing moves any more, or `limit_ns` have passed.
  void Run(uint64_t limit_ns) {
    const uint64_t end_ns = a.now_ns + limit_ns;
    for (int steps = 0; steps < 2'000'000; steps++) {
      uint64_t at = std::min(NextDeadline(a.t), NextDeadline(b.t));
      if (!way_.empty()) at = std::min(at, way_.begin()->first);
      if (at > end_ns || at == UINT64_MAX) return;
      a.now_ns = b.now_ns = std::max(at, a.now_ns);
      if (!way_.empty() && way_.begin()->first <= a.now_ns) {
        const Flying f = way_.begin()->second;
        way_.erase(way_.begin());
        Arrive(f);
      }
      Tick(a);
      Tick(b);
      Collect();
    }
    FAIL("it does not end");
  }

 private:
  struct Flying {
    bool to_b;
    TcpWorld::Out out;
  };

  uint32_t Dice() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(random_ >> 33) % 1000;
  }
  static void Tick(TcpWorld& w) {
    if (NextDeadline(w.t) <= w.now_ns) w.Step([&] { Timer(w.t, w); });
  }
  void Arrive(const Flying& f) {
    TcpWorld& to = f.to_b ? b : a;
    const SegmentOut& o = f.out.segment;
    SegmentIn s;
    s.seq = o.seq;
    s.ack = o.ack;
    s.window = o.window;
    s.flags = o.flags;
    s.ecn = o.ecn;
    s.options = o.options;
    if (f.to_b && StateOf(b.t) == State::kClosed && (o.flags & kSyn) != 0 && b.events.empty()) {
      b.Step([&] {
        OpenPassive(b.t, {.mss_max = 1460, .mss_receive = 1460, .iss = Seq(kIrs), .ecn = true}, s,
                    b);
      });
      return;
    }
    to.Deliver(s, f.out.data);
    // The program has read, and says so now and then.
    if (Dice() < 300) to.Kick();
  }
  void Collect() {
    for (TcpWorld* w : {&a, &b}) {
      for (const TcpWorld::Out& out : w->wire) Launch({w == &a, out});
      w->wire.clear();
    }
  }
  void Launch(const Flying& f) {
    if (Dice() < wire_.loss_permille || f.out.segment.bytes > wire_.mtu_bytes) {
      dropped++;
      return;
    }
    uint64_t at = a.now_ns + wire_.delay_ns;
    if (Dice() < wire_.reorder_permille) at += wire_.delay_ns / 2;
    way_.emplace(at, f);
    if (Dice() < wire_.duplicate_permille) way_.emplace(at + kMs, f);
  }

  Wire wire_;
  uint64_t random_;
  std::multimap<uint64_t, Flying> way_;
};

// Both sides send `bytes`, and close. How long it took.
uint64_t Exchange(const Wire& wire, uint64_t seed, const Options& o, uint32_t bytes) {
  INFO("seed " << seed << " loss " << wire.loss_permille << " sack " << o.sack);
  Pair p(wire, seed, o);
  p.a.host.tcp_mtu_probing = p.b.host.tcp_mtu_probing = 1;
  p.Run(200 * kSecond);
  REQUIRE(StateOf(p.a.t) == State::kEstablished);
  REQUIRE(StateOf(p.b.t) == State::kEstablished);
  const std::string there = p.a.Text(bytes), back = p.b.Text(bytes / 4);
  const uint64_t begin_ns = p.a.now_ns;
  p.a.Write(there);
  p.b.Write(back);
  p.a.End();
  p.b.End();
  for (int i = 0; i < 3000 && p.b.received.size() < bytes; i++) p.Run(kSecond);
  const uint64_t took_ns = p.a.now_ns - begin_ns;
  p.Run(2000 * kSecond);
  REQUIRE((p.b.received == there));
  REQUIRE((p.a.received == back));
  CHECK(p.a.Happened(Event::kFin));
  CHECK(p.b.Happened(Event::kFin));
  p.a.ExpectClosed();
  p.b.ExpectClosed();
  CHECK(!p.a.Happened(Event::kReset));
  CHECK(!p.b.Happened(Event::kReset));
  return took_ns;
}

}  // namespace

TEST_CASE("tcp pair: a good wire") {
  const uint64_t took_ns = Exchange({}, 1, {.timestamps = true}, 1'000'000);
  CHECK(took_ns < 2 * kSecond);
}

TEST_CASE("tcp pair: loss, duplicates, reordering") {
  const uint64_t seed = GENERATE(1u, 2u, 3u, 4u, 5u, 6u);
  const bool sack = GENERATE(true, false);
  const bool timestamps = GENERATE(true, false);
  const uint32_t loss = GENERATE(10u, 100u);
  const Wire wire = {.loss_permille = loss, .duplicate_permille = 10, .reorder_permille = 30};
  Exchange(wire, seed, {.sack = sack, .timestamps = timestamps, .ecn = seed % 2 == 0}, 200'000);
}

TEST_CASE("tcp pair: a path that swallows large segments") {
  const Wire wire = {.mtu_bytes = 1100};
  Exchange(wire, 1, {}, 20'000);
}

}  // namespace postern::tcp
