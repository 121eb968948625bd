// broker.cc - the broker's members: their identity, their stacks, their ends.
// SPDX-License-Identifier: Apache-2.0
#include "broker.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "../kit/log.h"
#include "../kit/proc.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kMemberAcceptPauseMs = 100;
constexpr int kMemberAcceptsMax = 16;              // then messages are taken
constexpr size_t kProcessesMax = kProcesses.most;  // of a stack
constexpr size_t kGuestUsersMax = 64;              // of a member, for whose sake it is told more

}  // namespace

Broker::Broker(event_base* base, UniqueFd listener, Policy policy, const pstn_uuid& gid,
               BellSpace& bells, bool has_syn_option, Vis& vis)
    : base_(base),
      listener_(std::move(listener)),
      policy_(std::move(policy)),
      gid_(gid),
      turns_(base),
      bells_(bells),
      vis_(vis),
      has_syn_option_(has_syn_option),
      asks_(base, ctl::kBrokerSeq),
      acceptable_(base, listener_.get(), static_cast<short>(EV_READ | EV_PERSIST),
                  [this] { AcceptAll(); }),
      again_(base, -1, 0, [this] { acceptable_.Add(); }),
      grace_(base, -1, 0, [this] { GraceEnds(); }),
      tell_(base, -1, 0, [this] { TellHost(); }),
      tell_further_(base, -1, 0, [this] { TellAll(); }),
      refill_(base, -1, 0, [this] { Refill(); }),
      patience_(base, -1, 0, [this] { DoNotWait(); }),
      listening_(base, [this](uint64_t cookie) { OfferEnded(cookie); }),
      watch_(base,
             [this](const std::vector<pstn_addr>& all) {
               own_addresses_ = all;
               tell_.AddMs(0);
             }),
      routes_(base, 0) {
  acceptable_.Add();
  vis_.on_free = [this] { TellViFree(); };
}

// What is awaited calls back, and looks for the members.
Broker::~Broker() {
  for (const auto& [line, member] : members_) {
    const auto awaited = std::exchange(member->told.awaited, {});
    const auto before = std::exchange(member->told.before, {});
  }
}

void Broker::AcceptAll() {
  for (int i = 0; i < kMemberAcceptsMax; ++i) {
    UniqueFd fd = AcceptLine(listener_);
    if (!fd.ok()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      Warn("cannot accept a daemon: %s", strerror(errno));
      acceptable_.Del();
      return again_.AddMs(kMemberAcceptPauseMs);
    }
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) continue;
    Quota::Held line = quota_.lines.Take(peer.uid, policy_.daemons_max);
    if (!line.ok()) {
      Warn("pid %d was refused: user %u has %u daemons already", peer.pid, peer.uid,
           policy_.daemons_max);
      continue;
    }
    auto member = std::make_unique<Member>();
    member->line = std::move(line);
    member->pidfd = PeerPidfd(fd.get(), peer.pid);
    member->who.pid = peer.pid;
    member->who.uid = peer.uid;
    member->who.gid = peer.gid;
    member->client = std::make_unique<Client>(
        base_, std::move(fd), peer,
        [this](Client& c, const ctl::Msg& m, UniqueFd with) { OnMessage(c, m, std::move(with)); },
        [this](Client& c) { OnGone(c); });
    Client* const key = member->client.get();
    key->on_drained = [this, key] { TellNews(*MemberOf(*key)); };
    key->ServeInTurns(turns_, quota_.fds, policy_.descriptors_max);
    if (member->pidfd.ok()) {
      member->died =
          std::make_unique<Event>(base_, member->pidfd.get(), EV_READ, [key] { key->Break(); });
      member->died->Add();
    }
    members_.emplace(key, std::move(member));
  }
}

Broker::Handler Broker::HandlerOf(ctl::Type type) {
  switch (type) {
    case ctl::Type::kJoin:
      return &Broker::Join;
    case ctl::Type::kOffer:
      return &Broker::Offer;
    case ctl::Type::kUnoffer:
      return &Broker::Unoffer;
    case ctl::Type::kLink:
      return &Broker::MakeLink;
    case ctl::Type::kHaveLink:
      return &Broker::HaveLink;
    case ctl::Type::kLinkEnd:
      return &Broker::LinkEnd;
    case ctl::Type::kAlive:
      return &Broker::Alive;
    case ctl::Type::kRegister:
      return &Broker::Register;
    case ctl::Type::kAttach:
      return &Broker::Attach;
    case ctl::Type::kRelease:
      return &Broker::Release;
    case ctl::Type::kLearn:
      return &Broker::Learn;
    case ctl::Type::kAddresses:
      return &Broker::Addresses;
    case ctl::Type::kBell:
      return &Broker::Bell;
    case ctl::Type::kVi:
      return &Broker::Vi;
    case ctl::Type::kFilter:
      return &Broker::Filter;
    case ctl::Type::kRoutes:
      return &Broker::GetRoutes;
    case ctl::Type::kResolve:
      return &Broker::Resolve;
    case ctl::Type::kSeek:
      return &Broker::Seek;
    default:
      return nullptr;
  }
}

void Broker::OnMessage(Client& client, const ctl::Msg& message, UniqueFd fd) {
  if (asks_.OnAnswer(client, message, fd)) return;
  const Handler handler = HandlerOf(message.type);
  if (handler == nullptr) return client.Reply(message, ENOSYS);
  if (!MemberOf(client)->joined && message.type != ctl::Type::kJoin)
    return client.Reply(message, ENOTCONN);
  if (client.lost_fd()) return client.Reply(message, EMFILE);
  (this->*handler)(client, message, std::move(fd));
}

Broker::Member* Broker::MemberOf(const Client& client) {
  return members_.at(const_cast<Client*>(&client)).get();
}

bool Broker::IsStillThere(const Member& member) {
  return member.pidfd.ok() && !PidfdIsDead(member.pidfd.get());
}

// Once: what it has offered is of the network namespace that it had then. The line says nothing of
// the process, whose child may have it.
void Broker::Join(Client& client, const ctl::Msg& message, UniqueFd) {
  Member& member = *MemberOf(client);
  if (member.joined) return client.Reply(message, EISCONN);
  member.netns = OpenNetns(member.who.pid, 0);
  member.who.netns = member.netns.ok() ? InodeOf(member.netns.get()) : 0;
  member.who.cgroup = CgroupOf(member.who.pid);
  if (member.who.netns == 0 || !IsStillThere(member)) return client.Reply(message, EPERM);
  member.netns_owner = OwnerOf(member.netns);
  member.joined = true;
  Inform("daemon %d of user %u joins, cgroup %s", member.who.pid, member.who.uid,
         member.who.cgroup.c_str());
  member.seeks = message.a == ctl::kJoinSeeks;
  member.told.has_seen_all = member.seeks;
  if (!member.seeks) told_all_.insert(&client);
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  reply.a = member.seeks ? ctl::kJoinSeeks : 0;
  client.Send(reply);
  tell_.AddMs(0);
  Tell(member);
}

// Root is believed: it can be each user. What another one says would be a way to that one's rights,
// or to another one's quotas.
Who Broker::WhoIs(const Member& member, const ctl::Msg& message) {
  Who who = member.who;
  if (message.whose == 0 || who.uid != 0) return who;
  who.uid = ctl::WhoseUid(message);
  who.gid = ctl::WhoseGid(message);
  return who;
}

void Broker::HasGuest(Client& client, const Who& who) {
  Member& member = *MemberOf(client);
  if (who.uid == member.who.uid || member.guests.size() >= kGuestUsersMax) return;
  if (!member.guests.emplace(who.uid, who.gid).second) return;
  LookAgain(member);
}

Broker::Stack* Broker::Claim(Client& client, const ctl::Msg& message, const pstn_uuid& id) {
  const Who who = WhoIs(*MemberOf(client), message);
  const uid_t uid = who.uid;
  auto it = stacks_.find(id);
  if (it == stacks_.end()) {
    Quota::Held own = quota_.stacks.Take(uid, policy_.stacks_max);
    if (!own.ok()) return nullptr;
    it = stacks_.try_emplace(id).first;
    it->second.own = std::move(own);
    it->second.who = who;
  }
  Stack& stack = it->second;
  if (stack.member == &client) return &stack;
  if (stack.member != nullptr || (!stack.pidfds.empty() && stack.who.uid != uid)) return nullptr;
  if (stack.who.uid != uid) {
    Quota::Held own = quota_.stacks.Take(uid, policy_.stacks_max);
    if (!own.ok()) return nullptr;
    stack.own = std::move(own);
  }
  stack.member = &client;
  stack.who = who;
  HasGuest(client, who);
  return &stack;
}

void Broker::Alive(Client& client, const ctl::Msg& message, UniqueFd fd) {
  Stack* const stack = Claim(client, message, message.uuid);
  const auto pid = static_cast<pid_t>(message.a);
  const auto refuse = [&](int error) {
    if (message.seq != 0) client.Reply(message, error);  // daemons expect no answer
  };
  if (stack == nullptr) return refuse(EPERM);
  if (!IsPidfd(fd.get())) return refuse(EINVAL);
  const uid_t uid = stack->who.uid;
  Quota::Held one = quota_.processes.Take(uid, policy_.processes_max);
  if (!one.ok() || stack->pidfds.size() >= kProcessesMax) {
    Warn("user %u has %u processes already", uid, quota_.processes.Used(uid));
    return refuse(EDQUOT);
  }
  stack->processes.erase(pid);
  stack->held[pid] = std::move(one);
  auto died = std::make_unique<Event>(base_, fd.get(), EV_READ,
                                      [this, id = message.uuid, pid] { ProcessDied(id, pid); });
  died->Add();
  stack->processes[pid] = std::move(died);
  stack->pidfds[pid] = std::move(fd);
}

void Broker::ProcessDied(const pstn_uuid& id, pid_t pid) {
  const auto it = stacks_.find(id);
  if (it == stacks_.end()) return;
  it->second.processes.erase(pid);  // before the descriptor that it watches
  it->second.pidfds.erase(pid);
  it->second.held.erase(pid);
  ForgetIfDead(id);
}

bool Broker::IsUsed(const pstn_uuid& id, const Client& member) {
  const auto& offers = MemberOf(member)->offers;
  const auto offer = offers.lower_bound(KeyOf(id, 0, 0));
  return (offer != offers.end() && Same(offer->second.stack, id)) || links_of_.count(id) != 0;
}

// A stack without processes. If its daemon is there, that one tells what ends with it. Else no
// process is left that could start another daemon.
void Broker::ForgetIfDead(const pstn_uuid& id) {
  const auto it = stacks_.find(id);
  if (it == stacks_.end() || !it->second.pidfds.empty()) return;
  if (it->second.member != nullptr && IsUsed(id, *it->second.member)) return;
  stacks_.erase(it);
  std::vector<std::pair<pstn_uuid, uint32_t>> ends;
  const auto its = links_of_.find(id);
  if (its == links_of_.end()) return;
  for (const pstn_uuid& link : its->second) {
    for (uint32_t side = 0; side < 2; ++side) {
      if (Same(links_.at(link).stack[side], id)) ends.emplace_back(link, side);
    }
  }
  for (const auto& [link_id, side] : ends) EndSide(link_id, side);
}

void Broker::OnGone(Client& client) {
  const auto it = members_.find(&client);
  const std::unique_ptr<Member> member = std::move(it->second);
  members_.erase(it);
  ForgetTold(*member);
  Inform("daemon %d of user %u is gone", member->who.pid, member->who.uid);
  for (const auto& [key, offer] : member->offers) {
    offered_.erase(key);
    Unindex(key, offer);
  }
  asks_.OnGone(client);
  ForgetDmbs(&client);
  tell_.AddMs(0);
  // Listeners: their processes offer them again to the next daemon, if they live.
  for (const auto& [key, listener] : member->offers) Withdraw(key, [] {});
  std::vector<pstn_uuid> owned;
  for (auto& [id, stack] : stacks_) {
    if (stack.member != &client) continue;
    stack.member = nullptr;
    owned.push_back(id);
  }
  for (const pstn_uuid& id : owned) ForgetIfDead(id);
}

void Broker::SetPolicy(Policy policy) {
  policy_ = std::move(policy);
  tell_.AddMs(0);
  for (const auto& [line, member] : members_) {
    Told& told = member->told;
    told.shown.AddTo(told.stale);
    LookAgain(*member);
  }
}

}  // namespace postern::daemon
