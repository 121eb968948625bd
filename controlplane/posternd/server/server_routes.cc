// server_routes.cc - the tables of the routes for a client: our own, or the broker's.
// SPDX-License-Identifier: Apache-2.0
//
// Whether netfilter touches our packets only CAP_NET_ADMIN may ask. The broker has it; without it
// our own tables would say "undecided" to everything. It speaks of its own network namespace, and
// refuses those of others.
#include <cap-ng.h>

#include <cerrno>
#include <utility>

#include "server.h"

namespace postern::daemon {
namespace {

bool MayAskAll() {
  capng_get_caps_process();
  return capng_have_capability(CAPNG_EFFECTIVE, CAP_NET_ADMIN) == 1;
}

}  // namespace

void Server::SendRoutes(Client& client, const ctl::Msg& message, SharedFd tables) {
  if (tables == nullptr) return client.Reply(message, ENODEV);
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  client.Send(reply, std::move(tables));
}

void Server::GetRoutes(Client& client, const ctl::Msg& message, UniqueFd) {
  if (!upstream_.joined() || MayAskAll()) return SendRoutes(client, message, routes_.Tables());
  ctl::Msg question;
  question.type = message.type;
  upstream_.Ask(question, [this, line = &client, id = client.id(), message](
                              int status, const ctl::Msg&, UniqueFd tables) {
    const bool theirs = status == 0 && tables.ok();
    routes_upstream_ = theirs;
    if (!IsHere(line, id)) return;
    SendRoutes(*line, message, theirs ? Share(std::move(tables)) : routes_.Tables());
  });
}

void Server::Resolve(Client&, const ctl::Msg& message, UniqueFd) {
  if (!routes_upstream_) return routes_.Resolve(message.a, message.addr.ip);
  ctl::Msg question;
  question.type = message.type;
  question.a = message.a;
  question.addr = message.addr;
  upstream_.Send(question);
}

}  // namespace postern::daemon
