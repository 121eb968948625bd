// registry_scan.cc - a look at the slots of a stack: which are held, and which no more.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "../kit/image.h"
#include "../kit/log.h"
#include "../kit/proc.h"
#include "base/atomic.h"
#include "base/schema/reasons.h"
#include "registry.h"
#include "slot_copy.h"

namespace postern::daemon {
namespace {

// How long no process has been seen that may hold the slot. These are no limits for a child or an
// image that comes late: IsOfFamily and MayTakeSlotOver tell it from one that will not come, and
// the graces are for the case that several looks in a row fall between two of its states.
constexpr auto kEmbryoGrace = std::chrono::seconds(2);
constexpr auto kExecGrace = std::chrono::seconds(10);
// The rest of a guest's slots is for the next time.
constexpr auto kGuestsLook = std::chrono::milliseconds(20);

// It holds the slot, or its image is still being loaded and is going to.
bool MayHold(const Stack& stack, uint32_t slot, pid_t pid) {
  return IsOfFamily(stack, pid) || MayTakeSlotOver(pid, stack.inode, slot);
}

// The time since when this one is suspected to be gone: a slot has one holder after another.
Suspect& SuspectOf(Stack& stack, uint32_t slot, pid_t parent, pid_t child) {
  const auto [it, is_new] = stack.suspects.try_emplace(slot);
  Suspect& suspect = it->second;
  if (is_new || suspect.parent != parent || suspect.child != child)
    suspect = {parent, child, Clock::now()};
  return suspect;
}

}  // namespace

bool Registry::ScanSlots(Stack& stack) {
  bool look_again = false;
  const std::vector<SlotCopy> slots = ReadSlots(stack);
  const auto count = static_cast<uint32_t>(slots.size());
  const auto until = Clock::now() + kGuestsLook;
  PidsThere look;
  uint32_t slot = IsGuests(stack) && stack.scan_from < count ? stack.scan_from : 0;
  for (uint32_t done = 0; done < count; ++done, slot = (slot + 1) % count) {
    if (done != 0 && IsGuests(stack) && Clock::now() >= until) {
      stack.scan_from = slot;
      return true;
    }
    look_again |= ScanSlot(stack, slot, slots[slot], look);
  }
  return look_again;
}

bool Registry::ScanSlot(Stack& stack, uint32_t slot, const SlotCopy& copy, PidsThere& look) {
  if (stack.reaping.count(slot) != 0) return false;  // Reaped() looks again
  if (copy.state == PSTN_SL_EMBRYO) return ScanEmbryo(stack, slot, copy, look);
  if (copy.state == PSTN_SL_DEAD) {  // a reaper has begun with it, and did not come to an end
    Forget(stack, slot);
    Reap(stack, slot, copy.pid);
    return false;
  }
  Process* process = nullptr;
  const bool live = copy.state == PSTN_SL_LIVE;
  const bool watched = live && Watch(stack, slot, copy, look, process) == 0;
  if (watched && process->client == nullptr && copy.exec_pending != PSTN_EXEC_NONE)
    return ScanExec(stack, slot, copy, process->pid);
  if (!live || watched) {
    stack.suspects.erase(slot);
    return false;
  }
  const pid_t here = PidHere(copy, copy.start_time, look);
  if (IsAlive(here, copy.start_time) && MayBeOfFamily(stack, slot, copy, here)) return true;
  stack.suspects.erase(slot);
  Note("stack %s: slot %u belonged to pid %d, which is gone", Text(stack.id).c_str(), slot,
       copy.pid);
  Reap(stack, slot, copy.pid);
  return false;
}

// Without the family's memory it may be between two images: the slot was read before the exec, and
// the process looked at after. With it, it has no pidfd because we are out of descriptors; the
// timer is what notices its death then.
bool Registry::MayBeOfFamily(Stack& stack, uint32_t slot, const SlotCopy& copy, pid_t here) {
  const auto now = Clock::now();
  Suspect& suspect = SuspectOf(stack, slot, copy.pid, here);
  if (MayHold(stack, slot, here)) suspect.last_alive = now;
  return now - suspect.last_alive < kEmbryoGrace;
}

// The process `here` has exec'd, and its new image has not said hello.
bool Registry::ScanExec(Stack& stack, uint32_t slot, const SlotCopy& copy, pid_t here) {
  const auto now = Clock::now();
  Suspect& suspect = SuspectOf(stack, slot, copy.pid, copy.pid);
  const bool with = copy.exec_pending == PSTN_EXEC_WITH;
  if (with && MayHold(stack, slot, here)) suspect.last_alive = now;
  if (with && now - suspect.last_alive < kExecGrace) return true;
  const uint64_t left = LoadRelaxed(stack.s->hdr.reasons[kReasonSecurity]);
  if (std::exchange(stack.left_for_kernel, left) < left)
    Warn(
        "pid %d has become another user while it had other threads, or shared connections: the "
        "kernel has its sockets from now on",
        here);
  Inform("stack %s: pid %d, slot %u, has left the family", Text(stack.id).c_str(), copy.pid, slot);
  stack.suspects.erase(slot);
  Forget(stack, slot);
  Reap(stack, slot, copy.pid);
  return false;
}

// An embryo bears the id of the thread that forks, then that of its child (Adopted), and no start
// time that could be relied on.
bool Registry::ScanEmbryo(Stack& stack, uint32_t slot, const SlotCopy& copy, PidsThere& look) {
  const auto now = Clock::now();
  Suspect& suspect = SuspectOf(stack, slot, copy.pid, 0);
  const pid_t holder = PidHere(copy, 0, look);
  if (IsAlive(holder, 0) && MayHold(stack, slot, holder)) suspect.last_alive = now;
  // Even then, the child of a dead parent may be just about to take over.
  if (now - suspect.last_alive < kEmbryoGrace) return true;
  Note("stack %s: slot %u was never taken over by a child of pid %d", Text(stack.id).c_str(), slot,
       copy.pid);
  stack.suspects.erase(slot);
  Reap(stack, slot, copy.pid);
  return false;
}

}  // namespace postern::daemon
