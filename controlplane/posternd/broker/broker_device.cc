// broker_device.cc - the SMC-D device of the host: buffers are registered and attached by tokens.
// SPDX-License-Identifier: Apache-2.0
//
// A handshake over TCP (smcd/clc_fsm.h) tells either side a token of the other's. The server's
// stands for a listener: the daemon that attaches it may have a link group with its stack. The
// client's stands for a connection in that link group, which the server then takes over. The memory
// itself goes from daemon to daemon as always (broker_links.cc), so that no process gets any by
// guessing.
//
// A token is good for one attach, and for none after its owner has gone. It is looked up and used
// up in one step: the broker has one thread.
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "../kit/log.h"
#include "broker.h"

namespace postern::daemon {
namespace {

constexpr auto kLifetime = std::chrono::seconds(30);  // no handshake takes as long
constexpr size_t kLearnsMax = 256;  // of one member, at once; what is not learnt goes by TCP

}  // namespace

uint64_t Broker::NewToken() const {
  uint64_t token = 0;
  while (token == 0 || dmbs_.count(token) != 0) {
    if (getrandom(&token, sizeof(token), 0) != sizeof(token)) token = 0;
  }
  return token;
}

void Broker::Register(Client& client, const ctl::Msg& message, UniqueFd) {
  const Member& member = *MemberOf(client);
  const bool listener = message.id.hi == 0 && message.id.lo == 0;
  if (listener && member.offers.count(KeyOf(message.uuid, message.a, message.b)) == 0)
    return client.Reply(message, ENOENT);
  const Stack* const own = Claim(client, message, message.uuid);
  if (own == nullptr) return client.Reply(message, EPERM);
  ForgetOldDmbs();
  const uid_t uid = own->who.uid;
  Quota::Held held = quota_.tokens.Take(uid, policy_.buffers_max);
  if (!held.ok()) {
    Warn("user %u has %u buffers in handshakes, as many as the policy allows", uid,
         policy_.buffers_max);
    return client.Reply(message, ENOSPC);
  }
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  reply.cookie = NewToken();
  Dmb& dmb = dmbs_[reply.cookie];
  dmb.owner = &client;
  dmb.held = std::move(held);
  dmb.what = message;
  dmb.until = std::chrono::steady_clock::now() + kLifetime;
  dmb.place = dmbs_in_order_.insert(dmbs_in_order_.end(), reply.cookie);
  client.Send(reply);
}

void Broker::Release(Client& client, const ctl::Msg& message, UniqueFd) {
  const auto it = dmbs_.find(message.cookie);
  if (it != dmbs_.end() && it->second.owner == &client) ForgetDmb(it);
}

void Broker::Attach(Client& client, const ctl::Msg& message, UniqueFd) {
  const auto it = dmbs_.find(message.cookie);
  if (it == dmbs_.end()) return client.Reply(message, ENOENT);
  const Dmb& dmb = it->second;
  const bool listener = dmb.what.id.hi == 0 && dmb.what.id.lo == 0;
  const bool by_server = message.uuid.hi != 0 || message.uuid.lo != 0;
  if (listener == by_server) return client.Reply(message, EINVAL);
  const int error =
      listener ? AttachListener(client, dmb, message) : AttachConnection(client, dmb, message);
  if (error != 0) return client.Reply(message, -error);
  ctl::Msg reply = dmb.what;
  ForgetDmb(it);
  reply.type = message.type;
  reply.seq = message.seq;
  client.Send(reply);
}

// From now on the two may be linked, as if the client had been shown the listener.
int Broker::AttachListener(Client& client, const Dmb& dmb, const ctl::Msg& message) {
  Member& from = *MemberOf(client);
  const Member& to = *MemberOf(*dmb.owner);
  const OfferKey key = KeyOf(dmb.what.uuid, dmb.what.a, dmb.what.b);
  const auto offer = to.offers.find(key);
  if (offer == to.offers.end()) return -ENOENT;
  const Offered& listener = offer->second;
  if (!policy_.Allows(WhoIs(from, message), listener.by, listener.local.port)) return -EPERM;
  if (&from == &to) return 0;
  Show(from, key, listener.by.uid);
  from.reached.Note(dmb.what.uuid, dmb.what.a, dmb.what.b, message.addr);
  return 0;
}

// Only the daemon that has the other end of the connection's link group.
int Broker::AttachConnection(Client& client, const Dmb& dmb, const ctl::Msg& message) {
  if (dmb.owner != &client) {
    const auto link = links_.find(dmb.what.id);
    if (link == links_.end() || !Same(link->second.stack[0], dmb.what.uuid) ||
        !Same(link->second.stack[1], message.uuid))
      return -ENOENT;
    const auto server = stacks_.find(message.uuid);
    if (server == stacks_.end() || server->second.member != &client) return -EPERM;
  }
  return 0;
}

// No address was translated on the way, says the server's daemon: the client's network namespace
// may go by the directory. The client's daemon has said that a client has reached the listener
// there; else any member could have all connections to any address.
void Broker::Learn(Client& server, const ctl::Msg& message, UniqueFd) {
  const Member& owner = *MemberOf(server);
  const auto offer = owner.offers.find(KeyOf(message.uuid, message.a, message.b));
  const auto stack = stacks_.find(message.peer);
  if (offer == owner.offers.end() || stack == stacks_.end() || stack->second.member == nullptr)
    return;
  Member& to = *MemberOf(*stack->second.member);
  if (!to.reached.Take(message.uuid, message.a, message.b, message.addr)) return;
  if (to.who.netns == owner.who.netns ||
      !policy_.Allows(stack->second.who, offer->second.by, offer->second.local.port))
    return;
  if (asks_.open(*to.client) >= kLearnsMax) return;
  Listener listener = offer->second;
  listener.local = message.addr;
  listener.learnt = true;
  Show(to, offer->first, offer->second.by.uid);
  asks_.Ask(*to.client, MessageOf(ctl::Type::kListener, listener), {},
            [](int, const ctl::Msg&, UniqueFd) {});
}

void Broker::ForgetDmb(std::map<uint64_t, Dmb>::iterator it) {
  dmbs_in_order_.erase(it->second.place);
  dmbs_.erase(it);
}

void Broker::ForgetDmbs(const Client* client) {
  for (auto it = dmbs_.begin(); it != dmbs_.end();) {
    const auto one = it++;
    if (one->second.owner == client) ForgetDmb(one);
  }
}

// Those that no daemon can wait for any more.
void Broker::ForgetOldDmbs() {
  const auto now = std::chrono::steady_clock::now();
  while (!dmbs_in_order_.empty()) {
    const auto oldest = dmbs_.find(dmbs_in_order_.front());
    if (oldest->second.until >= now) return;
    ForgetDmb(oldest);
  }
}

}  // namespace postern::daemon
