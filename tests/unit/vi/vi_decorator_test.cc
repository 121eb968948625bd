// vi_decorator_test.cc - the bad wire is as bad as was asked for and the same each time; what is
// written of packets is what passed.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "../kit/catch.h"
#include "vi/decorator/vi_fault.h"
#include "vi/decorator/vi_pcap.h"
#include "vi/decorator/vi_trace.h"
#include "vi_world.h"

namespace postern {
namespace {

constexpr uint64_t kMs = 1'000'000;

// ---- faults ------------------------------------------------------------------------------------

struct BadWire {
  explicit BadWire(uint64_t seed)
      : world(4096), fault(new FaultVi(*world.vi[1], world.area[1], seed)) {
    world.Feed(1, kTestSlots);
  }
  ~BadWire() { delete fault; }
  BadWire(const BadWire&) = delete;
  BadWire& operator=(const BadWire&) = delete;

  // Sends `count` packets at `now`, numbered on; what is not due yet waits.
  std::vector<std::string> Burst(uint64_t now_ns, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
      char text[101];
      snprintf(text, sizeof text, "%0100u", sent++);
      REQUIRE(world.Send(0, text));
    }
    world.vi[0]->Kick();
    world.Collect(0);
    return At(now_ns);
  }
  std::vector<std::string> At(uint64_t now_ns) {
    fault->SetNow(now_ns);
    auto all = world.Drain(1, *fault);
    world.Feed(1, static_cast<uint32_t>(world.vi[1]->RefillRoom()));
    return all;
  }
  // Everything, until nothing waits; the time of each.
  std::vector<std::pair<uint64_t, std::string>> Rest() {
    std::vector<std::pair<uint64_t, std::string>> all;
    for (uint64_t due; (due = fault->NextDue()) != UINT64_MAX;)
      for (auto& text : At(due)) all.emplace_back(due, text);
    return all;
  }

  ViWorld world;
  FaultVi* fault;
  uint32_t sent = 0;
};

TEST_CASE("vi fault: without faults everything passes at once, in order") {
  BadWire w(1);
  for (int i = 0; i < 50; i++) {
    const auto got = w.Burst(static_cast<uint64_t>(i), 60);
    REQUIRE(got.size() == 60);
    REQUIRE(std::is_sorted(got.begin(), got.end()));
  }
  CHECK(w.world.Wrong(1) == nullptr);
}

TEST_CASE("vi fault: loss, duplication and corruption are as frequent as asked for") {
  BadWire w(2);
  w.fault->settings.loss = 100'000;      // 10 %
  w.fault->settings.duplicate = 50'000;  // 5 %
  w.fault->settings.corrupt = 20'000;    // 2 %
  std::map<std::string, int> count;
  uint64_t got = 0;
  for (int i = 0; i < 400; i++) {
    for (auto& text : w.Burst(0, 50)) {
      count[text]++;
      got++;
    }
  }
  const FaultCounts& c = w.fault->counts();
  CHECK(got == c.passed);
  CHECK(got == 20'000 - c.lost + c.duplicated);
  CHECK((c.lost > 1800 && c.lost < 2200));
  CHECK((c.duplicated > 800 && c.duplicated < 1000));
  CHECK((c.corrupted > 300 && c.corrupted < 430));
  // A corrupted one differs in one bit from one that was sent.
  uint64_t odd = 0;
  for (const auto& [text, n] : count) {
    uint32_t bits = 0;
    std::string right = text;
    for (char& ch : right) {
      if (ch < '0' || ch > '9') bits++;
    }
    odd += bits != 0 ? 1 : 0;
    CHECK(bits <= 1);
  }
  CHECK(odd > 0);
  CHECK(w.world.Wrong(1) == nullptr);
}

TEST_CASE("vi fault: the same seed does the same, another one does not") {
  const auto run = [](uint64_t seed) {
    BadWire w(seed);
    w.fault->settings = {.loss = 50'000,
                         .duplicate = 50'000,
                         .reorder = 100'000,
                         .corrupt = 10'000,
                         .delay_ns = 3 * kMs,
                         .jitter_ns = 2 * kMs};
    std::vector<std::pair<uint64_t, std::string>> all;
    for (uint64_t t = 0; t < 20; t++) {
      for (auto& text : w.Burst(t * kMs, 20)) all.emplace_back(t * kMs, text);
    }
    for (auto& one : w.Rest()) all.push_back(one);
    return all;
  };
  CHECK(run(5) == run(5));
  CHECK(run(5) != run(6));
}

TEST_CASE("vi fault: delay and rate in the caller's time") {
  BadWire w(3);
  w.fault->settings.delay_ns = 10 * kMs;
  w.fault->settings.bits_per_second = 8'000'000;  // a byte in a microsecond
  CHECK(w.Burst(0, 10).empty());
  CHECK(w.fault->NextDue() == 10 * kMs + 100'000);
  const auto rest = w.Rest();
  REQUIRE(rest.size() == 10);
  for (uint64_t i = 0; i < 10; i++) CHECK(rest[i].first == 10 * kMs + (i + 1) * 100'000);
  // The wire has been idle: what comes now does not wait for what was before.
  CHECK(w.Burst(50 * kMs, 1).empty());
  CHECK(w.fault->NextDue() == 60 * kMs + 100'000);
}

TEST_CASE("vi fault: the queue before the rate has an end") {
  BadWire w(4);
  w.fault->settings.bits_per_second = 8'000'000;
  w.fault->settings.queue_bytes = 1000;
  (void)w.Burst(0, 30);
  CHECK(w.fault->counts().dropped == 20);
  CHECK(w.Rest().size() == 10);
  CHECK(w.world.Wrong(1) == nullptr);
}

TEST_CASE("vi fault: what is reordered is overtaken, and nothing else is") {
  BadWire w(5);
  w.fault->settings.reorder = 200'000;
  w.fault->settings.reorder_delay_ns = 5 * kMs;
  std::vector<std::string> all;
  for (uint64_t t = 0; t < 100; t++) {
    for (auto& text : w.Burst(t * kMs, 1)) all.push_back(text);
  }
  for (auto& [when, text] : w.Rest()) all.push_back(text);
  REQUIRE(all.size() == 100);
  uint32_t late = 0;
  for (size_t i = 1; i < all.size(); i++) late += all[i] < all[i - 1] ? 1u : 0u;
  CHECK(late > 5);
  CHECK(late <= w.fault->counts().reordered);
  std::sort(all.begin(), all.end());
  CHECK(std::unique(all.begin(), all.end()) == all.end());
}

// ---- pcapng ------------------------------------------------------------------------------------

uint32_t Word(const std::string& s, size_t at) {
  uint32_t v;
  memcpy(&v, s.data() + at, 4);
  return v;
}

struct Captured {
  uint64_t time;
  uint32_t direction;
  std::string bytes;
};

// Read as the specification has it, block by block.
std::vector<Captured> ReadPcapng(const std::string& file) {
  std::vector<Captured> all;
  REQUIRE(file.size() >= 28);
  CHECK(Word(file, 0) == 0x0a0d0d0a);
  CHECK(Word(file, 8) == 0x1a2b3c4d);
  uint32_t blocks = 0;
  for (size_t at = 0; at < file.size();) {
    const uint32_t type = Word(file, at), bytes = Word(file, at + 4);
    REQUIRE((bytes % 4 == 0 && bytes >= 12 && at + bytes <= file.size()));
    REQUIRE(Word(file, at + bytes - 4) == bytes);
    if (blocks == 1) {
      CHECK(type == 1);
      CHECK(Word(file, at + 8) == 1);  // Ethernet
      CHECK(file.find("vi-name", at) < at + bytes);
    }
    if (type == 6) {
      const uint32_t captured = Word(file, at + 20);
      CHECK(Word(file, at + 24) == captured);
      const size_t options = at + 28 + (captured + 3) / 4 * 4;
      CHECK(Word(file, options) == (4u << 16 | 2u));  // epb_flags, four bytes
      all.push_back({uint64_t{Word(file, at + 12)} << 32 | Word(file, at + 16),
                     Word(file, options + 4), file.substr(at + 28, captured)});
    }
    blocks++;
    at += bytes;
  }
  return all;
}

uint64_t FixedClock(void* context) { return *static_cast<uint64_t*>(context); }

std::string Contents(int fd) {
  std::string all(static_cast<size_t>(lseek(fd, 0, SEEK_END)), 0);
  REQUIRE(pread(fd, all.data(), all.size(), 0) == static_cast<ssize_t>(all.size()));
  return all;
}

TEST_CASE("vi pcap: what passes is in the file, with its time and direction") {
  ViWorld w(64);
  w.Feed(0, 10);
  w.Feed(1, 10);
  uint64_t now = 0x123456789abcdef0;
  const int fd = memfd_create("pcap", MFD_CLOEXEC);
  PcapVi pcap(*w.vi[0], w.area[0], fd, "vi-name", FixedClock, &now);
  uint32_t frames[3];
  REQUIRE(w.area[0].Take(frames, 3) == 3);
  for (uint32_t i = 0; i < 3; i++)
    memset(w.area[0].At(frames[i], 0), 'a' + static_cast<int>(i), 200);
  const ViTx tx[3] = {
      {frames[0], 0, 61, 0, 0}, {frames[1], 0, 100, kTxMore, 0}, {frames[2], 0, 7, 0, 0}};
  REQUIRE(pcap.Send(tx, 3) == 3);
  pcap.Kick();
  REQUIRE(w.Send(1, std::string(77, 'z')));
  w.vi[1]->Kick();
  now += 5;
  ViRx rx[4];
  REQUIRE(pcap.Receive(rx, 4) == 1);
  CHECK(pcap.error() == 0);
  const auto got = ReadPcapng(Contents(fd));
  REQUIRE(got.size() == 3);
  CHECK(got[0].bytes == std::string(61, 'a'));
  CHECK(got[1].bytes == std::string(100, 'b') + std::string(7, 'c'));
  CHECK(got[2].bytes == std::string(77, 'z'));
  CHECK((got[0].direction == 2 && got[1].direction == 2 && got[2].direction == 1));
  CHECK(got[0].time == 0x123456789abcdef0);
  CHECK(got[2].time == 0x123456789abcdef5);
  close(fd);
}

TEST_CASE("vi pcap: what the VI does not take is not in the file; a full disk stops no packet") {
  ViWorld w(2048);
  uint64_t now = 0;
  const int fd = memfd_create("pcap", MFD_CLOEXEC);
  PcapVi pcap(*w.vi[0], w.area[0], fd, "vi-name", FixedClock, &now);
  std::vector<uint32_t> frames(kTestSlots + 5);
  REQUIRE(w.area[0].Take(frames.data(), kTestSlots + 5) == kTestSlots + 5);
  std::vector<ViTx> tx;
  for (uint32_t f : frames) tx.push_back({f, 0, 60, 0, 0});
  CHECK(pcap.Send(tx.data(), kTestSlots + 5) == kTestSlots);
  CHECK(ReadPcapng(Contents(fd)).size() == kTestSlots);
  close(fd);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ViWorld w2(64);
  PcapVi broken(*w2.vi[0], w2.area[0], full, "vi-name", FixedClock, &now);
  CHECK(broken.error() == -ENOSPC);
  uint32_t frame = 0;
  REQUIRE(w2.area[0].Take(&frame, 1) == 1);
  const ViTx one = {frame, 0, 60, 0, 0};
  CHECK(broken.Send(&one, 1) == 1);
  close(full);
}

// ---- trace -------------------------------------------------------------------------------------

std::string Describe(std::vector<uint8_t> frame) {
  char line[kTraceLineMax];
  // Of its exact size, so that a sanitizer sees a byte too far.
  const uint32_t n = DescribeFrame(frame.data(), static_cast<uint32_t>(frame.size()), line);
  REQUIRE(n == strlen(line));
  return line;
}

std::vector<uint8_t> Frame(uint16_t type, std::vector<uint8_t> rest) {
  std::vector<uint8_t> f(12, 2);
  f.push_back(static_cast<uint8_t>(type >> 8));
  f.push_back(static_cast<uint8_t>(type));
  f.insert(f.end(), rest.begin(), rest.end());
  return f;
}

const std::vector<uint8_t> kIpv4 = {0x45, 0, 0,  45, 0, 1, 0x40, 0,  64, 6,
                                    0,    0, 10, 77, 0, 1, 10,   77, 0,  2};
const std::vector<uint8_t> kTcp = {0x9c, 0x40, 0,    80, 0, 0, 3, 0xe8, 0,   0,   0,   7,  0x50,
                                   0x18, 0xfa, 0xf0, 0,  0, 0, 0, 'h',  'e', 'l', 'l', 'o'};

std::vector<uint8_t> operator+(std::vector<uint8_t> a, const std::vector<uint8_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_CASE("vi trace: a line says who, what and how much") {
  CHECK(Describe(Frame(0x0800, kIpv4 + kTcp)) ==
        "10.77.0.1.40000 > 10.77.0.2.80 tcp PA seq 1000 ack 7 win 64240 len 5");
  std::vector<uint8_t> padded = kIpv4 + kTcp + std::vector<uint8_t>(1);
  CHECK(Describe(Frame(0x8100, std::vector<uint8_t>{0, 5, 8, 0} + padded)) ==
        "10.77.0.1.40000 > 10.77.0.2.80 tcp PA seq 1000 ack 7 win 64240 len 5 vlan 5");
  CHECK(Describe(Frame(0x0806, std::vector<uint8_t>(28))) == "type 0806 len 28");
  std::vector<uint8_t> v6 = {0x60, 0, 0, 0, 0, 33, 0, 64};  // 8 of hop-by-hop options
  v6 = v6 + std::vector<uint8_t>{0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  v6 = v6 + std::vector<uint8_t>{0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
  CHECK(Describe(Frame(0x86dd, v6 + std::vector<uint8_t>{6, 0, 1, 4, 0, 0, 0, 0} + kTcp)) ==
        "fd77::1.40000 > fd77::2.80 tcp PA seq 1000 ack 7 win 64240 len 5");
}

TEST_CASE("vi trace: no prefix of a packet is read beyond its end") {
  std::vector<uint8_t> v6 = {0x60, 0, 0, 0, 0, 33, 44, 64};
  v6.resize(40, 1);
  for (const auto& whole :
       {Frame(0x0800, kIpv4 + kTcp), Frame(0x8100, std::vector<uint8_t>{0, 5, 8, 0} + kIpv4 + kTcp),
        Frame(0x86dd, v6 + std::vector<uint8_t>{6, 0, 0, 8, 0, 0, 0, 0} + kTcp)}) {
    for (size_t n = 0; n <= whole.size(); n++)
      CHECK_FALSE(
          Describe({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)}).empty());
  }
}

TEST_CASE("vi trace: one line for each packet, both ways") {
  ViWorld w(64);
  w.Feed(0, 4);
  w.Feed(1, 4);
  static std::vector<std::string> lines;
  static uint64_t now;
  lines.clear();
  now = 1'000'125'000;
  TraceVi trace(
      *w.vi[0], w.area[0], [](void*) { return now; },
      [](void*, const char* line) { lines.emplace_back(line); }, nullptr);
  const auto frame = Frame(0x0800, kIpv4 + kTcp);
  uint32_t f = 0;
  REQUIRE(w.area[0].Take(&f, 1) == 1);
  memcpy(w.area[0].At(f, 0), frame.data(), frame.size());
  const ViTx tx = {f, 0, static_cast<uint16_t>(frame.size()), 0, 0};
  REQUIRE(trace.Send(&tx, 1) == 1);
  REQUIRE(w.Send(1, std::string(frame.begin(), frame.end())));
  w.vi[1]->Kick();
  ViRx rx[4];
  REQUIRE(trace.Receive(rx, 4) == 1);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] ==
        "1.000125 > 10.77.0.1.40000 > 10.77.0.2.80 tcp PA seq 1000 ack 7 win 64240 len 5");
  CHECK(lines[1].substr(0, 11) == "1.000125 < ");
}

}  // namespace
}  // namespace postern
