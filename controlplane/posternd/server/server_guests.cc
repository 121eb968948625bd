// server_guests.cc - processes that have become another user, and the listeners that they share
// with those that they have left (lib/life/depart.h, lib/control/acceptor.h).
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "../directory/listener_check.h"
#include "../kit/log.h"
#include "../kit/proc.h"
#include "../registry/slot_copy.h"
#include "../registry/stack_words.h"
#include "base/atomic.h"
#include "server.h"
#include "state/area.h"

namespace postern::daemon {
namespace {

// A process waits there for clients.
bool IsAttended(const Stack& stack, const pstn_ep& listener) {
  const uint32_t acceptor = LoadAcquire(listener.acceptor);
  return acceptor != 0 && stack.processes.count(acceptor - 1) != 0;
}

constexpr uint32_t kPassMs = 5000;

// No process but its keeper is left, and none is on its way (a child that has not said hello).
bool IsOver(const Stack& stack, pid_t keeper) {
  for (uint32_t slot = 0, end = SlotsInUse(stack); slot < end; ++slot) {
    const auto process = stack.processes.find(slot);
    const bool is_known = process != stack.processes.end();
    if (is_known && process->second->pid == keeper) continue;
    if (is_known || (stack.reaping.count(slot) == 0 && Held(ReadSlot(stack, slot)))) return false;
  }
  return true;
}

// What its keeper is asked.
ctl::Msg QueueOf(const Listener& l) {
  ctl::Msg request;
  request.type = ctl::Type::kExport;
  request.a = l.ep_idx;
  request.b = l.ep_gen;
  return request;
}

bool HasClients(const Stack& stack) {
  return std::any_of(stack.links.begin(), stack.links.end(),
                     [&](const auto& link) { return link.second->end[1].stack == &stack; });
}

}  // namespace

// The memory is its user's: ours, and then the process has it, and is of our user, or could be
// again; or a guest's, who has a ticket.
bool Server::MayHello(const Client& client, const ctl::Msg& message, const UniqueFd& fd) {
  if (!client.stranger) return true;
  if (SegmentBytes(fd.get()) == 0) return false;
  const uid_t owner = OwnerOf(fd.get());
  if (owner == geteuid()) {
    // A family that has VIs keeps who becomes another user (lib/life/depart.h).
    const Stack* const stack = registry_.Find(message.uuid);
    const bool has_vis = stack != nullptr && stack->wire != nullptr;
    // What any user may start can be ours by its ids alone (setuid).
    if (has_vis || !HasUid(client.pid(), owner)) return has_vis;
    const Mapped mapped = HasMapped(client.pid(), InodeOf(fd.get()));
    return mapped == Mapped::kYes || mapped == Mapped::kUnknown;
  }
  return client.uid() == owner && message.cookie == tickets_.Of(message.uuid, owner) &&
         (registry_.Find(message.uuid) != nullptr ||
          (!IsAnothers(message.uuid) && names_.MayBring(registry_, message.uuid, owner)));
}

// A stack is known by its name, which its programs have chosen: as that of another user's, of whose
// listeners ours know, it would get their clients.
bool Server::IsAnothers(const pstn_uuid& stack) const {
  const auto& listeners = directory_.listeners();
  return std::any_of(listeners.begin(), listeners.end(), [&](const auto& entry) {
    return entry.second.foreign && Same(entry.second.stack, stack);
  });
}

// It was of a stack of ours until it became another user: the kernel says that it is now, for good.
void Server::Guest(Client& client, const ctl::Msg& message, UniqueFd fd) {
  const Stack* const origin = registry_.Find(message.uuid);
  const bool was_ours = origin != nullptr && Registry::MemberOf(*origin, client.pid()) != nullptr;
  if (!was_ours || SegmentBytes(fd.get()) == 0 || OwnerOf(fd.get()) != client.uid() ||
      HasUid(client.pid(), origin->uid)) {
    Warn("pid %d (uid %u) is no guest of ours", client.pid(), client.uid());
    return client.Reply(message, EPERM);
  }
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  SharedFd stack;
  const int error = names_.FindGuests(registry_, message.uuid, client.pid(), client.uid(),
                                      std::move(fd), stack, reply.uuid);
  if (error != 0) return client.Reply(message, -error);
  reply.cookie = tickets_.Of(reply.uuid, client.uid());
  client.Send(reply, stack);
}

// Its clients come by the kernel from now on.
void Server::Unlist(const Stack& stack, const Listener& l) {
  PutUnlisted(stack, l.ep_idx, true);
  directory_.Withdraw(l.stack, l.ep_idx, l.ep_gen);
  negotiator_.ListenerGone(l.stack, l.ep_idx, l.ep_gen);
  upstream_.teller().Unoffer(l, [] {});
}

// Those that have come go there.
void Server::PassQueue(const Stack& stack, const Listener& l, const UniqueFd& fd) {
  if (!HasClients(stack)) return;
  keepers_.PassQueue(stack, QueueOf(l), UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0), kTcpSocket));
}

// As the kernel's queue is there while any process has the socket, so that a server's next worker,
// or who holds the socket for it, finds the clients of the one that was killed.
void Server::PassQueues(const Stack& stack, std::function<void()> then) {
  if (!HasClients(stack) || !IsOver(stack, keepers_.Pid(stack.id))) return then();
  std::vector<Listener> left;
  for (const auto& [entry, l] : directory_.listeners()) {
    if (Same(l.stack, stack.id) && !l.learnt) left.push_back(l);
  }
  const auto listening = LookWhichListen(left).listening;
  std::erase_if(left, [&](const Listener& l) { return listening.count(l.cookie) == 0; });
  for (const Listener& l : left) Unlist(stack, l);
  if (left.empty()) return then();
  struct Rest {
    size_t count;
    std::function<void()> then;
    std::unique_ptr<Event> limit;
    void End() {
      if (const auto last = std::exchange(then, {})) last();
    }
  };
  const auto rest = std::make_shared<Rest>(Rest{left.size(), std::move(then), nullptr});
  // Its memory can keep the keeper from ever answering.
  rest->limit = std::make_unique<Event>(base_, -1, 0, [weak = std::weak_ptr<Rest>(rest)] {
    if (const auto still = weak.lock()) still->End();
  });
  rest->limit->AddMs(kPassMs);
  for (const Listener& l : left) {
    ctl::Msg request = QueueOf(l);
    request.c = l.family;
    request.addr = l.local;
    keepers_.PassQueue(stack, request, UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                       [rest] {
                         if (--rest->count == 0) rest->End();
                       });
  }
}

// Other families have the same socket of the kernel's. Where none of their processes waits for
// clients, those would wait in vain; who comes too late says so (lib/control/acceptor.h). Where one
// does, too, each client is whose process accepts it first, and only the kernel's queue is both's:
// then none is listed. (A process that has waited once may only have looked: php-fpm's master polls
// the listener, and has a child accept.) False: so it is, or one of another family waits, and none
// of this one does.
bool Server::HasToItself(const Listener& by, const UniqueFd& fd) {
  const Stack* const own = registry_.Find(by.stack);
  const pstn_ep* const its = own != nullptr ? own->s->eps.At(EpIndex(by.ep_idx)) : nullptr;
  const bool waits = its != nullptr && IsAttended(*own, *its);
  std::vector<Listener> others;
  for (const Listener& l : directory_.AtPort(by.local.port)) {
    if (l.cookie == by.cookie && !l.learnt && !Same(l.stack, by.stack)) others.push_back(l);
  }
  for (const Listener& l : others) {
    const Stack* const stack = registry_.Find(l.stack);
    const pstn_ep* const ep = stack != nullptr ? stack->s->eps.At(EpIndex(l.ep_idx)) : nullptr;
    if (ep == nullptr) continue;
    if (!waits && IsAttended(*stack, *ep)) return false;
    Unlist(*stack, l);
    // One that has not seen that thinks that it is listed.
    if (IsAttended(*stack, *ep)) shared_.insert(by.cookie);
    PassQueue(*stack, l, fd);
  }
  return shared_.count(by.cookie) == 0;
}

}  // namespace postern::daemon
