// vi_soft_test.cc - the soft VI's two halves: packets both ways, bells, a driver that dies between
// any two instructions, and a program that lies about everything.
// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "../kit/catch.h"
#include "vi/soft/soft.h"
#include "vi/soft/soft_driver.h"

namespace postern {
namespace {

constexpr size_t kPage = 4096;

size_t Pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Rings and area in memory that may be shared, with pages around each that nobody may touch.
//   | none | rings | none | area | none |
class SoftWorld {
 public:
  explicit SoftWorld(uint32_t frames = 256) : frames_(frames) {
    Map();
    FormatSoftRings(rings());
    area.Format(AreaAt(), frames);
    pstn_vi& vi_info = *area.ViAt(0);
    vi_info.queue_count = 1;
    vi_info.fill_slots = vi_info.rx_slots = vi_info.tx_slots = vi_info.completion_slots =
        kSoftSlots;
    vi_info.state = kViUp;
    Open();
  }
  SoftWorld(const SoftWorld& from) : frames_(from.frames_) {
    Map();
    CopyFrom(from);
    area.View(AreaAt(), frames_);
    Open();
  }
  SoftWorld& operator=(const SoftWorld&) = delete;
  ~SoftWorld() {
    munmap(at_, Whole());
    close(bells[0]);
    close(bells[1]);
  }

  void CopyFrom(const SoftWorld& from) {
    memcpy(static_cast<void*>(&rings()), &from.rings(), sizeof(SoftRings));
    memcpy(AreaAt(), from.AreaAt(), Area::BytesFor(frames_));
  }
  SoftRings& rings() const { return *reinterpret_cast<SoftRings*>(at_ + kPage); }
  // The next driver: it knows nothing but the memory.
  void NewDriver() {
    driver = SoftDriver();
    driver.Attach(rings(), area.frames(), frames_);
  }

  uint32_t Feed(uint32_t count) {
    std::vector<uint32_t> frames(count);
    const uint32_t n = area.Take(frames.data(), count);
    const uint32_t took = vi.Refill(frames.data(), n);
    area.Give(frames.data() + took, n - took);
    return took;
  }
  bool Send(const std::string& bytes) {
    uint32_t frame = 0;
    if (area.Take(&frame, 1) == 0) return false;
    memcpy(area.At(frame, 100), bytes.data(), bytes.size());
    const ViTx tx = {frame, 100, static_cast<uint16_t>(bytes.size()), 0, 0};
    if (vi.Send(&tx, 1) == 1) return true;
    area.Give(frame);
    return false;
  }
  void Collect() {
    uint32_t frames[kViBatchMax];
    for (uint32_t n; (n = vi.Completed(frames, kViBatchMax)) != 0;) area.Give(frames, n);
  }
  std::vector<std::string> Drain() {
    std::vector<std::string> all;
    ViRx rx[kViBatchMax];
    for (uint32_t n; (n = vi.Receive(rx, kViBatchMax)) != 0;) {
      for (uint32_t i = 0; i < n; i++) {
        all.emplace_back(reinterpret_cast<const char*>(area.At(rx[i].frame, rx[i].off)),
                         rx[i].bytes);
        area.Give(rx[i].frame);
      }
    }
    return all;
  }
  bool Deliver(const std::string& bytes) {
    return driver.Deliver(reinterpret_cast<const uint8_t*>(bytes.data()),
                          static_cast<uint32_t>(bytes.size()));
  }
  // What the card sends.
  std::vector<std::string> TakeSent(uint32_t max = 64) {
    std::vector<std::string> all;
    std::vector<SoftPacket> packets(max);
    const uint32_t n = driver.Peek(packets.data(), max);
    for (uint32_t i = 0; i < n; i++) {
      if (packets[i].bytes != 0)
        all.emplace_back(reinterpret_cast<const char*>(packets[i].data), packets[i].bytes);
    }
    driver.Complete(n);
    return all;
  }
  // Whether every frame is in one place, and where its owner says. Null, or what is wrong.
  const char* Wrong() {
    std::vector<uint8_t> seen(frames_);
    if (!vi.Validate(seen.data())) return "rings";
    if (!area.Validate(seen.data())) return "free list";
    for (uint32_t f = 0; f < frames_; f++) {
      const FrameUse use = area.UseAt(f);
      if ((use == kFrameFill || use == kFrameSending) && seen[f] != 1) return "the driver's, lost";
      if ((use == kFrameRx || use == kFrameTx || use == kFrameKept) && seen[f] != 0)
        return "the engine's, and in a ring";
    }
    return nullptr;
  }

  Area area;
  SoftVi vi;
  SoftDriver driver;
  int bells[2] = {-1, -1};  // the program's, the driver's

 private:
  uint8_t* AreaAt() const { return at_ + 2 * kPage + Pages(sizeof(SoftRings)); }
  size_t Whole() const { return 3 * kPage + Pages(sizeof(SoftRings)) + Pages(AreaBytes()); }
  size_t AreaBytes() const { return Area::BytesFor(frames_); }
  void Map() {
    at_ = static_cast<uint8_t*>(
        mmap(nullptr, Whole(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (const size_t off : {size_t{0}, kPage + Pages(sizeof(SoftRings)), Whole() - kPage})
      mprotect(at_ + off, kPage, PROT_NONE);
  }
  void Open() {
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bells) == 0);
    REQUIRE(vi.View(area, 0, rings(), bells[0]));
    NewDriver();
  }

  const uint32_t frames_;
  uint8_t* at_ = nullptr;
};

std::string Numbered(uint32_t n) {
  return std::string(60 + n % 1400, static_cast<char>('a' + n % 26)) + std::to_string(n);
}

bool IsReadable(int fd) {
  uint8_t byte;
  return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

TEST_CASE("soft: memfds are sealed, of their size, and nothing else is mapped") {
  const int fd = CreateSoftRings();
  REQUIRE(fd >= 0);
  CHECK(ftruncate(fd, 4096) == -1);
  SoftRings* const rings = MapSoftRings(fd);
  REQUIRE(rings != nullptr);
  rings->version++;
  CHECK(MapSoftRings(fd) == nullptr);
  UnmapSoftRings(rings);
  close(fd);
  const int other = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(other, sizeof(SoftRings)) == 0);
  CHECK(MapSoftRings(other) == nullptr);
  close(other);
}

TEST_CASE(
    "soft: what is sent goes out, what comes arrives, in order, all the way round the rings") {
  SoftWorld w;
  std::mt19937 random(7);
  std::deque<std::string> to_come, to_go;
  uint32_t number = 0, came = 0, went = 0;
  for (int turn = 0; turn < 12000; turn++) {
    w.Feed(static_cast<uint32_t>(random() % 8));
    for (auto i = random() % 4; i != 0; i--) {
      const std::string text = Numbered(number++);
      if (w.Deliver(text)) to_come.push_back(text);
    }
    (void)w.driver.Publish();
    for (auto i = random() % 4; i != 0; i--) {
      const std::string text = Numbered(number++);
      if (w.Send(text)) to_go.push_back(text);
    }
    for (const std::string& text : w.TakeSent(static_cast<uint32_t>(random() % 5))) {
      REQUIRE(text == to_go.front());
      to_go.pop_front();
      went++;
    }
    if (random() % 3 == 0) {
      for (const std::string& text : w.Drain()) {
        REQUIRE(text == to_come.front());
        to_come.pop_front();
        came++;
      }
      w.Collect();
    }
    REQUIRE(w.Wrong() == nullptr);
  }
  CHECK(came > 2 * kSoftSlots);
  CHECK(went > 2 * kSoftSlots);
  CHECK(w.area.ViAt(0)->queue[0].bad_descriptors == 0);
  CHECK(w.driver.counters().bad_descriptors == 0);
}

TEST_CASE("soft: without a frame, or too long, a packet is lost and counted") {
  SoftWorld w(32);
  CHECK_FALSE(w.Deliver("nowhere"));
  CHECK(w.Feed(1) == 1);
  CHECK_FALSE(w.Deliver(std::string(kSoftBytesMax + 1, 'x')));
  CHECK(w.Deliver(std::string(kSoftBytesMax, 'y')));
  CHECK_FALSE(w.Deliver("nowhere"));
  (void)w.driver.Publish();
  CHECK(w.Drain() == std::vector<std::string>{std::string(kSoftBytesMax, 'y')});
  CHECK(w.driver.counters().rx_no_frame == 2);
  CHECK(w.driver.counters().rx_too_long == 1);
}

TEST_CASE("soft: who sleeps is rung once, who is awake is not") {
  SoftWorld w;
  w.Feed(8);
  REQUIRE(w.Deliver("1"));
  CHECK_FALSE(w.driver.Publish());
  w.vi.Arm();
  CHECK(w.vi.Pending());            // the last look
  CHECK_FALSE(w.driver.Publish());  // nothing new
  REQUIRE(w.Deliver("2"));
  CHECK(w.driver.Publish());
  REQUIRE(w.Deliver("3"));
  CHECK_FALSE(w.driver.Publish());
  CHECK(send(w.bells[1], "", 1, 0) == 1);
  CHECK(IsReadable(w.vi.Fd()));
  w.vi.Arm();
  CHECK_FALSE(IsReadable(w.vi.Fd()));
  CHECK(w.Drain().size() == 3);

  REQUIRE(w.Send("a"));
  CHECK(w.vi.Kick() == ViStatus::kOk);
  CHECK_FALSE(IsReadable(w.bells[1]));
  w.driver.SetAsleep(true);
  CHECK(w.driver.HasTx());  // its last look
  CHECK(w.vi.Kick() == ViStatus::kOk);
  CHECK(IsReadable(w.bells[1]));
  CHECK(w.TakeSent() == std::vector<std::string>{"a"});
  CHECK_FALSE(w.driver.HasTx());
}

TEST_CASE("soft: the link, and the end of the driver and of who keeps its bell") {
  SoftWorld w;
  CHECK(w.vi.Check() == ViStatus::kOk);
  w.driver.SetLink(false);
  CHECK(w.vi.Check() == ViStatus::kDown);
  CHECK(w.vi.info().state == kViDown);
  w.driver.SetLink(true);
  CHECK(w.vi.Check() == ViStatus::kOk);
  CHECK(w.vi.info().state == kViUp);
  close(w.bells[1]);
  w.bells[1] = -1;
  w.vi.Arm();
  CHECK(w.vi.Fd() == -1);  // readable for ever
  CHECK(w.vi.info().state == kViLost);
}

// ---- a driver that dies ------------------------------------------------------------------------

#if !defined(__SANITIZE_THREAD__)  // as in vi_death_test.cc

// One turn of a driver: two packets come, two go.
void DriverTurn(SoftWorld& w) {
  const uint8_t packet[64] = {1, 2, 3};
  (void)w.driver.Deliver(packet, sizeof packet);
  (void)w.driver.Deliver(packet, sizeof packet);
  (void)w.driver.Publish();
  SoftPacket packets[2];
  w.driver.Complete(w.driver.Peek(packets, 2));
}

void ProgramTurn(SoftWorld& w) {
  (void)w.Drain();
  w.Collect();
  w.Feed(3);
  for (int i = 0; i < 2; i++) (void)w.Send("packet");
}

#if defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kSoftStride = 11;
#else
constexpr uint32_t kSoftStride = 1;
#endif

TEST_CASE(
    "soft: after a driver's death at any instruction the next one goes on, and no frame is lost") {
  SoftWorld w(32);
  auto* const in_program = static_cast<uint32_t*>(
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  w.Feed(4);
  SoftWorld copy(w);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
    raise(SIGSTOP);
    for (int i = 0; i < 6; i++) {
      StoreRelease(*in_program, 1u);
      ProgramTurn(w);
      StoreRelease(*in_program, 0u);
      DriverTurn(w);
    }
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) {
    WARN("skipped: a child can't be traced here");
    return;
  }
  uint32_t steps = 0, checked = 0;
  const char* wrong = nullptr;
  while (wrong == nullptr) {
    if (LoadAcquire(*in_program) == 0 && steps++ % kSoftStride == 0) {
      copy.CopyFrom(w);
      copy.NewDriver();
      if (wrong = copy.Wrong(); wrong != nullptr) break;
      // Both go on.
      ProgramTurn(copy);
      DriverTurn(copy);
      ProgramTurn(copy);
      wrong = copy.Wrong();
      if (copy.area.ViAt(0)->queue[0].bad_descriptors != 0) wrong = "a descriptor is bad";
      if (copy.driver.counters().bad_descriptors != 0) wrong = "a descriptor is bad there";
      checked++;
    }
    REQUIRE(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0);
    REQUIRE(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) break;
    if (WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP) FAIL("stopped by a signal");
  }
  INFO("after " << steps << " instructions");
  if (wrong != nullptr) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  munmap(in_program, kPage);
  CHECK((wrong == nullptr ? std::string("nothing") : wrong) == "nothing");
  CHECK(checked > 500);
}
#endif

// ---- a program that lies -----------------------------------------------------------------------

// All that the driver reads becomes something else. The pages around rings and area end the test if
// the driver leaves them; what it does at one call is bounded by a ring's slots.
TEST_CASE("soft: no descriptor and no position of a hostile program leads the driver astray") {
  SoftWorld w(64);
  std::mt19937_64 random(11);
  const auto word = [&random]() -> uint64_t {
    switch (random() % 5) {
      case 0:
        return random();
      case 1:
        return random() % (65 * kFrameBytes);  // at the area's end
      case 2:
        return ~uint64_t{0} - random() % 5000;
      case 3:
        return uint64_t{1} << random() % 64;
      default:
        return random() % 3000;
    }
  };
  SoftRings& r = w.rings();
  const std::string packet(1500, 'p');
  uint64_t accepted = 0, sent = 0;
  for (int round = 0; round < 20000; round++) {
    for (SoftRing* ring : {&r.fill, &r.rx, &r.tx, &r.completion}) {
      if (random() % 2 == 0) StoreRelaxed(ring->producer, static_cast<uint32_t>(word()));
      if (random() % 2 == 0) StoreRelaxed(ring->consumer, static_cast<uint32_t>(word()));
      StoreRelaxed(ring->flags, static_cast<uint32_t>(word()));
    }
    for (int i = 0; i < 16; i++) {
      const size_t at = random() % kSoftSlots;
      r.fill_slots[at] = word();
      r.completion_slots[at] = word();
      r.rx_slots[at] = {word(), static_cast<uint32_t>(word()), static_cast<uint32_t>(word())};
      const bool whole = random() % 2 == 0;
      r.tx_slots[at] = {word(), static_cast<uint32_t>(word()),
                        whole ? 0 : static_cast<uint32_t>(word())};
    }
    StoreRelaxed(r.watched, static_cast<uint32_t>(word()));
    for (int i = 0; i < 3; i++) accepted += w.Deliver(packet) ? 1U : 0U;
    (void)w.driver.Publish();
    SoftPacket packets[32];
    const uint32_t count = w.driver.Peek(packets, 32);
    REQUIRE(count <= 32);
    for (uint32_t i = 0; i < count; i++) {
      if (packets[i].bytes == 0) continue;
      REQUIRE(packets[i].data >= w.area.frames());
      REQUIRE(packets[i].data + packets[i].bytes <= w.area.frames() + 64 * size_t{kFrameBytes});
      sent++;
    }
    w.driver.Complete(static_cast<uint32_t>(random() % (count + 1)));
    (void)w.driver.HasTx();
    if (round % 1000 == 0) w.NewDriver();
  }
  // Some of it was believable.
  CHECK(accepted > 100);
  CHECK(sent > 100);
  CHECK(w.driver.counters().bad_descriptors > 0);
}

TEST_CASE("soft: after a program's lies another driver and honest rings work") {
  SoftWorld w(64);
  StoreRelaxed(w.rings().tx.producer, 5000u);
  StoreRelaxed(w.rings().fill.producer, ~0u);
  SoftPacket packets[4];
  CHECK(w.driver.Peek(packets, 4) == 0);
  CHECK_FALSE(w.driver.HasTx());
  CHECK_FALSE(w.Deliver("x"));
  StoreRelaxed(w.rings().tx.producer, 0u);
  StoreRelaxed(w.rings().fill.producer, 0u);
  w.Feed(4);
  REQUIRE(w.Send("out"));
  CHECK(w.TakeSent() == std::vector<std::string>{"out"});
  REQUIRE(w.Deliver("in"));
  (void)w.driver.Publish();
  CHECK(w.Drain() == std::vector<std::string>{"in"});
  w.Collect();
  CHECK(w.Wrong() == nullptr);
}

}  // namespace
}  // namespace postern
