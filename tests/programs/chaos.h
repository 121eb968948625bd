// SPDX-License-Identifier: Apache-2.0
// chaos.h - parts of the chaos program: a connection whose bytes are known by their position, and
// the ways in which it changes hands while they flow.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace chaos {

// One end of a connection. Plain data: it goes over a socket to another process.
struct Stream {
  int fd;
  uint32_t hops;  // times it may still change hands
  uint64_t rng;
  uint64_t out_seed, sent, to_send;
  uint64_t in_seed, got, to_get;
  bool shut, ended;
};

inline uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
inline uint64_t Next(uint64_t& rng) { return Mix(rng++); }
inline uint64_t Below(uint64_t& rng, uint64_t n) { return Next(rng) % n; }

// Prints what is wrong and ends the process with code 1. Every other end is code 0 or a signal.
[[noreturn]] void Bad(const Stream* s, const char* what, long value);

// Carries the stream to its end, whoever holds it then. Returns when all bytes have gone both ways.
void Exchange(Stream s);

// ---- bytes (chaos_io.cc)
// One call of a random kind. What it returns: bytes, 0 at the end, or -errno.
long SendSome(Stream& s, bool may_block);
long RecvSome(Stream& s, bool may_block);
// Waits until `events` (POLLIN, POLLOUT) are there, by one of the calls that can.
void WaitFor(Stream& s, short events);

// ---- hands (chaos_hands.cc)
// Starts the processes that streams are handed to. `stranger`: before this program's first socket.
void StartAdopter(bool stranger);
// Perhaps changes the descriptor, or the process. True: the stream is at its end, elsewhere.
bool PassOn(Stream& s);

}  // namespace chaos
