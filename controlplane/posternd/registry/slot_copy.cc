// slot_copy.cc - see slot_copy.h.
// SPDX-License-Identifier: Apache-2.0
#include "slot_copy.h"

#include <unistd.h>

#include "../kit/pid_namespaces.h"
#include "../kit/proc.h"
#include "base/atomic.h"
#include "registry.h"

namespace postern::daemon {

SlotCopy ReadSlot(const Stack& stack, uint32_t slot) {
  const pstn_slot& s = stack.s->slots.Own(ProcIndex(slot));
  SlotCopy copy{};
  copy.state = LoadAcquire(s.state);
  copy.pid = static_cast<pid_t>(LoadRelaxed(s.pid));
  copy.pidns = LoadRelaxed(s.pidns);
  copy.start_time = LoadRelaxed(s.start_time);
  copy.exec_pending = LoadAcquire(s.exec_pending);  // [P6]
  return copy;
}

bool Held(const SlotCopy& copy) {
  return copy.state == PSTN_SL_LIVE || copy.state == PSTN_SL_EMBRYO;
}

uint32_t SlotsInUse(const Stack& stack) {
  return stack.s->slots.Clamp(LoadAcquire(stack.s->hdr.slots_hw));
}

bool IsDeserted(const Stack& stack) {
  if (!stack.processes.empty() || !stack.reaping.empty()) return false;
  for (uint32_t slot = 0, end = SlotsInUse(stack); slot < end; ++slot) {
    if (LoadAcquire(stack.s->slots.Own(ProcIndex(slot)).state) != PSTN_SL_FREE) return false;
  }
  return true;
}

std::vector<SlotCopy> ReadSlots(const Stack& stack) {
  std::vector<SlotCopy> slots;
  for (uint32_t slot = 0, end = SlotsInUse(stack); slot < end; ++slot)
    slots.push_back(ReadSlot(stack, slot));
  return slots;
}

// A slot that does not say of which PID namespace it speaks means ours.
bool IsElsewhere(const SlotCopy& copy) {
  return copy.pidns != 0 && copy.pidns != PSTN_NONE && copy.pidns != OwnPidnsIno();
}

pid_t PidHere(const SlotCopy& copy, uint64_t start_time) {
  return IsElsewhere(copy) ? FindPid(copy.pidns, copy.pid, start_time) : copy.pid;
}

pid_t PidHere(const SlotCopy& copy, uint64_t start_time, PidsThere& look) {
  return IsElsewhere(copy) ? look.Find(copy.pidns, copy.pid, start_time) : copy.pid;
}

bool IsGuests(const Stack& stack) { return stack.uid != geteuid(); }

bool IsOfFamily(const Stack& stack, pid_t pid) {
  return pid > 0 && HasMapped(pid, stack.inode) != Mapped::kNo;
}

}  // namespace postern::daemon
