// SPDX-License-Identifier: Apache-2.0
// fdcache.h - kernel sockets of closed connections, ready for the next.
#pragma once

#include "family/family.h"

namespace postern {

struct CachedFd {
  int fd;  // -1: none
  // Bound to this address and ephemeral port; port 0 = unbound.
  pstn_addr name;
  bool cloexec;
  // The connection that had the port: until its peer has closed, too, the names are taken.
  uint32_t lgr_idx, conn_idx, conn_gen;
};
inline constexpr uint32_t kCacheMax = 4096;
struct Shelf {
  CachedFd at[kCacheMax];
  uint32_t count;
};
struct FdCache {
  pstn_lock lock;
  Shelf shelves[2][2] PSTN_GUARDED_BY(lock);  // [family is IPv6][bound]
  uint32_t turn PSTN_GUARDED_BY(lock);        // of Pop
};
inline constexpr CachedFd kNoCachedFd = {-1, {}, false, PSTN_NONE, 0, 0};
CachedFd CacheTake(Family& fam, uint32_t family, bool want_bound, bool cloexec);
bool CachePut(Family& fam, uint32_t family, const CachedFd& c);
// Closes those with that port whose connection the kernel would have nothing left of (TIME_WAIT):
// the program wants it. False: there is none.
bool CacheGivePort(Family& fam, uint16_t port);
bool CacheFlush(Family& fam);           // EMFILE, exec. Whether there were any
void CacheForget(Family& fam);          // child of fork: closes its copies
void CacheMarkCloexec(Family& fam);     // before posix_spawn
void CacheRemove(Family& fam, int fd);  // the number is being taken for something else

}  // namespace postern
