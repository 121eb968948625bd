// SPDX-License-Identifier: Apache-2.0
// proto.h - messages between a process (or posternctl) and posternd.
//
// A SOCK_SEQPACKET Unix socket, <runtime dir>/posternd.sock, and the abstract name AbstractName():
// a program that has changed its user or its root directory can't open the path any more. One
// struct Msg a packet, at most one fd beside it (SCM_RIGHTS). A request carries a `seq` that its
// reply repeats; kLgr is also pushed unasked, with seq 0. posternd takes pid and uid from
// SO_PEERCRED, never from the message.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>

#include "abi/postern_abi.h"

namespace postern::ctl {

inline constexpr uint32_t kProtoVersion = 4;

enum class Type : uint32_t {
  kHello = 1,  // uuid = stack, a = slot, b = kHelloSeeks: it asks by kSeek, fd = stack memfd,
               // cookie = a guest's ticket. Reply: fd = directory memfd
  kListen,     // a = ep, b = ep gen, c = backlog, fd = kernel's listening socket. Reply: status
  kUnlisten,   // a = ep, b = ep gen. Reply: status, after the entry is gone
  kIntroduce,  // uuid = server stack, a = how many link groups with it the asker has, all full.
               // Reply: a = lgr index in the asker's stack, fd = its memfd
  kLgr,        // pushed: a = lgr index in your stack, uuid = peer, fd = its memfd
  kGetLgr,     // a = lgr index. Reply: fd
  kAddLgr,     // after a restart of posternd: a = lgr index, fd = memfd. Reply: status
  kStatus,  // posternctl: a = 0 status, 1 ss (b = pid or 0, c = 1: details), 2 explain (b = pid).
            // Reply: fd = memfd with JSON
  kQuit = 10,  // posternctl: leave when no client is left. Reply: status
  // a = ep, b = ep gen, fd = its kernel socket: it leaves the family (peer/export.cc); or a = ~0:
  // the fd was taken from process b of another family, where it is number c; posternd looks whether
  // it is. Handed to the stack's keeper with a seq of posternd's own. Reply: status. d = 1: to go
  // on as a connection of the stack uuid (life/meet.h). Reply: a, b = where the keeper listens,
  // c = tag
  // To the keeper of a stack whose processes have died, of a listener: addr, c = family: where it
  // listens still, by others' socket; fd = any.
  kExport,
  kKeeper,  // the keeper, on a line of its own: uuid = stack. No reply; kExport comes here
  kReap,    // a = slot, b = pid of a child that its parent has waited for; a = ~0: one that has
            // become a guest. Reply: status, after what it held is released

  // Between a user's posternd and the broker (posternd --system). Both ask on this line:
  // kBrokerSeq in a seq says whose number it is.
  kJoin,     // daemon: a = kJoinSeeks: it asks by kSeek; 0: it is told of all listeners. Reply:
             // status, a = the same, or 0 of a broker that tells of all. kHost follows
  kOffer,    // daemon: uuid = stack, a, b, c as in kListen, fd = the listening socket; or again, to
             // a broker that is new, addr, d, cookie instead of it. Reply: status
  kUnoffer,  // daemon: uuid = stack, a, b. Reply: status, when no daemon knows it any more
  kListener,  // broker: another user's listener, which was asked for (kSeek): uuid = stack, a, b,
              // c, addr, d = kListener* flags, cookie. Reply: status
  kGone,      // broker: uuid = stack, a, b. Reply: status, after it is out of the directory
  kLink,  // daemon, then broker to the server's daemon: uuid = server stack, peer = client stack,
          // id = link group, fd = its memfd; d = 1: of another network namespace. Reply: status
  kHaveLink,  // daemon that comes back: uuid = own stack, peer, id, a = its side, fd as in kLink.
              // Reply: status
  kLinkEnd,   // either: id = link group, a = the side that has ended. No reply
  kAlive,     // daemon: uuid = stack, a = pid, fd = pidfd: the process that the broker watches if
              // the daemon ends. No reply

  // For the sake of other network namespaces (docs/protocols/smcd.md).
  kNegotiate,  // a = ep, b = ep gen of a listener, fd = a connection that it has accepted, whose
               // SYN had SMC's option: what becomes of it is posternd's business. No reply
  kHeld,       // pushed: a listener has connections to be fetched; or, a = ~0: look at whether
               // listeners take part in SMC once more
  kTakeHeld,   // a, b as above. Reply: fd = a connection, peer.. as TCP has it; or EAGAIN. Then
               // the same with c = kHeldCame, or kHeldLost: it goes back. No reply
  kAddresses,  // daemon: fd = a NETLINK_ROUTE socket of its network namespace, through which the
               // broker asks the kernel for the addresses there. No reply
  kHost,       // broker: fd = memfd with a pstn_host. No reply
  kBell,  // process, then daemon: uuid = own stack, a = waiter, cookie = nonce; a = ~0: only to
          // ring. Reply: fd = datagram socket in the bells' network namespace, bound to its name
  // The device (broker_device.cc): a token is good for one attach.
  kRegister,  // server's daemon: uuid = stack, a, b, c of a listener; process, then client's
              // daemon: id = link group (process: d = its index), a = connection, b = its gen, uuid
              // = stack. Reply: cookie = token
  kAttach,    // process: cookie = token, fd = the connection by which it came; then client's
              // daemon: cookie, addr = where that connection leads. Reply: uuid = stack, a = ep,
              // b = ep gen, c = backlog; to the process also d = link group's index, fd = its
              // memfd.
              // Server's daemon: uuid = stack. Reply: id, a, b, uuid as registered
  kRelease,   // from its registrant: cookie = token. No reply
  kLearn,  // server's daemon: uuid = stack, a = ep, b = ep gen, addr = where a client of the daemon
           // of stack `peer` has reached it, as in its kAttach, without translation on the way. No
           // reply

  // VIs (docs/vi.md), of a posternd that may make them, else of the broker.
  kVi,  // process, then daemon (uuid = own stack): a = ifindex; b = 0: a new one, c = slots of
        // each ring or 0, fd = packet area; b = 1: one that an earlier posternd has made, fd =
        // its first AF_XDP socket. Reply: fd = the VI's line, with a ViGrant (vi_grant.h) in it.
        // Pushed, by the broker, too: a VI has ended, so there may be one for another stack
  kFilter,  // process, then daemon (uuid): cookie = the VI's id; a = 1, add: fd = the kernel's
            // socket, b = kFilter* flags, c = VLAN or 0, addr = peer, port 0: of any; with a peer
            // and a socket that is bound to any address, id = the local one's 16 bytes. Reply: d =
            // its number. a = 1 with kFilterOutgoing: no fd, addr = an address of the host's, its
            // port the one that it has to be, or 0. Reply: a = the port, too. a = 2, remove: d; a
            // = 3, its socket listens no more: d; a = 4, the same, but others have it now: d
  kWire,  // process: a = 1, fd = the bundle of its stack's wire (offhost/wire_bundle.h), which the
          // keeper gets, too. Reply: status. a = 2: the same to a new posternd. a = 0. Reply: fd
          // = that bundle, or ENOENT

  // Routes (docs/routes.md): process, then daemon that may not see all. Both need no hello.
  kRoutes,   // Reply: fd = memfd with the tables (abi/routes_abi.h)
  kResolve,  // a = interface, addr = whose link-layer address is wanted there. No reply

  kNamed,  // a process that has no stack yet: fd = a new one, whose options have a stack.name.
           // Reply: fd = the one of that name, which may be the same. Needs no hello
  kGuest,  // a process that has become another user (life/depart.h), on a line of its own: uuid =
  // the stack that it is of, fd = a new one of its user's. Reply: fd = the one of all those
  // that have left the same stack for the same user, cookie = its ticket. Needs no hello

  kSeek,  // process: a = a port: others' listeners there are wanted in the directory. Reply:
          // status, when they are. Then daemon: the same, or a = 0: of all ports. Reply: status,
          // after kListener of each; a = the port, or 0: all ports are told of from now on

  kQueues,  // process: a = lgr index in its stack, as a client; or ~0: of its own stack. Reply:
            // fd = memfd with the pstn_queues of the server's stack

  // Between posternd and a family's reaper (controlplane/reaper), on a line of their own. These
  // have no reply:
  kJobStack = 64,  // first: fd = stack memfd
  kJobDirectory,   // fd = directory memfd
  kJobSender,      // fd = the socket that rings doorbells in the bells' network namespace
  kJobLink,        // a = index in the stack's table, id = link group, fd = its memfd
  // Jobs, one at a time. Reply: status; EBUSY: a thread that is stopped holds a lock, nothing was
  // done; d = 1: this reaper has worked enough, start another one for the next job.
  kJobListeners,  // a = slot, b = pid of its process, which has died: close its listeners
  kJobSlot,       // a = slot, b = pid: drop all that it held
  kJobEnd,        // no process is left: end all connections. EEXIST: one is
  kJobPeerDead,   // a = index, id = link group: its other stack is dead
  kJobAdmit,  // a = index, id = link group; b = connection, c = its gen, uuid.hi = listener's ep,
              // uuid.lo = its gen, addr = server's name, (peer, cookie) = client's (JobClient):
              // admit an offer. Reply: a = 1: addresses are translated on the way
};

inline constexpr uint32_t kBrokerSeq = 0x80000000u;
inline constexpr uint32_t kHelloSeeks = 1, kJoinSeeks = 1;
inline constexpr uint32_t kHeldCame = 1, kHeldLost = 2;  // c of kTakeHeld
// kFilter's a.
inline constexpr uint32_t kFilterAdd = 1, kFilterRemove = 2, kFilterHush = 3, kFilterLeave = 4;
// Leave it to the kernel though a wider filter would take it; its fragments, too; a port that
// connections are made from.
inline constexpr uint32_t kFilterPass = 1, kFilterFragments = 2, kFilterOutgoing = 4;
inline constexpr uint32_t kListenerIpv6 = 1, kListenerV6Only = 2, kListenerSharesPort = 4,
                          kListenerLearnt = 8;

struct Msg {
  uint32_t version = kProtoVersion;
  Type type{};
  uint32_t seq = 0;
  int32_t status = 0;  // reply: 0 or a positive errno
  uint32_t a = 0, b = 0, c = 0, d = 0;
  pstn_uuid uuid{};
  pstn_addr addr{};
  pstn_uuid peer{}, id{};
  uint64_t cookie = 0;
  // From a daemon of root's, of a stack that is a guest's, and from the broker to the server's
  // daemon with kLink: that stack's user and group (SetWhose). 0: the sender's.
  uint64_t whose = 0;
};
static_assert(sizeof(Msg) == 120);

// The user that a message is about, if it is not the sender's own.
inline void SetWhose(Msg& m, uint32_t uid, uint32_t gid) {
  m.whose = static_cast<uint64_t>(gid) << 32 | (uid + 1u);
}
inline uint32_t WhoseUid(const Msg& m) { return static_cast<uint32_t>(m.whose) - 1u; }
inline uint32_t WhoseGid(const Msg& m) { return static_cast<uint32_t>(m.whose >> 32); }

// A second address in a message of which `addr` is taken.
inline void SetJobClient(Msg& m, const pstn_addr& client) {
  static_assert(sizeof m.peer == sizeof client.ip);
  __builtin_memcpy(&m.peer, client.ip, sizeof client.ip);
  m.cookie = client.port | static_cast<uint64_t>(client.scope) << 32;
}
inline pstn_addr JobClient(const Msg& m) {
  pstn_addr client{};
  __builtin_memcpy(client.ip, &m.peer, sizeof client.ip);
  client.port = static_cast<uint16_t>(m.cookie);
  client.scope = static_cast<uint32_t>(m.cookie >> 32);
  return client;
}

// The abstract address that belongs to a path; any user may have taken it, so a program believes
// only one that is served by root or by its stack's user, and posternd only a process that brings a
// stack of its user's. Returns the address's length.
inline socklen_t AbstractName(const char* path, sockaddr_un& out) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char* p = path; *p != 0; p++)
    hash = (hash ^ static_cast<uint8_t>(*p)) * 0x100000001b3u;
  out = {};
  out.sun_family = AF_UNIX;
  constexpr char kPrefix[] = "postern-ctl-";
  char* at = out.sun_path + 1;
  for (const char* p = kPrefix; *p != 0; p++) *at++ = *p;
  for (int i = 15; i >= 0; i--) *at++ = "0123456789abcdef"[hash >> (4 * i) & 15u];
  return static_cast<socklen_t>(at - reinterpret_cast<char*>(&out));
}

}  // namespace postern::ctl
