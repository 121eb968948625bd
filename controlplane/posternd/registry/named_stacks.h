// named_stacks.h - which stack has which name (-o stack.name=): lib/control/named_stack.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "registry.h"

namespace postern::daemon {

class NamedStacks {
 public:
  // A process without a stack offers `memfd`, in whose options the name is; `out` is the stack to
  // join: that of the first process. 0 or -errno.
  int Find(pid_t pid, uid_t uid, UniqueFd memfd, SharedFd& out);
  // A process that has left `origin` for the user `uid` offers `memfd`; `out` is the stack of all
  // that have done so, and `id` its id. 0 or -errno; -EDQUOT: that user has as many as one may.
  int FindGuests(const Registry& registry, const pstn_uuid& origin, pid_t pid, uid_t uid,
                 UniqueFd memfd, SharedFd& out, pstn_uuid& id);
  // Whether that guest's user, who brings this stack, has it already or may have one more.
  bool MayBring(const Registry& registry, const pstn_uuid& stack, uid_t uid);
  // A stack whose process has said hello: after a restart we know its name by that.
  void Learn(const Stack& stack, pid_t pid, uid_t uid);
  // Those of stacks that have gone go, too. Others wait for their first hello.
  void Prune(const Registry& registry);

 private:
  struct Key {
    uid_t uid;
    uint64_t netns, pidns;
    std::string name;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    pstn_uuid id;
    SharedFd fd;
    bool known;  // has been in the registry
    Clock::time_point since;
  };
  int Enter(Key key, const pstn_uuid& id, pid_t pid, UniqueFd memfd, const Entry*& entry);
  // Stacks of that user's, who is a guest, without those that it has not taken.
  size_t GuestsOf(const Registry& registry, uid_t uid);
  static bool KeyOf(const StackLook& stack, pid_t pid, uid_t uid, Key& key);

  std::map<Key, Entry> entries_;
};

}  // namespace postern::daemon
