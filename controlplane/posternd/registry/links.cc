// links.cc - link groups: made when a pair of stacks needs one, known to every process of both.
// SPDX-License-Identifier: Apache-2.0
//
// The first connection of a pair needs one, and the first that finds all slots of the pair taken
// (docs/adr/0008). Several processes may find so at once: each says how many it has found full, and
// all but the first get what was made for the first.
//
// After a restart of posternd the stacks come back one by one, each with its link groups. A group
// whose other stack has not come yet waits; a group whose other stack has ended must be ended too,
// or its connections would hang for ever. posternd tells the two apart by the processes that still
// map the memory.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "../kit/log.h"
#include "../kit/proc.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "family/family.h"
#include "life/reap.h"
#include "registry.h"
#include "slot_copy.h"
#include "stack_words.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kLinkTimerMs = 500;
constexpr auto kPeerGrace = std::chrono::seconds(5);
constexpr int kLookRest = 20;                // of the time that a look at all processes takes
constexpr uint64_t kLostNs = 2'000'000'000;  // several attempts of a process that looks for us

constexpr uint32_t kRefFree = 0, kRefUsed = 1, kRefPeerDead = 2;

uint32_t RefState(const Stack& stack, uint32_t idx) {
  const pstn_lgr_ref* const ref = stack.s->lgrs.At(LgrIndex(idx));
  return ref != nullptr ? LoadAcquire(ref->state) : kRefFree;
}

bool EndWorks(const LinkGroup& link, uint32_t side) {
  const LinkEnd& end = link.end[side];
  return link.remote[side] || (end.stack != nullptr && RefState(*end.stack, end.idx) == kRefUsed);
}

// Whether connections count in the memory that all clients of the server write which it is true of:
// our own user's programs, and the server's own user's. A guest's counts where nobody else does.
bool IsQueued(const Stack& client, const Stack& server) {
  return client.uid == server.uid || !IsGuests(client);
}

// The index under which the stack itself knows the link group.
uint32_t FindRef(const Stack& stack, const LinkGroup& link, uint32_t side) {
  const uint32_t end = stack.s->lgrs.Clamp(LoadAcquire(stack.s->hdr.lgrs_hw));  // [L2]
  for (uint32_t i = 0; i < end; ++i) {
    const pstn_lgr_ref& ref = stack.s->lgrs.Own(LgrIndex(i));
    if (LoadAcquire(ref.state) != kRefFree && ref.side == side && Same(ref.id, link.id)) return i;
  }
  return PSTN_NONE;
}

}  // namespace

// What a client may have written into its own table decides only which of its own it gets.
Registry::Pair Registry::LinksBetween(const Stack& client, const pstn_uuid& server) {
  Pair pair;
  uint32_t fewest = 0;
  for (const auto& [idx, link] : client.links) {
    const LinkEnd& end = link->end[0];  // of a stack with itself, both ends are in the list
    if (link->dead || end.stack != &client || end.idx != idx || !Same(link->owner[1], server))
      continue;
    if (!EndWorks(*link, 0) || !EndWorks(*link, 1)) continue;
    const uint32_t connections = LoadRelaxed(client.s->lgrs.Own(LgrIndex(idx)).conns);
    pair.count++;
    if (link->asked) pair.asked = link;
    if (pair.emptiest != nullptr && connections >= fewest) continue;
    pair.emptiest = link;
    fewest = connections;
  }
  return pair;
}

int Registry::FindLink(const Stack& client, const pstn_uuid& server, uint32_t full,
                       LinkGroup*& link) {
  const Pair pair = LinksBetween(client, server);
  link = pair.asked != nullptr ? pair.asked : pair.emptiest;
  if (pair.asked != nullptr || pair.count > full) return 0;
  return pair.count < PSTN_PAIR_LGRS ? -ENOENT : -ENOSPC;
}

// Whether a new link group would reach the processes that accept. A process that waits for
// connections without a line to us tries again and again, and says in its slot when it could not;
// until it has come (after a restart of posternd) its clients take the kernel's way. One that does
// not try waits for nothing.
bool Registry::Reachable(const Stack& stack) {
  bool any = false;
  if (stack.broken || stack.ending) return false;
  // Not the others: each is a page, which a look would allocate.
  const uint32_t end = stack.s->slots.Clamp(LoadAcquire(stack.s->hdr.slots_hw));
  for (uint32_t slot = 0; slot < end; slot++) {
    const pstn_slot& s = stack.s->slots.Own(ProcIndex(slot));
    if (LoadAcquire(s.state) != PSTN_SL_LIVE) continue;
    const auto found = stack.processes.find(slot);
    if (found != stack.processes.end() && found->second->client != nullptr) {
      any = true;
    } else if (MonotonicNs() - LoadRelaxed(s.lost_ns) < kLostNs) {
      return false;
    }
  }
  return any;
}

// A process of the stack has so little address space left that one more link group could not be
// mapped there, and clients in it would not be seen.
bool Registry::IsShort(const Stack& stack) {
  const uint32_t slot = LoadRelaxed(stack.s->hdr.short_slot);
  const pstn_slot* const s = slot != 0 ? stack.s->slots.At(ProcIndex(slot - 1)) : nullptr;
  return s != nullptr && LoadAcquire(s->state) == PSTN_SL_LIVE;
}

int Registry::Introduce(Stack& client, Stack& server, uint32_t full, LinkGroup*& link) {
  const int found = FindLink(client, server.id, full, link);
  if (found != -ENOENT) return found;
  if (IsShort(client) || IsShort(server)) return -ENOMEM;
  // Of a guest it is not known whether it has filled those that it says to have filled.
  if (IsGuests(client) && (!MayTakeMore(server, client.uid) || !HasRoomForGuest(client.uid)))
    return -ENOSPC;
  // The client's connection goes through the kernel meanwhile.
  return Reachable(server) ? CreateLink(client, server, link) : -EAGAIN;
}

// That side's processes make the link group known to the kernel module before they look at it
// (lib/family/module.h), so the other side may count on it from the beginning.
void Registry::SayLevel(const LinkGroup& link, uint32_t side) {
  const uint32_t on = 1;
  if (LoadRelaxed(link.end[side].stack->s->hdr.module) != PSTN_MODULE_ON) return;
  if (pwrite(link.fd->get(), &on, sizeof(on),
             static_cast<off_t>(offsetof(pstn_lgr_hdr, module) + side * sizeof(on))) != sizeof(on))
    Warn("link group %s: its level can't be written: %s", Text(link.id).c_str(), strerror(errno));
}

int Registry::CreateLink(Stack& client, Stack& server, LinkGroup*& link) {
  auto fresh = std::make_unique<LinkGroup>();
  fresh->id = NewUuid();
  fresh->owner = {client.id, server.id};
  UniqueFd memfd(CreateLgr(fresh->id, client.id, server.id));
  if (!memfd.ok()) return -ENOMEM;
  fresh->inode = InodeOf(memfd.get());
  fresh->fd = Share(std::move(memfd));
  fresh->maker = client.uid;
  Stack* const owner[2] = {&client, &server};
  const uint32_t who = client.uid != server.uid ? PSTN_LGR_GUEST : PSTN_LGR_SAME_USER;
  int error = 0;
  for (uint32_t side = 0; side < 2 && error == 0; ++side) {
    const uint32_t idx = AddRef(*owner[side], side, fresh->id, fresh->owner[1 - side], who,
                                IsQueued(client, server) ? 1 : 0);
    if (idx == PSTN_NONE) error = -ENOSPC;
    if (error == 0) AttachEnd(*fresh, side, *owner[side], idx);
    if (error == 0) SayLevel(*fresh, side);
  }
  if (error != 0) {
    if (Stack* half = fresh->end[0].stack) {
      FreeRef(*half, fresh->end[0].idx);
      DetachEnd(*fresh, 0);
    }
    return error;
  }
  link = fresh.get();
  links_[fresh->id] = std::move(fresh);
  Inform("link group %s: %s -> %s", Text(link->id).c_str(), Text(client.id).c_str(),
         Text(server.id).c_str());
  PushLink(*link, 1);
  PushLink(*link, 0);
  return 0;
}

int Registry::QueuesOf(Stack& stack, SharedFd& queues) {
  if (stack.queues == nullptr) {
    UniqueFd memfd(CreateQueues());
    if (!memfd.ok()) return -ENOMEM;
    stack.queues = Share(std::move(memfd));
  }
  queues = stack.queues;
  return 0;
}

// What a client says that it has is believed where the server's table has it, too.
int Registry::QueuesBehind(const Stack& client, uint32_t link_idx, SharedFd& queues) {
  const auto it = client.links.find(link_idx);
  if (it == client.links.end()) return -ENOENT;
  const LinkGroup& link = *it->second;
  if (link.dead || link.end[0].stack != &client || link.end[0].idx != link_idx) return -ENOENT;
  Stack* const server = link.end[1].stack;
  if (server == nullptr || !EndWorks(link, 1) || !IsQueued(client, *server)) return -ENOENT;
  return QueuesOf(*server, queues);
}

void Registry::PushLink(const LinkGroup& link, uint32_t side) {
  ctl::Msg message;
  message.type = ctl::Type::kLgr;
  message.a = link.end[side].idx;
  message.uuid = link.owner[1 - side];
  Push(*link.end[side].stack, message, link.fd);
}

// After our restart the processes of a stack bring its link groups one by one, after their hello.
// Without them a reaper could tell no peer of the dead that it is dead.
bool Registry::AwaitsLinks(const Stack& stack) const {
  if (Clock::now() - stack.known_since > kPeerGrace) return false;
  const uint32_t end = stack.s->lgrs.Clamp(LoadAcquire(stack.s->hdr.lgrs_hw));  // [L2]
  for (uint32_t idx = 0; idx < end; ++idx) {
    if (RefState(stack, idx) == kRefUsed && stack.links.count(idx) == 0) return true;
  }
  return false;
}

// After our restart a process may have come back before the one that brings the link group, which
// was made while the former had no line: its clients come to both.
void Registry::TellFamily(const LinkGroup& link, uint32_t side) {
  if (side == 1 && link.end[side].stack->processes.size() > 1) PushLink(link, side);
}

void Registry::Push(const Stack& stack, const ctl::Msg& message, const SharedFd& fd) {
  for (const auto& [slot, process] : stack.processes) {
    if (process->client != nullptr) process->client->Send(message, fd);
  }
}

// News without a descriptor: a process that takes none for a while hears of each once.
void Registry::PushNote(const Stack& stack, const ctl::Msg& message) {
  for (const auto& [slot, process] : stack.processes) {
    if (process->client != nullptr) process->client->SendOnce(message);
  }
}

void Registry::AttachEnd(LinkGroup& link, uint32_t side, Stack& stack, uint32_t idx) {
  if (const auto old = stack.links.find(idx); old != stack.links.end()) {
    LinkGroup& stale = *old->second;  // the stack has given this index to another group
    DetachEnd(stale, stale.end[0].stack == &stack && stale.end[0].idx == idx ? 0 : 1);
    if (&stale != &link) EraseIfUnused(stale);  // of a stack with itself, it may be its other end
  }
  stack.links[idx] = &link;
  link.end[side] = {&stack, idx};
}

void Registry::DetachEnd(LinkGroup& link, uint32_t side) {
  LinkEnd& end = link.end[side];
  if (end.stack == nullptr) return;
  end.stack->links.erase(end.idx);
  end = {};
}

void Registry::EraseIfUnused(LinkGroup& link) {
  if (link.end[0].stack != nullptr || link.end[1].stack != nullptr) return;
  Inform("link group %s: is gone", Text(link.id).c_str());
  links_.erase(link.id);
}

// The side that survives gets to see the end of its connections; the group itself goes when the
// last of them is closed.
void Registry::KillLink(LinkGroup& link, uint32_t dead_side) {
  if (!link.dead)
    Inform("link group %s: ends, since its %s has ended", Text(link.id).c_str(),
           dead_side == 0 ? "client" : "server");
  link.dead = true;
  LinkEnd& survivor = link.end[1 - dead_side];
  if (survivor.stack == nullptr || Same(link.owner[0], link.owner[1])) return;
  ctl::Msg job;
  job.type = ctl::Type::kJobPeerDead;
  job.a = survivor.idx;
  job.id = link.id;
  reapers_.Do(*survivor.stack, job);
  if (!link_timer_.pending()) link_timer_.AddMs(kLinkTimerMs);
}

int Registry::AddLink(Stack& stack, uint32_t idx, UniqueFd memfd) {
  const pstn_lgr_ref* const known = stack.s->lgrs.At(LgrIndex(idx));
  if (known == nullptr || !memfd.ok()) return -EINVAL;
  const pstn_lgr_ref& ref = *known;
  const uint32_t state = LoadAcquire(ref.state);
  const uint32_t side = LoadRelaxed(ref.side);
  const pstn_uuid id = ref.id;
  const pstn_uuid peer = ref.peer;
  if (state == kRefFree || side > 1) return -ENOENT;
  pstn_uuid owner[2];
  if (!OwnersOfLgr(memfd.get(), id, owner)) return -EINVAL;
  if (!Same(owner[side], stack.id) || !Same(owner[1 - side], peer)) return -EPERM;

  if (IsGuests(stack) && !HasRoomForGuest(stack.uid)) return -EMFILE;
  const uint64_t inode = InodeOf(memfd.get());
  auto& place = links_[id];
  if (place == nullptr) {
    place = std::make_unique<LinkGroup>();
    place->id = id;
    place->owner = {owner[0], owner[1]};
    place->inode = inode;
    place->maker = OwnerOf(memfd.get());
    place->fd = Share(std::move(memfd));
    const uint32_t whose = LoadRelaxed(ref.remote);
    place->remote[1 - side] =
        (whose == PSTN_LGR_OTHER_USER || whose == PSTN_LGR_OTHER_NETNS) && Find(peer) == nullptr;
  } else if (place->inode != inode) {
    return -EEXIST;
  }
  LinkGroup& link = *place;
  if (link.end[side].stack == &stack && link.end[side].idx == idx) return 0;
  if (link.end[side].stack != nullptr) return -EEXIST;
  AttachEnd(link, side, stack, idx);
  TellFamily(link, side);
  if (link.dead) {
    KillLink(link, 1 - side);
  } else if (link.remote[1 - side]) {
    on_have(link, side);
    return 0;
  } else if (Stack* other = Find(peer)) {
    AttachWaiting(*other);
  }
  if (!link.dead && link.end[1 - side].stack == nullptr) {
    link.wait_until = Clock::now() + kPeerGrace;
    if (!link_timer_.pending()) link_timer_.AddMs(kLinkTimerMs);
  }
  return 0;
}

// Gives a stack that is registered its ends of groups which others brought back.
void Registry::AttachWaiting(Stack& stack) {
  for (auto& [id, link] : links_) {
    for (uint32_t side = 0; side < 2; ++side) {
      if (link->end[side].stack != nullptr || !Same(link->owner[side], stack.id)) continue;
      if (link->remote[side]) continue;
      const uint32_t idx = FindRef(stack, *link, side);
      if (idx == PSTN_NONE) {
        KillLink(*link, side);  // it has given its end up
      } else {
        AttachEnd(*link, side, stack, idx);
        TellFamily(*link, side);
        if (link->dead) KillLink(*link, 1 - side);
      }
    }
  }
}

// A process that is not of the surviving stack still has the memory mapped.
bool Registry::PeerMayLive(const LinkGroup& link, const std::multimap<uint64_t, pid_t>& mappers) {
  const LinkEnd& survivor = link.end[link.end[0].stack != nullptr ? 0 : 1];
  const auto [first, last] = mappers.equal_range(link.inode);
  for (auto it = first; it != last; ++it) {
    const pid_t pid = it->second;
    const auto& family = survivor.stack->processes;
    const bool ours = std::any_of(family.begin(), family.end(),
                                  [pid](const auto& entry) { return entry.second->pid == pid; });
    if (!ours) return true;
  }
  return false;
}

namespace {

bool IsAlone(const LinkGroup& link) {
  return (link.end[0].stack == nullptr && !link.remote[0]) ||
         (link.end[1].stack == nullptr && !link.remote[1]);
}

}  // namespace

// A guest may bring any number of link groups whose other end there never was: one look at all
// processes is for all of them, and takes a small share of the time.
std::multimap<uint64_t, pid_t> Registry::MappersOfAlone(Clock::time_point begin) {
  std::set<uint64_t> due;
  for (const auto& [id, link] : links_) {
    if (IsAlone(*link) && !link->dead && begin >= link->wait_until) due.insert(link->inode);
  }
  if (due.empty()) return {};
  auto mappers = MappersOf(due);
  const auto end = Clock::now();
  look_after_ = end + kLookRest * (end - begin);
  return mappers;
}

void Registry::LinkTimer() {
  bool look_again = false;
  const auto now = Clock::now();
  const bool looks = now >= look_after_;
  const auto mappers = looks ? MappersOfAlone(now) : std::multimap<uint64_t, pid_t>();
  for (auto it = links_.begin(); it != links_.end();) {
    LinkGroup& link = *it->second;
    ++it;
    if (IsAlone(link) && !link.dead) {
      look_again = true;
      if (!looks || now < link.wait_until) continue;
      if (PeerMayLive(link, mappers)) {
        link.wait_until = now + kPeerGrace;
        continue;
      }
      Inform("link group %s: its other stack never came back", Text(link.id).c_str());
      KillLink(link, link.end[0].stack == nullptr ? 0 : 1);
    }
    for (uint32_t side = 0; side < 2; ++side) {
      const LinkEnd end = link.end[side];
      if (end.stack == nullptr) continue;
      const uint32_t state = RefState(*end.stack, end.idx);
      if (state == kRefPeerDead && LgrIdle(end.stack->s->lgrs.Own(LgrIndex(end.idx)))) {
        FreeRef(*end.stack, end.idx);
        DetachEnd(link, side);
      } else if (state == kRefPeerDead || link.dead) {
        look_again = true;
      }
    }
    EraseIfUnused(link);
  }
  if (look_again && !link_timer_.pending()) link_timer_.AddMs(kLinkTimerMs);
}

}  // namespace postern::daemon
