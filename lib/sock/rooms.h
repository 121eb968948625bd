// SPDX-License-Identifier: Apache-2.0
// rooms.h - all that the rooms keep for one family, in one piece.
#pragma once
#include "endpoint/call.h"
#include "event/epoll_set.h"
#include "event/wait.h"
#include "family/fdcache.h"
#include "offhost/wire_here.h"
#include "peer/peers.h"
#include "stream/bounces.h"

namespace postern {

// Some 11 MB of zeros, of which a program touches a few pages: static, never on a stack.
struct Rooms {
  uint32_t fd[kFdMax];
  uint64_t epolls_made[kFdMax / 64];
  uint64_t epolls_duped[kFdMax / 64];
  FdCache cache;
  Uses uses;
  Sets sets;
  Beds beds;
  Wire wire;
  Peers peers;
  Bounces bounces;
};

constexpr Family FamilyIn(Rooms& rooms) {
  Family fam;
  fam.fd = rooms.fd;
  fam.epolls_made = rooms.epolls_made;
  fam.epolls_duped = rooms.epolls_duped;
  fam.cache = &rooms.cache;
  fam.uses = &rooms.uses;
  fam.sets = &rooms.sets;
  fam.beds = &rooms.beds;
  fam.wire = &rooms.wire;
  fam.peers = &rooms.peers;
  fam.bounces = &rooms.bounces;
  return fam;
}

}  // namespace postern
