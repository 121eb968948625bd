// server_smc.cc - what processes ask for the sake of peers in other network namespaces.
// SPDX-License-Identifier: Apache-2.0
//
// Most of it is the broker's to answer. Here it is seen to that a process speaks of its own stack
// only.
#include <cerrno>
#include <utility>

#include "../kit/log.h"
#include "../kit/proc.h"
#include "../member/talk_socket.h"
#include "server.h"

namespace postern::daemon {

// Without a path through memory there are no handshakes for one.
void Server::SetHost(const pstn_host& as_the_broker_says) {
  host_ = as_the_broker_says;
  pstn_host host = host_;
  if (!same_host_.open()) host.flags &= ~PSTN_HOST_SMC;
  negotiator_.SetHost(host);
  if ((host.flags & PSTN_HOST_BELLS) != 0 && !has_sender_) TakeSender();
  const bool smc_was = (directory_.map()->host.flags & PSTN_HOST_SMC) != 0;
  directory_.SetHost(host);
  if (!smc_was && (host.flags & PSTN_HOST_SMC) != 0) AskForListeners();
}

// The reapers', to ring those whose processes have died.
void Server::TakeSender() {
  ctl::Msg message;
  message.type = ctl::Type::kBell;
  message.a = PSTN_NONE;
  upstream_.Ask(message, [this](int status, const ctl::Msg&, UniqueFd sender) {
    if (status != 0 || !sender.ok() || std::exchange(has_sender_, true)) return;
    registry_.reapers().SetSender(Share(std::move(sender)));
  });
}

void Server::Settled() {
  for (Early& early : std::exchange(early_, {})) {
    if (IsHere(early.client, early.client_id))
      Hello(*early.client, early.message, std::move(early.fd));
  }
}

// Each process tells again of its listeners, with their sockets, and has their SYN-ACKs marked.
void Server::AskForListeners() {
  ctl::Msg message;
  message.type = ctl::Type::kHeld;
  message.a = PSTN_NONE;
  for (const auto& [id, stack] : registry_.stacks()) Registry::PushNote(*stack, message);
}

void Server::Negotiate(Client& client, const ctl::Msg& message, UniqueFd fd) {
  const pstn_uuid& stack = client.process->stack->id;
  if (directory_.Find(stack, message.a, message.b) != nullptr)
    return negotiator_.Take(stack, message.a, message.b, std::move(fd));
  // Its listener is gone: closed, the connection is reset or has its end, as by the kernel.
}

// A process that has no number left for it loses it on the way. So it says how it went, and until
// then the connection is ours, too.
void Server::TakeHeld(Client& client, const ctl::Msg& message, UniqueFd) {
  const pstn_uuid& stack = client.process->stack->id;
  SharedFd handed = std::move(client.handed);
  if (message.c == ctl::kHeldCame) return;
  if (message.c == ctl::kHeldLost) {
    if (handed != nullptr) negotiator_.PutBackHeld(stack, message.a, message.b, std::move(handed));
    return;
  }
  client.handed = negotiator_.TakeHeld(stack, message.a, message.b);
  if (client.handed == nullptr) return client.Reply(message, EAGAIN);
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  client.Send(reply, client.handed);
}

void Server::AskFor(Client& client, const ctl::Msg& question, Asks::Done done) {
  client.PassedOn();
  upstream_.Ask(question, [this, line = &client, id = client.id(), done = std::move(done)](
                              int status, const ctl::Msg& answer, UniqueFd with) {
    done(status, answer, std::move(with));
    if (IsHere(line, id)) line->PassedBack();
  });
}

// The token of a listener: posternd introduces its holder to that listener's stack. Where it was
// reached is the kernel's word; of a process in another network namespace than ours it would mean
// nothing here.
void Server::Attach(Client& client, const ctl::Msg& message, UniqueFd fd) {
  pstn_addr local{}, reached{};
  if (!NamesInTime(fd, client.uid(), local, reached) || NetnsIno(client.pid()) != OwnNetnsIno())
    reached = {};
  fd.Reset();
  ctl::Msg question;
  question.type = message.type;
  question.cookie = message.cookie;
  question.addr = reached;
  upstream_.SayWhose(question, client.process->stack->id);
  AskFor(client, question,
         [this, line = &client, id = client.id(), message, reached](
             int status, const ctl::Msg& answer, UniqueFd) {
           if (status == 0) upstream_.NoteReached(answer, reached);
           if (!IsHere(line, id) || line->process == nullptr) return;
           if (status != 0) return line->Reply(message, status);
           ctl::Msg both = answer;
           both.type = message.type;
           both.seq = message.seq;
           both.d = answer.a;
           both.a = 0;  // as in kIntroduce: any link group will do
           Stack* const server = registry_.Find(answer.uuid);
           if (server == nullptr) return IntroduceRemote(*line, both);
           LinkGroup* link = nullptr;
           const int error = registry_.Introduce(*line->process->stack, *server, 0, link);
           if (error != 0) return line->Reply(message, -error);
           AnswerIntroduce(*line, both, *link);
         });
}

void Server::Register(Client& client, const ctl::Msg& message, UniqueFd) {
  const auto& links = client.process->stack->links;
  const auto link = links.find(message.d);
  if (link == links.end() || link->second->end[0].stack != client.process->stack)
    return client.Reply(message, ENOENT);
  ctl::Msg question;
  question.type = message.type;
  question.a = message.a;
  question.b = message.b;
  question.uuid = client.process->stack->id;
  question.id = link->second->id;
  AskFor(client, question,
         [this, line = &client, id = client.id(), message](int status, const ctl::Msg& answer,
                                                           UniqueFd) {
           if (!IsHere(line, id)) return;
           ctl::Msg reply;
           reply.type = message.type;
           reply.seq = message.seq;
           reply.status = status;
           reply.cookie = answer.cookie;
           line->Send(reply);
         });
}

// In words of our own: a program's number may be that of a question of the broker's.
void Server::Release(Client&, const ctl::Msg& message, UniqueFd) {
  upstream_.Release(message.cookie);
}

void Server::Bell(Client& client, const ctl::Msg& message, UniqueFd) {
  ctl::Msg question;
  question.type = message.type;
  question.uuid = client.process->stack->id;
  question.a = message.a;
  question.cookie = message.cookie;
  AskFor(client, question,
         [this, line = &client, id = client.id(), message](int status, const ctl::Msg&,
                                                           UniqueFd bell) {
           if (!IsHere(line, id)) return;
           if (status != 0 || !bell.ok())
             return line->Reply(message, status != 0 ? status : EPROTO);
           ctl::Msg reply;
           reply.type = message.type;
           reply.seq = message.seq;
           line->Send(reply, Share(std::move(bell)));
         });
}

}  // namespace postern::daemon
