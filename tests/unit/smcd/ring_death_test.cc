// ring_death_test.cc - a process dies between any two instructions of what it does with a ring.
// SPDX-License-Identifier: Apache-2.0
//
// No ring has two owners; each reader comes to all that was written before, and to all that its
// successor writes.
#include <cstring>
#include <initializer_list>
#include <string>

#include "../kit/single_step.h"
#include "ring_pair.h"
#include "smcd/ring.h"

namespace postern {
namespace {

constexpr RingLimits kTwoClasses = {0, 1};
constexpr size_t kMostBytes = 1u << 17;
constexpr uint64_t kOther = 99;  // seed of the other connection's stream
constexpr uint64_t kHeirs = 77;  // seed of what the successor writes

// Connection 0 is worked upon, connection 1 takes what rings there are meanwhile.
class DeathWorld {
 public:
  DeathWorld() : buffer_(kMostBytes) {
    for (uint32_t i = 0; i < 4; i++)
      saved_.Add(&world.stack().eps.Own(EpIndex(i)), sizeof(pstn_ep));
    for (uint32_t side = 0; side < 2; side++) saved_.Add(&world.ref(side), sizeof(pstn_lgr_ref));
    for (uint32_t c = 0; c < 2; c++) saved_.Add(&LgrConn(world.lgr(), c), sizeof(pstn_conn));
    // The first rings of a side are those that are used.
    for (uint32_t cls = 0; cls < 2; cls++) {
      const uint64_t desc = static_cast<uint64_t>(cls) << PSTN_RING_CLASS_SHIFT |
                            (SlabPage(0) + kPlaces[cls].first_page);
      saved_.Add(RingAt(world.lgr(), 0, desc).base, kRings * RingBytes(cls));
    }
  }

  size_t Write(uint32_t conn, uint64_t seed, uint64_t pos, size_t bytes,
               Growth growth = Growth::kNow) {
    FillStream(buffer_.data(), bytes, seed, pos);
    const iovec iov = {buffer_.data(), bytes};
    IovCursor from(&iov, 1);
    return RingWrite(world.End(0, conn), from, kTwoClasses, growth);
  }
  // Reads up to `want` bytes, which have to be those of the stream at `pos`.
  ReadResult Read(uint32_t conn, uint64_t seed, uint64_t pos, size_t want, bool* right) {
    const iovec iov = {buffer_.data(), want};
    IovCursor to(&iov, 1);
    const ReadResult r = RingRead(world.End(1, conn), &to, want, ReadMode::kTake);
    *right = r.status != ReadStatus::kViolation &&
             CheckStream(buffer_.data(), r.bytes, seed, pos) == r.bytes;
    return r;
  }

  // The locks of a process that has died are taken over.
  void TakeLocks() {
    for (uint32_t i = 0; i < 4; i++)
      world.stack().eps.Own(EpIndex(i)).tx.lock.word =
          world.stack().eps.Own(EpIndex(i)).rx.lock.word = 0;
    for (uint32_t side = 0; side < 2; side++) world.ref(side).lock.word = 0;
  }

  // Each ring that a connection means is given out, and to nobody else.
  const char* WrongOwners() {
    uint64_t seen[4];
    uint32_t count = 0;
    for (uint32_t conn = 0; conn < 2; conn++) {
      const pstn_tx& tx = world.End(0, conn).ep->tx;
      for (const uint64_t word : {tx.ring, tx.old_ring}) {
        const uint64_t place = word & ((1ull << 44) - 1);
        if (place == 0) continue;
        for (uint32_t i = 0; i < count; i++) {
          if (seen[i] == place) return "a ring has two owners";
        }
        seen[count++] = place;
        const uint32_t cls = RingClass(place);
        const uint64_t nth = ((place & PSTN_RING_PLACE) - SlabPage(0) - kPlaces[cls].first_page) >>
                             kPlaces[cls].pages_shift;
        const uint64_t* map = cls == 0 ? world.ref(0).ring0_map : world.ref(0).ring1_map;
        if ((map[nth / 64] >> (nth % 64) & 1u) == 0) return "a ring that is in use was given back";
      }
    }
    if (world.ref(0).rings > count + 2) return "more rings were lost than a death may cost";
    return nullptr;
  }

  // The successor writes, as another connection does, and all is read. Of the dead one's
  // stream the reader has `got` bytes; it wrote between `least` and `most`.
  const char* WriterDied(uint64_t got, uint64_t least, uint64_t most) {
    TakeLocks();
    if (RingWritable(world.End(0)) == false && RingReadable(world.End(1)) == false)
      return "nobody can go on";
    constexpr size_t kHeir = 9000, kSecond = 6000;
    size_t heir = Write(0, kHeirs, 0, kHeir);
    if (const char* wrong = WrongOwners(); wrong != nullptr) return wrong;
    if (Write(1, kOther, 0, kSecond) != kSecond) return "no ring for another connection";
    if (const char* wrong = WrongOwners(); wrong != nullptr) return wrong;
    uint64_t heir_got = 0;
    for (bool right = true;;) {
      // The dead one's stream ends somewhere, and the heir's begins.
      ReadResult r = {0, ReadStatus::kEmpty};
      const iovec iov = {buffer_.data(), 1};
      IovCursor to(&iov, 1);
      r = RingRead(world.End(1), &to, 1, ReadMode::kTake);
      if (r.status == ReadStatus::kViolation) return "the reader meets nonsense";
      if (r.bytes == 0) {
        if (heir == kHeir) break;
        const size_t more = Write(0, kHeirs, heir, kHeir - heir);
        if (more == 0) return "the ring is drained and full";
        heir += more;
        continue;
      }
      if (heir_got == 0 && got < most && buffer_[0] == StreamByte(1, got)) {
        // It may be the heir's first byte by chance: the next ones tell.
        got++;
        const size_t ahead = RingQueued(world.End(1), kMostBytes);
        const size_t dead = ahead > heir ? ahead - heir : 0;
        r = Read(0, 1, got, dead, &right);
        if (!right) return "the dead one's bytes are not what it wrote";
        got += r.bytes;
        continue;
      }
      if (buffer_[0] != StreamByte(kHeirs, heir_got)) return "a byte that nobody wrote";
      heir_got++;
      const ReadResult rest = Read(0, kHeirs, heir_got, kMostBytes, &right);
      if (!right) return "the heir's bytes are not what it wrote";
      heir_got += rest.bytes;
    }
    if (got < least || got > most) return "what was written before is lost";
    if (heir_got != kHeir) return "the reader was never told of the heir's bytes";
    bool right = true;
    uint64_t other = 0;
    for (ReadResult r; (r = Read(1, kOther, other, kMostBytes, &right)).bytes != 0;) {
      if (!right) return "another connection's bytes are wrong";
      other += r.bytes;
    }
    if (!right || other != kSecond) return "another connection's bytes are lost";
    return GivenBack();
  }

  // All rings can be had again, but those that the death has cost.
  const char* GivenBack() {
    for (uint32_t conn = 0; conn < 2; conn++) {
      const ConnEnd e = world.End(0, conn);
      if (!RingDrained(e)) return "the writer does not see that all is read";
      (void)RingDetach(e, Pages::kKeep);
      if (e.ep->tx.ring != 0 || e.ep->tx.old_ring != 0) return "a ring is not given back";
    }
    return WrongOwners();
  }

  // The successor reads the rest: no byte twice that a call had given out, none missing.
  const char* ReaderDied(uint64_t given, uint64_t in_call, uint64_t written) {
    TakeLocks();
    const iovec iov = {buffer_.data(), 64};
    IovCursor to(&iov, 1);
    const ReadResult peek = RingRead(world.End(1), &to, 64, ReadMode::kPeek);
    if (peek.status == ReadStatus::kViolation) return "the next reader meets nonsense";
    // The call that it died in may have taken its bytes: then they are lost with it.
    uint64_t pos = given;
    while (pos <= given + in_call && CheckStream(buffer_.data(), peek.bytes, 1, pos) != peek.bytes)
      pos++;
    if (pos > given + in_call) return "the next reader is somewhere else";
    if (peek.bytes == 0 && written - given <= in_call) pos = written;
    bool right = true;
    for (ReadResult r; right && (r = Read(0, 1, pos, kMostBytes, &right)).bytes != 0;)
      pos += r.bytes;
    if (!right) return "the next reader gets other bytes";
    if (pos != written) return "the next reader does not get all";
    if (!RingDrained(world.End(0))) return "the writer does not see that all is read";
    return WrongOwners();
  }

  Saved& saved() { return saved_; }
  RingWorld world;

 private:
  static constexpr size_t kRings = 6;
  Saved saved_;
  std::vector<uint8_t> buffer_;
};

struct Progress {
  uint64_t begun, done;  // bytes of the operation that is under way, and of those before
};

// What the recovery looks at is in the memory that is saved, so that a death behind an instruction
// that changes nothing there is the death before it. Most instructions only check the bytes read.
constexpr At kEach = kStepStride == 1 ? At::kChanges : At::kAll;

TEST_CASE("ring death: a writer at any instruction of attaching, writing, wrapping and growing") {
  DeathWorld w;
  const SharedPage<Progress> p;
  w.saved().Add(&*p, sizeof(Progress));
  uint64_t got = 0;
  auto write = [&](size_t bytes) {
    p->begun = p->done + bytes;
    DeathFence();
    p->done += w.Write(0, 1, p->done, bytes);
  };
  const StepResult r = AtEachInstruction(
      w.saved(),
      [&] {
        write(100);   // attaches
        write(1500);  // two more records
        write(1);     //
        write(3000);  // more than there is room for: grows
        write(500);
      },
      [&] { return w.WriterDied(got, p->done, p->begun); }, kEach);
  CheckSteps(r, 500, 100);  // libc's copy may store a record in a few instructions
}

TEST_CASE("ring death: a writer whose ring has wrapped, and who grows where a mark was") {
  DeathWorld w;
  const SharedPage<Progress> p;
  w.saved().Add(&*p, sizeof(Progress));
  uint64_t got = 0;
  bool right = true;
  auto write = [&](size_t bytes, Growth growth) {
    p->begun = p->done + bytes;
    DeathFence();
    p->done += w.Write(0, 1, p->done, bytes, growth);
  };
  for (int i = 0; i < 3; i++) {
    write(1000, Growth::kWhenUseful);
    got += w.Read(0, 1, got, i == 2 ? 500 : 1000, &right).bytes;
    REQUIRE(right);
  }
  const StepResult r = AtEachInstruction(
      w.saved(),
      [&] {
        write(900, Growth::kWhenUseful);
        write(900, Growth::kWhenUseful);
        write(2500, Growth::kNow);
      },
      [&] { return w.WriterDied(got, p->done, p->begun); }, kEach);
  CheckSteps(r, 300, 60);
}

TEST_CASE("ring death: a writer who gives its ring back, and takes one again") {
  DeathWorld w;
  const SharedPage<Progress> p;
  w.saved().Add(&*p, sizeof(Progress));
  bool right = true;
  p->done = w.Write(0, 1, 0, 6000);  // attached, and drained
  p->begun = p->done;
  const uint64_t got = w.Read(0, 1, 0, kMostBytes, &right).bytes;
  REQUIRE((right && got == 6000));
  const StepResult r = AtEachInstruction(
      w.saved(),
      [&] {
        (void)RingDetach(w.world.End(0), Pages::kKeep);
        p->begun = p->done + 700;
        DeathFence();
        p->done += w.Write(0, 1, p->done, 700);
      },
      [&] { return w.WriterDied(got, p->done, p->begun); }, kEach);
  CheckSteps(r, 200, 20);
}

TEST_CASE("ring death: a reader at any instruction, through a wrap and into a larger ring") {
  DeathWorld w;
  const SharedPage<Progress> p;
  w.saved().Add(&*p, sizeof(Progress));
  bool right = true;
  uint64_t written = 0, before = 0;
  for (int i = 0; i < 3; i++) {  // so that the next records wrap
    written += w.Write(0, 1, written, 1000);
    before += w.Read(0, 1, before, 1000, &right).bytes;
  }
  for (const size_t bytes : std::initializer_list<size_t>{700, 600, 800, 300, 9000, 200})
    written += w.Write(0, 1, written, bytes);
  REQUIRE((right && w.world.End(0).ep->tx.old_ring != 0));
  p->done = before;
  auto read = [&](size_t bytes) {
    p->begun = bytes;
    DeathFence();
    bool ok = true;
    p->done += w.Read(0, 1, p->done, bytes, &ok).bytes;
    DeathFence();
    p->begun = 0;
    if (!ok) _exit(1);
  };
  const StepResult r = AtEachInstruction(
      w.saved(),
      [&] {
        for (const size_t bytes :
             std::initializer_list<size_t>{300, 250, 900, 1, 1200, 100, 4000, 6000})
          read(bytes);
      },
      [&] { return w.ReaderDied(p->done, p->begun, written); }, kEach);
  CheckSteps(r, 500, 40);
}

}  // namespace
}  // namespace postern
