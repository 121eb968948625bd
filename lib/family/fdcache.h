// SPDX-License-Identifier: Apache-2.0
// fdcache.h - kernel sockets of closed connections, ready for the next.
#pragma once

#include "family/family.h"

namespace postern {

struct CachedFd {
  int fd = -1;
  uint16_t port = 0;  // bound to this ephemeral port; 0 = unbound
  bool cloexec = false;
  // The connection that had the port: until its peer has closed, too, the names are taken.
  uint32_t lgr_idx = PSTN_NONE, conn_idx = 0, conn_gen = 0;
};
CachedFd CacheTake(Family& fam, uint32_t family, bool want_bound, bool cloexec);
bool CachePut(Family& fam, uint32_t family, const CachedFd& c);
void CacheFlush(Family& fam);   // EMFILE, exec
void CacheForget(Family& fam);  // child of fork: closes its copies
void CacheMarkCloexec();        // before posix_spawn
void CacheRemove(int fd);       // the number is being taken for something else

}  // namespace postern
