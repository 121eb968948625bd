// keepers.h - starts a keeper for each stack that needs one, and hands it its work.
// SPDX-License-Identifier: Apache-2.0
//
//   program -- kExport --> posternd -- kExport, seq of ours --> keeper -- status --> posternd --
//   status --> program
//
// A keeper is known by the line on which it has said kKeeper. Work that comes before that waits;
// when the line breaks, a client that waits for an answer gets EIO and may ask again.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "../kit/event.h"
#include "../kit/uuid.h"
#include "../line/client.h"
#include "registry.h"

namespace postern::daemon {

class Keepers {
 public:
  Keepers(event_base* base, std::string runtime_dir);

  // A request of `asker` for its own stack; answered later.
  void Export(Client& asker, const Stack& stack, const ctl::Msg& request, UniqueFd fd);
  // Has those that wait for a listener of that stack's go to the kernel's queue. `done`, if there
  // is one, is called when they have, or can't.
  void PassQueue(const Stack& stack, const ctl::Msg& listener, UniqueFd fd,
                 std::function<void()> done = {});
  // Has the stack's keeper run its wire.
  void Wire(Client* asker, const Stack& stack, const ctl::Msg& request);
  bool Has(const pstn_uuid& stack) const { return keepers_.count(stack) != 0; }
  // Of the stack's keeper; 0: it has none.
  pid_t Pid(const pstn_uuid& stack) const;
  void OnKeeper(Client& client, const pstn_uuid& stack);
  // The keeper's answer. False: the client is not a keeper.
  bool OnAnswer(Client& client, const ctl::Msg& answer);
  void OnGone(Client& client);
  std::function<void()> on_lost;                    // one has ended
  std::function<void(pid_t, int status)> on_child;  // any child of this process

 private:
  struct Job {
    Client* asker;  // null: it has gone
    ctl::Msg request;
    SharedFd fd;
    std::function<void()> done;
    bool sent = false;
  };
  struct Keeper {
    pid_t pid = 0;  // 0: another posternd's child, met again after a restart
    Client* line = nullptr;
    std::map<uint32_t, Job> jobs;  // by the seq we gave them
  };

  using ByStack = std::map<pstn_uuid, Keeper, UuidLess>;

  void Ask(Client* asker, const Stack& stack, const ctl::Msg& request, SharedFd fd,
           std::function<void()> done = {});
  pid_t Spawn(const Stack& stack) const;
  void Send(Keeper& keeper, uint32_t seq, Job& job);
  void Fail(ByStack::iterator at);
  void Reap();

  std::string runtime_dir_;
  uint32_t next_seq_ = 0;
  ByStack keepers_;
  Event child_;
};

}  // namespace postern::daemon
