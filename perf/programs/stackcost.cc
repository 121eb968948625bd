// SPDX-License-Identifier: Apache-2.0
// stackcost.cc - what the stack alone costs: requests and responses between two engines, one
// thread.
//
//   stackcost [TRANSACTIONS [BYTES]]    default 2000000, of 1 and of 1024 bytes
//   stackcost bulk [ROUNDS]             64 KiB from A to B in each, default 20000
//
// A transaction is a request of BYTES from A and a response of as many from B: two segments, each
// with data and the acknowledgement of the other, so two go out and two come in. Each end calls the
// engine as a program does that waits by polling: Poll() after it has written, and again to read.
// So a transaction is four Poll()s, each with its lock, and two pairs; a *pair* is what one end has
// of it, a segment out and a segment in, with two Poll()s.
//
// In it: all of lib/stack and lib/tcp, headers and checksums, the payload's copy into the frame,
// and out of it again; and the test VI, whose Kick() does the driver's work: it copies each frame.
// Not in it: system calls, clocks (time is virtual, 5 us for each transaction), waking anybody,
// rings of lib/smcd: the ends are plain memory.
//
// Instructions for each: valgrind --tool=callgrind --toggle-collect='*Transaction*' stackcost
// 100000; of bulk, by end: '*BulkOut*' and '*BulkIn*'.
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>

#include "stack/engine.h"
#include "vi/test_vi.h"

namespace {

using namespace postern;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kFrames = 4096, kRoom = 1u << 20, kBytesMax = 1400, kSegmentMax = 2048;
constexpr uint16_t kPort = 80, kClientPort = 20000;

[[noreturn]] void Die(const char* what) {
  fprintf(stderr, "stackcost: %s\n", what);
  exit(1);
}

void* Memory(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) Die("no memory");
  return p;
}

// One end: it has one connection, and what it sends is always the same.
class End final : public stack::Streams, public stack::Paths {
 public:
  explicit End(uint8_t last_of_ip)
      : state_(*static_cast<stack::WireState*>(Memory(sizeof(stack::WireState)))) {
    area.Format(Memory(Area::BytesFor(kFrames)), kFrames);
    const uint64_t entropy[4] = {last_of_ip, 2, 3, 4};
    stack::FormatWire(state_, {1, last_of_ip}, entropy, 0);
    engine = std::make_unique<stack::Engine>(state_, area, *this, *this);
    SetIp(name, IpAddress::V4(10, 0, 0, last_of_ip));
  }

  void Write(uint32_t bytes, uint64_t now) {
    written_ += bytes;
    engine->Wake(conn);
    engine->Poll(now);
  }

  // ---- Streams
  tcp::Cursor Begin(stack::Conn&) override { return {released_, 0, 0}; }
  uint32_t Available(stack::Conn&, const tcp::Cursor& at, uint32_t limit) override {
    const uint64_t there = written_ - at.ring;
    return there < limit ? static_cast<uint32_t>(there) : limit;
  }
  tcp::Cursor Skip(stack::Conn&, const tcp::Cursor& at, uint32_t bytes) override {
    return {at.ring + bytes, 0, 0};
  }
  bool Copy(stack::Conn&, tcp::Cursor& at, uint32_t bytes, uint8_t* to,
            wire::Checksummer& sum) override {
    if (bytes > sizeof out_) return false;
    sum.Copy(to, out_, bytes);
    at.ring += bytes;
    return true;
  }
  void Release(stack::Conn&, uint32_t bytes) override { released_ += bytes; }
  bool Ended(stack::Conn&) override { return false; }
  uint32_t Room(stack::Conn&) override { return kRoom; }
  uint32_t RoomMax(stack::Conn&) override { return kRoom; }
  uint32_t Deliver(stack::Conn&, const uint8_t* data, uint32_t bytes) override {
    if (bytes > sizeof in_) return 0;
    memcpy(in_, data, bytes);
    received += bytes;
    return bytes;
  }
  void Report(stack::Conn&, tcp::Event event, int) override {
    if (event == tcp::Event::kReset) Die("the connection was reset");
  }
  uint32_t Look(stack::Conn& c) override {
    c.tcb.settings.flags = tcp::kSetNoDelay;
    return 0;
  }
  bool Accept(stack::Conn& c, uint32_t idx, const stack::Listener&) override {
    c.owner = 0;
    conn = idx;
    return true;
  }
  bool MayAccept(const stack::Listener&) override { return true; }
  bool Listens(const stack::Listener&) override { return true; }
  void Collect(stack::Engine&) override {}
  bool HasNews() override { return false; }

  // ---- Paths
  bool IsFresh(const stack::Path&) override { return true; }
  stack::PathStatus Find(const pstn_addr&, const pstn_addr&, stack::Path& path, int&) override {
    path.version = 1;
    path.vi = 0;
    path.mtu = 1500;
    path.link.vlan = path.link.outer_vlan = wire::kNoVlan;
    path.ttl = 64;
    return stack::PathStatus::kOk;
  }

  Area area;
  std::unique_ptr<stack::Engine> engine;
  pstn_addr name = {};
  uint32_t conn = PSTN_NONE;
  uint64_t received = 0;
  const stack::WireCounters& counters() const { return state_.counters; }

 private:
  stack::WireState& state_;
  uint64_t written_ = 0, released_ = 0;
  uint8_t out_[kSegmentMax] = {}, in_[kSegmentMax] = {};
};

struct World {
  End a{1}, b{2};
  std::unique_ptr<TestWire> wire = std::make_unique<TestWire>();
  std::unique_ptr<TestVi> vi_a, vi_b;
  uint64_t now = 1'000'000'000;

  World() {
    wire->Format();
    vi_a = std::make_unique<TestVi>(*wire, 0, a.area, 0);
    vi_b = std::make_unique<TestVi>(*wire, 1, b.area, 0);
    vi_a->Connect(*vi_b);
    vi_b->Connect(*vi_a);
    a.engine->SetVi(0, vi_a.get());
    b.engine->SetVi(0, vi_b.get());
    Turn();
    b.name.port = kPort;
    a.name.port = kClientPort;
    if (b.engine->Listen(b.name, AF_INET, 0, 1, 0, 0) == PSTN_NONE) Die("cannot listen");
    int error = 0;
    a.conn = a.engine->Connect(a.name, b.name, 0, now, error);
    for (int i = 0; i < 100 && b.conn == PSTN_NONE; i++) Turn();
    if (a.conn == PSTN_NONE || b.conn == PSTN_NONE) Die("not connected");
    Turn();
  }
  void Turn() {
    a.engine->Poll(now);
    b.engine->Poll(now);
  }
};

// Not inlined: callgrind finds it by its name.
[[gnu::noinline]] void Transaction(World& w, uint32_t bytes) {
  w.now += 5000;
  w.a.Write(bytes, w.now);
  w.b.engine->Poll(w.now);
  w.b.Write(bytes, w.now);
  w.a.engine->Poll(w.now);
}

[[gnu::noinline]] void BulkOut(World& w, uint32_t bytes) {
  if (bytes != 0)
    w.a.Write(bytes, w.now);
  else
    w.a.engine->Poll(w.now);
}
[[gnu::noinline]] void BulkIn(World& w) { w.b.engine->Poll(w.now); }

// Of the processor: others may be on it as well.
double ThreadNs() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

void Measure(uint64_t transactions, uint32_t bytes) {
  auto world = std::make_unique<World>();
  for (uint32_t i = 0; i < 2000; i++) Transaction(*world, bytes);  // windows, caches
  const uint64_t received = world->a.received, out = world->a.counters().packets_out;
  const double begin_ns = ThreadNs();
  for (uint64_t i = 0; i < transactions; i++) Transaction(*world, bytes);
  const double took_ns = ThreadNs() - begin_ns;
  const uint64_t answers = world->a.received - received;
  const uint64_t packets = world->a.counters().packets_out - out;
  if (answers != transactions * bytes) Die("answers are missing");
  if (packets != transactions) Die("there was something else than requests and responses");
  const double ns = took_ns / static_cast<double>(transactions);
  printf("%5u bytes  %7.1f ns a transaction  %7.1f ns a pair (segment out, segment in)\n", bytes,
         ns, ns / 2);
}

void MeasureBulk(uint64_t rounds) {
  constexpr uint32_t kBytes = 65536, kTurnsMax = 1000;
  auto world = std::make_unique<World>();
  double out_ns = 0, in_ns = 0;
  uint64_t packets = 0, acks = 0;
  constexpr uint64_t kWarm = 200;  // windows, caches
  for (uint64_t i = 0; i < rounds + kWarm; i++) {
    if (i == kWarm) {
      out_ns = in_ns = 0;
      packets = world->a.counters().packets_out;
      acks = world->b.counters().packets_out;
    }
    const uint64_t due = world->b.received + kBytes;
    uint32_t turns = 0;
    for (uint32_t more = kBytes; world->b.received != due && turns < kTurnsMax; more = 0, turns++) {
      world->now += 5000;
      const double begin_ns = ThreadNs();
      BulkOut(*world, more);
      const double sent_ns = ThreadNs();
      BulkIn(*world);
      out_ns += sent_ns - begin_ns;
      in_ns += ThreadNs() - sent_ns;
    }
    if (turns == kTurnsMax) Die("the bytes do not come");
  }
  packets = world->a.counters().packets_out - packets;
  acks = world->b.counters().packets_out - acks;
  const double kib = static_cast<double>(rounds) * kBytes / 1024;
  printf("bulk  out %6.1f ns/KiB  in %6.1f ns/KiB  %llu packets, %llu acknowledgements\n",
         out_ns / kib, in_ns / kib, static_cast<unsigned long long>(packets),
         static_cast<unsigned long long>(acks));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "bulk") == 0) {
    MeasureBulk(argc > 2 ? strtoull(argv[2], nullptr, 0) : 20'000);
    return 0;
  }
  const uint64_t transactions = argc > 1 ? strtoull(argv[1], nullptr, 0) : 2'000'000;
  if (argc > 2) {
    const uint32_t bytes = static_cast<uint32_t>(strtoul(argv[2], nullptr, 0));
    if (bytes == 0 || bytes > kBytesMax) Die("BYTES is 1 to 1400");
    Measure(transactions, bytes);
  } else {
    Measure(transactions, 1);
    Measure(transactions, 1024);
  }
  return 0;
}
