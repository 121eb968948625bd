// server.cc - accepting clients, and which request is answered where.
// SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "../kit/log.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kAcceptPauseMs = 100;  // after running out of descriptors
constexpr uint32_t kKeeperAgainMs = 200;  // until its death is known, and not faster
constexpr size_t kStrangersMax = 64;
constexpr uint32_t kGuestsFdsMax = 256;   // of one user, sent and not taken
constexpr size_t kQueuedForGuests = 256;  // messages that the broker has not taken
constexpr int kAcceptsPerTurn = 16;  // a flooder gets no more; and a stranger has several turns
                                     // to say hello before others have pushed it out

// What no guest is answered: what its posternd's user sees and decides, and what that user's rights
// are needed for.
bool IsForOwnUser(ctl::Type type) {
  return type == ctl::Type::kStatus || type == ctl::Type::kQuit || type == ctl::Type::kNamed ||
         type == ctl::Type::kVi || type == ctl::Type::kFilter || type == ctl::Type::kWire;
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
               std::string runtime_dir, uint32_t idle_sec, std::string broker, std::string policy,
               Vis& vis, uint32_t netlink_bytes)
    : base_(base),
      directory_(directory),
      vis_(vis),
      idle_sec_(idle_sec),
      tickets_(runtime_dir + "/posternd.guests"),
      registry_(base, directory,
                [this] {
                  names_.Prune(registry_);
                  negotiator_.StacksChanged();
                  ConsiderLeaving();
                }),
      upstream_(base, std::move(broker), directory, registry_),
      negotiator_(base, registry_, upstream_),
      keepers_(base, std::move(runtime_dir)),
      guests_turns_(base, 1, [this] { return upstream_.queued() >= kQueuedForGuests; }),
      listeners_(base,
                 [this](uint64_t cookie) {
                   shared_.erase(cookie);
                   directory_.WithdrawIf(
                       [&](const Listener& l) { return l.cookie == cookie && !l.learnt; });
                 }),
      addresses_(base,
                 [this](const std::vector<pstn_addr>& all) {
                   directory_.SetAddresses(all);
                   upstream_.TellAddresses();
                 }),
      routes_(base, netlink_bytes),
      same_host_(base, std::move(policy),
                 [this] {
                   directory_.SetOpen(same_host_.open());
                   SetHost(host_);
                 }),
      path_(base, std::move(listener), *this),
      abstract_(base, std::move(abstract), *this),
      idle_(base, -1, 0, [this] { Leave(); }),
      wires_(base, -1, 0, [this] { MindWires(); }) {
  Teller& teller = upstream_.teller();
  registry_.on_end = [&teller](const LinkGroup& l, uint32_t side) { teller.LinkEnd(l, side); };
  registry_.on_have = [&teller](const LinkGroup& l, uint32_t side) { teller.HaveLink(l, side); };
  registry_.withdrawing = [&teller] { return teller.withdrawing(); };
  registry_.pass_queues = [this](const Stack& stack, std::function<void()> then) {
    PassQueues(stack, std::move(then));
  };
  keepers_.on_child = [this](pid_t pid, int status) { registry_.reapers().Ended(pid, status); };
  keepers_.on_lost = [this] { wires_.AddMs(kKeeperAgainMs); };
  registry_.on_process = [&teller](const Process& p) { teller.Alive(p); };
  directory_.on_listed = [this](const Listener& l) { listeners_.Add(l); };
  directory_.on_foreign_gone = [this](const Listener& l) {
    if (listeners_.Forget(l))
      Note("the broker says that what listened on port %u has ended", l.local.port);
  };
  directory_.on_lost = [this, &teller](const Listener& l) {
    negotiator_.ListenerGone(l.stack, l.ep_idx, l.ep_gen);
    teller.Unoffer(l, [] {});
  };
  upstream_.on_host = [this](const pstn_host& host) { SetHost(host); };
  upstream_.on_join = [this] { AskForListeners(); };
  upstream_.on_vi_free = vis_.on_free = [this] { TellViFree(); };
  upstream_.on_settled = [this] { Settled(); };
  same_host_.Start();
  ConsiderLeaving();
}

void Server::AcceptSome(Door& door) {
  for (int i = 0; i < kAcceptsPerTurn; i++) {
    UniqueFd fd = AcceptLine(door.listener);
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
    // However many lines and messages guests have, those of our own user wait for a few.
    if (stranger) client->ServeInTurns(guests_turns_, guests_fds_, kGuestsFdsMax);
    strangers_ += stranger ? 1 : 0;
    Client* const key = client.get();
    clients_.emplace(key, std::move(client));
    ConsiderLeaving();
  }
}

bool Server::IsForeign(const Client& client) {
  if (client.process != nullptr) return client.process->stack->uid != geteuid();
  return client.uid() != geteuid() && client.uid() != 0;
}

void Server::NoLongerStrange(Client& client) {
  strangers_ -= client.stranger ? 1 : 0;
  client.stranger = false;
}

// A program of ours says hello at once; a line that stays silent only stands in the others' way.
void Server::BreakOldestStranger() {
  Client* oldest = nullptr;
  for (const auto& [key, client] : clients_) {
    if (client->stranger && !client->broken() && (oldest == nullptr || client->id() < oldest->id()))
      oldest = key;
  }
  if (oldest == nullptr) return;
  Inform("pid %d of another user is cut off: too many of them are silent", oldest->pid());
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
  Inform(quit_asked_ ? "asked to leave" : "no client for %u s: leaving", idle_sec_);
  event_base_loopbreak(base_);
}

Server::Handler Server::HandlerOf(ctl::Type type) {
  switch (type) {
    case ctl::Type::kHello:
      return &Server::Hello;
    case ctl::Type::kListen:
      return &Server::Listen;
    case ctl::Type::kQueues:
      return &Server::Queues;
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
    case ctl::Type::kReap:
      return &Server::Reap;
    case ctl::Type::kQuit:
      return &Server::Quit;
    case ctl::Type::kNamed:
      return &Server::Named;
    case ctl::Type::kGuest:
      return &Server::Guest;
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
    case ctl::Type::kSeek:
      return &Server::Seek;
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
      message.type == ctl::Type::kNamed || message.type == ctl::Type::kGuest;
  if (client.stranger && message.type != ctl::Type::kHello && message.type != ctl::Type::kGuest &&
      message.type != ctl::Type::kKeeper) {
    Warn("pid %d is another user's, and brings no stack of ours", client.pid());
    return client.Break();
  }
  if (IsForeign(client) && IsForOwnUser(message.type)) return client.Reply(message, EPERM);
  if (!needs_no_hello && client.process == nullptr) return client.Reply(message, ENOTCONN);
  if (client.lost_fd()) return client.Reply(message, EMFILE);
  (this->*handler)(client, message, std::move(fd));
}

}  // namespace postern::daemon
