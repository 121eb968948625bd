// SPDX-License-Identifier: Apache-2.0
// hostile_strategies.cc - what a hostile client writes, one idea each. The victim is side 1, we are
// side 0. A strategy is called again and again, and writes a little each time.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "hostile.h"

namespace hostile {
namespace {

constexpr uint32_t kMine = 0, kVictim = 1;
constexpr uint32_t kConnsUsed = 16;  // our connections are among the first
constexpr int F_ADD_SEALS_NUMBER = 1033;

template <typename T, typename U>
void Put(T& at, U value) {
  __atomic_store_n(&at, static_cast<T>(value), __ATOMIC_RELEASE);
}

pstn_conn& Some(const Link& l, Random& r) { return l.conn(r.Below(kConnsUsed)); }

uint64_t SlabOf(uint32_t side) { return PSTN_LGR_SLAB_OFF + side * PSTN_SLAB_BYTES; }

// The ring that one of our connections writes to; null: it has none.
uint8_t* Ring(const Link& l, const pstn_conn& c, uint32_t* bytes) {
  const uint64_t ring = __atomic_load_n(&c.ctl[kMine].ring, __ATOMIC_ACQUIRE);
  const uint64_t page = ring & PSTN_RING_PLACE, cls = ring >> PSTN_RING_CLASS_SHIFT & 0xfu;
  *bytes = cls == 0 ? PSTN_RING0_BYTES : cls == 1 ? PSTN_RING1_BYTES : PSTN_RING2_BYTES;
  return page == 0 || cls > 2 || page * 4096 + *bytes > PSTN_LGR_BYTES ? nullptr
                                                                       : l.base + page * 4096;
}

void Header(const Link& l, Random& r, uint64_t value) {
  uint32_t bytes;
  uint8_t* ring = Ring(l, Some(l, r), &bytes);
  if (ring == nullptr) return;
  const uint32_t line = r.Below(4) != 0 ? r.Below(64) : r.Below(bytes / 64);
  Put(*reinterpret_cast<uint64_t*>(ring + line * 64), value);
}

void Rest() { usleep(50); }

// Busy, and harmless.
void None(const Link&, Random& r) {
  static uint64_t own[4096];
  for (uint64_t& word : own) Put(word, r.Next());
}

void Cursor(const Link& l, Random& r, bool forward) {
  pstn_conn& c = Some(l, r);
  const uint64_t read = __atomic_load_n(&c.pos[kMine].read, __ATOMIC_RELAXED);
  const uint64_t by = 64ull << r.Below(15);
  Put(c.pos[kMine].read,
      (read & ~0xffffffffull) | static_cast<uint32_t>(forward ? read + by : read - by));
}
void CursorBack(const Link& l, Random& r) { Cursor(l, r, false); }
void CursorForward(const Link& l, Random& r) { Cursor(l, r, true); }
void WrapJump(const Link& l, Random& r) {
  Header(l, r, r.Below(2) != 0 ? PSTN_REC_WRAP : PSTN_REC_SWITCH);
}
void LengthTooLarge(const Link& l, Random& r) {
  Header(l, r, r.Below(2) != 0 ? r.Next() : 4096u << r.Below(12));
}
void LengthZero(const Link& l, Random& r) { Header(l, r, 0); }
void LengthOff(const Link& l, Random& r) { Header(l, r, 1 + r.Below(5000)); }
void Flags(const Link& l, Random& r) {
  Put(Some(l, r).ctl[kMine].flags, r.Below(2) != 0 ? PSTN_CF_FIN | PSTN_CF_RST : r.Below(32));
}
void VictimsFlags(const Link& l, Random& r) { Put(Some(l, r).ctl[kVictim].flags, r.Next()); }
void ControlLines(const Link& l, Random& r) {
  pstn_conn& c = Some(l, r);
  reinterpret_cast<uint32_t*>(&c.ctl[r.Below(2)])[r.Below(16)] =
      static_cast<uint32_t>(r.Next() >> r.Below(32));
}
void Urgent(const Link& l, Random& r) {
  Put(Some(l, r).ctl[kMine].urgent, r.Next() >> r.Below(64));
}

void SynBits(const Link& l, Random&) {
  pstn_evmap& map = l.map(kVictim, PSTN_EVMAP_SYN);
  for (uint64_t& leaf : map.leaf) Put(leaf, ~0ull);
  Put(map.summary, ~0ull);
}

// Connections that no client has made, in slots that nobody uses; `listener` and what it says of
// itself may be right.
void Syn(const Link& l, Random& r, uint32_t listener, uint32_t gen) {
  const uint32_t i = kConnsUsed + r.Below(PSTN_CONNS - kConnsUsed);
  pstn_conn& c = l.conn(i);
  c.setup.listener_idx = listener;
  c.setup.listener_gen = gen;
  c.ctl[kMine].syn_ns = r.Next() >> r.Below(64);
  Put(c.setup.gen, r.Next());
  Put(c.setup.state, r.Below(8) != 0 ? uint32_t{PSTN_CS_SYN} : r.Below(8));
  __atomic_fetch_or(&l.map(kVictim, 0).leaf[i / 64], 1ull << (i % 64), __ATOMIC_SEQ_CST);
  __atomic_fetch_or(&l.map(kVictim, 0).summary, 1ull << (i / 64), __ATOMIC_SEQ_CST);
}
void SynsNowhere(const Link& l, Random& r) {
  Syn(l, r, static_cast<uint32_t>(r.Next()), static_cast<uint32_t>(r.Next()));
}
void SynsForged(const Link& l, Random& r) {
  Syn(l, r, l.conn(0).setup.listener_idx, l.conn(0).setup.listener_gen);
  if (r.Below(16) == 0) Put(l.conn(r.Below(PSTN_CONNS)).setup.state, r.Below(8));
}

// Clients that wait for a place, and say so.
void WaitsForged(const Link& l, Random& r) {
  Syn(l, r, l.conn(0).setup.listener_idx, l.conn(0).setup.listener_gen);
  Put(l.conn(kConnsUsed + r.Below(PSTN_CONNS - kConnsUsed)).setup.state, PSTN_CS_WAITS);
}
// How many places of the victim's queue are taken.
void Places(const Link&, Random& r) {
  static pstn_queues* const queues = Queues();
  for (pstn_places& place : queues->at) {
    if (&place - queues->at < 64) Put(place.taken, r.Below(4) != 0 ? ~0u : r.Next() >> r.Below(64));
  }
}

void EventBits(const Link& l, Random&) {
  for (uint32_t w = 0; w < 8; w++) {
    pstn_evmap& map = l.map(kVictim, w);
    for (uint64_t& leaf : map.leaf) Put(leaf, ~0ull);
    Put(map.summary, ~0ull);
  }
}

// Everybody on our side wants to hear of everything and sleeps: the victim has to ring them all.
void AllAsleep(const Link& l, Random& r) {
  Put(l.head().waiters_hw[kMine], PSTN_WAITERS);
  for (uint32_t w = 0; w < PSTN_WAITERS; w++) {
    Put(l.map(kMine, w).in_use, PSTN_EV_USED | PSTN_EV_SYN);
    Put(l.map(kMine, w).sleeping, 1);
  }
  pstn_conn_ctl& ctl = Some(l, r).ctl[kMine];
  Put(ctl.rx_notify, PSTN_NOTIFY_ALL);
  Put(ctl.rx_wait, 1);
  Put(ctl.tx_wait, 3);
}
void VictimsSleep(const Link& l, Random& r) {
  for (uint32_t w = 0; w < 8; w++) {
    Put(l.map(kVictim, w).sleeping, r.Below(2));
    Put(l.map(kVictim, w).in_use, r.Below(4));
    Put(l.map(kVictim, w).nonce, r.Next());
  }
  Put(l.head().waiters_hw[kVictim], r.Next());
}

void Rings(const Link& l, Random& r) {
  const uint64_t cls = r.Below(5),
                 page = SlabOf(r.Below(2)) / 4096 + (r.Below(2) != 0 ? 0 : r.Below(70000));
  const uint64_t flags = r.Below(2) != 0 ? PSTN_RING_F_SWITCH : 0, gen = r.Below(8);
  const uint64_t place = r.Below(4) != 0
                             ? cls << PSTN_RING_CLASS_SHIFT | page
                             : Some(l, r).ctl[r.Below(2)].ring &
                                   ((1ull << 44) - 1);  // another connection's, or the victim's
  pstn_conn& c = Some(l, r);
  Put(r.Below(2) != 0 ? c.ctl[kMine].ring : c.ctl[kMine].prev_ring,
      gen << PSTN_RING_GEN_SHIFT | flags | place);
}
void Addresses(const Link& l, Random& r) {
  pstn_conn& c = Some(l, r);
  reinterpret_cast<uint32_t*>(&c.setup)[2 + r.Below(14)] = static_cast<uint32_t>(r.Next());
}
void States(const Link& l, Random& r) { Put(Some(l, r).setup.state, r.Below(10)); }
void Futexes(const Link& l, Random& r) {
  pstn_conn_ctl& ctl = Some(l, r).ctl[r.Below(2)];
  Put(ctl.rx_wait, r.Below(2) != 0 ? r.Next() : 0);
  Put(ctl.tx_wait, r.Next());
}

// Datagrams to the victim's doorbells.
void Doorbells(const Link& l, Random& r) {
  static const int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  for (uint32_t w = 1; w < 4; w++) {
    sockaddr_un a = {};
    a.sun_family = AF_UNIX;
    const pstn_uuid& id = l.head().stack[kVictim];
    const int n =
        snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "postern/%016llx%016llx/%016llx/%016llx",
                 static_cast<unsigned long long>(id.hi), static_cast<unsigned long long>(id.lo),
                 static_cast<unsigned long long>(w),
                 static_cast<unsigned long long>(l.map(kVictim, w).nonce));
    char data[4096] = {};
    const auto length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
    (void)sendto(sender, data, 1 + r.Below(sizeof data - 1), MSG_DONTWAIT,
                 reinterpret_cast<sockaddr*>(&a), length);
  }
}

// What the memory's descriptor allows: nothing that makes it shorter, longer or read-only; holes,
// and those must do no harm.
void Memory(const Link& l, Random& r) {
  if (l.fd < 0) Die("no descriptor of the link group");
  const auto refused = [](long result) {
    if (result == 0) _exit(3);
  };
  switch (r.Below(6)) {
    case 0:
      return refused(ftruncate(l.fd, r.Below(2) != 0 ? 0 : static_cast<off_t>(PSTN_LGR_BYTES) * 2));
    case 1:
      return refused(fcntl(l.fd, F_ADD_SEALS_NUMBER, 1 << r.Below(5)));
    case 2:
      return refused(fallocate(l.fd, 0, static_cast<off_t>(PSTN_LGR_BYTES), 4096));
    case 3:
      return refused(write(l.fd, "", 0) == 0 &&
                             pwrite(l.fd, "x", 1, static_cast<off_t>(PSTN_LGR_BYTES)) > 0
                         ? 0
                         : -1);
    case 4:  // the connections, and what the victim has written there
      (void)fallocate(l.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      static_cast<off_t>(PSTN_LGR_CONN_OFF), 8192);
      return;
    default:
      (void)madvise(l.base + SlabOf(r.Below(2)), 1u << 20, MADV_REMOVE);
      return Rest();
  }
}

void Head(const Link& l, Random& r) {
  uint32_t* words = reinterpret_cast<uint32_t*>(&l.head());
  words[r.Below(sizeof(pstn_lgr_hdr) / 4)] =
      static_cast<uint32_t>(r.Below(2) != 0 ? r.Next() : r.Below(2));
}
void Anything(const Link& l, Random& r) {
  const uint64_t where[] = {0,
                            PSTN_LGR_EVMAP_OFF,
                            PSTN_LGR_EVMAP_OFF + PSTN_LGR_EVMAP_BYTES / 2,
                            PSTN_LGR_CONN_OFF,
                            PSTN_LGR_CONN_OFF,
                            SlabOf(0),
                            SlabOf(1)};
  const uint64_t at = where[r.Below(7)] + r.Below(r.Below(2) != 0 ? 5120 : 300000) / 8 * 8;
  Put(*reinterpret_cast<uint64_t*>(l.base + at), r.Next() >> r.Below(64));
}

struct Named {
  const char* name;
  Strategy strategy;
};
constexpr Named kAll[] = {
    {"none", None},
    {"cursor-back", CursorBack},
    {"cursor-forward", CursorForward},
    {"wrap-jump", WrapJump},
    {"length-too-large", LengthTooLarge},
    {"length-zero", LengthZero},
    {"length-off", LengthOff},
    {"flags", Flags},
    {"victims-flags", VictimsFlags},
    {"control-lines", ControlLines},
    {"urgent", Urgent},
    {"syn-bits", SynBits},
    {"syns-nowhere", SynsNowhere},
    {"syns-forged", SynsForged},
    {"waits-forged", WaitsForged},
    {"places", Places},
    {"event-bits", EventBits},
    {"all-asleep", AllAsleep},
    {"victims-sleep", VictimsSleep},
    {"rings", Rings},
    {"addresses", Addresses},
    {"states", States},
    {"futexes", Futexes},
    {"doorbells", Doorbells},
    {"memory", Memory},
    {"head", Head},
    {"anything", Anything},
};

}  // namespace

Strategy Find(const char* name) {
  for (const Named& n : kAll) {
    if (strcmp(n.name, name) == 0) return n.strategy;
  }
  return nullptr;
}

void List() {
  for (const Named& n : kAll) puts(n.name);
}

}  // namespace hostile
