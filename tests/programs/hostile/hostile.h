// SPDX-License-Identifier: Apache-2.0
// hostile.h - what the parts of the hostile peer share. See hostile.cc.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "abi/postern_abi.h"

namespace hostile {

// splitmix64, as in tests/unit/smcd/ring_pair.h.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  uint32_t Below(uint64_t limit) { return static_cast<uint32_t>(Next() % limit); }

 private:
  uint64_t state_;
};

// A link group that this process has mapped, as a client; and the descriptor of its memory, or -1.
struct Link {
  uint8_t* base;
  int fd;
  pstn_lgr_hdr& head() const { return *reinterpret_cast<pstn_lgr_hdr*>(base); }
  pstn_evmap& map(uint32_t side, uint32_t w) const {
    return reinterpret_cast<pstn_evmap*>(base + PSTN_LGR_EVMAP_OFF)[side * PSTN_WAITERS + w];
  }
  pstn_conn& conn(uint32_t i) const {
    return reinterpret_cast<pstn_conn*>(base + PSTN_LGR_CONN_OFF)[i];
  }
};

using Strategy = void (*)(const Link&, Random&);
Strategy Find(const char* name);  // null: there is none of that name
void List();

// Roles that know nothing of any of this.
int Victim(int port);
int Honest(int port, double seconds, uint64_t seed);

[[noreturn]] inline void Die(const char* what) {
  perror(what);
  exit(2);
}
int Connect(int port);      // -1: refused
std::vector<Link> Links();  // all that this process has mapped as a client
pstn_queues* Queues();      // where it counts as one

// hostile_promise.cc
int Believer(int port);
int Promiser(int port, bool end);

}  // namespace hostile
