// named_stacks.cc - see named_stacks.h.
// SPDX-License-Identifier: Apache-2.0
#include "named_stacks.h"

#include <unistd.h>

#include <algorithm>
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
// Of one user that has left: one stack for each family and each pair of namespaces, which a process
// can change as often as it likes.
constexpr size_t kGuestStacksMost = 32;
constexpr auto kHelloWithin = std::chrono::seconds(60);  // what has its stack says so at once

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
  const Entry* entry = nullptr;
  const int error = Enter(std::move(key), id, pid, std::move(memfd), entry);
  if (error == 0) out = entry->fd;
  return error;
}

int NamedStacks::FindGuests(const Registry& registry, const pstn_uuid& origin, pid_t pid, uid_t uid,
                            UniqueFd memfd, SharedFd& out, pstn_uuid& id) {
  const StackLook* const stack = LookAtStack(memfd.get());
  if (stack == nullptr) return -EINVAL;
  const pstn_uuid own = stack->hdr.id;
  UnmapStack(stack);
  // No program's own name begins so.
  Key key{uid, NetnsIno(pid), PidnsIno(pid), "\nguests of " + Text(origin)};
  if (key.netns == 0 || key.pidns == 0) return -EINVAL;
  if (entries_.find(key) == entries_.end() && GuestsOf(registry, uid) >= kGuestStacksMost)
    return -EDQUOT;
  const Entry* entry = nullptr;
  const int error = Enter(std::move(key), own, pid, std::move(memfd), entry);
  if (error != 0) return error;
  out = entry->fd;
  id = entry->id;
  return 0;
}

size_t NamedStacks::GuestsOf(const Registry& registry, uid_t uid) {
  const auto now = Clock::now();
  size_t count = 0;
  std::erase_if(entries_, [&](const auto& one) {
    if (one.first.uid != uid || one.first.uid == geteuid() || one.second.known) return false;
    const bool waits = now - one.second.since < kHelloWithin;
    count += waits ? 1u : 0u;
    return !waits;
  });
  for (const auto& [id, stack] : registry.stacks()) count += stack->uid == uid ? 1u : 0u;
  return count;
}

bool NamedStacks::MayBring(const Registry& registry, const pstn_uuid& stack, uid_t uid) {
  const bool expected = std::any_of(entries_.begin(), entries_.end(), [&](const auto& one) {
    return one.first.uid == uid && SameUuid(one.second.id, stack);
  });
  return expected || GuestsOf(registry, uid) < kGuestStacksMost;
}

int NamedStacks::Enter(Key key, const pstn_uuid& id, pid_t pid, UniqueFd memfd,
                       const Entry*& entry) {
  if (entries_.size() >= kEntriesMax && entries_.find(key) == entries_.end()) return -ENOSPC;
  const auto [it, is_new] =
      entries_.try_emplace(std::move(key), Entry{id, nullptr, false, Clock::now()});
  if (is_new) it->second.fd = Share(std::move(memfd));
  Note("pid %d %s stack '%s'", pid, is_new ? "makes" : "joins", it->first.name.c_str());
  entry = &it->second;
  return 0;
}

void NamedStacks::Learn(const Stack& stack, pid_t pid, uid_t uid) {
  Key key;
  // A guests' stack is known by whom it has left.
  if (stack.uid != geteuid()) {
    for (auto& [name, entry] : entries_) entry.known |= SameUuid(entry.id, stack.id);
    return;
  }
  if (!KeyOf(*stack.s, pid, uid, key)) return;
  const auto it = entries_.find(key);
  if (it != entries_.end()) {
    if (SameUuid(it->second.id, stack.id)) it->second.known = true;
    return;
  }
  entries_[key] = {stack.id, stack.fd, true, Clock::now()};
}

void NamedStacks::Prune(const Registry& registry) {
  std::erase_if(entries_, [&](const auto& entry) {
    return entry.second.known && registry.stacks().count(entry.second.id) == 0;
  });
}

}  // namespace postern::daemon
