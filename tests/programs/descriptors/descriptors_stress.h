// SPDX-License-Identifier: Apache-2.0
// descriptors_stress.h - threads and processes that take descriptors away from each other's calls.
//
// The numbers kFirst to kFirst + kNumbers - 1 are everybody's: any thread or process receives,
// sends, waits, accepts, connects by them, closes them and puts another descriptor there at any
// time. So a call by number may meet any connection, as over the kernel. What the kernel never
// does is told from the bytes alone: they say which call has sent them.
//
// A run is a row of epochs. In a lossless one each end of each connection has another number that
// nobody else uses (a keeper), nothing resets, and all is read at the end: every byte that a call
// has reported as sent has to be read exactly once. In the other ones connections end anywhere,
// and bytes may be lost, but not come twice, from nowhere, or though they were not sent.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stress {

inline constexpr int kFirst = 100, kNumbers = 12;
inline constexpr int kSharedFd = 290, kFamilyLine = 291, kStrangerLine = 292, kPrivate = 300;
inline constexpr uint32_t kOps = 65536, kOpBytes = 4096, kOrphans = 65536, kSeats = 256;
inline constexpr long kPatienceS = 30;

// One call's piece of what is sent: at most kOpBytes, each 8 bytes of which name it.
struct Op {
  std::atomic<int32_t> sent;  // -1: the call is under way
  std::atomic<uint32_t> bytes;
  std::atomic<uint64_t> read[kOpBytes / 64];  // a bit for each byte
};

enum class Mode : uint32_t {
  kLossless = 1,
  kLossy = 2,
  kFork = 4,
  kExec = 8,
  kSpawn = 16,
  kPass = 32,
  kStranger = 64,
  kEpoll = 128,
  kAll = 255
};

// What the program does wrong itself, once, so that a test sees that it is noticed.
enum class Wrong : uint32_t { kNothing, kChanged, kLost, kTwice };

// Where a thread is, for the dump of a hang.
struct Seat {
  std::atomic<int> tid, pid;  // 0: free
  const char* what;           // of the owner's image
  std::atomic<int> number;
  std::atomic<uint64_t> acts;
  std::atomic<bool> idle;
  char name[32];  // the same, for another image that prints it
};

// In a memfd, with which forked children and other images go on.
struct Shared {
  std::atomic<uint32_t> epoch, ops_begun, orphans, modes, numbers, running;
  std::atomic<bool> stop, lossless, failed;
  std::atomic<Wrong> wrong;
  std::atomic<uint64_t> bytes_sent, bytes_read, taken_away, passed, adopted, children, fresh,
      exchanges;
  std::atomic<uint16_t> port;
  Seat seats[kSeats];
  std::atomic<uint8_t> orphan[kOrphans];  // bytes that were too few to say whose they are
  Op ops[kOps];
};
extern Shared* shared;
inline bool Has(Mode m) { return (shared->modes & static_cast<uint32_t>(m)) != 0; }

inline uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// One thread, of whichever process.
struct Hand {
  uint64_t rng;
  Seat* seat;
  bool may_fork;  // a child makes no children
  uint64_t Below(uint64_t n) { return Mix(rng++) % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  int Number() { return kFirst + static_cast<int>(Below(shared->numbers)); }
};
Seat* TakeSeat();
void LeaveSeat(Seat* seat);
inline void At(Hand& h, const char* what, int number) {
  h.seat->what = what;
  strncpy(h.seat->name, what, sizeof h.seat->name - 1);
  h.seat->number = number;
}

// Prints, and ends the process with code 1.
[[noreturn]] [[gnu::format(printf, 1, 2)]] void Bad(const char* format, ...);
// An error that no call by a number that is taken away can have over the kernel.
void CheckError(const char* what, int number, int error);
long NowMs();

// ---- the ledger (descriptors_ledger.cc)
inline constexpr uint32_t kNoOp = UINT32_MAX;
uint32_t BeginOp(uint32_t bytes, char* to);  // kNoOp: this epoch has no more
void EndOp(uint32_t op, int32_t sent);
// What a call has read by `number`. `peeked`: it has not been taken.
void Take(const char* what, int number, const char* data, size_t bytes, bool peeked);
void CheckEpoch();  // after it, with all threads idle
void ResetEpoch();

// ---- what a thread does (descriptors_acts.cc, descriptors_private.cc, descriptors_take.cc)
void Act(Hand& h);
void Transfer(Hand& h, int number, bool may_block);  // one call that sends or receives
void TakeAway(Hand& h);
void ExchangePrivately(Hand& h);
bool MakePair(int ends[2]);
void MakeNumbers();    // of an epoch
void LoseNumbers();    // after it
void ForgetKeepers();  // in a child: they are the parent's
// Reads what has arrived by the keepers; true: all of them are at their end.
bool Drain();
void ShutKeepers();
void UseKeeper(Hand& h);  // one call by one of them that does not block

// ---- processes (descriptors_family.cc)
void StartAdopter(int line);
void MakeChild(Hand& h);
void Pass(Hand& h);
void Carry(uint64_t seed, uint64_t acts);  // what another image does
extern const char* self;

}  // namespace stress
