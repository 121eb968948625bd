// SPDX-License-Identifier: Apache-2.0
// proto.h - messages between a process (or posternctl) and posternd.
//
// A SOCK_SEQPACKET Unix socket, <runtime dir>/posternd.sock; one struct Msg a packet, at most one
// fd beside it (SCM_RIGHTS). A request carries a `seq` that its reply repeats; kLgr is also pushed
// unasked, with seq 0. posternd takes pid and uid from SO_PEERCRED, never from the message.
#pragma once
#include <cstdint>

#include "abi/postern_abi.h"

namespace postern::ctl {

inline constexpr uint32_t kProtoVersion = 1;

enum class Type : uint32_t {
  kHello = 1,   // uuid = stack, a = slot, fd = stack memfd. Reply: fd = directory memfd
  kListen,      // a = ep, b = ep gen, c = backlog, fd = kernel's listening socket. Reply: status
  kUnlisten,    // a = ep, b = ep gen. Reply: status, after the entry is gone
  kIntroduce,   // uuid = server stack. Reply: a = lgr index in the asker's stack, fd = its memfd
  kLgr,         // pushed: a = lgr index in your stack, uuid = peer, fd = its memfd
  kGetLgr,      // a = lgr index. Reply: fd
  kAddLgr,      // after a restart of posternd: a = lgr index, fd = memfd. Reply: status
  kStatus,      // posternctl: a = 0 status, 1 ss, 2 explain (b = pid). Reply: fd = memfd with JSON
  kChildSlot,   // a = slot, b = pid of a child that may not come to say hello. No reply
  kQuit,        // posternctl: leave when no client is left. Reply: status
  kExport,      // a = ep, b = ep gen, fd = its kernel socket: it leaves the family (sock/export.cc);
                // or a = ~0: the fd was taken from process b of another family, where it is number c.
                // Handed to the stack's keeper with a seq of posternd's own. Reply: status
  kKeeper,      // the keeper, on a line of its own: uuid = stack. No reply; kExport comes here
};

struct Msg {
  uint32_t version = kProtoVersion;
  Type type{};
  uint32_t seq = 0;
  int32_t status = 0;  // reply: 0 or a positive errno
  uint32_t a = 0, b = 0, c = 0, d = 0;
  pstn_uuid uuid{};
  pstn_addr addr{};
  uint64_t zero[4]{};
};
static_assert(sizeof(Msg) == 104);

}  // namespace postern::ctl
