// SPDX-License-Identifier: Apache-2.0
// ring_fuzz.cc - a peer that writes anything into all that it can write: no access out of bounds,
// no endless loop, and our own offsets stay inside the ring.
//
// The input is a program of five-byte steps (operation, where, value) on one connection. The peer
// maps the whole link group, so its lies go into both sides' control lines and into both slabs; the
// private state (pstn_ep, pstn_lgr_ref) is not in its reach. The link group lies in the middle of a
// larger inaccessible mapping: an access beyond it is a SIGSEGV with or without a sanitizer.
//
//   clang: tests/fuzz/meson.build says how to build it with libFuzzer
//   else:  ring_fuzz [SECONDS [FIRST_SEED]]   inputs from random seeds; default 3 s from 1
#include <cstring>
#include <vector>

#include "../unit/smcd/ring_pair.h"
#include "base/clock.h"

namespace postern {
namespace {

constexpr size_t kGuardBytes = 64u << 20;
constexpr size_t kBuffer = 1u << 18;
constexpr size_t kStepsMax = 400;

#define FUZZ_CHECK(cond) \
  if (!(cond)) RingWorld::Die("broken: " #cond)

// The two ends as a victim sees them: it reads what `peer` wrote and writes what `peer` reads.
class Victim {
 public:
  Victim() {
    // A second mapping of the link group would be simpler; this one has nothing on either side of
    // it.
    const pstn_uuid id = NewUuid();
    const int fd = CreateLgr(id, id, id);
    void* area = mmap(nullptr, PSTN_LGR_BYTES + 2 * kGuardBytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fd < 0 || area == MAP_FAILED) RingWorld::Die("cannot map");
    lgr_ = static_cast<uint8_t*>(area) + kGuardBytes;
    if (mmap(lgr_, PSTN_LGR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != lgr_ ||
        mprotect(lgr_ - kLgrOwnBytes, kLgrOwnBytes, PROT_READ | PROT_WRITE) != 0)
      RingWorld::Die("cannot map");
    SetChunks(lgr_, lgr_ + kLgrTablesBytes);
    sys::Close(fd);
  }

  void Reset() {
    ep_ = {};
    ref_ = {};
    ref_.side = 0;
    const ConnEnd e = End();
    *e.conn = {};
    // Places in both slabs whose first headers are to be clean.
    for (uint32_t side = 0; side < 2; side++) {
      for (uint32_t cls = 0; cls < PSTN_SLAB_CLASSES; cls++) {
        const uint64_t base = PSTN_LGR_SLAB_OFF + side * PSTN_SLAB_BYTES + ClassOff(cls);
        memset(lgr_ + base, 0, 8192);
      }
    }
  }

  void Step(const uint8_t* in) {
    const uint32_t where = in[1] | static_cast<uint32_t>(in[2]) << 8;
    const uint64_t value = Value(in[3], in[4]);
    const ConnEnd e = End();
    switch (in[0] % 14) {
      case 0:
        StoreRelease(e.peer_ctl().ring, Descriptor(1, where, in[3]));
        break;
      case 1:
        StoreRelease(e.peer_ctl().prev_ring, Descriptor(1, where, in[3]));
        break;
      case 2:
        StoreRelease(e.peer_pos().read,
                     static_cast<uint64_t>(RingGen(ep_.tx.ring)) << 32 | (where * 64u));
        break;
      case 3:
        StoreRelease(e.peer_pos().read, value << 16 | where);
        break;
      case 4:
        StoreRelease(e.ctl().ring, value);
        break;
      case 5:
        Header(RingAt(lgr_, 1, e.peer_ctl().ring), where, value);
        break;
      case 6:
        Header(RingAt(lgr_, 1, ep_.rx.ring), where, value);
        break;
      case 7:
        Header(RingAt(lgr_, 1, ep_.rx.ring), ep_.rx.off / 64, value);
        break;
      case 8:
        Header(RingAt(lgr_, 0, ep_.tx.ring), ep_.tx.off / 64, value);
        break;
      case 9:
        Write(where * 3u);
        break;
      case 10:
        Read(where * 5u, ReadMode::kTake);
        break;
      case 11:
        Read(where, in[3] % 2 == 0 ? ReadMode::kPeek : ReadMode::kDiscard);
        break;
      case 12:
        Look();
        break;
      default:
        (void)RingDetach(e, in[3] == 0 ? Pages::kDrop : Pages::kKeep);
    }
    CheckOwnState();
  }

 private:
  ConnEnd End() { return {&ep_, &ref_, lgr_, &LgrConn(lgr_, 0), 0}; }

  static uint64_t Value(uint8_t kind, uint8_t more) {
    const uint64_t values[] = {0,     1,           PSTN_REC_WRAP, PSTN_REC_SWITCH,
                               ~0ull, ~0ull - 63,  1ull << 63,    1ull << 32,
                               4096,  4096 - 64,   4096 - 127,    4096 - 128,
                               65536, 65536 - 128, 1048576 - 128, 1048576};
    return kind < 128 ? values[kind % 16] + (kind >= 64 ? more : 0) : uint64_t{more} << (kind % 57);
  }
  // A descriptor that is nearly right more often than not.
  static uint64_t Descriptor(uint32_t side, uint32_t where, uint8_t kind) {
    const uint64_t cls = kind % 4, gen = (where >> 4) & 0xfu, i = where & 0x3u;
    uint64_t page = (PSTN_LGR_SLAB_OFF + side * PSTN_SLAB_BYTES) / 4096;
    if (cls < PSTN_SLAB_CLASSES)
      page +=
          (ClassOff(static_cast<uint32_t>(cls)) + i * RingBytes(static_cast<uint32_t>(cls))) / 4096;
    if (kind >= 224) page = uint64_t{where} << (kind % 25);
    const uint64_t flags = kind & 0x40 ? PSTN_RING_F_SWITCH : 0;
    return gen << PSTN_RING_GEN_SHIFT | flags | cls << PSTN_RING_CLASS_SHIFT |
           (page & ((1ull << 40) - 1));
  }
  static void Header(RingPlace ring, uint32_t line, uint64_t value) {
    if (ring.base != nullptr) memcpy(ring.base + line % (ring.bytes / 64) * 64, &value, 8);
  }

  void Write(size_t bytes) {
    iovec iov = {buffer_.data(), bytes};
    IovCursor from(&iov, 1);
    const size_t n = RingWrite(End(), from, {});
    FUZZ_CHECK(n + from.left() == bytes);
  }
  // The buffer is exactly as long as what is asked for, so that a sanitizer sees a byte too many.
  void Read(size_t want, ReadMode mode) {
    want = want % kBuffer + 1;
    std::vector<uint8_t> exact(want);
    iovec iov = {exact.data(), want};
    IovCursor to(&iov, 1);
    const ReadResult r = RingRead(End(), mode == ReadMode::kDiscard ? nullptr : &to, want, mode);
    FUZZ_CHECK(r.bytes <= want);
    FUZZ_CHECK(r.status != ReadStatus::kEmpty || r.bytes == 0);
    if (r.status == ReadStatus::kViolation)
      ep_.rx = {};  // the connection would end: go on as a new one
  }
  void Look() {
    (void)RingReadable(End());
    (void)RingWritable(End());
    (void)RingDrained(End());
    FUZZ_CHECK(RingQueued(End(), SIZE_MAX) <= 2 * PSTN_RING2_BYTES);
  }
  void CheckOwnState() {
    const pstn_tx& tx = ep_.tx;
    if (tx.ring != 0) {
      const RingPlace ring = RingAt(lgr_, 0, tx.ring);
      FUZZ_CHECK(ring.base != nullptr);
      FUZZ_CHECK(tx.off % 64 == 0 && tx.off <= ring.bytes - 64);
      FUZZ_CHECK(tx.peer % 64 == 0 && tx.peer < ring.bytes);
    }
    FUZZ_CHECK(ref_.rings == (tx.ring != 0 ? 1u : 0u) + (tx.old_ring != 0 ? 1u : 0u));
    const pstn_rx& rx = ep_.rx;
    if (rx.ring != 0) {
      const RingPlace ring = RingAt(lgr_, 1, rx.ring);
      FUZZ_CHECK(ring.base != nullptr);
      FUZZ_CHECK(rx.off % 64 == 0 && rx.off <= ring.bytes - 64);
      FUZZ_CHECK(rx.rec_done == 0 ||
                 (rx.rec_done < rx.rec_len && rx.off + rx.rec_len <= ring.bytes - 64));
    }
  }

  uint8_t* lgr_;
  pstn_ep ep_ = {};
  pstn_lgr_ref ref_ = {};
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(kBuffer);
};

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* victim = new postern::Victim;
  victim->Reset();
  for (size_t i = 0; i + 5 <= size && i / 5 < postern::kStepsMax; i += 5) victim->Step(data + i);
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 3;
  uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 10) : 1;
  const uint64_t first = seed,
                 end_ns = postern::MonotonicNs() + static_cast<uint64_t>(seconds * 1e9);
  std::vector<uint8_t> input;
  for (; postern::MonotonicNs() < end_ns; seed++) {
    postern::TestRandom random(seed);
    input.resize(5 * (1 + random.Below(postern::kStepsMax)));
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random.Next() >> 32);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  printf("%llu inputs, seeds from %llu\n", static_cast<unsigned long long>(seed - first),
         static_cast<unsigned long long>(first));
  return 0;
}
#endif
