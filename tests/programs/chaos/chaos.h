// SPDX-License-Identifier: Apache-2.0
// chaos.h - parts of the chaos program: a connection whose bytes are known by their position, and
// the ways in which it changes hands while they flow.
#pragma once
#include <errno.h>
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
  bool breaks;  // the client may reset it anywhere
};

inline uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
inline uint64_t Next(uint64_t& rng) { return Mix(rng++); }
inline uint64_t Below(uint64_t& rng, uint64_t n) { return Next(rng) % n; }

// The call was interrupted. Linux 6.18 has been seen to let its own ERESTARTSYS out of recv().
inline bool Interrupted() { return errno == EINTR || errno == 512; }

// Prints what is wrong and ends the process with code 1. Every other end is code 0 or a signal.
[[noreturn]] void Bad(const Stream* s, const char* what, long value);

// Carries the stream to its end, whichever process holds it then. Returns when all bytes have gone
// both ways.
void Exchange(Stream s);
// Its parts: one call in one direction; whether all is done.
void Turn(Stream& s);
inline bool Finished(const Stream& s) { return s.shut && s.ended; }
// A timer interrupts whatever call is under way; handlers with SA_RESTART or without.
void StartSignals(uint64_t seed);

// ---- bytes (chaos_io.cc)
// One call of a random kind. What it returns: bytes, 0 at the end, or -errno.
long SendSome(Stream& s, bool may_block);
long RecvSome(Stream& s, bool may_block);

// ---- waits (chaos_wait.cc)
// Waits until `events` (POLLIN, POLLOUT) are there, by one of the calls that can.
void WaitFor(Stream& s, short events);
// The set that the thread keeps between waits is closed.
void ForgetSet();

// ---- hands (chaos_hands.cc)
// Starts the processes that streams are handed to. `stranger`: before this program's first socket.
void StartAdopter(bool stranger);
// Perhaps changes the descriptor, or the process. True: the stream is at its end, elsewhere.
bool PassOn(Stream& s);
// Fork; the child knows that it is one, and has signals of its own in half of the cases.
pid_t Fork(Stream& s);
// Waits for a child that carries the stream to its end.
void AwaitChild(const Stream& s, pid_t child);

// ---- images (chaos_image.cc)
void KnowImages(const char* self);
// A child becomes another program, this one or its static twin, and goes on.
enum class Start : unsigned { kFork, kVfork, kSpawn };
bool ToImage(Stream& s, Start how);
// What such a program does with its argument.
[[noreturn]] void Carry(const char* text);

// ---- several at once (chaos_share.cc)
extern bool may_start_threads;
bool InTurns(Stream& s);        // two processes hold the connection and use it in turns
bool InHalves(Stream& s);       // one thread sends, one receives
void WithBystander(Stream& s);  // a child that only looks, and is killed

// ---- deliberate errors (chaos_wrong.cc)
// What a sanitizer has to report if it sees into the library. False: no such error.
bool DoWrong(const char* what);

}  // namespace chaos
