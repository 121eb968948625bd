// ring_test.cc - the ring between two honest ends against a model, and against a peer that lies.
// SPDX-License-Identifier: Apache-2.0
#include "smcd/ring.h"

#include <cstring>
#include <initializer_list>
#include <vector>

#include "../kit/catch.h"
#include "ring_pair.h"

namespace postern {
namespace {

constexpr size_t kBuffer = 1u << 21;

// One direction (client to server) whose bytes are checked as they come out.
struct Stream {
  RingWorld world;
  ConnEnd tx = world.End(0), rx = world.End(1);
  uint64_t seed = 1, sent = 0, got = 0;
  std::vector<uint8_t> buffer = std::vector<uint8_t>(kBuffer);

  uint64_t queued() const { return sent - got; }
  size_t Write(size_t bytes, const RingLimits& limits = {}, size_t pieces = 1) {
    FillStream(buffer.data(), bytes, seed, sent);
    std::vector<iovec> iov = Pieces(bytes, pieces);
    IovCursor from(iov.data(), iov.size());
    const size_t n = RingWrite(tx, from, limits);
    REQUIRE(n + from.left() == bytes);
    sent += n;
    return n;
  }
  ReadResult ReadRaw(size_t want, ReadMode mode, size_t pieces = 1) {
    std::vector<iovec> iov = Pieces(want, pieces);
    IovCursor to(iov.data(), iov.size());
    return RingRead(rx, mode == ReadMode::kDiscard ? nullptr : &to, want, mode);
  }
  size_t Read(size_t want, ReadMode mode = ReadMode::kTake, size_t pieces = 1) {
    const ReadResult r = ReadRaw(want, mode, pieces);
    REQUIRE(r.status == (r.bytes == 0 ? ReadStatus::kEmpty : ReadStatus::kOk));
    REQUIRE(r.bytes == (want < queued() ? want : queued()));
    if (mode != ReadMode::kDiscard)
      REQUIRE(CheckStream(buffer.data(), r.bytes, seed, got) == r.bytes);
    if (mode != ReadMode::kPeek) got += r.bytes;
    return r.bytes;
  }
  void Drain() {
    while (queued() != 0) Read(kBuffer);
  }
  uint32_t TxClass() const { return RingClass(tx.ep->tx.ring); }

  // The buffer in that many pieces, one of them empty.
  std::vector<iovec> Pieces(size_t bytes, size_t count) {
    std::vector<iovec> iov;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
      const size_t n = i + 1 == count ? bytes - at : (bytes - at) / 3;
      iov.push_back({buffer.data() + at, n});
      if (i == 0 && count > 1) iov.push_back({buffer.data(), 0});
      at += n;
    }
    return iov;
  }
};

void CheckAnswers(Stream& s) {
  REQUIRE(RingReadable(s.rx) == (s.queued() != 0));
  REQUIRE(RingQueued(s.rx, SIZE_MAX) == s.queued());
  REQUIRE(RingDrained(s.tx) == (s.queued() == 0));
}

void RandomTraffic(uint64_t seed, const RingLimits& limits, size_t largest, int steps) {
  Stream s;
  s.seed = seed;
  TestRandom random(seed);
  for (int i = 0; i < steps; i++) {
    const size_t pieces = 1 + random.Below(4);
    switch (random.Below(8)) {
      case 0:
      case 1:
      case 2: {
        const bool writable = RingWritable(s.tx);
        const size_t n = s.Write(random.Size(largest), limits, pieces);
        if (writable) REQUIRE(n != 0);
        break;
      }
      case 3:
      case 4:
        s.Read(random.Size(largest), ReadMode::kTake, pieces);
        break;
      case 5:
        s.Read(random.Size(largest), ReadMode::kPeek, pieces);
        break;
      case 6:
        s.Read(random.Size(largest), ReadMode::kDiscard);
        break;
      default:
        if (random.Below(4) == 0) s.Drain();
        const bool expected = s.queued() == 0 && s.tx.ep->tx.ring != 0;
        REQUIRE(RingDetach(s.tx, random.Below(8) == 0 ? Pages::kDrop : Pages::kKeep) == expected);
        if (expected) REQUIRE(s.world.ref(0).rings == 0);
    }
    REQUIRE((s.tx.ep->tx.ring == 0 || s.TxClass() <= limits.class_max));
    if (i % 4 == 0) CheckAnswers(s);
  }
  s.Drain();
  CheckAnswers(s);
  REQUIRE(s.world.ref(0).rings <= 1);
}

TEST_CASE("ring: random traffic equals the model") {
  for (uint64_t seed = 1; seed <= 6; seed++) {
    CAPTURE(seed);
    RandomTraffic(seed, {}, 100, 2000);
    RandomTraffic(seed, {}, 5000, 2000);
    RandomTraffic(seed, {}, 300000, 300);
  }
}

TEST_CASE("ring: random traffic within limits of the ring's size") {
  for (uint32_t low = 0; low < 3; low++) {
    for (uint32_t high = low; high < 3; high++) {
      CAPTURE(low, high);
      RandomTraffic(low * 10 + high, {low, high}, 9000, 600);
      RandomTraffic(low * 10 + high + 100, {low, high}, 200000, 100);
    }
  }
}

TEST_CASE("ring: request and response stay at the start of the ring") {
  Stream s;
  uint32_t highest = 0;
  for (int i = 0; i < 5000; i++) {
    REQUIRE(s.Write(40) == 40);
    highest = s.tx.ep->tx.off > highest ? s.tx.ep->tx.off : highest;
    REQUIRE(s.Read(100) == 40);
  }
  CHECK(highest < PSTN_RING0_BYTES / 2);
  CHECK(s.TxClass() == 0);
}

TEST_CASE("ring: a stream that fills its ring grows through all classes") {
  Stream s;
  REQUIRE(s.Write(10) == 10);
  CHECK(s.TxClass() == 0);
  for (uint32_t cls = 1; cls < PSTN_SLAB_CLASSES; cls++) {
    REQUIRE(s.Write(RingBytes(cls) / 2 - 100) ==
            RingBytes(cls) / 2 - 100);  // too much for the class before
    CHECK(s.TxClass() == cls);
    CHECK(s.world.ref(0).rings == 2);  // the reader has still to leave the one before
    CheckAnswers(s);
    s.Drain();
    CheckAnswers(s);
    CHECK(s.world.ref(0).rings == 1);
  }
  CHECK(RingDetach(s.tx, Pages::kKeep));
  CHECK(s.world.ref(0).rings == 0);
}

TEST_CASE("ring: growth waits until the reader has left the ring before") {
  Stream s;
  REQUIRE(s.Write(10) == 10);
  REQUIRE(s.Write(20000) == 20000);
  while (s.Write(1u << 20) != 0) {
  }
  CHECK(s.TxClass() == 1);  // not 2: the reader still is in the ring of class 0
  CHECK_FALSE(RingWritable(s.tx));
  CHECK_FALSE(RingDetach(s.tx, Pages::kKeep));
  CheckAnswers(s);  // a reader that comes late finds all of it, from the first ring on
  s.Read(kBuffer, ReadMode::kPeek);
  s.Drain();
  CHECK(RingWritable(s.tx));
}

TEST_CASE("ring: a writer that would have to wait gets the largest ring at once") {
  Stream s;
  while (s.Write(100) == 100) {
  }
  CHECK(s.TxClass() == 0);
  CHECK_FALSE(RingWritable(s.tx));
  CHECK(RingGrowable(s.tx, {}));
  CHECK_FALSE(RingGrowable(s.tx, {0, 0}));
  uint8_t piece[100] = {};
  iovec iov = {&piece[0], sizeof piece};
  IovCursor from(&iov, 1);
  CHECK(RingWrite(s.tx, from, {}, Growth::kNow) == sizeof piece);
  CHECK(s.TxClass() == 2);
  CHECK_FALSE(RingGrowable(s.tx, {}));
}

TEST_CASE("ring: an old ring is given back although the writer writes no more") {
  Stream s;
  s.Write(10);
  s.Write(20000);
  REQUIRE(s.tx.ep->tx.old_ring != 0);
  s.Drain();
  CHECK(RingDrained(s.tx));
  CHECK(s.tx.ep->tx.old_ring == 0);
}

TEST_CASE("ring: blocked often, it grows; at the largest class allowed, it does not") {
  Stream s;
  for (int i = 0; i < 200; i++) {
    while (s.Write(600, {0, 1}) == 600) {
    }
    s.Drain();
    REQUIRE(RingWritable(s.tx));
  }
  CHECK(s.TxClass() == 1);
}

TEST_CASE("ring: no larger ring is left") {
  Stream s;
  s.Write(10);
  while (RingClass(TakeRing(s.world.ref(0), 2)) >= 1) {
  }
  const uint32_t before = s.world.ref(0).rings;
  while (s.Write(1u << 20) != 0) {
  }
  CHECK(s.TxClass() == 0);
  CHECK(s.world.ref(0).rings == before);
  CheckAnswers(s);
  s.Drain();
  CHECK(s.Write(1000) == 1000);
  s.Drain();
}

TEST_CASE("ring: no ring at all is left") {
  Stream s;
  while (TakeRing(s.world.ref(0), 2) != 0) {
  }
  CHECK(s.Write(10) == 0);
  GiveRing(s.world.ref(0), s.world.lgr(), RingAt(s.world.lgr(), 0, 0).base == nullptr ? 0 : 1,
           Pages::kKeep);  // 0 is no ring
  CHECK(s.Write(10) == 0);
  CHECK_FALSE(RingReadable(s.rx));
}

TEST_CASE("ring: a ring that was taken away and used by another connection is not read") {
  Stream s;
  const ConnEnd other = s.world.End(0, 1), other_rx = s.world.End(1, 1);
  s.Write(100);
  s.Drain();
  for (int i = 0; i < 300; i++) {
    const uint64_t place = s.tx.ep->tx.ring & ~(~0ull << 44);
    REQUIRE(RingDetach(s.tx, i % 2 == 0 ? Pages::kKeep : Pages::kDrop));
    uint8_t noise[200];
    memset(noise, 64, sizeof noise);
    iovec iov = {noise, sizeof noise};
    IovCursor from(&iov, 1);
    REQUIRE(RingWrite(other, from, {}) == sizeof noise);
    REQUIRE((other.ep->tx.ring & ~(~0ull << 44)) == place);  // last given back, first taken
    CHECK_FALSE(RingReadable(s.rx));
    CHECK(s.Read(100) == 0);
    CHECK(RingRead(other_rx, nullptr, 1000, ReadMode::kDiscard).bytes == sizeof noise);
    REQUIRE(RingDetach(other, Pages::kKeep));
    REQUIRE(s.Write(1 + static_cast<size_t>(i)) != 0);
    CheckAnswers(s);
    s.Drain();
  }
}

TEST_CASE("ring: many generations, over the wrap of their number") {
  Stream s;
  for (int i = 0; i < 66000; i++) {
    REQUIRE(s.Write(3) == 3);
    s.Drain();
    REQUIRE(RingDetach(s.tx, Pages::kKeep));
  }
  REQUIRE(s.Write(3) == 3);
  s.Write(100000);
  s.Drain();
}

TEST_CASE("ring: a writer that died after publishing is mended by the next one") {
  Stream s;
  s.Write(100);
  const pstn_tx before = s.tx.ep->tx;
  for (const size_t bytes : {70u, 2048u, 1u}) {  // the third wraps, or the ring is fuller
    const pstn_tx saved = s.tx.ep->tx;
    REQUIRE(s.Write(bytes) == bytes);
    s.tx.ep->tx = saved;  // the record is there, tx.off has not moved
    REQUIRE(s.Write(10) == 10);
    CHECK(s.tx.ep->tx.bytes == s.sent);
    CheckAnswers(s);
  }
  CHECK(s.tx.ep->tx.ring == before.ring);
  s.Drain();
}

TEST_CASE("ring: space that short records give back is counted in lines, not in bytes") {
  Stream s;  // else a writer of single bytes that sleeps for room is never told of it
  while (s.Write(1, {0, 0}) == 1) {
  }
  s.rx.ep->rx.unreturned = 0;
  s.Read(4096);
  CHECK(s.rx.ep->rx.unreturned >= PSTN_RING0_BYTES / 2);
  s.Write(3000, {0, 0});
  s.Read(2999);
  s.rx.ep->rx.unreturned = 0;
  s.Read(1);  // the last byte of a record frees all of it
  CHECK(s.rx.ep->rx.unreturned >= 3000);
}

// ---------------------------------------------------------------- lies

uint64_t& Header(Stream& s, uint32_t off) {
  return *reinterpret_cast<uint64_t*>(RingAt(s.world.lgr(), 0, s.tx.ctl().ring).base + off);
}

bool Refused(Stream& s) {
  return s.ReadRaw(kBuffer, ReadMode::kTake).status == ReadStatus::kViolation;
}

TEST_CASE("ring: lengths that do not fit are refused") {
  const uint64_t lengths[] = {PSTN_RING0_BYTES,
                              PSTN_RING0_BYTES - 64,
                              PSTN_RING0_BYTES - 127,
                              1ull << 31,
                              1ull << 32,
                              (1ull << 32) + 8,
                              1ull << 63,
                              ~0ull,
                              ~0ull - 63,
                              PSTN_REC_WRAP + 2,
                              PSTN_REC_SWITCH,
                              PSTN_REC_WRAP};
  for (const uint64_t length : lengths) {
    CAPTURE(length);
    Stream s;
    s.Write(100);
    Header(s, 0) = length;
    CHECK(RingReadable(s.rx));  // so that somebody reads and learns of it
    CHECK(s.ReadRaw(10, ReadMode::kPeek).status == ReadStatus::kViolation);
    CHECK(RingQueued(s.rx, 1000) == 0);
    CHECK(Refused(s));
  }
  Stream s;  // the longest that fits is read
  s.Write(100);
  Header(s, 0) = PSTN_RING0_BYTES - 128;
  CHECK(s.ReadRaw(kBuffer, ReadMode::kTake).bytes == PSTN_RING0_BYTES - 128);
}

TEST_CASE("ring: marks that lead nowhere are refused") {
  Stream s;
  s.Write(100);
  s.Read(100);
  const uint32_t off = s.rx.ep->rx.off;
  Header(s, off) = PSTN_REC_WRAP;
  Header(s, 0) = PSTN_REC_WRAP;
  CHECK(Refused(s));
  Stream t;
  t.Write(100);
  t.Read(100);
  Header(t, t.rx.ep->rx.off) = PSTN_REC_SWITCH;  // to the same ring
  CHECK(Refused(t));
}

TEST_CASE("ring: a circle of records is not counted for ever") {
  Stream s;
  s.Write(1);
  Header(s, 64) = PSTN_REC_WRAP;
  CHECK(RingQueued(s.rx, SIZE_MAX) <= 2 * PSTN_RING2_BYTES);
  CHECK(s.ReadRaw(5000, ReadMode::kPeek).bytes == 5000);  // what is asked for is the bound here
}

TEST_CASE("ring: a header that changes after it was checked is not looked at again") {
  Stream s;
  s.Write(1000);
  s.Read(10);
  Header(s, 0) = ~0ull;
  CHECK(s.Read(10) == 10);
  CHECK(s.ReadRaw(10, ReadMode::kPeek).status == ReadStatus::kViolation);
  Header(s, 0) = 5;  // less than was read of it
  CHECK(s.ReadRaw(10, ReadMode::kPeek).status == ReadStatus::kViolation);
  CHECK(RingQueued(s.rx, 1000) == 0);
  CHECK(s.Read(2000) == 980);
}

TEST_CASE("ring: descriptors that are no ring are refused or mean nothing") {
  TestRandom random(7);
  Stream s;
  for (int i = 0; i < 20000; i++) {
    s.rx.ep->rx = {};
    const uint64_t page =
        random.Below(2) != 0 ? random.Below(PSTN_LGR_BYTES / 4096 + 8) : random.Next();
    s.tx.ctl().ring =
        random.Below(4) == 0 ? random.Next() : random.Next() << 40 | (page & ((1ull << 40) - 1));
    s.tx.ctl().prev_ring = random.Below(2) == 0 ? random.Next() : s.tx.ctl().ring;
    const ReadResult r = s.ReadRaw(1000, ReadMode::kTake);
    REQUIRE(r.bytes == 0);
  }
}

TEST_CASE("ring: a lying reader harms only itself") {
  Stream s;
  s.Write(500);
  s.Write(500);
  const uint64_t gen = static_cast<uint64_t>(RingGen(s.tx.ctl().ring)) << 32;
  const pstn_tx before = s.tx.ep->tx;
  // Behind the write offset, unaligned, beyond the ring, of another generation.
  const uint64_t lies[] = {
      gen | 2048u, gen | 33u, gen | 0xffffffc0u, gen | 4096u, (gen + (1ull << 32)) | 64u, ~0ull};
  for (const uint64_t lie : lies) {
    CAPTURE(lie);
    StoreRelaxed(s.tx.peer_pos().read, lie);
    CHECK_FALSE(RingDrained(s.tx));
    CHECK_FALSE(RingDetach(s.tx, Pages::kKeep));
    CHECK(s.tx.ep->tx.peer == before.peer);
    (void)RingWritable(s.tx);
  }
  while (s.Write(3000, {0, 0}) != 0) {
  }
  CHECK(s.tx.ep->tx.peer == before.peer);
  CHECK(s.tx.ep->tx.off < PSTN_RING0_BYTES);
}

TEST_CASE("ring: whatever the memory holds, the writer stays in its ring") {
  TestRandom random(11);
  Stream s;
  for (int i = 0; i < 20000; i++) {
    if (s.tx.ep->tx.ring != 0) {
      const RingPlace r = RingAt(s.world.lgr(), 0, s.tx.ep->tx.ring);
      const uint64_t values[] = {
          random.Next(), random.Below(5000), PSTN_REC_WRAP, PSTN_REC_SWITCH, 1, r.bytes - 128};
      memcpy(r.base + s.tx.ep->tx.off, &values[random.Below(6)], 8);
      StoreRelaxed(s.tx.peer_pos().read, static_cast<uint64_t>(RingGen(s.tx.ep->tx.ring)) << 32 |
                                             random.Below(r.bytes / 64) * 64);
    }
    s.tx.ctl().ring = random.Next();
    (void)s.Write(random.Size(20000));
    (void)RingWritable(s.tx);
    REQUIRE(s.tx.ep->tx.off <= RingBytes(s.TxClass()) - 64);
    REQUIRE(s.tx.ep->tx.off % 64 == 0);
    REQUIRE(s.tx.ep->tx.peer < RingBytes(s.TxClass()));
    if (i % 64 == 0) (void)RingDetach(s.tx, Pages::kKeep);
  }
}

}  // namespace
}  // namespace postern
