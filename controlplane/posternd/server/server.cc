// server.cc - accepting clients and answering them.
// SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "../directory/listener_check.h"
#include "../kit/log.h"
#include "../kit/proc.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kAcceptPauseMs = 100;  // after running out of descriptors
constexpr uint32_t kKeeperAgainMs = 200;  // until its death is known, and not faster
constexpr uint32_t kBacklogMax = 65535;
constexpr size_t kStrangersMax = 64;
constexpr size_t kEarlyMax = 1024;   // hellos that wait for the broker's answer
constexpr int kAcceptsPerTurn = 16;  // a flooder gets no more; and a stranger has several turns
                                     // to say hello before others have pushed it out

// A process that has the memory of a stack that our user has made is of its family.
bool BelongsToUs(const UniqueFd& memfd) {
  struct stat st {};
  return memfd.ok() && fstat(memfd.get(), &st) == 0 && st.st_uid == geteuid();
}

}  // namespace

Server::Door::Door(event_base* base, UniqueFd fd, Server& server)
    : listener(std::move(fd)),
      acceptable(base, listener.get(), static_cast<short>(EV_READ | EV_PERSIST),
                 [this, &server] { server.AcceptSome(*this); }),
      again(base, -1, 0, [this] { acceptable.Add(); }) {
  if (listener.ok()) acceptable.Add();
}

Server::Server(event_base* base, Directory& directory, UniqueFd listener, UniqueFd abstract,
               std::string runtime_dir, uint32_t idle_sec, std::string broker, Vis& vis,
               uint32_t netlink_bytes)
    : base_(base),
      directory_(directory),
      vis_(vis),
      idle_sec_(idle_sec),
      registry_(base, directory,
                [this] {
                  names_.Prune(registry_);
                  negotiator_.StacksChanged();
                  ConsiderLeaving();
                }),
      upstream_(base, std::move(broker), directory, registry_),
      negotiator_(base, registry_, upstream_),
      keepers_(base, std::move(runtime_dir)),
      addresses_(base,
                 [this](const std::vector<pstn_addr>& all) {
                   directory_.SetAddresses(all);
                   upstream_.SetAddresses(all);
                 }),
      routes_(base, netlink_bytes),
      path_(base, std::move(listener), *this),
      abstract_(base, std::move(abstract), *this),
      idle_(base, -1, 0, [this] { Leave(); }),
      wires_(base, -1, 0, [this] { MindWires(); }) {
  registry_.on_end = [this](const LinkGroup& l, uint32_t side) { upstream_.LinkEnd(l, side); };
  registry_.on_have = [this](const LinkGroup& l, uint32_t side) { upstream_.HaveLink(l, side); };
  registry_.withdrawing = [this] { return upstream_.withdrawing(); };
  keepers_.on_child = [this](pid_t pid, int status) { registry_.reapers().Ended(pid, status); };
  keepers_.on_lost = [this] { wires_.AddMs(kKeeperAgainMs); };
  registry_.on_process = [this](const Process& p) {
    upstream_.Alive(p.stack->id, p.pid, p.pidfd.get());
  };
  directory_.on_lost = [this](const Listener& l) {
    negotiator_.ListenerGone(l.stack, l.ep_idx, l.ep_gen);
    upstream_.Unoffer(l, [] {});
  };
  upstream_.on_host = [this](const pstn_host& host) { SetHost(host); };
  upstream_.on_join = [this] { AskForListeners(); };
  upstream_.on_vi_free = vis_.on_free = [this] { TellViFree(); };
  upstream_.on_settled = [this] { Settled(); };
  ConsiderLeaving();
}

void Server::AcceptSome(Door& door) {
  for (int i = 0; i < kAcceptsPerTurn; i++) {
    UniqueFd fd(accept4(door.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.ok()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      Warn("cannot accept a client: %s", strerror(errno));
      door.acceptable.Del();
      return door.again.AddMs(kAcceptPauseMs);
    }
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    // A program that has changed its user is known by the stack that it brings (Hello).
    const bool stranger = peer.uid != geteuid() && peer.uid != 0;
    if (stranger && strangers_ >= kStrangersMax) BreakOldestStranger();
    auto client = std::make_unique<Client>(
        base_, std::move(fd), peer,
        [this](Client& c, const ctl::Msg& m, UniqueFd with) { OnMessage(c, m, std::move(with)); },
        [this](Client& c) { OnGone(c); });
    client->stranger = stranger;
    strangers_ += stranger ? 1 : 0;
    Client* const key = client.get();
    clients_.emplace(key, std::move(client));
    ConsiderLeaving();
  }
}

// A program of ours says hello at once; a line that stays silent only stands in the others' way.
void Server::BreakOldestStranger() {
  Client* oldest = nullptr;
  for (const auto& [key, client] : clients_) {
    if (client->stranger && !client->broken() && (oldest == nullptr || client->id() < oldest->id()))
      oldest = key;
  }
  if (oldest == nullptr) return;
  Note("pid %d of another user is cut off: too many of them are silent", oldest->pid());
  oldest->Break();
}

void Server::OnGone(Client& client) {
  keepers_.OnGone(client);
  registry_.ClientGone(client);
  strangers_ -= client.stranger ? 1 : 0;
  clients_.erase(&client);
  ConsiderLeaving();
}

void Server::ConsiderLeaving() {
  const bool idle = registry_.stacks().empty() && clients_.empty();
  if (!idle || (idle_sec_ == 0 && !quit_asked_)) return idle_.Del();
  if (quit_asked_) return idle_.AddMs(0);
  if (!idle_.pending()) idle_.AddMs(idle_sec_ * 1000);
}

void Server::Leave() {
  Note(quit_asked_ ? "asked to leave" : "no client for %u s: leaving", idle_sec_);
  event_base_loopbreak(base_);
}

Server::Handler Server::HandlerOf(ctl::Type type) {
  switch (type) {
    case ctl::Type::kHello:
      return &Server::Hello;
    case ctl::Type::kListen:
      return &Server::Listen;
    case ctl::Type::kUnlisten:
      return &Server::Unlisten;
    case ctl::Type::kIntroduce:
      return &Server::Introduce;
    case ctl::Type::kGetLgr:
      return &Server::GetLink;
    case ctl::Type::kAddLgr:
      return &Server::AddLink;
    case ctl::Type::kStatus:
      return &Server::Status;
    case ctl::Type::kChildSlot:
      return &Server::ChildSlot;
    case ctl::Type::kReap:
      return &Server::Reap;
    case ctl::Type::kQuit:
      return &Server::Quit;
    case ctl::Type::kNamed:
      return &Server::Named;
    case ctl::Type::kExport:
      return &Server::Export;
    case ctl::Type::kKeeper:
      return &Server::Keeper;
    case ctl::Type::kNegotiate:
      return &Server::Negotiate;
    case ctl::Type::kTakeHeld:
      return &Server::TakeHeld;
    case ctl::Type::kAttach:
      return &Server::Attach;
    case ctl::Type::kRegister:
      return &Server::Register;
    case ctl::Type::kRelease:
      return &Server::Release;
    case ctl::Type::kBell:
      return &Server::Bell;
    case ctl::Type::kVi:
      return &Server::Vi;
    case ctl::Type::kFilter:
      return &Server::Filter;
    case ctl::Type::kWire:
      return &Server::Wire;
    case ctl::Type::kRoutes:
      return &Server::GetRoutes;
    case ctl::Type::kResolve:
      return &Server::Resolve;
    default:
      break;  // ours to send, or the broker's
  }
  return nullptr;
}

void Server::OnMessage(Client& client, const ctl::Msg& message, UniqueFd fd) {
  const Handler handler = HandlerOf(message.type);
  if (handler == nullptr) return client.Reply(message, ENOSYS);
  // Export, Wire: the keeper answers on a line that has not said hello.
  const bool needs_no_hello =
      message.type == ctl::Type::kHello || message.type == ctl::Type::kStatus ||
      message.type == ctl::Type::kQuit || message.type == ctl::Type::kKeeper ||
      message.type == ctl::Type::kExport || message.type == ctl::Type::kWire ||
      message.type == ctl::Type::kRoutes || message.type == ctl::Type::kResolve ||
      message.type == ctl::Type::kNamed;
  if (client.stranger && message.type != ctl::Type::kHello) {
    Warn("pid %d is another user's, and brings no stack of ours", client.pid());
    return client.Break();
  }
  if (!needs_no_hello && client.process == nullptr) {
    if (message.type != ctl::Type::kChildSlot) client.Reply(message, ENOTCONN);
    return;
  }
  (this->*handler)(client, message, std::move(fd));
}

void Server::Hello(Client& client, const ctl::Msg& message, UniqueFd fd) {
  if (!upstream_.settled()) {
    if (early_.size() >= kEarlyMax) return client.Break();
    return early_.push_back({&client, client.id(), message, std::move(fd)});
  }
  const bool known = !client.stranger || BelongsToUs(fd);
  const int error =
      known ? registry_.Hello(client, message.a, message.uuid, std::move(fd)) : -EACCES;
  if (error == 0 && client.stranger) {
    client.stranger = false;
    --strangers_;
  }
  if (error != 0) {
    Warn("hello of pid %d refused: %s", client.pid(), strerror(-error));
    return client.Reply(message, -error);
  }
  names_.Learn(*client.process->stack, client.pid(), client.uid());
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
  const int error = names_.Find(client.pid(), client.uid(), std::move(fd), stack);
  if (error != 0) return client.Reply(message, -error);
  client.Send(reply, stack);
}

// `fd` is closed on every way out: a copy kept here would keep the port taken.
void Server::Listen(Client& client, const ctl::Msg& message, UniqueFd fd) {
  Listener listener;
  const bool known = client.process->stack->s->eps.At(EpIndex(message.a)) != nullptr;
  int error = known && fd.ok() ? 0 : -EINVAL;
  if (error == 0) error = CheckListener(fd.get(), client.pid(), OwnNetnsIno(), listener);
  if (error == 0) {
    listener.stack = client.process->stack->id;
    listener.ep_idx = message.a;
    listener.ep_gen = message.b;
    listener.backlog = message.c < kBacklogMax ? message.c : kBacklogMax;
    error = directory_.Publish(listener);
  }
  if (error == 0) {
    negotiator_.ListenerHere(listener.stack, listener.ep_idx, listener.ep_gen);
    upstream_.Offer(listener, std::move(fd));
  }
  fd.Reset();
  Note("pid %d listens on port %u: %s", client.pid(), listener.local.port, strerror(-error));
  client.Reply(message, -error);
}

void Server::Unlisten(Client& client, const ctl::Msg& message, UniqueFd) {
  Listener listener;
  listener.stack = client.process->stack->id;
  listener.ep_idx = message.a;
  listener.ep_gen = message.b;
  if (!directory_.Withdraw(listener.stack, message.a, message.b))
    return client.Reply(message, ENOENT);
  negotiator_.ListenerGone(listener.stack, message.a, message.b);
  upstream_.Unoffer(listener, [this, line = &client, id = client.id(), message] {
    if (IsHere(line, id)) line->Reply(message, 0);
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

void Server::ChildSlot(Client& client, const ctl::Msg& message, UniqueFd) {
  (void)registry_.ChildSlot(*client.process, message.a, static_cast<pid_t>(message.b));
}

void Server::Reap(Client& client, const ctl::Msg& message, UniqueFd) {
  registry_.ChildEnded(*client.process->stack, message.a, static_cast<pid_t>(message.b),
                       [this, line = &client, id = client.id(), message](int error) {
                         if (IsHere(line, id)) line->Reply(message, -error);
                       });
}

void Server::Status(Client& client, const ctl::Msg& message, UniqueFd) {
  const auto uptime = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - started_);
  std::string text;
  switch (message.a) {
    case 0:
      text = StatusReport(registry_, directory_, static_cast<uint64_t>(uptime.count()));
      break;
    case 1:
      text = SocketReport(registry_, static_cast<pid_t>(message.b));
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
  const Stack* const stack =
      registry_.EndpointOf(static_cast<pid_t>(message.b), message.c, request.a, request.b);
  if (stack == nullptr) return client.Reply(message, ENOENT);
  keepers_.Export(client, *stack, request, std::move(fd));
}

// Only a process of the stack can be its keeper: it has said hello on another line.
void Server::Keeper(Client& client, const ctl::Msg& message, UniqueFd) {
  const Stack* const stack = registry_.Find(message.uuid);
  bool member = false;
  if (stack != nullptr) {
    for (const auto& [slot, process] : stack->processes) {
      member |= process->pid == client.pid() && Registry::IsMember(*process);
    }
  }
  if (member) return keepers_.OnKeeper(client, message.uuid);
  Warn("pid %d is not a keeper: it is no process of that stack", client.pid());
  client.Break();
}

}  // namespace postern::daemon
