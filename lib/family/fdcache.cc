// SPDX-License-Identifier: Apache-2.0
// fdcache.cc - kernel sockets of closed connections, kept so that the next needs no system call.
//
// Clients' sockets stay bound to the address and the ephemeral port that they were given, so that a
// name is unique and really reserved, and still costs a bind() only once. Two connections to one
// server never have the same name at a time: the one before must have ended on both sides. Only
// sockets go in to which no other number refers (no dup, no fork), and of which the kernel knows
// nothing (no option, no connection).
#include <utility>

#include "base/sys.h"
#include "family/family.h"
#include "family/fdcache.h"
#include "family/fdtab.h"
#include "family/local_lock.h"

namespace postern {
namespace {

PSTN_LOCK_ENTRY(cache_lock, fam.cache->lock, nullptr);

Shelf& ShelfFor(Family& fam, uint32_t family, bool bound) PSTN_REQUIRES(fam.cache->lock) {
  return fam.cache->shelves[family == AF_INET6 ? 1 : 0][bound ? 1 : 0];
}

template <typename Fn>
void Each(Family& fam, Fn fn) PSTN_REQUIRES(fam.cache->lock) {
  for (auto& row : fam.cache->shelves) {
    for (Shelf& shelf : row) fn(shelf);
  }
}

void CloseAll(Family& fam, Shelf& shelf) {
  for (uint32_t i = 0; i < shelf.count; i++) {
    (void)CloseClaimed(fam, shelf.at[i].fd);
  }
  shelf.count = 0;
}

// The peer's word decides; one that lies costs us a socket() here and there.
bool IsOver(Family& fam, const CachedFd& c) {
  if (c.lgr_idx == PSTN_NONE) return true;
  uint8_t* base = LgrBase(fam.view, c.lgr_idx);
  if (base == nullptr) return true;
  const pstn_conn_setup& setup = LgrConn(base, c.conn_idx).setup;
  const uint32_t state = LoadAcquire(setup.state);  // [C1]
  return LoadRelaxed(setup.gen) != c.conn_gen ||
         (state != PSTN_CS_CLIENT_GONE && state != PSTN_CS_SYN_GONE);
}

constexpr uint32_t kTries = 4;

// The last one in; where that can't serve yet, others in turn.
CachedFd Pop(Family& fam, Shelf& shelf) PSTN_REQUIRES(fam.cache->lock) {
  for (uint32_t i = 0; i < kTries && i < shelf.count; i++) {
    CachedFd& last = shelf.at[shelf.count - 1];
    if (IsOver(fam, last)) return shelf.at[--shelf.count];
    std::swap(last, shelf.at[fam.cache->turn++ % shelf.count]);
  }
  return kNoCachedFd;
}

// For an accepted connection, which has another name than its socket.
CachedFd PopAny(Family& fam, Shelf& shelf) PSTN_REQUIRES(fam.cache->lock) {
  const CachedFd over = Pop(fam, shelf);
  return over.fd >= 0 || shelf.count == 0 ? over : shelf.at[--shelf.count];
}

}  // namespace

CachedFd CacheTake(Family& fam, uint32_t family, bool want_bound, bool cloexec) {
  CachedFd got = kNoCachedFd;
  Lock(fam.cache->lock);
  got = Pop(fam, ShelfFor(fam, family, want_bound));
  // One that is kept has a number, which would be missing at the low end: any serves.
  if (got.fd < 0) got = PopAny(fam, ShelfFor(fam, family, !want_bound));
  Unlock(fam.cache->lock);
  if (got.fd >= 0 && got.cloexec != cloexec) {
    if (sys::Fcntl(got.fd, F_SETFD, cloexec ? FD_CLOEXEC : 0) < 0) return kNoCachedFd;
    got.cloexec = cloexec;
  }
  return got;
}

bool CachePut(Family& fam, uint32_t family, const CachedFd& c) {
  if (c.fd <= 2) return false;  // programs count on getting 0, 1 and 2 back
  uint64_t limit = static_cast<uint64_t>(fam.opt.fdcache_max);
  if (limit > kCacheMax) limit = kCacheMax;
  Guard g(fam.cache->lock);
  Shelf& shelf = ShelfFor(fam, family, c.name.port != 0);
  if (shelf.count >= limit) return false;
  shelf.at[shelf.count++] = c;
  MarkPrivate(fam, c.fd, PSTN_FD_CACHED);
  return true;
}

namespace {

// False, too, where another connection has had its place since.
bool LeftNothing(Family& fam, const CachedFd& c) {
  uint8_t* base = c.lgr_idx != PSTN_NONE ? LgrBase(fam.view, c.lgr_idx) : nullptr;
  if (base == nullptr) return false;
  const pstn_conn& conn = LgrConn(base, c.conn_idx);
  const uint32_t own = LoadAcquire(conn.ctl[0].flags);   // [C2]
  const uint32_t peer = LoadAcquire(conn.ctl[1].flags);  // [C2]
  return LoadRelaxed(conn.setup.gen) == c.conn_gen &&
         ((own & (PSTN_CF_SECOND | PSTN_CF_RST)) != 0 || (peer & PSTN_CF_RST) != 0);
}

}  // namespace

bool CacheGivePort(Family& fam, uint16_t port) {
  TableChange change(fam);
  Guard g(fam.cache->lock);
  bool given = false;
  Each(fam, [&](Shelf& shelf) {
    for (uint32_t i = shelf.count; i-- != 0;) {
      if (shelf.at[i].name.port != port || !LeftNothing(fam, shelf.at[i])) continue;
      (void)CloseClaimed(fam, shelf.at[i].fd);
      shelf.at[i] = shelf.at[--shelf.count];
      given = true;
    }
  });
  return given;
}

bool CacheFlush(Family& fam) {
  bool any = false;
  Guard g(fam.cache->lock);
  Each(fam, [&](Shelf& shelf) {
    any = any || shelf.count != 0;
    CloseAll(fam, shelf);
  });
  return any;
}

void CacheForget(Family& fam) {
  AssertHeld(fam.cache->lock);  // the child has one thread
  Each(fam, [&fam](Shelf& shelf) { CloseAll(fam, shelf); });
}

void CacheMarkCloexec(Family& fam) {
  Guard g(fam.cache->lock);
  Each(fam, [](Shelf& shelf) {
    for (uint32_t i = 0; i < shelf.count; i++) {
      if (!shelf.at[i].cloexec && sys::Fcntl(shelf.at[i].fd, F_SETFD, FD_CLOEXEC) == 0)
        shelf.at[i].cloexec = true;
    }
  });
}

void CacheRemove(Family& fam, int fd) {
  Guard g(fam.cache->lock);
  Each(fam, [&](Shelf& shelf) {
    for (uint32_t i = 0; i < shelf.count; i++) {
      if (shelf.at[i].fd != fd) continue;
      shelf.at[i] = shelf.at[--shelf.count];
      MarkPrivate(fam, fd, 0);
      return;
    }
  });
}

}  // namespace postern
