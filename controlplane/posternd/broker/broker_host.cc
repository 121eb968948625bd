// broker_host.cc - what the members hear of the host: its name as a device, its addresses; and the
// doorbells that it gives out.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "../kit/log.h"
#include "../kit/proc.h"
#include "../report/report.h"
#include "base/ip_address.h"
#include "broker.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kTellLaterMs = 200;
constexpr uint32_t kTellMs = 20;      // so that what changes together is told once
constexpr int kAddressLooksMax = 16;  // of a time that the host is told; each takes some 100 us
constexpr uint16_t kWholeAddress = 128;
// All that fit are PSTN_DIR_ADDRS: none has them all.
constexpr size_t kAddressesOfMember = 64;

// Others mean the same host everywhere, or nothing outside their link.
bool MayBeReached(const pstn_addr& addr) {
  const IpAddress ip = IpOf(addr);
  if (ip.IsLoopback()) return false;
  if (!ip.IsV4()) return !ip.IsLinkLocal();
  return !(ip.v4()[0] == 169 && ip.v4()[1] == 254) && ip.v4()[0] != 0;
}

struct LessAddr {
  bool operator()(const pstn_addr& a, const pstn_addr& b) const { return CompareAddr(a, b) < 0; }
};

}  // namespace

void Broker::Addresses(Client& client, const ctl::Msg&, UniqueFd fd) {
  MemberOf(client)->asked_through = std::move(fd);
  tell_.AddMs(kTellMs);
}

// A member that says so again and again is looked at once for each time that the others are told.
// Our own network namespace is known already. Some at a time, in turns: a look is the kernel's
// work, in which no other message is taken.
void Broker::LookAtAddresses() {
  const uint64_t ours = OwnNetnsIno();
  int looks = 0;
  auto it = members_.upper_bound(looked_last_);
  for (size_t n = members_.size(); n != 0; --n, ++it) {
    if (it == members_.end()) it = members_.begin();
    const std::unique_ptr<Member>& member = it->second;
    if (!member->asked_through.ok()) continue;
    if (member->who.netns != ours && ++looks > kAddressLooksMax) return tell_.AddMs(kTellMs);
    looked_last_ = it->first;
    const UniqueFd socket = std::move(member->asked_through);
    if (member->who.netns == ours) continue;
    if (!AddressesThrough(socket, member->who.netns, member->addresses)) member->addresses.clear();
    if (member->addresses.size() > kAddressesOfMember) member->addresses.resize(kAddressesOfMember);
  }
}

// The addresses of a network namespace that a user has made, with a user namespace of its own, may
// be any: they concern that user alone.
Broker::Owners Broker::OwnersFor(const Member& member, const Owners& known) const {
  Owners owners;
  const uid_t both[] = {member.who.uid,
                        member.netns_owner.host ? member.who.uid : member.netns_owner.uid};
  for (const uid_t uid : both) {
    if (known.count(uid) != 0) owners.insert(uid);
  }
  return owners;
}

std::unique_ptr<pstn_host> Broker::HostFor(const Owners& owners) const {
  auto host = std::make_unique<pstn_host>();
  host->gid = gid_;
  host->flags =
      (bells_.ok() ? PSTN_HOST_BELLS : 0u) | (bells_.ok() && has_syn_option_ ? PSTN_HOST_SMC : 0u);
  for (const std::string& ueid : policy_.ueids) {
    uint8_t* const place = host->ueids[host->ueid_count++];
    memset(place, ' ', sizeof(host->ueids[0]));
    // 32 bytes with blanks behind, no string: NOLINTNEXTLINE(bugprone-not-null-terminated-result)
    memcpy(place, ueid.data(), std::min(ueid.size(), sizeof(host->ueids[0])));
  }
  std::set<pstn_addr, LessAddr> all(policy_.addresses.begin(), policy_.addresses.end());
  const auto add = [&all](const std::vector<pstn_addr>& addresses) {
    for (pstn_addr addr : addresses) {
      addr.port = kWholeAddress;
      addr.zero = 0;
      addr.scope = 0;
      if (MayBeReached(addr)) all.insert(addr);
    }
  };
  add(own_addresses_);
  for (const auto& [line, member] : members_) {
    const NetnsOwner& of = member->netns_owner;
    if (all.size() > 2 * PSTN_DIR_ADDRS) break;  // more than fit, whatever comes
    if (of.host || owners.count(of.uid) != 0) add(member->addresses);
  }
  if (all.size() > PSTN_DIR_ADDRS)
    Warn("only %u of the host's addresses fit: peers behind the others stay with the kernel",
         PSTN_DIR_ADDRS);
  for (const pstn_addr& addr : all) {
    if (host->addr_count < PSTN_DIR_ADDRS) host->addrs[host->addr_count++] = addr;
  }
  return host;
}

const Broker::View& Broker::ViewFor(const Owners& owners) {
  View& view = views_[owners];
  std::unique_ptr<pstn_host> host = HostFor(owners);
  if (view.host != nullptr && memcmp(view.host.get(), host.get(), sizeof(*host)) == 0) return view;
  UniqueFd memfd = ToMemfd({reinterpret_cast<const char*>(host.get()), sizeof(*host)});
  if (!memfd.ok()) Warn("cannot tell the members of the host: %s", strerror(errno));
  view.memfd = memfd.ok() ? Share(std::move(memfd)) : nullptr;
  view.host = std::move(host);
  return view;
}

void Broker::TellHost() {
  LookAtAddresses();
  Owners known;
  for (const auto& [line, member] : members_) {
    if (!member->netns_owner.host && !member->addresses.empty())
      known.insert(member->netns_owner.uid);
  }
  ctl::Msg message;
  message.type = ctl::Type::kHost;
  std::map<Owners, SharedFd> now;
  for (const auto& [line, member] : members_) {
    if (!member->joined) continue;
    const Owners owners = OwnersFor(*member, known);
    if (now.count(owners) == 0) now[owners] = ViewFor(owners).memfd;
    const SharedFd& memfd = now[owners];
    if (memfd == nullptr || member->host == memfd) continue;
    // One that does not read is told of the last change alone.
    if (member->client->queued() != 0) {
      tell_.AddMs(kTellLaterMs);
      continue;
    }
    member->host = memfd;
    member->client->Send(message, memfd);
  }
  for (auto it = views_.begin(); it != views_.end();)
    it = now.count(it->first) == 0 ? views_.erase(it) : std::next(it);
}

void Broker::Bell(Client& client, const ctl::Msg& message, UniqueFd) {
  if (!bells_.ok()) return client.Reply(message, ENOTSUP);
  if (message.a != PSTN_NONE &&
      (message.a >= PSTN_WAITERS || Claim(client, message, message.uuid) == nullptr))
    return client.Reply(message, EPERM);
  UniqueFd bell = bells_.Open({message.uuid, message.a, message.cookie});
  if (!bell.ok()) return client.Reply(message, errno);
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  client.Send(reply, Share(std::move(bell)));
}

ViAsker Broker::AskerFor(const Member& member, const pstn_uuid& stack) const {
  const auto may_have = [this, &member](const std::string& interface) {
    return policy_.AllowsVi(member.who, interface);
  };
  return {stack, member.who.uid, policy_.filters_max, may_have};
}

// To make a VI and to check a filter takes time in which no other member is served.
bool Broker::MayAskNow(Member& member, uint32_t cost) const {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  return member.vi_asks.Take(static_cast<uint64_t>(now_ns), policy_.vi_asks_max, cost);
}

// In the network namespace that the member had when it joined.
void Broker::Vi(Client& client, const ctl::Msg& message, UniqueFd fd) {
  Member& member = *MemberOf(client);
  if (!vis_.enabled()) return client.Reply(message, ENOTSUP);
  if (!MayAskNow(member, kViAskCost)) return client.Reply(message, EBUSY);
  if (Claim(client, message, message.uuid) == nullptr) return client.Reply(message, EPERM);
  if (!IsStillThere(member)) return client.Reply(message, EPERM);
  const ViAsker asker = AskerFor(member, message.uuid);
  UniqueFd line;
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  reply.status = message.b != 0
                     ? -vis_.Adopt(asker, member.netns, message, std::move(fd), line, reply.cookie)
                     : -vis_.Open(asker, member.netns, message, std::move(fd), line);
  client.Send(reply, line.ok() ? Share(std::move(line)) : SharedFd());
}

void Broker::Filter(Client& client, const ctl::Msg& message, UniqueFd fd) {
  if (Claim(client, message, message.uuid) == nullptr) return client.Reply(message, EPERM);
  Member& member = *MemberOf(client);
  // What takes something away is never too much.
  if (message.a == ctl::kFilterAdd && !MayAskNow(member, 1)) return client.Reply(message, EBUSY);
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  reply.status = -vis_.Filter(AskerFor(member, message.uuid), message, std::move(fd), reply);
  client.Send(reply);
}

void Broker::TellViFree() {
  for (const auto& [line, member] : members_) {
    member->vi_free = member->joined;
    TellNews(*member);
  }
}

void Broker::GetRoutes(Client& client, const ctl::Msg& message, UniqueFd) {
  if (MemberOf(client)->who.netns != OwnNetnsIno()) return client.Reply(message, EXDEV);
  SharedFd tables = routes_.Tables();
  if (tables == nullptr) return client.Reply(message, ENODEV);
  ctl::Msg reply;
  reply.type = message.type;
  reply.seq = message.seq;
  client.Send(reply, std::move(tables));
}

void Broker::Resolve(Client& client, const ctl::Msg& message, UniqueFd) {
  if (MemberOf(client)->who.netns == OwnNetnsIno()) routes_.Resolve(message.a, message.addr.ip);
}

}  // namespace postern::daemon
