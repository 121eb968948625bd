// registry.h - the stacks, processes and link groups that posternd knows: their birth and death.
// SPDX-License-Identifier: Apache-2.0
//
//   Stack 1 --- n Process (slot, pid, pidfd) 1 --- 0..1 Client
//     |
//     +-- LinkGroup side 0 (client) / side 1 (server); a stack that talks to itself is both
//
// What decides over life and death is the pidfd alone. A client's connection may end before its
// process does (exec, closefrom), and a process may never say hello (a forked child): those are
// found by scanning the slots of their stack.
//
// A stack's memory is written by programs. posternd maps it to read it only and takes no lock in
// it; it believes none of it: each value is loaded once, checked, and used from the copy; what goes
// wrong then concerns that family only. What is to be changed there for the dead is a job for the
// family's reaper (reapers.h).
#pragma once
#include <sys/types.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../directory/directory.h"
#include "../kit/event.h"
#include "../kit/uuid.h"
#include "../line/client.h"
#include "reapers.h"
#include "state/view.h"

namespace postern::daemon {

using Clock = std::chrono::steady_clock;

struct Stack;
class PidsThere;

struct Process {
  Stack* stack = nullptr;
  uint32_t slot = 0;
  pid_t pid = 0;    // here
  pid_t there = 0;  // in its own PID namespace: as its slot has it
  UniqueFd pidfd;
  std::unique_ptr<Event> died;
  Client* client = nullptr;
  bool said_hello =
      false;  // with the family's memory, on a line that the kernel knows to be its own
};

// How one stack takes part in a link group.
struct LinkEnd {
  Stack* stack = nullptr;  // null: not registered (yet), or gone
  uint32_t idx = PSTN_NONE;
};

struct LinkGroup {
  pstn_uuid id{};
  SharedFd fd;
  uint64_t inode = 0;
  std::array<pstn_uuid, 2> owner{};
  std::array<LinkEnd, 2> end;
  std::array<bool, 2> remote{};  // that end is another daemon's (upstream.h)
  bool asked = false;            // the other daemon has not taken it yet
  uid_t maker = 0;               // whose daemon made it: the memory's owner; or the client's user
  bool dead = false;             // one side has ended: the other is only winding up
  Clock::time_point wait_until;  // while an end that was never seen may still turn up
};

// A slot that a child has not taken over yet, and when a process was last seen that may hold it.
struct Suspect {
  pid_t parent = 0;
  pid_t child = 0;  // 0: an embryo's
  Clock::time_point last_alive;
};

// A slot as it was when it was read: the family may change it at any time.
struct SlotCopy {
  uint32_t state;
  pid_t pid;  // in `pidns`
  uint32_t pidns;
  uint64_t start_time;
  uint32_t exec_pending;
};

// A slot whose process has died, until the reaper has done with it.
struct Reaping {
  pid_t pid = 0;  // as the slot has it
  std::vector<std::function<void(int)>> waiters;
};

struct Stack {
  pstn_uuid id{};
  SharedFd fd;
  SharedFd queues;  // its clients count there (pstn_queues); null: nobody has asked for it
  SharedFd wire;    // the bundle, see ctl::Type::kWire; null: it has none
  uint64_t inode = 0;
  uid_t uid = 0;  // the memory's: ours, or a guest's (lib/life/depart.h)
  gid_t gid = 0;
  const StackLook* s = nullptr;
  Clock::time_point known_since = Clock::now();
  bool ending = false;  // no process is left: its reaper ends what it had
  bool broken = false;  // its reaper has failed: all that is left is to wait for its processes' end
  bool refused_links = false;    // some user's, and that was logged
  uint64_t left_for_kernel = 0;  // processes that have become another user so, as was logged
  // Deaths that were reaped since then, each of which calls for a look at the others.
  uint32_t reaped = 0;
  Clock::time_point reaped_since;
  // Guests: their slots are not looked at before that moment, and the next to be looked at.
  Clock::time_point scan_after;
  uint32_t scan_from = 0;
  std::map<uint32_t, std::unique_ptr<Process>> processes;  // by slot
  std::map<uint32_t, LinkGroup*> links;                    // by index in the stack's table
  std::map<uint32_t, Suspect> suspects;                    // by slot
  std::map<uint32_t, Reaping> reaping;                     // by slot
};

// How a reaper or keeper of the stack is told which user to become (guard/become.h): "UID:GID", or
// "" for our own.
std::string UserToBe(const Stack& stack);

class Registry {
 public:
  // on_change is called whenever a stack came or went.
  Registry(event_base* base, Directory& directory, std::function<void()> on_change);
  ~Registry();

  // Each returns 0 or -errno.
  int Hello(Client& client, uint32_t slot, const pstn_uuid& id, UniqueFd memfd);
  // A parent has waited for this child: what it held is released now, not when its pidfd tells.
  // `done` with 0 or -errno.
  void ChildEnded(Stack& stack, uint32_t slot, pid_t pid, std::function<void(int)> done);
  // The same of a guest's process, wherever it is; -ENOENT: there is none.
  void GuestEnded(pid_t pid, std::function<void(int)> done);
  // A link group between them that is not one of `full` that the client has found to be full. A new
  // one is made known to all first.
  int Introduce(Stack& client, Stack& server, uint32_t full, LinkGroup*& link);
  int AddLink(Stack& stack, uint32_t idx, UniqueFd memfd);
  // The memory in which clients of that stack count, or of the one with which it has a link group
  // as a client. 0 or -errno.
  static int QueuesOf(Stack& stack, SharedFd& queues);
  static int QueuesBehind(const Stack& client, uint32_t link_idx, SharedFd& queues);
  // The same with a server of another daemon: made here, and told of by PushLink() when that one
  // has taken it.
  int MakeRemote(Stack& client, const pstn_uuid& server, uint32_t full, LinkGroup*& link);
  void TellOf(const LinkGroup& link, uint32_t side) { PushLink(link, side); }
  // A link group that another daemon has made, as the broker has passed it on (kLink).
  int TakeRemote(const ctl::Msg& link, UniqueFd memfd);
  // The end that is not ours, or that never came to be.
  void RemoteEnded(const pstn_uuid& id, uint32_t side);
  // Whether some daemon may still list a listener that we have withdrawn; Withdrawn(): none does.
  std::function<bool()> withdrawing;
  // A process of that stack has died, and its listeners are not closed yet: if none is left that
  // accepts, and others have the kernel's socket, clients that wait go to them. Calls `then` after
  // that.
  std::function<void(const Stack&, std::function<void()> then)> pass_queues;
  void Withdrawn();
  std::function<void(const Process&)> on_process;  // a process that is watched from now on
  // Our side of a link group whose other end is remote: it has ended; it is back, with its stack.
  std::function<void(const LinkGroup&, uint32_t side)> on_end, on_have;

  Stack* Find(const pstn_uuid& id);
  // A listener's words for the processes that accept (Negotiator); its backlog, 0 if it is gone.
  void StoreHeld(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen, uint32_t held,
                 uint32_t in_talks);
  // Makes the offered connection of a link group of ours (side 1) one of its listener's, by way of
  // the family's reaper. `done` with 0 or a positive errno, and whether addresses are translated.
  void AdmitOffer(const Stack& stack, const LinkGroup& link, const ctl::Msg& offer,
                  std::function<void(int, bool)> done);
  Reapers& reapers() { return reapers_; }
  const Reapers& reapers() const { return reapers_; }
  uint32_t BacklogOf(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen);
  // Sends a message to every process of a stack; PushNote(): unless it waits there already.
  static void PushNote(const Stack& stack, const ctl::Msg& message);
  static void Push(const Stack& stack, const ctl::Msg& message, const SharedFd& fd = {});
  // A slot names any process: the kernel says whether that one has the family's memory.
  static bool IsMember(const Process& process);
  // Guests' processes, lines and link groups cost descriptors of ours, which are all programs': one
  // user has no more than a quarter of these, and all guests half of them.
  bool HasRoomForGuest(uid_t uid) const;
  // The endpoint behind descriptor `fd` of a process of that user's, and its stack; null: none.
  const Stack* EndpointOf(pid_t pid, uint32_t fd, uid_t uid, uint32_t& ep, uint32_t& gen) const;
  // Its process in that stack, which has shown that it is one; null: none.
  static const Process* MemberOf(const Stack& stack, pid_t pid);
  void ClientGone(Client& client);

  const std::map<pstn_uuid, std::unique_ptr<Stack>, UuidLess>& stacks() const { return stacks_; }
  const std::map<pstn_uuid, std::unique_ptr<LinkGroup>, UuidLess>& links() const { return links_; }

 private:
  // registry.cc: processes and stacks
  int OpenStack(const pstn_uuid& id, UniqueFd memfd, uint32_t slot, Stack*& stack);
  // As the slot says, or the process `pid` of ours.
  int Watch(Stack& stack, uint32_t slot, const SlotCopy& copy, PidsThere& look, Process*& process);
  int Watch(Stack& stack, uint32_t slot, const SlotCopy& copy, pid_t pid, Process*& process);
  void Forget(Stack& stack, uint32_t slot);
  // Whether a guest's process is in another slot already.
  static bool HasOtherSlot(const Stack& stack, uint32_t slot, pid_t pid);
  void ProcessDied(const pstn_uuid& stack_id, uint32_t slot, pid_t pid);
  // registry_scan.cc. Whether some slot has a holder without a pidfd, so that the timer has to look
  // again.
  bool ScanSlots(Stack& stack);
  bool ScanSlot(Stack& stack, uint32_t slot, const SlotCopy& copy, PidsThere& look);
  bool ScanExec(Stack& stack, uint32_t slot, const SlotCopy& copy, pid_t here);
  bool MayBeOfFamily(Stack& stack, uint32_t slot, const SlotCopy& copy, pid_t here);
  bool ScanEmbryo(Stack& stack, uint32_t slot, const SlotCopy& copy, PidsThere& look);
  // Cleans up when no process is left; true if the stack is gone.
  bool ScanOrDrop(Stack& stack);
  bool ScanBroken(Stack& stack);
  // registry_reap.cc: the dead
  void Reap(Stack& stack, uint32_t slot, pid_t pid, std::function<void(int)> done = {});
  void ReapListeners(const pstn_uuid& id, uint32_t slot);
  void ReapRest(const pstn_uuid& stack, uint32_t slot);
  void Reaped(const pstn_uuid& stack, uint32_t slot, int status);
  void EndStack(Stack& stack);
  void Ended(const pstn_uuid& stack, int status);
  void EndLinks(Stack& stack);
  void ReaperFailed(const pstn_uuid& stack, const std::string& why);
  // Lets go of the memory, and changes nothing in it.
  void ReleaseStack(Stack& stack);
  static bool IsReapedTooOften(Stack& stack);
  void WithdrawStaleListeners(Stack& stack);
  void SlotTimer();

  // links.cc: link groups
  struct Pair {
    LinkGroup* emptiest = nullptr;
    LinkGroup* asked = nullptr;
    uint32_t count = 0;
  };
  static Pair LinksBetween(const Stack& client, const pstn_uuid& server);
  // 0 with a link group, -ENOENT if one more is to be made, or why none can be.
  static int FindLink(const Stack& client, const pstn_uuid& server, uint32_t full,
                      LinkGroup*& link);
  int CreateLink(Stack& client, Stack& server, LinkGroup*& link);
  static bool Reachable(const Stack& server);
  static bool IsShort(const Stack& stack);
  static bool MayTakeMore(const Stack& own, uid_t maker);
  static void SayLevel(const LinkGroup& link, uint32_t side);
  int AddRemote(LinkGroup& link, uint32_t side, Stack& own, uint32_t who);
  void AttachEnd(LinkGroup& link, uint32_t side, Stack& stack, uint32_t idx);
  void AttachWaiting(Stack& stack);
  void DetachEnd(LinkGroup& link, uint32_t side);
  void KillLink(LinkGroup& link, uint32_t dead_side);
  void EraseIfUnused(LinkGroup& link);
  void PushLink(const LinkGroup& link, uint32_t side);
  void TellFamily(const LinkGroup& link, uint32_t side);
  bool AwaitsLinks(const Stack& stack) const;
  std::multimap<uint64_t, pid_t> MappersOfAlone(Clock::time_point begin);
  static bool PeerMayLive(const LinkGroup& link, const std::multimap<uint64_t, pid_t>& mappers);
  void LinkTimer();

  event_base* base_;
  Directory& directory_;
  std::function<void()> on_change_;
  std::map<pstn_uuid, std::unique_ptr<Stack>, UuidLess> stacks_;
  std::map<pstn_uuid, std::unique_ptr<LinkGroup>, UuidLess> links_;
  Event slot_timer_, link_timer_;
  Clock::time_point look_after_;  // at which processes have which link groups
  Reapers reapers_;
};

}  // namespace postern::daemon
