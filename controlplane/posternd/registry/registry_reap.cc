// registry_reap.cc - the dead of a family: what its reaper is asked to do, in which order, and what
// becomes of a family whose reaper has failed.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "../kit/log.h"
#include "../kit/proc.h"
#include "registry.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kAgainMs = 250;
constexpr auto kReapedWindow = std::chrono::seconds(1);
constexpr size_t kWaitersMax = kProcesses.most;  // for one slot's end

ctl::Msg JobOf(ctl::Type type, uint32_t slot, pid_t pid) {
  ctl::Msg job;
  job.type = type;
  job.a = slot;
  job.b = static_cast<uint32_t>(pid);
  return job;
}

}  // namespace

// In the order in which a client may notice: a client that has been told that its connection is
// gone finds no listener at the port. So the listeners come first, the directory hears of it, and
// so do other daemons (Withdrawn).
void Registry::Reap(Stack& stack, uint32_t slot, pid_t pid, std::function<void(int)> done) {
  if (stack.broken) return done ? done(-ECONNRESET) : void();
  if (!done && AwaitsLinks(stack)) {  // the timer finds it dead once more
    if (!slot_timer_.pending()) slot_timer_.AddMs(kAgainMs);
    return;
  }
  const auto [it, is_new] = stack.reaping.try_emplace(slot);
  if (done && it->second.waiters.size() >= kWaitersMax) return done(-EBUSY);
  if (done) it->second.waiters.push_back(std::move(done));
  if (!is_new) return;
  it->second.pid = pid;
  const auto& listeners = directory_.listeners();
  const bool listens = std::any_of(listeners.begin(), listeners.end(), [&](const auto& entry) {
    return Same(entry.second.stack, stack.id);
  });
  if (!listens) return ReapRest(stack.id, slot);
  if (!pass_queues) return ReapListeners(stack.id, slot);
  pass_queues(stack, [this, id = stack.id, slot] { ReapListeners(id, slot); });
}

void Registry::ReapListeners(const pstn_uuid& id, uint32_t slot) {
  Stack* const stack = Find(id);
  if (stack == nullptr || stack->reaping.count(slot) == 0) return;
  reapers_.Do(*stack, JobOf(ctl::Type::kJobListeners, slot, stack->reaping[slot].pid),
              [this, id, slot](int status, const ctl::Msg&) {
                Stack* const family = Find(id);
                if (family == nullptr) return;
                if (status != 0) return Reaped(id, slot, status);
                WithdrawStaleListeners(*family);
                if (withdrawing && withdrawing()) return Reaped(id, slot, EBUSY);
                ReapRest(id, slot);
              });
}

void Registry::GuestEnded(pid_t pid, std::function<void(int)> done) {
  for (const auto& [id, stack] : stacks_) {
    if (stack->uid == geteuid()) continue;
    for (const auto& [slot, process] : stack->processes) {
      if (process->there == pid && PidfdIsDead(process->pidfd.get()))
        return ChildEnded(*stack, slot, pid, std::move(done));
    }
    for (const auto& [slot, one] : stack->reaping) {  // its pidfd has told it already
      if (one.pid == pid) return ChildEnded(*stack, slot, pid, std::move(done));
    }
  }
  done(-ENOENT);
}

void Registry::ReapRest(const pstn_uuid& id, uint32_t slot) {
  Stack* const stack = Find(id);
  if (stack == nullptr) return;
  const auto it = stack->reaping.find(slot);
  if (it == stack->reaping.end()) return;
  reapers_.Do(*stack, JobOf(ctl::Type::kJobSlot, slot, it->second.pid),
              [this, id, slot](int status, const ctl::Msg&) { Reaped(id, slot, status); });
}

// A family that writes its slots back as soon as they are free would have posternd look at them,
// and its reaper free them, without end.
bool Registry::IsReapedTooOften(Stack& stack) {
  const auto now = Clock::now();
  if (now - stack.reaped_since >= kReapedWindow) stack.reaped = 0, stack.reaped_since = now;
  return ++stack.reaped > stack.s->slots.count();
}

// EBUSY: a stopped thread (a debugger, SIGSTOP) holds a lock that is needed. To take it from a
// living thread would have two in there when it goes on: it is tried again later.
void Registry::Reaped(const pstn_uuid& id, uint32_t slot, int status) {
  Stack* stack = Find(id);
  if (stack == nullptr) return;
  const auto it = stack->reaping.find(slot);
  if (it == stack->reaping.end()) return;
  const auto waiters = std::move(it->second.waiters);
  stack->reaping.erase(it);
  for (const auto& waiter : waiters) waiter(-status);
  stack = Find(id);
  if (stack == nullptr || status == EOWNERDEAD) return;  // ReaperFailed comes
  if (status != 0 || IsReapedTooOften(*stack)) {
    if (!slot_timer_.pending()) slot_timer_.AddMs(kAgainMs);
  } else if (!ScanOrDrop(*stack)) {
    WithdrawStaleListeners(*stack);
  }
}

void Registry::EndStack(Stack& stack) {
  if (std::exchange(stack.ending, true)) return;
  Inform("stack %s: nobody is left", Text(stack.id).c_str());
  directory_.WithdrawIf([&](const Listener& l) { return Same(l.stack, stack.id); });
  ctl::Msg job;
  job.type = ctl::Type::kJobEnd;
  reapers_.Do(stack, job,
              [this, id = stack.id](int status, const ctl::Msg&) { Ended(id, status); });
}

void Registry::Ended(const pstn_uuid& id, int status) {
  Stack* const stack = Find(id);
  if (stack == nullptr || status == EOWNERDEAD) return;  // ReaperFailed comes
  stack->ending = false;
  if (status == EEXIST) {  // a process has come meanwhile, or the memory says so again and again
    if (!slot_timer_.pending()) slot_timer_.AddMs(kAgainMs);
    return;
  }
  // It came too late: its connections are ended. It says hello anew.
  while (!stack->processes.empty()) {
    Client* const client = stack->processes.begin()->second->client;
    Forget(*stack, stack->processes.begin()->first);
    if (client != nullptr) client->Break();
  }
  EndLinks(*stack);
  ReleaseStack(*stack);
  on_change_();
}

// The peers get to see the end of their connections, each by its own reaper or daemon.
void Registry::EndLinks(Stack& stack) {
  std::map<uint32_t, LinkGroup*> links;
  links.swap(stack.links);
  for (const auto& [idx, link] : links) {
    // Both ends of a stack's link to itself are in the list.
    const uint32_t side = link->end[0].stack == &stack && link->end[0].idx == idx ? 0 : 1;
    DetachEnd(*link, side);
    KillLink(*link, side);
    if (link->remote[1 - side]) on_end(*link, side);
    EraseIfUnused(*link);
  }
}

// What its memory has done to one reaper it would do to the next. So for all others the family is
// dead; what is left of it goes on without posternd.
void Registry::ReaperFailed(const pstn_uuid& id, const std::string& why) {
  Stack* const stack = Find(id);
  if (stack == nullptr) return;
  std::string who;
  for (const auto& [slot, process] : stack->processes)
    who += (who.empty() ? "" : ",") + std::to_string(process->pid);
  Warn("stack %s: its reaper has failed (%s); the family is cut off, and its connections end%s%s",
       Text(id).c_str(), why.c_str(), who.empty() ? "" : "; still alive: pid ", who.c_str());
  stack->broken = true;
  stack->ending = false;
  stack->suspects.clear();
  auto reaping = std::move(stack->reaping);
  stack->reaping.clear();
  for (auto& [slot, one] : reaping) {
    for (const auto& waiter : one.waiters) waiter(-ECONNRESET);
  }
  directory_.WithdrawIf([&](const Listener& l) { return Same(l.stack, id); });
  for (const auto& [slot, process] : stack->processes) {
    if (process->client != nullptr) process->client->Break();
  }
  EndLinks(*stack);
  (void)ScanOrDrop(*stack);
}

void Registry::AdmitOffer(const Stack& stack, const LinkGroup& link, const ctl::Msg& offer,
                          std::function<void(int, bool)> done) {
  ctl::Msg job = offer;
  job.type = ctl::Type::kJobAdmit;
  job.a = link.end[1].idx;
  job.id = link.id;
  reapers_.Do(stack, job, [done = std::move(done)](int status, const ctl::Msg& answer) {
    done(status, answer.a != 0);
  });
}

}  // namespace postern::daemon
