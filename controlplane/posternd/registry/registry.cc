// registry.cc - processes and stacks: hello, watching, death.
// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "../kit/image.h"
#include "../kit/log.h"
#include "../kit/pid_namespaces.h"
#include "../kit/proc.h"
#include "base/atomic.h"
#include "stack_words.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kSlotScanMs = 250;
// How long nobody has been seen who may hold the slot. These are no limits for a child or an image
// that comes late: IsOfFamily and MayTakeSlotOver tell it from one that will not come, and the
// graces are for the case that several looks in a row fall between two of its states.
constexpr auto kEmbryoGrace = std::chrono::seconds(2);
constexpr auto kExecGrace = std::chrono::seconds(10);

SlotCopy ReadSlot(const Stack& stack, uint32_t slot) {
  const pstn_slot& s = stack.s->slots[slot];
  SlotCopy copy{};
  copy.state = LoadAcquire(s.state);
  copy.pid = static_cast<pid_t>(LoadRelaxed(s.pid));
  copy.pidns = LoadRelaxed(s.pidns);
  copy.start_time = LoadRelaxed(s.start_time);
  copy.exec_pending = LoadAcquire(s.exec_pending);
  return copy;
}
bool Held(const SlotCopy& slot) {
  return slot.state == PSTN_SL_LIVE || slot.state == PSTN_SL_EMBRYO;
}

uint32_t SlotsInUse(const Stack& stack) {
  return std::min(LoadAcquire(stack.s->hdr.slots_hw), PSTN_SLOTS);
}

// A slot that does not say of which PID namespace it speaks means ours.
bool IsElsewhere(const SlotCopy& copy) {
  return copy.pidns != 0 && copy.pidns != PSTN_NONE && copy.pidns != OwnPidnsIno();
}
// The process as it is here; 0: it is in another PID namespace, and not there any more.
pid_t PidHere(const SlotCopy& copy, uint64_t start_time) {
  return IsElsewhere(copy) ? FindPid(copy.pidns, copy.pid, start_time) : copy.pid;
}

// Anything may stand in a slot. A process that nobody has vouched for (hello, its parent) is of the
// family if it has the family's memory.
bool IsOfFamily(const Stack& stack, pid_t pid) {
  return pid > 0 && HasMapped(pid, stack.inode) != Mapped::kNo;
}
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

Registry::Registry(event_base* base, Directory& directory, std::function<void()> on_change)
    : base_(base),
      directory_(directory),
      on_change_(std::move(on_change)),
      slot_timer_(base, -1, 0, [this] { SlotTimer(); }),
      link_timer_(base, -1, 0, [this] { LinkTimer(); }),
      reapers_(base) {
  reapers_.SetDirectory(directory.fd());
  reapers_.find = [this](const pstn_uuid& id) -> const Stack* { return Find(id); };
  reapers_.on_failed = [this](const pstn_uuid& id, const std::string& why) {
    ReaperFailed(id, why);
  };
}

// The clients' connections go on without us: nothing is taken apart, only let go.
Registry::~Registry() {
  while (!stacks_.empty()) ReleaseStack(*stacks_.begin()->second);
}

Stack* Registry::Find(const pstn_uuid& id) {
  const auto it = stacks_.find(id);
  return it == stacks_.end() ? nullptr : it->second.get();
}

const Stack* Registry::EndpointOf(pid_t pid, uint32_t fd, uint32_t& ep, uint32_t& gen) const {
  if (fd >= PSTN_SLOT_CHUNKS * PSTN_FDCHUNK_FDS) return nullptr;
  for (const auto& [id, stack] : stacks_) {
    for (const auto& [slot, process] : stack->processes) {
      if (process->pid != pid) continue;
      const pstn_stack& s = *stack->s;
      const uint32_t chunk = LoadAcquire(s.slots[slot].chunk[fd / PSTN_FDCHUNK_FDS]);
      if (chunk >= PSTN_FDCHUNKS) return nullptr;
      const uint32_t entry = LoadAcquire(s.fdchunks[chunk].fd[fd % PSTN_FDCHUNK_FDS]);
      ep = entry & PSTN_FD_IDX;
      if ((entry & PSTN_FD_KIND) != PSTN_FD_EP || ep >= PSTN_EPS) return nullptr;
      gen = LoadRelaxed(s.eps[ep].gen);
      return stack.get();
    }
  }
  return nullptr;
}

void Registry::StoreHeld(const pstn_uuid& id, uint32_t ep_idx, uint32_t ep_gen, uint32_t held,
                         uint32_t in_talks) {
  Stack* const stack = Find(id);
  const pstn_ep* const ep = stack != nullptr ? EpAt(*stack->s, ep_idx) : nullptr;
  if (ep == nullptr || LoadRelaxed(ep->gen) != ep_gen) return;
  const bool more = held > LoadRelaxed(ep->held);
  PutHeld(*stack, ep_idx, held, in_talks);
  if (!more) return;
  ctl::Msg message;
  message.type = ctl::Type::kHeld;
  message.a = ep_idx;
  message.b = ep_gen;
  Push(*stack, message);
}

uint32_t Registry::BacklogOf(const pstn_uuid& id, uint32_t ep_idx, uint32_t ep_gen) {
  Stack* const stack = Find(id);
  const pstn_ep* const ep = stack != nullptr ? EpAt(*stack->s, ep_idx) : nullptr;
  return ep != nullptr && LoadRelaxed(ep->gen) == ep_gen ? LoadRelaxed(ep->backlog) : 0;
}

int Registry::OpenStack(const pstn_uuid& id, UniqueFd memfd, Stack*& stack) {
  const uint64_t inode = InodeOf(memfd.get());
  stack = Find(id);
  // Known by its id: then it has to be the very same memory.
  if (stack != nullptr) return stack->inode == inode ? 0 : -EEXIST;
  const pstn_stack* map = LookAtStack(memfd.get());
  if (map == nullptr) return -EINVAL;
  const pstn_uuid found = map->hdr.id;
  if (!Same(found, id)) {
    UnmapStack(map);
    return -EINVAL;
  }
  auto fresh = std::make_unique<Stack>();
  fresh->id = id;
  fresh->fd = Share(std::move(memfd));
  fresh->inode = inode;
  fresh->s = map;
  stack = fresh.get();
  stacks_[id] = std::move(fresh);
  return 0;
}

int Registry::Hello(Client& client, uint32_t slot, const pstn_uuid& id, UniqueFd memfd) {
  if (!memfd.ok() || slot >= PSTN_SLOTS) return -EINVAL;
  const bool is_new = Find(id) == nullptr;
  Stack* stack = nullptr;
  int error = OpenStack(id, std::move(memfd), stack);
  if (error != 0) return error;
  if (stack->broken) return -ECONNRESET;
  const SlotCopy copy = ReadSlot(*stack, slot);
  Process* process = nullptr;
  // The kernel says who it is, in our PID namespace; the slot says who it is in its own.
  const bool is_own =
      IsElsewhere(copy) ? IsPidThere(client.pid(), copy.pid) : copy.pid == client.pid();
  error = is_own ? Watch(*stack, slot, copy, client.pid(), process) : -EPERM;
  if (error != 0) {
    if (is_new) ReleaseStack(*stack);
    return error;
  }
  if (client.process != nullptr && client.process != process) client.process->client = nullptr;
  if (process->client != nullptr) process->client->process = nullptr;
  process->client = &client;
  client.process = process;
  Note("stack %s: hello from pid %d, slot %u", Text(id).c_str(), client.pid(), slot);
  if (is_new) {
    AttachWaiting(*stack);
    on_change_();
  }
  ScanOrDrop(*stack);
  return client.process != nullptr ? 0 : -ESRCH;
}

int Registry::ChildSlot(Process& parent, uint32_t slot, pid_t child) {
  Stack& stack = *parent.stack;
  if (slot >= PSTN_SLOTS || child <= 0) return -EINVAL;
  const SlotCopy copy = ReadSlot(stack, slot);
  const pid_t here = FindChild(parent.pid, child);
  Process* process = nullptr;
  if (copy.state == PSTN_SL_LIVE && (copy.pid == child || IsPidThere(here, copy.pid))) {
    (void)Watch(stack, slot, copy, here, process);
  } else if (copy.state == PSTN_SL_EMBRYO && (copy.pid == child || copy.pid == parent.there)) {
    // Not taken over yet. Perhaps it never will be (a static program, an early death), and the
    // parent may live on for ever: the slot is held for as long as the child lives.
    stack.suspects[slot] = {copy.pid, here, Clock::now()};
  }
  ScanOrDrop(stack);
  return 0;
}

int Registry::Watch(Stack& stack, uint32_t slot, const SlotCopy& copy, pid_t pid,
                    Process*& process) {
  const auto known = stack.processes.find(slot);
  if (known != stack.processes.end()) {
    const Process& old = *known->second;
    if (old.there == copy.pid && (pid == 0 || old.pid == pid) && !PidfdIsDead(old.pidfd.get())) {
      process = known->second.get();
      return 0;
    }
    Forget(stack, slot);  // the slot has passed on to another process
  }
  if (pid == 0) {
    pid = PidHere(copy, copy.start_time);
    // The image that an exec makes has not come to map it.
    if (copy.exec_pending == PSTN_EXEC_NONE && !IsOfFamily(stack, pid)) return -ESRCH;
  }
  UniqueFd pidfd = OpenPidfd(pid, copy.start_time);
  if (!pidfd.ok() || PidfdIsDead(pidfd.get())) return -ESRCH;
  auto fresh = std::make_unique<Process>();
  fresh->stack = &stack;
  fresh->slot = slot;
  fresh->pid = pid;
  fresh->there = copy.pid;
  fresh->died =
      std::make_unique<Event>(base_, pidfd.get(), EV_READ,
                              [this, id = stack.id, slot, pid] { ProcessDied(id, slot, pid); });
  fresh->died->Add();
  fresh->pidfd = std::move(pidfd);
  process = fresh.get();
  stack.processes[slot] = std::move(fresh);
  if (on_process) on_process(*process);
  return 0;
}

void Registry::Forget(Stack& stack, uint32_t slot) {
  const auto it = stack.processes.find(slot);
  if (it == stack.processes.end()) return;
  if (it->second->client != nullptr) it->second->client->process = nullptr;
  it->second->died.reset();  // before the descriptor that it watches
  stack.processes.erase(it);
}

void Registry::ClientGone(Client& client) {
  Process* const process = std::exchange(client.process, nullptr);
  if (process == nullptr) return;
  process->client = nullptr;
  // The connection of a process that lives ends when it has exec'd (or lost its descriptors). An
  // image without the library never takes the slot over.
  if (!PidfdIsDead(process->pidfd.get())) ScanOrDrop(*process->stack);
}

void Registry::ProcessDied(const pstn_uuid& stack_id, uint32_t slot, pid_t pid) {
  Stack* stack = Find(stack_id);
  if (stack == nullptr) return;
  Note("stack %s: pid %d, slot %u, has died", Text(stack_id).c_str(), pid, slot);
  const auto process = stack->processes.find(slot);
  const pid_t there = process != stack->processes.end() ? process->second->there : pid;
  Forget(*stack, slot);
  // An orderly process has given its slot back itself, and another may hold it by now.
  const SlotCopy copy = ReadSlot(*stack, slot);
  if (copy.state == PSTN_SL_LIVE && copy.pid == there) Reap(*stack, slot, there);
  if (!ScanOrDrop(*stack)) WithdrawStaleListeners(*stack);
}

void Registry::ChildEnded(Stack& stack, uint32_t slot, pid_t pid, std::function<void(int)> done) {
  if (slot >= PSTN_SLOTS) return done(-EINVAL);
  const SlotCopy copy = ReadSlot(stack, slot);
  const bool is_reaped = stack.reaping.count(slot) != 0;  // then this waits for the end of it
  if ((!Held(copy) && !is_reaped) || copy.pid != pid) return done(-ENOENT);
  const uint64_t start_time = copy.state == PSTN_SL_LIVE ? copy.start_time : 0;
  if (!is_reaped && IsAlive(PidHere(copy, start_time), start_time)) return done(-EBUSY);
  Forget(stack, slot);
  stack.suspects.erase(slot);
  Reap(stack, slot, pid, std::move(done));
}

void Registry::Withdrawn() { slot_timer_.AddMs(0); }

bool Registry::ScanSlots(Stack& stack) {
  bool look_again = false;
  const uint32_t end = SlotsInUse(stack);
  for (uint32_t slot = 0; slot < end; ++slot) look_again |= ScanSlot(stack, slot);
  return look_again;
}

bool Registry::ScanSlot(Stack& stack, uint32_t slot) {
  if (stack.reaping.count(slot) != 0) return false;  // Reaped() looks again
  const SlotCopy copy = ReadSlot(stack, slot);
  if (copy.state == PSTN_SL_EMBRYO) return ScanEmbryo(stack, slot, copy);
  if (copy.state == PSTN_SL_DEAD) {  // somebody has begun to reap it, and did not come to an end
    Forget(stack, slot);
    Reap(stack, slot, copy.pid);
    return false;
  }
  Process* process = nullptr;
  const bool live = copy.state == PSTN_SL_LIVE;
  const bool watched = live && Watch(stack, slot, copy, 0, process) == 0;
  if (watched && process->client == nullptr && copy.exec_pending != PSTN_EXEC_NONE)
    return ScanExec(stack, slot, copy, process->pid);
  if (!live || watched) {
    stack.suspects.erase(slot);
    return false;
  }
  const pid_t here = PidHere(copy, copy.start_time);
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
  Note("stack %s: pid %d, slot %u, runs an image without the library", Text(stack.id).c_str(),
       copy.pid, slot);
  stack.suspects.erase(slot);
  Forget(stack, slot);
  Reap(stack, slot, copy.pid);
  return false;
}

// An embryo bears the id of the thread that forks, and no start time that could be relied on.
bool Registry::ScanEmbryo(Stack& stack, uint32_t slot, const SlotCopy& copy) {
  const auto now = Clock::now();
  const pid_t parent = copy.pid;
  const auto [it, is_new] = stack.suspects.try_emplace(slot, Suspect{parent, 0, now});
  Suspect& suspect = it->second;
  if (suspect.parent != parent) suspect = {parent, 0, now};
  // Whose child is not known is given the time that its parent lives.
  const pid_t holder = suspect.child != 0 ? suspect.child : PidHere(copy, 0);
  if (IsAlive(holder, 0) && (suspect.child != 0 || MayHold(stack, slot, holder)))
    suspect.last_alive = now;
  // Even then, the child of a dead parent may be just about to take over.
  if (now - suspect.last_alive < kEmbryoGrace) return true;
  Note("stack %s: slot %u was never taken over by a child of pid %d", Text(stack.id).c_str(), slot,
       parent);
  stack.suspects.erase(it);
  Reap(stack, slot, copy.pid);
  return false;
}

bool Registry::ScanOrDrop(Stack& stack) {
  if (stack.broken) return ScanBroken(stack);
  const bool look_again = ScanSlots(stack);
  if (look_again && !slot_timer_.pending()) slot_timer_.AddMs(kSlotScanMs);
  if (look_again || !stack.processes.empty() || !stack.reaping.empty()) return false;
  EndStack(stack);
  return false;
}

// Its living processes are still watched, so that it is known when the last of them has ended.
bool Registry::ScanBroken(Stack& stack) {
  for (uint32_t slot = 0, end = SlotsInUse(stack); slot < end; ++slot) {
    const SlotCopy copy = ReadSlot(stack, slot);
    Process* process = nullptr;
    if (copy.state == PSTN_SL_LIVE) (void)Watch(stack, slot, copy, 0, process);
  }
  if (!stack.processes.empty()) return false;
  ReleaseStack(stack);
  on_change_();
  return true;
}

void Registry::SlotTimer() {
  std::vector<pstn_uuid> ids;
  for (const auto& [id, stack] : stacks_) ids.push_back(id);
  for (const pstn_uuid& id : ids) {
    if (Stack* stack = Find(id)) (void)ScanOrDrop(*stack);
  }
}

void Registry::WithdrawStaleListeners(Stack& stack) {
  directory_.WithdrawIf([&](const Listener& l) {
    if (!Same(l.stack, stack.id)) return false;
    const pstn_ep* ep = EpAt(*stack.s, l.ep_idx);
    return ep == nullptr || LoadAcquire(ep->state) != PSTN_EP_LISTEN ||
           LoadRelaxed(ep->gen) != l.ep_gen;
  });
}

void Registry::ReleaseStack(Stack& stack) {
  reapers_.Forget(stack);
  UnmapStack(stack.s);
  stacks_.erase(stack.id);
}

}  // namespace postern::daemon
