// SPDX-License-Identifier: Apache-2.0
// engine_ecn_test.cc - ECN (RFC 3168): which ends agree to it, and what a mark on the way does.
#include <initializer_list>

#include "engine_world.h"

namespace postern::test {

using wire_test::Bytes;

namespace {

constexpr size_t kTos = 15, kIpChecksum = 24, kIp = 14;

uint8_t EcnOf(const Bytes& frame) { return frame[kTos] & 3; }
bool HasData(const Bytes& frame) {
  return wire_test::Get16(frame, kIp + 2) > 20u + 4u * (frame[kIp + 20 + 12] >> 4);
}
void MarkCe(Bytes& frame) {
  frame[kTos] |= 3;
  wire_test::Set16(frame, kIpChecksum, 0);
  wire_test::Set16(frame, kIpChecksum,
                   0xffffu ^ wire_test::NaiveSum(std::span(frame).subspan(kIp, 20)));
}

bool Agreed(World& w, uint32_t client_says, uint32_t server_says, uint32_t backlog = 16) {
  w.a.state().settings.tcp_ecn = client_says;
  w.b.state().settings.tcp_ecn = server_says;
  (void)w.Listen(80, backlog);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.Settle();
  PlainEnd* server = w.Accepted(80);
  REQUIRE(server != nullptr);
  const bool a = (w.ConnOf(w.a, client).tcb.flags & tcp::kEcnOk) != 0;
  const bool b = (w.ConnOf(w.b, *server).tcb.flags & tcp::kEcnOk) != 0;
  CHECK(a == b);
  return a;
}

}  // namespace

TEST_CASE("engine: ECN as net.ipv4.tcp_ecn says, also through a cookie") {
  for (const uint32_t backlog : {16u, 0u}) {
    for (uint32_t client = 0; client <= 2; client++) {
      for (uint32_t server = 0; server <= 2; server++) {
        CAPTURE(backlog, client, server);
        World w;
        CHECK(Agreed(w, client, server, backlog) == (client == 1 && server != 0));
        CHECK(w.b.state().counters.cookies_taken == (backlog == 0 ? 1 : 0));
      }
    }
  }
}

TEST_CASE("engine: a SYN that is marked itself gets no ECN") {
  World w;
  w.a.state().settings.tcp_ecn = 1;
  (void)w.Listen(80);
  PlainEnd& client = w.a.Connect(w.a.At(40000), w.b.At(80));
  w.a.engine->Poll(w.now);
  for (Bytes& syn : w.Swallow(w.b)) {
    CHECK(EcnOf(syn) == 0);
    MarkCe(syn);
    w.Put(w.a, syn);
  }
  w.Settle();
  REQUIRE(client.connected);
  CHECK((w.ConnOf(w.a, client).tcb.flags & tcp::kEcnOk) == 0);
}

TEST_CASE("engine: a mark on the way reduces the window, and nothing is sent again") {
  for (const bool marked : {false, true}) {
    CAPTURE(marked);
    World w;
    REQUIRE(Agreed(w, 1, 2));
    PlainEnd& client = *w.a.ends[0];
    PlainEnd& server = *w.b.ends[0];
    client.out = Pattern(100'000, 1);
    w.a.Wake(client);
    w.a.now = w.now;
    w.a.engine->Poll(w.now);
    bool first = true;
    for (Bytes& frame : w.Swallow(w.b)) {
      CHECK(EcnOf(frame) == (HasData(frame) ? 2 : 0));  // ECT(0)
      if (marked && first) MarkCe(frame);
      first = false;
      w.Put(w.a, frame);
    }
    w.Pass(500);
    CHECK((server.in == Pattern(100'000, 1)));
    const tcp::Tcb& t = w.ConnOf(w.a, client).tcb;
    CHECK(t.bytes_retrans == 0);
    CHECK((t.cc.ssthresh_bytes != tcp::kSsthreshUnknown) == marked);
  }
}

}  // namespace postern::test
