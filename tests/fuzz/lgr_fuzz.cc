// SPDX-License-Identifier: Apache-2.0
// lgr_fuzz.cc - a peer that writes anything into everything that a link group is: connection table,
// control lines, event maps, SYN map, rings and header. What the honest side keeps for itself stays
// whole at each step, no step makes more than so many system calls, and a connection between two
// honest stacks does not notice.
//
// The input is a program of seven-byte steps: either side does what it may do. The hostile peers
// also do the proper thing now and then, so that there is a state to be spoilt.
#include <sys/ioctl.h>

#include <cerrno>
#include <memory>

#include "base/clock.h"
#include "endpoint/call.h"
#include "endpoint/endpoint.h"
#include "endpoint/items.h"
#include "endpoint/posts.h"
#include "event/wait.h"
#include "family/family.h"
#include "lgr_world.h"
#include "life/reap.h"
#include "option/socket_options.h"
#include "peer/close.h"
#include "peer/connect.h"
#include "sock/own_family.h"
#include "sock/socket.h"
#include "stream/stream.h"

namespace postern {
namespace {

constexpr size_t kStepsMax = 250, kStepBytes = 7, kBuffer = 1u << 18;
constexpr uint32_t kCallsMax =
    4 * PSTN_WAITERS;  // system calls that a peer can make us do in one step
constexpr uint32_t kConns[8] = {0, 1, 2, 3, 63, 64, 2000, 4095};

// The other side of a link group, as far as it plays by the rules: its endpoints and what it has
// given out are its own.
struct Peer {
  pstn_lgr_ref ref = {};
  std::map<uint32_t, std::unique_ptr<pstn_ep>> eps;
};

struct Step {
  uint8_t op, a, b, c, d, e, f;
  uint32_t where() const { return b | static_cast<uint32_t>(c) << 8; }
};

class Play {
 public:
  void Run(const uint8_t* data, size_t size) {
    world_.Reset();
    for (uint32_t i = 0; i < kLgrs; i++) {
      peer_[i].ref = {};
      peer_[i].ref.side = world_.ref(i).side ^ 1u;
      peer_[i].eps.clear();
    }
    sent_ = received_ = 0;
    honest_ = PSTN_NONE;
    for (size_t i = 0; i + kStepBytes <= size && i / kStepBytes < kStepsMax; i += kStepBytes) {
      Step in;
      memcpy(&in, data + i, sizeof in);
      const uint64_t before = world_.SystemCalls();
      if (in.op < 128 && !world_.dead) {
        Attack(in);
      } else {
        Act(in);
      }
      FUZZ_CHECK(world_.SystemCalls() - before <= kCallsMax);
      world_.Validate();
    }
    HonestTransfer(5000);
    End();
  }

 private:
  // ---------------------------------------------------------------- the peers
  static uint64_t Value(const Step& in) {
    const uint64_t values[] = {0,
                               1,
                               2,
                               3,
                               4,
                               5,
                               6,
                               8,
                               PSTN_REC_WRAP,
                               PSTN_REC_SWITCH,
                               ~0ull,
                               ~0ull - 63,
                               1ull << 63,
                               1ull << 32,
                               PSTN_NOTIFY_ALL,
                               PSTN_WAITERS,
                               64,
                               4096 - 64,
                               4096 - 128,
                               65536 - 128,
                               1048576 - 128,
                               1048576};
    if (in.d < 128)
      return values[in.d % (sizeof values / sizeof values[0])] + (in.d >= 64 ? in.e : 0);
    return static_cast<uint64_t>(in.e | static_cast<uint32_t>(in.f) << 8) << (in.d % 60);
  }

  uint64_t Descriptor(uint32_t side, const Step& in) {
    const uint64_t cls = in.e % 4, gen = in.c & 7u, i = in.c >> 6;
    uint64_t page = SlabPage(side);
    if (cls < PSTN_SLAB_CLASSES)
      page +=
          (ClassOff(static_cast<uint32_t>(cls)) + i * RingBytes(static_cast<uint32_t>(cls))) / 4096;
    if (in.e >= 240) page = static_cast<uint64_t>(in.where()) << (in.f % 25);
    return gen << PSTN_RING_GEN_SHIFT | (in.e & 0x40 ? PSTN_RING_F_SWITCH : 0) |
           cls << PSTN_RING_CLASS_SHIFT | (page & PSTN_RING_PLACE);
  }

  void Attack(const Step& in) {
    const uint32_t i = in.a & 1u;
    uint8_t* const lgr = world_.lgr(i);
    pstn_conn& conn = LgrConn(lgr, kConns[in.a >> 1 & 7u]);
    const uint32_t theirs = world_.ref(i).side ^ 1u;
    switch (in.op % 16) {
      case 0:  // any word of the header
        Put(lgr + in.where() % sizeof(pstn_lgr_hdr) / 4 * 4, Value(in), in.f);
        break;
      case 1:  // any word of a connection
      case 2:
        Put(reinterpret_cast<uint8_t*>(&conn) + in.where() % (sizeof conn / 4) * 4, Value(in),
            in.f);
        break;
      case 3:
        StoreRelease(conn.setup.state, in.b % 8u);
        break;
      case 4:
        StoreRelease(conn.ctl[in.b & 1u].ring, Descriptor(in.b & 2u ? theirs : theirs ^ 1u, in));
        break;
      case 5:
        StoreRelease(conn.ctl[theirs].prev_ring, Descriptor(theirs, in));
        break;
      case 6:
        StoreRelease(conn.ctl[in.b & 1u].flags, in.c & 31u);
        break;
      case 7: {  // any word of an event map
        const uint32_t waiters[] = {PSTN_EVMAP_SYN, world_.set().waiter_idx, 2, 511};
        pstn_evmap& map = LgrEvmap(lgr, in.a >> 4 & 1u, waiters[in.a >> 5 & 3u]);
        Put(reinterpret_cast<uint8_t*>(&map) + in.where() % (sizeof map / 4) * 4, Value(in), in.f);
        break;
      }
      case 8:
        AllBits(lgr, in.b & 1u);
        break;
      case 9:
        RingWord(i, in);
        break;
      case 10:  // anywhere
        Put(lgr + (in.where() * 6692ull + in.a * 4ull) % (PSTN_LGR_BYTES - 8) / 4 * 4, Value(in),
            in.f);
        break;
      case 11:
        EveryoneSleeps(lgr, world_.ref(i).side ^ (in.b & 1u), in.c & 1u);
        break;
      case 12:
        Connect(i, kConns[in.a >> 1 & 7u], in);
        break;
      case 13:
        PeerWrites(i, kConns[in.a >> 1 & 7u], in.where() * 3u);
        break;
      case 14:
        PeerReads(i, kConns[in.a >> 1 & 7u], in.where() * 3u);
        break;
      default:
        LeaveProperly(i, conn);
    }
  }

  static void Put(uint8_t* at, uint64_t value, uint8_t wide) {
    memcpy(at, &value, wide % 2 != 0 ? 8 : 4);
  }

  static void AllBits(uint8_t* lgr, uint32_t side) {
    for (uint32_t w = 0; w < 3; w++) {
      pstn_evmap& map = LgrEvmap(lgr, side, w);
      for (uint64_t& leaf : map.leaf) leaf = ~0ull;
      map.summary = ~0ull;
    }
  }

  static void EveryoneSleeps(uint8_t* lgr, uint32_t side, uint32_t syn) {
    LgrHdr(lgr).waiters_hw[side] = PSTN_WAITERS;
    for (uint32_t w = 0; w < PSTN_WAITERS; w++) {
      LgrEvmap(lgr, side, w).in_use = PSTN_EV_USED | (syn != 0 ? PSTN_EV_SYN : 0u);
      LgrEvmap(lgr, side, w).sleeping = 1;
    }
  }

  // A header word of a ring that one of our endpoints uses: near its offset, or somewhere.
  void RingWord(uint32_t i, const Step& in) {
    const uint32_t idx = world_.ref(i).conn_ep[kConns[in.a >> 1 & 7u]];
    if (idx == 0) return;
    const pstn_ep& ep = world_.s().eps.Own(EpIndex(idx - 1));
    const bool rx = in.a >= 128;
    const RingPlace ring =
        RingAt(world_.lgr(i), rx ? ep.side ^ 1u : ep.side, rx ? ep.rx.ring : ep.tx.ring);
    if (ring.base == nullptr) return;
    const uint32_t line = in.b < 128 ? (rx ? ep.rx.off : ep.tx.off) / 64 + in.b % 3 : in.where();
    const uint64_t value = Value(in);
    memcpy(ring.base + line % (ring.bytes / 64) * 64, &value, 8);
  }

  ConnEnd PeerEnd(uint32_t i, uint32_t conn) {
    std::unique_ptr<pstn_ep>& ep = peer_[i].eps[conn];
    if (ep == nullptr) ep = std::make_unique<pstn_ep>();
    ep->lgr_idx = i;
    ep->conn_idx = conn;
    ep->side = static_cast<uint16_t>(peer_[i].ref.side);
    return {ep.get(), &peer_[i].ref, world_.lgr(i), &LgrConn(world_.lgr(i), conn), ep->side};
  }

  // As an honest client does it (connect.cc); or, where we are the client, as an honest server
  // admits.
  void Connect(uint32_t i, uint32_t conn, const Step& in) {
    pstn_conn& c = LgrConn(world_.lgr(i), conn);
    if (peer_[i].ref.side == 1) {
      uint32_t state = PSTN_CS_SYN;
      (void)CompareExchange(c.setup.state, state, PSTN_CS_ESTABLISHED);
      return;
    }
    memset(static_cast<void*>(&c.ctl), 0, sizeof c - sizeof c.setup);
    *PeerEnd(i, conn).ep = {};
    c.setup.gen++;
    c.setup.listener_idx = in.b < 200 ? world_.listener : in.b;
    c.setup.listener_gen =
        world_.s().eps.Own(EpIndex(world_.listener)).gen + (in.c > 220 ? 1u : 0u);
    c.setup.client = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, 0, 0, 0};
    c.setup.server = c.setup.client;
    c.setup.client.port = in.e < 250 ? 40000 : in.e;
    c.ctl[0].syn_ns = in.f < 128 ? MonotonicNs() : static_cast<uint64_t>(in.f) << (in.e % 57);
    uint32_t& hw = LgrHdr(world_.lgr(i)).conns_hw;
    if (hw <= conn && in.c < 240) hw = conn + 1;
    c.setup.state = PSTN_CS_SYN;
    SetSyn(world_.lgr(i), conn);
  }

  static void SetSyn(uint8_t* lgr, uint32_t conn) {
    pstn_evmap& map = LgrEvmap(lgr, 1, PSTN_EVMAP_SYN);
    FetchOr(map.leaf[conn / 64], 1ull << (conn % 64));
    FetchOr(map.summary, 1ull << (conn / 64));
  }

  // Its own half of the work is honest only as long as what it believes still is true.
  bool PeerIsSane(uint32_t i, uint32_t conn) {
    const pstn_ep& ep = *PeerEnd(i, conn).ep;
    const uint32_t side = peer_[i].ref.side;
    if (ep.tx.ring != 0 && RingAt(world_.lgr(i), side, ep.tx.ring).base == nullptr) return false;
    return ep.rx.ring == 0 || RingAt(world_.lgr(i), side ^ 1u, ep.rx.ring).base != nullptr;
  }
  void PeerWrites(uint32_t i, uint32_t conn, size_t bytes) {
    if (!PeerIsSane(i, conn)) return;
    iovec iov = {buffer_.data(), bytes};
    IovCursor from(&iov, 1);
    (void)RingWrite(PeerEnd(i, conn), from, {});
  }
  void PeerReads(uint32_t i, uint32_t conn, size_t bytes) {
    if (!PeerIsSane(i, conn)) return;
    iovec iov = {buffer_.data(), bytes};
    IovCursor to(&iov, 1);
    if (RingRead(PeerEnd(i, conn), &to, bytes, ReadMode::kTake).status == ReadStatus::kViolation)
      PeerEnd(i, conn).ep->rx = {};
  }
  void LeaveProperly(uint32_t i, pstn_conn& conn) {
    const uint32_t side = peer_[i].ref.side;
    FetchOr(conn.ctl[side].flags, PSTN_CF_CLOSED | PSTN_CF_FIN);
    const uint32_t state = conn.setup.state,
                   other_gone = side == 0 ? PSTN_CS_SERVER_GONE : PSTN_CS_CLIENT_GONE;
    conn.setup.state = state == other_gone ? uint32_t{PSTN_CS_FREE} : GoneState(side, state);
  }

  // ---------------------------------------------------------------- we
  // One of our connections to a hostile peer; null: there is none.
  pstn_ep* Pick(uint32_t which) {
    StackMap& s = world_.s();
    for (uint32_t n = 0; n < s.hdr.eps.hw; n++) {
      pstn_ep& ep = s.eps.Own(EpIndex((which + n) % s.hdr.eps.hw));
      if (ep.state == PSTN_EP_ESTABLISHED && ep.lgr_idx != kHonest) return &ep;
    }
    return nullptr;
  }

  void Act(const Step& in) {
    pstn_ep* ep = Pick(in.a);
    switch (in.op % 20) {
      case 0:
      case 1:
        AdmitSyns(g_family);
        break;
      case 2:
        (void)Accept(in.b < 220);
        break;
      case 3:
        WeConnect();
        break;
      case 4:
      case 5:
        if (ep != nullptr) Send(*ep, in.where() * 3u, in.d < 16 ? MSG_OOB : 0);
        break;
      case 6:
      case 7:
      case 8:
        if (ep != nullptr) Receive(*ep, in.where() * 5u, in.d);
        break;
      case 9:
        if (ep != nullptr) Look(*ep);
        break;
      case 10:
        if (ep != nullptr) Watch(*ep);
        break;
      case 11:
      case 12:
        Events();
        break;
      case 13:
        if (ep != nullptr) Close(*ep);
        break;
      case 14:
        if (ep != nullptr) (void)SockShutdown(g_family, -1, *ep, in.b % 3);
        break;
      case 15:
        if (ep != nullptr && ResetConnection(g_family, *ep)) CloseEp(g_family, *ep);
        break;
      case 16:
        GiveBackIdleRings(g_family);
        break;
      case 17:
        Sleep(in);
        break;
      case 18:
        HonestTransfer(in.where());
        break;
      default:
        Rare(in);
    }
  }

  void Rare(const Step& in) {
    switch (in.b % 8) {
      case 0:  // another process of ours has died
        RecoverConns(g_family, kSlot + 1);
        break;
      case 1:  // the listener is closed, and made again
        StopListening(g_family, world_.s().eps.Own(EpIndex(world_.listener)), PSTN_EP_NEW);
        StoreRelease(world_.s().eps.Own(EpIndex(world_.listener)).state, PSTN_EP_LISTEN);
        break;
      case 2:
        if (in.c < 64) TheyDie();
        break;
      case 3:
        for (uint32_t i = 0; i < kLgrs; i++) SweepZombies(world_.ref(i), world_.lgr(i));
        break;
      case 4:
        world_.s().eps.Own(EpIndex(world_.listener)).defer_accept = in.c & 1u;
        break;
      default:
        AdmitSyns(g_family);
    }
  }

  bool Accept(bool keep) {
    const uint32_t idx = DequeueEmbryo(g_family, world_.s().eps.Own(EpIndex(world_.listener)));
    if (idx == PSTN_NONE) return false;
    pstn_ep& ep = world_.s().eps.Own(EpIndex(idx));
    StoreRelease(ep.state, PSTN_EP_ESTABLISHED);
    if (!keep) CloseEp(g_family, ep);
    return true;
  }

  // What connect() does once it has found the listener.
  void WeConnect() {
    pstn_lgr_ref& ref = world_.ref(kAsClient);
    if (ref.state != 1 || world_.dead) return;
    const uint32_t conn = TakeConn(ref, world_.lgr(kAsClient));
    if (conn == PSTN_NONE) return;
    const uint32_t idx = NewEp(g_family, AF_INET);
    FUZZ_CHECK(idx != PSTN_NONE);
    pstn_conn& c = LgrConn(world_.lgr(kAsClient), conn);
    c.setup.gen++;
    memset(static_cast<void*>(&c.ctl), 0, sizeof c - sizeof c.setup);
    uint32_t& hw = LgrHdr(world_.lgr(kAsClient)).conns_hw;
    if (hw <= conn) hw = conn + 1;
    pstn_ep& ep = world_.s().eps.Own(EpIndex(idx));
    ep.lgr_idx = kAsClient;
    ep.conn_idx = conn;
    ep.conn_gen = c.setup.gen;
    ep.side = 0;
    ref.conn_ep[conn] = idx + 1;
    ep.state = PSTN_EP_ESTABLISHED;
    c.setup.state = PSTN_CS_SYN;
    *PeerEnd(kAsClient, conn).ep = {};
  }

  static void IsAnswer(long r, size_t want) {
    FUZZ_CHECK(r <= static_cast<long>(want));
    FUZZ_CHECK(r >= 0 || r == -EAGAIN || r == -ECONNRESET || r == -EPIPE || r == -ENOTCONN ||
               r == -EINVAL);
  }

  void Send(pstn_ep& ep, size_t bytes, int flags) {
    const iovec iov = {buffer_.data(), bytes};
    Call call(g_family, ep);
    IsAnswer(StreamSend(g_family, call, &iov, 1, flags | MSG_DONTWAIT), bytes);
  }

  // The buffer is exactly as long as what is asked for, so that a sanitizer sees a byte too many.
  void Receive(pstn_ep& ep, size_t want, uint8_t kind) {
    const int flags[] = {0, 0, 0, 0, MSG_PEEK, MSG_TRUNC, MSG_PEEK | MSG_TRUNC, MSG_OOB};
    want = want % kBuffer + 1;
    std::vector<uint8_t> exact(want);
    const iovec iov = {exact.data(), want};
    Call call(g_family, ep);
    IsAnswer(StreamRecv(g_family, call, &iov, 1, flags[kind % 8] | MSG_DONTWAIT), want);
  }

  void Look(pstn_ep& ep) {
    (void)Readiness(g_family, ep);
    int n = -1;
    FUZZ_CHECK(SockIoctl(g_family, -1, ep, FIONREAD, &n) == 0 && n >= 0 &&
               n <= static_cast<int>(2 * PSTN_RING2_BYTES));
    (void)SockIoctl(g_family, -1, ep, SIOCATMARK, &n);
    FUZZ_CHECK(SockIoctl(g_family, -1, ep, TIOCOUTQ, &n) == 0 && n >= 0);
    ep.rcvlowat = ep.rcvlowat == 0 ? 1000 : 0;
  }

  void Watch(pstn_ep& ep) {
    StackMap& s = world_.s();
    Guard g(ep.item_lock);
    if (ep.item_head != PSTN_NONE) return;
    const uint32_t i = TakeItem(s);
    if (i == PSTN_NONE) return;
    SetGuard h(s, world_.set());
    pstn_item& item = s.items.Own(ItemIndex(i));
    item = {};
    item.ep_idx = EpIdx(s, ep);
    item.epoll_idx = world_.set_idx;
    item.events = EPOLLIN | EPOLLOUT;
    LinkItem(s, ep, world_.set(), i);
    RenotifyLocked(g_family, ep);
    PushReady(s, world_.set(), i);
  }

  void Events() {
    StackMap& s = world_.s();
    TakePosts(g_family.view, world_.set(), world_.set_idx);
    for (uint32_t rounds = world_.set().ready_count; rounds != 0; rounds--) {
      const uint32_t i = PopReady(s, world_.set());
      FUZZ_CHECK(i < s.items.count());
      pstn_ep* ep = EpAt(s, s.items.Own(ItemIndex(i)).ep_idx);
      FUZZ_CHECK(ep != nullptr && ep->state != PSTN_EP_FREE);
      (void)Readiness(g_family, *ep);
    }
    FUZZ_CHECK(world_.set().ready_count == 0 && world_.set().ready_head == PSTN_NONE);
  }

  static void Close(pstn_ep& ep) { CloseEp(g_family, ep); }

  void Sleep(const Step& in) {
    const uint32_t w = world_.set().waiter_idx;
    MarkWaiter(g_family, w, PSTN_EV_USED | (in.b & 1u ? PSTN_EV_SYN : 0u));
    AnnounceSleep(g_family, w, true);
    (void)WaiterHasNews(g_family, w, true);
    AnnounceSleep(g_family, w, false);
  }

  // ---------------------------------------------------------------- the third party
  // Bytes each way between two peers that keep to the rules.
  void HonestTransfer(size_t bytes) {
    bytes = bytes % 60000 + 1;
    if (honest_ == PSTN_NONE) {
      world_.s().eps.Own(EpIndex(world_.listener)).defer_accept = 0;
      Step plain = {};
      Connect(kHonest, 7, plain);
      AdmitSyns(g_family);
      const uint32_t embryo = world_.ref(kHonest).conn_ep[7];
      FUZZ_CHECK(embryo != 0);
      while (world_.s().eps.Own(EpIndex(embryo - 1)).state == PSTN_EP_EMBRYO)
        FUZZ_CHECK(Accept(true));
      honest_ = embryo - 1;
    }
    pstn_ep& ours = world_.s().eps.Own(EpIndex(honest_));
    std::vector<uint8_t> out(bytes), in(bytes);
    for (size_t i = 0; i < bytes; i++)
      out[i] = static_cast<uint8_t>((sent_ + i) * 0x9e3779b97f4a7c15u >> 56);
    sent_ += bytes;
    const iovec from = {out.data(), bytes}, to = {in.data(), bytes};
    IovCursor written(&from, 1), read(&to, 1);
    Call call(g_family, ours);
    FUZZ_CHECK(RingWrite(PeerEnd(kHonest, 7), written, {}, Growth::kNow) == bytes);
    FUZZ_CHECK(StreamRecv(g_family, call, &to, 1, MSG_DONTWAIT) == static_cast<long>(bytes) &&
               in == out);
    in.assign(bytes, 0);
    FUZZ_CHECK(StreamSend(g_family, call, &from, 1, MSG_DONTWAIT) == static_cast<long>(bytes));
    FUZZ_CHECK(RingRead(PeerEnd(kHonest, 7), &read, bytes, ReadMode::kTake).bytes == bytes &&
               in == out);
  }

  // ---------------------------------------------------------------- the end
  // posternd finds the hostile peers dead. Whatever they left: the reader comes to an end.
  void TheyDie() {
    if (world_.dead) return;
    world_.dead = true;
    for (uint32_t i = 0; i < kHonest; i++) MarkPeerDead(g_family, i);
    world_.Validate();
    StackMap& s = world_.s();
    std::vector<uint8_t> much(kBuffer);
    const iovec iov = {much.data(), much.size()};
    for (uint32_t i = 0; i < s.hdr.eps.hw; i++) {
      pstn_ep& ep = s.eps.Own(EpIndex(i));
      if (ep.state != PSTN_EP_ESTABLISHED || ep.lgr_idx == kHonest) continue;
      FUZZ_CHECK((Readiness(g_family, ep) & EPOLLIN) != 0);
      Call call(g_family, ep);
      long r = 1;
      for (int reads = 0; r > 0; reads++) {
        FUZZ_CHECK(reads < 70000);
        r = StreamRecv(g_family, call, &iov, 1, MSG_DONTWAIT);
      }
      FUZZ_CHECK(r == 0 || r == -ECONNRESET || r == -EPIPE);
    }
  }

  // Everything is closed, and nothing of it is left.
  void End() {
    TheyDie();
    StackMap& s = world_.s();
    while (Accept(false)) {
    }
    for (uint32_t i = 0; i < s.hdr.eps.hw; i++) {
      if (s.eps.Own(EpIndex(i)).state == PSTN_EP_ESTABLISHED &&
          s.eps.Own(EpIndex(i)).lgr_idx != kHonest)
        CloseEp(g_family, s.eps.Own(EpIndex(i)));
    }
    world_.Validate();
    for (uint32_t i = 0; i < kHonest; i++) {
      FUZZ_CHECK(LgrIdle(s.lgrs.Own(LgrIndex(i))));
      FUZZ_CHECK(world_.ref(i).rings == 0 || world_.ref(i).zombies != 0);
    }
    HonestTransfer(100);
  }

  LgrWorld world_;
  Peer peer_[kLgrs];
  uint64_t sent_ = 0, received_ = 0;
  uint32_t honest_ = PSTN_NONE;
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(kBuffer);
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
