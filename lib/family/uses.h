// SPDX-License-Identifier: Apache-2.0
// uses.h - what the calls of a process have in use, and what keeps it for them (endpoint/call.h).
#pragma once
#include <pthread.h>

#include "family/family.h"

namespace postern {

struct Use {
  uint32_t entry;   // (a) PSTN_FD_*: what is in use; 0: nothing
  uint32_t owed;    // (a) 1 + its place among the parked, since another thread closed the number
  uint32_t kernel;  // (a) it asks the kernel by number: see ByNumber
  uintptr_t frame;  // the caller's: uses of functions that are over lie above
};
struct ManyUse {  // as above, for a poll() that sleeps
  uint32_t entry, owed;
};

inline constexpr uint32_t kUses = 6;  // calls of one thread at a time: those of its handlers

struct alignas(64) ThreadUses {
  uint32_t tid;    // (a) 0: no thread's
  uint32_t depth;  // of `at`, that are in use; the thread's own
  Family* fam;     // whose calls they are
  Use at[kUses];
  // A poll() that sleeps. The thread alone changes it, under `many_lock`, as others read it there.
  ManyUse* many;
  uintptr_t many_frame;
  uint32_t many_room;
  uint32_t many_count;  // (a)
  pstn_lock many_lock;
};
static_assert(sizeof(ThreadUses) <= 256);

// References that calls in progress have taken over from numbers that were closed.
struct Parked {
  int number;    // ours; -1: none was to be had, at the program's limit
  bool is_file;  // it is one of the file's; else it only keeps the reference
  uint32_t entry;
  uint32_t users;  // 0: free
};

inline constexpr uint32_t kUsesChunk = 128, kUsesChunks = 8192;

struct Uses {
  pstn_lock parked_lock;
  uint32_t parked_hw PSTN_GUARDED_BY(parked_lock);
  uint32_t parked_hand PSTN_GUARDED_BY(parked_lock);  // the search for a free one goes on from here
  uint32_t records;                                   // (a) that were ever in use
  bool has_key;
  pthread_key_t thread_key;
  Parked parked[kParkedMax] PSTN_GUARDED_BY(parked_lock);
  ThreadUses first[kUsesChunk];
  ThreadUses* chunks[kUsesChunks];  // (a) the first is `first`
};

}  // namespace postern
