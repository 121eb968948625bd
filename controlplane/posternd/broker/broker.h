// broker.h - posternd --system: introduces the daemons of users and containers to each other.
// SPDX-License-Identifier: Apache-2.0
//
//   programs -- posternd of a user --+
//                                    +-- broker      (docs/adr/0006)
//   programs -- posternd of a user --+
//
// A member is such a daemon. The broker maps no memory that a member or its programs can write:
// what it knows is what the kernel says (credentials, namespaces, sockets, pidfds), and what
// members claim about their own stacks, which can harm only themselves: a stack belongs to the
// member that named it first, until that one and all its processes are gone.
#pragma once
#include <sys/socket.h>

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "../directory/directory.h"
#include "../directory/listener_watch.h"
#include "../directory/reached.h"
#include "../kit/event.h"
#include "../kit/rate_limit.h"
#include "../kit/uuid.h"
#include "../line/asks.h"
#include "../line/bells.h"
#include "../line/client.h"
#include "../line/quota.h"
#include "../nic/vis.h"
#include "../routes/addresses.h"
#include "../routes/addresses_through.h"
#include "../routes/routes.h"
#include "policy.h"

namespace postern::daemon {

class Broker {
 public:
  // bells: in its namespace, or not ok(): then network namespaces are not connected.
  Broker(event_base* base, UniqueFd listener, Policy policy, const pstn_uuid& gid, BellSpace& bells,
         bool has_syn_option, Vis& vis);
  ~Broker();

  void SetPolicy(Policy policy);

 private:
  using Handler = void (Broker::*)(Client&, const ctl::Msg&, UniqueFd);
  using OfferKey = std::tuple<uint64_t, uint64_t, uint32_t, uint32_t>;  // stack, endpoint, gen

  struct Offered : Listener {
    Who by;  // as it is allowed, and counted
    Quota::Held held;
  };
  // What a member knows of the others' offers, and is still to hear (broker_tell.cc).
  // Listeners of others that a member knows. Its directory has so many places for them, and one
  // user gets no more of these than half of what is left free: so that nobody fills it alone, and
  // there is room for the next one.
  class Shown {
   public:
    bool Has(const OfferKey& key) const { return of_.count(key) != 0; }
    void Add(const OfferKey& key, uid_t uid);
    bool Drop(const OfferKey& key);  // whether it was there
    bool HasRoom(uid_t uid) const;
    void AddTo(std::set<OfferKey>& keys) const;

   private:
    std::map<OfferKey, uid_t> of_;
    std::map<uid_t, size_t> count_;
  };
  // An end of a link group.
  struct EndLess {
    bool operator()(const std::pair<pstn_uuid, uint32_t>& a,
                    const std::pair<pstn_uuid, uint32_t>& b) const {
      return std::tie(a.first.hi, a.first.lo, a.second) <
             std::tie(b.first.hi, b.first.lo, b.second);
    }
  };
  struct Told {
    Shown shown;               // it has been told of these
    bool left_out = false;     // ... and not of others, for which there was no room
    std::set<OfferKey> stale;  // to be told how these are now
    std::set<OfferKey> asked;  // told, and not answered yet
    // Those that want to know when it has heard: called by the last copy's end.
    struct Awaited {
      std::vector<std::shared_ptr<void>> by;
      std::chrono::steady_clock::time_point since;
    };
    std::map<OfferKey, Awaited> awaited;
    std::chrono::steady_clock::time_point awaited_since;  // or since its last answer
    // Those whose answer goes behind the news of it (Seek): called likewise.
    std::map<OfferKey, std::vector<std::shared_ptr<void>>> before;
    OfferKey next{};            // all before this one were looked at since it joined
    bool has_seen_all = false;  // all were
  };
  struct Member {
    // Whether it is to be told of listeners on that port.
    bool Wants(uint16_t port) const { return !seeks || sought.count(port) != 0; }
    std::unique_ptr<Client> client;
    Who who;
    std::set<std::pair<uid_t, gid_t>> guests;  // that its stacks are of, beside its own user
    Quota::Held line;
    // The process that has connected, which is who the member is, for as long as it lives; and its
    // network namespace when it joined, which is not forgotten before the member is: while it is
    // held, no other one has its number.
    UniqueFd pidfd, netns;
    std::unique_ptr<Event> died;
    bool joined = false;
    bool seeks = false;         // it is told of what it has asked for (kSeek)
    std::set<uint16_t> sought;  // the ports
    std::map<OfferKey, Offered> offers;
    Told told;
    Reached reached;  // by its clients
    NetnsOwner netns_owner;
    UniqueFd asked_through;            // to be asked for the addresses of its network namespace
    std::vector<pstn_addr> addresses;  // as the kernel has said through it
    SharedFd host;                     // as it knows it
    RateLimit vi_asks;
    // What it hears when it has taken what it was sent before.
    std::set<std::pair<pstn_uuid, uint32_t>, EndLess> ended;  // link groups, and which side's end
    bool vi_free = false;
  };
  struct Stack {
    Client* member = nullptr;  // null: its daemon is gone, and may come back
    Who who;                   // by what its daemon says, if that is believed (WhoIs)
    std::map<pid_t, std::unique_ptr<Event>> processes;
    std::map<pid_t, UniqueFd> pidfds;
    std::map<pid_t, Quota::Held> held;  // with each
    Quota::Held own;
  };
  struct Link {
    pstn_uuid stack[2];  // client's, server's
    Quota::Held held;
    bool known[2] = {true, true};
    bool missed = false;  // for a round already
  };

  // Registered and not attached yet: `what` as it was asked.
  struct Dmb {
    Client* owner = nullptr;
    Quota::Held held;
    ctl::Msg what;
    std::chrono::steady_clock::time_point until;
    std::list<uint64_t>::iterator place;  // among dmbs_in_order_
  };

  // broker.cc: members
  static Handler HandlerOf(ctl::Type type);
  void AcceptAll();
  void OnMessage(Client& client, const ctl::Msg& message, UniqueFd fd);
  void OnGone(Client& client);
  Member* MemberOf(const Client& client);
  // Asked after what /proc says of its pid: it was about that process.
  static bool IsStillThere(const Member& member);
  // Whom a message is about. A daemon of root's may have guests: their stacks are theirs here, too.
  static Who WhoIs(const Member& member, const ctl::Msg& message);
  // The stack, claimed for the message's sender; null: it is another member's.
  Stack* Claim(Client& client, const ctl::Msg& message, const pstn_uuid& id);
  void HasGuest(Client& client, const Who& who);
  // Any user of the member's.
  bool MayReach(const Member& from, const Offered& listener) const;
  void Join(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Alive(Client& client, const ctl::Msg& message, UniqueFd fd);
  void ProcessDied(const pstn_uuid& stack, pid_t pid);
  bool IsUsed(const pstn_uuid& stack, const Client& member);
  void ForgetIfDead(const pstn_uuid& stack);

  // broker_offers.cc: listeners
  int Check(const Member& member, const ctl::Msg& message, const UniqueFd& fd, Listener& listener);
  void Offer(Client& client, const ctl::Msg& message, UniqueFd fd);
  void DropOffer(const OfferKey& key);
  void Index(const OfferKey& key, const Offered& offer);
  void Unindex(const OfferKey& key, const Offered& offer);
  void Seek(Client& client, const ctl::Msg& message, UniqueFd fd);
  void SeekAll(Member& member);
  void ForgetSought(Member& member);
  void ForgetTold(Member& gone);
  // The kernel's word: its socket is gone.
  void OfferEnded(uint64_t cookie);
  void Unoffer(Client& client, const ctl::Msg& message, UniqueFd fd);
  bool MayShow(const Member& owner, const Member& to, const Offered& listener) const;
  // `done` when no daemon knows it any more.
  void Withdraw(const OfferKey& key, std::function<void()> done);
  // broker_tell.cc: as fast as each member takes it
  void Changed(Member& to, const OfferKey& key);
  void NewFor(Member& to, const OfferKey& key, uid_t owner);  // offered now
  void Tell(Member& to);
  void TellOf(Member& to, const OfferKey& key);
  void SayHowItIs(Member& to, const OfferKey& key);
  void Answered(Client* line, const OfferKey& key);
  void LookFurther(Member& to);
  void LookAgain(Member& to);
  void Show(Member& to, const OfferKey& key, uid_t owner);
  bool Hide(Member& to, const OfferKey& key);  // whether it knew it
  void ForgetKnower(const Member& member, const OfferKey& key);
  void TellAll();
  void Refill();
  void DoNotWait();
  bool IsSlow(uid_t uid);
  static OfferKey KeyOf(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen);

  // broker_links.cc: link groups
  void MakeLink(Client& client, const ctl::Msg& message, UniqueFd fd);
  void HaveLink(Client& client, const ctl::Msg& message, UniqueFd fd);
  void LinkEnd(Client& client, const ctl::Msg& message, UniqueFd fd);
  void EndSide(const pstn_uuid& id, uint32_t side);
  bool AddLink(const pstn_uuid& id, const pstn_uuid& client, const pstn_uuid& server,
               Quota::Held held);
  void DropLink(const pstn_uuid& id);
  void TellNews(Member& to);
  uint32_t LinksBetween(const pstn_uuid& client, const pstn_uuid& server) const;
  void GraceEnds();
  bool MayLink(const Member& from, const Who& client, const Member& to, const pstn_uuid& server);

  // broker_device.cc: tokens
  uint64_t NewToken() const;
  void Register(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Attach(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Release(Client& client, const ctl::Msg& message, UniqueFd fd);
  int AttachListener(Client& client, const Dmb& dmb, const ctl::Msg& message);
  int AttachConnection(Client& client, const Dmb& dmb, const ctl::Msg& message);
  void Learn(Client& server, const ctl::Msg& message, UniqueFd fd);
  void ForgetDmbs(const Client* client);
  void ForgetOldDmbs();
  void ForgetDmb(std::map<uint64_t, Dmb>::iterator it);

  // broker_host.cc
  void Addresses(Client& client, const ctl::Msg& message, UniqueFd fd);
  // A host as it is told to some members: those with these owners of network namespaces.
  struct View {
    std::unique_ptr<pstn_host> host;
    SharedFd memfd;
  };
  using Owners = std::set<uid_t>;
  void LookAtAddresses();
  Owners OwnersFor(const Member& member, const Owners& known) const;
  std::unique_ptr<pstn_host> HostFor(const Owners& owners) const;
  const View& ViewFor(const Owners& owners);
  void TellHost();
  void Bell(Client& client, const ctl::Msg& message, UniqueFd fd);
  ViAsker AskerFor(const Member& member, const pstn_uuid& stack) const;
  bool MayAskNow(Member& member, uint32_t cost) const;
  void TellViFree();
  void Vi(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Filter(Client& client, const ctl::Msg& message, UniqueFd fd);
  void GetRoutes(Client& client, const ctl::Msg& message, UniqueFd fd);
  void Resolve(Client& client, const ctl::Msg& message, UniqueFd fd);

  event_base* base_;
  UniqueFd listener_;
  Policy policy_;
  const pstn_uuid gid_;
  // What each user has of ours; before all that holds some of it.
  struct {
    Quota lines, stacks, processes, offers, links, tokens, fds;
  } quota_;
  Turns turns_;
  std::map<Client*, std::unique_ptr<Member>> members_;
  std::map<pstn_uuid, Stack, UuidLess> stacks_;
  std::map<pstn_uuid, Link, UuidLess> links_;
  std::map<pstn_uuid, std::set<pstn_uuid, UuidLess>, UuidLess> links_of_;  // each stack's
  std::map<OfferKey, Client*> offered_;                                    // by which member
  std::set<std::pair<uint64_t, OfferKey>> cookies_;  // of the sockets, and the offers of each
  std::map<std::pair<uint64_t, uint16_t>, std::set<OfferKey>> at_port_;  // by network namespace
  // Members that are told of an offer on that port, and those that are told of all.
  std::map<uint16_t, std::set<Client*>> seekers_;
  std::set<Client*> told_all_;
  std::map<OfferKey, std::set<Client*>> knowers_;  // members that know it, or are being told
  std::map<uid_t, std::chrono::steady_clock::time_point> slow_until_;
  std::map<uid_t, std::chrono::steady_clock::time_point> rests_;  // no list for it until then
  std::map<uint64_t, Dmb> dmbs_;                                  // by token
  std::list<uint64_t> dmbs_in_order_;                             // the oldest first
  BellSpace& bells_;
  Vis& vis_;
  const bool has_syn_option_;
  std::vector<pstn_addr> own_addresses_;
  Client* looked_last_ = nullptr;  // of those whose addresses are asked for; maybe gone
  std::map<Owners, View> views_;
  Asks asks_;
  Event acceptable_, again_, grace_, tell_, tell_further_, refill_, patience_;
  ListenerWatch listening_;
  AddressWatch watch_;
  Routes routes_;  // of our own network namespace
};

}  // namespace postern::daemon
