// slot_copy.h - a copy of a slot of a stack, and what the kernel says of its process.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "../kit/pid_namespaces.h"
#include "registry.h"

namespace postern::daemon {

SlotCopy ReadSlot(const Stack& stack, uint32_t slot);
std::vector<SlotCopy> ReadSlots(const Stack& stack);  // those in use
bool Held(const SlotCopy& copy);
uint32_t SlotsInUse(const Stack& stack);
// No process is known, and no slot has one: what is seen without a look into /proc.
bool IsDeserted(const Stack& stack);

// Whether its process is in another PID namespace than posternd.
bool IsElsewhere(const SlotCopy& copy);
// The process as it is here; 0: it is in another PID namespace, and not there any more.
pid_t PidHere(const SlotCopy& copy, uint64_t start_time);
// The same by one look for many slots, which were copied before it.
pid_t PidHere(const SlotCopy& copy, uint64_t start_time, PidsThere& look);

// It is another user's, who decides what stands in its slots, and how often there is news of them.
bool IsGuests(const Stack& stack);
// Anything may stand in a slot. A process that is not vouched for (hello, its parent) is of the
// family if it has the family's memory.
bool IsOfFamily(const Stack& stack, pid_t pid);

}  // namespace postern::daemon
