// server.h - posternd's socket, its clients, and what each request does.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

#include "../directory/directory.h"
#include "../directory/listener_watch.h"
#include "../kit/event.h"
#include "../line/client.h"
#include "../member/negotiator.h"
#include "../member/upstream.h"
#include "../nic/vis.h"
#include "../registry/keepers.h"
#include "../registry/named_stacks.h"
#include "../registry/registry.h"
#include "../registry/tickets.h"
#include "../report/report.h"
#include "../routes/addresses.h"
#include "../routes/routes.h"
#include "same_host.h"

namespace postern::daemon {

class Server {
 public:
  // idle_sec 0: stays for ever.
  // abstract: the listener of the abstract name, or not ok(). broker: path of its socket, policy:
  // of the host's rules; neither need exist. vis: what we may grant ourselves; where that is none,
  // the broker is asked.
  Server(event_base* base, Directory& directory, UniqueFd listener, UniqueFd abstract,
         std::string runtime_dir, uint32_t idle_sec, std::string broker, std::string policy,
         Vis& vis, uint32_t netlink_bytes);

  Registry& registry() { return registry_; }

 private:
  using Handler = void (Server::*)(Client&, const ctl::Msg&, UniqueFd);
  static Handler HandlerOf(ctl::Type type);

  // One way in: by the path, or by the abstract name.
  struct Door {
    Door(event_base* base, UniqueFd fd, Server& server);
    UniqueFd listener;
    Event acceptable, again;
  };
  void AcceptSome(Door& door);
  void BreakOldestStranger();
  void NoLongerStrange(Client& client);
  // Of another user: a guest, or one that is not known.
  static bool IsForeign(const Client& client);
  bool MayHello(const Client& client, const ctl::Msg& message, const UniqueFd& fd);
  bool IsAnothers(const pstn_uuid& stack) const;
  bool HasToItself(const Listener& by, const UniqueFd& fd);
  void Unlist(const Stack& stack, const Listener& l);
  void PassQueue(const Stack& stack, const Listener& l, const UniqueFd& fd);
  void PassQueues(const Stack& stack, std::function<void()> then);
  void OnMessage(Client& client, const ctl::Msg& message, UniqueFd fd);
  void OnGone(Client& client);
  // Starts or stops the countdown to leaving.
  void ConsiderLeaving();
  void Leave();
  // Whether the client is still there, and not another one in its place.
  bool IsHere(Client* client, uint64_t id) const;
  void LinkAnswered(const pstn_uuid& id, int status);
  void IntroduceRemote(Client& client, const ctl::Msg& message);
  void AnswerIntroduce(Client& client, const ctl::Msg& message, const LinkGroup& link);

  void Hello(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Named(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Guest(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Listen(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Queues(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Unlisten(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Seek(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Introduce(Client& client, const ctl::Msg& message, UniqueFd fd);
  void GetLink(Client& client, const ctl::Msg& message, UniqueFd fd);
  void AddLink(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Status(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Reap(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Quit(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Export(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Keeper(Client& client, const ctl::Msg& message, UniqueFd fd);

  // server_routes.cc
  void SendRoutes(Client& client, const ctl::Msg& message, SharedFd tables);
  void GetRoutes(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Resolve(Client& client, const ctl::Msg& message, UniqueFd fd);

  // server_smc.cc: network namespaces
  void Negotiate(Client& client, const ctl::Msg& message, UniqueFd fd);
  void TakeHeld(Client& client, const ctl::Msg& message, UniqueFd fd);
  // Of the broker. A guest's line waits when many are asked for it.
  void AskFor(Client& client, const ctl::Msg& question, Asks::Done done);
  void Attach(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Register(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Release(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Bell(Client& client, const ctl::Msg& message, UniqueFd fd);
  void SetHost(const pstn_host& host);

  // server_vi.cc
  void NoteVi(const Client& client, uint32_t ifindex, int error);
  void Vi(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Filter(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Wire(Client& client, const ctl::Msg& message, UniqueFd fd);
  void MindWires();
  void TellViFree();
  void AskBroker(Client& client, const ctl::Msg& message, UniqueFd fd);

  void TakeSender();
  void Settled();
  void AskForListeners();

  event_base* base_;
  Directory& directory_;
  Vis& vis_;
  uint32_t idle_sec_;
  bool quit_asked_ = false;
  Clock::time_point started_ = Clock::now();
  Tickets tickets_;
  NamedStacks names_;
  Registry registry_;
  Upstream upstream_;
  Negotiator negotiator_;
  Keepers keepers_;
  Turns guests_turns_;  // before the lines that have them
  Quota guests_fds_;
  std::unordered_map<Client*, std::unique_ptr<Client>> clients_;
  std::set<uint64_t> shared_;  // sockets at which several families wait, by cookie
  ListenerWatch listeners_;
  AddressWatch addresses_;
  Routes routes_;
  SameHostSwitch same_host_;
  std::map<std::string, std::string> vi_errors_;  // for `posternctl status`
  pstn_host host_{};                              // as the broker says
  bool routes_upstream_ = false;                  // the tables that we hand out are the broker's
  Door path_, abstract_;
  struct Waiting {
    Client* client;
    uint64_t client_id;
    ctl::Msg message;
  };
  std::map<pstn_uuid, std::vector<Waiting>, UuidLess> waiting_;  // by the link group asked for
  // A client that says hello while it is not known yet whether there is a broker, and what it
  // offers.
  struct Early {
    Client* client;
    uint64_t client_id;
    ctl::Msg message;
    UniqueFd fd;
  };
  std::vector<Early> early_;
  bool has_sender_ = false;  // the reapers have one (TakeSender)
  size_t strangers_ = 0;     // of other users, until they have said hello
  Event idle_;
  Event wires_;  // then stacks without a keeper are looked for
};

}  // namespace postern::daemon
