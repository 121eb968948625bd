// SPDX-License-Identifier: Apache-2.0
// reaper_fuzz.cc - a family that dies and has left anything in its own stack: slots, fd tables,
// endpoints, event sets, waiters, its record of link groups, and the link groups themselves. The
// reaper (life/reap.h) comes to an end, and touches nothing beyond the two kinds of segment.
//
// The input is a program of seven-byte steps. The first steps build what an honest family has; each
// of the others writes a word that the reaping will meet. Then all of it is reaped: the slot's
// listeners, the slot, the link groups whose peer is dead, the stack. A reaper may give up at a
// lock (its process would end); that is an end like any other.
#include <setjmp.h>
#include <sys/time.h>

#include <csignal>

#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "family/family.h"
#include "family/holder.h"
#include "lgr_world.h"
#include "life/reap.h"
#include "peer/connect.h"
#include "sock/own_family.h"
#include "stream/stream.h"

namespace postern {
namespace {

constexpr size_t kStepsMax = 120, kStepBytes = 7;
constexpr uint32_t kPid = 4242, kDead = 3, kOther = 5, kFds = 24;
// Of CPU time, since a busy machine is no walk without an end. A list in a circle leads round;
// none of an honest stack is longer than its tables.
constexpr int kSecondsMax = 20;

jmp_buf given_up;

struct Step {
  uint8_t op, a, b, c, d, e, f;
  uint32_t where() const { return b | static_cast<uint32_t>(c) << 8; }
};

class Play {
 public:
  Play() {
    g_lock_patience_ns = 20'000;
    g_lock_given_up = [] { longjmp(given_up, 1); };
    signal(SIGPROF, [](int) { FuzzDie("a walk without an end"); });
  }

  void Run(const uint8_t* data, size_t size) {
    world_.Reset();
    FUZZ_CHECK(UseReaperLocks(g_family));
    g_family.slot = PSTN_NONE;  // a reaper has none
    s().hdr.reaper_pidns = OwnPidns(g_family);
    Family();
    for (size_t i = 0; i + kStepBytes <= size && i / kStepBytes < kStepsMax; i += kStepBytes) {
      Step in;
      memcpy(&in, data + i, sizeof in);
      Spoil(in);
    }
    itimerval until = {};
    until.it_value.tv_sec = kSecondsMax;
    setitimer(ITIMER_PROF, &until, nullptr);
    Reap();
    until = {};
    setitimer(ITIMER_PROF, &until, nullptr);
  }

 private:
  StackMap& s() { return world_.s(); }

  void Slot(uint32_t slot, uint32_t pid) {
    pstn_slot& place = s().slots.Own(ProcIndex(slot));
    for (uint32_t& chunk : place.chunk) chunk = PSTN_NONE;
    place.chunk[0] = TakeFdChunk(s());
    place.told = 1;
    place.pidns = OwnPidns(g_family);
    place.pid = pid;
    place.state = PSTN_SL_LIVE;
    if (s().hdr.slots_hw <= slot) s().hdr.slots_hw = slot + 1;
  }

  uint32_t& Fd(uint32_t slot, uint32_t fd) {
    return s().fdchunks.Own(ChunkIndex(s().slots.Own(ProcIndex(slot)).chunk[0])).fd[fd];
  }

  // One end of a connection of link group `i`, as connect() and accept() leave it.
  uint32_t Connection(uint32_t i, uint32_t conn) {
    const uint32_t idx = NewEp(g_family, AF_INET);
    pstn_ep& ep = s().eps.Own(EpIndex(idx));
    pstn_lgr_ref& ref = world_.ref(i);
    pstn_conn& c = LgrConn(world_.lgr(i), conn);
    if (ref.side == 0) conn = TakeConn(ref, world_.lgr(i));
    uint32_t& hw = LgrHdr(world_.lgr(i)).conns_hw;
    if (hw <= conn) hw = conn + 1;
    c.setup.gen++;
    ep.lgr_idx = i;
    ep.conn_idx = conn;
    ep.conn_gen = c.setup.gen;
    ep.side = static_cast<uint16_t>(ref.side);
    ref.conn_ep[conn] = idx + 1;
    ep.state = PSTN_EP_ESTABLISHED;
    c.setup.state = PSTN_CS_ESTABLISHED;
    return idx;
  }

  void Watch(uint32_t ep_idx, int fd) {
    pstn_ep& ep = s().eps.Own(EpIndex(ep_idx));
    const uint32_t i = TakeItem(s());
    pstn_item& item = s().items.Own(ItemIndex(i));
    item = {};
    item.ep_idx = ep_idx;
    item.epoll_idx = world_.set_idx;
    item.events = EPOLLIN;
    item.fd = static_cast<uint32_t>(fd);
    LinkItem(s(), ep, world_.set(), i);
    PushReady(s(), world_.set(), i);
  }

  void Family() {
    Slot(kDead, kPid);
    Slot(kOther, kPid + 1);
    Fd(kDead, 3) = PSTN_FD_EP | world_.listener;
    Fd(kDead, 4) = PSTN_FD_EPOLL | world_.set_idx;
    std::vector<uint8_t> bytes(3000, 7);
    for (uint32_t n = 0; n < 8; n++) {
      const uint32_t idx = Connection(n % kLgrs, n);
      const int fd = static_cast<int>(5 + n);
      Fd(kDead, static_cast<uint32_t>(fd)) = PSTN_FD_EP | idx;
      if (n % 2 != 0) {
        Fd(kOther, static_cast<uint32_t>(fd)) = PSTN_FD_EP | idx;
        s().eps.Own(EpIndex(idx)).refs = 2;
      }
      if (n < 5) Watch(idx, fd);
      const iovec iov = {bytes.data(), bytes.size()};
      Call call(g_family, s().eps.Own(EpIndex(idx)));
      (void)StreamSend(g_family, call, &iov, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
      s().eps.Own(EpIndex(idx)).owner_slot = n == 3 ? kDead : PSTN_NONE;
      ep_[n] = idx;
    }
    // Clients that wait for the listener, and one that is being admitted.
    for (uint32_t conn = 60; conn < 66; conn++) {
      pstn_conn& c = LgrConn(world_.lgr(kAsServer), conn);
      c.setup.listener_idx = world_.listener;
      c.setup.listener_gen = s().eps.Own(EpIndex(world_.listener)).gen;
      c.setup.state = PSTN_CS_SYN;
      AnnounceSyn(g_family.bells, world_.lgr(kAsServer), conn);
      LgrHdr(world_.lgr(kAsServer)).conns_hw = 66;
    }
    AdmitSyns(g_family);
    const uint32_t w = TakeWaiter(s());
    s().waiters.Own(WaiterIndex(w)).state = 1;
    s().waiters.Own(WaiterIndex(w)).owner_slot = kDead;
  }

  // ---------------------------------------------------------------- what is left there
  static void Put(void* at, uint64_t value, uint8_t kind) {
    if (kind % 3 == 0) {
      memcpy(at, &value, 8);
    } else {
      const auto word = static_cast<uint32_t>(value);
      memcpy(at, &word, 4);
    }
  }

  uint64_t Value(const Step& in) {
    const uint64_t values[] = {
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        255,
        256,
        257,
        511,
        512,
        1023,
        1024,
        4095,
        4096,
        s().eps.count() - 1,
        s().eps.count(),
        s().eps.count() + 1,
        s().items.count() - 1,
        s().items.count(),
        PSTN_NONE,
        PSTN_NONE - 1,
        0x7fffffff,
        0x80000000,
        1ull << 32,
        ~0ull,
        static_cast<uint64_t>(getpid()),
        static_cast<uint64_t>(getpid()) | 1u << 22,
        PSTN_FD_EP | ep_[in.e % 8],
        PSTN_FD_EPOLL | world_.set_idx,
        PSTN_FD_EP | PSTN_FD_IDX,
        PSTN_FD_EPOLL | PSTN_FD_IDX,
        world_.listener,
        ep_[in.e % 8],
        static_cast<uint64_t>(in.e % 4) << PSTN_RING_CLASS_SHIFT | SlabPage(in.f & 1u) | in.f};
    if (in.d < 192) return values[in.d % (sizeof values / sizeof values[0])];
    return static_cast<uint64_t>(in.e | static_cast<uint32_t>(in.f) << 8) << (in.d % 56);
  }

  template <typename T>
  void Word(T& where, const Step& in, size_t bytes = sizeof(T)) {
    auto* at = reinterpret_cast<uint8_t*>(&where);
    Put(at + in.where() * 4ull % (bytes - 4), Value(in),
        in.where() * 4ull % (bytes - 4) + 8 <= bytes ? in.f : 1);
  }

  void Spoil(const Step& in) {
    const uint32_t pick[] = {ep_[in.a % 8], world_.listener, in.a, s().eps.count() - 1};
    pstn_ep& ep = s().eps.Own(EpIndex(pick[in.op >> 6]));
    switch (in.op % 16) {
      case 0:
        Word(s().hdr, in, offsetof(pstn_stack_hdr, counters));
        break;
      case 1:
        Word(s().slots.Own(ProcIndex(in.a & 1u ? kDead : in.a % s().slots.count())), in, 64);
        break;
      case 2:
        s().slots.Own(ProcIndex(kDead)).chunk[in.a & 1u ? 0 : in.where() % PSTN_SLOT_CHUNKS] =
            static_cast<uint32_t>(Value(in));
        break;
      case 3:
        s().fdchunks.Own(ChunkIndex(in.b % 4u)).fd[in.a % kFds] = static_cast<uint32_t>(Value(in));
        break;
      case 4:
      case 5:
      case 6:
        Word(ep, in);
        break;
      case 7:
        ep.state = in.b % 9u;
        ep.owner_slot = in.c & 1u ? kDead : in.d;
        ep.flags = static_cast<uint32_t>(Value(in));
        break;
      case 8:
        Word(s().items.Own(ItemIndex(in.a % 12u)), in);
        break;
      case 9:
        Word(s().epolls.Own(SetIndex(in.a & 1u ? world_.set_idx : in.a)), in);
        break;
      case 10:
        Word(s().waiters.Own(WaiterIndex(in.a % 16u)), in);
        break;
      case 11:
        Word(world_.ref(in.a % kLgrs), in, 128);
        break;
      case 12:
        Word(world_.ref(in.a % kLgrs), in);
        break;
      case 13:
        Word(LgrConn(world_.lgr(in.a % kLgrs), in.a >> 4), in);
        break;
      case 14:
        Word(LgrHdr(world_.lgr(in.a % kLgrs)), in, sizeof(pstn_lgr_hdr));
        break;
      default:
        Word(LgrEvmap(world_.lgr(in.a % kLgrs), in.a >> 7, in.a & 1u ? 0 : in.b % 16u), in);
        break;
    }
  }

  // ---------------------------------------------------------------- the reaper
  template <typename Fn>
  void Try(Fn fn) {
    if (setjmp(given_up) == 0) fn();
    t_locks = {};
  }

  void Reap() {
    Try([&] {
      if (!ClaimDead(g_family, kDead, LoadRelaxed(s().slots.Own(ProcIndex(kDead)).pid))) return;
      (void)ReapWouldWait(s(), kDead,
                          [](const pstn_lock& lock) { return LockOwnerLives(lock, lock.word); });
      ReapListeners(g_family, kDead);
      ReapSlot(g_family, kDead);
    });
    for (uint32_t i = 0; i < kLgrs; i++) Try([&] { MarkPeerDead(g_family, i); });
    s().slots.Own(ProcIndex(kOther)).state = PSTN_SL_DEAD;
    for (uint32_t i = 0; i < s().slots.count(); i++) {
      if (s().slots.Own(ProcIndex(i)).state != PSTN_SL_FREE)
        s().slots.Own(ProcIndex(i)).state = PSTN_SL_DEAD;
    }
    Try([&] { FUZZ_CHECK(EndStack(g_family)); });
    for (uint32_t i = 0; i < kLgrs; i++) (void)LgrIdle(s().lgrs.Own(LgrIndex(i)));
  }

  LgrWorld world_;
  uint32_t ep_[8] = {};
};

}  // namespace
}  // namespace postern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* play = new postern::Play;
  play->Run(data, size);
  return 0;
}

#ifndef POSTERN_LIBFUZZER
int main(int argc, char** argv) {
  return postern::FuzzReplay(argc, argv, postern::kStepsMax * postern::kStepBytes);
}
#endif
