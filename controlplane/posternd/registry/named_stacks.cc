// named_stacks.cc - see named_stacks.h.
// SPDX-License-Identifier: Apache-2.0
#include "named_stacks.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "../kit/log.h"
#include "../kit/proc.h"
#include "base/schema/options.h"
#include "state/area.h"

namespace postern::daemon {
namespace {

// Of those that never came to say hello a user may have made many.
constexpr size_t kEntriesMax = 1024;

}  // namespace

// The name is copied once, and ends where its room does.
bool NamedStacks::KeyOf(const StackLook& stack, pid_t pid, uid_t uid, Key& key) {
  Options options;
  memcpy(&options, stack.hdr.options, sizeof(options));
  key = {uid, NetnsIno(pid), PidnsIno(pid),
         std::string(options.stack_name, strnlen(options.stack_name, sizeof(options.stack_name)))};
  return !key.name.empty() && key.netns != 0 && key.pidns != 0;
}

int NamedStacks::Find(pid_t pid, uid_t uid, UniqueFd memfd, SharedFd& out) {
  const StackLook* const stack = LookAtStack(memfd.get());
  if (stack == nullptr) return -EINVAL;
  Key key;
  const bool named = KeyOf(*stack, pid, uid, key);
  const pstn_uuid id = stack->hdr.id;
  UnmapStack(stack);
  if (!named) return -EINVAL;
  if (entries_.size() >= kEntriesMax && entries_.find(key) == entries_.end()) return -ENOSPC;
  const auto [it, is_new] = entries_.try_emplace(std::move(key), Entry{id, nullptr, false});
  if (is_new) it->second.fd = Share(std::move(memfd));
  Note("pid %d %s stack '%s'", pid, is_new ? "makes" : "joins", it->first.name.c_str());
  out = it->second.fd;
  return 0;
}

void NamedStacks::Learn(const Stack& stack, pid_t pid, uid_t uid) {
  Key key;
  if (!KeyOf(*stack.s, pid, uid, key)) return;
  const auto it = entries_.find(key);
  if (it != entries_.end()) {
    if (SameUuid(it->second.id, stack.id)) it->second.known = true;
    return;
  }
  entries_[key] = {stack.id, stack.fd, true};
}

void NamedStacks::Prune(const Registry& registry) {
  std::erase_if(entries_, [&](const auto& entry) {
    return entry.second.known && registry.stacks().count(entry.second.id) == 0;
  });
}

}  // namespace postern::daemon
