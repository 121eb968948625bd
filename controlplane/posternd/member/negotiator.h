// negotiator.h - the server's half of SMC-D handshakes (docs/protocols/smcd.md).
// SPDX-License-Identifier: Apache-2.0
//
// A process whose accept() meets a connection with SMC's option hands it over and forgets it. Here
// it is negotiated, for as long as its client takes: no client can hold up an accept(). Then
//
//   SMC-D   the client's connection slot is admitted like any other (peer/accept.cc); the TCP
//           connection stays open here, as the client's name and as a sign of its end
//   TCP     the connection is held for the next accept() of the listener's family
//   abort   it is reset
#pragma once
#include <map>
#include <memory>
#include <tuple>

#include "../kit/event.h"
#include "../kit/fd.h"
#include "../registry/registry.h"
#include "smcd/clc_fsm.h"
#include "upstream.h"

namespace postern::daemon {

class Negotiator {
 public:
  Negotiator(event_base* base, Registry& registry, Upstream& upstream);
  ~Negotiator();

  void SetHost(const pstn_host& host);
  void Take(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen, UniqueFd socket);
  // One that is held; null: there is none.
  SharedFd TakeHeld(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen);
  // The process that was to have it could not take it: it is the next one's again.
  void PutBackHeld(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen, SharedFd socket);
  // A listener that is told of: what another posternd, which is gone, has left there means nothing.
  void ListenerHere(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen);
  // A client that waits for a listener that has ended is reset, as the kernel does it.
  void ListenerGone(const pstn_uuid& stack, uint32_t ep_idx, uint32_t ep_gen);
  void StacksChanged();

 private:
  struct Talk;
  using Key = std::tuple<uint64_t, uint64_t, uint32_t, uint32_t>;  // stack, endpoint, gen
  struct Waiting {
    uint32_t talks = 0;
    std::vector<SharedFd> held;  // oldest first
  };

  // A guest's connections that are kept here cost descriptors of ours, as in the registry: one user
  // has an eighth, all have a quarter.
  bool HasRoomForGuest(uid_t uid) const;
  void Step(Talk& talk, const ClcEvent& event);
  void Do(Talk& talk, const ClcActions& actions);
  void Request(Talk& talk, ClcDo what);
  void Register(Talk& talk);
  void Attach(Talk& talk);
  void Acknowledge(Talk& talk);
  void Acknowledged(Talk& talk, int status, bool translated, const pstn_addr& server);
  void Readable(Talk& talk);
  bool ReadMessage(Talk& talk);
  void Finish(Talk& talk, ClcDo how);
  void Erase(Talk& talk);
  void Publish(const Key& key);
  // A later answer of the broker's, if the talk still is there.
  Asks::Done Later(const Talk& talk, void (Negotiator::*then)(Talk&, int, const ctl::Msg&));
  void Registered(Talk& talk, int status, const ctl::Msg& answer);
  void Attached(Talk& talk, int status, const ctl::Msg& answer);

  event_base* base_;
  Registry& registry_;
  Upstream& upstream_;
  ClcLocal local_;
  std::map<uint64_t, std::unique_ptr<Talk>> talks_;  // under way, or open beside SMC-D
  std::map<Key, Waiting> waiting_;                   // by listener
  uint64_t next_ = 1;
};

}  // namespace postern::daemon
