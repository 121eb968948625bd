// server_vi.cc - VIs for our processes: made here, or asked of the broker.
// SPDX-License-Identifier: Apache-2.0
#include <net/if.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "../kit/log.h"
#include "../kit/proc.h"
#include "server.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kKeeperComesMs = 1500;

const char* WhyNoVi(int error) {
  switch (error) {
    case ENOTCONN:
      return "no broker is there, and this posternd was started without --vi";
    case EPERM:
      return "--vi of posternd or of the broker does not name it, or the policy forbids it";
    case ENODEV:
      return "there is no such interface";
    case ENETDOWN:
      return "there is no driver (postern-softnic, postern-verbsnic)";
    case EBUSY:
      return "another program has its queues";
    default:
      return strerror(error);
  }
}

}  // namespace

// What was last the matter with each interface that programs have asked for.
void Server::NoteVi(const Client& client, uint32_t ifindex, int error) {
  constexpr size_t kErrorsMax = 64;
  char name[IF_NAMESIZE] = "";
  const bool is_here = NetnsIno(client.pid()) == OwnNetnsIno();
  std::string key = is_here && if_indextoname(ifindex, name) != nullptr
                        ? name
                        : "interface " + std::to_string(ifindex);
  if (error == 0) {
    vi_errors_.erase(key);
  } else if (vi_errors_.size() < kErrorsMax || vi_errors_.contains(key)) {
    Warn("no VI on %s for pid %d: %s", key.c_str(), client.pid(), WhyNoVi(error));
    vi_errors_[key] = WhyNoVi(error);
  }
}

// The broker knows which network namespace we are in, not which our processes are in.
void Server::AskBroker(Client& client, const ctl::Msg& message, UniqueFd fd) {
  if (NetnsIno(client.pid()) != OwnNetnsIno()) return client.Reply(message, EPERM);
  ctl::Msg question = message;
  question.uuid = client.process->stack->id;
  const auto pass_on = [this, line = &client, id = client.id(), message](
                           int status, const ctl::Msg& answer, UniqueFd with) {
    if (!IsHere(line, id)) return;
    if (message.type == ctl::Type::kVi) NoteVi(*line, message.a, status);
    ctl::Msg reply;
    reply.type = message.type;
    reply.seq = message.seq;
    reply.status = status;
    reply.a = answer.a;
    reply.d = answer.d;
    reply.cookie = answer.cookie;
    line->Send(reply, with.ok() ? Share(std::move(with)) : SharedFd());
  };
  upstream_.Ask(question, pass_on, fd.ok() ? Share(std::move(fd)) : SharedFd());
}

void Server::Vi(Client& client, const ctl::Msg& message, UniqueFd fd) {
  if (!vis_.enabled()) return AskBroker(client, message, std::move(fd));
  const UniqueFd netns = OpenNetns(client.pid(), 0);
  if (!netns.ok() || PidfdIsDead(client.process->pidfd.get())) return client.Reply(message, EPERM);
  const ViAsker asker = {client.process->stack->id};
  UniqueFd line;
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  reply.status = message.b != 0
                     ? -vis_.Adopt(asker, netns, message, std::move(fd), line, reply.cookie)
                     : -vis_.Open(asker, netns, message, std::move(fd), line);
  NoteVi(client, message.a, reply.status);
  client.Send(reply, line.ok() ? Share(std::move(line)) : SharedFd());
}

void Server::Filter(Client& client, const ctl::Msg& message, UniqueFd fd) {
  if (!vis_.enabled()) return AskBroker(client, message, std::move(fd));
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  reply.status = -vis_.Filter({client.process->stack->id}, message, std::move(fd), reply);
  client.Send(reply);
}

// What is in the bundle is the family's business; posternd only keeps it, as long as the stack.
void Server::Wire(Client& client, const ctl::Msg& message, UniqueFd fd) {
  if (keepers_.OnAnswer(client, message)) return;
  if (client.process == nullptr) return client.Reply(message, ENOTCONN);
  Stack& stack = *client.process->stack;
  if (message.a == 0) {
    if (!stack.wire) return client.Reply(message, ENOENT);
    ctl::Msg reply;
    reply.type = message.type;
    reply.seq = message.seq;
    return client.Send(reply, stack.wire);
  }
  if (!fd.ok()) return client.Reply(message, EINVAL);
  stack.wire = Share(std::move(fd));
  if (message.a == 1) return keepers_.Wire(&client, stack, message);
  // A stack that had its wire before us. Its keeper comes by itself, if it lives.
  client.Reply(message, 0);
  wires_.AddMs(kKeeperComesMs);
}

// Listeners that found an interface's queues taken are the kernel's until then.
void Server::TellViFree() {
  ctl::Msg message;
  message.type = ctl::Type::kVi;
  for (const auto& [id, stack] : registry_.stacks()) Registry::PushNote(*stack, message);
}

// A stack whose keeper was killed gets another one: its programs may be asleep.
void Server::MindWires() {
  for (const auto& [id, stack] : registry_.stacks()) {
    if (!stack->wire || stack->processes.empty() || keepers_.Has(id)) continue;
    ctl::Msg message;
    message.type = ctl::Type::kWire;
    message.a = 1;
    keepers_.Wire(nullptr, *stack, message);
  }
}

}  // namespace postern::daemon
