// SPDX-License-Identifier: Apache-2.0
// ring_twins.cc - lib/smcd's ring and postern.ko's, side by side on the same bytes.
//
// Two link groups begin equal. Each step is done in both: in the one by the library's code, in the
// other by the module's (kmod/ring, built here in user space). A step writes, reads, peeks,
// looks, or changes shared memory as a peer that lies would. After each, what the two have
// returned, the connection's lines, the family's lines and the headers and payload of the rings
// that were ever in use have to be equal. Seeds are printed; `ring_twins SEED` replays one.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <sys/mman.h>

#include <initializer_list>

#include "../unit/smcd/ring_pair.h"
#include "base/lock.h"
#include "smcd/ring.h"
#include "smcd/ring_record.h"

extern "C" {
#include "../../kmod/ring/record_ring.h"
}

namespace postern {
namespace {

// Both sides' endpoints and one link group. The rings are mapped whole, as in ring_fuzz.
struct Twin {
  static constexpr size_t kArea = kLgrOwnBytes + PSTN_LGR_BYTES;
  pstn_ep ep[2] = {};
  pstn_lgr_ref* ref;  // of both sides: they share the slab's maps with nobody else
  uint8_t* lgr;

  Twin() {
    const pstn_uuid id = NewUuid();
    const int fd = CreateLgr(id, id, id);
    auto* const area = static_cast<uint8_t*>(
        mmap(nullptr, kArea, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    lgr = area + kLgrOwnBytes;
    if (fd < 0 || area == MAP_FAILED ||
        mmap(lgr, PSTN_LGR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != lgr ||
        mprotect(lgr - kLgrOwnBytes, kLgrOwnBytes, PROT_READ | PROT_WRITE) != 0)
      RingWorld::Die("cannot map a link group");
    SetChunks(lgr, lgr + kLgrTablesBytes);
    sys::Close(fd);
    ref = static_cast<pstn_lgr_ref*>(calloc(2, sizeof(pstn_lgr_ref)));
    for (uint32_t side = 0; side < 2; side++) {
      ref[side].side = side;
      ep[side].side = static_cast<uint16_t>(side);
    }
  }
  ~Twin() {
    sys::Unmap(lgr - kLgrOwnBytes, kArea);
    free(ref);
  }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

  ConnEnd End(uint32_t side) { return {&ep[side], &ref[side], lgr, &LgrConn(lgr, 0), side}; }
};

// What the module's code is given for an end.
struct Env {
  uint8_t* lgr;
  pstn_lgr_ref* ref;
};

pstn_end KernelEnd(Twin& t, uint32_t side, Env& env) {
  const ConnEnd e = t.End(side);
  env = {t.lgr, e.ref};
  pstn_end k = {};
  k.flags = &e.ep->flags;
  k.hold = &e.ep->hold;
  k.tx = &e.ep->tx;
  k.rx = &e.ep->rx;
  k.setup = &e.conn->setup;
  k.ctl = &e.ctl();
  k.peer_ctl = &e.peer_ctl();
  k.pos = &e.pos();
  k.peer_pos = &e.peer_pos();
  k.side = side;
  k.env = reinterpret_cast<pstn_env*>(&env);
  return k;
}

struct Buffer {
  pstn_copy copy;
  uint8_t* at;
};
size_t ToBuffer(pstn_copy* c, void* at, size_t n) {
  auto* b = reinterpret_cast<Buffer*>(c);
  memcpy(b->at, at, n);
  b->at += n;
  return n;
}
size_t FromBuffer(pstn_copy* c, void* at, size_t n) {
  auto* b = reinterpret_cast<Buffer*>(c);
  memcpy(at, b->at, n);
  b->at += n;
  return n;
}

constexpr size_t kMost = 3 << 20;

// What the steps have come to: a run in which nothing moves, or no lie is met, has shown nothing.
struct Tally {
  uint64_t written, read, lies, grown;
} g_tally;

class Pair {
 public:
  explicit Pair(uint64_t seed) : random_(seed), seed_(seed), in_(kMost), out_{} {
    out_[0].resize(kMost);
    out_[1].resize(kMost);
    FillStream(in_.data(), kMost, seed, 0);
  }

  void Run(int steps, bool honest) {
    for (step_ = 0; step_ < steps; step_++) {
      Step(honest);
      Compare();
    }
  }

 private:
  Twin lib_, mod_;
  TestRandom random_;
  uint64_t seed_;
  int step_ = 0;
  const char* what_ = "";
  std::vector<uint8_t> in_;
  std::vector<uint8_t> out_[2];

  uint32_t Below(uint64_t n) { return static_cast<uint32_t>(random_.Next() % n); }

  [[noreturn]] void Fail(const char* why, uint64_t lib, uint64_t mod) {
    printf("seed %" PRIu64 ", step %d (%s): %s: %" PRIx64 " by the library, %" PRIx64
           " by the module\n",
           seed_, step_, what_, why, lib, mod);
    exit(1);
  }
  void Same(const char* why, uint64_t lib, uint64_t mod) {
    if (lib != mod) Fail(why, lib, mod);
  }

  size_t Size() {
    switch (Below(6)) {
      case 0:
        return 1 + Below(60);
      case 1:
        return 1 + Below(700);
      case 2:
        return 1900 + Below(300);
      case 3:
        return 1 + Below(20000);
      case 4:
        return 1 + Below(200000);
      default:
        return 1 + Below(8) * 64;
    }
  }

  void Write(uint32_t side) {
    what_ = "write";
    const size_t bytes = Below(50) == 0 ? 1 + Below(2 << 20) : Size();
    const bool now = Below(8) == 0;
    const ConnEnd e = lib_.End(side);
    iovec iov = {in_.data(), bytes};
    IovCursor from(&iov, 1);
    Lock(e.ep->tx.lock);
    const size_t lib = RingWrite(e, from, {}, now ? Growth::kNow : Growth::kWhenUseful);
    Unlock(e.ep->tx.lock);
    Env env;
    pstn_end k = KernelEnd(mod_, side, env);
    Buffer b = {{FromBuffer}, in_.data()};
    pstn_write r;
    pstn_ring_write(&k, &b.copy, bytes, now ? PSTN_GROW_NOW : PSTN_GROW_WHEN_USEFUL, &r);
    Same("bytes", lib, r.bytes);
    g_tally.written += lib;
    if ((e.ctl().ring & PSTN_RING_F_SWITCH) != 0) g_tally.grown++;
  }

  void Read(uint32_t side, bool peek) {
    what_ = peek ? "peek" : "read";
    const size_t want = Below(20) == 0 ? kMost : Size();
    const ConnEnd e = lib_.End(side);
    const bool drop = Below(6) == 0 && !peek;
    iovec iov = {out_[0].data(), want};
    IovCursor to(&iov, 1);
    Lock(e.ep->rx.lock);
    const ReadResult lib = RingRead(e, drop ? nullptr : &to, want,
                                    peek   ? ReadMode::kPeek
                                    : drop ? ReadMode::kDiscard
                                           : ReadMode::kTake);
    Unlock(e.ep->rx.lock);
    Env env;
    pstn_end k = KernelEnd(mod_, side, env);
    Buffer b = {{ToBuffer}, out_[1].data()};
    pstn_read r;
    pstn_ring_read(&k, drop ? nullptr : &b.copy, want, peek ? PSTN_READ_PEEK : PSTN_READ_TAKE, &r);
    Same("bytes", lib.bytes, r.bytes);
    const auto status = [](ReadStatus s) -> uint64_t {
      return s == ReadStatus::kOk      ? PSTN_LOOK_RECORD
             : s == ReadStatus::kEmpty ? PSTN_LOOK_EMPTY
                                       : PSTN_LOOK_LIE;
    };
    Same("status", status(lib.status), r.status);
    if (!drop && memcmp(out_[0].data(), out_[1].data(), lib.bytes) != 0)
      Fail("payload", lib.bytes, r.bytes);
    g_tally.read += lib.bytes;
    g_tally.lies += lib.status == ReadStatus::kViolation ? 1 : 0;
  }

  void Look(uint32_t side) {
    what_ = "look";
    const ConnEnd e = lib_.End(side);
    Env env;
    pstn_end k = KernelEnd(mod_, side, env);
    Same("readable", RingReadable(e), pstn_ring_readable(&k));
    const size_t limit = 1 + Below(100000);
    Same("queued", RingQueued(e, limit), pstn_ring_queued(&k, limit));
    Same("writable", RingWritable(e) || RingGrowable(e, {}), pstn_ring_writable(&k));
    Same("held", 0, pstn_ring_held_until(&k));
  }

  // A word that a peer, or a liar, may have written: often one that means something.
  uint64_t Word() {
    const ConnEnd e = lib_.End(Below(2));
    switch (Below(10)) {
      case 0:
        return 0;
      case 1:
        return PSTN_REC_WRAP;
      case 2:
        return PSTN_REC_SWITCH;
      case 3:
        return Below(70000);
      case 4:
        return random_.Next();
      case 5:
        return e.ctl().ring;
      case 6:
        return e.ctl().ring + (uint64_t{1} << PSTN_RING_GEN_SHIFT) * Below(3);
      case 7:
        return e.ctl().ring ^ (uint64_t{1} << Below(64));
      case 8:
        return e.pos().read + Below(4) * 64;
      default:
        return uint64_t{RingGen(e.ctl().ring)} << 32 | Below(1 << 16) * 64;
    }
  }

  // The same lie in both.
  void Lie() {
    what_ = "lie";
    const uint32_t side = Below(2);
    const uint64_t word = Word();
    const uint32_t where = Below(5), at = Below(1 << 14);
    const bool own = Below(2) == 0;
    for (Twin* t : {&lib_, &mod_}) {
      const ConnEnd e = t->End(side);
      uint64_t* to = nullptr;
      RingPlace r = {nullptr, 0};
      switch (where) {
        case 0:
          to = &e.peer_ctl().ring;
          break;
        case 1:
          to = &e.peer_ctl().prev_ring;
          break;
        case 2:
          to = &e.peer_pos().read;
          break;
        default:
          r = RingAt(t->lgr, side ^ 1u, own ? e.ep->rx.ring : e.peer_ctl().ring);
          if (r.base != nullptr && where == 3)
            to = &HeaderAt(r.base, at * 64 % r.bytes);
          else if (r.base != nullptr && e.ep->rx.off < r.bytes)
            to = &HeaderAt(r.base, e.ep->rx.off);
      }
      // Held records have a time, which the two would not look at at one moment.
      if (to != nullptr) *to = where >= 3 ? word & ~PSTN_REC_HELD : word;
    }
  }

  void Step(bool honest) {
    const uint32_t side = Below(2);
    switch (Below(honest ? 9 : 12)) {
      case 0:
      case 1:
      case 2:
        Write(side);
        break;
      case 3:
      case 4:
      case 5:
        Read(side, false);
        break;
      case 6:
        Read(side, true);
        break;
      case 7:
        Look(side);
        break;
      case 8:
        if (Below(20) == 0) Budget(side);
        break;
      default:
        Lie();
    }
  }

  void Budget(uint32_t side) {
    what_ = "budget";
    const uint16_t lines = static_cast<uint16_t>(Below(3) == 0 ? 0 : 1 + Below(2000));
    const uint32_t room = Below(2) == 0 ? 0 : Below(100000);
    for (Twin* t : {&lib_, &mod_}) {
      t->ep[side].tx.budget = lines;
      t->End(side).peer_ctl().rcv_room = room;
    }
  }

  void Compare() {
    for (uint32_t side = 0; side < 2; side++) {
      const ConnEnd a = lib_.End(side), b = mod_.End(side);
      Same("ctl.ring", a.ctl().ring, b.ctl().ring);
      Same("ctl.prev_ring", a.ctl().prev_ring, b.ctl().prev_ring);
      Same("pos.read", a.pos().read, b.pos().read);
      CompareTx(a.ep->tx, b.ep->tx);
      CompareRx(a.ep->rx, b.ep->rx);
      Same("rings", a.ref->rings, b.ref->rings);
      CompareRing(side, a.ctl().ring);
      CompareRing(side, a.ctl().prev_ring);
      if (memcmp(a.ref->ring0_map, b.ref->ring0_map, sizeof a.ref->ring0_map) != 0 ||
          memcmp(a.ref->ring1_map, b.ref->ring1_map, sizeof a.ref->ring1_map) != 0 ||
          memcmp(a.ref->ring2_map, b.ref->ring2_map, sizeof a.ref->ring2_map) != 0)
        Fail("maps of rings", side, side);
    }
  }
  void CompareTx(const pstn_tx& a, const pstn_tx& b) {
    AssertHeld(a.lock);
    AssertHeld(b.lock);
    Same("tx.off", a.off, b.off);
    Same("tx.peer", a.peer, b.peer);
    Same("tx.ring", a.ring, b.ring);
    Same("tx.old_ring", a.old_ring, b.old_ring);
    Same("tx.window", a.window, b.window);
    Same("tx.step", a.step, b.step);
    Same("tx.burst", a.burst, b.burst);
    Same("tx.bytes", a.bytes, b.bytes);
    Same("tx.blocked", a.blocked, b.blocked);
  }
  void CompareRx(const pstn_rx& a, const pstn_rx& b) {
    AssertHeld(a.lock);
    AssertHeld(b.lock);
    Same("rx.at", a.at, b.at);
    Same("rx.ring", a.ring, b.ring);
    Same("rx.bytes", a.bytes, b.bytes);
    Same("rx.unreturned", a.unreturned, b.unreturned);
    Same("rx.rec_len", a.at >> 32 != 0 ? a.rec_len : 0, b.at >> 32 != 0 ? b.rec_len : 0);
  }
  void CompareRing(uint32_t side, uint64_t desc) {
    const RingPlace a = RingAt(lib_.lgr, side, desc), b = RingAt(mod_.lgr, side, desc);
    if (a.base == nullptr) return;
    if (a.bytes > PSTN_RING1_BYTES && step_ % 64 != 0) return;
    if (memcmp(a.base, b.base, a.bytes) != 0) Fail("a ring's bytes", desc, desc);
  }
};

}  // namespace
}  // namespace postern

// ---- what the module's code asks of its surroundings.

using postern::Env;
extern "C" uint8_t* pstn_env_ring_page(pstn_env* env, uint64_t page, bool) {
  return reinterpret_cast<Env*>(env)->lgr + page * 4096;
}
extern "C" void* pstn_env_ref(pstn_env* env, size_t off) {
  return reinterpret_cast<uint8_t*>(reinterpret_cast<Env*>(env)->ref) + off;
}
extern "C" bool pstn_env_lock_ref(pstn_env*) { return true; }
extern "C" void pstn_env_unlock_ref(pstn_env*) {}
extern "C" uint32_t pstn_env_chunks(pstn_env*) { return postern::kChunks; }

int main(int argc, char** argv) {
  const bool one = argc > 1;
  const uint64_t first = one ? strtoull(argv[1], nullptr, 0) : 1;
  for (uint64_t seed = first; seed < first + (one ? 1 : 60); seed++) {
    postern::Pair honest(seed);
    honest.Run(1500, true);
    postern::Pair liars(seed);
    liars.Run(1500, false);
  }
  const postern::Tally& t = postern::g_tally;
  printf("ring_twins: seeds from %" PRIu64 ": the two agree; %" PRIu64 " bytes written, %" PRIu64
         " read, %" PRIu64 " lies met, %" PRIu64 " writes to a larger ring\n",
         first, t.written, t.read, t.lies, t.grown);
  return t.written > (1 << 20) && t.read > (1 << 20) && (one || (t.lies > 100 && t.grown > 100))
             ? 0
             : 1;
}
