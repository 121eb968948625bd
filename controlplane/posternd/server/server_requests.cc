// server_requests.cc - what processes and posternctl ask, answered.
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "../directory/listener_check.h"
#include "../kit/log.h"
#include "../kit/proc.h"
#include "../registry/slot_copy.h"
#include "../registry/stack_words.h"
#include "server.h"
#include "state/area.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kBacklogMax = 65535;
constexpr size_t kEarlyMax = 1024;  // hellos that wait for the broker's answer

// Whether a stack, as it says, was made in another network namespace. Memory that has seals can be
// read at once.
bool HasOtherPorts(const UniqueFd& stack) {
  uint64_t netns = 0;
  constexpr off_t kAt = offsetof(pstn_stack_hdr, netns_ino);
  return stack.ok() && fcntl(stack.get(), F_GET_SEALS) >= 0 &&
         pread(stack.get(), &netns, sizeof netns, kAt) == sizeof netns && netns != 0 &&
         netns != OwnNetnsIno();
}

}  // namespace

void Server::Hello(Client& client, const ctl::Msg& message, UniqueFd fd) {
  if (!upstream_.settled()) {
    if (early_.size() >= kEarlyMax) return client.Break();
    return early_.push_back({&client, client.id(), message, std::move(fd)});
  }
  const bool may = MayHello(client, message, fd);
  if (may && registry_.Find(message.uuid) == nullptr && HasOtherPorts(fd))
    return client.Reply(message, EXDEV);  // it is for the posternd of its own namespace
  const int error = may ? registry_.Hello(client, message.a, message.uuid, std::move(fd)) : -EACCES;
  if (error == 0) NoLongerStrange(client);
  if (error != 0) {
    Warn("hello of pid %d refused: %s", client.pid(), strerror(-error));
    return client.Reply(message, -error);
  }
  names_.Learn(*client.process->stack, client.pid(), client.uid());
  if ((message.b & ctl::kHelloSeeks) == 0) upstream_.SeekAll();
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  client.Send(reply, directory_.fd());
}

void Server::Named(Client& client, const ctl::Msg& message, UniqueFd fd) {
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  SharedFd stack;
  const uint64_t netns = NetnsIno(client.pid());
  if (netns != 0 && netns != OwnNetnsIno()) return client.Reply(message, EXDEV);
  const int error = names_.Find(client.pid(), client.uid(), std::move(fd), stack);
  if (error != 0) return client.Reply(message, -error);
  client.Send(reply, stack);
}

// `fd` is closed on every way out: a copy kept here would keep the port taken.
void Server::Listen(Client& client, const ctl::Msg& message, UniqueFd fd) {
  Listener listener;
  const bool known = client.process->stack->s->eps.At(EpIndex(message.a)) != nullptr;
  int error = known && fd.ok() ? 0 : -EINVAL;
  if (error == 0)
    error = CheckListener(fd.get(), client.pid(), client.uid(), OwnNetnsIno(), listener);
  if (error == 0) {
    listener.stack = client.process->stack->id;
    listener.guests = IsGuests(*client.process->stack);
    listener.uid = client.process->stack->uid;
    listener.ep_idx = message.a;
    listener.ep_gen = message.b;
    listener.backlog = message.c < kBacklogMax ? message.c : kBacklogMax;
    if (!HasToItself(listener, fd)) {
      Unlist(*client.process->stack, listener);
      PassQueue(*client.process->stack, listener, fd);
      error = -EBUSY;
    }
  }
  if (error == 0) error = directory_.Publish(listener);
  if (error == 0) {
    listeners_.Hear(listener, fd.get());
    PutUnlisted(*client.process->stack, message.a, false);
    negotiator_.ListenerHere(listener.stack, listener.ep_idx, listener.ep_gen);
    upstream_.teller().Offer(listener, std::move(fd));
  }
  fd.Reset();
  Note("pid %d listens on port %u: %s", client.pid(), listener.local.port, strerror(-error));
  client.Reply(message, -error);
}

void Server::Queues(Client& client, const ctl::Msg& message, UniqueFd) {
  Stack& stack = *client.process->stack;
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  SharedFd queues;
  const int error = message.a == PSTN_NONE ? Registry::QueuesOf(stack, queues)
                                           : Registry::QueuesBehind(stack, message.a, queues);
  if (error != 0) return client.Reply(message, -error);
  client.Send(reply, queues);
}

void Server::Unlisten(Client& client, const ctl::Msg& message, UniqueFd) {
  Listener listener;
  listener.stack = client.process->stack->id;
  listener.ep_idx = message.a;
  listener.ep_gen = message.b;
  if (!directory_.Withdraw(listener.stack, message.a, message.b))
    return client.Reply(message, ENOENT);
  negotiator_.ListenerGone(listener.stack, message.a, message.b);
  upstream_.teller().Unoffer(listener, [this, line = &client, id = client.id(), message] {
    if (IsHere(line, id)) line->Reply(message, 0);
  });
}

// The answer comes when the directory has what there is. A guest's line waits when it seeks much.
void Server::Seek(Client& client, const ctl::Msg& message, UniqueFd) {
  if (message.a > UINT16_MAX) return client.Reply(message, EINVAL);
  client.PassedOn();
  upstream_.Seek(static_cast<uint16_t>(message.a),
                 [this, line = &client, id = client.id(), message] {
                   if (!IsHere(line, id)) return;
                   line->Reply(message, 0);
                   line->PassedBack();
                 });
}

bool Server::IsHere(Client* client, uint64_t id) const {
  const auto it = clients_.find(client);
  return it != clients_.end() && it->second->id() == id;
}

void Server::Introduce(Client& client, const ctl::Msg& message, UniqueFd) {
  // The directory speaks of ports of our network namespace; in another one they mean something
  // else.
  const uint64_t netns = NetnsIno(client.pid());
  if (netns != 0 && netns != OwnNetnsIno()) return client.Reply(message, EPERM);
  if (!same_host_.open()) return client.Reply(message, EPERM);
  if (IsForeign(client)) {
    listeners_.LookForGuest(message.uuid);
  } else {
    listeners_.LookAt(message.uuid);
  }
  Stack* const server = registry_.Find(message.uuid);
  if (server == nullptr) return IntroduceRemote(client, message);
  LinkGroup* link = nullptr;
  const int error = registry_.Introduce(*client.process->stack, *server, message.a, link);
  if (error == 0) return AnswerIntroduce(client, message, *link);
  Warn("no link group for pid %d: %s", client.pid(), strerror(-error));
  client.Reply(message, -error);
}

void Server::AnswerIntroduce(Client& client, const ctl::Msg& message, const LinkGroup& link) {
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  reply.a = link.end[0].idx;
  reply.uuid = message.uuid;
  if (message.type == ctl::Type::kAttach) {  // the listener, as the broker has answered
    reply.a = message.d;
    reply.b = message.b;
    reply.c = message.c;
    reply.d = link.end[0].idx;
  }
  client.Send(reply, link.fd);
}

// The first to ask has the link group made; later ones wait for the same answer.
void Server::IntroduceRemote(Client& client, const ctl::Msg& message) {
  if (!upstream_.joined()) return client.Reply(message, ENOENT);
  LinkGroup* link = nullptr;
  const int error = registry_.MakeRemote(*client.process->stack, message.uuid, message.a, link);
  if (error != 0 && error != -EINPROGRESS) return client.Reply(message, -error);
  if (error == 0 && !link->asked) return AnswerIntroduce(client, message, *link);
  waiting_[link->id].push_back({&client, client.id(), message});
  if (error == 0) return;
  link->asked = true;
  upstream_.Link(*link, [this, id = link->id](int status) { LinkAnswered(id, status); });
}

void Server::LinkAnswered(const pstn_uuid& id, int status) {
  const auto it = registry_.links().find(id);
  LinkGroup* const link = it != registry_.links().end() ? it->second.get() : nullptr;
  const bool works = status == 0 && link != nullptr && !link->dead && link->end[0].stack != nullptr;
  if (works) {
    link->asked = false;
    registry_.TellOf(*link, 0);
  }
  const auto waiters = std::move(waiting_[id]);
  waiting_.erase(id);
  for (const auto& [client, client_id, message] : waiters) {
    if (!IsHere(client, client_id)) continue;
    if (works) {
      AnswerIntroduce(*client, message, *link);
    } else {
      client->Reply(message, status != 0 ? status : ECONNRESET);
    }
  }
  if (!works && link != nullptr) registry_.RemoteEnded(id, 1);
}

void Server::GetLink(Client& client, const ctl::Msg& message, UniqueFd) {
  const auto& links = client.process->stack->links;
  const auto it = links.find(message.a);
  if (it == links.end()) return client.Reply(message, ENOENT);
  const LinkGroup& link = *it->second;
  if (link.asked) return client.Reply(message, EAGAIN);  // the other daemon may not take it
  const bool is_client = link.end[0].stack == client.process->stack && link.end[0].idx == message.a;
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  reply.a = message.a;
  reply.uuid = link.owner[is_client ? 1 : 0];
  client.Send(reply, link.fd);
}

void Server::AddLink(Client& client, const ctl::Msg& message, UniqueFd fd) {
  const int error = registry_.AddLink(*client.process->stack, message.a, std::move(fd));
  if (error != 0)
    Warn("link group %u of pid %d not taken back: %s", message.a, client.pid(), strerror(-error));
  client.Reply(message, -error);
}

void Server::Reap(Client& client, const ctl::Msg& message, UniqueFd) {
  auto done = [this, line = &client, id = client.id(), message](int error) {
    if (IsHere(line, id)) line->Reply(message, -error);
  };
  const auto pid = static_cast<pid_t>(message.b);
  if (message.a == PSTN_NONE) return registry_.GuestEnded(pid, std::move(done));
  registry_.ChildEnded(*client.process->stack, message.a, pid, std::move(done));
}

void Server::Status(Client& client, const ctl::Msg& message, UniqueFd) {
  const auto uptime = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - started_);
  std::string text;
  switch (message.a) {
    case 0:
      text = StatusReport(registry_, directory_,
                          {static_cast<uint64_t>(uptime.count()), upstream_.teller().refused(),
                           upstream_.joined(), same_host_.open(), vi_errors_});
      break;
    case 1:
      text = SocketReport(registry_, static_cast<pid_t>(message.b), message.c != 0);
      break;
    case 2:
      text = ExplainReport(registry_, static_cast<pid_t>(message.b));
      break;
    default:
      return client.Reply(message, EINVAL);
  }
  UniqueFd memfd = ToMemfd(text);
  if (!memfd.ok()) return client.Reply(message, ENOMEM);
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  client.Send(reply, Share(std::move(memfd)));
}

void Server::Quit(Client& client, const ctl::Msg& message, UniqueFd) {
  quit_asked_ = true;
  client.Reply(message, 0);
  ConsiderLeaving();
}

void Server::Export(Client& client, const ctl::Msg& message, UniqueFd fd) {
  if (keepers_.OnAnswer(client, message)) return;
  if (client.process == nullptr) return client.Reply(message, ENOTCONN);
  if (message.a != PSTN_NONE) {
    return keepers_.Export(client, *client.process->stack, message, std::move(fd));
  }
  ctl::Msg request = message;
  const Stack* const stack = registry_.EndpointOf(static_cast<pid_t>(message.b), message.c,
                                                  client.process->stack->uid, request.a, request.b);
  if (stack == nullptr) return client.Reply(message, ENOENT);
  // The kernel has let the asker have that socket (pidfd_getfd(2)), or nothing is moved for it.
  if (!fd.ok() || !HasSocket(static_cast<pid_t>(message.b), message.c, fd.get()))
    return client.Reply(message, EPERM);
  keepers_.Export(client, *stack, request, std::move(fd));
}

// Only a process of the stack can be its keeper: it has said hello on another line.
void Server::Keeper(Client& client, const ctl::Msg& message, UniqueFd) {
  const Stack* const stack = registry_.Find(message.uuid);
  if (stack != nullptr && Registry::MemberOf(*stack, client.pid()) != nullptr) {
    NoLongerStrange(client);
    return keepers_.OnKeeper(client, message.uuid);
  }
  Warn("pid %d is not a keeper: it is no process of that stack", client.pid());
  client.Break();
}

}  // namespace postern::daemon
