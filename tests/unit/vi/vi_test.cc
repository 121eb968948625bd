// vi_test.cc - packet area, rings and the test wire: frames arrive, and none is ever in two places.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>
#include <random>

#include "../kit/catch.h"
#include "state/area.h"
#include "vi_world.h"

namespace postern {
namespace {

std::string Numbered(uint32_t n) {
  std::string text(60 + n % 1400, static_cast<char>('a' + n % 26));
  return text + std::to_string(n);
}

TEST_CASE("vi area: a memfd that is sealed, of its size, and of nothing else") {
  const pstn_uuid id = NewUuid();
  const int fd = CreateArea(id, 1024);
  REQUIRE(fd >= 0);
  CHECK((fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0);
  CHECK(ftruncate(fd, 4096) == -1);
  AreaShape shape;
  REQUIRE(ReadAreaShape(fd, shape) == 0);
  CHECK(shape.frame_count == 1024);
  CHECK(shape.frames_off % 4096 == 0);
  CHECK(shape.size_bytes == shape.frames_off + 1024u * kFrameBytes);
  Area area;
  REQUIRE(area.Map(fd) == 0);
  CHECK(SameUuid(area.header().stack, id));
  CHECK(area.FreeCount() == 1024);
  std::vector<uint8_t> seen(1024);
  CHECK(area.Validate(seen.data()));
  CHECK(area.At(1024, 0) == nullptr);
  CHECK(area.At(0, kFrameBytes) == nullptr);
  CHECK(area.At(1023, kFrameBytes - 1) != nullptr);
  area.Unmap();
  close(fd);
  for (const uint32_t frames : {0u, 3u, kFramesMax + 2}) CHECK(CreateArea(id, frames) < 0);
}

TEST_CASE("vi area: what is not one is refused") {
  const pstn_uuid id = NewUuid();
  const auto forged = [](off_t bytes, int seals, const pstn_area& h) {
    const int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(fd, bytes) == 0);
    REQUIRE(pwrite(fd, &h, sizeof h, 0) == sizeof h);
    REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
    Area area;
    const int error = area.Map(fd);
    close(fd);
    area.Unmap();
    return error;
  };
  const int made = CreateArea(id, 64);
  pstn_area good;
  REQUIRE(pread(made, &good, sizeof good, 0) == sizeof good);
  close(made);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  const auto size = static_cast<off_t>(good.size_bytes);
  CHECK(forged(size, kSeals, good) == 0);
  CHECK(forged(size, F_SEAL_GROW, good) == -EBADF);
  CHECK(forged(size, F_SEAL_SHRINK, good) == -EBADF);
  CHECK(forged(size - 4096, kSeals, good) == -EINVAL);
  CHECK(forged(size + 4096, kSeals, good) == -EINVAL);
  pstn_area bad = good;
  bad.magic++;
  CHECK(forged(size, kSeals, bad) == -EINVAL);
  bad = good;
  bad.version++;
  CHECK(forged(size, kSeals, bad) == -EPROTO);
  bad = good;
  bad.frame_count = 62;
  CHECK(forged(size, kSeals, bad) == -EINVAL);
  bad = good;  // offsets are not believed, so wrong ones do no harm
  bad.frames_off = 0xfffffff0;
  CHECK(forged(size, kSeals, bad) == 0);
}

TEST_CASE("vi area: frames are taken, given back warm, and by their owner only") {
  ViWorld w(64);
  Area& area = w.area[0];
  uint32_t frames[80];
  REQUIRE(area.Take(frames, 80) == 64);
  CHECK(area.Take(frames + 64, 1) == 0);
  area.Give(frames[7]);
  area.Give(frames[7]);  // a second time: it is not the engine's any more
  area.Give(frames[9]);
  CHECK(area.FreeCount() == 2);
  uint32_t again[3];
  REQUIRE(area.Take(again, 3) == 2);
  CHECK(again[0] == frames[9]);
  CHECK(again[1] == frames[7]);
  CHECK_FALSE(area.Keep(frames[0]));  // it was never received
  area.Give(frames, 64);
  area.Give(1'000'000);
  CHECK(area.FreeCount() == 64);
  CHECK(w.Wrong(0) == nullptr);
}

TEST_CASE("vi: what is sent arrives, in order, while the positions wrap") {
  ViWorld w(256);
  for (auto& end : w.wire().end) {
    TestQueue& q = end.queue[0];
    for (TestRing* r : {&q.fill, &q.rx, &q.tx, &q.completion})
      r->producer = r->consumer = 0xffffff80u;
  }
  std::mt19937 rng(1);
  uint32_t sent = 0, got = 0;
  while (sent < 5000) {
    w.Feed(1, static_cast<uint32_t>(rng() % 100));
    std::vector<std::string> want;
    for (auto n = rng() % 60; n != 0 && w.Send(0, Numbered(sent)); n--)
      want.push_back(Numbered(sent++));
    const uint64_t lost = w.vi[1]->lost();
    REQUIRE(w.vi[0]->Kick() == ViStatus::kOk);
    w.Collect(0);
    const std::vector<std::string> came = w.Drain(1);
    // Lost are the last ones of the batch: there were no more frames.
    REQUIRE(came.size() + (w.vi[1]->lost() - lost) == want.size());
    want.resize(came.size());
    REQUIRE(came == want);
    got += static_cast<uint32_t>(came.size());
    REQUIRE(w.Wrong(0) == nullptr);
    REQUIRE(w.Wrong(1) == nullptr);
  }
  CHECK(got > 4000);
  CHECK(w.vi[1]->info().counters.rx_frames == got);
  CHECK(w.vi[0]->info().counters.tx_frames == sent);
}

TEST_CASE("vi: a full ring takes no more, and no half of a packet") {
  ViWorld w(2048);
  std::vector<uint32_t> frames(kTestSlots + 2);
  REQUIRE(w.area[0].Take(frames.data(), kTestSlots + 2) == kTestSlots + 2);
  std::vector<ViTx> tx;
  for (uint32_t i = 0; i < kTestSlots + 2; i++)
    tx.push_back({frames[i], 0, 100, i % 3 != 2 ? kTxMore : uint16_t{0}, 0});
  // 1024 slots have room for 341 packets of three.
  CHECK(w.vi[0]->Send(tx.data(), kTestSlots + 2) == 1023);
  CHECK(w.vi[0]->SendRoom(0) == 1);
  CHECK(w.area[0].UseAt(frames[1022]) == kFrameSending);
  CHECK(w.area[0].UseAt(frames[1023]) == kFrameTx);
  CHECK(w.vi[0]->info().counters.tx_full == 1);
  w.Feed(1, 30);
  w.vi[0]->Kick();
  ViRx rx[kViBatchMax];
  const uint32_t n = w.vi[1]->Receive(rx, kViBatchMax);
  REQUIRE(n == 30);
  for (uint32_t i = 0; i < n; i++) CHECK(rx[i].flags == (i % 3 != 2 ? kRxMore : 0));
}

TEST_CASE("vi: a frame that is not the engine's to give is not taken") {
  ViWorld w(64);
  uint32_t frame = 0;
  REQUIRE(w.area[0].Take(&frame, 1) == 1);
  const auto refused = [&w](ViTx tx) { return w.vi[0]->Send(&tx, 1) == 0; };
  CHECK(refused({frame + 1, 0, 60, 0, 0}));  // free
  CHECK(refused({100'000, 0, 60, 0, 0}));    // none
  CHECK(refused({frame, 2000, 49, 0, 0}));   // over its end
  CHECK(refused({frame, 0, 0, 0, 0}));       // empty
  CHECK_FALSE(refused({frame, 2000, 48, 0, 0}));
  CHECK(refused({frame, 0, 60, 0, 0}));  // sent already
  CHECK(w.vi[0]->Refill(&frame, 1) == 0);
  CHECK(w.Wrong(0) == nullptr);
}

TEST_CASE("vi: each queue is fed, and each is listened to") {
  ViWorld w(512, 3);
  CHECK(w.vi[1]->RefillRoom() == 3 * kTestSlots);
  REQUIRE(w.Feed(1, 90) == 90);
  for (uint32_t q = 0; q < 3; q++) CHECK(w.vi[1]->queue(q).fill.producer == 30);
  for (uint32_t i = 0; i < 30; i++) REQUIRE(w.Send(0, Numbered(i), i));
  w.vi[0]->Kick();
  CHECK(w.vi[1]->Pending());
  bool from[3] = {};
  ViRx rx[3];
  for (uint32_t got = 0, n; got < 30; got += n) {
    n = w.vi[1]->Receive(rx, 3);
    REQUIRE(n != 0);
    for (uint32_t i = 0; i < n; i++) {
      from[rx[i].queue] = true;
      w.area[1].Give(rx[i].frame);
    }
    if (got == 6) CHECK((from[0] && from[1] && from[2]));  // nobody waits for another's end
  }
  CHECK_FALSE(w.vi[1]->Pending());
  CHECK(w.Wrong(1) == nullptr);
}

TEST_CASE("vi: no frame to receive into, or a cut wire") {
  ViWorld w(64);
  REQUIRE(w.Send(0, "nobody has a frame for this one, which is lost"));
  CHECK(w.vi[0]->Kick() == ViStatus::kOk);
  CHECK(w.vi[1]->lost() == 1);
  CHECK_FALSE(w.vi[1]->Pending());
  w.wire().cut = 1;
  REQUIRE(w.Send(0, "and this one waits"));
  CHECK(w.vi[0]->Kick() == ViStatus::kDown);
  CHECK(w.vi[0]->Check() == ViStatus::kDown);
  w.wire().cut = 0;
  w.Feed(1, 1);
  CHECK(w.vi[0]->Kick() == ViStatus::kOk);
  CHECK(w.Drain(1) == std::vector<std::string>{"and this one waits"});
}

TEST_CASE("vi area: what a VI that is gone had is free") {
  ViWorld w(64);
  w.Feed(0, 20);
  REQUIRE(w.Send(0, "under way"));
  CHECK(w.area[0].FreeCount() == 43);
  CHECK(w.area[0].Abandon(1) == 0);  // another VI's
  CHECK(w.area[0].Abandon(0) == 21);
  CHECK(w.area[0].FreeCount() == 64);
}

// Whatever is in shared memory: no access outside of it, no endless loop, and Recover() and
// Reclaim leave a free list that is right.
TEST_CASE("vi: nonsense in rings and tables harms nobody") {
  std::mt19937 rng(7);
  ViWorld good(64);
  good.Feed(0, 20);
  good.Feed(1, 20);
  ViWorld w(good);
  for (int round = 0; round < 400; round++) {
    w.CopyFrom(good);
    const size_t span = round % 2 == 0 ? w.bytes() : sizeof(TestWire) / 64;
    for (int i = 0; i < 200; i++) w.memory()[rng() % span] = static_cast<uint8_t>(rng());
    for (uint32_t* p :
         {&w.wire().end[0].queue[0].rx.producer, &w.wire().end[0].queue[0].tx.consumer,
          &w.wire().end[0].queue[0].fill.producer})
      if (rng() % 4 == 0) *p = static_cast<uint32_t>(rng());
    for (auto& d : w.wire().end[0].queue[0].rx_slots)
      if (rng() % 8 == 0) d = {rng(), static_cast<uint32_t>(rng()), static_cast<uint32_t>(rng())};
    w.wire().queue_count = 1;
    std::vector<uint8_t> seen(64);
    (void)w.vi[0]->Validate(seen.data());
    ViRx rx[kViBatchMax];
    for (int i = 0; i < 20; i++) {
      const uint32_t n = w.vi[0]->Receive(rx, kViBatchMax);
      for (uint32_t k = 0; k < n; k++) {
        REQUIRE(w.area[0].At(rx[k].frame, rx[k].off) != nullptr);
        REQUIRE(rx[k].off + rx[k].bytes <= kFrameBytes);
      }
      uint32_t frames[kViBatchMax];
      (void)w.vi[0]->Completed(frames, kViBatchMax);
    }
    (void)w.Send(0, "hello");
    w.Feed(0, 5);
    w.vi[0]->Recover();
    w.area[0].ReclaimBegin();
    w.area[0].ReclaimEnd();
    std::fill(seen.begin(), seen.end(), uint8_t{0});
    for (uint32_t f = 0; f < 64; f++) {
      const uint8_t owner = w.area[0].OwnerOf(f);
      if (UseOf(owner) > kFrameSending) w.area[0].SetOwner(f, kFrameFill, 15);
    }
    REQUIRE(w.area[0].Validate(seen.data()));
  }
}

}  // namespace
}  // namespace postern
